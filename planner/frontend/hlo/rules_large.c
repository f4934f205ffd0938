/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules of HLO operators with dimension numbers of their own: dot, convolution, gather, scatter.
 * The meaning of the numbers is that of XLA's operation semantics; each rule follows it dimension
 * by dimension and checks extents by putting one factor into every dimension that must agree.
 */

#include <inttypes.h>

#include "planner/frontend/hlo/rules.h"

/* The result of a dot has the batch dimensions first, then what is left of the first operand, then
 * of the second. Contracted dimensions are missing there, so cutting them leaves partial sums. */
void hlo_rules_dot(operator_rule_t *rule)
{
    hlo_list_t batch[2], contracting[2];
    int out = 2, dim = 0;

    rule->kind = AP_OP_EINSUM;
    batch[0] = hlo_rules_dims(rule, "lhs_batch_dims", hlo_rank(rule, 0));
    batch[1] = hlo_rules_dims(rule, "rhs_batch_dims", hlo_rank(rule, 1));
    contracting[0] = hlo_rules_dims(rule, "lhs_contracting_dims", hlo_rank(rule, 0));
    contracting[1] = hlo_rules_dims(rule, "rhs_contracting_dims", hlo_rank(rule, 1));
    if (rule->status == XM_OK && (rule->operands != 2 || batch[0].count != batch[1].count ||
                                  contracting[0].count != contracting[1].count)) {
        operator_rule_fail(rule, "the operands have different numbers of batch or contracting "
                                 "dimensions");
        return;
    }
    rule->flops = 2 * operand_type_elements(rule->type[out]);
    for (int i = 0; i < batch[0].count; ++i) {
        int factor = operator_rule_open(rule, 0, (int)batch[0].values[i]);

        operator_rule_put(rule, 1, (int)batch[1].values[i], factor);
        operator_rule_put(rule, out, dim++, factor);
    }
    for (int i = 0; i < contracting[0].count; ++i) {
        operator_rule_put(rule, 1, (int)contracting[1].values[i],
                          operator_rule_open(rule, 0, (int)contracting[0].values[i]));
        rule->flops *= (double)hlo_extent(rule, 0, (int)contracting[0].values[i]);
    }
    for (int side = 0; side < 2; ++side) {
        for (int d = 0; d < hlo_rank(rule, side); ++d) {
            if (!hlo_list_has(&batch[side], d) && !hlo_list_has(&contracting[side], d)) {
                operator_rule_put(rule, out, dim++, operator_rule_open(rule, side, d));
            }
        }
    }
    (void)operator_rule_rank(rule, out, dim);
}

/* Spatial dimensions are the same only where the window looks at one place; else a cut one would
 * exchange the borders of its neighbours, and it stays whole. */
static void spatial_dims(operator_rule_t *rule, const hlo_conv_dims_t *dims,
                         const hlo_window_t *window)
{
    for (int s = 0; s < dims->spatial; ++s) {
        if (window->trivial[s] && hlo_extent(rule, 0, dims->lhs_spatial[s]) ==
                                      hlo_extent(rule, 2, dims->out_spatial[s])) {
            operator_rule_put(rule, 2, dims->out_spatial[s],
                              operator_rule_open(rule, 0, dims->lhs_spatial[s]));
        }
        /* Zeros between the data, as a strided convolution's gradient has them, are not multiplied
         * by any kernel worth its name. */
        rule->flops *=
            (double)hlo_extent(rule, 1, dims->rhs_spatial[s]) / (double)window->spread[s];
    }
}

/* Whether a dimension is `groups` times something; a failure is noted. */
static bool divides(operator_rule_t *rule, int term, int dim, int64_t groups)
{
    if (groups <= 0 || hlo_extent(rule, term, dim) % groups != 0) {
        operator_rule_fail(rule,
                           "dimension %d of operand or result %d, %" PRId64
                           ", does not divide into %" PRId64 " groups",
                           dim, term, hlo_extent(rule, term, dim), groups);
        return false;
    }
    return true;
}

static void need_extent(operator_rule_t *rule, int term, int dim, int64_t extent)
{
    if (hlo_extent(rule, term, dim) != extent) {
        operator_rule_fail(
            rule, "dimension %d of operand or result %d is %" PRId64 ", %" PRId64 " is expected",
            dim, term, hlo_extent(rule, term, dim), extent);
    }
}

/* Groups are one more batch dimension, major in the features that they divide, or with `batch` in
 * the batch (as in the gradient of a grouped convolution's weight). */
