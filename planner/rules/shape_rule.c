/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Result shapes and sharding rules of the common operators, derived from operand shapes. ONNX and
 * JSON files name operators and not factors; both come here, so that one operator has one rule
 * whichever file it was in.
 *
 * The pattern is always the same: infer the result, open a factor per dimension that can be cut,
 * put it into every term that shares it. Closing the rule, before it is added to a graph, makes
 * every dimension without a factor whole. A dimension that is forgotten is thus never cut: a
 * costlier plan, but never a wrong one.
 */

#include "planner/rules/shape_rule.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "planner/rules/rules_private.h"

/* Makes room for result `index`; types that move are pointed at anew. */
static bool add_room(shape_rule_t *op, int index)
{
    const int room = 2 * index + 4;
    operand_type_t *grown;

    if (index < op->made_room) {
        return true;
    }
    grown = realloc(op->made, (size_t)room * sizeof(*grown));
    if (grown == NULL || !operator_rule_room(&op->rule, op->rule.operands + room)) {
        op->made = grown != NULL ? grown : op->made;
        op->rule.status = XM_NO_MEMORY("the results of %s", op->rule.place);
        return false;
    }
    memset(grown + op->made_room, 0, (size_t)(room - op->made_room) * sizeof(*grown));
    op->made = grown;
    op->made_room = room;
    for (int r = 0; r < op->rule.results; ++r) {
        op->rule.type[op->rule.operands + r] = &grown[r];
    }
    return true;
}

/* Failures stick: a function that is called after one finds `status` set and returns at once, so a
 * front end checks once, at the end. */
void shape_rule_begin(shape_rule_t *op, const char *place, const operand_type_t *const *types,
                      int count)
{
    shape_rule_end(op);
    operator_rule_begin(&op->rule, count, 0);
    op->rule.place = place;
    for (int o = 0; o < op->rule.operands; ++o) {
        op->rule.type[o] = types[o];
    }
    /* The room for the first results: most operators have no more, so they cannot fail later. */
    if (!add_room(op, 0)) {
        op->rule.operands = 0;
    }
}

void shape_rule_end(shape_rule_t *op)
{
    operator_rule_end(&op->rule);
    free(op->made);
    op->made = NULL;
    op->made_room = 0;
}

void shape_rule_result(shape_rule_t *op, int index, ap_dtype_t dtype, const ap_shape_t *shape)
{
    operand_type_t *made;
    int64_t elements = 1;

    if (!add_room(op, index)) {
        return;
    }
    made = &op->made[index];
    made->dtype = dtype;
    made->shape = *shape;
    /* A dimension of 0 makes an empty result, which is allowed; a negative or overflowing one is an
     * error, and the shape is repaired so that what follows reads no nonsense. */
    for (int d = 0; d < shape->rank; ++d) {
        made->empty = made->empty || shape->dims[d] == 0;
        if (shape->dims[d] < 0 ||
            (shape->dims[d] > 0 && __builtin_mul_overflow(elements, shape->dims[d], &elements))) {
            operator_rule_fail(&op->rule,
                               "dimension %d of result %d is %" PRId64
                               ", or it has more than 2^63 elements",
                               d, index, shape->dims[d]);
            made->shape.dims[d] = 1;
        }
    }
    op->rule.type[op->rule.operands + index] = made;
    if (index >= op->rule.results) {
        op->rule.results = index + 1;
    }
}

int shape_rank(const shape_rule_t *op, int term)
{
    return op->rule.type[term]->shape.rank;
}

int64_t shape_extent(const shape_rule_t *op, int term, int dim)
{
    return op->rule.type[term]->shape.dims[dim];
}

bool shape_need_operands(shape_rule_t *op, int least, int most)
{
    if (op->rule.status == XM_OK && (op->rule.operands < least || op->rule.operands > most)) {
        operator_rule_fail(&op->rule, "%d operands, %d to %d are needed", op->rule.operands, least,
                           most);
    }
    return op->rule.status == XM_OK;
}

bool shape_need_dim(shape_rule_t *op, int term, int dim)
{
    if (op->rule.status == XM_OK && (dim < 0 || dim >= shape_rank(op, term))) {
        operator_rule_fail(&op->rule, "there is no dimension %d", dim);
    }
    return op->rule.status == XM_OK;
}

/* The shape that all operands broadcast to, by numpy's rule: dimensions are aligned at the end, and
 * one of size 1 fits any other. */
