/**
 * @file probe.h
 * Measures a job's links and this machine's devices, and makes a cluster profile of it.
 *
 * For each link class the probe picks one pair of ranks and measures one-way time by ping-pong
 * (half the round trip, median of several) for 8 B … 64 MiB; classes without a pair in the job get
 * the curve of the nearest measured class and the provenance says so. NIC capacity is measured with
 * 1, 2, 4, … and all ranks of one host sending to their counterparts on another at once, and is the
 * best of these and of the fastest single message. Device FLOP/s is a single-precision
 * multiply-add loop on one core, memory bandwidth a copy loop, both on all ranks at once. Data is
 * compared once per size; docs/cluster-profile.md has the details.
 *
 * Takes a few seconds. Every wait has the worker's deadline; when a rank dies all others end with
 * XM_ERR_PEER_DIED (or XM_ERR_CANCELED when it gave up in order), and *profile is untouched.
 *
 * Collective: every rank of the worker calls it; the result is the same on all ranks.
 */
#ifndef XM_COMM_PROBE_H
#define XM_COMM_PROBE_H

#include "comm/cluster_profile.h"
#include "comm/worker.h"

typedef struct xm_probe_params {
    size_t struct_size;
    uint64_t max_bytes; /**< largest message; 0 means 64 MiB */
    int repetitions;    /**< median of this many; 0 means 5 */
    /** Progress report (rank 0 only), may be NULL: fraction done in [0, 1] and what is measured
     * now. */
    void (*progress)(void *arg, double fraction, const char *what);
    void *progress_arg;
} xm_probe_params_t;

#define XM_PROBE_PARAMS_INIT                                                                       \
    {                                                                                              \
        .struct_size = sizeof(xm_probe_params_t)                                                   \
    }

XM_API xm_status_t xm_probe_run(xm_worker_t *worker, const xm_probe_params_t *params,
                                xm_cluster_profile_t **profile);

#endif
