/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bootstrap.h
 * How the ranks of a job find each other, exchange small blobs, and learn that one of them is gone.
 *
 * Ranks meet in one of three ways:
 *
 * - at an address: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (torchrun's variables; the rank
 * and size variables of mpirun and srun are understood as well), xm_bootstrap_create_tcp();
 * - through PMIx, where mpirun or srun offers it and MASTER_ADDR is not set: rank 0 listens at a
 * free port and tells the others where, xm_bootstrap_create() chooses between the two;
 * - through the caller's own allgather, UCC's out-of-band table ::xm_oob_t: a non-blocking triple
 *   (post, test, free), the number of ranks and the own rank. xm_bootstrap_create_relay() uses it
 *   once, to tell where rank 0 listens; xm_bootstrap_create_oob() uses it for everything.
 *
 * All but the last end in TCP connections to rank 0, which relays. The relay's connections stay
 * open for the life of the job and carry faults: when a process ends, its kernel closes the socket,
 * rank 0 notices within milliseconds and tells the others which rank it was; when rank 0 ends,
 * everybody notices by himself. A rank that leaves in order (xm_bootstrap_destroy() after success)
 * says goodbye first and is not a fault.
 *
 * Threads: one thread at a time per object.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <crossmesh/job.h>

#include "comm/base.h"

typedef struct xm_bootstrap xm_bootstrap_t;

/** Joins the job in the way that @p env says. @p listen_fd as below; with one, PMIx is not used. */
xm_status_t xm_bootstrap_create(const xm_job_env_t *env, int listen_fd, double timeout,
                                xm_bootstrap_t **bootstrap);

/**
 * Connects to rank 0 at env->master_addr:env->master_port (rank 0 listens there, see XM_BIND),
 * within @p timeout seconds. With XM_JOB_SECRET or XM_JOB_SECRET_FILE both sides prove that they
 * know the secret; who does not is turned away and does not disturb the job. Rank 0 may pass @p
 * listen_fd, a socket already bound and listening (a local launcher makes one, so that no port can
 * be stolen); -1 otherwise. Fails with the ranks that are missing, a duplicate rank, or a differing
 * world size.
 */
xm_status_t xm_bootstrap_create_tcp(const xm_job_env_t *env, int listen_fd, double timeout,
                                    xm_bootstrap_t **bootstrap);

/**
 * A relay whose ranks learn through @p oob where rank 0 listens and a random secret of the job; the
 * table is not used after the return. Two allgathers; all ranks on one machine meet at its loopback
 * interface.
 */
xm_status_t xm_bootstrap_create_relay(const xm_oob_t *oob, double timeout,
                                      xm_bootstrap_t **bootstrap);

/** Wraps a caller's table (which must outlive the object). No fault channel then. */
xm_status_t xm_bootstrap_create_oob(const xm_oob_t *oob, xm_bootstrap_t **bootstrap);

int xm_bootstrap_rank(const xm_bootstrap_t *bootstrap);
int xm_bootstrap_size(const xm_bootstrap_t *bootstrap);

/** Blocking allgather with a deadline in seconds. A dead rank ends it with XM_ERR_PEER_DIED at
 * once. */
xm_status_t xm_bootstrap_allgather(xm_bootstrap_t *bootstrap, const void *send, void *receive,
                                   size_t length, double timeout);

/**
 * The same in pieces, for callers that make progress elsewhere meanwhile: post, then test until it
 * gives something else than XM_IN_PROGRESS. One at a time; @p send and @p receive stay untouched
 * until the end. Between tests wait on xm_bootstrap_fd(); when it is -1, test again soon.
 */
xm_status_t xm_bootstrap_allgather_post(xm_bootstrap_t *bootstrap, const void *send, void *receive,
                                        size_t length);
xm_status_t xm_bootstrap_allgather_test(xm_bootstrap_t *bootstrap);

/**
 * Gives up the posted allgather after @p waited seconds: the buffers are the caller's again, the
 * bootstrap is unusable from now on, and the result is XM_ERR_TIMEOUT with a sentence that names
 * the ranks that have not called it where this rank can know (rank 0 does, and tells the others).
 */
xm_status_t xm_bootstrap_allgather_abandon(xm_bootstrap_t *bootstrap, double waited);

/**
 * Allgather of blobs of differing lengths. On success @p receive holds the blobs one after the
 * other and offsets[r] … offsets[r + 1] is rank r's (offsets has size + 1 entries). Both are freed
 * with free().
 */
xm_status_t xm_bootstrap_allgatherv(xm_bootstrap_t *bootstrap, const void *send, size_t length,
                                    void **receive, size_t **offsets, double timeout);

/** Returns when every rank has called it, or with the failure. */
xm_status_t xm_bootstrap_barrier(xm_bootstrap_t *bootstrap, double timeout);

/**
 * Tells all ranks that this one gives up, with a sentence they will quote. Best effort, does not
 * wait; their xm_bootstrap_poll() then reports this rank as failed.
 */
void xm_bootstrap_abort(xm_bootstrap_t *bootstrap, const char *sentence);

/**
 * Reads the fault channel without waiting. XM_OK while all ranks are alive; otherwise
 * XM_ERR_PEER_DIED (or XM_ERR_CANCELED after a peer's abort) with a sentence naming the rank, which
 * is also stored in
 * @p failed_rank (may be NULL). The fault status is sticky.
 */
xm_status_t xm_bootstrap_poll(xm_bootstrap_t *bootstrap, int *failed_rank);

/**
 * Descriptor that becomes readable when xm_bootstrap_poll() has something to read (an epoll
 * instance), or -1 when there is no fault channel.
 */
int xm_bootstrap_fd(const xm_bootstrap_t *bootstrap);

/** Says goodbye and closes. NULL is accepted. */
void xm_bootstrap_destroy(xm_bootstrap_t *bootstrap);
