/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cluster_profile.h
 * What a cluster costs: hosts, devices, NICs, and measured curves bytes → seconds.
 *
 * A profile is made by the probe (probe.h) and stored as JSON (docs/cluster-profile.md, `"version":
 * 2`; files of version 1 are read as well). It is the only thing planners and schedulers know of
 * the network. Hosts are numbered from 0 and hold `devices_per_host` devices each, numbered
 * host-major: device d is on host d / devices_per_host.
 *
 * Units: seconds, bytes, bytes per second, FLOP per second. GB in texts is 1e9 bytes.
 * Threads: immutable after creation, so shared freely.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <crossmesh/profile.h>

#include "comm/profile/collective_curve.h"
#include "comm/profile/curve.h"
#include "comm/profile/device.h"
#include "comm/profile/op_times.h"
#include "comm/profile/runtime.h"
#include "comm/base.h"

/** Where the two ends of a message are. */
typedef enum xm_link_class {
    XM_LINK_SELF,       /**< same process: a memory copy */
    XM_LINK_INTRA_HOST, /**< two processes of one host */
    XM_LINK_INTER_HOST, /**< two hosts, through their NICs */
    XM_LINK_CLASS_COUNT
} xm_link_class_t;

/** Curves of a profile: first those of the classes, of data that are in no cache, as tensors are;
 * then the same of data in a cache, where they are known: class + XM_LINK_HOT. */
enum { XM_LINK_HOT = XM_LINK_CLASS_COUNT, XM_LINK_CURVES = 2 * XM_LINK_CLASS_COUNT };

/** "self", "intra_host", "inter_host"; "self_hot" and so on. */
const char *xm_link_class_name(xm_link_class_t link);

/** Everything a profile holds, to create one. Arrays are copied. */
typedef struct xm_cluster_profile_params {
    size_t struct_size;
    const char *name;       /**< free text, e.g. "lab" */
    const char *provenance; /**< "measured …", "assumed …": how the numbers came about */
    int hosts;
    int devices_per_host;
    xm_cluster_device_t device; /**< a typical one (a multiply-add counts 2) */
    /** Those of each host where hosts have devices of different kinds, `hosts` entries; or NULL. */
    const xm_cluster_device_t *host_device;
    double
        nic_bandwidth; /**< payload bytes/s of one host's NICs together, per direction, all flows */
    const double *host_nic_bandwidth; /**< the same of each host where hosts differ, `hosts` entries
                                         (nic_bandwidth is then what a typical one has); or NULL */
    int nics_per_host;    /**< which the devices of a host are dealt to in turn, device i to NIC i
                             modulo their number; 0: each device uses all */
    double nic_spread;    /**< of the measured NIC rates, the widest (curve.h); 0: unknown */
    double nic_both_ways; /**< bytes/s of each direction while both are busy; 0: unknown */
    double nic_both_ways_spread;
    double host_fabric; /**< bytes/s of all devices of a host together, each sending to another of
                             the host; 0: unknown */
    double host_fabric_spread;
    double cores_per_host;   /**< processors of one host; 0: unknown, and never the limit */
    double nic_cpu;          /**< seconds of a processor at each end, of a byte between hosts */
    double host_cpu;         /**< the same of a byte inside a host */
    int hosts_per_rack;      /**< hosts that share an uplink, by number; 0: no uplink limits */
    double uplink_bandwidth; /**< bytes/s of a rack's uplink, per direction */
    /** Rising in bytes, at least 2 points each; seconds never fall and rise at the end. */
    const xm_curve_point_t *curve[XM_LINK_CURVES];
    size_t curve_points[XM_LINK_CURVES];
    const double *curve_spread[XM_LINK_CURVES]; /**< of each point (curve.h), or NULL */
    const xm_collective_curve_t *collectives;   /**< measured collectives, each once; may be NULL */
    size_t collective_count;
    const xm_op_time_t *op_times; /**< measured operators; may be NULL */
    size_t op_time_count;
    double gradient_overlap; /**< part of the time of gradients' collectives that hides behind the
                                  backward pass, 0 … 1 */
    xm_runtime_t runtime;
} xm_cluster_profile_params_t;

