/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ONNX operators that move elements without computing: reshapes, slices, gathers. Each turns ONNX's
 * way of saying what it does (axes from the end, implied sizes, lists in inputs) into one of the
 * few functions of shape_rule.h. The shapes must follow from the file; a reshape to a size that
 * depends on data is refused.
 */

#include <inttypes.h>
#include <string.h>

#include "planner/frontend/onnx/build.h"

static void reshape_to(onnx_node_t *n, const ap_shape_t *to)
{
    if (n->status == XM_OK && onnx_begin1(n, 0)) {
        shape_rule_reshape(&n->op, to);
    }
}

/* In the target shape, 0 keeps a dimension and -1 is what is left, once at most. */
static void rule_reshape(onnx_node_t *n)
{
    const onnx_value_t *x = onnx_need(n, 0);
    ap_shape_t to = {0};
    int64_t elements = 1;
    int open = -1;

    if (x == NULL || !onnx_list(n, "shape", 1, to.dims, AP_MAX_RANK, &to.rank)) {
        return;
    }
    if (to.rank < 0) {
        onnx_fail(n, "the shape is missing");
        return;
    }
    for (int d = 0; d < to.rank; ++d) {
        if (to.dims[d] == 0 && onnx_int(n, "allowzero", 0) == 0) {
            to.dims[d] = d < x->type.shape.rank ? x->type.shape.dims[d] : -2;
        }
        if (to.dims[d] == -1 && open < 0) {
            open = d;
        } else if (to.dims[d] < 0 || __builtin_mul_overflow(elements, to.dims[d], &elements)) {
            onnx_fail(n, "dimension %d of the shape is %" PRId64, d, to.dims[d]);
            return;
        }
    }
    /* The product of the others must divide; a product of 0 leaves the open dimension
     * undetermined. */
    if (open >= 0) {
        if (elements == 0 || onnx_elements(&x->type) % elements != 0) {
            onnx_fail(n, "%" PRId64 " elements do not divide into rows of %" PRId64,
                      onnx_elements(&x->type), elements);
            return;
        }
        to.dims[open] = onnx_elements(&x->type) / elements;
    }
    reshape_to(n, &to);
}

static void rule_flatten(onnx_node_t *n)
{
    const onnx_value_t *x = onnx_need(n, 0);
    int64_t axis = onnx_int(n, "axis", 1);
    ap_shape_t to = {.rank = 2, .dims = {1, 1}};

    if (x == NULL) {
        return;
    }
    axis = axis < 0 ? axis + x->type.shape.rank : axis;
    if (axis < 0 || axis > x->type.shape.rank) {
        onnx_fail(n, "there is no axis %" PRId64, axis);
        return;
    }
    for (int d = 0; d < x->type.shape.rank; ++d) {
        to.dims[d < axis ? 0 : 1] *= x->type.shape.dims[d];
    }
    reshape_to(n, &to);
}

/* Without axes, all dimensions of 1 go. */
static void rule_squeeze(onnx_node_t *n)
{
    const onnx_value_t *x = onnx_need(n, 0);
    int64_t axes[AP_MAX_RANK];
    bool gone[AP_MAX_RANK] = {false};
    ap_shape_t to = {0};
    int count, dim;

    if (x == NULL || !onnx_list(n, "axes", 1, axes, AP_MAX_RANK, &count)) {
        return;
    }
    for (int i = 0; i < count; ++i) {
        if (!onnx_normal_axis(n, axes[i], x->type.shape.rank, &dim)) {
            return;
        }
        gone[dim] = true;
    }
    for (int d = 0; d < x->type.shape.rank; ++d) {
        if (gone[d] && x->type.shape.dims[d] != 1) {
            onnx_fail(n, "dimension %d is %" PRId64 ", not 1", d, x->type.shape.dims[d]);
            return;
        }
        if (!gone[d] && (count >= 0 || x->type.shape.dims[d] != 1)) {
            to.dims[to.rank++] = x->type.shape.dims[d];
        }
    }
    reshape_to(n, &to);
}

