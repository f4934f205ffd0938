/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ONNX operators on images and layers of networks: windows, normalisations, losses. The attributes
 * of windows come in several forms that may contradict each other; the number of entries is checked
 * here, the geometry in shape_rule_large.c.
 */

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "planner/frontend/onnx/build.h"

enum { WORD = 24 };

/* Strides, dilations and paddings of a window over the spatial dimensions of input 0. */
static bool read_window(onnx_node_t *n, shape_window_t *window)
{
    int64_t pads[2 * AP_MAX_RANK];
    char automatic[WORD] = "NOTSET";
    int strides, dilations, padded;

    window->rank = n->in[0]->type.shape.rank - 2;
    if (window->rank < 1) {
        onnx_fail(n, "input 0 has no spatial dimensions");
        return false;
    }
    for (int s = 0; s < window->rank; ++s) {
        window->stride[s] = window->dilation[s] = 1;
    }
    strides = onnx_ints(n, "strides", window->stride, AP_MAX_RANK);
    dilations = onnx_ints(n, "dilations", window->dilation, AP_MAX_RANK);
    padded = onnx_ints(n, "pads", pads, 2 * AP_MAX_RANK);
    if ((strides >= 0 && strides != window->rank) ||
        (dilations >= 0 && dilations != window->rank) ||
        (padded >= 0 && padded != 2 * window->rank)) {
        onnx_fail(n, "strides, dilations or pads are not as many as %d spatial dimensions need",
                  window->rank);
        return false;
    }
    for (int s = 0; s < window->rank && padded >= 0; ++s) {
        window->before[s] = pads[s];
        window->after[s] = pads[s + window->rank];
    }
    (void)onnx_string(n, "auto_pad", automatic, sizeof(automatic));
    window->same = strncmp(automatic, "SAME", 4) == 0;
    window->ceiling = onnx_int(n, "ceil_mode", 0) != 0;
    return n->status == XM_OK;
}

/* The window's size is that of the weight: the attribute kernel_shape may only repeat it. */
static void rule_convolution(onnx_node_t *n)
{
    shape_window_t window = {0};

    if (onnx_need(n, 0) == NULL || onnx_need(n, 1) == NULL || !read_window(n, &window)) {
        return;
    }
    for (int s = 0; s < window.rank && 2 + s < n->in[1]->type.shape.rank; ++s) {
        window.size[s] = n->in[1]->type.shape.dims[2 + s];
    }
    if (!onnx_begin(n, (const int[]){0, 1}, 2)) {
        return;
    }
    n->bias = onnx_input(n, 2);
    n->bias_dim = 1;
    if (strcmp(n->proto->op_type, "Conv") == 0) {
        shape_rule_convolution(&n->op, &window, onnx_int(n, "group", 1));
        return;
    }
    if (onnx_attribute(n, "output_shape") != NULL) {
        onnx_fail(n,
                  "the attribute 'output_shape' is not handled; 'output_padding' and 'pads' are");
    } else if (onnx_ints(n, "output_padding", window.more, AP_MAX_RANK) > window.rank) {
        onnx_fail(n, "the attribute 'output_padding' has more than %d numbers", window.rank);
    } else if (n->status == XM_OK) {
        shape_rule_convolution_back(&n->op, &window, onnx_int(n, "group", 1));
    }
}

static void rule_pool(onnx_node_t *n)
{
    shape_window_t window = {0};

    if (onnx_need(n, 0) == NULL || !read_window(n, &window)) {
        return;
    }
    if (onnx_ints(n, "kernel_shape", window.size, AP_MAX_RANK) != window.rank) {
        onnx_fail(n, "the attribute 'kernel_shape' must have %d numbers", window.rank);
    } else if (onnx_begin1(n, 0)) {
        shape_rule_pool(&n->op, &window);
    }
}

/* A pooling over all pixels is a reduction, which may be cut along them. */
static void rule_global_pool(onnx_node_t *n)
{
    bool reduced[AP_MAX_RANK] = {false};

    if (!onnx_begin1(n, 0)) {
        return;
    }
    for (int d = 2; d < n->in[0]->type.shape.rank; ++d) {
        reduced[d] = true;
    }
    shape_rule_reduce(&n->op, reduced, true, true);
}

/* Begins with inputs 0, 1 and 2: what is normalised, scale and shift, of which those that are there
 * count. */
static bool begin_norm(onnx_node_t *n)
{
    int inputs[3] = {0}, count = 1;

    for (int i = 1; i <= 2; ++i) {
        if (onnx_input(n, i) != NULL) {
            inputs[count++] = i;
        }
    }
    return onnx_begin(n, inputs, count);
}

