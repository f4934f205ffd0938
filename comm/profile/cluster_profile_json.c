/* SPDX-License-Identifier: Apache-2.0 */
/* Reading cluster profiles, docs/cluster-profile.md. It only brings texts into parameters and
 * leaves checking numbers to xm_cluster_profile_create(), so files and programs are held to the
 * same rules. Strings stay the document's while it is read. */
#include "comm/profile/cluster_profile_private.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/profile/curve_json.h"
#include "comm/profile/shipped.h"
#include "comm/base.h"

enum { OLDEST_VERSION = 1, PATH_SIZE = 96 };

/* The version is looked at before unknown keys: a newer file should be called newer, not
 * misspelt. */
static xm_status_t check_version(const json_t *root)
{
    int version = 0;
    xm_status_t status = xm_json_int(root, "version", &version);

    if (status == XM_OK && (version < OLDEST_VERSION || version > XM_PROFILE_VERSION)) {
        return XM_UNSUPPORTED("version is %d; this program reads versions %d to %d", version,
                              OLDEST_VERSION, XM_PROFILE_VERSION);
    }
    return status;
}

const char *xm_profile_rate_key(int rate)
{
    return rate == XM_NUMBER_ANY     ? "flop_per_s"
           : rate == XM_NUMBER_COUNT ? "memory_bytes_per_s"
                                     : xm_number_name((xm_number_t)rate);
}

/* Reads numbers by the keys of rates @p first to @p last, each of which may be missing. @p place
 * ends in a dot. */
static xm_status_t read_rates(const json_t *object, const char *place, const char *section,
                              int first, int last, double *const values[])
{
    json_t *rates = json_object_get(object, section), *rate;
    char path[PATH_SIZE];
    const char *name;

    (void)snprintf(path, sizeof(path), "%s%s", place, section);
    if (rates != NULL && !json_is_object(rates)) {
        return xm_json_wrong_type(path, "an object", rates);
    }
    json_object_foreach(rates, name, rate)
    {
        int n = first;

        while (n <= last && strcmp(xm_profile_rate_key(n), name) != 0) {
            ++n;
        }
        if (n > last) {
            return XM_MALFORMED(
                "%s has '%s'; %stypes of numbers are float16, bfloat16, float32, float64 and int8",
                path, name, first == 0 ? "it may have flop_per_s, memory_bytes_per_s, and " : "");
        }
        (void)snprintf(path, sizeof(path), "%s%s.%s", place, section, name);
        if (!json_is_number(rate)) {
            return xm_json_wrong_type(path, "a number", rate);
        }
        *values[n] = json_number_value(rate);
        /* Parameters use 0 for what is unknown, so a file must not write it. */
        if (!(*values[n] > 0)) {
            return XM_MALFORMED("%s is %g; it must be positive", path, *values[n]);
        }
    }
    return XM_OK;
}

/* Reads a device; @p place ends in a dot, since the check of keys appends the key that it
 * refuses. The typical device is followed by those of hosts. */
static xm_status_t read_device(const json_t *object, const char *place, bool typical,
                               xm_cluster_device_t *device)
{
    static const char *const keys[] = {"flop_per_s",    "memory_bytes", "memory_bytes_per_s",
                                       "flop_per_s_of", "spread",       "price_per_hour",
                                       "hosts"};
    double *values[] = {&device->flops, &device->memory_bytes, &device->memory_bandwidth};
    double *rates[XM_NUMBER_COUNT], *spreads[XM_NUMBER_COUNT + 1];
    xm_status_t status = xm_json_check_keys(object, place, keys, typical ? 7 : 6);

    for (int i = 0; i < 3 && status == XM_OK; ++i) {
        char path[PATH_SIZE];

        (void)snprintf(path, sizeof(path), "%s%s", place, keys[i]);
        status = xm_json_number(object, path, values[i]);
    }
    if (status == XM_OK) {
        char path[PATH_SIZE];

        (void)snprintf(path, sizeof(path), "%sprice_per_hour", place);
        status = xm_json_optional_number(object, path, &device->price);
    }
    for (int n = 0; n < XM_NUMBER_COUNT; ++n) {
        rates[n] = &device->number_flops[n];
        spreads[n] = &device->number_spread[n];
    }
    spreads[XM_NUMBER_COUNT] = &device->memory_spread;
    XM_THEN(status, read_rates(object, place, "flop_per_s_of", XM_NUMBER_ANY + 1,
                               XM_NUMBER_COUNT - 1, rates));
    return status == XM_OK ? read_rates(object, place, "spread", 0, XM_NUMBER_COUNT, spreads)
                           : status;
}

/* Reads the numbers of a section that may be unknown. One that is made of them alone may be
 * missing; where it is there, its first number is needed. */