static void rule_unsqueeze(onnx_node_t *n)
{
    const onnx_value_t *x = onnx_need(n, 0);
    int64_t axes[AP_MAX_RANK];
    bool made[AP_MAX_RANK] = {false};
    ap_shape_t to = {0};
    int count, dim, from = 0;

    if (x == NULL || !onnx_list(n, "axes", 1, axes, AP_MAX_RANK, &count)) {
        return;
    }
    to.rank = x->type.shape.rank + (count > 0 ? count : 0);
    if (count < 0 || to.rank > AP_MAX_RANK) {
        onnx_fail(n, "the axes are missing or too many");
        return;
    }
    for (int i = 0; i < count; ++i) {
        if (!onnx_normal_axis(n, axes[i], to.rank, &dim)) {
            return;
        }
        if (made[dim]) {
            onnx_fail(n, "the axis %d comes twice", dim);
            return;
        }
        made[dim] = true;
    }
    for (int d = 0; d < to.rank; ++d) {
        to.dims[d] = made[d] ? 1 : x->type.shape.dims[from++];
    }
    reshape_to(n, &to);
}

/* Without an order, dimensions are reversed. */
static void rule_transpose(onnx_node_t *n)
{
    int64_t order[AP_MAX_RANK];
    int count = onnx_ints(n, "perm", order, AP_MAX_RANK);

    if (onnx_need(n, 0) == NULL) {
        return;
    }
    if (count < 0) {
        count = n->in[0]->type.shape.rank;
        for (int d = 0; d < count; ++d) {
            order[d] = count - 1 - d;
        }
    }
    if (n->status == XM_OK && onnx_begin1(n, 0)) {
        shape_rule_transpose(&n->op, order, count);
    }
}

static void rule_expand(onnx_node_t *n)
{
    ap_shape_t to = {0};

    if (!onnx_numbers(n, 1, to.dims, AP_MAX_RANK, &to.rank)) {
        return;
    }
    for (int d = 0; d < to.rank; ++d) {
        if (to.dims[d] < 0) {
            onnx_fail(n, "dimension %d of the shape is %" PRId64, d, to.dims[d]);
            return;
        }
    }
    if (onnx_begin1(n, 0)) {
        shape_rule_expand(&n->op, &to);
    }
}

/* Every dimension is repeated so many times. A repeated dimension stays whole, one that is kept
 * passes. */
static void rule_tile(onnx_node_t *n)
{
    const onnx_value_t *x = onnx_need(n, 0);
    int64_t times[AP_MAX_RANK];
    ap_shape_t to;
    int count;

    if (x == NULL || !onnx_numbers(n, 1, times, AP_MAX_RANK, &count)) {
        return;
    }
    to = x->type.shape;
    for (int d = 0; d < to.rank; ++d) {
        if (count != to.rank || times[d] < 0 ||
            __builtin_mul_overflow(to.dims[d], times[d], &to.dims[d])) {
            onnx_fail(n, "the repeats are not one number for each of %d dimensions", to.rank);
            return;
        }
    }
    if (onnx_begin1(n, 0)) {
        shape_rule_window_of(&n->op, &to);
    }
}

static void rule_concat(onnx_node_t *n)
{
    int axis = onnx_axis(n, 0, "axis", 0);

    if (n->status == XM_OK && onnx_begin_all(n)) {
        shape_rule_concat(&n->op, axis);
    }
}

