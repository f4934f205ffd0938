/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/worker/rails.h
 * Which ranks of a host share NICs. A rail is the NICs of some ranks of a host that no other rank
 * uses: ranks that use a NIC in common are of one rail, even where each has others beside it.
 * Internal.
 */
#pragma once

#include "comm/job.h"
#include "comm/worker/worker.h"

typedef struct xm_worker_rails {
    int count;
    int *of;           /**< by rank; rails are numbered by their lowest rank */
    double *share;     /**< by rail: what it has of its host's rate; equal shares where a NIC of the
                            host does not tell its speed, or UCX chose it */
    double *host_rate; /**< bytes/s by host, of all NICs that its ranks use; 0: one does not tell */
} xm_worker_rails_t;

/**
 * Exchanges what the ranks use, as XM_NICS names it (empty: whatever UCX chooses, which all such
 * ranks of a host share with all others). @p host_of is by rank. Collective in a job of several
 * hosts.
 */
xm_status_t xm_worker_rails_exchange(xm_worker_rails_t *rails, xm_bootstrap_t *bootstrap,
                                     const int *host_of, const char *nics, double timeout);

void xm_worker_rails_free(xm_worker_rails_t *rails);

/** The rails of the worker's ranks; valid until the group changes. */
const xm_worker_rails_t *xm_worker_rails(const xm_worker_t *worker);
