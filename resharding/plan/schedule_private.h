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

typedef struct {
    xm_plan_t *plan;
    const xm_plan_params_t *params;
    const xm_classes_t *classes;
    xm_strategy_t asked; /* of the combination in hand */
    xm_lanes_t lanes;
    uint64_t largest_chunk;
    double single;           /* xm_lanes_single(), or 1 with send_recv */
    unsigned char *strategy; /* by task */
    xm_demand_t *demands;
    xm_item_t *items; /* by demand */
    int64_t count;
} xm_scheduling_t;

/* Fills plan->builder by one strategy and one scheduler, neither chosen here, and simulates it into
 * plan->makespan_ns. On failure the builder is empty; openshop declines problems beyond its size
 * (::XM_ERR_UNSUPPORTED). A strategy may be `auto`: each task has the one predicted best. */
xm_status_t xm_schedule_once(xm_scheduling_t *s, xm_strategy_t strategy, xm_scheduler_t scheduler);

/* Fills the plan by what params ask for, or by the best of all combinations where that is `auto`
 * (portfolio.c). */
xm_status_t xm_schedule_portfolio(xm_scheduling_t *s);

/* Makes a task's chunks at most so long. */
void xm_scheduling_set_chunk(const xm_scheduling_t *s, xm_builder_t *builder, int64_t task,
                             int64_t bytes);

/* Cuts the tasks by openshop and appends the transfers; a part of what several receivers on one
 * host need comes to each by itself. */
xm_status_t xm_schedule_parts(xm_scheduling_t *s, double single, xm_transfer_emitter_t *emitter);
