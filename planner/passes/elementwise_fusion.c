/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuses elementwise operators of a forward graph as compilers do. Front ends give GELU as eight
 * operators; a compiler makes one kernel of them, which reads its operands once and keeps nothing
 * in between. Without fusion a plan would count bytes and saved activations eight times, and would
 * choose a sharding for each.
 *
 * One pass in topological order: each operator takes in those of its producers that may join it.
 * Four operands bound how far it grows. Layers of equal structure are
 * treated alike, so equal layers stay equal.
 */

#include "planner/passes/elementwise_fusion.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/graph.h"

enum { READINGS_MOST = 4 };

/* A tensor that an elementwise operator reads: which dimension of the result each of its own is. */
typedef struct reading {
    int tensor;
    uint8_t dim[AP_MAX_RANK];
} reading_t;

/* An operator as what it reads, with its fused parts. */
typedef struct fused {
    bool fits; /* of simple element-wise form; else it is copied as it is */
    bool gone; /* part of its users */
    int count;
    reading_t reading[READINGS_MOST];
    double flops;
    bool linear;
} fused_t;

typedef struct fusion {
    const ap_graph_t *graph;
    fused_t *op;
    int *users; /* per tensor; those that must stay count as many */
} fusion_t;

static const char letters[] = "abcdefgh";

/* The dimension of the result that carries the factor of this dimension of an operand; -1 where
 * none does. */
static int result_dim(const ap_sharding_rule_t *rule, const ap_rule_dim_t *dim)
{
    if (dim->count != 1 || rule->factor[dim->factor[0]].kind != AP_FACTOR_PASS_THROUGH) {
        return -1;
    }
    for (int d = 0; d < rule->rank[rule->operands]; ++d) {
        const ap_rule_dim_t *of_result = &rule->dim[rule->operands][d];

        if (of_result->count == 1 && of_result->factor[0] == dim->factor[0]) {
            return d;
        }
    }
    return -1;
}

/* Whether every dimension of the result is one factor of the usual kind. */
static bool has_plain_result(const ap_op_t *op)
{
    const ap_sharding_rule_t *rule = &op->rule;
    bool plain =
        op->result_count == 1 && op->operand_count >= 1 && op->operand_count <= READINGS_MOST;

    for (int f = 0; f < rule->factors; ++f) {
        plain = plain && rule->factor[f].kind == AP_FACTOR_PASS_THROUGH;
    }
    for (int d = 0; plain && d < rule->rank[rule->operands]; ++d) {
        plain = rule->dim[rule->operands][d].count == 1;
    }
    return plain;
}

/* Whether an operator moves or repeats elements and computes nothing. */
static bool spreads(const ap_op_t *op)
{
    return op->operand_count == 1 &&
           (op->kind == AP_OP_RESHAPE || (op->kind == AP_OP_ELEMENTWISE && op->flops <= 0));
}

static fused_t read_op(const ap_op_t *op)
{
    fused_t of = {.flops = op->flops, .linear = op->linear || spreads(op)};

    of.fits = has_plain_result(op) && (op->kind == AP_OP_ELEMENTWISE || spreads(op));
    for (int i = 0; i < op->operand_count && of.fits; ++i) {
        reading_t *reading = &of.reading[of.count++];

        reading->tensor = op->operands[i];
        memset(reading->dim, 0, sizeof(reading->dim));
        for (int d = 0; d < op->rule.rank[i]; ++d) {
            int dim = result_dim(&op->rule, &op->rule.dim[i][d]);

            of.fits = of.fits && dim >= 0;
            reading->dim[d] = (uint8_t)(dim < 0 ? 0 : dim);
        }
    }
    return of;
}

static bool same_reading(const fusion_t *f, const reading_t *a, const reading_t *b)
{
    int rank = ap_graph_tensor(f->graph, a->tensor)->shape.rank;

    return a->tensor == b->tensor && memcmp(a->dim, b->dim, (size_t)rank) == 0;
}

/* Adds a reading unless it is there; false when there is no room. */
static bool add_reading(const fusion_t *f, fused_t *to, const reading_t *reading)
{
    for (int i = 0; i < to->count; ++i) {
        if (same_reading(f, &to->reading[i], reading)) {
            return true;
        }
    }
    if (to->count == READINGS_MOST) {
        return false;
    }
    to->reading[to->count++] = *reading;
    return true;
}

/* The operator with the part that makes its reading `index` taken in; false when it does not fit.
 * Dimensions of what the part reads are renamed through those of the reading that it replaces.
 * *made is of use only on success. */
