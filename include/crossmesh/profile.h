/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file profile.h
 * What a cluster costs: hosts, devices, NICs, and measured curves bytes → seconds.
 *
 * A profile is made by `autopar probe`, which measures it, and stored as JSON
 * (docs/cluster-profile.md). It is the only thing that planners and schedulers know of the
 * hardware. Hosts are numbered from 0 and hold `devices_per_host` devices each, numbered
 * host-major: device d is on host d / devices_per_host.
 *
 * @code
 *     // Hosts of the cluster that a file describes, or -1.
 *     int count_hosts(const char *path)
 *     {
 *         xm_cluster_profile_t *profile = NULL;
 *         int hosts = -1;
 *
 *         if (xm_cluster_profile_load(path, &profile) == XM_OK) {
 *             hosts = xm_cluster_profile_hosts(profile);
 *         }
 *         xm_cluster_profile_destroy(profile);
 *         return hosts;
 *     }
 * @endcode
 *
 * Units, in the file: seconds, bytes, bytes per second, FLOP per second. Ownership: a profile is
 * freed by xm_cluster_profile_destroy(); networks made from it keep what they need. Threads:
 * immutable after creation, so shared freely. Errors: status.h; the sentence names file, line and
 * column, or the key and what was expected of it. Source: Alpa (OSDI'22), section 5.2 (profiled
 * communication costs).
 */
#ifndef CROSSMESH_PROFILE_H
#define CROSSMESH_PROFILE_H

#include <stddef.h>

#include <crossmesh/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A measured or assumed cluster. */
typedef struct xm_cluster_profile xm_cluster_profile_t;

/** Reads a JSON file; or takes a cluster that ships with the library by its name, such as
 * "h100-8x8", where there is no such file. An unknown name gets the list of them. */
XM_API xm_status_t xm_cluster_profile_load(const char *path, xm_cluster_profile_t **profile);

/** The same from @p length bytes of JSON text; @p source names it in errors. */
XM_API xm_status_t xm_cluster_profile_from_text(const char *text, size_t length, const char *source,
                                                xm_cluster_profile_t **profile);

/**
 * The same hardware in another size: a cluster of @p hosts × @p devices_per_host such devices. The
 * per-device memory shrinks if more devices than were measured share a host; the provenance records
 * it. @p profile stays as it is.
 */
XM_API xm_status_t xm_cluster_profile_resize(const xm_cluster_profile_t *profile, int hosts,
                                             int devices_per_host, xm_cluster_profile_t **resized);

/** Frees the profile. NULL is accepted. */
XM_API void xm_cluster_profile_destroy(xm_cluster_profile_t *profile);

/** Number of hosts. */
XM_API int xm_cluster_profile_hosts(const xm_cluster_profile_t *profile);
/** Devices of each host. */
XM_API int xm_cluster_profile_devices_per_host(const xm_cluster_profile_t *profile);

#ifdef __cplusplus
}
#endif

#endif
