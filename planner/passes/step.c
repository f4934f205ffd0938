/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the weights of a training step and their gradients. Three passes over the operators with a
 * bit per new value: which new values each tensor has a part in (and by ways that are more than
 * pointwise), which tensors follow from weights by such ways, and from each weight's new value back
 * to its gradient.
 */

#include "planner/passes/step.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { WORD = 64 };

/* How a tensor follows from a weight. */
enum { NO_WAY, POINTWISE, LIVE };

typedef struct reach {
    ap_step_t *step;
    bool numbers; /* ways may lead through single numbers */
    int *fresh;   /* tensors that are new values */
    int count;
    size_t words;
    uint64_t *any, *other; /* per tensor: new values by any way, by one more than pointwise */
    uint64_t *mask;        /* the new values of weights */
    char *way;             /* per tensor: how it follows from a weight */
    int *stack, *seen;     /* of tensors; `seen` has the walk's number */
    xm_arena_t arena;
} reach_t;

static double elements(const ap_graph_t *graph, int tensor)
{
    return ap_graph_tensor_bytes(graph, tensor) /
           ap_dtype_bytes(ap_graph_tensor(graph, tensor)->dtype);
}

static bool is_number(const ap_graph_t *graph, int tensor)
{
    return elements(graph, tensor) <= 1;
}

/* The factors of a term, a bit for each. */
static unsigned factors_of(const ap_sharding_rule_t *rule, int term)
{
    unsigned bits = 0;

    for (int d = 0; d < rule->rank[term]; ++d) {
        for (int i = 0; i < rule->dim[term][d].count; ++i) {
            bits |= 1U << rule->dim[term][d].factor[i];
        }
    }
    return bits;
}

/* Whether every element of the result comes from one element of the operand, and of each just one:
 * by the rule, for what is computed; what is only moved has the same number of elements. */
static bool is_pointwise(const ap_graph_t *graph, const ap_op_t *op, int operand)
{
    if (op->result_count != 1) {
        return false;
    }
    if (op->kind == AP_OP_RESHAPE) {
        double difference =
            elements(graph, op->operands[operand]) - elements(graph, op->results[0]);

        return op->operand_count == 1 && difference <= 0 && difference >= 0;
    }
    return (op->kind == AP_OP_ELEMENTWISE || op->kind == AP_OP_UPDATE) &&
           factors_of(&op->rule, operand) == factors_of(&op->rule, op->operand_count);
}

/* Whole numbers have no gradient, and single ones are not told from an optimizer's. */
static bool is_candidate(const ap_graph_t *graph, int tensor)
{
    const ap_tensor_t *of = ap_graph_tensor(graph, tensor);

    return of->kind == AP_TENSOR_PARAMETER && of->taken_by >= 0 && ap_dtype_is_smooth(of->dtype) &&
           ap_graph_tensor(graph, of->taken_by)->producer >= 0 && !is_number(graph, tensor);
}

static xm_status_t reach_init(reach_t *r, ap_step_t *step)
{
    size_t tensors = (size_t)step->tensors + 1;

    *r = (reach_t){.step = step};
    r->fresh = xm_arena_get(&r->arena, tensors, sizeof(*r->fresh));
    for (int t = 0; r->fresh != NULL && t < step->tensors; ++t) {
        if (is_candidate(step->graph, t)) {
            r->fresh[r->count++] = ap_graph_tensor(step->graph, t)->taken_by;
        }
    }
    r->words = ((size_t)r->count + WORD - 1) / WORD + 1;
    r->any = xm_arena_get(&r->arena, tensors * r->words, sizeof(*r->any));
    r->other = xm_arena_get(&r->arena, tensors * r->words, sizeof(*r->other));
    r->mask = xm_arena_get(&r->arena, r->words, sizeof(*r->mask));
    r->way = xm_arena_get(&r->arena, tensors, sizeof(*r->way));
    r->stack = xm_arena_get(&r->arena, tensors, sizeof(*r->stack));
    r->seen = xm_arena_get(&r->arena, tensors, sizeof(*r->seen));
    XM_NEED_MEMORY(!r->arena.failed, "the new values of %d weights", r->count);
    return XM_OK;
}

