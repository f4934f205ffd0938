/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of weights in several stages. A stage's own price knows its own uses of a weight only,
 * and the search does not know which stages will share one; so this is added to the plan that was
 * found. It is what crossmesh.torch.apply does: a resharding between every two stages of one
 * weight.
 */

#include "planner/search/tied_weights.h"

#include <math.h>

/* How each stage cuts each weight that it uses. */
typedef struct uses {
    int tensors;
    bool *used;      /* [stage][tensor] */
    ap_spec_t *spec; /* [stage][tensor]: of the first use */
    bool *learns;    /* [tensor] */
} uses_t;

static void note_uses(const ap_plan_recipe_t *recipe, int stage, const uses_t *uses)
{
    const ap_stage_solution_t *solution = recipe->parts[stage].solution;

    for (int c = 0; c < ap_stage_solution_choices(solution); ++c) {
        const ap_stage_choice_t *choice = ap_stage_solution_choice(solution, c);
        const ap_op_t *op = ap_graph_op(recipe->graph, choice->op);

        for (int i = 0; i < op->operand_count; ++i) {
            size_t at = (size_t)stage * (size_t)uses->tensors + (size_t)op->operands[i];

            if (ap_graph_tensor(recipe->graph, op->operands[i])->kind == AP_TENSOR_PARAMETER &&
                !uses->used[at]) {
                uses->used[at] = true;
                uses->spec[at] = choice->specs[i];
            }
        }
    }
}

/* Prices the exchange between two stages; `common` has room for all tensors. */
static xm_status_t add_pair(const ap_plan_recipe_t *recipe, const uses_t *uses, int from, int to,
                            ap_cross_mesh_tensor_t *common, ap_plan_stage_t *stages)
{
    const ap_plan_stage_t *src = &stages[from], *dst = &stages[to];
    ap_cross_mesh_transfer_t transfer = {.src = {src->devices[0], {src->shape[0], src->shape[1]}},
                                         .dst = {dst->devices[0], {dst->shape[0], dst->shape[1]}},
                                         .tensors = common};
    ap_cross_mesh_cost_t cost;

    for (int t = 0; t < uses->tensors; ++t) {
        size_t there = (size_t)from * (size_t)uses->tensors + (size_t)t;
        size_t here = (size_t)to * (size_t)uses->tensors + (size_t)t;
        const ap_tensor_t *tensor = ap_graph_tensor(recipe->graph, t);

        if (uses->used[there] && uses->used[here] && uses->learns[t]) {
            common[transfer.count++] = (ap_cross_mesh_tensor_t){
                tensor->shape, ap_dtype_bytes(tensor->dtype), uses->spec[there], uses->spec[here]};
        }
    }
    XM_TRY(ap_cross_mesh_cost(recipe->cross_mesh, &transfer, &cost));
    stages[from].sync += fmax(cost.forward, cost.backward);
    stages[to].sync += fmax(cost.forward, cost.backward);
    return XM_OK;
}

xm_status_t ap_tied_weights_add(const ap_plan_recipe_t *recipe, ap_plan_stage_t *stages)
{
    int count = recipe->part_count;
    uses_t uses = {.tensors = ap_graph_tensors(recipe->graph)};
    size_t cells = (size_t)count * (size_t)uses.tensors;
    xm_arena_t arena = {0};
    ap_cross_mesh_tensor_t *common = xm_arena_get(&arena, (size_t)uses.tensors, sizeof(*common));
    xm_status_t status = XM_OK;

    uses.used = xm_arena_get(&arena, cells, sizeof(*uses.used));
    uses.spec = xm_arena_get(&arena, cells, sizeof(*uses.spec));
    uses.learns = xm_arena_get(&arena, (size_t)uses.tensors, sizeof(*uses.learns));
    if (arena.failed) {
        status = XM_NO_MEMORY("the weights of %d stages", count);
    } else {
        ap_graph_learning(recipe->graph, uses.learns);
    }
    for (int i = 0; i < count && status == XM_OK; ++i) {
        note_uses(recipe, i, &uses);
    }
    for (int from = 0; from < count; ++from) {
        for (int to = from + 1; to < count && status == XM_OK; ++to) {
            status = add_pair(recipe, &uses, from, to, common, stages);
        }
    }
    xm_arena_clear(&arena);
    return status;
}