static bool broadcast_shape(shape_rule_t *op, int first, int last, ap_shape_t *shape)
{
    memset(shape, 0, sizeof(*shape));
    for (int t = first; t < last; ++t) {
        shape->rank = shape_rank(op, t) > shape->rank ? shape_rank(op, t) : shape->rank;
    }
    for (int d = 0; d < shape->rank; ++d) {
        shape->dims[d] = 1;
        for (int t = first; t < last; ++t) {
            int at = d - (shape->rank - shape_rank(op, t));
            int64_t extent = at < 0 ? 1 : shape_extent(op, t, at);

            if (extent == 1 || extent == shape->dims[d]) {
                continue;
            }
            if (shape->dims[d] != 1) {
                operator_rule_fail(&op->rule,
                                   "dimension %d of operand %d is %" PRId64
                                   " and does not broadcast "
                                   "with %" PRId64,
                                   at, t, extent, shape->dims[d]);
                return false;
            }
            shape->dims[d] = extent;
        }
    }
    return true;
}

/* Ties the dimensions of a term to those of the result, aligned at the end; those of 1 that are
 * stretched stay whole. */
static void tie_broadcast(shape_rule_t *op, int term, int out)
{
    int shift = shape_rank(op, out) - shape_rank(op, term);

    for (int d = 0; d < shape_rank(op, term); ++d) {
        if (shape_extent(op, term, d) == shape_extent(op, out, d + shift)) {
            operator_rule_put(&op->rule, term, d, op->rule.dim[out][d + shift].factor[0]);
        }
    }
}

static void open_all(shape_rule_t *op, int term)
{
    for (int d = 0; d < shape_rank(op, term); ++d) {
        (void)operator_rule_open(&op->rule, term, d);
    }
}

void shape_rule_elementwise(shape_rule_t *op, double flops, bool linear)
{
    int out = op->rule.operands;
    ap_shape_t shape;

    if (!shape_need_operands(op, 1, INT_MAX) || !broadcast_shape(op, 0, out, &shape)) {
        return;
    }
    shape_rule_result(op, 0, op->rule.type[0]->dtype, &shape);
    op->rule.linear = linear;
    op->rule.flops = flops * operand_type_elements(&op->made[0]);
    open_all(op, out);
    for (int t = 0; t < out; ++t) {
        tie_broadcast(op, t, out);
    }
}

/* The target is taken for a second operand while the shape is inferred, and the result replaces it
 * in the list of terms. */
void shape_rule_expand(shape_rule_t *op, const ap_shape_t *to)
{
    const operand_type_t target = {.shape = *to};
    const operand_type_t *pair[2] = {op->rule.type[0], &target};
    ap_shape_t shape;

    if (!shape_need_operands(op, 1, 1)) {
        return;
    }
    op->rule.type[1] = pair[1];
    if (!broadcast_shape(op, 0, 2, &shape)) {
        return;
    }
    shape_rule_result(op, 0, op->rule.type[0]->dtype, &shape);
    op->rule.kind = AP_OP_RESHAPE;
    open_all(op, 1);
    tie_broadcast(op, 0, 1);
}

/* numpy's matmul. Batch dimensions of both operands broadcast, then come the row of the first and
 * the column of the second; a vector has no row or no column, which -1 stands for. */
