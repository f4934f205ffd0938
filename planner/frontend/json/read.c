/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict reading of the members of JSON objects. Strict means: a member of another type, out of
 * range or unknown is an error and never a default, because a misspelt key in a file written by
 * hand would else plan another model in silence. Optional members leave the caller's value as it
 * is.
 *
 * Every refusal enters the place of its member; after a failure nothing leaves it again, so the
 * place is still there when the sentence is made.
 */

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "comm/base.h"
#include "planner/frontend/json/json_private.h"

xm_status_t json_refuse(json_reader_t *r, const char *key, const char *format, ...)
{
    char sentence[400];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(sentence, sizeof(sentence), format, arguments);
    va_end(arguments);
    if (key != NULL) {
        json_place_enter(&r->place, key);
    }
    return xm_error_set(XM_ERR_PARSE, "%s", sentence);
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};

    return names[json_typeof(value)];
}

/* A missing member has no place of its own, so the object's is told. */
static xm_status_t wrong_type(json_reader_t *r, const json_t *value, const char *key,
                              const char *expected)
{
    return value == NULL
               ? json_refuse(r, NULL, "the key '%s' is missing", key)
               : json_refuse(r, key, "'%s' is %s; it must be %s", key, type_name(value), expected);
}

xm_status_t json_get_string(json_reader_t *r, const json_t *object, const char *key,
                            const char **text)
{
    const json_t *value = json_object_get(object, key);

    /* A string with a zero byte in it would be cut off by everything that follows. */
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value)) {
        return wrong_type(r, value, key, "a string");
    }
    *text = json_string_value(value);
    return XM_OK;
}

xm_status_t json_get_bool(json_reader_t *r, const json_t *object, const char *key, bool *value)
{
    const json_t *found = json_object_get(object, key);

    if (found == NULL) {
        return XM_OK;
    }
    if (!json_is_boolean(found)) {
        return wrong_type(r, found, key, "true or false");
    }
    *value = json_is_true(found);
    return XM_OK;
}

xm_status_t json_get_number(json_reader_t *r, const json_t *object, const char *key, double *number)
{
    const json_t *value = json_object_get(object, key);

    if (value == NULL) {
        return XM_OK;
    }
    if (!json_is_number(value)) {
        return wrong_type(r, value, key, "a number");
    }
    if (!(json_number_value(value) >= 0) || !isfinite(json_number_value(value)) ||
        json_number_value(value) > 1e30) {
        return json_refuse(r, key, "'%s' is %g; it must be in 0 to 1e30", key,
                           json_number_value(value));
    }
    *number = json_number_value(value);
    return XM_OK;
}

xm_status_t json_get_int(json_reader_t *r, const json_t *object, const char *key, int64_t minimum,
                         int64_t maximum, int64_t *number)
{
    const json_t *value = json_object_get(object, key);

    if (value == NULL) {
        return XM_OK;
    }
    if (!json_is_integer(value)) {
        return wrong_type(r, value, key, "an integer");
    }
    if (json_integer_value(value) < minimum || json_integer_value(value) > maximum) {
        return json_refuse(
            r, key, "'%s' is %" JSON_INTEGER_FORMAT "; it must be in %" PRId64 " to %" PRId64, key,
            json_integer_value(value), minimum, maximum);
    }
    *number = json_integer_value(value);
    return XM_OK;
}

xm_status_t json_get_ints(json_reader_t *r, const json_t *object, const char *key, int64_t minimum,
                          int64_t maximum, int room, int64_t *numbers, int *count)
{
    const json_t *list = json_object_get(object, key);

    if (list == NULL) {
        return XM_OK;
    }
    if (!json_is_array(list)) {
        return wrong_type(r, list, key, "a list of integers");
    }
    if (json_array_size(list) > (size_t)room) {
        return json_refuse(r, key, "'%s' has %zu entries, %d are handled", key,
                           json_array_size(list), room);
    }
    for (size_t i = 0; i < json_array_size(list); ++i) {
        const json_t *value = json_array_get(list, i);

        if (!json_is_integer(value) || json_integer_value(value) < minimum ||
            json_integer_value(value) > maximum) {
            json_place_enter(&r->place, key);
            json_place_enter_at(&r->place, i);
            return json_refuse(r, NULL,
                               "entry %zu of '%s' is no integer in %" PRId64 " to %" PRId64, i, key,
                               minimum, maximum);
        }
        numbers[i] = json_integer_value(value);
    }
    *count = (int)json_array_size(list);
    return XM_OK;
}

xm_status_t json_get_shape(json_reader_t *r, const json_t *object, const char *key,
                           ap_shape_t *shape)
{
    int64_t elements = 1;
    xm_status_t status;

    if (json_object_get(object, key) == NULL) {
        return wrong_type(r, NULL, key, "a list of dimensions");
    }
    memset(shape, 0, sizeof(*shape));
    status = json_get_ints(r, object, key, 1, INT64_MAX, AP_MAX_RANK, shape->dims, &shape->rank);
    for (int d = 0; d < shape->rank && status == XM_OK; ++d) {
        if (__builtin_mul_overflow(elements, shape->dims[d], &elements) ||
            elements > AP_MOST_ELEMENTS) {
            return json_refuse(r, key, "'%s' has more than 2^48 elements", key);
        }
    }
    return status;
}

xm_status_t json_get_dtype(json_reader_t *r, const json_t *object, const char *key,
                           ap_dtype_t *dtype)
{
    const char *names[AP_DTYPE_COUNT], *text;
    xm_status_t status;
    int index;

    if (json_object_get(object, key) == NULL) {
        return XM_OK;
    }
    for (int d = 0; d < AP_DTYPE_COUNT; ++d) {
        names[d] = ap_dtype_name((ap_dtype_t)d);
    }
    status = json_get_string(r, object, key, &text);
    if (status == XM_OK) {
        status = xm_text_choose("element type", text, names, AP_DTYPE_COUNT, &index);
        if (status != XM_OK) {
            json_place_enter(&r->place, key);
            return status;
        }
        *dtype = (ap_dtype_t)index;
    }
    return status;
}

/* The nearest known key is told, for most unknown ones are misspelt. */
xm_status_t json_check_keys(json_reader_t *r, const json_t *object, const char *const *keys,
                            size_t count)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)object, key, value)
    {
        const char *nearest;
        bool known = false;

        for (size_t i = 0; i < count; ++i) {
            known = known || strcmp(key, keys[i]) == 0;
        }
        if (known) {
            continue;
        }
        nearest = xm_text_nearest(key, keys, count);
        return nearest != NULL
                   ? json_refuse(r, key, "unknown key '%s'; did you mean '%s'?", key, nearest)
                   : json_refuse(r, key, "unknown key '%s'", key);
    }
    return XM_OK;
}
