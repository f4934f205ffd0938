/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules of the operators that take more than a few lines: einsum equations, normalisations,
 * convolutions and pooling. As everywhere in shape_rule.c, a dimension gets a factor only where
 * cutting it is known to be right. Spatial dimensions of windows stay whole: a cut one would
 * exchange its borders, which costs depend on the window and would need another kind of factor.
 */

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/rules/rules_private.h"

enum { ELLIPSIS = 64 };

/* An equation: per term the labels of its dimensions. Letters are numbered from 'A', and dimension
 * i of an ellipsis, counted from its end, is ELLIPSIS + i, which no letter reaches. */
typedef struct equation {
    int terms; /* with the result */
    int *count;
    unsigned char (*at)[AP_MAX_RANK];
} equation_t;

static bool add_label(shape_rule_t *op, equation_t *e, int term, int label)
{
    if (e->count[term] == AP_MAX_RANK) {
        operator_rule_fail(&op->rule, "a term of the equation has more than %d dimensions",
                           AP_MAX_RANK);
        return false;
    }
    for (int d = 0; d < e->count[term]; ++d) {
        if (e->at[term][d] == label) {
            operator_rule_fail(&op->rule,
                               "a letter comes twice in one term; diagonals are not handled");
            return false;
        }
    }
    e->at[term][e->count[term]++] = (unsigned char)label;
    return true;
}

/* Reads the letters of one term. An ellipsis stands for as many dimensions as the operand has
 * beyond its letters; the longest of all operands is what one in the result stands for. Other
 * characters and mismatched ranks are refused. */
static bool read_term(shape_rule_t *op, equation_t *e, int term, const char *text, size_t length,
                      int *dotted)
{
    int letters = 0, dots = 0, rank;

    for (size_t i = 0; i < length; ++i) {
        letters += isalpha((unsigned char)text[i]) != 0;
        dots += text[i] == '.';
    }
    rank = term < op->rule.operands ? shape_rank(op, term) : letters + (dots > 0 ? *dotted : 0);
    if ((dots != 0 && dots != 3) || letters > rank || (dots == 0 && letters != rank)) {
        operator_rule_fail(&op->rule,
                           "term %d of the equation has %d letters, its operand %d "
                           "dimensions",
                           term, letters, rank);
        return false;
    }
    for (size_t i = 0; i < length; ++i) {
        if (text[i] == '.' && (i + 2 >= length || text[i + 1] != '.' || text[i + 2] != '.')) {
            operator_rule_fail(&op->rule, "the equation has dots that are no '...'");
            return false;
        }
        if (text[i] == '.') {
            int more = rank - letters;

            *dotted = more > *dotted ? more : *dotted;
            for (int k = more; k > 0; --k) { /* aligned at the end */
                if (!add_label(op, e, term, ELLIPSIS + k)) {
                    return false;
                }
            }
            i += 2;
        } else if (isalpha((unsigned char)text[i])) {
            if (!add_label(op, e, term, (unsigned char)text[i] - 'A')) {
                return false;
            }
        } else if (text[i] != ' ') {
            operator_rule_fail(&op->rule, "the equation has a '%c'",
                               isprint((unsigned char)text[i]) ? text[i] : '?');
            return false;
        }
    }
    return true;
}

static int uses(const equation_t *e, int label)
{
    int count = 0;

    for (int t = 0; t + 1 < e->terms; ++t) {
        for (int d = 0; d < e->count[t]; ++d) {
            count += e->at[t][d] == label;
        }
    }
    return count;
}

/* Without an arrow: the dots, and the letters that come once, in alphabetical order. */
static bool implied_result(shape_rule_t *op, equation_t *e, int dotted)
{
    int out = e->terms - 1;

    for (int k = dotted; k > 0; --k) {
        if (!add_label(op, e, out, ELLIPSIS + k)) {
            return false;
        }
    }
    for (int label = 0; label < ELLIPSIS; ++label) {
        if (uses(e, label) == 1 && !add_label(op, e, out, label)) {
            return false;
        }
    }
    return true;
}

/* Splits the part before the arrow at commas. The number of terms must be that of the operands, and
 * is checked before each term is read, so the arrays are never overrun. */
