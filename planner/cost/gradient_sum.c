/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the chains of additions that the derivation of a training step makes, which no forward
 * operator has. Sums of graphs from outside are not known as such: what becomes of them is up to
 * their compiler. */

#include "planner/cost/gradient_sum.h"

#include <stdlib.h>

ap_reduction_t ap_reduction_of(const ap_priced_op_t *op, const ap_strategy_t *strategy, int term)
{
    ap_reduction_t made = {.spec = strategy->spec[term]};

    for (int c = 0; c < strategy->collective_count; ++c) {
        const ap_collective_t *on = &strategy->collective[c];

        if (on->term == term && (on->kind == AP_ALL_REDUCE || on->kind == AP_REDUCE_SCATTER)) {
            made.partial |= on->axes;
            made.whole |= on->kind == AP_ALL_REDUCE ? on->axes : 0;
            made.seconds += ap_price_collective(op, on);
        }
    }
    return made;
}

bool ap_reduction_equal(const ap_reduction_t *a, const ap_reduction_t *b)
{
    return a->spec == b->spec && a->partial == b->partial && a->whole == b->whole;
}

int ap_gradient_sum_of(const ap_graph_t *graph, int op)
{
    const ap_op_t *of = ap_graph_op(graph, op);

    return of->kind == AP_OP_ELEMENTWISE && of->phase == AP_PHASE_BACKWARD && of->forward < 0 &&
                   of->operand_count == 2
               ? ap_graph_tensor(graph, of->results[0])->gradient_of
               : -1;
}

/* Operators stand in order, so backwards the sum that reads another one is known before it. */
xm_status_t ap_gradient_sums_find(const ap_graph_t *graph, int **sum_of)
{
    size_t tensors = (size_t)ap_graph_tensors(graph) + 1;
    int *readers = calloc(tensors, sizeof(*readers)), *made = malloc(tensors * sizeof(*made));

    if (readers == NULL || made == NULL) {
        free(readers);
        free(made);
        return XM_NO_MEMORY("the sums of gradients");
    }
    for (int t = 0; t < ap_graph_tensors(graph); ++t) {
        made[t] = -1;
    }
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        for (int i = 0; i < ap_graph_op(graph, o)->operand_count; ++i) {
            ++readers[ap_graph_op(graph, o)->operands[i]];
        }
    }
    for (int o = ap_graph_ops(graph) - 1; o >= 0; --o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        for (int i = 0; i < op->operand_count && ap_gradient_sum_of(graph, o) >= 0; ++i) {
            int producer = ap_graph_tensor(graph, op->operands[i])->producer;

            if (readers[op->operands[i]] == 1 && producer >= 0 &&
                ap_graph_op(graph, producer)->phase == AP_PHASE_BACKWARD) {
                made[op->operands[i]] =
                    made[op->results[0]] >= 0 ? made[op->results[0]] : op->results[0];
            }
        }
    }
    free(readers);
    *sum_of = made;
    return XM_OK;
}