static bool take_in(const fusion_t *f, const fused_t *whole, int index, const fused_t *part,
                    fused_t *made)
{
    const reading_t *through = &whole->reading[index];

    *made = *whole;
    made->count = 0;
    for (int i = 0; i < whole->count; ++i) {
        if (i != index) {
            (void)add_reading(f, made, &whole->reading[i]);
            continue;
        }
        for (int j = 0; j < part->count; ++j) {
            reading_t reading = part->reading[j];
            int rank = ap_graph_tensor(f->graph, reading.tensor)->shape.rank;

            for (int d = 0; d < rank; ++d) {
                reading.dim[d] = through->dim[reading.dim[d]];
            }
            if (!add_reading(f, made, &reading)) {
                return false;
            }
        }
    }
    /* Duplicates are only found among readings before them, so all are added once more; those that
     * are there change nothing. */
    for (int i = 0; i < whole->count; ++i) {
        if (i != index && !add_reading(f, made, &whole->reading[i])) {
            return false;
        }
    }
    made->linear = whole->linear && part->linear;
    made->flops += part->flops;
    return true;
}

/* Whether the producer of a tensor may become part of an operator. Both must be in one layer and
 * run equally often. What spreads may join each of its users, because repeating elements is free in
 * any kernel. */
static bool may_join(const fusion_t *f, int user, int tensor)
{
    const ap_op_t *op = ap_graph_op(f->graph, user);
    int producer = ap_graph_tensor(f->graph, tensor)->producer;
    const ap_op_t *part;

    if (producer < 0 || !f->op[producer].fits || f->op[producer].gone ||
        ap_tensor_demands(ap_graph_tensor(f->graph, tensor))) {
        return false;
    }
    part = ap_graph_op(f->graph, producer);
    if (part->layer != op->layer || part->repeat < op->repeat || part->repeat > op->repeat) {
        return false;
    }
    if (spreads(part)) {
        return true;
    }
    /* Another operator joins only its single user, or its work would be done twice, and only at the
     * same size: a smaller part would run more often. */
    return f->users[tensor] == 1 && ap_graph_tensor(f->graph, tensor)->shape.rank ==
                                        ap_graph_tensor(f->graph, op->results[0])->shape.rank;
}

/* Starts over after each part that joined, because the part's own readings may join as well. Every
 * round replaces a tensor by ones made earlier, so it ends. */
static void grow(fusion_t *f, int o)
{
    const ap_op_t *op = ap_graph_op(f->graph, o);
    int index = 0;

    while (f->op[o].fits && !spreads(op) && index < f->op[o].count) {
        int tensor = f->op[o].reading[index].tensor;
        fused_t made;

        if (may_join(f, o, tensor)) {
            int producer = ap_graph_tensor(f->graph, tensor)->producer;

            if (take_in(f, &f->op[o], index, &f->op[producer], &made)) {
                f->op[producer].gone = !spreads(ap_graph_op(f->graph, producer));
                f->op[o] = made;
                index = 0;
                continue;
            }
        }
        ++index;
    }
}

/* An operator that reads a tensor twice is one user. The loss and what it is the gradient of get
 * two more, so that they stay tensors. */
static void count_users(fusion_t *f)
{
    int loss = ap_graph_loss(f->graph, NULL);
    int output = loss >= 0 ? ap_graph_tensor(f->graph, loss)->gradient_of : -1;

    for (int o = 0; o < ap_graph_ops(f->graph); ++o) {
        const ap_op_t *op = ap_graph_op(f->graph, o);

        for (int i = 0; i < op->operand_count; ++i) {
            bool again = false;

            for (int j = 0; j < i; ++j) {
                again = again || op->operands[j] == op->operands[i];
            }
            f->users[op->operands[i]] += !again;
        }
    }
    if (loss >= 0) {
        f->users[loss] += 2;
    }
    if (output >= 0) {
        f->users[output] += 2;
    }
}

/* Adds the fused operator by a rule of its own, with one letter per dimension of the result; sizes
 * are told for dimensions that no operand has. */
