/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict reading of the members of JSON objects. Strict means: a member of another type, out of
 * range or unknown is an error and never a default, because a misspelt key in a file written by
 * hand would else plan another model in silence.
 *
 * The first failure sticks in the reader and fixes the place, which is still there when the
 * sentence is made; after it nothing is read, so callers look at the status only before they use
 * what they have read.
 */

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "comm/base.h"
#include "planner/frontend/json/json_private.h"

enum { KEYS_TEXT = 512, MOST_KEYS = 64 };

void json_refuse(json_reader_t *r, const char *key, const char *format, ...)
{
    va_list arguments;
    xm_status_t status;

    if (r->status != XM_OK) {
        return;
    }
    va_start(arguments, format);
    status = xm_error_set_list(XM_ERR_PARSE, format, arguments);
    va_end(arguments);
    (void)json_note(r, key, status);
}

bool json_note(json_reader_t *r, const char *key, xm_status_t status)
{
    if (status != XM_OK && r->status == XM_OK) {
        if (key != NULL) {
            json_place_enter(&r->place, key);
        }
        r->place.fixed = true;
        r->status = status;
    }
    return r->status == XM_OK;
}

/* The member, or NULL when it is missing or something failed before. */
static const json_t *find(const json_reader_t *r, const json_t *object, const char *key)
{
    return r->status == XM_OK ? json_object_get(object, key) : NULL;
}

/* A missing member has no place of its own, so the object's is told. */
static void wrong_type(json_reader_t *r, const json_t *value, const char *key, const char *expected)
{
    if (value == NULL) {
        json_refuse(r, NULL, "the key '%s' is missing", key);
    } else {
        json_refuse(r, key, "'%s' is %s; it must be %s", key, xm_json_type(value), expected);
    }
}

const char *json_get_string(json_reader_t *r, const json_t *object, const char *key)
{
    const json_t *value = find(r, object, key);

    /* A string with a zero byte in it would be cut off by everything that follows. */
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value)) {
        wrong_type(r, value, key, "a string");
        return "";
    }
    return json_string_value(value);
}

const char *json_get_optional_string(json_reader_t *r, const json_t *object, const char *key)
{
    return find(r, object, key) == NULL ? NULL : json_get_string(r, object, key);
}

int json_get_choice(json_reader_t *r, const json_t *object, const char *key, const char *what,
                    const char *const *names, size_t count)
{
    const char *text = json_get_string(r, object, key);
    int index = 0;

    if (r->status == XM_OK) {
        (void)json_note(r, key, xm_text_choose(what, text, names, count, &index));
    }
    return r->status == XM_OK ? index : 0;
}

bool json_get_bool(json_reader_t *r, const json_t *object, const char *key)
{
    const json_t *found = find(r, object, key);

    if (found != NULL && !json_is_boolean(found)) {
        wrong_type(r, found, key, "true or false");
    }
    return json_is_true(found);
}

double json_get_number(json_reader_t *r, const json_t *object, const char *key, double otherwise)
{
    const json_t *value = find(r, object, key);
    double number = json_number_value(value);

    if (value == NULL) {
        return otherwise;
    }
    if (!json_is_number(value)) {
        wrong_type(r, value, key, "a number");
    } else if (!(number >= 0) || !isfinite(number) || number > 1e30) {
        json_refuse(r, key, "'%s' is %g; it must be in 0 to 1e30", key, number);
    }
    return number;
}

int64_t json_get_int(json_reader_t *r, const json_t *object, const char *key, int64_t minimum,
                     int64_t maximum, int64_t otherwise)
{
    const json_t *value = find(r, object, key);
    json_int_t number = json_integer_value(value);

    if (value == NULL) {
        return otherwise;
    }
    if (!json_is_integer(value)) {
        wrong_type(r, value, key, "an integer");
    } else if (number < minimum || number > maximum) {
        json_refuse(r, key,
                    "'%s' is %" JSON_INTEGER_FORMAT "; it must be in %" PRId64 " to %" PRId64, key,
                    number, minimum, maximum);
    }
    return r->status == XM_OK ? number : otherwise;
}

int json_get_ints(json_reader_t *r, const json_t *object, const char *key, int64_t minimum,
                  int64_t maximum, int room, int64_t *numbers, int otherwise)
{
    const json_t *list = find(r, object, key);
    size_t count = json_array_size(list);

    if (list == NULL) {
        return otherwise;
    }
    if (!json_is_array(list)) {
        wrong_type(r, list, key, "a list of integers");
    } else if (count > (size_t)room) {
        json_refuse(r, key, "'%s' has %zu entries, %d are handled", key, count, room);
    }
    for (size_t i = 0; i < count && r->status == XM_OK; ++i) {
        const json_t *value = json_array_get(list, i);

        numbers[i] = json_integer_value(value);
        if (!json_is_integer(value) || numbers[i] < minimum || numbers[i] > maximum) {
            json_place_enter(&r->place, key);
            json_place_enter_at(&r->place, i);
            json_refuse(r, NULL, "entry %zu of '%s' is no integer in %" PRId64 " to %" PRId64, i,
                        key, minimum, maximum);
        }
    }
    return r->status == XM_OK ? (int)count : 0;
}

