/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file probe.h
 * Measures a job's links and this machine's devices, and makes a cluster profile of it.
 *
 * For each link class the probe picks one pair of ranks and measures one-way time by ping-pong
 * (half the round trip) for 8 B … 64 MiB; classes without a pair in the job get the curve of the
 * nearest measured class and the provenance says so. Each curve is measured with data that are in
 * no cache, as tensors are, and again, for sizes that fit one, with data that are. NIC capacity is
 * measured of every host and in each direction: all its ranks stream to, then from, up to four
 * other hosts. The fabric of a host is what its ranks reach that all stream to their neighbours.
 * Device FLOP/s are multiply-add loops on one core, one for each type of number, memory bandwidth a
 * copy loop over buffers larger than the caches, all on all ranks at once. Data is compared;
 * docs/cluster-profile.md has the details.
 *
 * A message is timed until the median's 95 % confidence interval is within ± 2 %, or its share of
 * the budget is spent; the profile tells the interval of each point. When the budget is spent, NICs
 * that were not measured count as typical, and the provenance says of how many hosts.
 *
 * Collectives are those of a library that is opened at run time: NCCL on the devices' memory, or
 * MPI where mpirun or srun has started the ranks. They are measured on each kind of mesh axis that
 * the ranks make up: inside hosts, across hosts, all.
 *
 * After each step rank 0 may save what is known so far, and a later probe of the same ranks goes on
 * from there.
 *
 * Takes a few seconds, and about one more for each host. Every wait has the worker's deadline; when
 * a rank dies all others end with XM_ERR_PEER_DIED (or XM_ERR_CANCELED when it gave up in order),
 * and *profile is untouched.
 *
 * Collective: every rank of the worker calls it; the result is the same on all ranks.
 */
#pragma once

#include <stdbool.h>

#include "comm/profile.h"
#include "comm/worker.h"

typedef struct xm_probe_params {
    size_t struct_size;
    uint64_t max_bytes; /**< largest message; 0 means 64 MiB */
    int repetitions;    /**< median of at least this many; 0 means 6 */
    double budget;      /**< seconds to spend on all of it, about; 0 means 60 */
    /** Rank 0: file that holds the results so far, or NULL. The caller removes it at the end. */
    const char *partial;
    bool resume; /**< start from `partial` where it exists; the same on all ranks */
    /** Collectives to measure, too: "nccl", "mpi", "auto" (the first of these that works on all
     * ranks, else a note in the provenance), or "none", which NULL means; the same on all ranks.
     * They get two fifths of the budget. */
    const char *collectives;
    /** Progress report (rank 0 only), may be NULL: fraction done in [0, 1] and what is measured
     * now. */
    void (*progress)(void *arg, double fraction, const char *what);
    void *progress_arg;
} xm_probe_params_t;

#define XM_PROBE_PARAMS_INIT                                                                       \
    {                                                                                              \
        .struct_size = sizeof(xm_probe_params_t)                                                   \
    }

xm_status_t xm_probe_run(xm_worker_t *worker, const xm_probe_params_t *params,
                         xm_cluster_profile_t **profile);
