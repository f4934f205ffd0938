/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A parameter that several operators of a stage read, as a table of tokens that is the head's too.
 * Where all of them have it alike (its spec, and the axes over which its gradient is partial), the
 * stage keeps, reduces and updates it once. Layers are priced without knowing each other, so every
 * such way is a tie that their tables are made under; without one, each reader has its own copy.
 */

#include <math.h>
#include <stdlib.h>

#include "planner/stage/stage_private.h"

/* The gradients of such a parameter are summed. Of several the largest counts; of the others every
 * reader has its own copy, which is never too little. */
xm_status_t ap_stage_find_tied(ap_stage_context_t *context)
{
    const ap_graph_t *graph = context->training;
    double most = 0;

    context->tied = -1;
    context->ties = xm_arena_get(&context->arena, (size_t)context->layers, sizeof(*context->ties));
    XM_NEED_MEMORY(context->ties, "%d layers", context->layers);
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        int of = ap_gradient_sum_of(graph, o);

        if (of >= 0 && ap_graph_tensor(graph, of)->kind == AP_TENSOR_PARAMETER &&
            ap_graph_tensor_bytes(graph, of) > most) {
            context->tied = of;
            most = ap_graph_tensor_bytes(graph, of);
        }
    }
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        for (int i = 0; i < op->operand_count && op->phase == AP_PHASE_FORWARD; ++i) {
            context->ties[op->layer] += op->operands[i] == context->tied;
        }
    }
    return XM_OK;
}

bool ap_stage_holds_tied(const ap_stage_context_t *context, int first, int layer)
{
    while (first < layer && context->ties[first] == 0) {
        ++first;
    }
    return first < layer;
}

xm_status_t ap_stage_multiplier_at(ap_stage_context_t *context, ap_stage_mesh_t *mesh,
                                   const ap_stage_multiplier_t *multiplier, int first, int layer,
                                   ap_stage_multiplier_t **found)
{
    ap_layer_tie_t tie = {0};

    if (multiplier->weights.tie.alike && context->ties[layer] > 0) {
        tie = multiplier->weights.tie;
        tie.held = ap_stage_holds_tied(context, first, layer);
        tie = tie.held && tie.paid ? (ap_layer_tie_t){0} : tie;
        tie.paid = false;
    }
    return ap_stage_multiplier_get(context, mesh, multiplier->multiplier, multiplier->in_flight,
                                   tie, found);
}

/* Tries the ways in which all operators of the range that read the tied parameter have it alike:
 * those of the first of them. A bound spares most of their tables: later readers have it as they
 * like and pay for it, and get back what the first one pays. Where memory has a price, only the tie
 * that is best without is tried. */
xm_status_t ap_stage_try_ties(ap_stage_context_t *context, const ap_stage_query_t *query,
                              int number, const ap_stage_plan_t *plan, ap_stage_ends_t *best,
                              double *least)
{
    const ap_layer_problem_t *problem;
    int first = plan->first, readers = 0, n = 0;
    xm_status_t status;

    for (int layer = plan->first; layer <= plan->last; ++layer) {
        first = readers == 0 ? layer : first;
        readers += context->ties[layer];
    }
    if (readers < 2) {
        return XM_OK;
    }
    status = ap_stage_problem_get(context, plan->mesh, first, &problem);
    while (status == XM_OK && problem->node[n].tied < 0) {
        ++n;
    }
    for (int s = 0; status == XM_OK && s < problem->node[n].strategies.count; ++s) {
        const ap_layer_node_t *node = &problem->node[n];
        int at = s * node->parameters + node->tied;
        ap_layer_tie_t tie = {.alike = true, .paid = true, .view = ap_layer_tied_view(node, s)};
        ap_stage_ends_t bound = {.priced = HUGE_VAL};

        status = ap_stage_improve_ends(context, query, number, tie, plan, &bound);
        if (status == XM_OK && bound.priced < AP_COST_INFINITE) {
            const ap_layer_weights_t *weights = &bound.multiplier->weights;
            int mode = ap_layer_parameter_mode(node, s, node->tied, weights);

            bound.priced -= (readers - 1) *
                            ap_parts_cost(&node->modes[at * AP_PARAMETER_MODES + mode], weights);
        }
        tie.paid = false;
        if (status != XM_OK || bound.priced >= best->priced) {
            continue;
        }
        if (number > 0 && (!plan->tie.alike || plan->tie.view != tie.view)) {
            *least = fmin(*least, bound.priced);
        } else {
            status = ap_stage_improve_ends(context, query, number, tie, plan, best);
        }
    }
    return status;
}
