/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file worker.h
 * What else of a worker (crossmesh/worker.h) the rooms use: its bootstrap, its transport, what it
 * knows of the hosts.
 *
 * Threads: one thread at a time per worker.
 */
#pragma once

#include <crossmesh/worker.h>

#include "comm/job.h"
#include "comm/transport.h"
#include "comm/base.h"

/** Number of different hosts in the job. */
int xm_worker_host_count(const xm_worker_t *worker);

XM_API xm_transport_t *xm_worker_transport(xm_worker_t *worker);
xm_bootstrap_t *xm_worker_bootstrap(xm_worker_t *worker);

/**
 * One line of what this rank is: "rank 2 of 8 on node7, crossmesh 0.2.0, transport ucx, NICs
 * mlx5_0:1 (200 Gbit/s); UCX 1.13.1, libibverbs 1.14.44.0, hwloc 2.9.0, Linux 6.1.0". It is what
 * the log has at level info when the worker has been created. Returns @p buffer.
 */
char *xm_worker_describe(const xm_worker_t *worker, char *buffer, size_t size);

/** Blocking barrier over all ranks through the bootstrap, transport progress goes on meanwhile. */
xm_status_t xm_worker_barrier(xm_worker_t *worker);

/**
 * Collective when @p status is a failure, one that every rank has found alike in what all have
 * gathered: nobody gives up over it before everybody has found it, or the slower ranks would hear
 * of that first and end with another status. Returns @p status, with its sentence.
 */
xm_status_t xm_worker_fail_together(xm_worker_t *worker, xm_status_t status);
