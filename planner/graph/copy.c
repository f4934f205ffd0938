/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators with all that they own, and copying them between graphs, for the passes that derive
 * graphs from graphs: layering, fusion, and the search for the forward pass. They differ in what
 * they take and in which order, so this file only keeps the map from old tensor numbers to new
 * ones.
 *
 * It writes the arrays of a graph directly and does not go through ap_graph_add_op(): a rule that
 * fitted in the old graph fits in the new one, and parsing it again for every pass would cost more
 * than the passes.
 */

#include "planner/graph/copy.h"

#include <stdlib.h>
#include <string.h>

#include "planner/graph/graph_private.h"

/* The four lists are one block. */
xm_status_t ap_op_open(ap_graph_t *graph, ap_op_t *op, int operands, int results)
{
    int *lists =
        xm_arena_get(&graph->arena, 2 * (size_t)operands + 3 * (size_t)results, sizeof(*lists));

    XM_NEED_MEMORY(lists, "an operator");
    op->operand_count = operands;
    op->result_count = results;
    op->operands = lists;
    op->results = op->operands + operands;
    op->differentiates = op->results + results;
    op->touched = op->differentiates + results;
    return XM_OK;
}

/* Copies an operator with all that it points at, but its label. */
static xm_status_t copy_op(const ap_op_t *from, ap_graph_t *graph, ap_op_t *op)
{
    *op = *from;
    op->label = NULL;
    op->name = ap_graph_keep_name(graph, from->name);
    XM_TRY(op->name == NULL ? XM_NO_MEMORY("the operator '%s'", from->name)
                            : ap_op_open(graph, op, from->operand_count, from->result_count));
    memcpy(op->operands, from->operands,
           (2 * (size_t)op->operand_count + 3 * (size_t)op->result_count) * sizeof(int));
    return ap_sharding_rule_copy(&from->rule, &op->rule);
}

xm_status_t ap_graph_copy_open(const ap_graph_t *from, ap_graph_copy_t *copy)
{
    ap_graph_copy_t made = {.from = from};

    XM_TRY(ap_graph_create(from->name, &made.to));
    made.tensor = malloc(((size_t)from->tensor_count + 1) * sizeof(*made.tensor));
    if (made.tensor == NULL) {
        ap_graph_destroy(made.to);
        free(made.tensor);
        return XM_NO_MEMORY("a copy of the graph '%s'", from->name);
    }
    for (int t = 0; t < from->tensor_count; ++t) {
        made.tensor[t] = -1;
    }
    *copy = made;
    return XM_OK;
}

xm_status_t ap_graph_copy_close(ap_graph_copy_t *copy, xm_status_t status, ap_graph_t **graph)
{
    XM_THEN(status, ap_graph_finish(copy->to));
    if (status == XM_OK) {
        *graph = copy->to;
    } else {
        ap_graph_destroy(copy->to);
    }
    free(copy->tensor);
    *copy = (ap_graph_copy_t){0};
    return status;
}

xm_status_t ap_graph_copy_source(ap_graph_copy_t *copy, int tensor)
{
    const ap_tensor_t *of = &copy->from->tensors[tensor];

    if (copy->tensor[tensor] >= 0) {
        return XM_OK;
    }
    XM_TRY(ap_graph_add_tensor(copy->to, of->name, of->kind, &of->shape, of->dtype,
                               &copy->tensor[tensor]));
    ap_graph_demand(copy->to, copy->tensor[tensor], of->cut);
    return XM_OK;
}

/* Rewrites operand numbers from those of the old graph to those of the new. An activation must be
 * there, which holds as long as passes keep a topological order; the check turns a faulty pass into
 * a sentence. */
