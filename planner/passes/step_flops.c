/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Says where the FLOPs of a training step are, given its forward pass. This is the proof that the
 * forward pass is one: a part of it that was missed, or a part of the backward pass that was taken
 * for it, shows in products that its derivative does not have. Products alone are counted, since
 * the work of elementwise operators depends on how a framework writes derivatives.
 */

#include "planner/passes/step.h"

#include <stdlib.h>

/* Bits per tensor. */
enum {
    FROM_END = 1,      /* depends on the end of the forward pass */
    FROM_GRADIENT = 2, /* depends on a gradient, or is one */
    FROM_WEIGHT = 4,
    TO_GRADIENT = 8, /* a gradient depends on it, or it is one */
    TO_OUTPUT = 16
};

/* A round of a loop returns what takes the place of what the round began with: what a weight has a
 * part in then has it in the next round, and what leads to a gradient there does so here. Returns
 * whether a tensor gets a bit by that. */
static bool flow_around(const ap_step_t *step, unsigned char *bits)
{
    bool changed = false;

    for (int t = 0; t < step->tensors; ++t) {
        int old = ap_graph_tensor(step->graph, t)->alias_of;
        unsigned char both;

        if (old < 0 || ap_graph_tensor(step->graph, old)->kind != AP_TENSOR_ACTIVATION) {
            continue;
        }
        both = (unsigned char)((bits[old] & TO_GRADIENT) | (bits[t] & FROM_WEIGHT));
        changed = changed || (both & ~(bits[old] & bits[t])) != 0;
        bits[old] |= both & FROM_WEIGHT;
        bits[t] |= both & TO_GRADIENT;
    }
    return changed;
}

/* What a tensor gets from the operands of its operator: whole numbers have no derivative. */
static unsigned carried(const ap_step_t *step, int tensor)
{
    bool smooth = ap_dtype_is_smooth(ap_graph_tensor(step->graph, tensor)->dtype);

    return FROM_END | FROM_GRADIENT | (smooth ? FROM_WEIGHT : 0);
}

/* Carries bits from operands to results, in order. */
static void flow_forward(const ap_step_t *step, unsigned char *bits)
{
    for (int o = 0; o < step->ops; ++o) {
        const ap_op_t *op = ap_graph_op(step->graph, o);

        for (int i = 0; i < op->operand_count; ++i) {
            for (int r = 0; r < op->result_count; ++r) {
                bits[op->results[r]] |=
                    (unsigned char)(bits[op->operands[i]] & carried(step, op->results[r]));
            }
        }
    }
}

/* Carries bits from results to operands. */
static void flow_back(const ap_step_t *step, unsigned char *bits)
{
    for (int o = step->ops - 1; o >= 0; --o) {
        const ap_op_t *op = ap_graph_op(step->graph, o);

        for (int i = 0; i < op->operand_count; ++i) {
            for (int r = 0; r < op->result_count; ++r) {
                bits[op->operands[i]] |= bits[op->results[r]] & (TO_GRADIENT | TO_OUTPUT);
            }
        }
    }
}

/* A product for each operand that a weight has a part in, if the loss is computed from it. */
static double backward_flops(const ap_op_t *op, const unsigned char *bits, bool all)
{
    int needed = 0;

    for (int i = 0; i < op->operand_count; ++i) {
        needed += (bits[op->operands[i]] & FROM_WEIGHT) != 0;
    }
    return all || (bits[op->results[0]] & TO_OUTPUT) != 0 ? needed * op->flops : 0;
}

static void count(const ap_op_t *op, const unsigned char *bits, ap_step_flops_t *flops)
{
    bool updates = false;
    unsigned made = bits[op->results[0]];

    for (int i = 0; i < op->operand_count; ++i) {
        updates = updates || (bits[op->operands[i]] & FROM_GRADIENT) != 0;
    }
    if (updates) {
        flops->update += op->flops;
    } else if ((made & TO_GRADIENT) == 0) {
        flops->beside += op->flops;
    } else if ((made & FROM_END) != 0) {
        flops->backward += op->flops;
    } else {
        flops->again += op->flops;
    }
}

xm_status_t ap_step_account(const ap_step_t *step, const bool *forward, int end, int output,
                            ap_step_flops_t *flops)
{
    unsigned char *bits = calloc((size_t)step->tensors + 1, 1);

    *flops = (ap_step_flops_t){0};
    if (bits == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d tensors", step->tensors);
    }
    for (int t = 0; t < step->tensors; ++t) {
        bits[t] = (unsigned char)((t == end ? FROM_END : 0) | (step->weight[t] ? FROM_WEIGHT : 0) |
                                  (t == output ? TO_OUTPUT : 0) |
                                  (step->target[t] >= 0 ? FROM_GRADIENT | TO_GRADIENT : 0));
    }
    do { /* every turn but the last gives a tensor a bit, and loops are seldom nested */
        flow_forward(step, bits);
        flow_back(step, bits);
    } while (flow_around(step, bits));
    for (int o = 0; o < step->ops; ++o) {
        const ap_op_t *op = ap_graph_op(step->graph, o);

        if (op->kind != AP_OP_EINSUM) {
            continue;
        }
        flops->all += op->flops;
        if (forward[o]) {
            flops->forward += op->flops;
            flops->expected += backward_flops(op, bits, output < 0);
        } else {
            count(op, bits, flops);
        }
    }
    free(bits);
    return XM_OK;
}
