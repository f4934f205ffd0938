/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading JSON files of models, meshes and tables, with errors that say where and what.
 * Keys that nobody knows are refused with the nearest known one, since a misspelt key
 * would otherwise be a silent default. Keys that begin with an underscore are comments.
 */
#include "bench/model/json_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

xm_status_t rb_json_load(const char *path, json_t **root)
{
    json_t *read = NULL;
    char *text;
    size_t length;
    xm_status_t status = xm_text_load(path, &text, &length);

    if (status == XM_OK) {
        status = xm_json_parse(path, text, length, &read);
        free(text);
    }
    XM_TRY(status);
    if (!json_is_object(read)) {
        status =
            XM_MALFORMED("%s: the document is %s; it must be an object", path, xm_json_type(read));
        json_decref(read);
        return status;
    }
    status = xm_json_check_kind(read, "a file of --model-config, --system-config or --shard-table");
    if (status < 0) {
        json_decref(read);
        return xm_error_prefix(status, "%s", path);
    }
    *root = read;
    return XM_OK;
}

/* Comments are allowed as keys because JSON has no other place for them. */
bool rb_json_is_comment(const char *key)
{
    return key[0] == '_';
}

/* The first unknown key is reported with the nearest known one. */
xm_status_t rb_json_check_keys(const json_t *object, const char *where, const char *const *keys,
                               size_t count)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)object, key, value)
    {
        bool known = rb_json_is_comment(key);
        int index;

        for (size_t i = 0; i < count; ++i) {
            known = known || strcmp(key, keys[i]) == 0;
        }
        if (!known) {
            (void)xm_text_choose("key", key, keys, count, &index);
            return xm_error_prefix(XM_ERR_PARSE, "%s", where);
        }
    }
    return XM_OK;
}

/* An absent key leaves the caller's default. */
xm_status_t rb_json_int(const json_t *object, const char *where, const char *key, int64_t minimum,
                        int64_t maximum, int64_t *value)
{
    const json_t *found = json_object_get(object, key);

    if (found == NULL) {
        return XM_OK;
    }
    if (!json_is_integer(found)) {
        return XM_MALFORMED("%s: '%s' is %s; it must be an integer", where, key,
                            xm_json_type(found));
    }
    if (json_integer_value(found) < minimum || json_integer_value(found) > maximum) {
        return XM_MALFORMED("%s: '%s' is %" JSON_INTEGER_FORMAT "; it must be %" PRId64
                            " to %" PRId64,
                            where, key, json_integer_value(found), minimum, maximum);
    }
    *value = json_integer_value(found);
    return XM_OK;
}
