/**
 * @file probe_profile.h
 * From the reports of all ranks to a cluster profile. Internal to the probe; no communication.
 */
#ifndef XM_COMM_PROBE_PROFILE_H
#define XM_COMM_PROBE_PROFILE_H

#include "comm/cluster_profile.h"
#include "comm/probe_report.h"

/** What the profile is made of. */
typedef struct xm_probe_summary {
    const xm_probe_report_t *reports; /**< by rank */
    const int *host_of;               /**< by rank */
    int ranks, hosts;
    double nic_bandwidth; /**< best of the concurrent streams; 0: not measured */
    int nic_flows;        /**< number of flows that gave it */
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
 * Makes the profile: medians of the devices, smoothed curves, substitutes for link classes that the
 * job does not have, each named in the provenance.
 */
xm_status_t xm_probe_profile(const xm_probe_summary_t *summary, xm_cluster_profile_t **profile);

#endif
