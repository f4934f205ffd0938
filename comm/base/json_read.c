/* SPDX-License-Identifier: Apache-2.0 */
/* Reading JSON with sentences for people: every mistake names the key, what it is and what it
 * must be. Unknown keys are errors, with the nearest known one, because a misspelt optional key
 * would silently have no effect. */
#include "comm/base/json_read.h"

#include <limits.h>
#include <string.h>

#include "comm/base/text.h"

xm_status_t xm_json_parse(const char *name, const char *text, size_t length, json_t **document)
{
    json_error_t error;

    *document = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    return *document != NULL ? XM_OK
                             : XM_MALFORMED("%s: line %d, column %d: %s", name, error.line,
                                            error.column, error.text);
}

const char *xm_json_type(const json_t *value)
{
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};

    return value == NULL ? "nothing" : names[json_typeof(value)];
}

/* One sentence for a wrong type and one for a missing key. */
xm_status_t xm_json_wrong_type(const char *path, const char *expected, const json_t *value)
{
    if (value == NULL) {
        return XM_MALFORMED("key '%s' is missing; it must be %s", path, expected);
    }
    return XM_MALFORMED("%s is %s; it must be %s", path, xm_json_type(value), expected);
}

/* What a document is, by a key that no other kind has; with a value where that tells it. */
static const char *kind_of(const json_t *root)
{
    static const struct {
        const char *key, *value, *kind;
    } kinds[] = {{"format", "crossmesh-plan", "a parallel plan"},
                 {"format", "autopar-graph", "a model's graph"},
                 {"devices_per_host", NULL, "a cluster profile"},
                 {"routes", NULL, "a reshard plan"},
                 {"traceEvents", NULL, "a Chrome trace"},
                 {"results", NULL, "a report of a benchmark"}};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); ++i) {
        const json_t *value = json_object_get(root, kinds[i].key);

        if (value != NULL &&
            (kinds[i].value == NULL ||
             (json_is_string(value) && strcmp(json_string_value(value), kinds[i].value) == 0))) {
            return kinds[i].kind;
        }
    }
    return NULL;
}

xm_status_t xm_json_check_kind(const json_t *root, const char *wanted)
{
    const char *kind = kind_of(root);

    return kind == NULL || strcmp(kind, wanted) == 0
               ? XM_OK
               : XM_MALFORMED("this is %s, not %s", kind, wanted);
}

/* @p prefix is the path of the object, for the sentence only. */
xm_status_t xm_json_check_keys(const json_t *object, const char *prefix, const char *const *keys,
                               size_t count)
{
    const char *key;
    json_t *value;

    /* The cast only removes const; the object is not changed. */
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
        if (nearest != NULL) {
            return XM_MALFORMED("unknown key '%s%s'; did you mean '%s%s'?", prefix, key, prefix,
                                nearest);
        }
        return XM_MALFORMED("unknown key '%s%s'", prefix, key);
    }
    return XM_OK;
}

/* The object stays the document's. */
xm_status_t xm_json_object(const json_t *parent, const char *key, const json_t **object)
{
    *object = json_object_get(parent, key);
    return json_is_object(*object) ? XM_OK : xm_json_wrong_type(key, "an object", *object);
}

/* The text stays the document's and must be copied to outlive it. */
xm_status_t xm_json_string(const json_t *parent, const char *key, const char **text)
{
    const json_t *value = json_object_get(parent, key);

    if (!json_is_string(value)) {
        return xm_json_wrong_type(key, "a string", value);
    }
    *text = json_string_value(value);
    return XM_OK;
}

/* Sizes and counts: no negative ones, and none beyond an int. */
xm_status_t xm_json_int(const json_t *parent, const char *key, int *number)
{
    const json_t *value = json_object_get(parent, key);

    if (!json_is_integer(value)) {
        return xm_json_wrong_type(key, "an integer", value);
    }
    if (json_integer_value(value) < 0 || json_integer_value(value) > INT_MAX) {
        return XM_MALFORMED("%s is %" JSON_INTEGER_FORMAT "; it must be 0 … %d", key,
                            json_integer_value(value), INT_MAX);
    }
    *number = (int)json_integer_value(value);
    return XM_OK;
}

/* The key is the last part of a path such as "nic.bytes_per_s". */
static const char *key_of(const char *path)
{
    const char *point = strrchr(path, '.');

    return point != NULL ? point + 1 : path;
}

/* Integers are numbers as well: people write 1000 and not 1000.0. */
xm_status_t xm_json_number(const json_t *parent, const char *path, double *number)
{
    const json_t *value = json_object_get(parent, key_of(path));

    if (!json_is_number(value)) {
        return xm_json_wrong_type(path, "a number", value);
    }
    *number = json_number_value(value);
    return XM_OK;
}

/* Without the key the number keeps the value that the caller has set as default. */
xm_status_t xm_json_optional_number(const json_t *parent, const char *path, double *number)
{
    return json_object_get(parent, key_of(path)) == NULL ? XM_OK
                                                         : xm_json_number(parent, path, number);
}