void *json_list(json_reader_t *r, size_t count, size_t size)
{
    void *list = r->status == XM_OK ? xm_arena_get(&r->arena, count + 1, size) : NULL;

    if (list == NULL && r->status == XM_OK) {
        r->status = XM_NO_MEMORY("a list of %zu", count);
    }
    return list;
}

int64_t *json_get_list(json_reader_t *r, const json_t *object, const char *key, int64_t minimum,
                       int64_t maximum, int *count)
{
    size_t room = json_array_size(json_object_get(object, key));
    int64_t *list = json_list(r, room, sizeof(*list));

    *count = list != NULL ? json_get_ints(r, object, key, minimum, maximum, (int)room, list, 0) : 0;
    return list;
}

ap_shape_t json_get_shape(json_reader_t *r, const json_t *object, const char *key)
{
    ap_shape_t shape = {0};
    int64_t elements = 1;

    if (find(r, object, key) == NULL) {
        wrong_type(r, NULL, key, "a list of dimensions");
    }
    shape.rank = json_get_ints(r, object, key, 1, INT64_MAX, AP_MAX_RANK, shape.dims, 0);
    for (int d = 0; d < shape.rank; ++d) {
        if (__builtin_mul_overflow(elements, shape.dims[d], &elements) ||
            elements > AP_MOST_ELEMENTS) {
            json_refuse(r, key, "'%s' has more than 2^48 elements", key);
        }
    }
    return shape;
}

/* The names that the commands take for the same types; what counts of a type is its size. */
static const struct {
    const char *name;
    ap_dtype_t dtype;
} short_dtypes[] = {
    {"f16", AP_DTYPE_F16},     {"bf16", AP_DTYPE_BF16}, {"f32", AP_DTYPE_F32},
    {"f64", AP_DTYPE_F64},     {"i8", AP_DTYPE_I8},     {"u8", AP_DTYPE_I8},
    {"i16", AP_DTYPE_I16},     {"i32", AP_DTYPE_I32},   {"i64", AP_DTYPE_I64},
    {"bool", AP_DTYPE_I8},     {"c128", AP_DTYPE_C128}, {"fp8_e4m3", AP_DTYPE_I8},
    {"fp8_e5m2", AP_DTYPE_I8},
};

enum { SHORT_DTYPES = sizeof(short_dtypes) / sizeof(short_dtypes[0]) };

ap_dtype_t json_get_dtype(json_reader_t *r, const json_t *object, const char *key,
                          ap_dtype_t otherwise)
{
    const char *names[AP_DTYPE_COUNT + SHORT_DTYPES];
    int chosen;

    if (find(r, object, key) == NULL) {
        return otherwise;
    }
    for (int d = 0; d < AP_DTYPE_COUNT; ++d) {
        names[d] = ap_dtype_name((ap_dtype_t)d);
    }
    for (int d = 0; d < SHORT_DTYPES; ++d) {
        names[AP_DTYPE_COUNT + d] = short_dtypes[d].name;
    }
    chosen = json_get_choice(r, object, key, "element type", names, AP_DTYPE_COUNT + SHORT_DTYPES);
    return chosen < AP_DTYPE_COUNT ? (ap_dtype_t)chosen
                                   : short_dtypes[chosen - AP_DTYPE_COUNT].dtype;
}

/* The nearest known key is told, for most unknown ones are misspelt. */
static void refuse_key(json_reader_t *r, const char *key, const char *keys)
{
    char words[KEYS_TEXT], *rest = NULL;
    const char *names[MOST_KEYS], *nearest;
    size_t count = 0;

    (void)snprintf(words, sizeof(words), "%s", keys);
    for (char *word = strtok_r(words, " ", &rest); word != NULL && count < MOST_KEYS;
         word = strtok_r(NULL, " ", &rest)) {
        names[count++] = word;
    }
    nearest = xm_text_nearest(key, names, count);
    if (nearest != NULL) {
        json_refuse(r, key, "unknown key '%s'; did you mean '%s'?", key, nearest);
    }
    json_refuse(r, key, "unknown key '%s'", key);
}

void json_check_keys(json_reader_t *r, const json_t *object, const char *keys)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)object, key, value)
    {
        if (!xm_text_in_words(keys, key, strlen(key))) {
            refuse_key(r, key, keys);
        }
    }
}