void shape_rule_matmul(shape_rule_t *op)
{
    ap_shape_t shape = {0};
    int row, column, rank_a, rank_b, out = 2, inner, inner_b;

    if (!shape_need_operands(op, 2, 2)) {
        return;
    }
    rank_a = shape_rank(op, 0);
    rank_b = shape_rank(op, 1);
    row = rank_a - 2; /* of a, or -1 when a is a vector */
    column = rank_b < 2 ? -1 : rank_b - 1;
    inner = rank_a - 1;
    inner_b = rank_b < 2 ? 0 : rank_b - 2;
    if (rank_a == 0 || rank_b == 0 || shape_extent(op, 0, inner) != shape_extent(op, 1, inner_b)) {
        operator_rule_fail(&op->rule,
                           "the inner dimensions of the operands differ, or one is a scalar");
        return;
    }
    /* The batch dimensions are compared alone: both operands are replaced by their leading
     * dimensions for the time of one call. */
    {
        const operand_type_t *const types[2] = {op->rule.type[0], op->rule.type[1]};
        operand_type_t batch[2] = {*types[0], *types[1]};

        batch[0].shape.rank = row > 0 ? row : 0;
        batch[1].shape.rank = inner_b;
        op->rule.type[0] = &batch[0];
        op->rule.type[1] = &batch[1];
        (void)broadcast_shape(op, 0, 2, &shape);
        op->rule.type[0] = types[0];
        op->rule.type[1] = types[1];
    }
    if (op->rule.status != XM_OK) {
        return;
    }
    if (shape.rank + 2 > AP_MAX_RANK) {
        operator_rule_fail(&op->rule, "more than %d dimensions are not handled", AP_MAX_RANK);
        return;
    }
    /* Every dimension of the result opens a factor, which goes into the operands' dimensions of the
     * same extent. A batch dimension of 1 that is stretched gets none and stays whole. */
    {
        const int batch = shape.rank;

        if (row >= 0) {
            shape.dims[shape.rank++] = shape_extent(op, 0, row);
        }
        if (column >= 0) {
            shape.dims[shape.rank++] = shape_extent(op, 1, column);
        }
        shape_rule_result(op, 0, op->rule.type[0]->dtype, &shape);
        op->rule.kind = AP_OP_EINSUM;
        op->rule.flops =
            2 * operand_type_elements(&op->made[0]) * (double)shape_extent(op, 0, inner);
        operator_rule_put(&op->rule, 1, inner_b, operator_rule_open(&op->rule, 0, inner));
        for (int d = 0; d < shape.rank; ++d) {
            int factor = operator_rule_open(&op->rule, out, d);

            for (int side = 0; side < 2 && d < batch; ++side) {
                int leading = side == 0 ? (row > 0 ? row : 0) : inner_b, at = d - batch + leading;

                if (at >= 0 && shape_extent(op, side, at) == shape.dims[d]) {
                    operator_rule_put(&op->rule, side, at, factor);
                }
            }
            if (d == batch && row >= 0) {
                operator_rule_put(&op->rule, 0, row, factor);
            } else if (d >= batch) {
                operator_rule_put(&op->rule, 1, column, factor);
            }
        }
    }
}

void shape_rule_gemm(shape_rule_t *op, bool transpose_a, bool transpose_b)
{
    const int k_of_a = transpose_a ? 0 : 1, k_of_b = transpose_b ? 1 : 0;
    ap_shape_t shape = {.rank = 2};
    int k;

    if (!shape_need_operands(op, 2, 2) || !operator_rule_rank(&op->rule, 0, 2) ||
        !operator_rule_rank(&op->rule, 1, 2)) {
        return;
    }
    shape.dims[0] = shape_extent(op, 0, 1 - k_of_a);
    shape.dims[1] = shape_extent(op, 1, 1 - k_of_b);
    shape_rule_result(op, 0, op->rule.type[0]->dtype, &shape);
    op->rule.kind = AP_OP_EINSUM;
    op->rule.flops = 2 * operand_type_elements(&op->made[0]) * (double)shape_extent(op, 0, k_of_a);
    k = operator_rule_open(&op->rule, 0, k_of_a);
    operator_rule_put(&op->rule, 1, k_of_b, k);
    operator_rule_put(&op->rule, 2, 0, operator_rule_open(&op->rule, 0, 1 - k_of_a));
    operator_rule_put(&op->rule, 2, 1, operator_rule_open(&op->rule, 1, 1 - k_of_b));
}

/* The vector shares one factor with the dimension it is added along, so cutting that dimension cuts
 * the vector, too. */
void shape_rule_bias(shape_rule_t *op, int dim)
{
    if (!shape_need_operands(op, 2, 2) || !operator_rule_rank(&op->rule, 1, 1) ||
        !shape_need_dim(op, 0, dim)) {
        return;
    }
    shape_rule_result(op, 0, op->rule.type[0]->dtype, &op->rule.type[0]->shape);
    op->rule.linear = true;
    op->rule.flops = operand_type_elements(&op->made[0]);
    for (int d = 0; d < shape_rank(op, 0); ++d) {
        int factor = operator_rule_open(&op->rule, 0, d);

        operator_rule_put(&op->rule, 2, d, factor);
        if (d == dim) {
            operator_rule_put(&op->rule, 1, 0, factor);
        }
    }
}