static bool read_equation(shape_rule_t *op, equation_t *e, const char *text)
{
    const char *arrow = strstr(text, "->");
    size_t length = arrow != NULL ? (size_t)(arrow - text) : strlen(text), start = 0;
    int dotted = 0, term = 0;

    e->terms = op->rule.operands + 1;
    for (size_t i = 0; i <= length; ++i) {
        if (i < length && text[i] != ',') {
            continue;
        }
        if (term == op->rule.operands ||
            !read_term(op, e, term, text + start, i - start, &dotted)) {
            if (term == op->rule.operands) {
                operator_rule_fail(&op->rule, "the equation '%s' is for more than %d operands",
                                   text, op->rule.operands);
            }
            return false;
        }
        ++term;
        start = i + 1;
    }
    if (term != op->rule.operands) {
        operator_rule_fail(&op->rule, "the equation '%s' is for %d operands, not %d", text, term,
                           op->rule.operands);
        return false;
    }
    return arrow == NULL ? implied_result(op, e, dotted)
                         : read_term(op, e, term, arrow + 2, strlen(arrow + 2), &dotted);
}

/* The extent of a label: of the operands that carry it, 1 where it is stretched. */
static bool extent_of_label(shape_rule_t *op, const equation_t *e, int label, int64_t *extent)
{
    *extent = 0;
    for (int t = 0; t < op->rule.operands; ++t) {
        for (int d = 0; d < e->count[t]; ++d) {
            int64_t has = shape_extent(op, t, d);

            if (e->at[t][d] != label || has == *extent) {
                continue;
            }
            if (*extent > 1 && has != 1) {
                operator_rule_fail(
                    &op->rule, "dimension %d of operand %d is %" PRId64 ", %" PRId64 " is expected",
                    d, t, has, *extent);
                return false;
            }
            *extent = has > *extent ? has : *extent;
        }
    }
    if (*extent == 0) {
        operator_rule_fail(&op->rule,
                           "the result of the equation has a letter that no operand has");
    }
    return *extent > 0;
}

/* One factor per label, opened where the label first occurs. A dimension of 1 that another operand
 * stretches gets none. Labels that the result lacks are contracted, so cutting them leaves partial
 * sums. */
static void einsum(shape_rule_t *op, equation_t *e, const char *equation)
{
    int factor[2 * ELLIPSIS + AP_MAX_RANK], out = op->rule.operands;
    double points = 1;
    ap_shape_t shape = {0};

    if (!read_equation(op, e, equation)) {
        return;
    }
    shape.rank = e->count[out];
    for (int d = 0; d < shape.rank; ++d) {
        if (!extent_of_label(op, e, e->at[out][d], &shape.dims[d])) {
            return;
        }
    }
    shape_rule_result(op, 0, op->rule.type[0]->dtype, &shape);
    for (size_t l = 0; l < sizeof(factor) / sizeof(factor[0]); ++l) {
        factor[l] = -1;
    }
    for (int t = 0; t <= out; ++t) {
        for (int d = 0; d < e->count[t]; ++d) {
            int label = e->at[t][d];
            int64_t extent;

            if (!extent_of_label(op, e, label, &extent)) {
                return;
            }
            if (factor[label] < 0) {
                factor[label] = operator_rule_factor(&op->rule, extent);
                points *= (double)extent;
            }
            if (shape_extent(op, t, d) == extent) {
                operator_rule_put(&op->rule, t, d, factor[label]);
            }
        }
    }
    op->rule.kind = AP_OP_EINSUM;
    /* With one operand there is a sum and no product. */
    op->rule.flops = (out > 1 ? 2 : 1) * points;
}

void shape_rule_einsum(shape_rule_t *op, const char *equation)
{
    const size_t terms = (size_t)op->rule.operands + 1;
    equation_t e = {.count = calloc(terms, sizeof(*e.count)), .at = calloc(terms, sizeof(*e.at))};

    if (e.count == NULL || e.at == NULL) {
        op->rule.status = XM_NO_MEMORY("an equation");
    } else if (shape_need_operands(op, 1, INT_MAX)) {
        einsum(op, &e, equation);
    }
    free(e.count);
    free(e.at);
}

