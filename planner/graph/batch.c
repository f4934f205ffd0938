/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changing the batch of a graph. The rules of the operators say which dimensions hang together, so
 * the batch is followed from the inputs through the factors that carry it, forwards to what is
 * computed and backwards to what is made out of nothing (a mask of zeros of the batch's size).
 */

#include "planner/graph/batch.h"

#include <inttypes.h>
#include <string.h>

#include "planner/graph/copy.h"
#include "planner/graph/graph_private.h"

typedef struct marks {
    const ap_graph_t *graph;
    int64_t from;
    bool (*dim)[AP_MAX_RANK]; /* per tensor: dimensions that hold the batch */
    bool **factor;            /* per operator: factors that do */
    bool changed;
} marks_t;

/* The factor of a dimension that holds the batch: of several, one that is as large as the batch,
 * else the outermost that is a multiple of it. -1: none can be. */
static int carrier(const marks_t *marks, const ap_sharding_rule_t *rule, const ap_rule_dim_t *dim)
{
    int found = -1;

    for (int k = dim->count - 1; k >= 0; --k) {
        int64_t size = rule->factor[dim->factor[k]].size;
        bool exact = found >= 0 && rule->factor[found].size == marks->from;

        if (size % marks->from == 0 && (size == marks->from || !exact)) {
            found = dim->factor[k];
        }
    }
    return found;
}

/* Carries marks between one dimension of a term and the operator's factors, both ways. */
static xm_status_t mark_dim(marks_t *marks, int o, int term, int d)
{
    const ap_op_t *op = &marks->graph->ops[o];
    const ap_rule_dim_t *dim = &op->rule.dim[term][d];
    const ap_tensor_t *tensor = &marks->graph->tensors[ap_op_tensor(op, term)];
    bool *holds = &marks->dim[ap_op_tensor(op, term)][d], carried = false;
    int factor;

    for (int k = 0; k < dim->count; ++k) {
        carried = carried || marks->factor[o][dim->factor[k]];
    }
    if (carried == *holds) {
        return XM_OK;
    }
    marks->changed = true;
    if (carried) {
        *holds = true;
        return tensor->kind != AP_TENSOR_PARAMETER
                   ? XM_OK
                   : XM_UNSUPPORTED("operator '%s' pairs the samples with dimension %d of the "
                                    "weight '%s', so their number cannot change",
                                    op->name, d, tensor->name);
    }
    factor = carrier(marks, &op->rule, dim);
    if (factor < 0) {
        return XM_UNSUPPORTED("operator '%s' does not carry the samples in dimension %d of '%s' "
                              "on, so their number cannot change",
                              op->name, d, tensor->name);
    }
    marks->factor[o][factor] = true;
    return XM_OK;
}

/* Two dimensions that hold the batch are mostly one that is only as large as it (as many positions
 * as samples), and nobody can tell which. */
static xm_status_t check_once(const marks_t *marks)
{
    for (int t = 0; t < marks->graph->tensor_count; ++t) {
        int held = 0;

        for (int d = 0; d < marks->graph->tensors[t].shape.rank; ++d) {
            held += marks->dim[t][d];
        }
        if (held > 1) {
            return XM_UNSUPPORTED("several dimensions of '%s' hang together with the %" PRId64
                                  " samples, so their number cannot change",
                                  marks->graph->tensors[t].name, marks->from);
        }
    }
    return XM_OK;
}

static xm_status_t mark_op(marks_t *marks, int o)
{
    const ap_sharding_rule_t *rule = &marks->graph->ops[o].rule;

    /* A factor that a later term marks concerns the earlier ones too: hence twice. */
    for (int round = 0; round < 2; ++round) {
        for (int term = 0; term < rule->operands + rule->results; ++term) {
            for (int d = 0; d < rule->rank[term]; ++d) {
                XM_TRY(mark_dim(marks, o, term, d));
            }
        }
    }
    return XM_OK;
}

/* Forwards and backwards over the graph until nothing changes: twice for most models. */
static xm_status_t mark_all(marks_t *marks)
{
    const ap_graph_t *graph = marks->graph;
    xm_status_t status = XM_OK;

    for (int t = 0; t < graph->tensor_count; ++t) {
        const ap_tensor_t *tensor = &graph->tensors[t];

        marks->dim[t][0] = tensor->kind == AP_TENSOR_INPUT && tensor->shape.rank > 0 &&
                           tensor->shape.dims[0] == marks->from;
    }
    do {
        marks->changed = false;
        for (int o = 0; o < graph->op_count && status == XM_OK; ++o) {
            status = mark_op(marks, o);
        }
        for (int o = graph->op_count - 1; o >= 0 && status == XM_OK; --o) {
            status = mark_op(marks, o);
        }
    } while (marks->changed && status == XM_OK);
    return status;
}

/* Every marked factor is a multiple of the batch, and so is every marked dimension. */
static void rescale(const marks_t *marks, int64_t to, ap_graph_t *made)
{
    for (int t = 0; t < made->tensor_count; ++t) {
        for (int d = 0; d < made->tensors[t].shape.rank; ++d) {
            int64_t *size = &made->tensors[t].shape.dims[d];

            *size = marks->dim[t][d] ? *size / marks->from * to : *size;
        }
    }
    for (int o = 0; o < made->op_count; ++o) {
        ap_op_t *op = &made->ops[o];

        for (int f = 0; f < op->rule.factors; ++f) {
            if (marks->factor[o][f]) {
                op->rule.factor[f].size = op->rule.factor[f].size / marks->from * to;
                op->flops *= (double)to / (double)marks->from;
            }
        }
    }
}

xm_status_t ap_graph_with_batch(const ap_graph_t *graph, int64_t from, int64_t to,
                                ap_graph_t **made)
{
    size_t tensors = (size_t)graph->tensor_count + 1, ops = (size_t)graph->op_count + 1;
    marks_t marks = {.graph = graph, .from = from};
    ap_graph_t *copy = NULL;
    xm_arena_t arena = {0};
    size_t factors = 0;
    bool *marked;
    xm_status_t status;

    marks.dim = xm_arena_get(&arena, tensors, sizeof(*marks.dim));
    for (int o = 0; o < graph->op_count; ++o) {
        factors += (size_t)graph->ops[o].rule.factors;
    }
    marks.factor = xm_arena_get(&arena, ops, sizeof(*marks.factor));
    marked = xm_arena_get(&arena, factors, sizeof(*marked));
    for (int o = 0; o < graph->op_count && !arena.failed; ++o) {
        factors -= (size_t)graph->ops[o].rule.factors;
        marks.factor[o] = marked + factors;
    }
    status = arena.failed ? XM_NO_MEMORY("%zu operators", ops) : mark_all(&marks);
    XM_THEN(status, check_once(&marks));
    XM_THEN(status, ap_graph_copy_whole(graph, &copy));
    if (status == XM_OK) {
        rescale(&marks, to, copy);
        status = ap_graph_finish(copy);
    }
    xm_arena_clear(&arena);
    if (status != XM_OK) {
        ap_graph_destroy(copy);
        return status;
    }
    *made = copy;
    return XM_OK;
}