/* With `parts`, a reduced dimension keeps a factor of its own, which the result lacks: cutting it
 * leaves partial sums. Without (a maximum, a mean of logs), it gets none and stays whole. */
void shape_rule_reduce(shape_rule_t *op, const bool *reduced, bool keep, bool parts)
{
    ap_shape_t shape = {0};
    int kept = 0;

    if (!shape_need_operands(op, 1, 1)) {
        return;
    }
    for (int d = 0; d < shape_rank(op, 0); ++d) {
        if (!reduced[d] || keep) {
            shape.dims[shape.rank++] = reduced[d] ? 1 : shape_extent(op, 0, d);
        }
    }
    shape_rule_result(op, 0, op->rule.type[0]->dtype, &shape);
    op->rule.kind = AP_OP_REDUCE;
    op->rule.flops = operand_type_elements(op->rule.type[0]);
    for (int d = 0; d < shape_rank(op, 0); ++d) {
        if (!reduced[d]) {
            operator_rule_put(&op->rule, 1, kept, operator_rule_open(&op->rule, 0, d));
        } else if (parts) {
            (void)operator_rule_open(&op->rule, 0, d);
        }
        kept += !reduced[d] || keep;
    }
}

/* Dimensions that are not whole pass through all terms; the work along the whole ones needs all of
 * their elements on one device. */
void shape_rule_along(shape_rule_t *op, int results, const bool *whole, double flops)
{
    const operand_type_t *of = op->rule.type[0];

    if (!shape_need_operands(op, 1, INT_MAX)) {
        return;
    }
    for (int r = 0; r < results; ++r) {
        shape_rule_result(op, r, of->dtype, &of->shape);
    }
    if (op->rule.status != XM_OK) {
        return;
    }
    op->rule.flops = flops * operand_type_elements(of);
    operator_rule_share(&op->rule, 0, whole);
}

void shape_rule_softmax(shape_rule_t *op, int dim)
{
    bool whole[AP_MAX_RANK] = {false};

    if (!shape_need_operands(op, 1, 1) || !shape_need_dim(op, 0, dim)) {
        return;
    }
    /* Six FLOPs an element: maximum, difference, exponential, sum, reciprocal, product. */
    whole[dim] = true;
    shape_rule_along(op, 1, whole, 6);
    op->rule.kind = AP_OP_SOFTMAX;
}

void shape_rule_transpose(shape_rule_t *op, const int64_t *order, int count)
{
    bool seen[AP_MAX_RANK] = {false};
    ap_shape_t shape = {.rank = count};

    if (!shape_need_operands(op, 1, 1) || !operator_rule_rank(&op->rule, 0, count)) {
        return;
    }
    for (int d = 0; d < count; ++d) {
        if (order[d] < 0 || order[d] >= count || seen[order[d]]) {
            operator_rule_fail(
                &op->rule, "the order of dimensions names %" PRId64 " wrongly or twice", order[d]);
            return;
        }
        seen[order[d]] = true;
        shape.dims[d] = shape_extent(op, 0, (int)order[d]);
    }
    shape_rule_result(op, 0, op->rule.type[0]->dtype, &shape);
    op->rule.kind = AP_OP_RESHAPE;
    for (int d = 0; d < count; ++d) {
        operator_rule_put(&op->rule, 1, d, operator_rule_open(&op->rule, 0, (int)order[d]));
    }
}

void shape_rule_reshape(shape_rule_t *op, const ap_shape_t *to)
{
    if (!shape_need_operands(op, 1, 1)) {
        return;
    }
    shape_rule_result(op, 0, op->rule.type[0]->dtype, to);
    operator_rule_reshape(&op->rule);
}

/* A slice or a pad: dimensions that keep their extent pass, the others are whole, because cut parts
 * would need pieces of their neighbours. Of the operand only as many bytes are touched as the
 * result has. */
void shape_rule_window_of(shape_rule_t *op, const ap_shape_t *to)
{
    if (!shape_need_operands(op, 1, INT_MAX) || !operator_rule_rank(&op->rule, 0, to->rank)) {
        return;
    }
    shape_rule_result(op, 0, op->rule.type[0]->dtype, to);
    op->rule.kind = AP_OP_RESHAPE;
    op->rule.touched[0] = op->rule.operands + 1;
    for (int t = 1; t < op->rule.operands; ++t) {
        op->rule.ignored[t] = true;
    }
    for (int d = 0; d < to->rank; ++d) {
        if (shape_extent(op, 0, d) == to->dims[d]) {
            operator_rule_put(&op->rule, op->rule.operands, d, operator_rule_open(&op->rule, 0, d));
        }
    }
}