/* Parameters have the last dimensions of operand 0, or fewer and broadcast. */
static void tie_last(shape_rule_t *op, int term)
{
    int shift = shape_rank(op, 0) - shape_rank(op, term);

    for (int d = 0; shift >= 0 && d < shape_rank(op, term); ++d) {
        if (shape_extent(op, term, d) != 1) {
            operator_rule_put(&op->rule, term, d, op->rule.dim[0][d + shift].factor[0]);
        }
    }
    if (shift < 0) {
        operator_rule_fail(&op->rule, "operand %d has more dimensions than operand 0", term);
    }
}

/* The normalised dimensions are whole: mean and variance need all of them. The layer norm of a
 * graph has a derivative of its own, so what scales and shifts must be terms of the same
 * operator. */
void shape_rule_layer_norm(shape_rule_t *op, int first)
{
    const operand_type_t *of = op->rule.type[0];

    if (!shape_need_operands(op, 1, 3) || !shape_need_dim(op, 0, first)) {
        return;
    }
    shape_rule_result(op, 0, of->dtype, &of->shape);
    op->rule.kind = AP_OP_LAYER_NORM;
    op->rule.flops = 8 * operand_type_elements(of);
    for (int d = 0; d < of->shape.rank; ++d) {
        int factor = operator_rule_open(&op->rule, 0, d);

        if (d >= first && !op->rule.opaque) {
            op->rule.factor[factor].whole = true;
        }
        operator_rule_put(&op->rule, op->rule.operands, d, factor);
    }
    for (int t = 1; t < op->rule.operands; ++t) {
        tie_last(op, t);
    }
}

/* Groups are a major factor of the channels that can be cut, because statistics never cross a
 * group; the channels within a group are whole. Without groups (batch norm) every channel has its
 * own statistics over samples and pixels, so samples and pixels could be cut only with an exchange;
 * the sample dimension is open all the same. */
void shape_rule_channel_norm(shape_rule_t *op, int64_t groups)
{
    const operand_type_t *of = op->rule.type[0];
    operator_rule_t *rule = &op->rule;
    int group = -1, channel, out = rule->operands;

    if (!shape_need_operands(op, 1, 3)) {
        return;
    }
    if (of->shape.rank < 2 || groups < 0 || (groups > 0 && of->shape.dims[1] % groups != 0)) {
        operator_rule_fail(rule, "channels are missing, or do not divide into %" PRId64 " groups",
                           groups);
        return;
    }
    shape_rule_result(op, 0, of->dtype, &of->shape);
    rule->kind = AP_OP_LAYER_NORM;
    rule->flops = 8 * operand_type_elements(of);
    if (groups > 0) {
        group = operator_rule_factor(rule, groups);
        channel = operator_rule_whole(rule, of->shape.dims[1] / groups);
    } else {
        channel = operator_rule_factor(rule, of->shape.dims[1]);
    }
    for (int t = 0; t <= out; ++t) {
        int dim = t == 0 || t == out ? 1 : 0;

        if (t > 0 && t < out) {
            /* Scale and shift are vectors over the channels, whatever the rank of operand 0. */
            (void)operator_rule_rank(rule, t, 1);
        }
        if (rule->status != XM_OK || shape_extent(op, t, dim) != of->shape.dims[1]) {
            operator_rule_fail(rule, "operand %d does not have a value for each channel", t);
            return;
        }
        if (group >= 0) {
            operator_rule_append(rule, t, dim, group);
            operator_rule_append(rule, t, dim, channel);
        } else {
            operator_rule_put(rule, t, dim, channel);
        }
    }
    operator_rule_put(rule, out, 0, operator_rule_open(rule, 0, 0));
    for (int d = 2; d < of->shape.rank; ++d) {
        operator_rule_put(rule, out, d, operator_rule_whole(rule, of->shape.dims[d]));
    }
    for (int d = 2; d < of->shape.rank; ++d) {
        operator_rule_put(rule, 0, d,
                          rule->dim[out][d].count > 0 ? rule->dim[out][d].factor[0] : 0);
    }
}