static void grouped(operator_rule_t *rule, const hlo_conv_dims_t *dims, int64_t groups, bool batch)
{
    int split = batch ? dims->lhs[0] : dims->lhs[1], g, in, out;

    if (!divides(rule, 0, split, groups) || !divides(rule, 1, dims->rhs[1], groups)) {
        return;
    }
    g = operator_rule_factor(rule, groups);
    in = operator_rule_factor(rule, hlo_extent(rule, 0, split) / groups);
    out = operator_rule_factor(rule, hlo_extent(rule, 1, dims->rhs[1]) / groups);
    operator_rule_append(rule, 0, split, g);
    operator_rule_append(rule, 0, split, in);
    operator_rule_append(rule, 1, dims->rhs[1], g);
    operator_rule_append(rule, 1, dims->rhs[1], out);
    need_extent(rule, 2, dims->out[1], hlo_extent(rule, 1, dims->rhs[1]));
    operator_rule_append(rule, 2, dims->out[1], g);
    operator_rule_append(rule, 2, dims->out[1], out);
    if (batch) {
        operator_rule_put(rule, 2, dims->out[0], in);
        operator_rule_put(rule, 1, dims->rhs[0], operator_rule_open(rule, 0, dims->lhs[1]));
    } else {
        operator_rule_put(rule, 1, dims->rhs[0], in);
        operator_rule_put(rule, 2, dims->out[0], operator_rule_open(rule, 0, dims->lhs[0]));
    }
}

void hlo_rules_convolution(operator_rule_t *rule)
{
    hlo_conv_dims_t dims = {0};
    hlo_window_t window;
    int64_t feature_groups, batch_groups;

    rule->kind = AP_OP_EINSUM;
    rule->status =
        hlo_attribute_conv_dims(hlo_operator(rule)->module, hlo_operator(rule)->of, &dims);
    window = hlo_rules_window(rule);
    feature_groups = hlo_rules_number(rule, "feature_group_count", 1);
    batch_groups = hlo_rules_number(rule, "batch_group_count", 1);
    for (int t = 0; t < 3; ++t) {
        (void)operator_rule_rank(rule, t, dims.spatial + 2);
    }
    if (rule->status == XM_OK && window.rank != dims.spatial) {
        operator_rule_fail(rule, "the window has %d dimensions, dim_labels name %d spatial ones",
                           window.rank, dims.spatial);
    }
    if (rule->status != XM_OK) {
        return;
    }
    rule->flops =
        2 * operand_type_elements(rule->type[2]) * (double)hlo_extent(rule, 1, dims.rhs[0]);
    /* The window is written down twice, as the weight's extents and as the attribute; they must
     * agree. */
    for (int s = 0; s < dims.spatial; ++s) {
        need_extent(rule, 1, dims.rhs_spatial[s], window.size[s]);
    }
    if (feature_groups != 1 || batch_groups != 1) {
        grouped(rule, &dims, feature_groups != 1 ? feature_groups : batch_groups,
                feature_groups == 1);
    } else {
        operator_rule_put(rule, 2, dims.out[0], operator_rule_open(rule, 0, dims.lhs[0]));
        operator_rule_put(rule, 1, dims.rhs[0], operator_rule_open(rule, 0, dims.lhs[1]));
        operator_rule_put(rule, 2, dims.out[1], operator_rule_open(rule, 1, dims.rhs[1]));
    }
    spatial_dims(rule, &dims, &window);
}

/* The dimensions of a gather's indices that are not the index vector, in order. The vector may be
 * implied behind the last dimension. */
static int index_dims(operator_rule_t *rule, int indices, int *dims)
{
    int64_t vector = hlo_rules_number(rule, "index_vector_dim", hlo_rank(rule, indices));
    int count = 0;

    for (int d = 0; d < hlo_rank(rule, indices); ++d) {
        if (d != vector) {
            dims[count++] = d;
        }
    }
    return count;
}

/* The i-th dimension of a term that is not in a list, or -1. */
static int other_dim(const operator_rule_t *rule, int term, const hlo_list_t *list, int i)
{
    for (int d = 0; d < hlo_rank(rule, term); ++d) {
        if (!hlo_list_has(list, d) && i-- == 0) {
            return d;
        }
    }
    return -1;
}

/* Three kinds of operand dimensions: batching ones go with those of the indices; collapsed ones are
 * looked up, and each part answers for the indices it has while the others contribute zero; window
 * dimensions pass through where the whole extent is taken. */
