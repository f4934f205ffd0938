/* SPDX-License-Identifier: Apache-2.0 */
/* Curves and collectives as JSON, the part of cluster profiles that people edit by hand. Every
 * mistake is therefore answered with the path of the element, "curve[3][1] is …". A curve has
 * spreads at all points or at none, because a planner could not use half of them. These functions
 * check types and shapes; curve.c checks that the numbers make sense. */
#include "comm/profile/curve_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

enum { PATH_SIZE = 96 };

/* Reads one point: [bytes, seconds] or [bytes, seconds, spread]. */
static xm_status_t read_point(const json_t *entry, const char *path, bool with_spread,
                              xm_curve_point_t *point, double *spread)
{
    char element[PATH_SIZE + 8];
    const json_t *bytes = json_array_get(entry, 0), *seconds = json_array_get(entry, 1);
    size_t size = json_array_size(entry);

    if (!json_is_array(entry)) {
        return xm_json_wrong_type(path, "an array [bytes, seconds]", entry);
    }
    if (size != 2 && size != 3) {
        return XM_MALFORMED(
            "%s has %zu elements; it must be [bytes, seconds] or [bytes, seconds, spread]", path,
            size);
    }
    /* The first point decides whether the curve has spreads. */
    if ((size == 3) != with_spread) {
        return XM_MALFORMED("%s has %zu elements and the points before it have %d", path, size,
                            with_spread ? 3 : 2);
    }
    if (!json_is_integer(bytes)) {
        (void)snprintf(element, sizeof(element), "%s[0]", path);
        return xm_json_wrong_type(element, "an integer (bytes)", bytes);
    }
    if (json_integer_value(bytes) < 0) {
        return XM_MALFORMED("%s[0] is %" JSON_INTEGER_FORMAT "; bytes cannot be negative", path,
                            json_integer_value(bytes));
    }
    if (!json_is_number(seconds)) {
        (void)snprintf(element, sizeof(element), "%s[1]", path);
        return xm_json_wrong_type(element, "a number (seconds)", seconds);
    }
    if (with_spread && !json_is_number(json_array_get(entry, 2))) {
        (void)snprintf(element, sizeof(element), "%s[2]", path);
        return xm_json_wrong_type(element, "a number (spread)", json_array_get(entry, 2));
    }
    /* Without a third element the spread is 0, and the caller drops the array. */
    point->bytes = (uint64_t)json_integer_value(bytes);
    point->seconds = json_number_value(seconds);
    *spread = json_number_value(json_array_get(entry, 2));
    return XM_OK;
}

xm_status_t xm_curve_from_json(const json_t *array, const char *path, xm_arena_t *memory,
                               const xm_curve_point_t **points, const double **spread,
                               size_t *count)
{
    size_t size = json_array_size(array);
    /* An empty or wrong array gives false here; it is refused below or by the check of the
     * curve. */
    bool with_spread = json_array_size(json_array_get(array, 0)) == 3;
    xm_curve_point_t *read = xm_arena_get(memory, size, sizeof(*read));
    double *spreads = xm_arena_get(memory, size, sizeof(*spreads));
    xm_status_t status = XM_OK;

    if (!json_is_array(array)) {
        return xm_json_wrong_type(path, "an array of [bytes, seconds]", array);
    }
    if (read == NULL || spreads == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "%s: no memory for %zu points", path, size);
    }
    for (size_t i = 0; status == XM_OK && i < size; ++i) {
        char element[PATH_SIZE];

        (void)snprintf(element, sizeof(element), "%s[%zu]", path, i);
        status = read_point(json_array_get(array, i), element, with_spread, &read[i], &spreads[i]);
    }
    *points = read;
    *spread = with_spread ? spreads : NULL;
    *count = size;
    return status;
}

/* The caller owns the result; NULL makes json_pack() fail, and with it the whole document. */
json_t *xm_curve_to_json(const xm_curve_point_t *points, const double *spread, size_t count)
{
    json_t *array = json_array();

    for (size_t i = 0; i < count; ++i) {
        json_t *point = json_pack("[I,f]", (json_int_t)points[i].bytes, points[i].seconds);

        if (spread != NULL) {
            (void)json_array_append_new(point, json_real(spread[i]));
        }
        (void)json_array_append_new(array, point);
    }
    return array;
}

