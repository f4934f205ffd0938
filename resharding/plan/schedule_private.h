/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file schedule_private.h
 * What the scheduling of whole tasks and that of parts share. Not installed.
 */
#pragma once

#include "resharding/plan/lanes.h"

/* What one demand of the problem stands for. */
typedef struct {
    int64_t task;
    xm_part_t part;
    int receiver; /* the one rank that gets it, or −1: all remote ones */
} xm_item_t;

typedef struct {
    xm_plan_t *plan;
    const xm_plan_params_t *params;
    const xm_classes_t *classes;
    xm_lanes_t lanes;
    uint64_t largest_chunk;
    double single;           /* xm_lanes_single(), or 1 with send_recv */
    unsigned char *strategy; /* by task */
    xm_demand_t *demands;
    xm_item_t *items; /* by demand */
    int64_t count;
} xm_scheduling_t;

/* Makes a task's chunks at most so long. */
void xm_scheduling_set_chunk(const xm_scheduling_t *s, xm_builder_t *builder, int64_t task,
                             int64_t bytes);

/* A way to make transfers of an open shop's hops. */
typedef struct {
    double
        single; /* part of what several receivers on one host need that comes to each by itself */
    int64_t pieces; /* hops between ends of different rates are cut, into about so many in all; 0:
                       they stay whole */
} xm_parts_way_t;

/* Cuts the tasks by openshop and appends the transfers. */
xm_status_t xm_schedule_parts(xm_scheduling_t *s, const xm_parts_way_t *way,
                              xm_transfer_emitter_t *emitter);
