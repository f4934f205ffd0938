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
    int receiver; /* the one rank that gets it, or −1: all remote ones … */
    int host;     /* … of this receiving host by its place in the class, or −1: of all */
} xm_item_t;

typedef struct xm_bundles xm_bundles_t;

/* A scheduler, and for openshop its way to make transfers of hops. */
typedef struct {
    xm_scheduler_t scheduler;
    bool single;    /* a part comes to each receiver by itself, though others of its host need it
                       too */
    bool near;      /* receivers beside a holder send on by their rails what they get from it */
    int64_t pieces; /* hops between ends of different rates are cut, into about so many in all; 0:
                       they stay whole */
} xm_way_t;

typedef struct {
    xm_plan_t *plan;
    const xm_plan_params_t *params;
    const xm_classes_t *classes;
    xm_strategy_t asked; /* of the combination in hand */
    xm_lanes_t lanes;
    uint64_t largest_chunk;
    double single;           /* xm_lanes_single() */
    xm_bundles_t *bundles;   /* of the last open shop; without demands: of none */
    int64_t work_left;       /* hops that the next combination may have, roughly */
    int64_t limit_ns;        /* makespan that it must stay below to be of use */
    unsigned char *strategy; /* by task */
    xm_demand_t *demands;
    xm_item_t *items; /* by demand */
    int64_t count;
} xm_scheduling_t;

/* Fills plan->builder by one strategy and one way, neither chosen here, and simulates it into
 * plan->makespan_ns as far as that stays below the limit. On failure the builder is empty; openshop
 * declines problems beyond its size
 * (::XM_ERR_UNSUPPORTED). A strategy may be `auto`: each task has the one predicted best. */
xm_status_t xm_schedule_once(xm_scheduling_t *s, xm_strategy_t strategy, const xm_way_t *way);

/*
 * The longest message where hops are cut into about so many in all; 0: they stay whole, as cutting
 * can help only where rates differ, or uplinks', and there is more than one message.
 */
int64_t xm_scheduling_message(const xm_scheduling_t *s, int64_t pieces);

/* Whether some class has receivers beside a holder and others elsewhere, whom they could serve too.
 */
bool xm_scheduling_may_relay(const xm_scheduling_t *s);

/* Makes a task's chunks at most so long. */
void xm_scheduling_set_chunk(const xm_scheduling_t *s, xm_builder_t *builder, int64_t task,
                             int64_t bytes);

/* Appends the transfers of the bundles' hops. */
xm_status_t xm_schedule_parts(xm_scheduling_t *s, const xm_bundles_t *bundles,
                              xm_transfer_emitter_t *emitter);

/* ---- chains (strategy_chain.c)
 * ------------------------------------------------------------------------------
 */

/*
 * Appends the transfer of the chain's elements from the least loaded holder of its sending rail
 * to all remote receivers. The broadcast strategy is one chain with everything: the sender feeds
 * one rank of the first host, that one feeds one of the second, and so on; each of these heads
 * also starts a chain inside its host. All hops are pipelined by chunk, so the whole takes little
 * longer than one hop (MLSys'23, section 3.1, "broadcast").
 */
xm_status_t xm_chain_emit(xm_transfer_emitter_t *emitter, const xm_chain_t *chain);

/* The receivers of a class on one host, which the network serves by one of its rails. */
typedef struct {
    const int *ranks;
    int count, rail;
} xm_inner_t;

/* The receivers on the host of a rail. */
xm_inner_t xm_chain_inner(const xm_transfer_emitter_t *emitter, const xm_class_t *class, int rail);

/*
 * Chooses the head of a host, by its place among the ranks: the one that the network serves and
 * the others take in from. It is the rank of the rail that has least `waiting` (by rank; may be
 * NULL), and of equals the one that has taken in the most from its neighbours so far, so that no
 * device's port has more to do than another's.
 */
int xm_chain_head(const xm_transfer_emitter_t *emitter, const xm_inner_t *inner,
                  const int64_t *waiting);

/* Counts what the others take in from the head. */
void xm_chain_take(xm_transfer_emitter_t *emitter, const xm_inner_t *inner, int head,
                   int64_t bytes);

/* The number of ranks that could be the head. */
int xm_chain_heads(const xm_transfer_emitter_t *emitter, const xm_inner_t *inner);
