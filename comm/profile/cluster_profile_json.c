/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON form of a cluster profile, docs/cluster-profile.md. Reading only brings texts into
 * parameters and leaves checking numbers to xm_cluster_profile_create(), so files and programs
 * are held to the same rules. Strings stay the document's while it is read. What a profile may
 * leave out is left out when it has nothing to say, so files of simple clusters stay short. */
#include "comm/profile/cluster_profile_private.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/profile/curve_json.h"
#include "comm/profile/shipped.h"
#include "comm/base.h"

/* The version that is written; older files are read too. */
enum { FORMAT_VERSION = 2, OLDEST_VERSION = 1, PATH_SIZE = 96 };

/* The version is looked at before unknown keys: a newer file should be called newer, not
 * misspelt. */
static xm_status_t check_version(const json_t *root)
{
    int version = 0;
    xm_status_t status = xm_json_int(root, "version", &version);

    if (status == XM_OK && (version < OLDEST_VERSION || version > FORMAT_VERSION)) {
        return XM_UNSUPPORTED("version is %d; this program reads versions %d to %d", version,
                              OLDEST_VERSION, FORMAT_VERSION);
    }
    return status;
}

/* The keys of a device's rates: of any number, of each type, of its memory. */
static const char *rate_key(int rate)
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

        while (n <= last && strcmp(rate_key(n), name) != 0) {
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
    if (status == XM_OK) {
        status = read_rates(object, place, "flop_per_s_of", XM_NUMBER_ANY + 1, XM_NUMBER_COUNT - 1,
                            rates);
    }
    return status == XM_OK ? read_rates(object, place, "spread", 0, XM_NUMBER_COUNT, spreads)
                           : status;
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
        (status = xm_json_optional_number(nic, "nic.spread", &params->nic_spread)) < 0 ||
        (status = xm_json_optional_number(nic, "nic.both_ways_bytes_per_s",
                                          &params->nic_both_ways)) < 0 ||
        (status = xm_json_optional_number(nic, "nic.both_ways_spread",
                                          &params->nic_both_ways_spread)) < 0) {
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

/* Reads an object that may be missing: its first number is needed, others may be missing. */
static xm_status_t read_numbers(const json_t *root, const char *section, const char *const *keys,
                                double *const *values, int count)
{
    const json_t *object = json_object_get(root, section);
    char path[PATH_SIZE];
    xm_status_t status;

    if (object == NULL) {
        return XM_OK;
    }
    (void)snprintf(path, sizeof(path), "%s.", section);
    if ((status = xm_json_object(root, section, &object)) < 0 ||
        (status = xm_json_check_keys(object, path, keys, (size_t)count)) < 0) {
        return status;
    }
    for (int i = 0; status == XM_OK && i < count; ++i) {
        (void)snprintf(path, sizeof(path), "%s.%s", section, keys[i]);
        status = i == 0 ? xm_json_number(object, path, values[i])
                        : xm_json_optional_number(object, path, values[i]);
    }
    return status;
}

static xm_status_t read_fabric(const json_t *root, xm_cluster_profile_params_t *params)
{
    static const char *const keys[] = {"bytes_per_s", "spread"};
    double *const values[] = {&params->host_fabric, &params->host_fabric_spread};

    return read_numbers(root, "fabric", keys, values, 2);
}

static xm_status_t read_cores(const json_t *root, xm_cluster_profile_params_t *params)
{
    static const char *const keys[] = {"per_host", "nic_s_per_byte", "host_s_per_byte"};
    double *const values[] = {&params->cores_per_host, &params->nic_cpu, &params->host_cpu};

    return read_numbers(root, "cores", keys, values, 3);
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
        if (status == XM_OK) {
            status = xm_json_string(entry, "op", &into->op);
        }
        if (status == XM_OK) {
            status = read_type(entry, place, &into->number);
        }
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
        (status = read_fabric(root, &params)) < 0 || (status = read_cores(root, &params)) < 0 ||
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
    if (status == XM_OK) {
        status = read_op_times(root, &memory, &params);
    }
    if (status == XM_OK) {
        status = read_host_rates(root, &memory, &params);
    }
    if (status == XM_OK) {
        status = read_host_devices(root, &memory, &params);
    }
    if (status == XM_OK) {
        status = xm_cluster_profile_create(&params, profile);
    }
    xm_collective_curves_free(collectives, params.collective_count);
    xm_arena_clear(&memory);
    return status;
}

/* Duplicate keys are refused: which of them counts would be an accident. */
xm_status_t xm_cluster_profile_from_text(const char *text, size_t length, const char *source,
                                         xm_cluster_profile_t **profile)
{
    if (XM_IS_NULL(text) || XM_IS_NULL(source) || XM_IS_NULL(profile)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    json_t *root;
    xm_status_t status = xm_json_parse(source, text, length, &root);

    if (status != XM_OK) {
        return status;
    }
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
        size_t length = strlen(names);

        (void)snprintf(names + length, sizeof(names) - length, "%s%s", i > 0 ? ", " : "", name);
    }
    return XM_NOT_FOUND("%s: no such file, and no cluster that ships (%s)", path, names);
}

/* A file comes before a cluster that ships under its name. Errors name the file, then the path in
 * it. */
xm_status_t xm_cluster_profile_load(const char *path, xm_cluster_profile_t **profile)
{
    if (XM_IS_NULL(path) || XM_IS_NULL(profile)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
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

/* The curve's reference goes to the document that it is packed into. */
static json_t *curve_to_json(const xm_cluster_profile_t *profile, xm_link_class_t link)
{
    size_t points;
    const xm_curve_point_t *curve = xm_cluster_profile_curve(profile, link, &points);

    return xm_curve_to_json(curve, xm_cluster_profile_spread(profile, link), points);
}

/* An absent key reads as 0, so a 0 need not be written. */
static void add_positive(json_t *object, const char *key, double value)
{
    if (value > 0) {
        (void)json_object_set_new(object, key, json_real(value));
    }
}

/* Takes the member, which is left out when it has nothing to say. */
static void add_object(json_t *object, const char *key, json_t *member)
{
    if (json_object_size(member) > 0) {
        (void)json_object_set(object, key, member);
    }
    json_decref(member);
}

static json_t *device_to_json(xm_cluster_device_t device)
{
    json_t *object = json_pack("{s:f,s:f,s:f}", "flop_per_s", device.flops, "memory_bytes",
                               device.memory_bytes, "memory_bytes_per_s", device.memory_bandwidth);
    json_t *rates = json_object(), *spread = json_object();

    for (int n = 0; n < XM_NUMBER_COUNT; ++n) {
        add_positive(rates, rate_key(n), device.number_flops[n]);
        add_positive(spread, rate_key(n), device.number_spread[n]);
    }
    add_positive(spread, rate_key(XM_NUMBER_COUNT), device.memory_spread);
    add_object(object, "flop_per_s_of", rates);
    add_object(object, "spread", spread);
    add_positive(object, "price_per_hour", device.price);
    return object;
}

static void add_cores(const xm_cluster_profile_t *profile, json_t *root)
{
    json_t *cores = json_object();
    double per_host, nic, host;

    xm_cluster_profile_processors(profile, &per_host, &nic, &host);
    if (per_host > 0) {
        add_positive(cores, "per_host", per_host);
        add_positive(cores, "nic_s_per_byte", nic);
        add_positive(cores, "host_s_per_byte", host);
    }
    add_object(root, "cores", cores);
}

/* Rates of links that may be unknown, with their spreads. */
static void add_links(const xm_cluster_profile_t *profile, json_t *root)
{
    xm_cluster_profile_params_t has = xm_cluster_profile_params_of(profile);
    json_t *nic = json_object_get(root, "nic"), *curves = json_object_get(root, "curves");
    json_t *fabric = json_object();

    add_positive(nic, "spread", has.nic_spread);
    add_positive(nic, "both_ways_bytes_per_s", has.nic_both_ways);
    add_positive(nic, "both_ways_spread", has.nic_both_ways_spread);
    if (has.host_fabric > 0) {
        add_positive(fabric, "bytes_per_s", has.host_fabric);
        add_positive(fabric, "spread", has.host_fabric_spread);
    }
    add_object(root, "fabric", fabric);
    for (int link = XM_LINK_HOT; link < XM_LINK_CURVES; ++link) {
        if (has.curve_points[link] > 0) {
            (void)json_object_set_new(curves, xm_link_class_name((xm_link_class_t)link),
                                      curve_to_json(profile, (xm_link_class_t)link));
        }
    }
}

/* Adds the parts that a profile may leave out. */
static void add_optional(const xm_cluster_profile_t *profile, json_t *root)
{
    size_t count;
    const xm_op_time_t *op_times = xm_cluster_profile_op_times(profile, &count);

    /* The list is written if the profile has one, and then it names all hosts. */
    if (xm_cluster_profile_hosts_differ(profile)) {
        json_t *rates = json_array();

        for (int h = 0; h < xm_cluster_profile_hosts(profile); ++h) {
            (void)json_array_append_new(
                rates, json_real(xm_cluster_profile_host_nic_bandwidth(profile, h)));
        }
        (void)json_object_set_new(json_object_get(root, "nic"), "hosts", rates);
    }
    if (xm_cluster_profile_devices_differ(profile)) {
        json_t *devices = json_array();

        for (int h = 0; h < xm_cluster_profile_hosts(profile); ++h) {
            (void)json_array_append_new(devices,
                                        device_to_json(xm_cluster_profile_host_device(profile, h)));
        }
        (void)json_object_set_new(json_object_get(root, "device"), "hosts", devices);
    }
    if (xm_cluster_profile_nics_per_host(profile) > 0) {
        (void)json_object_set_new(json_object_get(root, "nic"), "per_host",
                                  json_integer(xm_cluster_profile_nics_per_host(profile)));
    }
    add_links(profile, root);
    add_cores(profile, root);
    add_object(root, "runtime", xm_runtime_to_json(xm_cluster_profile_runtime(profile)));
    if (xm_cluster_profile_collectives(profile) > 0) {
        json_t *collectives = json_array();

        for (size_t i = 0; i < xm_cluster_profile_collectives(profile); ++i) {
            (void)json_array_append_new(
                collectives, xm_collective_to_json(xm_cluster_profile_collective(profile, i)));
        }
        (void)json_object_set_new(root, "collectives", collectives);
    }
    if (count > 0) {
        json_t *list = json_array();

        for (size_t i = 0; i < count; ++i) {
            json_t *entry =
                json_pack("{s:s,s:f,s:f,s:f}", "op", op_times[i].op, "flops", op_times[i].flops,
                          "bytes", op_times[i].bytes, "seconds", op_times[i].seconds);

            if (op_times[i].number != XM_NUMBER_ANY) {
                (void)json_object_set_new(entry, "type",
                                          json_string(xm_number_name(op_times[i].number)));
            }
            (void)json_array_append_new(list, entry);
        }
        (void)json_object_set_new(root, "op_times", list);
    }
    add_positive(root, "gradient_overlap", xm_cluster_profile_gradient_overlap(profile));
    if (xm_cluster_profile_hosts_per_rack(profile) > 0) {
        (void)json_object_set_new(
            root, "uplink",
            json_pack("{s:i,s:f}", "hosts_per_rack", xm_cluster_profile_hosts_per_rack(profile),
                      "bytes_per_s", xm_cluster_profile_uplink_bandwidth(profile)));
    }
}

/* Twelve digits are what profiles are rounded to, so writing loses nothing. */
xm_status_t xm_cluster_profile_to_text(const xm_cluster_profile_t *profile, char **text)
{
    json_error_t error;
    json_t *root = json_pack_ex(
        &error, 0, "{s:i,s:s,s:s,s:i,s:i,s:o,s:{s:f},s:{s:o,s:o,s:o}}", "version", FORMAT_VERSION,
        "name", xm_cluster_profile_name(profile), "provenance",
        xm_cluster_profile_provenance(profile), "hosts", xm_cluster_profile_hosts(profile),
        "devices_per_host", xm_cluster_profile_devices_per_host(profile), "device",
        device_to_json(xm_cluster_profile_device(profile)), "nic", "bytes_per_s",
        xm_cluster_profile_nic_bandwidth(profile), "curves", xm_link_class_name(XM_LINK_SELF),
        curve_to_json(profile, XM_LINK_SELF), xm_link_class_name(XM_LINK_INTRA_HOST),
        curve_to_json(profile, XM_LINK_INTRA_HOST), xm_link_class_name(XM_LINK_INTER_HOST),
        curve_to_json(profile, XM_LINK_INTER_HOST));
    char *dumped;

    if (root == NULL) {
        return XM_INVALID("cluster profile as JSON: %s", error.text);
    }
    add_optional(profile, root);
    dumped = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
    json_decref(root);
    if (dumped == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "cluster profile: out of memory");
    }
    *text = dumped;
    return XM_OK;
}

/* The text is complete before the file is opened, so missing memory leaves an old file as it
 * was. */
xm_status_t xm_cluster_profile_save(const xm_cluster_profile_t *profile, const char *path)
{
    char *text = NULL;
    xm_status_t status = xm_cluster_profile_to_text(profile, &text);

    if (status == XM_OK) {
        status = xm_text_save(path, text);
    }
    free(text);
    return status;
}
