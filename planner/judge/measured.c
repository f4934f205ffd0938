/* SPDX-License-Identifier: Apache-2.0 */
/* Reads measured steps and their plans. Texts stay the document's. */

#include "planner/judge/measured.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

static xm_status_t read_row(const char *path, size_t index, json_t *item, ap_measured_row_t *row)
{
    static const char *const keys[] = {"name",   "plan",         "step_s",
                                       "sync_s", "memory_bytes", "other_step_s"};
    const char *slash = strrchr(path, '/'), *plan;
    double *const numbers[] = {&row->step, &row->sync, &row->memory, &row->other_step};
    char place[64], file[PATH_MAX];
    xm_status_t status;

    (void)snprintf(place, sizeof(place), "rows[%zu].", index);
    if (!json_is_object(item)) {
        return xm_json_wrong_type(place, "an object", item);
    }
    if ((status = xm_json_check_keys(item, place, keys, sizeof(keys) / sizeof(keys[0]))) < 0 ||
        (status = xm_json_string(item, "name", &row->name)) < 0 ||
        (status = xm_json_string(item, "plan", &plan)) < 0) {
        return xm_error_prefix(status, "rows[%zu]", index);
    }
    for (int i = 0; i < 4; ++i) {
        (void)snprintf(place, sizeof(place), "rows[%zu].%s", index, keys[i + 2]);
        if ((status = xm_json_optional_number(item, place, numbers[i])) < 0) {
            return status;
        }
        if (!(*numbers[i] >= 0) || (i == 0 && *numbers[i] == 0)) {
            return XM_MALFORMED("%s is %g; it must be positive", place, *numbers[i]);
        }
    }
    if (snprintf(file, sizeof(file), "%.*s%s", slash != NULL ? (int)(slash - path) + 1 : 0, path,
                 plan) >= (int)sizeof(file)) {
        return XM_MALFORMED("rows[%zu].plan is too long a name", index);
    }
    return ap_plan_load(file, &row->plan);
}

static xm_status_t read_document(const char *path, ap_measured_t *measured)
{
    static const char *const keys[] = {"format", "version", "source", "blocking", "other", "rows"};
    json_t *root = measured->document, *rows = json_object_get(root, "rows");
    const json_t *blocking = json_object_get(root, "blocking");
    xm_status_t status;

    if (!json_is_object(root)) {
        return xm_json_wrong_type("the document", "an object", root);
    }
    if ((status = xm_json_check_kind(root, "measured steps")) < 0 ||
        (status = xm_json_check_keys(root, "", keys, sizeof(keys) / sizeof(keys[0]))) < 0 ||
        (status = xm_json_string(root, "source", &measured->source)) < 0 ||
        (json_object_get(root, "other") != NULL &&
         (status = xm_json_string(root, "other", &measured->other)) < 0)) {
        return status;
    }
    if (blocking != NULL && !json_is_boolean(blocking)) {
        return xm_json_wrong_type("blocking", "true or false", blocking);
    }
    measured->blocking = json_is_true(blocking);
    if (!json_is_array(rows) || json_array_size(rows) == 0) {
        return xm_json_wrong_type("rows", "an array of rows", rows);
    }
    measured->rows = calloc(json_array_size(rows), sizeof(*measured->rows));
    XM_NEED_MEMORY(measured->rows, "%zu rows", json_array_size(rows));
    for (size_t i = 0; i < json_array_size(rows) && status == XM_OK; ++i) {
        ++measured->count;
        status = read_row(path, i, json_array_get(rows, i), &measured->rows[i]);
    }
    return status;
}

xm_status_t ap_measured_load(const char *path, ap_measured_t *measured)
{
    size_t length;
    char *text;
    xm_status_t status;

    *measured = (ap_measured_t){0};
    XM_TRY(xm_text_load(path, &text, &length));
    status = xm_json_parse(path, text, length, &measured->document);
    free(text);
    if (status == XM_OK && (status = read_document(path, measured)) != XM_OK) {
        status = xm_error_prefix(status, "%s", path);
    }
    if (status != XM_OK) {
        ap_measured_clear(measured);
    }
    return status;
}

void ap_measured_clear(ap_measured_t *measured)
{
    if (measured != NULL) {
        for (int i = 0; i < measured->count; ++i) {
            ap_plan_destroy(measured->rows[i].plan);
        }
        free(measured->rows);
        json_decref(measured->document);
        *measured = (ap_measured_t){0};
    }
}