static xm_status_t add_fused(const fusion_t *f, int o, ap_graph_copy_t *copy)
{
    const ap_op_t *op = ap_graph_op(f->graph, o);
    const ap_tensor_t *result = ap_graph_tensor(f->graph, op->results[0]);
    ap_op_params_t params = AP_OP_PARAMS_INIT;
    char rule[(READINGS_MOST + 1) * (AP_MAX_RANK + 2)], sizes[AP_MAX_RANK * 24];
    int operands[READINGS_MOST];
    size_t length = 0, sized = 0;
    unsigned covered = 0; /* dimensions of the result that an operand has */
    int results[1];
    xm_status_t status = XM_OK;

    for (int i = 0; i < f->op[o].count && status == XM_OK; ++i) {
        const reading_t *reading = &f->op[o].reading[i];
        const ap_tensor_t *of = ap_graph_tensor(f->graph, reading->tensor);

        if (i > 0) {
            rule[length++] = ',';
        }
        for (int d = 0; d < of->shape.rank; ++d) {
            rule[length++] = letters[reading->dim[d]];
            covered |= 1U << reading->dim[d];
        }
        if (of->kind != AP_TENSOR_ACTIVATION) {
            status = ap_graph_copy_source(copy, reading->tensor);
        }
        operands[params.operand_count++] = copy->tensor[reading->tensor];
    }
    sizes[0] = '\0';
    for (int d = 0; d < result->shape.rank; ++d) {
        if ((covered >> d & 1U) != 0) {
            continue;
        }
        sized +=
            (size_t)snprintf(sizes + sized, sizeof(sizes) - sized, "%s%c=%lld",
                             sized > 0 ? "," : "", letters[d], (long long)result->shape.dims[d]);
    }
    (void)snprintf(rule + length, sizeof(rule) - length, "->%.*s", result->shape.rank, letters);
    params.kind = AP_OP_ELEMENTWISE;
    params.name = op->name;
    params.label = op->label;
    params.rule = rule;
    params.operands = operands;
    params.sizes = sizes[0] != '\0' ? sizes : NULL;
    params.result_dtype = result->dtype;
    params.repeat = op->repeat;
    params.linear = f->op[o].linear;
    params.flops_per_point =
        f->op[o].flops / op->repeat /
        (ap_graph_tensor_bytes(f->graph, op->results[0]) / ap_dtype_bytes(result->dtype));
    if (status == XM_OK) {
        status = ap_graph_add_op(copy->to, &params, results);
        copy->tensor[op->results[0]] = results[0];
    }
    return status;
}

static bool changed(const fusion_t *f, int o)
{
    const ap_op_t *op = ap_graph_op(f->graph, o);
    bool same = f->op[o].count == op->operand_count;

    for (int i = 0; i < op->operand_count && same; ++i) {
        same = f->op[o].reading[i].tensor == op->operands[i];
    }
    return f->op[o].fits && !same;
}

static xm_status_t copy_fused(const fusion_t *f, ap_graph_copy_t *copy)
{
    bool is_gradient;
    int loss = ap_graph_loss(f->graph, &is_gradient);
    int output = ap_graph_tensor(f->graph, loss)->gradient_of;

    for (int o = 0; o < ap_graph_ops(f->graph); ++o) {
        if (f->op[o].gone) {
            continue;
        }
        XM_TRY(ap_graph_set_layer(copy->to, ap_graph_op(f->graph, o)->layer));
        XM_TRY(changed(f, o) ? add_fused(f, o, copy) : ap_graph_copy_op(copy, o));
    }
    XM_TRY(ap_graph_set_loss(copy->to, copy->tensor[loss], is_gradient));
    if (output >= 0) {
        XM_TRY(ap_graph_set_gradient(copy->to, copy->tensor[loss], copy->tensor[output]));
    }
    return XM_OK;
}

/* What spreads goes where it has become part of all that used it. Users are counted once more,
 * backwards, so that what only dropped operators read is dropped, too. */
static void drop_unread(fusion_t *f)
{
    int loss = ap_graph_loss(f->graph, NULL);
    int output = ap_graph_tensor(f->graph, loss)->gradient_of;

    memset(f->users, 0, (size_t)ap_graph_tensors(f->graph) * sizeof(*f->users));
    f->users[loss] = 1;
    f->users[output >= 0 ? output : loss] = 1;
    for (int o = ap_graph_ops(f->graph) - 1; o >= 0; --o) {
        const ap_op_t *op = ap_graph_op(f->graph, o);

        if (f->op[o].fits && spreads(op) && f->users[op->results[0]] == 0) {
            f->op[o].gone = true;
        }
        if (f->op[o].gone) {
            continue;
        }
        for (int i = 0; i < f->op[o].count && f->op[o].fits; ++i) {
            ++f->users[f->op[o].reading[i].tensor];
        }
        for (int i = 0; i < op->operand_count && !f->op[o].fits; ++i) {
            ++f->users[op->operands[i]];
        }
    }
}

/* Producers come before their users, so when an operator grows, its producers have grown
 * already. */
static xm_status_t fuse(fusion_t *f, ap_graph_t **fused)
{
    ap_graph_copy_t copy;

    count_users(f);
    for (int o = 0; o < ap_graph_ops(f->graph); ++o) {
        f->op[o] = read_op(ap_graph_op(f->graph, o));
        grow(f, o);
    }
    drop_unread(f);
    XM_TRY(ap_graph_copy_open(f->graph, &copy));
    return ap_graph_copy_close(&copy, copy_fused(f, &copy), fused);
}

xm_status_t ap_elementwise_fuse(const ap_graph_t *forward, ap_graph_t **fused)
{
    size_t ops = (size_t)ap_graph_ops(forward) + 1, tensors = (size_t)ap_graph_tensors(forward) + 1;
    fusion_t f = {.graph = forward,
                  .op = calloc(ops, sizeof(*f.op)),
                  .users = calloc(tensors, sizeof(*f.users))};
    xm_status_t status =
        f.op == NULL || f.users == NULL ? XM_NO_MEMORY("%zu operators", ops) : fuse(&f, fused);

    free(f.op);
    free(f.users);
    return status;
}
