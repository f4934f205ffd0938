/* The JSON form of a cluster profile, docs/cluster-profile.md. */
#include "comm/cluster_profile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/text.h"

enum { FORMAT_VERSION = 1, PATH_SIZE = 96 };

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};

    return value == NULL ? "nothing" : names[json_typeof(value)];
}

static xm_status_t wrong_type(const char *path, const char *expected, const json_t *value)
{
    if (value == NULL) {
        return xm_error_set(XM_ERR_PARSE, "key '%s' is missing; it must be %s", path, expected);
    }
    return xm_error_set(XM_ERR_PARSE, "%s is %s; it must be %s", path, type_name(value), expected);
}

/* Refuses keys of @p object that are not among @p keys. @p prefix is "" or "parent.". */
static xm_status_t check_keys(const json_t *object, const char *prefix, const char *const *keys,
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
        if (nearest != NULL) {
            return xm_error_set(XM_ERR_PARSE, "unknown key '%s%s'; did you mean '%s%s'?", prefix,
                                key, prefix, nearest);
        }
        return xm_error_set(XM_ERR_PARSE, "unknown key '%s%s'", prefix, key);
    }
    return XM_OK;
}

static xm_status_t get_object(const json_t *parent, const char *key, const json_t **object)
{
    *object = json_object_get(parent, key);
    return json_is_object(*object) ? XM_OK : wrong_type(key, "an object", *object);
}

static xm_status_t get_string(const json_t *parent, const char *key, const char **text)
{
    const json_t *value = json_object_get(parent, key);

    if (!json_is_string(value)) {
        return wrong_type(key, "a string", value);
    }
    *text = json_string_value(value);
    return XM_OK;
}

static xm_status_t get_int(const json_t *parent, const char *key, int *number)
{
    const json_t *value = json_object_get(parent, key);

    if (!json_is_integer(value)) {
        return wrong_type(key, "an integer", value);
    }
    if (json_integer_value(value) < 0 || json_integer_value(value) > INT_MAX) {
        return xm_error_set(XM_ERR_PARSE, "%s is %" JSON_INTEGER_FORMAT "; it must be 0 … %d", key,
                            json_integer_value(value), INT_MAX);
    }
    *number = (int)json_integer_value(value);
    return XM_OK;
}

/* @p path is "parent.key". */
static xm_status_t get_number(const json_t *parent, const char *path, double *number)
{
    const json_t *value = json_object_get(parent, strchr(path, '.') + 1);

    if (!json_is_number(value)) {
        return wrong_type(path, "a number", value);
    }
    *number = json_number_value(value);
    return XM_OK;
}

static xm_status_t read_point(const json_t *pair, const char *path, xm_curve_point_t *point)
{
    char element[PATH_SIZE];
    const json_t *bytes = json_array_get(pair, 0), *seconds = json_array_get(pair, 1);

    if (!json_is_array(pair)) {
        return wrong_type(path, "an array [bytes, seconds]", pair);
    }
    if (json_array_size(pair) != 2) {
        return xm_error_set(XM_ERR_PARSE, "%s has %zu elements; it must be [bytes, seconds]", path,
                            json_array_size(pair));
    }
    if (!json_is_integer(bytes)) {
        (void)snprintf(element, sizeof(element), "%s[0]", path);
        return wrong_type(element, "an integer (bytes)", bytes);
    }
    if (json_integer_value(bytes) < 0) {
        return xm_error_set(XM_ERR_PARSE,
                            "%s[0] is %" JSON_INTEGER_FORMAT "; bytes cannot be negative", path,
                            json_integer_value(bytes));
    }
    if (!json_is_number(seconds)) {
        (void)snprintf(element, sizeof(element), "%s[1]", path);
        return wrong_type(element, "a number (seconds)", seconds);
    }
    point->bytes = (uint64_t)json_integer_value(bytes);
    point->seconds = json_number_value(seconds);
    return XM_OK;
}

