/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the layers of a graph of one pass or of a whole training step. */
#pragma once

#include "planner/graph.h"
#include "xm_test.h"

/* The layer that an operator must be in by what it belongs to, or -1 for any. */
static int due_layer(const ap_graph_t *graph, const ap_op_t *op)
{
    if (op->phase == AP_PHASE_BACKWARD && op->forward >= 0) {
        return ap_graph_op(graph, op->forward)->layer;
    }
    for (int r = 0; r < op->result_count && op->phase == AP_PHASE_UPDATE; ++r) {
        const ap_tensor_t *updated = ap_graph_tensor(graph, op->results[r]);

        if (updated->alias_of >= 0) {
            return ap_graph_tensor(graph, updated->alias_of)->layer;
        }
    }
    return -1;
}

/* Every operator is in one of the layers, forward operators use tensors of their own and of earlier
 * layers, backward operators belong to the layer of their forward operator, updates to that of
 * their parameter. */
static void check_layers(const ap_graph_t *graph)
{
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);
        int due = due_layer(graph, op);

        ck_assert(op->layer >= 0 && op->layer < ap_graph_layers(graph));
        ck_assert_msg(due < 0 || due == op->layer,
                      "operator '%s' is in layer %d, what it belongs to in layer %d", op->name,
                      op->layer, due);
        for (int i = 0; i < op->operand_count && op->phase == AP_PHASE_FORWARD; ++i) {
            const ap_tensor_t *operand = ap_graph_tensor(graph, op->operands[i]);

            ck_assert_msg(operand->kind != AP_TENSOR_ACTIVATION || operand->layer <= op->layer,
                          "operator '%s' of layer %d uses '%s' of layer %d", op->name, op->layer,
                          operand->name, operand->layer);
        }
    }
}
