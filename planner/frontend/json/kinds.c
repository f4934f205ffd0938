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
static int read_dim(const kind_reader_t *k, int of, int64_t otherwise)
{
    int rank = of < k->count ? k->types[of].shape.rank : 0;
    int64_t value = json_get_int(k->r, k->object, "dim", -AP_MAX_RANK, AP_MAX_RANK - 1, otherwise);

    return (int)(value < 0 ? value + rank : value);
}

static void read_elementwise(kind_reader_t *k)
{
    double flops = json_get_number(k->r, k->object, "flops_per_element", 1);
    bool linear = json_get_bool(k->r, k->object, "linear");

    if (k->r->status == XM_OK) {
        shape_rule_elementwise(k->op, flops, linear);
    }
}

static void read_einsum(kind_reader_t *k)
{
    const char *equation = json_get_string(k->r, k->object, "equation");

    if (k->r->status == XM_OK) {
        shape_rule_einsum(k->op, equation);
    }
}

static void read_matmul(kind_reader_t *k)
{
    shape_rule_matmul(k->op);
}

static void read_reduce(kind_reader_t *k)
{
    int64_t dims[AP_MAX_RANK];
    bool reduced[AP_MAX_RANK] = {false};
    int rank = k->count > 0 ? k->types[0].shape.rank : 0;
    int count = json_get_ints(k->r, k->object, "dims", -AP_MAX_RANK, AP_MAX_RANK - 1, AP_MAX_RANK,
                              dims, -1);
    bool keep = json_get_bool(k->r, k->object, "keep");

    for (int d = 0; d < rank && count < 0; ++d) {
        reduced[d] = true; /* all, when none is named */
    }
    for (int i = 0; i < count; ++i) {
        int64_t dim = dims[i] < 0 ? dims[i] + rank : dims[i];

        if (dim < 0 || dim >= rank) {
            json_refuse(k->r, "dims", "the operand has no dimension %d", (int)dims[i]);
            return;
        }
        reduced[dim] = true;
    }
    if (k->r->status == XM_OK) {
        shape_rule_reduce(k->op, reduced, keep, true);
    }
}

/* With "groups" the channels of images are normalised, without it the last dimensions. */
static void read_layer_norm(kind_reader_t *k)
{
    int dim = read_dim(k, 0, -1);
    int64_t groups = json_get_int(k->r, k->object, "groups", 0, LARGEST, -1);

    if (k->r->status == XM_OK && groups >= 0) {
        shape_rule_channel_norm(k->op, groups);
    } else if (k->r->status == XM_OK) {
        shape_rule_layer_norm(k->op, dim);
    }
}

static void read_embedding(kind_reader_t *k)
{
    int dim = read_dim(k, 1, 0);

    if (k->r->status == XM_OK) {
        shape_rule_gather(k->op, dim);
    }
}

static void read_split(kind_reader_t *k)
{
    int64_t parts[AP_MAX_RESULTS];
    int dim = read_dim(k, 0, -1);
    int count = json_get_ints(k->r, k->object, "parts", 1, INT64_MAX, AP_MAX_RESULTS, parts, 0);

    if (count == 0) {
        json_refuse(k->r, NULL, "'parts' is missing or empty");
    } else {
        shape_rule_split(k->op, dim, parts, count);
    }
}

static void read_transpose(kind_reader_t *k)
{
    int64_t order[AP_MAX_RANK];
    int count = json_get_ints(k->r, k->object, "order", 0, AP_MAX_RANK - 1, AP_MAX_RANK, order, 0);

    if (k->r->status == XM_OK) {
        shape_rule_transpose(k->op, order, count);
    }
}

/* Reads numbers per spatial dimension, from the key `first` on; the window's size must be given
 * where it is one of them. Padding is the same on both sides. */