static xm_status_t read_curve(const json_t *curves, const char *link, xm_curve_point_t **curve,
                              size_t *points)
{
    const json_t *array = json_object_get(curves, link);
    size_t count = json_array_size(array);
    char path[PATH_SIZE];
    xm_curve_point_t *read;
    xm_status_t status = XM_OK;

    (void)snprintf(path, sizeof(path), "curves.%s", link);
    if (!json_is_array(array)) {
        return wrong_type(path, "an array of [bytes, seconds]", array);
    }
    read = calloc(count + 1, sizeof(*read));
    if (read == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "%s: no memory for %zu points", path, count);
    }
    for (size_t i = 0; status == XM_OK && i < count; ++i) {
        (void)snprintf(path, sizeof(path), "curves.%s[%zu]", link, i);
        status = read_point(json_array_get(array, i), path, &read[i]);
    }
    if (status < 0) {
        free(read);
        return status;
    }
    *curve = read;
    *points = count;
    return XM_OK;
}

static xm_status_t check_version(const json_t *root)
{
    int version = 0;
    xm_status_t status = get_int(root, "version", &version);

    if (status == XM_OK && version != FORMAT_VERSION) {
        return xm_error_set(XM_ERR_UNSUPPORTED, "version is %d; this program reads version %d",
                            version, FORMAT_VERSION);
    }
    return status;
}

/* Everything but the curves. Strings stay the document's. */
static xm_status_t read_head(const json_t *root, xm_cluster_profile_params_t *params)
{
    static const char *const root_keys[] = {
        "version", "name", "provenance", "hosts", "devices_per_host",
        "device",  "nic",  "uplink",     "curves"};
    static const char *const device_keys[] = {"flop_per_s", "memory_bytes", "memory_bytes_per_s"};
    static const char *const nic_keys[] = {"bytes_per_s", "hosts"};
    const json_t *device, *nic;
    xm_status_t status;

    if (!json_is_object(root)) {
        return wrong_type("the document", "an object", root);
    }
    if ((status = check_version(root)) < 0 || (status = check_keys(root, "", root_keys, 9)) < 0 ||
        (status = get_string(root, "name", &params->name)) < 0 ||
        (status = get_string(root, "provenance", &params->provenance)) < 0 ||
        (status = get_int(root, "hosts", &params->hosts)) < 0 ||
        (status = get_int(root, "devices_per_host", &params->devices_per_host)) < 0 ||
        (status = get_object(root, "device", &device)) < 0 ||
        (status = check_keys(device, "device.", device_keys, 3)) < 0 ||
        (status = get_number(device, "device.flop_per_s", &params->device_flops)) < 0 ||
        (status = get_number(device, "device.memory_bytes", &params->device_memory_bytes)) < 0 ||
        (status = get_number(device, "device.memory_bytes_per_s",
                             &params->device_memory_bandwidth)) < 0 ||
        (status = get_object(root, "nic", &nic)) < 0 ||
        (status = check_keys(nic, "nic.", nic_keys, 2)) < 0) {
        return status;
    }
    return get_number(nic, "nic.bytes_per_s", &params->nic_bandwidth);
}

/* nic.hosts, which may be missing: the rate of each host. The array is the caller's to free. */
static xm_status_t read_host_rates(const json_t *root, int hosts, double **rates)
{
    const json_t *array = json_object_get(json_object_get(root, "nic"), "hosts");

    if (array == NULL) {
        return XM_OK;
    }
    if (!json_is_array(array)) {
        return wrong_type("nic.hosts", "an array of numbers", array);
    }
    if (json_array_size(array) != (size_t)hosts) {
        return xm_error_set(XM_ERR_PARSE, "nic.hosts has %zu entries; the cluster has %d hosts",
                            json_array_size(array), hosts);
    }
    *rates = calloc((size_t)hosts + 1, sizeof(**rates));
    if (*rates == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "nic.hosts: no memory for %d hosts", hosts);
    }
    for (int h = 0; h < hosts; ++h) {
        const json_t *rate = json_array_get(array, (size_t)h);
        char path[PATH_SIZE];

        (void)snprintf(path, sizeof(path), "nic.hosts[%d]", h);
        if (!json_is_number(rate)) {
            return wrong_type(path, "a number", rate);
        }
        (*rates)[h] = json_number_value(rate);
    }
    return XM_OK;
}