static void rule_split(onnx_node_t *n)
{
    int64_t *parts = xm_arena_get(&n->b->arena, (size_t)n->proto->n_output + 1, sizeof(*parts));
    int axis = onnx_axis(n, 0, "axis", 0), count, outputs = (int)n->proto->n_output;

    if (parts == NULL) {
        onnx_fail(n, "no memory for %d parts", outputs);
    }
    if (n->status != XM_OK || !onnx_list(n, "split", 1, parts, outputs, &count)) {
        return;
    }
    if (count < 0) { /* evenly, the last may be smaller */
        int64_t extent = n->in[0]->type.shape.dims[axis], size;

        if (outputs < 1) {
            onnx_fail(n, "a split into no parts");
            return;
        }
        count = outputs;
        size = (extent + outputs - 1) / outputs;
        for (int r = 0; r < count; ++r) {
            parts[r] = r + 1 < count ? size : extent - size * (count - 1);
        }
    }
    if (onnx_begin1(n, 0)) {
        shape_rule_split(&n->op, axis, parts, count);
    }
}

/* The extent that is left of a dimension. Ends beyond the dimension are clamped as numpy does, and
 * a negative step walks from the end; every branch leaves start and end within one of the extent,
 * so nothing overflows. */
static int64_t sliced(int64_t extent, int64_t start, int64_t end, int64_t step)
{
    start = start < 0 ? start + extent : start;
    end = end < 0 ? end + extent : end;
    if (step > 0) {
        start = start < 0 ? 0 : (start > extent ? extent : start);
        end = end < 0 ? 0 : (end > extent ? extent : end);
        return end <= start ? 0 : (end - start - 1) / step + 1;
    }
    start = start < 0 ? -1 : (start >= extent ? extent - 1 : start);
    end = end < 0 ? -1 : (end >= extent ? extent - 1 : end);
    return start <= end ? 0 : (start - end - 1) / -step + 1;
}

/* Starts, ends, axes and steps are attributes in old files and inputs in new ones. */
static void rule_slice(onnx_node_t *n)
{
    int64_t starts[AP_MAX_RANK], ends[AP_MAX_RANK], axes[AP_MAX_RANK], steps[AP_MAX_RANK];
    const onnx_value_t *x = onnx_need(n, 0);
    int count, ends_count, axes_count, steps_count, dim;
    ap_shape_t to;

    if (x == NULL || !onnx_list(n, "starts", 1, starts, AP_MAX_RANK, &count) ||
        !onnx_list(n, "ends", 2, ends, AP_MAX_RANK, &ends_count) ||
        !onnx_list(n, "axes", 3, axes, AP_MAX_RANK, &axes_count) ||
        !onnx_list(n, "steps", 4, steps, AP_MAX_RANK, &steps_count)) {
        return;
    }
    if (count < 0 || ends_count != count || (axes_count >= 0 && axes_count != count) ||
        (steps_count >= 0 && steps_count != count)) {
        onnx_fail(n, "starts, ends, axes and steps are not as many");
        return;
    }
    to = x->type.shape;
    for (int i = 0; i < count; ++i) {
        int64_t step = steps_count < 0 ? 1 : steps[i];

        if (!onnx_normal_axis(n, axes_count < 0 ? i : axes[i], to.rank, &dim)) {
            return;
        }
        if (step == 0 || step < -((int64_t)1 << 62)) {
            onnx_fail(n, "a step is 0");
            return;
        }
        to.dims[dim] = sliced(x->type.shape.dims[dim], starts[i], ends[i], step);
    }
    if (onnx_begin1(n, 0)) {
        shape_rule_window_of(&n->op, &to);
    }
}