static xm_status_t read_numbers(const json_t *root, const char *section, bool alone,
                                xm_cluster_profile_params_t *params)
{
    const json_t *object = json_object_get(root, section);
    const char *keys[XM_PROFILE_NUMBERS];
    double *values[XM_PROFILE_NUMBERS];
    char path[PATH_SIZE];
    size_t count = 0;
    xm_status_t status = XM_OK;

    for (int n = 0; n < XM_PROFILE_NUMBERS; ++n) {
        if (strcmp(xm_profile_numbers[n].section, section) == 0) {
            values[count] = xm_profile_number(params, &xm_profile_numbers[n]);
            keys[count++] = xm_profile_numbers[n].key;
        }
    }
    if (alone && object != NULL && (status = xm_json_object(root, section, &object)) == XM_OK) {
        (void)snprintf(path, sizeof(path), "%s.", section);
        status = xm_json_check_keys(object, path, keys, count);
    }
    for (size_t i = 0; status == XM_OK && object != NULL && i < count; ++i) {
        (void)snprintf(path, sizeof(path), "%s.%s", section, keys[i]);
        status = alone && i == 0 ? xm_json_number(object, path, values[i])
                                 : xm_json_optional_number(object, path, values[i]);
    }
    return status;
}

/* Reads everything but the curves. Strings stay the document's. */
static xm_status_t read_head(const json_t *root, xm_cluster_profile_params_t *params)
{
    static const char *const root_keys[] = {"version",          "name",   "provenance",  "hosts",
                                            "devices_per_host", "device", "nic",         "fabric",
                                            "uplink",           "curves", "collectives", "op_times",
                                            "gradient_overlap", "cores",  "runtime"};
    static const char *const nic_keys[] = {
        "bytes_per_s", "hosts", "per_host", "spread", "both_ways_bytes_per_s", "both_ways_spread"};
    const json_t *device, *nic;
    xm_status_t status;

    if (!json_is_object(root)) {
        return xm_json_wrong_type("the document", "an object", root);
    }
    if ((status = xm_json_check_kind(root, "a cluster profile")) < 0 ||
        (status = check_version(root)) < 0 ||
        (status = xm_json_check_keys(root, "", root_keys,
                                     sizeof(root_keys) / sizeof(root_keys[0]))) < 0 ||
        (status = xm_json_optional_number(root, "gradient_overlap", &params->gradient_overlap)) <
            0 ||
        (status = xm_json_string(root, "name", &params->name)) < 0 ||
        (status = xm_json_string(root, "provenance", &params->provenance)) < 0 ||
        (status = xm_json_int(root, "hosts", &params->hosts)) < 0 ||
        (status = xm_json_int(root, "devices_per_host", &params->devices_per_host)) < 0 ||
        (status = xm_json_object(root, "device", &device)) < 0 ||
        (status = read_device(device, "device.", true, &params->device)) < 0 ||
        (status = xm_json_object(root, "nic", &nic)) < 0 ||
        (status = xm_json_check_keys(nic, "nic.", nic_keys,
                                     sizeof(nic_keys) / sizeof(nic_keys[0]))) < 0 ||
        (json_object_get(nic, "per_host") != NULL &&
         (status = xm_json_int(nic, "per_host", &params->nics_per_host)) < 0) ||
        (status = read_numbers(root, "nic", false, params)) < 0) {
        return status;
    }
    /* The errors of all these calls already name the key, so they are passed on as they are. */
    return xm_json_number(nic, "nic.bytes_per_s", &params->nic_bandwidth);
}

/* Finds an array that has an entry for each host and may be missing, and makes room for what is
 * read of it. */
static xm_status_t find_hosts(const json_t *root, const char *section, const char *entries,
                              int hosts, size_t size, xm_arena_t *memory, const json_t **found,
                              void **made)
{
    const json_t *array = json_object_get(json_object_get(root, section), "hosts");
    char path[PATH_SIZE];

    *found = array;
    if (array == NULL) {
        return XM_OK;
    }
    (void)snprintf(path, sizeof(path), "%s.hosts", section);
    if (!json_is_array(array)) {
        return xm_json_wrong_type(path, entries, array);
    }
    if (json_array_size(array) != (size_t)hosts) {
        return XM_MALFORMED("%s has %zu entries; the cluster has %d hosts", path,
                            json_array_size(array), hosts);
    }
    /* `hosts` has not been checked yet, but it equals the length of an array in memory. */
    *made = xm_arena_get(memory, (size_t)hosts, size);
    return *made != NULL
               ? XM_OK
               : xm_error_set(XM_ERR_NO_MEMORY, "%s: no memory for %d hosts", path, hosts);
}

