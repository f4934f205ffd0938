/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Says where the FLOPs of a training step are, given its forward pass. This is the proof that the
 * forward pass is one: a part of it that was missed, or a part of the backward pass that was taken
 * for it, shows in products that its derivative does not have. Products alone are counted, since
 * the work of elementwise operators depends on how a framework writes derivatives.
 */

#include "planner/passes/step.h"

#include <stdint.h>

#include "comm/base.h"

/* Bits per tensor. */
enum {
    FROM_END = 1,      /* depends on the end of the forward pass */
    FROM_GRADIENT = 2, /* depends on a gradient, or is one */
    FROM_WEIGHT = 4,
    TO_GRADIENT = 8, /* a gradient depends on it, or it is one */
    TO_OUTPUT = 16,
    TO_VALUE = 32 /* a new value depends on it, or it is one */
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

        if (old < 0 || ap_graph_tensor(step->graph, old)->kind == AP_TENSOR_PARAMETER) {
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
                bits[op->operands[i]] |=
                    bits[op->results[r]] & (TO_GRADIENT | TO_OUTPUT | TO_VALUE);
            }
        }
    }
}

static bool is_new_value(const ap_step_t *step, int tensor)
{
    int old = ap_graph_tensor(step->graph, tensor)->alias_of;

    return old >= 0 && ap_graph_tensor(step->graph, old)->kind == AP_TENSOR_PARAMETER;
}

/* FLOPs of a product, also where a file leaves them out. */
static double flops_of(const ap_op_t *op)
{
    return op->flops > 0 ? op->flops : 2 * op->repeat * ap_sharding_rule_points(&op->rule);
}

/* A product for each operand that a weight has a part in, if the loss is computed from it. */
static double backward_flops(const ap_op_t *op, const unsigned char *bits, bool all)
{
    int needed = 0;

    for (int i = 0; i < op->operand_count; ++i) {
        needed += (bits[op->operands[i]] & FROM_WEIGHT) != 0;
    }
    return all || (bits[op->results[0]] & TO_OUTPUT) != 0 ? needed * flops_of(op) : 0;
}

/* What an operator computes, as a number: operators of one kind and rule on the same operands
 * compute the same. `value` is per tensor, those of operands are there. */
static uint64_t value_of(const ap_op_t *op, const uint64_t *value)
{
    uint64_t hash = xm_hash_mix((uint64_t)op->kind, (uint64_t)op->operand_count);

    for (const char *letter = op->rule.text; *letter != '\0'; ++letter) {
        hash = xm_hash_mix(hash, (uint64_t)(unsigned char)*letter);
    }
    for (int i = 0; i < op->operand_count; ++i) {
        hash = xm_hash_mix(hash, value[op->operands[i]]);
    }
    return hash;
}

static void number_values(const ap_step_t *step, uint64_t *value)
{
    for (int t = 0; t < step->tensors; ++t) {
        value[t] = xm_hash_mix(1, (uint64_t)t);
    }
    for (int o = 0; o < step->ops; ++o) {
        const ap_op_t *op = ap_graph_op(step->graph, o);

        for (int r = 0; r < op->result_count; ++r) {
            value[op->results[r]] = xm_hash_mix(value_of(op, value), (uint64_t)r);
        }
    }
}

/* Whether a product outside of the forward pass is one of its products once more, as when a loss is
 * computed for its value and, in the checkpointed way, for its gradient. */
static bool is_twin(const ap_step_t *step, const bool *forward, int o, const uint64_t *value)
{
    uint64_t own = value[ap_graph_op(step->graph, o)->results[0]];

    for (int p = 0; p < step->ops; ++p) {
        if (forward[p] && value[ap_graph_op(step->graph, p)->results[0]] == own) {
            return true;
        }
    }
    return false;
}

/* The sum that the FLOPs of a product outside of the forward pass belong to. */
static double *sum_of(const ap_step_t *step, const bool *forward, int o, const unsigned char *bits,
                      const uint64_t *value, ap_step_flops_t *flops)
{
    const ap_op_t *op = ap_graph_op(step->graph, o);
    unsigned made = bits[op->results[0]];
    bool updates = false;

    for (int i = 0; i < op->operand_count; ++i) {
        updates = updates || (bits[op->operands[i]] & FROM_GRADIENT) != 0;
    }
    if (updates && (made & TO_VALUE) != 0) {
        return &flops->update;
    }
    if ((made & TO_GRADIENT) == 0) {
        return is_twin(step, forward, o, value) ? &flops->again : &flops->beside;
    }
    return (made & FROM_END) != 0 ? &flops->backward : &flops->again;
}

xm_status_t ap_step_account(const ap_step_t *step, const bool *forward, int end, int output,
                            ap_step_flops_t *flops)
{
    xm_arena_t arena = {0};
    unsigned char *bits = xm_arena_get(&arena, (size_t)step->tensors, 1);
    uint64_t *value = xm_arena_take(&arena, (size_t)step->tensors * sizeof(*value));

    *flops = (ap_step_flops_t){0};
    if (arena.failed) {
        xm_arena_clear(&arena);
        return XM_NO_MEMORY("%d tensors", step->tensors);
    }
    for (int t = 0; t < step->tensors; ++t) {
        bits[t] =
            (unsigned char)((t == end ? FROM_END : 0) | (step->weight[t] ? FROM_WEIGHT : 0) |
                            (t == output ? TO_OUTPUT : 0) | (is_new_value(step, t) ? TO_VALUE : 0) |
                            (step->target[t] >= 0 ? FROM_GRADIENT | TO_GRADIENT : 0));
    }
    do { /* every turn but the last gives a tensor a bit, and loops are seldom nested */
        flow_forward(step, bits);
        flow_back(step, bits);
    } while (flow_around(step, bits));
    number_values(step, value);
    for (int o = 0; o < step->ops; ++o) {
        const ap_op_t *op = ap_graph_op(step->graph, o);

        if (op->kind != AP_OP_EINSUM) {
            continue;
        }
        flops->all += flops_of(op);
        if (forward[o]) {
            flops->forward += flops_of(op);
            flops->expected += backward_flops(op, bits, output < 0);
        } else {
            *sum_of(step, forward, o, bits, value, flops) += flops_of(op);
        }
    }
    xm_arena_clear(&arena);
    return XM_OK;
}
