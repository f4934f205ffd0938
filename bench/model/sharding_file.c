/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON form of a sharding table (docs/model-suite.md). Every key is checked for its
 * type and range, and combinations that have no meaning are refused, with the number of
 * the rule in the sentence.
 */
#include "bench/model/sharding.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/model/json_file.h"
#include "comm/base.h"

/* Reads the dimension that an axis splits; none where `axis` is absent or null. */
static xm_status_t read_dimension(const json_t *entry, const char *where, const char *axis,
                                  int *dimension)
{
    int64_t value = RB_SHARD_NONE;
    xm_status_t status = XM_OK;

    if (!json_is_null(json_object_get(entry, axis))) {
        status = rb_json_int(entry, where, axis, 0, XM_MAX_DIMS - 1, &value);
    }
    *dimension = (int)value;
    return status;
}

static xm_status_t read_text(const json_t *entry, const char *where, const char *key, char *text,
                             size_t size)
{
    const json_t *value = json_object_get(entry, key);

    if (!json_is_string(value) || json_string_length(value) == 0) {
        return XM_MALFORMED("%s: '%s' is %s; it must be a string, not empty", where, key,
                            json_is_string(value) ? "an empty string" : xm_json_type(value));
    }
    if (json_string_length(value) >= size) {
        return XM_MALFORMED("%s: '%s' has %zu characters; the most is %zu", where, key,
                            json_string_length(value), size - 1);
    }
    (void)snprintf(text, size, "%s", json_string_value(value));
    return XM_OK;
}

static xm_status_t read_flag(const json_t *entry, const char *where, const char *key, bool *flag)
{
    const json_t *value = json_object_get(entry, key);

    if (value != NULL && !json_is_boolean(value)) {
        return XM_MALFORMED("%s: '%s' is %s; it must be true or false", where, key,
                            xm_json_type(value));
    }
    *flag = json_is_true(value);
    return XM_OK;
}

/* `ep` is a dimension, or "name" where each tensor is one expert. */
static xm_status_t read_ep(const json_t *entry, const char *where, rb_shard_rule_t *rule)
{
    const json_t *ep = json_object_get(entry, "ep");

    if (!json_is_string(ep)) {
        return read_dimension(entry, where, "ep", &rule->ep);
    }
    if (strcmp(json_string_value(ep), "name") != 0) {
        return XM_MALFORMED("%s: 'ep' is '%s'; it must be a dimension, null or \"name\"", where,
                            json_string_value(ep));
    }
    rule->ep = RB_SHARD_EXPERT_IN_NAME;
    return XM_OK;
}

static xm_status_t read_stage(const json_t *entry, const char *where, rb_shard_rule_t *rule)
{
    static const char *const names[] = {"last", "first"};
    char text[RB_PACK_NAME];
    int index;
    xm_status_t status;

    if (json_object_get(entry, "stage") == NULL) {
        return XM_OK;
    }
    status = read_text(entry, where, "stage", text, sizeof(text));
    if (status == XM_OK) {
        status = xm_text_choose("stage", text, names, 2, &index);
        if (status < 0) {
            return xm_error_prefix(status, "%s", where);
        }
        rule->first_stage = index == 1;
    }
    return status;
}

/* A packed module and the place in it are only useful together. */
static xm_status_t read_pack(const json_t *entry, const char *where, rb_shard_rule_t *rule)
{
    int64_t part = 0;
    xm_status_t status;

    if ((json_object_get(entry, "pack") == NULL) != (json_object_get(entry, "part") == NULL)) {
        return XM_MALFORMED("%s: 'pack' and 'part' come together", where);
    }
    if (json_object_get(entry, "pack") == NULL) {
        return XM_OK;
    }
    status = read_text(entry, where, "pack", rule->pack, sizeof(rule->pack));
    XM_THEN(status, rb_json_int(entry, where, "part", 0, RB_MAX_PARTS - 1, &part));
    rule->part = (int)part;
    return status;
}

/* `tp` has to be given even as null, so that replication is always a decision. */
static xm_status_t read_rule(const json_t *entry, const char *where, rb_shard_rule_t *rule)
{
    static const char *const keys[] = {"name", "tp", "ep", "heads", "stage", "pack", "part"};
    xm_status_t status;

    if (!json_is_object(entry)) {
        return XM_MALFORMED("%s is %s; it must be an object", where, xm_json_type(entry));
    }
    if (json_object_get(entry, "tp") == NULL) {
        return XM_MALFORMED("%s: 'tp' is missing; it must be a dimension or null", where);
    }
    if ((status = rb_json_check_keys(entry, where, keys, sizeof(keys) / sizeof(keys[0]))) < 0 ||
        (status = read_text(entry, where, "name", rule->pattern, sizeof(rule->pattern))) < 0 ||
        (status = read_dimension(entry, where, "tp", &rule->tp)) < 0 ||
        (status = read_ep(entry, where, rule)) < 0 ||
        (status = read_flag(entry, where, "heads", &rule->heads)) < 0 ||
        (status = read_stage(entry, where, rule)) < 0 ||
        (status = read_pack(entry, where, rule)) < 0) {
        return status;
    }
    if (rule->tp >= 0 && rule->tp == rule->ep) {
        return XM_INVALID("%s: tp and ep both split dimension %d", where, rule->tp);
    }
    if (rule->heads && (rule->tp != 0 || rule->ep != RB_SHARD_NONE)) {
        return XM_INVALID("%s: 'heads' needs 'tp' 0 and no 'ep'", where);
    }
    return XM_OK;
}

/* The count rises with every rule, so the caller frees what has been made on a failure. */
static xm_status_t read_rules(const json_t *root, rb_shard_table_t *table)
{
    static const char *const keys[] = {"rules", "head_size"};
    const json_t *rules = json_object_get(root, "rules");
    size_t count = json_array_size(rules);
    xm_status_t status = XM_OK;

    XM_TRY(rb_json_check_keys(root, "the document", keys, 2));
    if (rules != NULL && !json_is_array(rules)) {
        return XM_MALFORMED("'rules' is %s; it must be an array of objects", xm_json_type(rules));
    }
    XM_TRY(rb_json_int(root, "the document", "head_size", 1, INT32_MAX, &table->head_size));
    table->rules = calloc(count + 1, sizeof(*table->rules));
    XM_NEED_MEMORY(table->rules, "%zu entries", count);
    for (size_t i = 0; status == XM_OK && i < count; ++i) {
        char where[32];

        (void)snprintf(where, sizeof(where), "rules[%zu]", i);
        status = read_rule(json_array_get(rules, i), where, &table->rules[i]);
        ++table->count;
    }
    return status;
}

/* Without a path the table is empty and only the built-in rules apply. */
xm_status_t rb_shard_table_read(const char *path, rb_shard_table_t *table)
{
    rb_shard_table_t read = {0};
    json_t *root;
    xm_status_t status;

    if (path == NULL) {
        *table = read;
        return XM_OK;
    }
    XM_TRY(rb_json_load(path, &root));
    status = read_rules(root, &read);
    json_decref(root);
    if (status < 0) {
        rb_shard_table_clear(&read);
        return xm_error_prefix(status, "%s", path);
    }
    *table = read;
    return XM_OK;
}
