/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bundles.h
 * What openshop orders. For the network, lanes with the same holding rails and the same receiving
 * rails are one amount of data, whichever devices are behind it: a *bundle*, which openshop cuts.
 * schedule_parts.c turns the cuts into transfers of tasks. Not installed.
 */
#pragma once

#include "resharding/plan/schedule_private.h"

/* Elements of a task in a bundle, for all remote receivers or for one. */
typedef struct {
    int64_t task;
    xm_part_t part;
    int64_t offset; /* of its first byte in the stream */
    int receiver;   /* or −1 */
} xm_entry_t;

struct xm_bundles {
    double single;           /* part that comes to each receiver by itself */
    bool near;               /* receivers beside a holder send on */
    int64_t message;         /* that hops are cut into; 0: they stay whole */
    const xm_lanes_t *lanes; /* those of whole tasks, or its own */
    xm_lanes_t own_lanes;
    xm_demand_t *demands; /* by bundle */
    int64_t count;
    bool *wide; /* by bundle: some receivers get it from neighbours */
    /* Every bundle has two streams: what neighbours pass on, and what comes to one rank only. */
    xm_entry_t *entries; /* by bundle, stream and task */
    int64_t *first;      /* by stream: its first entry; one more than streams */
    int64_t *bytes;      /* by stream */
    xm_hop_t *hops;
    int64_t hop_count, makespan_ns;
    int turns; /* of the schedule, at least; 0: no matter */
};

/* Makes the bundles with a part that comes to each receiver by itself, and has openshop order them
 * in messages. It declines problems beyond its size (::XM_ERR_UNSUPPORTED). The lanes of `s` must
 * outlive them.
 */
xm_status_t xm_bundles_create(const xm_scheduling_t *s, double single, bool near, int64_t message,
                              xm_bundles_t *bundles);
void xm_bundles_clear(xm_bundles_t *bundles);
