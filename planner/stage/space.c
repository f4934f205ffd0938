/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of the space of plans. Planners from the literature differ mostly in what they allow on a
 * mesh axis, so a part is described by roles of axes (data, sequence, tensor), not by operator
 * names. The roles of factors are derived from the graph: dimension 0 of the inputs is the batch,
 * and operators pass roles on. So a part works for any model without notes on its operators.
 */

#include "planner/stage/space.h"

#include <stdlib.h>

/* The role of every dimension of a tensor; 0 where nothing is known, as for parameters. */
typedef struct dim_roles {
    uint8_t role[AP_MAX_RANK];
} dim_roles_t;

static bool is_parameter(const ap_graph_t *graph, int tensor)
{
    return ap_graph_tensor(graph, tensor)->kind == AP_TENSOR_PARAMETER;
}

/* Whether a factor is summed against a parameter: a parameter carries it and no result does. */
static bool is_contracted(const ap_graph_t *graph, const ap_op_t *op, int factor)
{
    bool against = false;

    for (int i = 0; i < op->operand_count; ++i) {
        against = against || (is_parameter(graph, op->operands[i]) &&
                              ap_sharding_rule_carries(&op->rule, i, factor));
    }
    for (int r = 0; r < op->result_count; ++r) {
        against = against && !ap_sharding_rule_carries(&op->rule, op->operand_count + r, factor);
    }
    return against;
}

/* The roles of the dimensions of activations and inputs that a factor is in, as a set. */
static unsigned roles_seen(const ap_graph_t *graph, const dim_roles_t *dims, const ap_op_t *op,
                           int factor)
{
    unsigned seen = 0;

    for (int i = 0; i < op->operand_count; ++i) {
        for (int d = 0; d < op->rule.rank[i] && !is_parameter(graph, op->operands[i]); ++d) {
            const ap_rule_dim_t *dim = &op->rule.dim[i][d];

            for (int k = 0; k < dim->count; ++k) {
                unsigned role = dims[op->operands[i]].role[d];

                /* Of a compound dimension that begins with the batch, what comes inside is an
                 * extent of the samples. */
                role = k > 0 && role == AP_ROLE_DATA ? AP_ROLE_SEQUENCE : role;
                seen |= dim->factor[k] == factor ? role : 0U;
            }
        }
    }
    return seen;
}

/* A factor that is in a batch dimension anywhere is the batch. It is sequence only if all its
 * dimensions are and nothing sums it against a weight; everything else is a feature. */
static uint8_t factor_role(const ap_graph_t *graph, const dim_roles_t *dims, const ap_op_t *op,
                           int factor)
{
    unsigned seen = roles_seen(graph, dims, op, factor);

    if ((seen & AP_ROLE_DATA) != 0) {
        return AP_ROLE_DATA;
    }
    return seen == AP_ROLE_SEQUENCE && !is_contracted(graph, op, factor) ? AP_ROLE_SEQUENCE
                                                                         : AP_ROLE_TENSOR;
}

/* Results get the roles of their outermost factors. */
static void pass_on(const ap_op_t *op, const ap_factor_roles_t *roles, dim_roles_t *dims)
{
    for (int r = 0; r < op->result_count; ++r) {
        int term = op->operand_count + r;

        for (int d = 0; d < op->rule.rank[term]; ++d) {
            const ap_rule_dim_t *dim = &op->rule.dim[term][d];

            dims[op->results[r]].role[d] =
                dim->count > 0 ? roles->role[dim->factor[0]] : (uint8_t)AP_ROLE_TENSOR;
        }
    }
}

/* One pass in the order of the graph is enough, because an operator's operands come before it. */
xm_status_t ap_space_roles(const ap_graph_t *graph, ap_factor_roles_t **roles)
{
    size_t ops = (size_t)ap_graph_ops(graph), tensors = (size_t)ap_graph_tensors(graph);
    dim_roles_t *dims = calloc(tensors + 1, sizeof(*dims));
    ap_factor_roles_t *made;
    size_t factors = 0;
    uint8_t *role;

    /* The roles lie behind the pointers to them. */
    for (int o = 0; o < (int)ops; ++o) {
        factors += (size_t)ap_graph_op(graph, o)->rule.factors;
    }
    made = calloc(1, (ops + 1) * sizeof(*made) + factors);

    if (made == NULL || dims == NULL) {
        free(made);
        free(dims);
        return XM_NO_MEMORY("%zu operators", ops);
    }
    role = (uint8_t *)(made + ops + 1);
    for (int t = 0; t < (int)tensors; ++t) {
        for (int d = 0; d < AP_MAX_RANK && ap_graph_tensor(graph, t)->kind == AP_TENSOR_INPUT;
             ++d) {
            dims[t].role[d] = d == 0 ? AP_ROLE_DATA : AP_ROLE_SEQUENCE;
        }
    }
    for (int o = 0; o < (int)ops; ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        made[o].role = role;
        role += op->rule.factors;
        for (int f = 0; f < op->rule.factors; ++f) {
            made[o].role[f] = factor_role(graph, dims, op, f);
        }
        pass_on(op, &made[o], dims);
    }
    free(dims);
    *roles = made;
    return XM_OK;
}