static uint64_t *row(const reach_t *r, uint64_t *table, int tensor)
{
    return table + (size_t)tensor * r->words;
}

static int size_of(const reach_t *r, const uint64_t *set)
{
    int count = 0;

    for (size_t w = 0; w < r->words; ++w) {
        count += __builtin_popcountll(set[w]);
    }
    return count;
}

static bool has(const uint64_t *set, int i)
{
    return (set[i / WORD] >> (i % WORD) & 1) != 0;
}

/* Whether the ways stop at a tensor. */
static bool is_cut(const reach_t *r, int tensor)
{
    return !r->numbers && is_number(r->step->graph, tensor);
}

/* Finds the new values that each tensor has a part in, backwards through the operators. */
static void reach_back(reach_t *r)
{
    const ap_graph_t *graph = r->step->graph;
    size_t bytes = ((size_t)r->step->tensors + 1) * r->words * sizeof(*r->any);

    memset(r->any, 0, bytes);
    memset(r->other, 0, bytes);
    for (int i = 0; i < r->count; ++i) {
        row(r, r->any, r->fresh[i])[i / WORD] |= UINT64_C(1) << (i % WORD);
    }
    for (int o = r->step->ops - 1; o >= 0; --o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        for (int i = 0; i < op->operand_count; ++i) {
            bool pointwise = is_pointwise(graph, op, i);
            uint64_t *any = row(r, r->any, op->operands[i]),
                     *other = row(r, r->other, op->operands[i]);

            for (int k = 0; k < op->result_count; ++k) {
                const uint64_t *from = row(r, r->any, op->results[k]),
                               *more = row(r, pointwise ? r->other : r->any, op->results[k]);

                for (size_t w = 0; w < r->words && !is_cut(r, op->results[k]); ++w) {
                    any[w] |= from[w];
                    other[w] |= more[w];
                }
            }
        }
    }
}

/* A weight has a part in more than half of all new values: even the last one has in those of all
 * weights and of what the optimizer keeps of them, though not in the running means before it. */
static void find_weights(reach_t *r)
{
    ap_step_t *step = r->step;

    for (int i = 0; i < r->count; ++i) {
        int of = ap_graph_tensor(step->graph, r->fresh[i])->alias_of;
        const uint64_t *other = row(r, r->other, of);

        step->weight[of] = 2 * size_of(r, other) > r->count;
        step->retaught[of] = !step->weight[of] && has(other, i);
        step->weights += step->weight[of];
        if (step->weight[of]) {
            r->mask[i / WORD] |= UINT64_C(1) << (i % WORD);
        }
    }
}

/* Marks what follows from weights otherwise than pointwise: gradients do, but not decay, old
 * moments or rates. */
static void find_live(reach_t *r)
{
    const ap_graph_t *graph = r->step->graph;

    for (int t = 0; t < r->step->tensors; ++t) {
        r->way[t] = r->step->weight[t] ? POINTWISE : NO_WAY;
    }
    for (int o = 0; o < r->step->ops; ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        for (int i = 0; i < op->operand_count; ++i) {
            char from = r->way[op->operands[i]];
            char to = from != NO_WAY && !is_pointwise(graph, op, i) ? LIVE : from;

            for (int k = 0; k < op->result_count; ++k) {
                if (!is_cut(r, op->results[k]) && r->way[op->results[k]] < to) {
                    r->way[op->results[k]] = to;
                }
            }
        }
    }
}

/* Whether other weights' new values need a tensor. */
static bool is_shared(const reach_t *r, int tensor, int own)
{
    const uint64_t *any = row(r, r->any, tensor);
    int count = 0;

    for (size_t w = 0; w < r->words; ++w) {
        count += __builtin_popcountll(any[w] & r->mask[w]);
    }
    return count - has(any, own) > 0;
}

