/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model's tensors as a list, and what their names say: the layer and the expert that
 * each belongs to. Totals and scaled sizes are checked for overflow here, since lists
 * come from files.
 */
#include "bench/model/tensor_list.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NUMBER = 1000000 };
#define MAX_ELEMENTS (INT64_C(1) << 62)

/* Empty dimensions count as 1, so that no later product of the others overflows. */
static xm_status_t check_shape(const rb_tensor_t *tensor)
{
    int64_t volume = 1;

    for (int d = 0; d < tensor->dims; ++d) {
        if (__builtin_mul_overflow(volume, tensor->shape[d] > 0 ? tensor->shape[d] : 1, &volume) ||
            volume > MAX_ELEMENTS) {
            return XM_INVALID("tensor '%s' has more than 2^62 elements", tensor->name);
        }
    }
    return XM_OK;
}

xm_status_t rb_tensor_list_add(rb_tensor_list_t *list, const rb_tensor_t *tensor)
{
    XM_TRY(check_shape(tensor));
    XM_NEED_MEMORY(XM_ARRAY_ROOM(list->tensors, list->room, list->count), "a list of %d tensors",
                   list->count + 1);
    list->tensors[list->count++] = *tensor;
    return XM_OK;
}

void rb_tensor_list_clear(rb_tensor_list_t *list)
{
    free(list->tensors);
    *list = (rb_tensor_list_t){0};
}

int64_t rb_tensor_elements(const rb_tensor_t *tensor)
{
    int64_t elements = 1;

    for (int d = 0; d < tensor->dims; ++d) {
        elements *= tensor->shape[d];
    }
    return elements;
}

/* Bits are rounded up to bytes tensor by tensor, as each tensor lies by itself. */
xm_status_t rb_tensor_list_totals(const rb_tensor_list_t *list, int64_t *elements, uint64_t *bytes)
{
    int64_t total = 0, total_bytes = 0;

    for (int i = 0; i < list->count; ++i) {
        const rb_tensor_t *tensor = &list->tensors[i];
        int64_t count = rb_tensor_elements(tensor), bits;

        if (__builtin_mul_overflow(count, (int64_t)tensor->bits, &bits) ||
            __builtin_add_overflow(total, count, &total) ||
            __builtin_add_overflow(total_bytes, bits / 8 + (bits % 8 != 0), &total_bytes) ||
            total > MAX_ELEMENTS || total_bytes > MAX_ELEMENTS) {
            return XM_INVALID("the tensors up to '%s' have more than 2^62 elements or bytes",
                              tensor->name);
        }
    }
    *elements = total;
    *bytes = (uint64_t)total_bytes;
    return XM_OK;
}

/* The number that follows `part` in a dotted name, or −1. The part must be a whole word
 * of the name. */
static int number_after(const char *name, const char *part)
{
    size_t length = strlen(part);

    for (const char *at = strstr(name, part); at != NULL; at = strstr(at + 1, part)) {
        const char *digits = at + length + 1;
        char *end;
        long number;

        if ((at > name && at[-1] != '.') || at[length] != '.' || *digits < '0' || *digits > '9') {
            continue;
        }
        number = strtol(digits, &end, 10);
        if ((*end == '.' || *end == '\0') && number < MAX_NUMBER) {
            return (int)number;
        }
    }
    return -1;
}

/* Frameworks differ in what they call layers; the first word with a number counts. */
int rb_tensor_layer(const char *name)
{
    static const char *const parts[] = {"layers", "layer", "blocks", "h"};
    int layer = -1;

    for (size_t i = 0; layer < 0 && i < sizeof(parts) / sizeof(parts[0]); ++i) {
        layer = number_after(name, parts[i]);
    }
    return layer;
}

int rb_tensor_expert(const char *name)
{
    return number_after(name, "experts");
}

/* The highest number plus one is the count, so gaps in a file's list do no harm. */
static int highest(const rb_tensor_list_t *list, int (*number)(const char *name))
{
    int top = -1;

    for (int i = 0; i < list->count; ++i) {
        int found = number(list->tensors[i].name);

        top = found > top ? found : top;
    }
    return top + 1;
}

int rb_tensor_list_layers(const rb_tensor_list_t *list)
{
    return highest(list, rb_tensor_layer);
}

int rb_tensor_list_experts(const rb_tensor_list_t *list)
{
    return highest(list, rb_tensor_expert);
}

/* Divides all extents by the scale, rounded up, and keeps the first layers; heads must
 * stay whole, as layouts are cut between them. */
xm_status_t rb_tensor_list_scale(rb_tensor_list_t *list, int64_t scale, int min_layers)
{
    int64_t layers = rb_tensor_list_layers(list), kept = (layers + scale - 1) / scale;
    int count = 0;

    if (list->head_size % scale != 0) {
        return XM_INVALID("scale %" PRId64 " does not divide the head size %" PRId64
                          ", so heads could not stay whole",
                          scale, list->head_size);
    }
    kept = kept < min_layers ? min_layers : kept;
    for (int i = 0; i < list->count; ++i) {
        /* Kept tensors move to the front; `count` never overtakes `i`. */
        rb_tensor_t *tensor = &list->tensors[count];

        if (rb_tensor_layer(list->tensors[i].name) >= kept) {
            continue;
        }
        *tensor = list->tensors[i];
        for (int d = 0; d < tensor->dims; ++d) {
            tensor->shape[d] = tensor->shape[d] / scale + (tensor->shape[d] % scale != 0);
        }
        ++count;
    }
    list->count = count;
    list->head_size /= scale;
    return XM_OK;
}
