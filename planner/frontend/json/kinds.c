/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators of a JSON graph that say what they are and not how they may be cut: rule, results and
 * FLOPs are derived by shape_rule.h, as for ONNX. Each kind reads its own members and calls one
 * function; which members exist at all is checked once for all kinds, by the reader of operators.
 *
 * A member that a kind does not use is accepted: the list of keys is one for all, so that misspelt
 * ones are caught.
 */

#include <stdio.h>
#include <string.h>

#include "comm/base.h"
#include "planner/frontend/json/json_private.h"

enum { LARGEST = 1 << 30, PLACE_TEXT = 160 };

typedef struct kind_reader {
    json_reader_t *r;
    const json_t *object;
    shape_rule_t *op;
    const operand_type_t *types; /* of the operands */
    int count;
} kind_reader_t;

/* A dimension of operand `of`; negative ones count from the end. Whether there is such a dimension
 * is checked by the rule, which knows the operand. */
static xm_status_t read_dim(const kind_reader_t *k, int of, int64_t otherwise, int *dim)
{
    int rank = of < k->count ? k->types[of].shape.rank : 0;
    int64_t value = otherwise;
    xm_status_t status =
        json_get_int(k->r, k->object, "dim", -AP_MAX_RANK, AP_MAX_RANK - 1, &value);

    *dim = (int)(value < 0 ? value + rank : value);
    return status;
}

static xm_status_t read_elementwise(kind_reader_t *k)
{
    double flops = 1;
    bool linear = false;
    xm_status_t status = json_get_number(k->r, k->object, "flops_per_element", &flops);

    if (status == XM_OK) {
        status = json_get_bool(k->r, k->object, "linear", &linear);
    }
    if (status == XM_OK) {
        shape_rule_elementwise(k->op, flops, linear);
    }
    return status;
}

static xm_status_t read_einsum(kind_reader_t *k)
{
    const char *equation;
    xm_status_t status = json_get_string(k->r, k->object, "equation", &equation);

    if (status == XM_OK) {
        shape_rule_einsum(k->op, equation);
    }
    return status;
}

static xm_status_t read_matmul(kind_reader_t *k)
{
    shape_rule_matmul(k->op);
    return XM_OK;
}

static xm_status_t read_bias(kind_reader_t *k)
{
    int dim;
    xm_status_t status = read_dim(k, 0, -1, &dim);

    if (status == XM_OK) {
        shape_rule_bias(k->op, dim);
    }
    return status;
}

static xm_status_t read_reduce(kind_reader_t *k)
{
    int64_t dims[AP_MAX_RANK];
    bool reduced[AP_MAX_RANK] = {false}, keep = false;
    int rank = k->count > 0 ? k->types[0].shape.rank : 0, count = -1;
    xm_status_t status = json_get_ints(k->r, k->object, "dims", -AP_MAX_RANK, AP_MAX_RANK - 1,
                                       AP_MAX_RANK, dims, &count);

    if (status == XM_OK) {
        status = json_get_bool(k->r, k->object, "keep", &keep);
    }
    for (int d = 0; d < rank && count < 0; ++d) {
        reduced[d] = true; /* all, when none is named */
    }
    for (int i = 0; i < count && status == XM_OK; ++i) {
        int64_t dim = dims[i] < 0 ? dims[i] + rank : dims[i];

        if (dim < 0 || dim >= rank) {
            return json_refuse(k->r, "dims", "the operand has no dimension %d", (int)dims[i]);
        }
        reduced[dim] = true;
    }
    if (status == XM_OK) {
        shape_rule_reduce(k->op, reduced, keep, true);
    }
    return status;
}

static xm_status_t read_softmax(kind_reader_t *k)
{
    int dim;
    xm_status_t status = read_dim(k, 0, -1, &dim);

    if (status == XM_OK) {
        shape_rule_softmax(k->op, dim);
    }
    return status;
}

/* With "groups" the channels of images are normalised, without it the last dimensions. */
static xm_status_t read_layer_norm(kind_reader_t *k)
{
    int64_t groups = -1;
    int dim;
    xm_status_t status = read_dim(k, 0, -1, &dim);

    if (status == XM_OK) {
        status = json_get_int(k->r, k->object, "groups", 0, LARGEST, &groups);
    }
    if (status == XM_OK && groups >= 0) {
        shape_rule_channel_norm(k->op, groups);
    } else if (status == XM_OK) {
        shape_rule_layer_norm(k->op, dim);
    }
    return status;
}

static xm_status_t read_embedding(kind_reader_t *k)
{
    int dim;
    xm_status_t status = read_dim(k, 1, 0, &dim);

    if (status == XM_OK) {
        shape_rule_gather(k->op, dim);
    }
    return status;
}

static xm_status_t read_cross_entropy(kind_reader_t *k)
{
    int dim;
    xm_status_t status = read_dim(k, 0, -1, &dim);

    if (status == XM_OK) {
        shape_rule_cross_entropy(k->op, dim);
    }
    return status;
}

