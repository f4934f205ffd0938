/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file profile.h
 * A cluster profile: what the devices of a cluster compute and what its links carry, measured once
 * by `autopar probe` and written down as JSON (docs/cluster-profile.md). All costs come from it.
 *
 * Rates are FLOPs per second and bytes per second, sizes bytes, times seconds. A profile is about
 * `hosts` hosts with equally many devices each. Threads: immutable.
 *
 * @code
 *     int devices(const char *path)
 *     {
 *         ap_profile_t *profile;
 *         int count = 0;
 *
 *         if (ap_profile_load(path, &profile) == XM_OK) {
 *             count = ap_profile_hosts(profile) * ap_profile_devices_per_host(profile);
 *             ap_profile_destroy(profile);
 *         }
 *         return count;
 *     }
 * @endcode
 */
#ifndef AUTOPAR_PROFILE_H
#define AUTOPAR_PROFILE_H

#include <autopar/api.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ap_profile ap_profile_t;

/** Reads a file. Errors name the file, and the line and column or the place in the document. */
XM_API xm_status_t ap_profile_load(const char *path, ap_profile_t **profile);

/** The same from @p length bytes; @p source stands for the file in sentences. */
XM_API xm_status_t ap_profile_from_text(const char *text, size_t length, const char *source,
                                        ap_profile_t **profile);

/** The JSON document; ap_free() ends it. */
XM_API xm_status_t ap_profile_text(const ap_profile_t *profile, char **text);

/**
 * The same hardware in another size: a cluster of @p hosts x @p devices_per_host such devices. The
 * per-device memory shrinks if more devices than were measured share a host.
 */
XM_API xm_status_t ap_profile_resize(const ap_profile_t *profile, int hosts, int devices_per_host,
                                     ap_profile_t **resized);

XM_API const char *ap_profile_name(const ap_profile_t *profile);
XM_API int ap_profile_hosts(const ap_profile_t *profile);
XM_API int ap_profile_devices_per_host(const ap_profile_t *profile);

/** NULL is accepted. */
XM_API void ap_profile_destroy(ap_profile_t *profile);

#ifdef __cplusplus
}
#endif

#endif