static void rule_layer_norm(onnx_node_t *n)
{
    int axis = onnx_axis(n, 0, "axis", -1);

    if (n->status == XM_OK && begin_norm(n)) {
        shape_rule_layer_norm(&n->op, axis);
    }
}

/* Running statistics are no parameters: training does not differentiate them. Statistics of
 * training are taken to be each device's own, as data parallel training has them without
 * synchronised normalisation. */
static void rule_channel_norm(onnx_node_t *n)
{
    int64_t groups = 0;

    if (strcmp(n->proto->op_type, "GroupNormalization") == 0) {
        groups = onnx_int(n, "num_groups", 1);
        if (groups < 1) {
            onnx_fail(n, "%" PRId64 " groups are none", groups);
            return;
        }
    }
    if (strcmp(n->proto->op_type, "InstanceNormalization") == 0 && onnx_need(n, 0) != NULL &&
        n->in[0]->type.shape.rank > 1) {
        groups = n->in[0]->type.shape.dims[1];
    }
    /* Scale and shift by group, as some write them, are small: they are left out. */
    if (groups > 0 && onnx_input(n, 1) != NULL && onnx_need(n, 0) != NULL &&
        n->in[0]->type.shape.rank > 1 &&
        onnx_elements(&n->in[1]->type) != n->in[0]->type.shape.dims[1]) {
        if (onnx_begin1(n, 0)) {
            shape_rule_channel_norm(&n->op, groups);
        }
    } else if (begin_norm(n)) {
        shape_rule_channel_norm(&n->op, groups);
    }
}

/* Losses of classes in dimension 1, reduced over positions unless told otherwise. A mean costs what
 * a sum does. */
static void rule_loss(onnx_node_t *n)
{
    char reduction[WORD] = "mean";
    ap_shape_t scalar = {0};

    (void)onnx_string(n, "reduction", reduction, sizeof(reduction));
    if (!onnx_begin(n, (const int[]){0, 1}, 2)) {
        return;
    }
    shape_rule_cross_entropy(&n->op, 1);
    if (strcmp(reduction, "none") == 0 || n->op.rule.status != XM_OK) {
        return;
    }
    /* The sum over positions is one more reduction of the same operator. */
    memset(n->op.rule.dim[2], 0, sizeof(n->op.rule.dim[2]));
    shape_rule_result(&n->op, 0, n->in[0]->type.dtype, &scalar);
}

/* Pixels by size or by factor. Resized dimensions stay whole; those of factor 1 pass. */
static void rule_resize(onnx_node_t *n)
{
    const onnx_value_t *x = onnx_need(n, 0);
    const int sizes_at = 3, scales_at = strcmp(n->proto->op_type, "Upsample") == 0 ? 1 : 2;
    const onnx_value_t *scales = onnx_input(n, scales_at);
    ap_shape_t to;
    int count = 0;

    if (x == NULL) {
        return;
    }
    to = x->type.shape;
    if (onnx_input(n, sizes_at) != NULL) {
        if (!onnx_numbers(n, sizes_at, to.dims, AP_MAX_RANK, &count)) {
            return;
        }
    } else if (scales != NULL && scales->numbers != NULL) {
        count = (int)onnx_elements(&scales->type);
        for (int d = 0; d < to.rank && d < count; ++d) {
            double size = floor((double)to.dims[d] * scales->numbers[d] + 1e-9);

            to.dims[d] = size >= 0 && size < 1e15 ? (int64_t)size : -1;
        }
    }
    if (count != to.rank) {
        onnx_fail(n, "neither sizes nor scales tell all %d dimensions", to.rank);
    } else if (onnx_begin1(n, 0)) {
        shape_rule_window_of(&n->op, &to);
    }
}

static const onnx_rule_t rules[] = {{"Conv", rule_convolution},
                                    {"ConvTranspose", rule_convolution},
                                    {"MaxPool", rule_pool},
                                    {"AveragePool", rule_pool},
                                    {"LpPool", rule_pool},
                                    {"GlobalAveragePool", rule_global_pool},
                                    {"GlobalMaxPool", rule_global_pool},
                                    {"LayerNormalization", rule_layer_norm},
                                    {"RMSNormalization", rule_layer_norm},
                                    {"BatchNormalization", rule_channel_norm},
                                    {"GroupNormalization", rule_channel_norm},
                                    {"InstanceNormalization", rule_channel_norm},
                                    {"SoftmaxCrossEntropyLoss", rule_loss},
                                    {"NegativeLogLikelihoodLoss", rule_loss},
                                    {"Resize", rule_resize},
                                    {"Upsample", rule_resize}};

bool onnx_rule_window(onnx_node_t *n)
{
    return onnx_rule_of(n, rules, sizeof(rules) / sizeof(rules[0]));
}