static xm_status_t read_split(kind_reader_t *k)
{
    int64_t parts[AP_MAX_RESULTS];
    int dim, count = 0;
    xm_status_t status = read_dim(k, 0, -1, &dim);

    if (status == XM_OK) {
        status =
            json_get_ints(k->r, k->object, "parts", 1, INT64_MAX, AP_MAX_RESULTS, parts, &count);
    }
    if (status == XM_OK && count == 0) {
        return json_refuse(k->r, NULL, "'parts' is missing or empty");
    }
    if (status == XM_OK) {
        shape_rule_split(k->op, dim, parts, count);
    }
    return status;
}

static xm_status_t read_reshape(kind_reader_t *k)
{
    ap_shape_t to;
    xm_status_t status = json_get_shape(k->r, k->object, "shape", &to);

    if (status == XM_OK) {
        shape_rule_reshape(k->op, &to);
    }
    return status;
}

static xm_status_t read_transpose(kind_reader_t *k)
{
    int64_t order[AP_MAX_RANK];
    int count = 0;
    xm_status_t status =
        json_get_ints(k->r, k->object, "order", 0, AP_MAX_RANK - 1, AP_MAX_RANK, order, &count);

    if (status == XM_OK) {
        shape_rule_transpose(k->op, order, count);
    }
    return status;
}

static xm_status_t read_broadcast(kind_reader_t *k)
{
    ap_shape_t to;
    xm_status_t status = json_get_shape(k->r, k->object, "shape", &to);

    if (status == XM_OK) {
        shape_rule_expand(k->op, &to);
    }
    return status;
}

static xm_status_t read_slice(kind_reader_t *k)
{
    ap_shape_t to;
    xm_status_t status = json_get_shape(k->r, k->object, "shape", &to);

    if (status == XM_OK) {
        shape_rule_window_of(k->op, &to);
    }
    return status;
}

static xm_status_t read_concat(kind_reader_t *k)
{
    int dim;
    xm_status_t status = read_dim(k, 0, -1, &dim);

    if (status == XM_OK) {
        shape_rule_concat(k->op, dim);
    }
    return status;
}

/* Reads numbers per spatial dimension, from the key `first` on; the window's size must be given
 * where it is one of them. Padding is the same on both sides. */
static xm_status_t read_window(const kind_reader_t *k, int first, shape_window_t *window)
{
    static const char *const keys[] = {"window", "stride", "dilation", "padding"};
    int64_t *const into[] = {window->size, window->stride, window->dilation, window->before};
    xm_status_t status = XM_OK;

    for (int i = first; i < 4 && status == XM_OK; ++i) {
        int count = i == 0 ? -1 : window->rank;

        status = json_get_ints(k->r, k->object, keys[i], i == 3 ? 0 : 1, LARGEST, AP_MAX_RANK,
                               into[i], &count);
        if (status == XM_OK && count != window->rank) {
            return json_refuse(k->r, count >= 0 ? keys[i] : NULL,
                               "'%s' must have %d entries, one per spatial dimension", keys[i],
                               window->rank);
        }
    }
    memcpy(window->after, window->before, sizeof(window->after));
    return status;
}

/* A window that looks at single pixels, for what a file leaves out. */
static void open_window(shape_window_t *window, int rank)
{
    *window = (shape_window_t){.rank = rank};
    for (int s = 0; s < AP_MAX_RANK; ++s) {
        window->size[s] = window->stride[s] = window->dilation[s] = 1;
    }
}

static xm_status_t read_conv(kind_reader_t *k)
{
    shape_window_t window;
    int64_t groups = 1;
    int rank = k->count > 1 ? k->types[1].shape.rank - 2 : 0;
    xm_status_t status = json_get_int(k->r, k->object, "groups", 1, LARGEST, &groups);

    if (status == XM_OK && rank < 1) {
        return json_refuse(k->r, "operands", "a convolution needs a weight with a window");
    }
    if (status == XM_OK && json_object_get(k->object, "window") != NULL) {
        return json_refuse(k->r, "window", "the window of a convolution is that of its weight");
    }
    open_window(&window, rank);
    for (int s = 0; s < rank; ++s) {
        window.size[s] = k->types[1].shape.dims[2 + s];
    }
    if (status == XM_OK) {
        status = read_window(k, 1, &window);
    }
    if (status == XM_OK) {
        shape_rule_convolution(k->op, &window, groups);
    }
    return status;
}

static xm_status_t read_pool(kind_reader_t *k)
{
    shape_window_t window;
    int rank = k->types[0].shape.rank - 2;
    xm_status_t status;

    if (rank < 1) {
        return json_refuse(k->r, "operands", "the operand has no spatial dimensions");
    }
    open_window(&window, rank);
    status = read_window(k, 0, &window);
    if (status == XM_OK) {
        shape_rule_pool(k->op, &window);
    }
    return status;
}