/* Reads nic.hosts, which may be missing: the rate of each host. */
static xm_status_t read_host_rates(const json_t *root, xm_arena_t *memory,
                                   xm_cluster_profile_params_t *params)
{
    const json_t *array;
    void *made = NULL;
    xm_status_t status = find_hosts(root, "nic", "an array of numbers", params->hosts,
                                    sizeof(double), memory, &array, &made);
    double *rates = made;

    for (int h = 0; status == XM_OK && array != NULL && h < params->hosts; ++h) {
        const json_t *rate = json_array_get(array, (size_t)h);
        char path[PATH_SIZE];

        (void)snprintf(path, sizeof(path), "nic.hosts[%d]", h);
        if (!json_is_number(rate)) {
            return xm_json_wrong_type(path, "a number", rate);
        }
        rates[h] = json_number_value(rate);
    }
    params->host_nic_bandwidth = rates;
    return status;
}

/* Reads device.hosts, which may be missing: the devices of each host. */
static xm_status_t read_host_devices(const json_t *root, xm_arena_t *memory,
                                     xm_cluster_profile_params_t *params)
{
    const json_t *array;
    void *made = NULL;
    xm_status_t status = find_hosts(root, "device", "an array of objects", params->hosts,
                                    sizeof(xm_cluster_device_t), memory, &array, &made);
    xm_cluster_device_t *devices = made;

    for (int h = 0; status == XM_OK && array != NULL && h < params->hosts; ++h) {
        const json_t *object = json_array_get(array, (size_t)h);
        char path[PATH_SIZE];

        (void)snprintf(path, sizeof(path), "device.hosts[%d].", h);
        status = json_is_object(object) ? read_device(object, path, false, &devices[h])
                                        : xm_json_wrong_type(path, "an object", object);
    }
    params->host_device = devices;
    return status;
}

/* Reads uplink, which may be missing. */
static xm_status_t read_uplink(const json_t *root, xm_cluster_profile_params_t *params)
{
    static const char *const keys[] = {"hosts_per_rack", "bytes_per_s"};
    const json_t *uplink = json_object_get(root, "uplink");
    xm_status_t status;

    if (uplink == NULL) {
        return XM_OK;
    }
    if ((status = xm_json_object(root, "uplink", &uplink)) < 0 ||
        (status = xm_json_check_keys(uplink, "uplink.", keys, 2)) < 0 ||
        (status = xm_json_int(uplink, "hosts_per_rack", &params->hosts_per_rack)) < 0) {
        return status;
    }
    /* Parameters use 0 for "no racks", so a file must not write it: the key would be ignored in
     * silence. */
    if (params->hosts_per_rack == 0) {
        return XM_MALFORMED("uplink.hosts_per_rack is 0; it must be at least 1");
    }
    return xm_json_number(uplink, "uplink.bytes_per_s", &params->uplink_bandwidth);
}

/* Reads the type of an entry, which may be missing. */
static xm_status_t read_type(const json_t *entry, const char *place, xm_number_t *number)
{
    const json_t *type = json_object_get(entry, "type");
    char path[PATH_SIZE];

    (void)snprintf(path, sizeof(path), "%stype", place);
    if (type != NULL && !json_is_string(type)) {
        return xm_json_wrong_type(path, "a string", type);
    }
    if (type != NULL && !xm_number_find(json_string_value(type), number)) {
        return XM_MALFORMED(
            "%s is '%s'; types of numbers are float16, bfloat16, float32, float64 and int8", path,
            json_string_value(type));
    }
    return XM_OK;
}

/* Reads op_times, which may be missing. Names stay the document's. */
static xm_status_t read_op_times(const json_t *root, xm_arena_t *memory,
                                 xm_cluster_profile_params_t *params)
{
    static const char *const keys[] = {"op", "flops", "bytes", "seconds", "type"};
    const json_t *array = json_object_get(root, "op_times");
    size_t size = json_array_size(array);
    xm_op_time_t *entries;
    xm_status_t status = XM_OK;

    if (array == NULL) {
        return XM_OK;
    }
    if (!json_is_array(array)) {
        return xm_json_wrong_type("op_times", "an array of objects", array);
    }
    entries = xm_arena_get(memory, size, sizeof(*entries));
    if (entries == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "op_times: no memory for %zu entries", size);
    }
    for (size_t i = 0; status == XM_OK && i < size; ++i) {
        const json_t *entry = json_array_get(array, i);
        xm_op_time_t *into = &entries[i];
        char place[PATH_SIZE], path[PATH_SIZE + 8];

        (void)snprintf(place, sizeof(place), "op_times[%zu]", i);
        if (!json_is_object(entry)) {
            return xm_json_wrong_type(place, "an object", entry);
        }
        (void)strcat(place, ".");
        status = xm_json_check_keys(entry, place, keys, 5);
        XM_THEN(status, xm_json_string(entry, "op", &into->op));
        XM_THEN(status, read_type(entry, place, &into->number));
        for (int k = 1; status == XM_OK && k < 4; ++k) {
            double *const numbers[] = {NULL, &into->flops, &into->bytes, &into->seconds};

            (void)snprintf(path, sizeof(path), "%s%s", place, keys[k]);
            status = xm_json_number(entry, path, numbers[k]);
        }
    }
    params->op_times = entries;
    params->op_time_count = size;
    return status;
}

