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

/* Of several such parameters the largest counts; of the others every reader has its own copy, which
 * is never too little. */
xm_status_t ap_stage_find_tied(ap_stage_context_t *context)
{
    const ap_graph_t *graph = context->training;
    int *readers = calloc((size_t)ap_graph_tensors(graph) + 1, sizeof(*readers));

    context->tied = -1;
    context->ties = calloc((size_t)context->layers, sizeof(*context->ties));
    if (readers == NULL || context->ties == NULL) {
        free(readers);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d layers", context->layers);
    }
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        for (int i = 0; i < op->operand_count && op->phase == AP_PHASE_FORWARD; ++i) {
            int tensor = op->operands[i];

            if (ap_graph_tensor(graph, tensor)->kind == AP_TENSOR_PARAMETER &&
                ++readers[tensor] > 1 &&
                (context->tied < 0 || ap_graph_tensor_bytes(graph, tensor) >
                                          ap_graph_tensor_bytes(graph, context->tied))) {
                context->tied = tensor;
            }
        }
    }
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        for (int i = 0; i < op->operand_count && op->phase == AP_PHASE_FORWARD; ++i) {
            context->ties[op->layer] += op->operands[i] == context->tied;
        }
    }
    free(readers);
    return XM_OK;
}

bool ap_stage_holds_tied(const ap_stage_context_t *context, int first, int layer)
{
    int readers = 0;

    for (int before = first; before < layer; ++before) {
        readers += context->ties[before];
    }
    return readers > 0;
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

/* Whether no strategy before this one has the tied parameter like it. */
static bool is_new_view(const ap_layer_node_t *node, int strategy)
{
    for (int s = 0; s < strategy; ++s) {
        if (ap_layer_tied_view(node, s) == ap_layer_tied_view(node, strategy)) {
            return false;
        }
    }
    return true;
}

/* Finds the first layer of a range that reads the tied parameter, and how many operators do. */
static int count_readers(const ap_stage_context_t *context, const ap_stage_plan_t *plan, int *first)
{
    int readers = 0;

    for (int layer = plan->first; layer <= plan->last; ++layer) {
        *first = readers == 0 ? layer : *first;
        readers += context->ties[layer];
    }
    return readers;
}

/* What no plan with a tie costs less than: the later readers, so many, have the parameter as they
 * like and pay for it, and get back what the first one pays, which is `node`. That spares most
 * ties' tables. */
static xm_status_t bound_tie(ap_stage_context_t *context, const ap_stage_query_t *query, int number,
                             const ap_stage_plan_t *plan, const ap_layer_node_t *node, int strategy,
                             int later, double *bound)
{
    ap_stage_ends_t ends = {.priced = HUGE_VAL};
    ap_layer_tie_t tie = {.alike = true, .paid = true, .view = ap_layer_tied_view(node, strategy)};
    xm_status_t status = ap_stage_improve_ends(context, query, number, tie, plan, &ends);

    *bound = ends.priced;
    if (status == XM_OK && ends.priced < AP_COST_INFINITE) {
        const ap_layer_weights_t *weights = &ends.multiplier->weights;
        int mode = ap_layer_parameter_mode(node, strategy, node->tied, weights);
        ap_parts_t paid =
            node->modes[(strategy * node->parameters + node->tied) * AP_PARAMETER_MODES + mode];

        *bound -= later * ap_parts_cost(&paid, weights);
    }
    return status;
}

/* Tries the ways in which all operators of the range that read the tied parameter have it alike,
 * those of the first reader; the most promising one first. A single reader has no one to share
 * with. */
xm_status_t ap_stage_try_ties(ap_stage_context_t *context, const ap_stage_query_t *query,
                              int number, const ap_stage_plan_t *plan, ap_stage_ends_t *best)
{
    const ap_layer_problem_t *problem;
    const ap_layer_node_t *node;
    int first, readers = count_readers(context, plan, &first), promising = 0;
    double bound = HUGE_VAL, least = HUGE_VAL;
    xm_status_t status = XM_OK;

    if (readers > 1) {
        status = ap_stage_problem_get(context, plan->mesh, first, &problem);
    }
    if (readers < 2 || status != XM_OK) {
        return status;
    }
    for (node = problem->node; node->tied < 0; ++node) {
    }
    for (int s = 0; s < node->strategies.count && status == XM_OK; ++s) {
        status = is_new_view(node, s)
                     ? bound_tie(context, query, number, plan, node, s, readers - 1, &bound)
                     : XM_OK;
        promising = bound < least ? s : promising;
        least = fmin(least, bound);
    }
    for (int i = -1; i < node->strategies.count && status == XM_OK; ++i) {
        int s = i < 0 ? promising : i;
        ap_layer_tie_t tie = {.alike = true, .view = ap_layer_tied_view(node, s)};

        if (i < 0 || is_new_view(node, s)) {
            status = bound_tie(context, query, number, plan, node, s, readers - 1, &bound);
            if (status == XM_OK && bound < best->priced) {
                status = ap_stage_improve_ends(context, query, number, tie, plan, best);
            }
        }
    }
    return status;
}