/* Whether the numbers of a window are such that nothing overflows. */
static bool is_sound(const shape_window_t *w, int s, int64_t pixels)
{
    const int64_t most = 1 << 20;

    return w->size[s] > 0 && w->size[s] <= most && w->stride[s] > 0 && w->stride[s] <= most &&
           w->dilation[s] > 0 && w->dilation[s] <= most && w->before[s] >= 0 &&
           w->before[s] <= most && w->after[s] >= 0 && w->after[s] <= most && w->more[s] >= 0 &&
           w->more[s] <= most && pixels <= (int64_t)1 << 40;
}

/* Pixels that a window makes of one dimension; -1 when it does not fit. */
static int64_t windows_over(const shape_window_t *w, int s, int64_t pixels)
{
    int64_t padded;

    if (!is_sound(w, s, pixels)) {
        return -1;
    }
    if (w->same) {
        return (pixels + w->stride[s] - 1) / w->stride[s];
    }
    padded = pixels + w->before[s] + w->after[s] - w->dilation[s] * (w->size[s] - 1) - 1;
    if (padded < 0) {
        return -1;
    }
    return (padded + (w->ceiling ? w->stride[s] - 1 : 0)) / w->stride[s] + 1;
}

/* The other way round: pixels that so many windows lie over, which is what a transposed convolution
 * makes of one dimension. */
static int64_t pixels_under(const shape_window_t *w, int s, int64_t windows)
{
    if (!is_sound(w, s, windows) || windows < 1) {
        return -1;
    }
    if (w->same) {
        return windows * w->stride[s];
    }
    return w->stride[s] * (windows - 1) + w->more[s] + w->dilation[s] * (w->size[s] - 1) + 1 -
           w->before[s] - w->after[s];
}

/* Spatial dimensions of the result; they stay whole, for cut ones would exchange their borders. */
static bool spatial_shape(shape_rule_t *op, const shape_window_t *window, bool back,
                          ap_shape_t *shape)
{
    const operand_type_t *of = op->rule.type[0];

    if (of->shape.rank != window->rank + 2) {
        operator_rule_fail(&op->rule, "the window has %d dimensions, operand 0 has %d",
                           window->rank, of->shape.rank);
        return false;
    }
    for (int s = 0; s < window->rank; ++s) {
        shape->dims[s + 2] = back ? pixels_under(window, s, of->shape.dims[s + 2])
                                  : windows_over(window, s, of->shape.dims[s + 2]);
        if (shape->dims[s + 2] <= 0) {
            operator_rule_fail(&op->rule, "the window does not fit into dimension %d, %" PRId64,
                               s + 2, of->shape.dims[s + 2]);
            return false;
        }
    }
    return true;
}

/* Channels of x[n,c,…], w and the result, which operand 0 gives and the weight's dimension
 * `in_dim` consumes; groups are one more batch dimension, major where channels are not by group. */
static void tie_channels(operator_rule_t *rule, int64_t groups, int64_t in, int64_t out, int in_dim)
{
    const int result = 2, out_dim = 1 - in_dim;
    int g, c, o;

    operator_rule_put(rule, result, 0, operator_rule_open(rule, 0, 0));
    if (groups == 1) {
        c = operator_rule_open(rule, 0, 1);
        operator_rule_put(rule, 1, in_dim, c);
        o = operator_rule_open(rule, 1, out_dim);
        operator_rule_put(rule, result, 1, o);
        return;
    }
    g = operator_rule_factor(rule, groups);
    c = operator_rule_factor(rule, in / groups);
    o = operator_rule_factor(rule, out / groups);
    operator_rule_append(rule, 0, 1, g);
    operator_rule_append(rule, 0, 1, c);
    operator_rule_append(rule, 1, 0, g); /* the weight's first dimension has all groups */
    operator_rule_append(rule, 1, 0, in_dim == 0 ? c : o);
    operator_rule_put(rule, 1, 1, in_dim == 0 ? o : c);
    operator_rule_append(rule, result, 1, g);
    operator_rule_append(rule, result, 1, o);
}