/* Reads all parts, then creates the profile; what was read is freed at the end, whichever step
 * has failed. */
static xm_status_t from_json(const json_t *root, xm_cluster_profile_t **profile)
{
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    const char *names[XM_LINK_CURVES];
    xm_collective_curve_t *collectives = NULL;
    const json_t *curves = NULL;
    xm_arena_t memory = {0};
    xm_status_t status = read_head(root, &params);

    /* Up to here nothing is allocated, so these may return at once. */
    if (status < 0 || (status = read_uplink(root, &params)) < 0 ||
        (status = read_numbers(root, "fabric", true, &params)) < 0 ||
        (status = read_numbers(root, "cores", true, &params)) < 0 ||
        (status = xm_runtime_from_json(root, &params.runtime)) < 0 ||
        (status = xm_json_object(root, "curves", &curves)) < 0) {
        return status;
    }
    for (int link = 0; link < XM_LINK_CURVES; ++link) {
        names[link] = xm_link_class_name((xm_link_class_t)link);
    }
    status = xm_json_check_keys(curves, "curves.", names, XM_LINK_CURVES);
    for (int link = 0; status == XM_OK && link < XM_LINK_CURVES; ++link) {
        char path[PATH_SIZE];

        if (link >= XM_LINK_HOT && json_object_get(curves, names[link]) == NULL) {
            continue;
        }
        (void)snprintf(path, sizeof(path), "curves.%s", names[link]);
        /* The parameters point into this memory until the profile has copied them. */
        status = xm_curve_from_json(json_object_get(curves, names[link]), path, &memory,
                                    &params.curve[link], &params.curve_spread[link],
                                    &params.curve_points[link]);
    }
    if (status == XM_OK) {
        status = xm_collectives_from_json(json_object_get(root, "collectives"), &collectives,
                                          &params.collective_count);
        params.collectives = collectives;
    }
    XM_THEN(status, read_op_times(root, &memory, &params));
    XM_THEN(status, read_host_rates(root, &memory, &params));
    XM_THEN(status, read_host_devices(root, &memory, &params));
    XM_THEN(status, xm_cluster_profile_create(&params, profile));
    xm_collective_curves_free(collectives, params.collective_count);
    xm_arena_clear(&memory);
    return status;
}

/* Duplicate keys are refused: which of them counts would be an accident. */
xm_status_t xm_cluster_profile_from_text(const char *text, size_t length, const char *source,
                                         xm_cluster_profile_t **profile)
{
    XM_NEED_ARGUMENTS(text, source, profile);
    json_t *root;
    xm_status_t status;

    XM_TRY(xm_json_parse(source, text, length, &root));
    status = from_json(root, profile);
    json_decref(root);
    return status < 0 ? xm_error_prefix(status, "%s", source) : XM_OK;
}

/* A word that is neither a file nor a shipped cluster may be either, misspelt. */
static xm_status_t not_found(const char *path)
{
    char names[256] = "";
    const char *name;
    xm_error_t error;

    xm_error_save(&error, XM_ERR_NOT_FOUND);
    if (strpbrk(path, "/.") != NULL) {
        return xm_error_restore(&error);
    }
    for (size_t i = 0; (name = xm_cluster_shipped_name(i)) != NULL; ++i) {
        xm_text_list_add(names, sizeof(names), ", ", "%s", name);
    }
    return XM_NOT_FOUND("%s: no such file, and no cluster that ships (%s)", path, names);
}

/* A file comes before a cluster that ships under its name. Errors name the file, then the path in
 * it. */
xm_status_t xm_cluster_profile_load(const char *path, xm_cluster_profile_t **profile)
{
    XM_NEED_ARGUMENTS(path, profile);
    const char *shipped = xm_cluster_shipped_text(path);
    char *text = NULL;
    size_t length = 0;
    xm_status_t status = xm_text_load(path, &text, &length);

    if (status == XM_OK) {
        status = xm_cluster_profile_from_text(text, length, path, profile);
    } else if (status == XM_ERR_NOT_FOUND) {
        status = shipped != NULL
                     ? xm_cluster_profile_from_text(shipped, strlen(shipped), path, profile)
                     : not_found(path);
    }
    free(text);
    return status;
}