/* Whether a tensor is where the pointwise part of an update begins. */
static bool begins(const reach_t *r, const ap_op_t *op, int own)
{
    for (int i = 0; i < op->operand_count; ++i) {
        if (r->way[op->operands[i]] == LIVE &&
            (!is_pointwise(r->step->graph, op, i) || is_shared(r, op->operands[i], own))) {
            return true;
        }
    }
    return false;
}

/* Walks back from the new value number `own` over pointwise operators. No tensor is pushed twice
 * in a walk, so it ends. */
static void find_gradients(reach_t *r, int own)
{
    ap_step_t *step = r->step;
    int top = 0;

    r->stack[top++] = r->fresh[own];
    r->seen[r->fresh[own]] = own + 1;
    while (top > 0) {
        int tensor = r->stack[--top];
        const ap_op_t *op =
            ap_graph_op(step->graph, ap_graph_tensor(step->graph, tensor)->producer);

        if (begins(r, op, own)) {
            step->target[tensor] = 0;
            continue;
        }
        for (int i = 0; i < op->operand_count; ++i) {
            int operand = op->operands[i];

            if (r->way[operand] == LIVE && r->seen[operand] != own + 1 &&
                ap_graph_tensor(step->graph, operand)->producer >= 0) {
                r->seen[operand] = own + 1;
                r->stack[top++] = operand;
            }
        }
    }
}

/* What depends on a gradient is none: products by which an optimizer makes gradients orthogonal,
 * norms of their rows. Those that remain are numbered. */
static void number_targets(reach_t *r)
{
    ap_step_t *step = r->step;
    char *late = r->way; /* no longer needed as such */

    memset(late, false, (size_t)step->tensors);
    for (int o = 0; o < step->ops; ++o) {
        const ap_op_t *op = ap_graph_op(step->graph, o);
        bool depends = false;

        for (int i = 0; i < op->operand_count; ++i) {
            depends = depends || late[op->operands[i]] || step->target[op->operands[i]] >= 0;
        }
        for (int k = 0; k < op->result_count; ++k) {
            int tensor = op->results[k];

            late[tensor] = depends;
            if (step->target[tensor] >= 0) {
                step->target[tensor] = depends ? -1 : step->targets++;
            }
        }
    }
}

static xm_status_t step_init(ap_step_t *step, const ap_graph_t *graph)
{
    size_t tensors = (size_t)ap_graph_tensors(graph) + 1;

    *step =
        (ap_step_t){.graph = graph, .ops = ap_graph_ops(graph), .tensors = ap_graph_tensors(graph)};
    step->weight = xm_arena_get(&step->arena, tensors, sizeof(*step->weight));
    step->retaught = xm_arena_get(&step->arena, tensors, sizeof(*step->retaught));
    step->target = xm_arena_get(&step->arena, tensors, sizeof(*step->target));
    if (step->arena.failed) {
        return XM_NO_MEMORY("the %d operators of '%s'", step->ops, ap_graph_name(graph));
    }
    for (int t = 0; t < step->tensors; ++t) {
        step->target[t] = -1;
    }
    return XM_OK;
}

xm_status_t ap_step_find(const ap_graph_t *graph, bool numbers, ap_step_t *step)
{
    reach_t r = {0};
    xm_status_t status = step_init(step, graph);

    if (status == XM_OK) {
        status = reach_init(&r, step);
    }
    if (status == XM_OK) {
        r.numbers = numbers;
        reach_back(&r);
        find_weights(&r);
    }
    if (status == XM_OK) {
        find_live(&r);
        for (int i = 0; i < r.count; ++i) {
            if (has(r.mask, i)) {
                find_gradients(&r, i);
            }
        }
        number_targets(&r);
    }
    xm_arena_clear(&r.arena);
    return status;
}

void ap_step_clear(ap_step_t *step)
{
    xm_arena_clear(&step->arena);
    *step = (ap_step_t){0};
}