#define XM_CLUSTER_PROFILE_PARAMS_INIT                                                             \
    {                                                                                              \
        .struct_size = sizeof(xm_cluster_profile_params_t)                                         \
    }

xm_status_t xm_cluster_profile_create(const xm_cluster_profile_params_t *params,
                                      xm_cluster_profile_t **profile);

/** Writes the JSON file (to a temporary name, then renamed). */
xm_status_t xm_cluster_profile_save(const xm_cluster_profile_t *profile, const char *path);

/**
 * The profile as JSON text, to be freed with free(). Numbers are kept to 12 significant digits, so
 * a profile that was written and read again is equal.
 */
xm_status_t xm_cluster_profile_to_text(const xm_cluster_profile_t *profile, char **text);

/**
 * The same cluster with host @p order[i] as its host i, for every host. XM_ERR_INVALID_ARGUMENT:
 * @p order does not name each host once, or it tears a rack apart: racks are runs of hosts by
 * number, so only whole racks of one size, and hosts inside a rack, can change places.
 */
xm_status_t xm_cluster_profile_reorder(const xm_cluster_profile_t *profile, const int *order,
                                       xm_cluster_profile_t **reordered);

/** A rate of a profile that may be measured, and how well it is known. */
typedef struct xm_profile_figure {
    const char *name;     /**< "device memory B/s", "nic B/s", … */
    double value, spread; /**< 0: unknown */
} xm_profile_figure_t;

/** Figure number @p index; false: there are not so many. */
bool xm_profile_figure(const xm_cluster_profile_params_t *params, int index,
                       xm_profile_figure_t *figure);

/** The same of a profile. */
bool xm_cluster_profile_figure(const xm_cluster_profile_t *profile, int index,
                               xm_profile_figure_t *figure);

const char *xm_cluster_profile_name(const xm_cluster_profile_t *profile);
const char *xm_cluster_profile_provenance(const xm_cluster_profile_t *profile);
/** A typical device, and numbers of it. */
xm_cluster_device_t xm_cluster_profile_device(const xm_cluster_profile_t *profile);
double xm_cluster_profile_device_flops(const xm_cluster_profile_t *profile);
double xm_cluster_profile_device_memory_bytes(const xm_cluster_profile_t *profile);
double xm_cluster_profile_device_memory_bandwidth(const xm_cluster_profile_t *profile);
/** The devices of one host. Hosts beyond the profile's repeat its hosts in order. */
xm_cluster_device_t xm_cluster_profile_host_device(const xm_cluster_profile_t *profile, int host);
/** True when hosts have devices of different kinds. */
bool xm_cluster_profile_devices_differ(const xm_cluster_profile_t *profile);
/** Payload bytes/s of one host's NICs, per direction. */
double xm_cluster_profile_nic_bandwidth(const xm_cluster_profile_t *profile);

/** The same of one host. Hosts beyond the profile's repeat its hosts in order. */
double xm_cluster_profile_host_nic_bandwidth(const xm_cluster_profile_t *profile, int host);
/** True when hosts have NICs of different rates. */
bool xm_cluster_profile_hosts_differ(const xm_cluster_profile_t *profile);
/** Hosts that share an uplink (0: no limit), and bytes/s of the uplink, per direction. */
int xm_cluster_profile_hosts_per_rack(const xm_cluster_profile_t *profile);
double xm_cluster_profile_uplink_bandwidth(const xm_cluster_profile_t *profile);