/* Reads one collective; unknown keys are refused, since a misspelt one would otherwise be
 * ignored. */
static xm_status_t read_collective(const json_t *entry, const char *path,
                                   xm_collective_curve_t *curve)
{
    static const char *const keys[] = {"collective",      "hosts",   "devices_per_host",
                                       "groups_per_host", "library", "curve"};
    const char *names[XM_COLLECTIVE_COUNT], *name = NULL;
    char prefix[PATH_SIZE], key[PATH_SIZE + 8];
    xm_collective_curve_t read = {0};
    xm_arena_t memory = {0};
    xm_status_t status;
    int kind = 0;

    if (!json_is_object(entry)) {
        return xm_json_wrong_type(path, "an object", entry);
    }
    (void)snprintf(prefix, sizeof(prefix), "%s.", path);
    (void)snprintf(key, sizeof(key), "%scurve", prefix);
    for (int i = 0; i < XM_COLLECTIVE_COUNT; ++i) {
        names[i] = xm_collective_name((xm_collective_t)i);
    }
    if ((status = xm_json_check_keys(entry, prefix, keys, 6)) < 0) {
        return status;
    }
    if ((status = xm_json_string(entry, "collective", &name)) < 0 ||
        (status = xm_text_choose("collective", name, names, XM_COLLECTIVE_COUNT, &kind)) < 0 ||
        (status = xm_json_int(entry, "hosts", &read.hosts)) < 0 ||
        (status = xm_json_int(entry, "devices_per_host", &read.devices_per_host)) < 0 ||
        (status = xm_json_int(entry, "groups_per_host", &read.groups_per_host)) < 0 ||
        (status = xm_json_string(entry, "library", &read.library)) < 0) {
        return xm_error_prefix(status, "%s", path);
    }
    /* `read` only borrows the document's strings and these arrays; the copy at the end owns
     * everything. */
    read.kind = (xm_collective_t)kind;
    status = xm_curve_from_json(json_object_get(entry, "curve"), key, &memory, &read.points,
                                &read.spread, &read.count);
    XM_THEN(status, xm_collective_curve_check(path, &read));
    XM_THEN(status, xm_collective_curve_copy(&read, curve));
    xm_arena_clear(&memory);
    return status;
}

/* A missing array is an empty one: profiles from before there were collectives have none. */
xm_status_t xm_collectives_from_json(const json_t *array, xm_collective_curve_t **curves,
                                     size_t *count)
{
    size_t size = json_array_size(array), made = 0;
    xm_collective_curve_t *read;
    xm_status_t status = XM_OK;

    if (array != NULL && !json_is_array(array)) {
        return xm_json_wrong_type("collectives", "an array of objects", array);
    }
    read = calloc(size + 1, sizeof(*read));
    XM_NEED_MEMORY(read, "%zu collectives", size);
    /* `made` counts whole curves only, so that a failure frees exactly those. */
    for (; made < size; ++made) {
        char path[PATH_SIZE];

        (void)snprintf(path, sizeof(path), "collectives[%zu]", made);
        status = read_collective(json_array_get(array, made), path, &read[made]);
        if (status < 0) {
            xm_collective_curves_free(read, made);
            return status;
        }
    }
    *curves = read;
    *count = size;
    return XM_OK;
}

/* The keys are those of read_collective(): what is written here can be read back. */
json_t *xm_collective_to_json(const xm_collective_curve_t *curve)
{
    return json_pack("{s:s,s:i,s:i,s:i,s:s,s:o}", "collective", xm_collective_name(curve->kind),
                     "hosts", curve->hosts, "devices_per_host", curve->devices_per_host,
                     "groups_per_host", curve->groups_per_host, "library", curve->library, "curve",
                     xm_curve_to_json(curve->points, curve->spread, curve->count));
}