/* uplink, which may be missing. */
static xm_status_t read_uplink(const json_t *root, xm_cluster_profile_params_t *params)
{
    static const char *const keys[] = {"hosts_per_rack", "bytes_per_s"};
    const json_t *uplink = json_object_get(root, "uplink");
    xm_status_t status;

    if (uplink == NULL) {
        return XM_OK;
    }
    if ((status = get_object(root, "uplink", &uplink)) < 0 ||
        (status = check_keys(uplink, "uplink.", keys, 2)) < 0 ||
        (status = get_int(uplink, "hosts_per_rack", &params->hosts_per_rack)) < 0) {
        return status;
    }
    if (params->hosts_per_rack == 0) {
        return xm_error_set(XM_ERR_PARSE, "uplink.hosts_per_rack is 0; it must be at least 1");
    }
    return get_number(uplink, "uplink.bytes_per_s", &params->uplink_bandwidth);
}

static xm_status_t from_json(const json_t *root, xm_cluster_profile_t **profile)
{
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    xm_curve_point_t *curve[XM_LINK_CLASS_COUNT] = {NULL};
    const char *names[XM_LINK_CLASS_COUNT];
    const json_t *curves = NULL;
    double *rates = NULL;
    xm_status_t status = read_head(root, &params);

    if (status < 0 || (status = read_uplink(root, &params)) < 0 ||
        (status = get_object(root, "curves", &curves)) < 0) {
        return status;
    }
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        names[link] = xm_link_class_name((xm_link_class_t)link);
    }
    status = check_keys(curves, "curves.", names, XM_LINK_CLASS_COUNT);
    for (int link = 0; status == XM_OK && link < XM_LINK_CLASS_COUNT; ++link) {
        status = read_curve(curves, names[link], &curve[link], &params.curve_points[link]);
        params.curve[link] = curve[link];
    }
    if (status == XM_OK) {
        status = read_host_rates(root, params.hosts, &rates);
        params.host_nic_bandwidth = rates;
    }
    if (status == XM_OK) {
        status = xm_cluster_profile_create(&params, profile);
    }
    free(rates);
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        free(curve[link]);
    }
    return status;
}

/* @p root NULL: jansson failed with @p error. Consumes the reference. */
static xm_status_t finish_read(json_t *root, const json_error_t *error, const char *source,
                               xm_cluster_profile_t **profile)
{
    xm_status_t status;

    if (root == NULL) {
        return xm_error_set(XM_ERR_PARSE, "%s: line %d, column %d: %s", source, error->line,
                            error->column, error->text);
    }
    status = from_json(root, profile);
    json_decref(root);
    return status < 0 ? xm_error_prefix(status, "%s", source) : XM_OK;
}

xm_status_t xm_cluster_profile_from_text(const char *text, size_t length, const char *source,
                                         xm_cluster_profile_t **profile)
{
    json_error_t error;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);

    return finish_read(root, &error, source, profile);
}

xm_status_t xm_cluster_profile_load(const char *path, xm_cluster_profile_t **profile)
{
    json_error_t error;
    FILE *file = fopen(path, "re");
    json_t *root;

    if (file == NULL) {
        return xm_error_set(errno == ENOENT ? XM_ERR_NOT_FOUND : XM_ERR_IO, "%s: %s", path,
                            strerror(errno));
    }
    root = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL && ferror(file)) {
        (void)fclose(file);
        return xm_error_set(XM_ERR_IO, "%s: cannot be read", path);
    }
    (void)fclose(file);
    return finish_read(root, &error, path, profile);
}

static json_t *curve_to_json(const xm_cluster_profile_t *profile, xm_link_class_t link)
{
    json_t *array = json_array();
    size_t points;
    const xm_curve_point_t *curve = xm_cluster_profile_curve(profile, link, &points);

    for (size_t i = 0; i < points; ++i) {
        (void)json_array_append_new(
            array, json_pack("[I,f]", (json_int_t)curve[i].bytes, curve[i].seconds));
    }
    return array;
}

