/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file all_plans.h
 * Every plan that there is for a small problem, simulated: all orders of the hosts, all cuts of the
 * layers, all places and logical shapes of stages, all specs at their ends. None of the search's
 * bounds is asked. A model's tensors have two dimensions here.
 */
#pragma once

#include "planner/search/case.h"

enum { ALL_PLANS_LAYERS = 6, ALL_PLANS_HOSTS = 4, ALL_PLANS_PAIRS = 15 };

typedef struct all_plans {
    ap_planner_params_t params; /**< as the search has them, of which one number is tried: */
    int64_t micro_batches;
    ap_schedule_kind_t kind;
    /** Leave out plans of which the forward passes before a stage and its own work take `best`. */
    bool prune;
    double best; /**< the least step so far; what it begins with is known */
    long plans;  /**< simulated */

    int hosts, per_host;
    ap_planner_setup_t setup;
    const ap_graph_t *graph;
    ap_stage_context_t **context; /* per way to recompute and class */
    int layers, stages;
    ap_stage_query_t query[ALL_PLANS_LAYERS];
    ap_stage_cost_t cost[ALL_PLANS_LAYERS];
    int device[ALL_PLANS_LAYERS]; /* first of each stage */
    ap_pipeline_stage_t stage[ALL_PLANS_LAYERS];
    ap_pipeline_transfer_t transfer[ALL_PLANS_PAIRS];
    int transfers;
    xm_arena_t links[ALL_PLANS_LAYERS]; /* of what passes to each stage */
} all_plans_t;

/** Tries all plans with so many micro-batches under this schedule. */
void all_plans_try(all_plans_t *all);