static void read_window(const kind_reader_t *k, int first, shape_window_t *window)
{
    static const char *const keys[] = {"window", "stride", "dilation", "padding"};
    int64_t *const into[] = {window->size, window->stride, window->dilation, window->before};

    for (int i = first; i < 4; ++i) {
        int count = json_get_ints(k->r, k->object, keys[i], i == 3 ? 0 : 1, LARGEST, AP_MAX_RANK,
                                  into[i], i == 0 ? -1 : window->rank);

        if (count != window->rank) {
            json_refuse(k->r, count >= 0 ? keys[i] : NULL,
                        "'%s' must have %d entries, one per spatial dimension", keys[i],
                        window->rank);
        }
    }
    memcpy(window->after, window->before, sizeof(window->after));
}

/* A window that looks at single pixels, for what a file leaves out. */
static void open_window(shape_window_t *window, int rank)
{
    *window = (shape_window_t){.rank = rank};
    for (int s = 0; s < AP_MAX_RANK; ++s) {
        window->size[s] = window->stride[s] = window->dilation[s] = 1;
    }
}

static void read_conv(kind_reader_t *k)
{
    shape_window_t window;
    int64_t groups = json_get_int(k->r, k->object, "groups", 1, LARGEST, 1);
    int rank = k->count > 1 ? k->types[1].shape.rank - 2 : 0;

    if (rank < 1) {
        json_refuse(k->r, "operands", "a convolution needs a weight with a window");
    }
    if (json_object_get(k->object, "window") != NULL) {
        json_refuse(k->r, "window", "the window of a convolution is that of its weight");
    }
    open_window(&window, rank);
    for (int s = 0; s < rank; ++s) {
        window.size[s] = k->types[1].shape.dims[2 + s];
    }
    read_window(k, 1, &window);
    if (k->r->status == XM_OK) {
        shape_rule_convolution(k->op, &window, groups);
    }
}

static void read_pool(kind_reader_t *k)
{
    shape_window_t window;
    int rank = k->types[0].shape.rank - 2;

    if (rank < 1) {
        json_refuse(k->r, "operands", "the operand has no spatial dimensions");
    }
    open_window(&window, rank);
    read_window(k, 0, &window);
    if (k->r->status == XM_OK) {
        shape_rule_pool(k->op, &window);
    }
}

/* Everything whole; "results" gives shapes and element types, for nothing else tells them. */
static void read_custom(kind_reader_t *k)
{
    static const char *const keys[] = {"shape", "dtype"};
    const json_t *results = json_object_get(k->object, "results");
    size_t count = json_array_size(results);

    if (!json_is_array(results) || count < 1 || count > AP_MAX_RESULTS) {
        json_refuse(k->r, results != NULL ? "results" : NULL,
                    "an operator without a rule needs 'results': 1 to %d of {\"shape\": […], "
                    "\"dtype\": …}",
                    AP_MAX_RESULTS);
        return;
    }
    json_place_enter(&k->r->place, "results");
    for (size_t i = 0; i < count && k->r->status == XM_OK; ++i) {
        const json_t *result = json_array_get(results, i);
        ap_dtype_t dtype;
        ap_shape_t shape;

        json_place_enter_at(&k->r->place, i);
        if (!json_is_object(result)) {
            json_refuse(k->r, NULL, "a result must be an object with a shape");
        }
        json_check_keys(k->r, result, keys, sizeof(keys) / sizeof(keys[0]));
        shape = json_get_shape(k->r, result, "shape");
        dtype =
            json_get_dtype(k->r, result, "dtype", k->count > 0 ? k->types[0].dtype : AP_DTYPE_F32);
        if (k->r->status == XM_OK) {
            shape_rule_result(k->op, (int)i, dtype, &shape);
        }
        json_place_leave(&k->r->place);
    }
    json_place_leave(&k->r->place);
    if (k->r->status == XM_OK) {
        shape_rule_opaque(k->op, (int)count);
    }
}

/* How a kind is read: by a function of its own, or its rule takes no more than a dimension of
 * operand 0 or a shape. */
