/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/json_mutator.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

enum { MOST_VALUES = 4096 };

static unsigned next(unsigned *seed)
{
    *seed = *seed * 1664525U + 1013904223U;
    return *seed >> 8;
}

/* Containers with at least one entry, found by walking down. */
static void collect(json_t *value, json_t **found, size_t *count)
{
    size_t index;
    const char *key;
    json_t *child;

    if (*count == MOST_VALUES) {
        return;
    }
    if (json_is_object(value) && json_object_size(value) > 0) {
        found[(*count)++] = value;
        json_object_foreach(value, key, child)
        {
            collect(child, found, count);
        }
    } else if (json_is_array(value) && json_array_size(value) > 0) {
        found[(*count)++] = value;
        json_array_foreach(value, index, child)
        {
            collect(child, found, count);
        }
    }
}

/* A string with one character changed, gone or doubled. */
static json_t *other_text(const char *text, unsigned *seed)
{
    size_t length = strlen(text), at = length > 0 ? next(seed) % length : 0;
    char *changed = calloc(1, length + 2);
    json_t *made;

    if (changed == NULL) {
        return NULL;
    }
    memcpy(changed, text, length);
    switch (next(seed) % 3) {
    case 0:
        memmove(changed + at, changed + at + (length > 0), length - at);
        break;
    case 1:
        memmove(changed + at + 1, changed + at, length - at);
        changed[at] = (char)(' ' + next(seed) % 95);
        break;
    default:
        changed[at] = (char)(' ' + next(seed) % 95);
    }
    made = json_string(changed);
    free(changed);
    return made;
}

static json_t *other_value(const json_t *value, unsigned *seed)
{
    static const double reals[] = {0, -1, 1e-300, 1e300, 0.5, 4294967296.0, 9.3e18, 1e-9};
    static const json_int_t integers[] = {0,   1,     -1,         2,           7,        16,
                                          255, 65536, 2147483647, 2147483648L, INT64_MAX};

    switch (next(seed) % 10) {
    case 0:
        return json_null();
    case 1:
        return json_boolean(next(seed) % 2);
    case 2:
        return json_real(reals[next(seed) % (sizeof(reals) / sizeof(reals[0]))]);
    case 3:
        return json_array();
    case 4:
        return json_string(next(seed) % 2 ? "" : "2x4");
    default:
        break;
    }
    if (json_is_string(value)) {
        return other_text(json_string_value(value), seed);
    }
    if (json_is_real(value)) {
        return json_real(json_real_value(value) * (next(seed) % 2 ? 2 : -0.5));
    }
    if (json_is_integer(value) && next(seed) % 2 == 0) {
        return json_integer(json_integer_value(value) / 2 + (json_int_t)(next(seed) % 3) - 1);
    }
    return json_integer(integers[next(seed) % (sizeof(integers) / sizeof(integers[0]))]);
}

static void change_object(json_t *object, unsigned *seed)
{
    void *entry = json_object_iter(object);
    json_t *other = NULL;
    char *key;

    for (unsigned skip = next(seed) % (unsigned)json_object_size(object); skip > 0; --skip) {
        entry = json_object_iter_next(object, entry);
    }
    key = strdup(json_object_iter_key(entry));
    if (key == NULL) {
        return;
    }
    switch (next(seed) % 6) {
    case 0:
        (void)json_object_del(object, key);
        break;
    case 1:
        other = other_text(key, seed);
        if (other != NULL && json_is_string(other)) {
            (void)json_object_set(object, json_string_value(other), json_object_iter_value(entry));
        }
        json_decref(other);
        break;
    default:
        (void)json_object_set_new(object, key, other_value(json_object_iter_value(entry), seed));
    }
    free(key);
}

static void change_array(json_t *array, unsigned *seed)
{
    size_t at = next(seed) % json_array_size(array);

    switch (next(seed) % 5) {
    case 0:
        (void)json_array_remove(array, at);
        break;
    case 1:
        (void)json_array_insert_new(array, at, json_deep_copy(json_array_get(array, at)));
        break;
    default:
        if (!json_is_object(json_array_get(array, at)) || next(seed) % 8 == 0) {
            (void)json_array_set_new(array, at, other_value(json_array_get(array, at), seed));
        }
    }
}

size_t json_mutate(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    json_t *found[MOST_VALUES], *root = NULL;
    size_t count = 0, written = 0;

    if (seed % 4 != 0) {
        root = json_loadb((const char *)data, size, 0, NULL);
    }
    if (root != NULL) {
        collect(root, found, &count);
    }
    if (count > 0) {
        json_t *chosen = found[next(&seed) % count];

        if (json_is_object(chosen)) {
            change_object(chosen, &seed);
        } else {
            change_array(chosen, &seed);
        }
        written = json_dumpb(root, NULL, 0, JSON_COMPACT);
        if (written > 0 && written <= max_size) {
            (void)json_dumpb(root, (char *)data, max_size, JSON_COMPACT);
        } else {
            written = 0;
        }
    }
    json_decref(root);
    return written > 0 ? written : LLVMFuzzerMutate(data, size, max_size);
}
