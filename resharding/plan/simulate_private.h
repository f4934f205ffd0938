/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file simulate_private.h
 * What messages occupy, numbered: shared by the two disciplines of simulate.h. Not installed.
 */
#pragma once

#include "resharding/plan/simulate.h"

/* Every rail direction, uplink direction and device port has a number. */
typedef struct {
    const xm_network_t *network;
    int rails, racks, ranks;
    int count;
    double *rate; /* bytes/s */
    bool *moved;  /* scratch, all false */
} xm_resources_t;

/* What one message occupies. */
typedef struct {
    int count;
    int resource[4];
    int64_t latency_ns;
} xm_use_t;

xm_status_t xm_resources_init(xm_resources_t *resources, const xm_network_t *network);
void xm_resources_clear(xm_resources_t *resources);
void xm_resources_use(const xm_resources_t *resources, int sender, int receiver, xm_use_t *use);

/* Time that so many bytes take, rounded up. */
int64_t xm_resource_ns(const xm_resources_t *resources, int resource, uint64_t bytes);

xm_status_t xm_simulate_fair(const xm_plan_t *plan, const xm_network_t *network, xm_span_t *spans,
                             int64_t *makespan_ns);