/* The parts that a profile may leave out. */
static void add_optional(const xm_cluster_profile_t *profile, json_t *root)
{
    if (xm_cluster_profile_hosts_differ(profile)) {
        json_t *rates = json_array();

        for (int h = 0; h < xm_cluster_profile_hosts(profile); ++h) {
            (void)json_array_append_new(
                rates, json_real(xm_cluster_profile_host_nic_bandwidth(profile, h)));
        }
        (void)json_object_set_new(json_object_get(root, "nic"), "hosts", rates);
    }
    if (xm_cluster_profile_hosts_per_rack(profile) > 0) {
        (void)json_object_set_new(
            root, "uplink",
            json_pack("{s:i,s:f}", "hosts_per_rack", xm_cluster_profile_hosts_per_rack(profile),
                      "bytes_per_s", xm_cluster_profile_uplink_bandwidth(profile)));
    }
}

xm_status_t xm_cluster_profile_to_text(const xm_cluster_profile_t *profile, char **text)
{
    json_error_t error;
    json_t *root = json_pack_ex(
        &error, 0, "{s:i,s:s,s:s,s:i,s:i,s:{s:f,s:f,s:f},s:{s:f},s:{s:o,s:o,s:o}}", "version",
        FORMAT_VERSION, "name", xm_cluster_profile_name(profile), "provenance",
        xm_cluster_profile_provenance(profile), "hosts", xm_cluster_profile_hosts(profile),
        "devices_per_host", xm_cluster_profile_devices_per_host(profile), "device", "flop_per_s",
        xm_cluster_profile_device_flops(profile), "memory_bytes",
        xm_cluster_profile_device_memory_bytes(profile), "memory_bytes_per_s",
        xm_cluster_profile_device_memory_bandwidth(profile), "nic", "bytes_per_s",
        xm_cluster_profile_nic_bandwidth(profile), "curves", xm_link_class_name(XM_LINK_SELF),
        curve_to_json(profile, XM_LINK_SELF), xm_link_class_name(XM_LINK_INTRA_HOST),
        curve_to_json(profile, XM_LINK_INTRA_HOST), xm_link_class_name(XM_LINK_INTER_HOST),
        curve_to_json(profile, XM_LINK_INTER_HOST));
    char *dumped;

    if (root == NULL) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "cluster profile as JSON: %s", error.text);
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

static xm_status_t write_all(int fd, const char *text, size_t length)
{
    while (length > 0) {
        ssize_t written = write(fd, text, length);

        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0) {
            return XM_ERR_IO;
        }
        text += written;
        length -= (size_t)written;
    }
    return fsync(fd) == 0 ? XM_OK : XM_ERR_IO;
}

xm_status_t xm_cluster_profile_save(const xm_cluster_profile_t *profile, const char *path)
{
    char temporary[PATH_MAX];
    char *text = NULL;
    xm_status_t status;
    int fd;

    if (snprintf(temporary, sizeof(temporary), "%s.%d.tmp", path, (int)getpid()) >=
        (int)sizeof(temporary)) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "path of %zu bytes is too long", strlen(path));
    }
    status = xm_cluster_profile_to_text(profile, &text);
    if (status < 0) {
        return status;
    }
    fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        status = xm_error_set(XM_ERR_IO, "%s: %s", path, strerror(errno));
        goto free_text;
    }
    if (write_all(fd, text, strlen(text)) < 0 || write_all(fd, "\n", 1) < 0) {
        status = xm_error_set(XM_ERR_IO, "%s: %s", path, strerror(errno));
        (void)close(fd);
        goto remove_temporary;
    }
    if (close(fd) != 0 || rename(temporary, path) != 0) {
        status = xm_error_set(XM_ERR_IO, "%s: %s", path, strerror(errno));
        goto remove_temporary;
    }
    goto free_text;

remove_temporary:
    (void)unlink(temporary);
free_text:
    free(text);
    return status;
}