/* The role of an axis is that of the factor it cuts; an axis cuts at most one. */
unsigned ap_space_role(const ap_sharding_rule_t *rule, const ap_factor_roles_t *roles,
                       const ap_strategy_t *strategy, int axis)
{
    unsigned role = 0;

    for (int f = 0; f < rule->factors; ++f) {
        role |= (strategy->axes[f] >> axis & 1U) != 0 ? roles->role[f] : 0U;
    }
    return role;
}

static bool has_batch(const ap_sharding_rule_t *rule, const ap_factor_roles_t *roles)
{
    bool has = false;

    for (int f = 0; f < rule->factors; ++f) {
        has = has || roles->role[f] == AP_ROLE_DATA;
    }
    return has;
}

unsigned ap_space_batch_axes(const ap_space_t *space)
{
    unsigned axes = 0;

    for (unsigned a = 0; a < 2; ++a) {
        axes |= space == NULL || (space->roles[a] & AP_ROLE_DATA) != 0 ? 1U << a : 0;
    }
    return axes;
}

static bool scatters(const ap_strategy_t *strategy)
{
    for (int c = 0; c < strategy->collective_count; ++c) {
        if (strategy->collective[c].kind == AP_REDUCE_SCATTER) {
            return true;
        }
    }
    return false;
}

/* Whether it is a product of matrices: two operands share a factor that is summed. */
static bool is_product(const ap_sharding_rule_t *rule)
{
    for (int f = 0; f < rule->factors; ++f) {
        int carriers = 0;

        for (int i = 0; i < rule->operands; ++i) {
            carriers += ap_sharding_rule_carries(rule, i, f);
        }
        if (carriers > 1 && rule->factor[f].kind == AP_FACTOR_REDUCTION) {
            return true;
        }
    }
    return false;
}

/* Whether a strategy is in the space. With `cuts`, it must cut a factor over every axis. An axis
 * that may have the role data only must cut the batch where there is one, as data parallelism
 * repeats no work. Axes of size 1 do nothing and are not looked at. */
static bool inside(const ap_space_t *space, const ap_sharding_rule_t *rule,
                   const ap_factor_roles_t *roles, const ap_cost_mesh_t *mesh,
                   const ap_strategy_t *strategy, bool cuts)
{
    for (int axis = 0; axis < ap_cost_mesh_rank(mesh); ++axis) {
        unsigned role = ap_space_role(rule, roles, strategy, axis);
        bool must = cuts || (space->roles[axis] == AP_ROLE_DATA && has_batch(rule, roles));

        if (ap_cost_mesh_size(mesh, axis) > 1 &&
            ((role & ~space->roles[axis]) != 0 || (must && role == 0))) {
            return false;
        }
    }
    return space->scatter || !scatters(strategy);
}

/* Keeps the strategies inside the space. A product must cut something over every axis only if some
 * strategy in the space does; where none would be left at all, the list stays as it was, and the
 * caller decides. */
bool ap_space_filter(const ap_space_t *space, const ap_sharding_rule_t *rule,
                     const ap_factor_roles_t *roles, const ap_cost_mesh_t *mesh,
                     ap_strategy_list_t *list)
{
    bool cuts = false;
    int kept = 0, left = 0;

    for (int s = 0; s < list->count && !cuts && space->cut_products && is_product(rule); ++s) {
        cuts = inside(space, rule, roles, mesh, &list->items[s], true);
    }
    for (int s = 0; s < list->count; ++s) {
        left += inside(space, rule, roles, mesh, &list->items[s], cuts);
    }
    for (int s = 0; s < list->count && left > 0; ++s) {
        if (inside(space, rule, roles, mesh, &list->items[s], cuts)) {
            list->items[kept++] = list->items[s];
        }
    }
    list->count = left > 0 ? left : list->count;
    return left > 0;
}