void shape_rule_concat(shape_rule_t *op, int dim)
{
    int out = op->rule.operands;
    bool whole[AP_MAX_RANK] = {false};
    ap_shape_t shape;

    if (!shape_need_operands(op, 1, INT_MAX) || !shape_need_dim(op, 0, dim)) {
        return;
    }
    shape = op->rule.type[0]->shape;
    for (int t = 1; t < out && operator_rule_rank(&op->rule, t, shape.rank); ++t) {
        /* An overflow becomes -1, which shape_rule_result() refuses in a sentence. */
        if (__builtin_add_overflow(shape.dims[dim], shape_extent(op, t, dim), &shape.dims[dim])) {
            shape.dims[dim] = -1;
        }
    }
    if (op->rule.status != XM_OK) {
        return;
    }
    shape_rule_result(op, 0, op->rule.type[0]->dtype, &shape);
    op->rule.kind = AP_OP_RESHAPE;
    whole[dim] = out > 1;
    operator_rule_share(&op->rule, out, whole);
}

/* Every part gets the dimensions of the operand but the one that is cut, which stays whole: parts
 * of a cut dimension do not begin where devices do. */
void shape_rule_split(shape_rule_t *op, int dim, const int64_t *parts, int count)
{
    bool whole[AP_MAX_RANK] = {false};
    ap_shape_t shape;
    int64_t sum = 0;

    if (!shape_need_operands(op, 1, 1) || !shape_need_dim(op, 0, dim)) {
        return;
    }
    shape = op->rule.type[0]->shape;
    for (int r = 0; r < count; ++r) {
        shape.dims[dim] = parts[r];
        shape_rule_result(op, r, op->rule.type[0]->dtype, &shape);
        if (op->rule.status != XM_OK) {
            return;
        }
        if (parts[r] < 0 || __builtin_add_overflow(sum, parts[r], &sum)) {
            sum = -1;
            break;
        }
    }
    if (sum != shape_extent(op, 0, dim)) {
        operator_rule_fail(&op->rule, "the parts do not make the %" PRId64 " of dimension %d",
                           shape_extent(op, 0, dim), dim);
        return;
    }
    op->rule.kind = AP_OP_SPLIT;
    whole[dim] = true;
    operator_rule_share(&op->rule, 0, whole);
}

/* A look-up. Indices stand in the place of the dimension that they index, and the result's
 * dimensions come from one operand or the other; the indexed dimension has a factor that the result
 * lacks. */
void shape_rule_gather(shape_rule_t *op, int dim)
{
    ap_shape_t shape = {0};
    int indices, rank;

    if (!shape_need_operands(op, 2, 2)) {
        return;
    }
    indices = shape_rank(op, 0);
    rank = shape_rank(op, 1);
    if (dim < 0 || dim >= rank || indices + rank - 1 > AP_MAX_RANK) {
        operator_rule_fail(&op->rule, "there is no dimension %d, or the result has too many", dim);
        return;
    }
    shape.rank = indices + rank - 1;
    for (int d = 0; d < shape.rank; ++d) {
        shape.dims[d] = d < dim             ? shape_extent(op, 1, d)
                        : d < dim + indices ? shape_extent(op, 0, d - dim)
                                            : shape_extent(op, 1, d - indices + 1);
    }
    shape_rule_result(op, 0, op->rule.type[1]->dtype, &shape);
    op->rule.kind = AP_OP_EMBEDDING;
    for (int d = 0; d < shape.rank; ++d) {
        int factor = operator_rule_open(&op->rule, 2, d);
        bool index = d >= dim && d < dim + indices;

        operator_rule_put(&op->rule, index ? 0 : 1,
                          index ? d - dim : (d < dim ? d : d - indices + 1), factor);
    }
    (void)operator_rule_open(&op->rule, 1, dim); /* each part looks up what it has */
    op->rule.touched[1] = 2 + 1;
}

void shape_rule_opaque(shape_rule_t *op, int results)
{
    if (op->rule.status != XM_OK) {
        return;
    }
    op->rule.kind = AP_OP_CUSTOM;
    op->rule.results = results;
    operator_rule_make_opaque(&op->rule);
}
