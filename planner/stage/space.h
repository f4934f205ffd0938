/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file space.h
 * A part of the space of parallel plans: which ways of sharding, pipelining and keeping parameters
 * a planner may use. Every published planner is ours on a part of the space (with another search,
 * schedule or cost: planner/published/like/row.h).
 *
 * A mesh axis has a *role* in an operator, by the factor that it cuts: `data` for the batch,
 * `sequence` for what else the inputs extend over (tokens, pixels), `tensor` for the rest
 * (features, heads, experts), none when it repeats the work. A space says which roles each axis may
 * have.
 *
 * The roles of factors follow from the graph: dimension 0 of every input is the batch, its others
 * are sequence, and an operator passes them on from its operands to its results, whatever they are
 * called there and wherever they stand (the groups of a mixture of experts are dimension 1 of their
 * operands). A factor that is summed against a parameter is a feature, wherever it comes from.
 *
 * An operator that has a batch factor must cut it over an axis that may have the role `data` only:
 * data parallelism repeats no work.
 *
 * Threads: no state.
 */
#pragma once

#include "planner/cost.h"

#include <autopar/planner.h>

#include <stdbool.h>
#include <stdint.h>

#include "planner/graph.h"

/** The role of each factor of an operator's rule. */
typedef struct ap_factor_roles {
    uint8_t *role;
} ap_factor_roles_t;

/** Per operator of a graph: the roles of its factors. The caller frees the array. */
xm_status_t ap_space_roles(const ap_graph_t *graph, ap_factor_roles_t **roles);

/** The role of a mesh axis in a strategy: AP_ROLE_DATA, … or 0. */
unsigned ap_space_role(const ap_sharding_rule_t *rule, const ap_factor_roles_t *roles,
                       const ap_strategy_t *strategy, int axis);

/** The axes of a mesh of two that may cut the batch; of NULL, the whole space, both. */
unsigned ap_space_batch_axes(const ap_space_t *space);

/**
 * Removes from the list of an operator's strategies those outside the space, keeping the order.
 * False when none would be left; the list is then as it was.
 */
bool ap_space_filter(const ap_space_t *space, const ap_sharding_rule_t *rule,
                     const ap_factor_roles_t *roles, const ap_cost_mesh_t *mesh,
                     ap_strategy_list_t *list);