/* Everything whole; "results" gives shapes and element types, for nothing else tells them. */
static xm_status_t read_custom(kind_reader_t *k)
{
    const json_t *results = json_object_get(k->object, "results");
    size_t count = json_array_size(results);

    if (!json_is_array(results) || count < 1 || count > AP_MAX_RESULTS) {
        return json_refuse(k->r, results != NULL ? "results" : NULL,
                           "an operator without a rule needs 'results': 1 to %d of {\"shape\": "
                           "[…], \"dtype\": …}",
                           AP_MAX_RESULTS);
    }
    json_place_enter(&k->r->place, "results");
    for (size_t i = 0; i < count; ++i) {
        static const char *const keys[] = {"shape", "dtype"};
        const json_t *result = json_array_get(results, i);
        ap_dtype_t dtype = k->count > 0 ? k->types[0].dtype : AP_DTYPE_F32;
        ap_shape_t shape;
        xm_status_t status;

        json_place_enter_at(&k->r->place, i);
        if (!json_is_object(result)) {
            return json_refuse(k->r, NULL, "a result must be an object with a shape");
        }
        status = json_check_keys(k->r, result, keys, sizeof(keys) / sizeof(keys[0]));
        if (status == XM_OK) {
            status = json_get_shape(k->r, result, "shape", &shape);
        }
        if (status == XM_OK) {
            status = json_get_dtype(k->r, result, "dtype", &dtype);
        }
        if (status != XM_OK) {
            return status;
        }
        shape_rule_result(k->op, (int)i, dtype, &shape);
        json_place_leave(&k->r->place);
    }
    json_place_leave(&k->r->place);
    shape_rule_opaque(k->op, (int)count);
    return XM_OK;
}

static const struct {
    const char *name;
    xm_status_t (*read)(kind_reader_t *k);
} kinds[] = {{"einsum", read_einsum},
             {"elementwise", read_elementwise},
             {"matmul", read_matmul},
             {"bias", read_bias},
             {"reduce", read_reduce},
             {"layer_norm", read_layer_norm},
             {"softmax", read_softmax},
             {"embedding", read_embedding},
             {"cross_entropy", read_cross_entropy},
             {"split", read_split},
             {"reshape", read_reshape},
             {"transpose", read_transpose},
             {"broadcast", read_broadcast},
             {"slice", read_slice},
             {"concat", read_concat},
             {"conv", read_conv},
             {"pool", read_pool},
             {"custom", read_custom}};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

/* "flops" and "dtype" override what was derived, for any kind. */
static xm_status_t emit(json_reader_t *r, const json_t *object, const json_op_t *of,
                        shape_rule_t *op, int *results, int *made)
{
    shape_emission_t emission = {.name = of->name,
                                 .label = of->label,
                                 .tensors = of->operands,
                                 .repeat = of->repeat,
                                 .phase = of->phase};
    xm_status_t status = json_get_number(r, object, "flops", &op->rule.flops);

    if (status == XM_OK) {
        ap_dtype_t dtype = op->made[0].dtype;

        status = json_get_dtype(r, object, "dtype", &dtype);
        op->made[0].dtype = dtype;
    }
    if (status == XM_OK) {
        status = shape_rule_emit(op, r->graph, &emission, results);
    }
    *made = op->rule.results;
    return status;
}

/* The derived failure has the operator's name in its sentence already; the caller adds line and
 * column. */
xm_status_t json_add_by_kind(json_reader_t *r, const json_t *object, const json_op_t *of,
                             int *results, int *made)
{
    const char *names[KINDS];
    operand_type_t types[AP_MAX_OPERANDS] = {0};
    const operand_type_t *pointers[AP_MAX_OPERANDS];
    char place[PLACE_TEXT];
    shape_rule_t op;
    kind_reader_t k = {.r = r, .object = object, .op = &op, .types = types, .count = of->count};
    xm_status_t status;
    int kind;

    for (int i = 0; i < KINDS; ++i) {
        names[i] = kinds[i].name;
    }
    status = xm_text_choose("kind of operator without a rule", of->kind, names, KINDS, &kind);
    if (status != XM_OK) {
        json_place_enter(&r->place, "kind");
        return status;
    }
    if (of->count == 0) {
        return json_refuse(r, "operands", "an operator without a rule needs an operand");
    }
    for (int i = 0; i < of->count; ++i) {
        const ap_tensor_t *tensor = ap_graph_tensor(r->graph, of->operands[i]);

        types[i].dtype = tensor->dtype;
        types[i].shape = tensor->shape;
        pointers[i] = &types[i];
    }
    (void)snprintf(place, sizeof(place), "operator '%.100s'", of->name);
    shape_rule_begin(&op, place, pointers, of->count);
    status = kinds[kind].read(&k);
    if (status == XM_OK && op.rule.status != XM_OK) {
        return op.rule.status;
    }
    return status == XM_OK ? emit(r, object, of, &op, results, made) : status;
}
