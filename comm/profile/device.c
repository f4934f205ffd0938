/* SPDX-License-Identifier: Apache-2.0 */
/* What one device can do. Numbers are compared for equality: they come from one profile,
 * unchanged, and two that differ in a digit are different devices. */
#include "comm/profile/device.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "comm/profile/curve.h"

static const char *const names[XM_NUMBER_COUNT] = {"any",     "float16", "bfloat16",
                                                   "float32", "float64", "int8"};

const char *xm_number_name(xm_number_t number)
{
    return names[number];
}

bool xm_number_find(const char *name, xm_number_t *number)
{
    for (int n = XM_NUMBER_ANY + 1; n < XM_NUMBER_COUNT; ++n) {
        if (strcmp(names[n], name) == 0) {
            *number = (xm_number_t)n;
            return true;
        }
    }
    return false;
}

double xm_cluster_device_flops(const xm_cluster_device_t *device, xm_number_t number)
{
    return device->number_flops[number] > 0 ? device->number_flops[number] : device->flops;
}

double xm_cluster_device_roofline(const xm_cluster_device_t *device, xm_number_t number,
                                  double flops, double bytes)
{
    return fmax(flops / xm_cluster_device_flops(device, number), bytes / device->memory_bandwidth);
}

/* A type that only one of the two has a rate of counts with the other's general one. */
xm_cluster_device_t xm_cluster_device_least(const xm_cluster_device_t *a,
                                            const xm_cluster_device_t *b)
{
    xm_cluster_device_t least = {.flops = fmin(a->flops, b->flops),
                                 .memory_bytes = fmin(a->memory_bytes, b->memory_bytes),
                                 .memory_bandwidth =
                                     fmin(a->memory_bandwidth, b->memory_bandwidth)};

    for (int n = 0; n < XM_NUMBER_COUNT; ++n) {
        if (a->number_flops[n] > 0 || b->number_flops[n] > 0) {
            least.number_flops[n] = fmin(xm_cluster_device_flops(a, (xm_number_t)n),
                                         xm_cluster_device_flops(b, (xm_number_t)n));
        }
    }
    return least;
}

bool xm_cluster_device_same(const xm_cluster_device_t *a, const xm_cluster_device_t *b)
{
    bool same = a->flops == b->flops && a->memory_bytes == b->memory_bytes &&
                a->memory_bandwidth == b->memory_bandwidth && a->price == b->price;

    for (int n = 0; n < XM_NUMBER_COUNT; ++n) {
        same = same && a->number_flops[n] == b->number_flops[n];
    }
    return same;
}

/* Written so that NaN and infinity fail as well. */
static xm_status_t check_positive(const char *path, const char *key, double value)
{
    if (!isfinite(value) || value <= 0) {
        return XM_INVALID("%s.%s is %g; it must be positive", path, key, value);
    }
    return XM_OK;
}

xm_status_t xm_cluster_device_check(const char *path, const xm_cluster_device_t *device)
{
    xm_status_t status = check_positive(path, "flop_per_s", device->flops);

    XM_THEN(status, check_positive(path, "memory_bytes", device->memory_bytes));
    XM_THEN(status, check_positive(path, "memory_bytes_per_s", device->memory_bandwidth));
    for (int n = 0; n < XM_NUMBER_COUNT && status == XM_OK; ++n) {
        char key[40];

        (void)snprintf(key, sizeof(key), "flop_per_s_of.%s", names[n]);
        if (device->number_flops[n] != 0) {
            status = check_positive(path, key, device->number_flops[n]);
        }
        if (status == XM_OK && device->number_spread[n] != 0) {
            (void)snprintf(key, sizeof(key), "spread of %s", names[n]);
            status = check_positive(path, key, device->number_spread[n]);
        }
    }
    if (status == XM_OK && device->memory_spread != 0) {
        status = check_positive(path, "spread.memory_bytes_per_s", device->memory_spread);
    }
    if (status == XM_OK && device->price != 0) {
        status = check_positive(path, "price_per_hour", device->price);
    }
    return status;
}

xm_cluster_device_t xm_cluster_device_rounded(const xm_cluster_device_t *device)
{
    xm_cluster_device_t rounded = {.flops = xm_curve_rounded(device->flops),
                                   .memory_bytes = xm_curve_rounded(device->memory_bytes),
                                   .memory_bandwidth = xm_curve_rounded(device->memory_bandwidth),
                                   .memory_spread = xm_curve_rounded(device->memory_spread),
                                   .price = xm_curve_rounded(device->price)};

    for (int n = 0; n < XM_NUMBER_COUNT; ++n) {
        rounded.number_flops[n] = xm_curve_rounded(device->number_flops[n]);
        rounded.number_spread[n] = xm_curve_rounded(device->number_spread[n]);
    }
    return rounded;
}