/** NICs of a host that its devices are dealt to in turn; 0: each device uses all. */
int xm_cluster_profile_nics_per_host(const xm_cluster_profile_t *profile);
/** The widest spread of the NIC rates (curve.h); 0: unknown. */
double xm_cluster_profile_nic_spread(const xm_cluster_profile_t *profile);
/** Bytes/s of each direction of a host's NICs while both are busy; 0: unknown. */
double xm_cluster_profile_nic_both_ways(const xm_cluster_profile_t *profile);
/** Bytes/s that the devices of one host move among themselves, all sending; 0: unknown. */
double xm_cluster_profile_host_fabric(const xm_cluster_profile_t *profile);

/** Processors of a host (0: unknown), and the seconds of one that a byte needs at each end, between
 * hosts and inside one. */
void xm_cluster_profile_processors(const xm_cluster_profile_t *profile, double *cores_per_host,
                                   double *nic_cpu, double *host_cpu);

/** Points of a curve (owned by the profile) and their number. */
const xm_curve_point_t *xm_cluster_profile_curve(const xm_cluster_profile_t *profile,
                                                 xm_link_class_t link, size_t *points);

/** Spread of each point of a curve (curve.h), or NULL when they are unknown. */
const double *xm_cluster_profile_spread(const xm_cluster_profile_t *profile, xm_link_class_t link);

/** Number of measured collectives, and one of them (owned by the profile). */
size_t xm_cluster_profile_collectives(const xm_cluster_profile_t *profile);
const xm_collective_curve_t *xm_cluster_profile_collective(const xm_cluster_profile_t *profile,
                                                           size_t index);

/** The measured curve of a collective on groups of @p devices on each of @p hosts hosts, @p groups
 * of them to a host (collective_curve.h); NULL when there is none. */
const xm_collective_curve_t *xm_cluster_profile_find_collective(const xm_cluster_profile_t *profile,
                                                                xm_collective_t kind, int hosts,
                                                                int devices, int groups);

/** A copy of @p profile that has @p added curves too; each replaces the one of the same collective
 * and axis. @p note is added to the provenance. */
xm_status_t xm_cluster_profile_add_collectives(const xm_cluster_profile_t *profile,
                                               const xm_collective_curve_t *added, size_t count,
                                               const char *note, xm_cluster_profile_t **extended);

/** Seconds of an operator of a kind, on numbers of a type, on a typical device: measured
 * (op_times.h), or its roofline. */
double xm_cluster_profile_op_seconds(const xm_cluster_profile_t *profile, const char *op,
                                     xm_number_t number, double flops, double bytes);
/** The measured operators, by kind and roofline (owned by the profile), and their number. */
const xm_op_time_t *xm_cluster_profile_op_times(const xm_cluster_profile_t *profile, size_t *count);

/** Part of the time of gradients' collectives that hides behind the backward pass; 0: none. */
double xm_cluster_profile_gradient_overlap(const xm_cluster_profile_t *profile);
/** A copy of @p profile with another such part. */
xm_status_t xm_cluster_profile_set_gradient_overlap(const xm_cluster_profile_t *profile,
                                                    double overlap, xm_cluster_profile_t **changed);

/** What a runtime adds to the prices of operators and links; all zero: nothing is known. */
const xm_runtime_t *xm_cluster_profile_runtime(const xm_cluster_profile_t *profile);
/** A copy of @p profile with another one, and @p note added to its provenance. */
xm_status_t xm_cluster_profile_set_runtime(const xm_cluster_profile_t *profile,
                                           const xm_runtime_t *runtime, const char *note,
                                           xm_cluster_profile_t **changed);

/** Seconds a one-way message takes (xm_curve_seconds()). */
double xm_cluster_profile_seconds(const xm_cluster_profile_t *profile, xm_link_class_t link,
                                  double bytes);

/** Time of the smallest message of a class. */
double xm_cluster_profile_latency(const xm_cluster_profile_t *profile, xm_link_class_t link);

/** Highest bytes/s among the points of a class. */
double xm_cluster_profile_bandwidth(const xm_cluster_profile_t *profile, xm_link_class_t link);