static const struct {
    const char *name;
    void (*read)(kind_reader_t *k);
    void (*by_dim)(shape_rule_t *op, int dim);
    void (*by_shape)(shape_rule_t *op, const ap_shape_t *to);
} kinds[] = {{"einsum", .read = read_einsum},
             {"elementwise", .read = read_elementwise},
             {"matmul", .read = read_matmul},
             {"bias", .by_dim = shape_rule_bias},
             {"reduce", .read = read_reduce},
             {"layer_norm", .read = read_layer_norm},
             {"softmax", .by_dim = shape_rule_softmax},
             {"embedding", .read = read_embedding},
             {"cross_entropy", .by_dim = shape_rule_cross_entropy},
             {"split", .read = read_split},
             {"reshape", .by_shape = shape_rule_reshape},
             {"transpose", .read = read_transpose},
             {"broadcast", .by_shape = shape_rule_expand},
             {"slice", .by_shape = shape_rule_window_of},
             {"concat", .by_dim = shape_rule_concat},
             {"conv", .read = read_conv},
             {"pool", .read = read_pool},
             {"custom", .read = read_custom}};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static void read_kind(kind_reader_t *k, int kind)
{
    if (kinds[kind].by_dim != NULL) {
        int dim = read_dim(k, 0, -1);

        if (k->r->status == XM_OK) {
            kinds[kind].by_dim(k->op, dim);
        }
    } else if (kinds[kind].by_shape != NULL) {
        ap_shape_t to = json_get_shape(k->r, k->object, "shape");

        if (k->r->status == XM_OK) {
            kinds[kind].by_shape(k->op, &to);
        }
    } else {
        kinds[kind].read(k);
    }
}

/* "flops" and "dtype" override what was derived, for any kind. */
static void emit(json_reader_t *r, const json_t *object, const json_op_t *of, shape_rule_t *op,
                 int *results)
{
    shape_emission_t emission = {.name = of->name,
                                 .label = of->label,
                                 .tensors = of->operands,
                                 .repeat = of->repeat,
                                 .phase = of->phase};

    op->rule.flops = json_get_number(r, object, "flops", op->rule.flops);
    op->made[0].dtype = json_get_dtype(r, object, "dtype", op->made[0].dtype);
    if (r->status == XM_OK) {
        (void)json_note(r, NULL, shape_rule_emit(op, r->graph, &emission, results));
    }
}

/* The derived failure has the operator's name in its sentence already; the caller adds line and
 * column. */
int json_add_by_kind(json_reader_t *r, const json_t *object, const json_op_t *of, int *results)
{
    const char *names[KINDS];
    operand_type_t types[AP_MAX_OPERANDS] = {0};
    const operand_type_t *pointers[AP_MAX_OPERANDS];
    char place[PLACE_TEXT];
    shape_rule_t op;
    kind_reader_t k = {.r = r, .object = object, .op = &op, .types = types, .count = of->count};
    int kind;

    for (int i = 0; i < KINDS; ++i) {
        names[i] = kinds[i].name;
    }
    kind = json_get_choice(r, object, "kind", "kind of operator without a rule", names, KINDS);
    if (of->count == 0) {
        json_refuse(r, "operands", "an operator without a rule needs an operand");
    }
    if (r->status != XM_OK) {
        return 0;
    }
    for (int i = 0; i < of->count; ++i) {
        const ap_tensor_t *tensor = ap_graph_tensor(r->graph, of->operands[i]);

        types[i].dtype = tensor->dtype;
        types[i].shape = tensor->shape;
        pointers[i] = &types[i];
    }
    (void)snprintf(place, sizeof(place), "operator '%.100s'", of->name);
    shape_rule_begin(&op, place, pointers, of->count);
    read_kind(&k, kind);
    if (r->status == XM_OK && json_note(r, NULL, op.rule.status)) {
        emit(r, object, of, &op, results);
    }
    return op.rule.results;
}
