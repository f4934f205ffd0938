/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file like_private.h
 * What the searches of like.h share: the run, its cases, and the judge. Not installed.
 */
#pragma once

#include "planner/published/like.h"
#include "planner/search.h"
#include "planner/stage.h"

typedef struct ap_like {
    const ap_planner_preset_t *row;
    ap_like_effort_t effort;
    ap_planner_params_t params; /* the caller's, narrowed to the row */
    ap_planner_setup_t setup;
    double limit; /* bytes of a device */
    int hosts, devices_per_host;
    int layers;
    int64_t micro_batches[AP_PLANNER_MICRO_BATCHES];
    int micro_batch_count;
    ap_like_result_t *result;
} ap_like_t;

/* One number of micro-batches, with or without recomputation. */
typedef struct ap_like_case {
    int64_t micro_batches;
    bool recompute;
    const ap_graph_t *graph;
    ap_graph_t *made;            /* the same, of a built-in model */
    ap_stage_context_t *context; /* in the row's space */
} ap_like_case_t;

/* Opens each case in turn, searches it, closes it. */
typedef xm_status_t ap_like_case_fn(ap_like_t *like, ap_like_case_t *one);
xm_status_t ap_like_each_case(ap_like_t *like, ap_like_case_fn *search);

/* A context of the case in another space than the row's. */
xm_status_t ap_like_context(const ap_like_t *like, const ap_like_case_t *one,
                            const ap_space_t *space, ap_stage_context_t **context);

/*
 * Splits the cluster into @p stages equal submeshes and sets hosts and devices of the query; false
 * when it cannot be split so.
 */
bool ap_like_submesh(const ap_like_t *like, int stages, ap_stage_query_t *query);

/* Next logical shape of hosts x devices, first 0 in shape[0]; false: no more. */
bool ap_like_next_shape(const ap_like_t *like, ap_stage_query_t *query);

/* Assembles stages, judges the plan and keeps it if it is the best. The solutions stay the
 * caller's. */
xm_status_t ap_like_consider(ap_like_t *like, const ap_like_case_t *one,
                             const ap_plan_part_t *parts, int count, bool *kept);

/* Judges a plan that is one already; takes it over. */
xm_status_t ap_like_consider_plan(ap_like_t *like, ap_plan_t *plan, bool *kept);

/* Whether a plan of at least this step could still be kept. */
bool ap_like_can_improve(const ap_like_t *like, double step);

/*
 * What searches over grids share (grid.c): micro-batches in flight on stage i of p as planners
 * count them, equal numbers of layers, a device's passes of one step, which no schedule can
 * shorten, and whether the judge need not look.
 */
int ap_like_in_flight(const ap_like_t *like, const ap_like_case_t *one, int stages, int i);
void ap_like_set_layers(const ap_like_t *like, int stages, int i, ap_stage_query_t *query);
double ap_like_busy(const ap_like_case_t *one, const ap_stage_cost_t *cost);
bool ap_like_is_hopeless(const ap_like_t *like, double bound, double memory);

/* Has the stages judged, if the status is good; solutions and parts are freed in any case. */
xm_status_t ap_like_evaluate_parts(ap_like_t *like, const ap_like_case_t *one,
                                   ap_plan_part_t *parts, int count, xm_status_t status,
                                   bool *kept);

/* Tries every number of stages and logical shape that the row and the caller allow. */
typedef xm_status_t ap_like_try_fn(ap_like_t *like, const ap_like_case_t *one, int stages,
                                   const ap_stage_query_t *degrees, void *arg);
xm_status_t ap_like_each_degrees(ap_like_t *like, const ap_like_case_t *one,
                                 ap_like_try_fn *attempt, void *arg);

/* The searches. */
ap_like_case_fn ap_like_grid, ap_like_choices, ap_like_layerwise, ap_like_ideals, ap_like_placement;
