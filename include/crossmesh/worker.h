/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file worker.h
 * This process's place in a job: rank, hosts of all ranks, and the one place where a rank waits.
 *
 * Creating a worker joins the rendezvous (job.h), compares the settings that have to be equal on
 * all ranks (docs/configuration.md), exchanges topologies and host identities, chooses the NICs to
 * be used where hosts have several and XM_NICS names none (docs/topology.md), and opens the
 * transport. Ranks are on the same *host* when their host identity is equal: XM_HOST when set, else
 * the machine's boot id and host name.
 *
 * Waiting. xm_worker_wait() is called in a loop until what is waited for has ended. It makes
 * progress and, when there is none to be made, sleeps until the network or another rank has
 * something to say or the deadline passes (idle ranks use no CPU; XM_PROGRESS=spin changes that).
 * It is the only blocking point, so a rank that died, hangs or cannot be reached any more
 * (docs/failures.md says what is found how soon) and a passed deadline end every wait. What then
 * can be done with the other ranks: group.h.
 *
 * @code
 *     // Joins the job that the launcher describes, exchanges a number with all ranks, and leaves.
 *     xm_status_t meet(int64_t number, int64_t *numbers_of_all)
 *     {
 *         xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
 *         xm_worker_t *worker = NULL;
 *         xm_job_env_t env;
 *         xm_status_t status = xm_job_env_read(&env);
 *
 *         if (status == XM_OK) {
 *             status = xm_worker_create(&env, &params, &worker);
 *         }
 *         if (status == XM_OK) {
 *             status = xm_worker_allgather(worker, &number, numbers_of_all, sizeof(number));
 *         }
 *         xm_worker_destroy(worker, status == XM_OK ? NULL : xm_last_error());
 *         return status;
 *     }
 * @endcode
 *
 * Units: times are nanoseconds of xm_worker_now()'s clock; periods are seconds. Threads: one thread
 * at a time per worker; only xm_worker_wake() and the functions of counters.h may be called while
 * another thread is in any other function. Errors: status.h; XM_ERR_PEER_DIED and XM_ERR_CANCELED
 * name the rank.
 */
#ifndef CROSSMESH_WORKER_H
#define CROSSMESH_WORKER_H

#include <stdint.h>

#include <crossmesh/job.h>

#ifdef __cplusplus
extern "C" {
#endif

/** One rank's end of a job. */
typedef struct xm_worker xm_worker_t;

/** How to join. Start from ::XM_WORKER_PARAMS_INIT. */
typedef struct xm_worker_params {
    size_t struct_size;    /**< sizeof(xm_worker_params_t) */
    const char *transport; /**< "ucx" or "verbs"; NULL: XM_TRANSPORT */
    const char *host;      /**< host identity; NULL: XM_HOST, else the machine's own */
    int listen_fd;       /**< rank 0: socket already listening at the master port (taken over, also
                              when the call fails), or −1 */
    double timeout;      /**< seconds for every blocking step; 0: XM_TIMEOUT */
    const xm_oob_t *oob; /**< the caller's allgather, through which the ranks meet instead of
                              through what `env` says; it must outlive the worker. NULL: none */
    bool oob_only;       /**< with oob: use it for everything and open no connections besides the
                              transport's. The death of a rank is then noticed by the transport or
                              by a deadline only */
} xm_worker_params_t;

/** Initialiser of an ::xm_worker_params_t: everything from the environment. */
#define XM_WORKER_PARAMS_INIT                                                                      \
    {                                                                                              \
        sizeof(xm_worker_params_t), NULL, NULL, -1, 0.0, NULL, false                               \
    }

/**
 * Joins the job that @p env or params->oob describes (@p env may be NULL with an oob). Collective:
 * all ranks call it. XM_ERR_TIMEOUT names the ranks that have not come, XM_ERR_MISMATCH the setting
 * that differs.
 */
XM_API xm_status_t xm_worker_create(const xm_job_env_t *env, const xm_worker_params_t *params,
                                    xm_worker_t **worker);

/**
 * Leaves the job. After success on this rank pass a NULL @p reason; otherwise the sentence the
 * others shall see. NULL worker is accepted.
 */
XM_API void xm_worker_destroy(xm_worker_t *worker, const char *reason);

/** This rank, 0 … size − 1. */
XM_API int xm_worker_rank(const xm_worker_t *worker);
/** Number of ranks. */
XM_API int xm_worker_size(const xm_worker_t *worker);

/** Host index of @p rank, −1 outside the job. Hosts are numbered in the order of their lowest rank,
 * without gaps. */
XM_API int xm_worker_host_of(const xm_worker_t *worker, int rank);
/** Host identity for messages and profiles, e.g. "node7"; NULL for a host that the job does not
 * have. Valid until the worker is destroyed or shrunk. */
XM_API const char *xm_worker_host_name(const xm_worker_t *worker, int host);

/** The worker's timeout for blocking steps, in seconds. */
XM_API double xm_worker_timeout(const xm_worker_t *worker);

/** Now, in ns of a monotonic clock. */
XM_API int64_t xm_worker_now(const xm_worker_t *worker);
/** Now plus the worker's timeout. */
XM_API int64_t xm_worker_deadline(const xm_worker_t *worker);

/**
 * Makes progress; sleeps when idle, at most until @p deadline (xm_worker_now()'s clock).
 * XM_OK: something may have happened, look and call again. XM_ERR_TIMEOUT: the deadline passed.
 * XM_ERR_PEER_DIED, XM_ERR_CANCELED: a rank is gone (the sentence names it); operations with it
 * have ended with that status already.
 */
XM_API xm_status_t xm_worker_wait(xm_worker_t *worker, int64_t deadline);

/** Makes whatever progress is possible without sleeping. Same results as xm_worker_wait(). */
XM_API xm_status_t xm_worker_progress(xm_worker_t *worker);

/**
 * Has a wait that sleeps in another thread, or else the next one, return early with XM_OK, so that
 * this thread can have the worker. Any thread may call it as long as the worker exists.
 */
XM_API void xm_worker_wake(xm_worker_t *worker);

/**
 * Gathers @p length bytes (at least 1) of every rank into @p receive, by rank; it has room for size
 * times as many. Collective; waits at most for the worker's timeout.
 */
XM_API xm_status_t xm_worker_allgather(xm_worker_t *worker, const void *send, void *receive,
                                       size_t length);

/**
 * The same in pieces, for callers that look after other things meanwhile. After the post, call
 * xm_worker_wait() and test, in turns, until the test gives something else than XM_IN_PROGRESS. One
 * at a time; @p send and @p receive stay untouched by the caller until the end.
 * With params.oob_only nothing announces the end, so wait for a millisecond at a time then.
 */
XM_API xm_status_t xm_worker_allgather_post(xm_worker_t *worker, const void *send, void *receive,
                                            size_t length);
/** XM_IN_PROGRESS, or how the posted allgather ended. */
XM_API xm_status_t xm_worker_allgather_test(xm_worker_t *worker);
/**
 * Gives up the posted allgather after @p waited seconds: the buffers are the caller's again, and
 * the worker can only be shrunk (group.h) or destroyed. The result is XM_ERR_TIMEOUT with a
 * sentence that names the ranks that have not called it, where this rank can know.
 */
XM_API xm_status_t xm_worker_allgather_abandon(xm_worker_t *worker, double waited);

#ifdef __cplusplus
}
#endif

#endif
