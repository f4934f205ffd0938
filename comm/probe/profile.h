/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/probe/profile.h
 * From what was measured to a cluster profile. Internal to the probe; no communication.
 */
#pragma once

#include "comm/probe/compute.h"
#include "comm/profile.h"

/** What a rank has measured by itself: numbers only, for they travel as such. */
typedef struct xm_probe_device {
    xm_probe_figure_t flops[XM_NUMBER_COUNT]; /**< FLOP/s by type with all ranks computing; 0: not
                                                   measured */
    xm_probe_figure_t copy_bandwidth; /**< bytes/s read plus written with all ranks copying */
    double host_memory;               /**< bytes of physical memory */
    double machine;                   /**< digest of the machine's boot id: equal on one machine */
    double cores;                     /**< processors that the rank may run on */
    double machine_cores;             /**< all processors of its machine */
} xm_probe_device_t;

typedef struct xm_probe_curve {
    xm_curve_point_t points[XM_CURVE_MAX_POINTS];
    double spread[XM_CURVE_MAX_POINTS];
    int count; /**< 0: not measured */
} xm_probe_curve_t;

/** What the profile is made of. */
typedef struct xm_probe_summary {
    const xm_probe_device_t *devices; /**< by rank */
    const int *host_of;               /**< by rank */
    int ranks, hosts;
    xm_probe_curve_t curve[XM_LINK_CURVES];
    const double *egress, *ingress; /**< bytes/s by host; 0: not measured; NULL: of no host */
    double nic_spread;              /**< the widest of these rates */
    double nic_both_ways, nic_both_ways_spread; /**< 0: not measured */
    int nics_per_host; /**< dealt to the ranks of a host in turn; 0: otherwise */
    double host_fabric, host_fabric_spread; /**< 0: not measured */
    double nic_cpu, host_cpu; /**< seconds of processors that a byte between hosts, and inside one,
                                   cost both its ends; 0: not measured */
    const char *name;
    const char *conditions; /**< date, program, transport, for the provenance */
} xm_probe_summary_t;

/** Number of ranks on @p host. */
int xm_probe_ranks_on(const int *host_of, int ranks, int host);

/** Rank number @p index of those on @p host, or -1. */
int xm_probe_rank_on(const int *host_of, int ranks, int host, int index);

/**
 * The two ranks between which a link class is measured: the first two of the first host that has
 * two, or the first of hosts 0 and 1. False when the job has no such pair.
 */
bool xm_probe_pair(const int *host_of, int ranks, int hosts, xm_link_class_t link, int *a, int *b);

/**
 * Makes the profile: medians of the devices, smoothed curves, the NIC rate of each host where they
 * differ, substitutes for link classes that the job does not have. The provenance names what was
 * substituted, what was not measured, and how many points are not known to XM_PROBE_TIGHT.
 */
xm_status_t xm_probe_profile(const xm_probe_summary_t *summary, xm_cluster_profile_t **profile);