static xm_status_t copy_operands(ap_graph_copy_t *copy, ap_op_t *op)
{
    for (int i = 0; i < op->operand_count; ++i) {
        int tensor = op->operands[i];
        xm_status_t status = XM_OK;
        ap_tensor_t *operand;

        if (copy->from->tensors[tensor].kind != AP_TENSOR_ACTIVATION) {
            status = ap_graph_copy_source(copy, tensor);
        } else if (copy->tensor[tensor] < 0) {
            status = xm_error_set(XM_ERR_INTERNAL,
                                  "operator '%s' is copied before what makes its operand '%s'",
                                  op->name, copy->from->tensors[tensor].name);
        }
        XM_TRY(status);
        op->operands[i] = copy->tensor[tensor];
        operand = &copy->to->tensors[op->operands[i]];
        if (operand->layer < 0) {
            operand->layer = op->layer;
        }
    }
    return XM_OK;
}

/* Appends the results under new numbers. Declarations between tensors (alias, gradient) do not come
 * along, because their other ends may not be in the new graph. */
static xm_status_t copy_results(ap_graph_copy_t *copy, int id, ap_op_t *op)
{
    for (int r = 0; r < op->result_count; ++r) {
        int old = op->results[r];
        ap_tensor_t made = copy->from->tensors[old];

        made.producer = id;
        made.layer = op->layer;
        made.alias_of = made.taken_by = -1;
        made.gradient_of = -1;
        XM_TRY(ap_graph_append_tensor(copy->to, &made, copy->from->tensors[old].name,
                                      &op->results[r]));
        copy->tensor[old] = op->results[r];
    }
    return XM_OK;
}

/* The layer is that of the graph under construction, and `forward` is cleared, because operator
 * numbers differ between the two graphs. */
xm_status_t ap_graph_copy_op(ap_graph_copy_t *copy, int op)
{
    ap_op_t made;
    xm_status_t status;

    XM_TRY(ap_graph_reserve_op(copy->to));
    XM_TRY(copy_op(&copy->from->ops[op], copy->to, &made));
    made.label = ap_graph_keep_name(copy->to, copy->from->ops[op].label);
    made.layer = copy->to->layer;
    made.forward = -1;
    status = copy_operands(copy, &made);
    XM_THEN(status, copy_results(copy, copy->to->op_count, &made));
    if (status != XM_OK) {
        ap_sharding_rule_destroy(&made.rule);
        return status;
    }
    copy->to->ops[copy->to->op_count++] = made;
    return XM_OK;
}

/* Tensor and operator numbers stay the same, so aliases, gradients and `forward` stay true and are
 * copied as they are. The counts grow with the copies, so the destructor frees exactly the names
 * that were made. */
xm_status_t ap_graph_copy_whole(const ap_graph_t *from, ap_graph_t **copy)
{
    ap_graph_t *made;

    XM_TRY(ap_graph_create(from->name, &made));
    made->tensors = calloc((size_t)from->tensor_count, sizeof(*made->tensors));
    made->ops = calloc((size_t)from->op_count, sizeof(*made->ops));
    if (made->tensors == NULL || made->ops == NULL) {
        goto no_memory;
    }
    made->tensor_capacity = (size_t)from->tensor_count;
    made->op_capacity = (size_t)from->op_count;
    for (int t = 0; t < from->tensor_count; ++t, ++made->tensor_count) {
        made->tensors[t] = from->tensors[t];
        made->tensors[t].name = ap_graph_keep_name(made, from->tensors[t].name);
        if (made->tensors[t].name == NULL) {
            goto no_memory;
        }
    }
    for (int o = 0; o < from->op_count; ++o, ++made->op_count) {
        if (copy_op(&from->ops[o], made, &made->ops[o]) != XM_OK) {
            goto no_memory;
        }
    }
    made->loss = from->loss;
    made->loss_is_gradient = from->loss_is_gradient;
    made->frozen = from->frozen;
    *copy = made;
    return XM_OK;

no_memory:
    ap_graph_destroy(made);
    return XM_NO_MEMORY("a copy of the graph '%s'", from->name);
}