void hlo_rules_gather(operator_rule_t *rule)
{
    int rank = hlo_rank(rule, 0), out = 2, index[AP_MAX_RANK], window = 0;
    hlo_list_t offset = hlo_rules_dims(rule, "offset_dims", hlo_rank(rule, out));
    hlo_list_t collapsed = hlo_rules_dims(rule, "collapsed_slice_dims", rank);
    hlo_list_t mapped = hlo_rules_dims(rule, "start_index_map", rank);
    hlo_list_t batching = hlo_rules_dims(rule, "operand_batching_dims", rank);
    hlo_list_t index_batching =
        hlo_rules_dims(rule, "start_indices_batching_dims", hlo_rank(rule, 1));
    int indices = index_dims(rule, 1, index);
    hlo_list_t sizes = hlo_rules_dims(rule, "slice_sizes", -1);

    if (rule->status == XM_OK &&
        (rule->operands != 2 || sizes.count != rank || batching.count != index_batching.count ||
         offset.count != rank - collapsed.count - batching.count ||
         hlo_rank(rule, out) != indices + offset.count)) {
        operator_rule_fail(rule, "the dimension numbers do not go with the shapes");
    }
    rule->kind = AP_OP_EMBEDDING;
    rule->touched[0] = out + 1;
    for (int i = 0; i < indices && rule->status == XM_OK; ++i) {
        operator_rule_put(rule, out, other_dim(rule, out, &offset, i),
                          operator_rule_open(rule, 1, index[i]));
    }
    for (int d = 0; d < rank && rule->status == XM_OK; ++d) {
        int64_t extent = hlo_extent(rule, 0, d);

        for (int i = 0; i < batching.count; ++i) {
            if (batching.values[i] == d && rule->dim[1][index_batching.values[i]].count > 0) {
                operator_rule_put(rule, 0, d, rule->dim[1][index_batching.values[i]].factor[0]);
            }
        }
        if (sizes.values[d] > extent) {
            operator_rule_fail(rule, "slice size %d is %" PRId64 ", the dimension only %" PRId64, d,
                               sizes.values[d], extent);
        }
        if (hlo_list_has(&collapsed, d)) {
            /* Each part looks up the indices that are its own; the parts are summed. */
            if (hlo_list_has(&mapped, d)) {
                (void)operator_rule_open(rule, 0, d);
            }
        } else if (!hlo_list_has(&batching, d)) {
            int at = (int)offset.values[window++];

            if (sizes.values[d] == extent) {
                operator_rule_put(rule, out, at, operator_rule_open(rule, 0, d));
            }
        }
    }
}

/* The update of a scatter has index dimensions and window dimensions, as a gather's result does.
 * Sums can be scattered in parts; a scatter that replaces must see all updates of a place in order,
 * so its index dimensions stay whole. */
void hlo_rules_scatter(operator_rule_t *rule)
{
    int rank = hlo_rank(rule, 0), out = 3, index[AP_MAX_RANK], window = 0;
    hlo_list_t windows = hlo_rules_dims(rule, "update_window_dims", hlo_rank(rule, 2));
    hlo_list_t inserted = hlo_rules_dims(rule, "inserted_window_dims", rank);
    hlo_list_t batching = hlo_rules_dims(rule, "input_batching_dims", rank);
    hlo_list_t index_batching =
        hlo_rules_dims(rule, "scatter_indices_batching_dims", hlo_rank(rule, 1));
    hlo_slice_t combiner = hlo_rules_combiner(rule);
    bool sums = hlo_slice_is(combiner, "add");
    int indices = index_dims(rule, 1, index);

    if (rule->operands != 3) { /* several arrays at once */
        rule->opaque = true;
        return;
    }
    if (rule->status == XM_OK &&
        (windows.count != rank - inserted.count - batching.count ||
         batching.count != index_batching.count || hlo_rank(rule, 2) != indices + windows.count)) {
        operator_rule_fail(rule, "the dimension numbers do not go with the shapes");
    }
    rule->flops = operand_type_elements(rule->type[2]);
    rule->in_place = true;
    /* What is combined is read first, what is replaced is not. */
    rule->touched[0] = hlo_slice_is(combiner, "parameter") ? AP_TOUCHES_NONE : 2 + 1;
    rule->touched[out] = 2 + 1;
    for (int i = 0; i < indices && rule->status == XM_OK; ++i) {
        /* Updates can be summed in parts; anything else must see them in order. */
        int at = other_dim(rule, 2, &windows, i);
        bool batch = hlo_list_has(&index_batching, index[i]);
        int factor = sums || batch ? operator_rule_open(rule, 1, index[i])
                                   : operator_rule_whole(rule, hlo_extent(rule, 1, index[i]));

        operator_rule_put(rule, 1, index[i], factor);
        operator_rule_put(rule, 2, at, factor);
    }
    for (int d = 0; d < rank && operator_rule_rank(rule, out, rank); ++d) {
        int factor = -1;

        for (int i = 0; i < batching.count; ++i) {
            if (batching.values[i] == d && rule->dim[1][index_batching.values[i]].count > 0) {
                factor = rule->dim[1][index_batching.values[i]].factor[0];
            }
        }
        if (hlo_list_has(&batching, d) && factor >= 0) {
            operator_rule_put(rule, 0, d, factor);
            operator_rule_put(rule, out, d, factor);
        } else if (hlo_list_has(&inserted, d)) {
            operator_rule_put(rule, out, d, operator_rule_open(rule, 0, d));
        } else if (!hlo_list_has(&batching, d)) {
            int at = (int)windows.values[window++];

            if (hlo_extent(rule, 2, at) == hlo_extent(rule, 0, d)) {
                factor = operator_rule_open(rule, 0, d);
                operator_rule_put(rule, 2, at, factor);
                operator_rule_put(rule, out, d, factor);
            }
        }
    }
}
