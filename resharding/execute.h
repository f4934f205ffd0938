/**
 * @file execute.h
 * Runs a plan on a transport, from one rank's point of view.
 *
 * An executor is persistent: created once for (plan, rank, buffers), posted as often as wanted. It
 * is event-driven and has no barrier: a rank serves its transfers in plan order per peer, a relay
 * forwards a chunk as soon as it has arrived, receives are posted ahead. A chunk that is contiguous
 * in the user's buffer goes straight from or to it; others pass through a ring of at most window
 * chunks per peer and direction. Nothing is allocated after creation.
 *
 * @code
 *     xm_reshard_agree(worker, plan, "int32");           // once: all ranks have the same plan
 *     xm_executor_create(&params, &executor);
 *     xm_reshard_run(worker, executor, xm_worker_deadline(worker));
 * @endcode
 *
 * Buffers: `src` holds this rank's source tile, `dst` receives its destination tile, both row-major
 * and without padding (layout.h); they must not overlap. The user may not touch them between post
 * and the end.
 *
 * Failure: the first failed operation makes the run fail with its status; the rest is cancelled.
 * The contents of `dst` are then undefined, `src` is never written. Every run ends exactly once.
 *
 * Threads: one thread at a time per transport and its executors.
 */
#ifndef XM_RESHARDING_EXECUTE_H
#define XM_RESHARDING_EXECUTE_H

#include "comm/transport.h"
#include "comm/worker.h"
#include "resharding/plan.h"
#include "resharding/simulate.h"

typedef struct xm_executor xm_executor_t;

typedef struct xm_executor_params {
    size_t struct_size;
    const xm_plan_t *plan;     /**< must outlive the executor */
    xm_transport_t *transport; /**< must outlive the executor; its rank is the one that runs */
    const void *src;           /**< may be NULL when this rank is not in the source mesh */
    uint64_t src_bytes;        /**< at least xm_layout_buffer_bytes() */
    void *dst;                 /**< may be NULL when this rank is not in the destination mesh */
    uint64_t dst_bytes;
    int window;  /**< chunks in flight per peer; 0 means XM_WINDOW */
    int channel; /**< 0 … 255, equal on all ranks, different for executors alive together */
} xm_executor_params_t;

#define XM_EXECUTOR_PARAMS_INIT                                                                    \
    {                                                                                              \
        .struct_size = sizeof(xm_executor_params_t)                                                \
    }

/** Prepares everything a run needs. Fails when a buffer is missing or too small (with both sizes).
 */
XM_API xm_status_t xm_executor_create(const xm_executor_params_t *params, xm_executor_t **executor);

/** Starts a run. The previous one must have ended. */
XM_API xm_status_t xm_executor_post(xm_executor_t *executor);

/**
 * Does what can be done now: packs, unpacks, copies, posts. Call it after every progress of the
 * transport. XM_IN_PROGRESS until the run has ended, then its result.
 */
XM_API xm_status_t xm_executor_advance(xm_executor_t *executor);

/**
 * False while the rank has local copies left to do, or the end of one to pass on, which no event of
 * the transport will announce: then call xm_executor_advance() again without sleeping.
 */
XM_API bool xm_executor_may_sleep(const xm_executor_t *executor);

/** Cancels a run; it ends with XM_ERR_CANCELED once xm_executor_advance() says so. */
XM_API void xm_executor_cancel(xm_executor_t *executor);

/**
 * When a transfer that this rank sends or receives ran in the last run: ns of the transport's clock
 * from the first chunk's post to the last chunk's end. Transfers of other ranks give zeros.
 */
XM_API void xm_executor_span(const xm_executor_t *executor, int64_t transfer, xm_span_t *span);

/**
 * Frees the executor. A run in flight is ended first: cancelled, and where a peer never takes what
 * was sent to it, the connection to that peer is given up. NULL is accepted.
 */
XM_API void xm_executor_destroy(xm_executor_t *executor);

/**
 * Collective: compares element type, tensor, layouts and digest on all ranks. XM_ERR_MISMATCH names
 * the first rank that differs from rank 0 and what differs: type, shape with dimension and numbers,
 * mesh, spec, plan. @p dtype is the caller's name of the element type ("int32"), which plans know
 * only the size of.
 */
XM_API xm_status_t xm_reshard_agree(xm_worker_t *worker, const xm_plan_t *plan, const char *dtype);

/** Posts and waits until the run has ended or the deadline (xm_worker_now()'s clock) passes. */
XM_API xm_status_t xm_reshard_run(xm_worker_t *worker, xm_executor_t *executor, int64_t deadline);

#endif
