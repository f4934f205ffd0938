#include "planner/space.h"

#include <stdlib.h>

ap_space_t ap_space_all(void)
{
    return (ap_space_t){.roles = {AP_ROLES_ALL, AP_ROLES_ALL, AP_ROLES_ALL},
                        .parameter_modes = (1U << AP_PARAMETER_MODES) - 1U,
                        .scatter = true,
                        .pipeline = true,
                        .recompute = true,
                        .keep = true};
}

bool ap_space_contains(const ap_space_t *whole, const ap_space_t *part)
{
    bool inside = (part->parameter_modes & ~whole->parameter_modes) == 0 &&
                  whole->scatter >= part->scatter && whole->pipeline >= part->pipeline &&
                  whole->recompute >= part->recompute && whole->keep >= part->keep &&
                  (!whole->one_axis || part->one_axis);

    for (int axis = 0; axis < AP_MAX_MESH_RANK; ++axis) {
        inside = inside && (part->roles[axis] & ~whole->roles[axis]) == 0;
    }
    return inside && (whole->stage_devices == 0 ||
                      (part->stage_devices > 0 && part->stage_devices <= whole->stage_devices));
}

/* The factor that a dimension of a term leads with; -1: the dimension is not there. */
static int leading_factor(const ap_sharding_rule_t *rule, int term, int dim)
{
    return dim < 0 || dim >= rule->rank[term] || rule->dim[term][dim].count == 0
               ? -1
               : rule->dim[term][dim].factor[0];
}

static int dim_led_by(const ap_sharding_rule_t *rule, int term, int factor)
{
    for (int d = 0; d < rule->rank[term]; ++d) {
        if (leading_factor(rule, term, d) == factor) {
            return d;
        }
    }
    return -1;
}

xm_status_t ap_space_batch_factors(const ap_graph_t *graph, int **factors)
{
    int ops = ap_graph_ops(graph), tensors = ap_graph_tensors(graph);
    int *made = malloc(((size_t)ops + 1) * sizeof(*made));
    int *batch = malloc(((size_t)tensors + 1) * sizeof(*batch)); /* per tensor: its dimension */

    if (made == NULL || batch == NULL) {
        free(made);
        free(batch);
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d operators", ops);
    }
    for (int t = 0; t < tensors; ++t) {
        batch[t] = ap_graph_tensor(graph, t)->kind == AP_TENSOR_INPUT ? 0 : -1;
    }
    for (int o = 0; o < ops; ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        made[o] = -1;
        for (int i = 0; i < op->operand_count && made[o] < 0; ++i) {
            made[o] = leading_factor(&op->rule, i, batch[op->operands[i]]);
        }
        for (int r = 0; r < op->result_count && made[o] >= 0; ++r) {
            batch[op->results[r]] = dim_led_by(&op->rule, op->operand_count + r, made[o]);
        }
    }
    free(batch);
    *factors = made;
    return XM_OK;
}

unsigned ap_space_role(const ap_sharding_rule_t *rule, int batch_factor,
                       const ap_strategy_t *strategy, int axis)
{
    unsigned role = 0;

    for (int f = 0; f < rule->factors; ++f) {
        if ((strategy->axes[f] >> axis & 1U) != 0) {
            role |= f == batch_factor ? AP_ROLE_DATA : AP_ROLE_TENSOR;
        }
    }
    return role;
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

static bool inside(const ap_space_t *space, const ap_sharding_rule_t *rule, int batch_factor,
                   const ap_cost_mesh_t *mesh, const ap_strategy_t *strategy)
{
    for (int axis = 0; axis < ap_cost_mesh_rank(mesh); ++axis) {
        unsigned role = ap_space_role(rule, batch_factor, strategy, axis);
        bool must = space->roles[axis] == AP_ROLE_DATA && batch_factor >= 0;

        if (ap_cost_mesh_size(mesh, axis) > 1 &&
            ((role & ~space->roles[axis]) != 0 || (must && role == 0))) {
            return false;
        }
    }
    return space->scatter || !scatters(strategy);
}

bool ap_space_filter(const ap_space_t *space, const ap_sharding_rule_t *rule, int batch_factor,
                     const ap_cost_mesh_t *mesh, ap_strategy_list_t *list)
{
    int kept = 0, left = 0;

    for (int s = 0; s < list->count; ++s) {
        left += inside(space, rule, batch_factor, mesh, &list->items[s]);
    }
    for (int s = 0; s < list->count && left > 0; ++s) {
        if (inside(space, rule, batch_factor, mesh, &list->items[s])) {
            list->items[kept++] = list->items[s];
        }
    }
    list->count = left > 0 ? left : list->count;
    return left > 0;
}
