/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runtime's part of a profile. One list says which key stands for which number, for reading and
 * writing alike.
 */

#include "comm/profile/runtime.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "comm/profile/curve.h"

static const struct {
    const char *path;
    size_t offset;
} numbers[] = {
    {"runtime.pass_s", offsetof(xm_runtime_t, pass)},
    {"runtime.collective_factor", offsetof(xm_runtime_t, collective)},
    {"runtime.bucket_bytes", offsetof(xm_runtime_t, bucket)},
    {"runtime.spread", offsetof(xm_runtime_t, spread)},
    {"runtime.context_bytes", offsetof(xm_runtime_t, context)},
    {"runtime.work_factor", offsetof(xm_runtime_t, working)},
    {"runtime.memory_spread", offsetof(xm_runtime_t, memory_spread)},
    {"runtime.slowdown", offsetof(xm_runtime_t, slowdown)},
    {"runtime.send_s", offsetof(xm_runtime_t, send)},
    {"runtime.split_factor", offsetof(xm_runtime_t, split)},
    {"runtime.weight_share", offsetof(xm_runtime_t, weight)},
    {"runtime.host_link_Bps", offsetof(xm_runtime_t, host_link)},
    {"runtime.jitter", offsetof(xm_runtime_t, jitter)},
    {"runtime.servers", offsetof(xm_runtime_t, servers)},
};

enum { NUMBERS = sizeof(numbers) / sizeof(numbers[0]), SECTION = sizeof("runtime.") - 1 };

static double *number_of(xm_runtime_t *runtime, int index)
{
    return (double *)((char *)runtime + numbers[index].offset);
}

/* The comparison is written so that NaN fails. */
xm_status_t xm_runtime_from_json(const json_t *root, xm_runtime_t *runtime)
{
    const char *keys[NUMBERS + 1] = {"blocking"};
    const json_t *object = json_object_get(root, "runtime"), *blocking;
    xm_status_t status;

    for (int i = 0; i < NUMBERS; ++i) {
        keys[i + 1] = numbers[i].path + SECTION;
    }
    if (object == NULL) {
        return XM_OK;
    }
    if ((status = xm_json_object(root, "runtime", &object)) < 0 ||
        (status = xm_json_check_keys(object, "runtime.", keys, NUMBERS + 1)) < 0) {
        return status;
    }
    for (int i = 0; i < NUMBERS && status == XM_OK; ++i) {
        double *number = number_of(runtime, i);

        status = xm_json_optional_number(object, numbers[i].path, number);
        if (status == XM_OK && !(*number >= 0 && isfinite(*number))) {
            return XM_MALFORMED("%s is %g; it must be 0 or more", numbers[i].path, *number);
        }
    }
    if (status == XM_OK && runtime->weight >= 1) {
        return XM_MALFORMED("runtime.weight_share is %g; it must be below 1", runtime->weight);
    }
    blocking = json_object_get(object, keys[0]);
    if (status == XM_OK && blocking != NULL && !json_is_boolean(blocking)) {
        return xm_json_wrong_type("runtime.blocking", "true or false", blocking);
    }
    runtime->blocking = json_is_true(blocking);
    return status;
}

json_t *xm_runtime_to_json(const xm_runtime_t *runtime)
{
    xm_runtime_t copy = *runtime;
    json_t *object = json_object();

    for (int i = 0; i < NUMBERS; ++i) {
        if (*number_of(&copy, i) > 0) {
            (void)json_object_set_new(object, numbers[i].path + SECTION,
                                      json_real(*number_of(&copy, i)));
        }
    }
    if (runtime->blocking) {
        (void)json_object_set_new(object, "blocking", json_true());
    }
    return object;
}

xm_runtime_t xm_runtime_rounded(const xm_runtime_t *runtime)
{
    xm_runtime_t rounded = *runtime;

    for (int i = 0; i < NUMBERS; ++i) {
        *number_of(&rounded, i) = xm_curve_rounded(*number_of(&rounded, i));
    }
    return rounded;
}
