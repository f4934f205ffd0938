/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models from files: names, shapes and types of all tensors, as the header of a
 * safetensors file has them. The size of a head is found out where it can be, since
 * cutting between heads depends on it.
 */
#include "bench/model/file.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "bench/model/json_file.h"
#include "comm/base.h"

enum { LONGEST_DTYPE = 64, MOST_NAMES = 16 };

/* Names in small letters: of safetensors, of the frameworks, and of nccl-tests and vLLM. */
static const struct {
    int bits;
    const char *names[MOST_NAMES];
} dtypes[] = {
    {4, {"f4", "i4", "u4", "int4", "uint4"}},
    {8,
     {"f8_e4m3", "f8_e5m2", "f8_e8m0", "i8", "u8", "bool", "int8", "uint8", "fp8_e4m3", "fp8_e5m2",
      "f8e4m3", "f8e5m2", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"}},
    {16, {"bf16", "f16", "i16", "u16", "float16", "bfloat16", "int16", "uint16", "fp16", "half"}},
    {32, {"f32", "i32", "u32", "float32", "int32", "uint32", "float"}},
    {64, {"f64", "i64", "u64", "c64", "float64", "int64", "uint64", "complex64", "double"}},
    {128, {"c128", "complex128"}}};

enum { DTYPES = sizeof(dtypes) / sizeof(dtypes[0]) };

/* Safetensors writes BF16 and torch bfloat16, perhaps with "torch." in front. */
xm_status_t rb_model_dtype_bits(const char *name, int *bits)
{
    const char *names[DTYPES * MOST_NAMES];
    int bits_of[DTYPES * MOST_NAMES];
    size_t count = 0;
    char small[LONGEST_DTYPE];
    int index;

    (void)snprintf(small, sizeof(small), "%s", strncmp(name, "torch.", 6) == 0 ? name + 6 : name);
    for (char *letter = small; *letter != '\0'; ++letter) {
        *letter = (char)tolower((unsigned char)*letter);
    }
    for (int i = 0; i < DTYPES; ++i) {
        for (int n = 0; n < MOST_NAMES && dtypes[i].names[n] != NULL; ++n) {
            bits_of[count] = dtypes[i].bits;
            names[count++] = dtypes[i].names[n];
        }
    }
    XM_TRY(xm_text_choose("dtype", small, names, count, &index));
    *bits = bits_of[index];
    return XM_OK;
}

/* Extents may be 0, as parts of models are. */
static xm_status_t read_shape(const json_t *shape, rb_tensor_t *tensor)
{
    if (!json_is_array(shape)) {
        return XM_MALFORMED("'shape' is %s; it must be an array of integers", xm_json_type(shape));
    }
    if (json_array_size(shape) > XM_MAX_DIMS) {
        return XM_MALFORMED("'shape' has %zu dimensions; the most is %d", json_array_size(shape),
                            XM_MAX_DIMS);
    }
    tensor->dims = (int)json_array_size(shape);
    for (int d = 0; d < tensor->dims; ++d) {
        const json_t *extent = json_array_get(shape, (size_t)d);

        if (!json_is_integer(extent)) {
            return XM_MALFORMED("'shape'[%d] is %s; it must be an integer", d,
                                xm_json_type(extent));
        }
        if (json_integer_value(extent) < 0) {
            return XM_MALFORMED("'shape'[%d] is %" JSON_INTEGER_FORMAT "; it cannot be negative", d,
                                json_integer_value(extent));
        }
        tensor->shape[d] = json_integer_value(extent);
    }
    return XM_OK;
}

/* A tensor without a type is BF16, as most are. */
static xm_status_t read_tensor(const char *name, const json_t *entry, rb_tensor_t *tensor)
{
    static const char *const keys[] = {"shape", "dtype", "shard", "data_offsets"};
    const json_t *dtype = json_object_get(entry, "dtype");

    if (!json_is_object(entry)) {
        return XM_MALFORMED("the entry is %s; it must be an object with a 'shape'",
                            xm_json_type(entry));
    }
    if (strlen(name) >= RB_TENSOR_NAME) {
        return XM_MALFORMED("the name has %zu characters; the most is %d", strlen(name),
                            RB_TENSOR_NAME - 1);
    }
    if (dtype != NULL && !json_is_string(dtype)) {
        return XM_MALFORMED("'dtype' is %s; it must be a string", xm_json_type(dtype));
    }
    *tensor = (rb_tensor_t){0};
    (void)snprintf(tensor->name, sizeof(tensor->name), "%s", name);
    XM_TRY(rb_json_check_keys(entry, "the entry", keys, sizeof(keys) / sizeof(keys[0])));
    XM_TRY(rb_model_dtype_bits(dtype != NULL ? json_string_value(dtype) : "BF16", &tensor->bits));
    return read_shape(json_object_get(entry, "shape"), tensor);
}

/* Any layer will do, since all layers of a model have the same head size. */
static const rb_tensor_t *first_with_suffix(const rb_tensor_list_t *list, const char *suffix)
{
    size_t length = strlen(suffix);

    for (int i = 0; i < list->count; ++i) {
        size_t own = strlen(list->tensors[i].name);

        if (own >= length && strcmp(list->tensors[i].name + own - length, suffix) == 0) {
            return &list->tensors[i];
        }
    }
    return NULL;
}

/* Finds the size of a head by the norm over one query head. A norm over all heads
 * together, as large as the projection, tells nothing. */
static int64_t find_head_size(const rb_tensor_list_t *list)
{
    const rb_tensor_t *norm = first_with_suffix(list, ".q_norm.weight");
    const rb_tensor_t *projection = first_with_suffix(list, ".q_proj.weight");

    if (norm == NULL || projection == NULL || norm->dims != 1 || projection->dims == 0 ||
        norm->shape[0] == 0 || norm->shape[0] >= projection->shape[0]) {
        return 0;
    }
    return norm->shape[0];
}

/* All or nothing: a file with one bad entry leaves an empty list. */
xm_status_t rb_model_file_read(const char *path, rb_tensor_list_t *list)
{
    const char *name;
    json_t *root, *entry;
    xm_status_t status = XM_OK;

    XM_TRY(rb_json_load(path, &root));
    json_object_foreach(root, name, entry)
    {
        rb_tensor_t tensor;

        if (rb_json_is_comment(name)) {
            continue;
        }
        status = read_tensor(name, entry, &tensor);
        if (status < 0) {
            (void)xm_error_prefix(status, "%s: tensor '%s'", path, name);
            break;
        }
        status = rb_tensor_list_add(list, &tensor);
        if (status < 0) {
            (void)xm_error_prefix(status, "%s", path);
            break;
        }
    }
    json_decref(root);
    if (status == XM_OK && list->count == 0) {
        status = XM_INVALID("%s: the file names no tensor", path);
    }
    if (status < 0) {
        rb_tensor_list_clear(list);
        return status;
    }
    list->head_size = find_head_size(list);
    return XM_OK;
}
