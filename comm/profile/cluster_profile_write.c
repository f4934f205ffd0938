/* SPDX-License-Identifier: Apache-2.0 */
/* Writing cluster profiles. What a profile may leave out is left out when it has nothing to say, so
 * files of simple clusters stay short. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/profile/cluster_profile_private.h"
#include "comm/profile/curve_json.h"

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
        add_positive(rates, xm_profile_rate_key(n), device.number_flops[n]);
        add_positive(spread, xm_profile_rate_key(n), device.number_spread[n]);
    }
    add_positive(spread, xm_profile_rate_key(XM_NUMBER_COUNT), device.memory_spread);
    add_object(object, "flop_per_s_of", rates);
    add_object(object, "spread", spread);
    add_positive(object, "price_per_hour", device.price);
    return object;
}

/* The numbers of a section that are known. One that is made of them alone has its first, or nothing
 * to say. */
static void add_numbers(json_t *root, const char *section, xm_cluster_profile_params_t *has)
{
    json_t *whole = json_object_get(root, section), *own = whole == NULL ? json_object() : NULL;
    bool first = true;

    for (int n = 0; n < XM_PROFILE_NUMBERS; ++n) {
        const xm_profile_number_t *number = &xm_profile_numbers[n];
        double value = *xm_profile_number(has, number);

        if (strcmp(number->section, section) != 0) {
            continue;
        }
        if (own != NULL && first && value <= 0) {
            break;
        }
        add_positive(own != NULL ? own : whole, number->key, value);
        first = false;
    }
    add_object(root, section, own);
}

/* Rates of links that may be unknown, with their spreads. */
static void add_links(const xm_cluster_profile_t *profile, json_t *root)
{
    xm_cluster_profile_params_t has = xm_cluster_profile_params_of(profile);
    json_t *curves = json_object_get(root, "curves");

    add_numbers(root, "nic", &has);
    add_numbers(root, "fabric", &has);
    for (int link = XM_LINK_HOT; link < XM_LINK_CURVES; ++link) {
        if (has.curve_points[link] > 0) {
            (void)json_object_set_new(curves, xm_link_class_name((xm_link_class_t)link),
                                      curve_to_json(profile, (xm_link_class_t)link));
        }
    }
    add_numbers(root, "cores", &has);
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
        &error, 0, "{s:i,s:s,s:s,s:i,s:i,s:o,s:{s:f},s:{s:o,s:o,s:o}}", "version",
        XM_PROFILE_VERSION, "name", xm_cluster_profile_name(profile), "provenance",
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

    XM_THEN(status, xm_text_save(path, text));
    free(text);
    return status;
}
