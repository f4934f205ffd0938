/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stage_network.h
 * A stage as a choice network (planner/published/choice/network.h), for the searches of other
 * planners: a variable for every forward operator, whose values are its strategies, and one for
 * every tensor between layers, whose values are its specs. Strategies of one interface
 * (layer_problem.h) of which another is as fast and as small are left out. Seconds are those of a
 * micro-batch, once-per-step costs divided by the number of micro-batches; bytes are state and kept
 * activations.
 *
 * Borrowed: the context. Not installed.
 */
#pragma once

#include "planner/published/choice.h"
#include "planner/stage.h"

typedef struct ap_stage_network ap_stage_network_t;

/** Of the layers, submesh and logical shape of @p query, with query->in_flight micro-batches. */
xm_status_t ap_stage_network_create(ap_stage_context_t *context, const ap_stage_query_t *query,
                                    ap_stage_network_t **network);

const ap_cfn_core_t *ap_stage_network_choices(const ap_stage_network_t *network);

/** Per variable: what its values do with each mesh axis (planner/published/choice/recursive.h). */
const uint8_t *const *ap_stage_network_parts(const ap_stage_network_t *network);

/** The operator of a variable with the number of its layer, NULL for a tensor; @p first: the first
 * variable that has the same values, in a layer of the same kind. */
const ap_op_t *ap_stage_network_op(const ap_stage_network_t *network, int variable, int *layer,
                                   int *first);

/** The variable of an operator of the forward pass, by its number in its layer; -1: there is none.
 */
int ap_stage_network_variable(const ap_stage_network_t *network, int layer, int node);

/** A value of an operator's variable. */
const ap_strategy_t *ap_stage_network_strategy(const ap_stage_network_t *network, int variable,
                                               int value);

/** An assignment in which every operator has the role `data` on every axis where it can; where a
 * random walk starts. */
void ap_stage_network_data_parallel(const ap_stage_network_t *network, int *assignment);

/** What a search has assigned, as a solution of the stage. */
xm_status_t ap_stage_network_solution(ap_stage_network_t *network, const int *assignment,
                                      ap_stage_solution_t **solution);

/** NULL is accepted. */
void ap_stage_network_destroy(ap_stage_network_t *network);