/* A convolution and its transpose share everything but which dimension of the weight consumes
 * channels and which way the spatial dimensions go. */
static void convolve(shape_rule_t *op, const shape_window_t *window, int64_t groups,
                     bool transposed)
{
    operator_rule_t *rule = &op->rule;
    const operand_type_t *x = rule->type[0], *w = rule->type[1];
    const int in_dim = transposed ? 0 : 1;
    int64_t in, out;
    ap_shape_t shape;

    if (!shape_need_operands(op, 2, 2) || !operator_rule_rank(rule, 0, window->rank + 2) ||
        !operator_rule_rank(rule, 1, window->rank + 2)) {
        return;
    }
    in = x->shape.dims[1];
    if (groups < 1 || in % groups != 0 || w->shape.dims[0] % groups != 0 ||
        w->shape.dims[in_dim] != (transposed ? in : in / groups) ||
        __builtin_mul_overflow(w->shape.dims[1 - in_dim], transposed ? groups : 1, &out)) {
        operator_rule_fail(rule,
                           "%" PRId64 " channels in %" PRId64
                           " groups do not go with a weight for %" PRId64 " of them",
                           in, groups, w->shape.dims[in_dim]);
        return;
    }
    shape = x->shape;
    shape.dims[1] = out;
    if (!spatial_shape(op, window, transposed, &shape)) {
        return;
    }
    shape_rule_result(op, 0, x->dtype, &shape);
    rule->kind = AP_OP_EINSUM;
    rule->flops =
        2 * operand_type_elements(transposed ? x : &op->made[0]) * (double)w->shape.dims[1];
    for (int s = 0; s < window->rank; ++s) {
        rule->flops *= (double)w->shape.dims[2 + s];
    }
    tie_channels(rule, groups, in, out, in_dim);
}

void shape_rule_convolution(shape_rule_t *op, const shape_window_t *window, int64_t groups)
{
    convolve(op, window, groups, false);
}

void shape_rule_convolution_back(shape_rule_t *op, const shape_window_t *window, int64_t groups)
{
    convolve(op, window, groups, true);
}

void shape_rule_pool(shape_rule_t *op, const shape_window_t *window)
{
    operator_rule_t *rule = &op->rule;
    ap_shape_t shape;

    if (!shape_need_operands(op, 1, 1)) {
        return;
    }
    shape = rule->type[0]->shape;
    if (!spatial_shape(op, window, false, &shape)) {
        return;
    }
    shape_rule_result(op, 0, rule->type[0]->dtype, &shape);
    rule->kind = AP_OP_CUSTOM;
    rule->flops = operand_type_elements(&op->made[0]);
    for (int s = 0; s < window->rank; ++s) {
        rule->flops *= (double)window->size[s];
    }
    for (int d = 0; d < 2; ++d) {
        operator_rule_put(rule, 1, d, operator_rule_open(rule, 0, d));
    }
}

/* Classes have a factor that the loss lacks. Cutting it is cheap, because devices exchange a
 * maximum and a sum per position and not the logits. */
void shape_rule_cross_entropy(shape_rule_t *op, int dim)
{
    ap_shape_t shape = {0};

    if (!shape_need_operands(op, 2, 2) || !shape_need_dim(op, 0, dim)) {
        return;
    }
    for (int d = 0; d < shape_rank(op, 0); ++d) {
        if (d != dim) {
            shape.dims[shape.rank++] = shape_extent(op, 0, d);
        }
    }
    if (!operator_rule_rank(&op->rule, 1, shape.rank)) {
        return;
    }
    shape_rule_result(op, 0, op->rule.type[0]->dtype, &shape);
    op->rule.kind = AP_OP_CROSS_ENTROPY;
    op->rule.flops = 4 * operand_type_elements(op->rule.type[0]);
    for (int d = 0, kept = 0; d < shape_rank(op, 0); ++d) {
        int factor = operator_rule_open(&op->rule, 0, d); /* classes: only statistics are summed */

        if (d != dim) {
            operator_rule_put(&op->rule, 1, kept, factor);
            operator_rule_put(&op->rule, 2, kept++, factor);
        }
    }
}
