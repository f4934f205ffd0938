/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/stage/layers.h
 * A stage from within, for what chooses or checks the strategies of its operators itself: the
 * searches of other planners, and the verification of plans. stage.h answers with the best choice;
 * here are the layers as problems (layer_problem.h), and the solution that given choices make.
 *
 * Threads: as stage.h. Not installed.
 */
#pragma once

#include "planner/stage/layer_problem.h"
#include "planner/stage/stage.h"

/** The training step of the context's model, which the nodes of its layers name operators of. */
const ap_graph_t *ap_stage_training(const ap_stage_context_t *context);

/** Per operator of the training step; NULL when the context has the whole space. */
const ap_factor_roles_t *ap_stage_roles(const ap_stage_context_t *context);

/** What the objective weighs when memory costs nothing. */
ap_layer_weights_t ap_stage_weights(const ap_stage_context_t *context);

/** Equal layers are of one kind; kinds are counted from 0. */
int ap_stage_layer_kinds(const ap_stage_context_t *context);
int ap_stage_layer_kind(const ap_stage_context_t *context, int layer);

/** Whether a layer of the stage before this one reads the parameter that ties apply to. */
bool ap_stage_holds_tied(const ap_stage_context_t *context, int first, int layer);

/** A layer on the submesh and logical shape of a query; the same for all layers of a kind. It
 * belongs to the context. */
xm_status_t ap_stage_layer_problem(ap_stage_context_t *context, const ap_stage_query_t *query,
                                   int layer, const ap_layer_problem_t **problem);

/**
 * The solution of a stage whose strategies a search of its own has chosen: specs[i] is the index of
 * the spec before the i-th layer of the query (specs[layers]: after the last), strategies[i] the
 * strategy of every node of that layer. Costs are those of these choices; the cheapest of the
 * space's parameter modes is taken.
 */
xm_status_t ap_stage_solve_assigned(ap_stage_context_t *context, const ap_stage_query_t *query,
                                    const int *specs, const int *const *strategies,
                                    ap_stage_solution_t **solution);

/** One solution of consecutive ones: costs added, choices after one another. */
xm_status_t ap_stage_solution_join(ap_stage_solution_t *const *parts, int count,
                                   ap_stage_solution_t **solution);
