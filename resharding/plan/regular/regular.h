/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file regular.h
 * Plans of a regular all-to-all, whose tasks and transfers are computed from their numbers. Not
 * installed.
 *
 * All-to-all: one tensor, equally many elements in common between any source and any destination
 * tile, and every tile on one device, or on all devices of a host. Between 4,096 and 4,096 devices
 * it has 16.8 million tasks, and lists of them would fill gigabytes.
 *
 * Hosts are dealt as for a round robin: in round r host i of the smaller side exchanges with host
 * (i + r) mod n of the larger, and within it device a with device (a + q) mod m in turn q. So every
 * rank sends and receives one message at a time, and no NIC waits for another. A tile that all
 * devices of a host need comes to it in as many parts, one by each device, which passes it on to
 * its neighbours; of a tile that all devices of a host hold, each sends what its partner takes in,
 * in a single turn.
 */
#pragma once

#include "resharding/plan/plan_private.h"

/* One side's ranks, host by host, equally many on each. */
typedef struct {
    int hosts, devices;
    bool whole;       /* every tile is on all devices of a host */
    int *rank, *tile; /* by host, then by device */
    int *place;       /* by host of the network: its place among this side's, or −1 */
} xm_side_t;

typedef struct xm_regular {
    int64_t elements, chunk_elements;
    uint32_t src_tiles;
    uint32_t rounds, turns, pieces; /* turns of a round; pieces of what a turn moves */
    uint32_t hosts, devices;        /* of the smaller side; that take part in a turn */
    bool by_receiver;               /* device a of them is one of the receiving ones */
    int reached;                    /* ranks that a transfer reaches */
    xm_side_t src, dst;
} xm_regular_t;

/* True when the plan's only tensor is large and regular enough, and the network is the same for all
 * of its ranks. */
bool xm_regular_fits(const xm_plan_t *plan, const xm_plan_params_t *params);

/* Fills in all that a schedule fills in, and the bound. */
xm_status_t xm_regular_create(xm_plan_t *plan, const xm_plan_params_t *params);
void xm_regular_destroy(xm_regular_t *regular);

xm_unit_task_t xm_regular_task(const xm_regular_t *regular, int64_t task);
xm_transfer_t xm_regular_transfer(const xm_regular_t *regular, int64_t transfer);
/* The first transfer of `count` from this one on that a rank of the host has a part in, or `count`.
 */
int64_t xm_regular_next(const xm_regular_t *regular, int host, int64_t transfer, int64_t count);
