/**
 * @file worker.h
 * This process's seat in a job: rank, hosts of all ranks, bootstrap, transport, and the one place
 * where a rank waits.
 *
 * Creating a worker joins the rendezvous, compares the uniform settings (config.h) of all ranks,
 * exchanges topologies and host identities, agrees on the NICs to be used where hosts have several
 * and XM_NICS names none (docs/topology.md), and opens the transport. Ranks are on the same *host*
 * when their host identity is equal: XM_HOST when set, else the machine's boot id and host name.
 *
 * Waiting: xm_worker_wait() is called in a loop `while (!finished) status = xm_worker_wait(worker,
 * deadline)`. It makes progress and, when there is none to be made, sleeps until the transport or
 * the fault channel has something to say or the deadline passes (idle ranks use no CPU;
 * XM_PROGRESS=spin changes that). It is the only blocking point, so a rank that died, hangs or
 * cannot be reached any more (XM_HEARTBEAT; docs/failures.md says what is found how soon) and a
 * passed deadline end every wait. What then can be done with the other ranks: group.h.
 *
 * Every operation is counted (xm_worker_counters()), and XM_METRICS_FILE has that written to a file
 * while the worker waits and makes progress (docs/observability.md).
 *
 * Threads: one thread at a time per worker. Only xm_worker_wake() may be called while another
 * thread is in any other function.
 */
#ifndef XM_COMM_WORKER_H
#define XM_COMM_WORKER_H

#include "comm/bootstrap.h"
#include "comm/counters.h"
#include "comm/status.h"
#include "comm/transport.h"

typedef struct xm_worker xm_worker_t;

typedef struct xm_worker_params {
    size_t struct_size;
    const char *transport; /**< "ucx" or "verbs"; NULL means XM_TRANSPORT */
    const char *host;      /**< host identity; NULL means XM_HOST, else the machine's own */
    int listen_fd;  /**< rank 0: socket already listening at the master port (taken over), or -1 */
    double timeout; /**< seconds for every blocking step; 0 means XM_TIMEOUT */
    /** The caller's allgather, through which the ranks meet instead of through what `env` says,
     * which may be NULL then. It must outlive the worker. */
    const xm_oob_t *oob;
    /** With oob: use it for everything and open no connections besides the transport's. The death
     * of a rank is then noticed by the transport or by a deadline only. */
    bool oob_only;
} xm_worker_params_t;

#define XM_WORKER_PARAMS_INIT                                                                      \
    {                                                                                              \
        .struct_size = sizeof(xm_worker_params_t), .listen_fd = -1                                 \
    }

/** Joins the job that @p env (or params->oob) describes. Collective: all ranks call it. */
XM_API xm_status_t xm_worker_create(const xm_job_env_t *env, const xm_worker_params_t *params,
                                    xm_worker_t **worker);

XM_API int xm_worker_rank(const xm_worker_t *worker);
XM_API int xm_worker_size(const xm_worker_t *worker);

/** Number of different hosts in the job. */
XM_API int xm_worker_host_count(const xm_worker_t *worker);
/** Host index of @p rank; hosts are numbered in the order of their lowest rank. */
XM_API int xm_worker_host_of(const xm_worker_t *worker, int rank);
/** Host identity for messages and profiles, e.g. "node7". Valid as long as the worker. */
XM_API const char *xm_worker_host_name(const xm_worker_t *worker, int host);

/** hwloc description of host @p host as XML text (see topology.h). Valid as long as the worker. */
XM_API const char *xm_worker_topology_xml(const xm_worker_t *worker, int host);

XM_API xm_transport_t *xm_worker_transport(xm_worker_t *worker);
XM_API xm_bootstrap_t *xm_worker_bootstrap(xm_worker_t *worker);

/** What this rank has sent and received since the worker was created, see counters.h. Valid as long
 * as the worker; other threads may read it. */
XM_API const xm_counters_t *xm_worker_counters(const xm_worker_t *worker);

/**
 * One line of what this rank is: "rank 2 of 8 on node7, crossmesh 0.1.0, transport ucx, NICs
 * mlx5_0:1 (200 Gbit/s); UCX 1.13.1, libibverbs 1.14.44.0, hwloc 2.9.0, Linux 6.1.0". It is what
 * the log has at level info when the worker has been created. Returns @p buffer.
 */
XM_API char *xm_worker_describe(const xm_worker_t *worker, char *buffer, size_t size);

/** The worker's default deadline for blocking steps, in seconds. */
XM_API double xm_worker_timeout(const xm_worker_t *worker);

/** Monotonic nanoseconds, for deadlines: xm_worker_deadline(w) = now + the worker's timeout. */
XM_API int64_t xm_worker_now(const xm_worker_t *worker);
XM_API int64_t xm_worker_deadline(const xm_worker_t *worker);

/**
 * Makes progress; sleeps when idle, at most until @p deadline (xm_worker_now()'s clock).
 * XM_OK: something may have happened, look and call again. XM_ERR_TIMEOUT: the deadline passed.
 * XM_ERR_PEER_DIED / XM_ERR_CANCELED: a rank is gone (sentence names it); operations with it have
 * ended with that status already.
 */
XM_API xm_status_t xm_worker_wait(xm_worker_t *worker, int64_t deadline);

/**
 * Has a wait that sleeps in another thread, or else the next one, return early with XM_OK, so that
 * this thread can have the worker. Any thread may call it as long as the worker exists.
 */
XM_API void xm_worker_wake(xm_worker_t *worker);

/** Makes whatever progress is possible without sleeping. Same results as xm_worker_wait(). */
XM_API xm_status_t xm_worker_progress(xm_worker_t *worker);

/** Blocking barrier over all ranks through the bootstrap, transport progress goes on meanwhile. */
XM_API xm_status_t xm_worker_barrier(xm_worker_t *worker);

/** Blocking allgather of @p length bytes a rank, see xm_bootstrap_allgather(). */
XM_API xm_status_t xm_worker_allgather(xm_worker_t *worker, const void *send, void *receive,
                                       size_t length);

/**
 * Collective when @p status is a failure, one that every rank has found alike in what all have
 * gathered: nobody gives up over it before everybody has found it, or the slower ranks would hear
 * of that first and end with another status. Returns @p status, with its sentence.
 */
XM_API xm_status_t xm_worker_fail_together(xm_worker_t *worker, xm_status_t status);

/**
 * Leaves the job. After success on this rank pass a NULL @p reason; otherwise the sentence the
 * others shall see. NULL worker is accepted.
 */
XM_API void xm_worker_destroy(xm_worker_t *worker, const char *reason);

#endif
