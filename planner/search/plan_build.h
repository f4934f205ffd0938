/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan_build.h
 * Makes a plan of stages that a search has found. Not installed.
 */
#pragma once

#include "planner/plan.h"
#include "planner/inter_op.h"

/** One stage of a plan to be: where it runs and what its operators do. */
typedef struct ap_plan_part {
    ap_stage_query_t query; /**< layers, submesh, logical shape */
    int first_device;
    ap_stage_solution_t *solution;
} ap_plan_part_t;

/** What a plan is assembled from; borrowed. `parts` are in pipeline order. */
typedef struct ap_plan_recipe {
    const ap_graph_t *graph; /**< forward graph of one micro-batch */
    ap_cross_mesh_t *cross_mesh;
    int hosts, devices_per_host; /**< the cluster */
    int micro_batches;
    double memory_limit;
    const char *optimiser; /**< one line on how it was found */
    const ap_plan_part_t *parts;
    int part_count;
} ap_plan_recipe_t;

/**
 * Assembles the plan and prices its boundaries. @p info names model, cluster and batch; the rest of
 * it is filled in here.
 */
xm_status_t ap_plan_assemble(const ap_plan_recipe_t *recipe, const ap_plan_info_t *info,
                             ap_plan_t **plan);

/**
 * Solves the stages of @p result once more for what each operator does and assembles the plan.
 * @p info names model, cluster, batch and limit; the rest of it is filled in here.
 */
xm_status_t ap_plan_build(ap_stage_table_t *table, const ap_inter_op_result_t *result,
                          const ap_plan_info_t *info, ap_plan_t **plan);