/* Paddings may be negative, which crops. They come as all begins, then all ends. */
static void rule_pad(onnx_node_t *n)
{
    int64_t pads[2 * AP_MAX_RANK], axes[AP_MAX_RANK];
    const onnx_value_t *x = onnx_need(n, 0);
    int count, named = -1, dim;
    ap_shape_t to;

    if (x == NULL || !onnx_list(n, "pads", 1, pads, 2 * AP_MAX_RANK, &count) ||
        (onnx_input(n, 3) != NULL && !onnx_numbers(n, 3, axes, AP_MAX_RANK, &named))) {
        return;
    }
    to = x->type.shape;
    named = named < 0 ? to.rank : named;
    if (count != 2 * named) {
        onnx_fail(n, "%d paddings are not two for each of %d dimensions", count, named);
        return;
    }
    for (int i = 0; i < named; ++i) {
        if (!onnx_normal_axis(n, onnx_input(n, 3) != NULL ? axes[i] : i, to.rank, &dim)) {
            return;
        }
        if (__builtin_add_overflow(to.dims[dim], pads[i], &to.dims[dim]) ||
            __builtin_add_overflow(to.dims[dim], pads[i + named], &to.dims[dim]) ||
            to.dims[dim] < 0) {
            onnx_fail(n, "dimension %d is padded to less than nothing, or too much", dim);
            return;
        }
    }
    if (onnx_begin1(n, 0)) {
        shape_rule_window_of(&n->op, &to);
    }
}

/* The rule takes the indices first, ONNX the table. */
static void rule_gather(onnx_node_t *n)
{
    int axis = onnx_axis(n, 0, "axis", 0);

    if (n->status == XM_OK && onnx_begin(n, (const int[]){1, 0}, 2)) {
        shape_rule_gather(&n->op, axis);
    }
}

/* A dimension of `depth` more, in which the index is marked. Every device marks its own part, so
 * the new dimension may be cut. */
static void rule_one_hot(onnx_node_t *n)
{
    const onnx_value_t *of = onnx_need(n, 0);
    int64_t depth[1], axis = onnx_int(n, "axis", -1);
    ap_shape_t to = {0};
    int count, at, from = 0;

    if (of == NULL || !onnx_numbers(n, 1, depth, 1, &count) || !onnx_begin1(n, 0)) {
        return;
    }
    to.rank = of->type.shape.rank + 1;
    if (to.rank > AP_MAX_RANK || count != 1 || depth[0] < 1) {
        onnx_fail(n, "the depth is not positive, or there are too many dimensions");
        return;
    }
    if (!onnx_normal_axis(n, axis, to.rank, &at)) {
        return;
    }
    for (int d = 0; d < to.rank; ++d) {
        to.dims[d] = d == at ? depth[0] : of->type.shape.dims[from++];
    }
    shape_rule_result(&n->op, 0, onnx_input(n, 2) != NULL ? n->in[2]->type.dtype : AP_DTYPE_F32,
                      &to);
    for (int d = 0; d < to.rank; ++d) {
        int factor = operator_rule_open(&n->op.rule, 1, d);

        if (d != at) {
            operator_rule_put(&n->op.rule, 0, d - (d > at), factor);
        }
    }
}

/* Elements picked or written one by one: the result is like an input, and all of it is needed
 * whole, because any index may point anywhere. */
static void rule_scattered(onnx_node_t *n)
{
    const onnx_value_t *like =
        onnx_need(n, strcmp(n->proto->op_type, "GatherElements") == 0 ? 1 : 0);

    if (like != NULL && onnx_begin_all(n)) {
        shape_rule_result(&n->op, 0, n->in[0]->type.dtype, &like->type.shape);
        shape_rule_opaque(&n->op, 1);
    }
}

static const onnx_rule_t rules[] = {{"Reshape", rule_reshape},
                                    {"Flatten", rule_flatten},
                                    {"Squeeze", rule_squeeze},
                                    {"Unsqueeze", rule_unsqueeze},
                                    {"Transpose", rule_transpose},
                                    {"Expand", rule_expand},
                                    {"Tile", rule_tile},
                                    {"Concat", rule_concat},
                                    {"Split", rule_split},
                                    {"Slice", rule_slice},
                                    {"Pad", rule_pad},
                                    {"Gather", rule_gather},
                                    {"OneHot", rule_one_hot},
                                    {"GatherElements", rule_scattered},
                                    {"ScatterElements", rule_scattered},
                                    {"ScatterND", rule_scattered}};

bool onnx_rule_movement(onnx_node_t *n)
{
    return onnx_rule_of(n, rules, sizeof(rules) / sizeof(rules[0]));
}
