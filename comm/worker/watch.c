/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker tells of itself: counters, metrics, the line at the start. Counters are kept by
 * rank of the job as it began, so they outlive shrinks and their peers keep their numbers. Any
 * thread may read them; metrics are written by the communicating thread only. Mistakes in
 * XM_METRICS_FILE end the creation of the worker, because numbers that are missing are noticed when
 * they are needed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/worker/worker_private.h"

xm_status_t xm_worker_peer_counts(const xm_worker_t *worker, int peer, xm_peer_counts_t *counts)
{
    XM_NEED_ARGUMENTS(worker, counts);
    /* Ranks that have died since are still valid numbers. */
    if (peer < 0 || peer >= xm_counters_peers(worker->counters)) {
        return XM_NOT_FOUND("the job began with %d ranks; rank %d is none of them",
                            xm_counters_peers(worker->counters), peer);
    }
    xm_counters_peer(worker->counters, peer, counts);
    return XM_OK;
}

xm_status_t xm_worker_nic_counts(const xm_worker_t *worker, int nic, xm_nic_counts_t *counts)
{
    XM_NEED_ARGUMENTS(worker, counts);
    if (nic < 0 || nic >= xm_counters_nics(worker->counters)) {
        return XM_NOT_FOUND("%d NICs have been opened; there is no number %d",
                            xm_counters_nics(worker->counters), nic);
    }
    /* A NIC that is out of use stays in the list, with its last counts. */
    xm_counters_nic(worker->counters, nic, counts);
    return XM_OK;
}

xm_status_t xm_worker_rank_counts(const xm_worker_t *worker, xm_rank_counts_t *counts)
{
    XM_NEED_ARGUMENTS(worker, counts);
    xm_counters_rank(worker->counters, counts);
    return XM_OK;
}

/* Made once in a worker's life; transports of later generations count on. */
xm_status_t xm_worker_open_counters(xm_worker_t *worker)
{
    return xm_counters_create(xm_worker_size(worker), &worker->counters);
}

/* Refuses a file name that two ranks of a machine would share: each would overwrite the other's
 * numbers. */
static xm_status_t check_pattern(const xm_worker_t *worker, const char *pattern)
{
    int rank = xm_worker_rank(worker), beside = -1;

    for (int other = 0; other < xm_worker_size(worker) && beside < 0; ++other) {
        if (other != rank && worker->slots.machine_of[other] == worker->slots.machine_of[rank] &&
            (worker->slots.host_of[other] == worker->slots.host_of[rank] ||
             !xm_path_pattern_has(pattern, 'h'))) {
            beside = other;
        }
    }
    if (beside < 0 || xm_path_pattern_has(pattern, 'r') || xm_path_pattern_has(pattern, 'p')) {
        return XM_OK;
    }
    return XM_INVALID(
        "rank %d: XM_METRICS_FILE=%s is rank %d's file as well; %%r in it makes one for each rank",
        rank, pattern, beside);
}

/* No file is wanted unless the setting names one. */
xm_status_t xm_worker_open_metrics(xm_worker_t *worker)
{
    xm_metrics_params_t params = {.path = xm_config_string(XM_CONFIG_METRICS_FILE),
                                  .interval = xm_config_seconds(XM_CONFIG_METRICS_INTERVAL),
                                  .rank = xm_worker_rank(worker),
                                  .transport = xm_transport_name(worker->transport),
                                  .counters = worker->counters};
    int size = xm_worker_size(worker);
    const char **hosts;
    xm_status_t status;

    if (params.path[0] == '\0') {
        return XM_OK;
    }
    XM_TRY(check_pattern(worker, params.path));
    /* Only pointers are collected here: the metrics copy the names. */
    hosts = calloc((size_t)size, sizeof(*hosts));
    XM_NEED_MEMORY(hosts, "the names of %d hosts", size);
    for (int rank = 0; rank < size; ++rank) {
        hosts[rank] = xm_worker_host_name(worker, xm_worker_host_of(worker, rank));
    }
    params.host = hosts;
    status = xm_metrics_create(&params, &worker->metrics);
    free((void *)hosts);
    return status;
}

/* Writes "mlx5_0:1 (200 Gbit/s), mlx5_1:1": what the transport has opened. */
static void format_nics(const xm_counters_t *counters, char *buffer, size_t size)
{
    buffer[0] = '\0';
    for (int nic = 0; nic < xm_counters_nics(counters); ++nic) {
        xm_nic_counts_t counts;
        char rate[32] = "";

        xm_counters_nic(counters, nic, &counts);
        if (counts.rate > 0) {
            (void)snprintf(rate, sizeof(rate), " (%g Gbit/s)", (double)counts.rate * 1e-9);
        }
        xm_text_list_add(buffer, size, ", ", "%s%s", counts.name, rate);
    }
}

/* Describes the rank in one line, as it is logged at the start. */
char *xm_worker_describe(const xm_worker_t *worker, char *buffer, size_t size)
{
    char nics[256], under[160];
    int rank = xm_worker_rank(worker);
    xm_versions_t versions;

    xm_versions_read("", &versions);
    format_nics(worker->counters, nics, sizeof(nics));
    (void)snprintf(buffer, size, "rank %d of %d on %s, crossmesh %s, transport %s, NICs %s; %s",
                   rank, xm_worker_size(worker),
                   xm_worker_host_name(worker, xm_worker_host_of(worker, rank)), versions.crossmesh,
                   xm_transport_name(worker->transport), nics[0] != '\0' ? nics : "none",
                   xm_versions_format(&versions, under, sizeof(under)));
    return buffer;
}
