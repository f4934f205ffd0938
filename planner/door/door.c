/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public functions of libautopar that only pass on: names of states, memory that callers free,
 * and what turns a FILE-writing inside function into a string. They stand here so that inside
 * functions keep the shape that the house needs, and the door the shape that callers need.
 */
#include "planner/door/door.h"

#include <stdlib.h>

#include "comm/base.h"
#include <crossmesh/version.h>
#include "planner/cost.h"

#include <autopar/api.h>

const char *ap_last_error(void)
{
    return xm_last_error();
}

const char *ap_status_string(xm_status_t status)
{
    return xm_status_string(status);
}

const char *ap_version(void)
{
    return XM_VERSION_STRING;
}

void ap_free(void *text)
{
    free(text);
}

xm_status_t ap_door_text_open(ap_door_text_t *door, const char *function, char **text)
{
    *text = NULL;
    *door = (ap_door_text_t){0};
    door->stream = open_memstream(&door->text, &door->size);
    return door->stream != NULL ? XM_OK : xm_error_set(XM_ERR_NO_MEMORY, "%s: no memory", function);
}

xm_status_t ap_door_text_close(ap_door_text_t *door, xm_status_t status, char **text)
{
    if (fclose(door->stream) != 0 && status == XM_OK) {
        status = XM_NO_MEMORY("a text of %zu bytes", door->size);
    }
    if (status == XM_OK) {
        *text = door->text;
    } else {
        free(door->text);
    }
    return status;
}

xm_status_t ap_profile_load(const char *path, ap_profile_t **profile)
{
    XM_NEED_ARGUMENTS(path, profile);
    return xm_cluster_profile_load(path, profile);
}

xm_status_t ap_profile_from_text(const char *text, size_t length, const char *source,
                                 ap_profile_t **profile)
{
    XM_NEED_ARGUMENTS(text, source, profile);
    return xm_cluster_profile_from_text(text, length, source, profile);
}

xm_status_t ap_profile_text(const ap_profile_t *profile, char **text)
{
    XM_NEED_ARGUMENTS(profile, text);
    return xm_cluster_profile_to_text(profile, text);
}

xm_status_t ap_profile_resize(const ap_profile_t *profile, int hosts, int devices_per_host,
                              ap_profile_t **resized)
{
    XM_NEED_ARGUMENTS(profile, resized);
    return xm_cluster_profile_resize(profile, hosts, devices_per_host, resized);
}

const char *ap_profile_name(const ap_profile_t *profile)
{
    if (XM_IS_NULL(profile)) {
        return NULL;
    }
    return xm_cluster_profile_name(profile);
}

int ap_profile_hosts(const ap_profile_t *profile)
{
    if (XM_IS_NULL(profile)) {
        return 0;
    }
    return xm_cluster_profile_hosts(profile);
}

int ap_profile_devices_per_host(const ap_profile_t *profile)
{
    if (XM_IS_NULL(profile)) {
        return 0;
    }
    return xm_cluster_profile_devices_per_host(profile);
}

void ap_profile_destroy(ap_profile_t *profile)
{
    xm_cluster_profile_destroy(profile);
}
