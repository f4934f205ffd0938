/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file reshard.h
 * Moves tensors from the layouts they have into the layouts that are wanted, as often as wanted.
 *
 * A *reshard* is made once by all ranks of a worker, from the tensors (each with two layouts) and
 * from this rank's buffers. Making it plans the transfers, compares on all ranks what they are
 * about to do, and prepares everything that a run needs. After that every run moves what the
 * sources hold at that time.
 *
 * @code
 *     // A matrix in rows on ranks 0 … 7 becomes columns on ranks 8 … 15. This rank's tiles of it:
 *     // NULL and 0 for the side that it is not on.
 *     xm_status_t transpose(xm_worker_t *worker, xm_tensor_buffers_t *tiles, int steps)
 *     {
 *         xm_layout_t *rows = NULL, *columns = NULL;
 *         xm_reshard_params_t params = XM_RESHARD_PARAMS_INIT;
 *         xm_reshard_t *reshard = NULL;
 *         xm_tensor_t tensor = {"weights", NULL, NULL, 32};
 *         xm_status_t status =
 *             xm_layout_parse("8192x8192", "2x4", "0-7", "S01R", XM_PARTITION_EVEN, &rows);
 *
 *         if (status == XM_OK) {
 *             status = xm_layout_parse("8192x8192", "2x4", "8-15", "RS01", XM_PARTITION_EVEN,
 *                                      &columns);
 *         }
 *         tensor.src = rows;
 *         tensor.dst = columns;
 *         params.tensors = &tensor;
 *         params.buffers = tiles;
 *         if (status == XM_OK) {
 *             status = xm_reshard_create(worker, &params, &reshard);
 *         }
 *         for (int step = 0; status == XM_OK && step < steps; ++step) {
 *             status = xm_reshard_run(reshard, 0); // what the rows are now
 *         }
 *         xm_reshard_destroy(reshard);
 *         xm_layout_destroy(rows);
 *         xm_layout_destroy(columns);
 *         return status;
 *     }
 * @endcode
 *
 * Buffers: `src` holds this rank's source tile and `dst` receives its destination tile, both
 * row-major and without padding. They may be parts of one allocation, and in the memory of a CUDA
 * device; a destination may not overlap any other buffer. They belong to a run from its post to its
 * end, and have to exist until xm_reshard_destroy(). Sources are never written.
 *
 * Runs: one at a time for each reshard, any number of reshards at once. A run needs all ranks that
 * the plan names, and there is no barrier in it. All runs of a worker go on whenever this rank is
 * inside xm_worker_wait(), xm_worker_progress(), a barrier or a wait for any of its reshards; so
 * ranks may post several and wait for them in whatever order.
 *
 * Failure: a run ends exactly once. When one fails on a rank, its destinations are filled in part
 * and the status says why: XM_ERR_PEER_DIED or XM_ERR_CANCELED when the group is of no
 * use any more (group.h), XM_ERR_TIMEOUT for a passed deadline. In a group that is well the reshard
 * can be run again, 255 times after its first failure; after that a post fails with
 * XM_ERR_UNSUPPORTED on the rank where this is so, and all ranks have to destroy the reshard and
 * make it anew. After a failure of the group: xm_group_shrink(), then xm_reshard_continue() for
 * what is missing of that run, or new layouts and reshards.
 *
 * @code
 *     // One run. After a death the survivors bring each other what is missing of it; then the
 *     // reshard is another one, which has no run but that, and the worker has fewer ranks.
 *     xm_status_t run_to_the_end(xm_worker_t *worker, xm_reshard_t **reshard)
 *     {
 *         xm_status_t status = xm_reshard_run(*reshard, 0);
 *
 *         while (status == XM_ERR_PEER_DIED || status == XM_ERR_CANCELED) {
 *             xm_reshard_t *rest = NULL;
 *
 *             xm_group_abort(worker, xm_last_error()); // for ranks that have not noticed
 *             status = xm_group_shrink(worker, 30.0);
 *             if (status == XM_OK) {
 *                 status = xm_reshard_continue(worker, *reshard, NULL, &rest);
 *             }
 *             if (status == XM_OK) {
 *                 xm_reshard_destroy(*reshard);
 *                 *reshard = rest;
 *                 status = xm_reshard_run(rest, 0);
 *             }
 *         }
 *         return status;
 *     }
 * @endcode
 *
 * Ownership: layouts, the network and names are copied; a plan, the buffers and the worker must
 * outlive the reshard's use. Ranks may destroy a reshard at different times. A reshard that is left
 * over when its group is shrunk, or the worker destroyed, ends there: it can only be continued or
 * destroyed.
 *
 * Limits: 254 reshards of one worker exist at the same time (252 with XM_VERIFY=chunk). Those that
 * a run has failed on count until the next xm_group_shrink(), even when they have been destroyed,
 * because messages of that run may still come.
 *
 * Threads: as the worker's: one at a time for a worker and all its reshards.
 */
#ifndef CROSSMESH_RESHARD_H
#define CROSSMESH_RESHARD_H

#include <crossmesh/plan.h>
#include <crossmesh/worker.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A reshard of one rank. */
typedef struct xm_reshard xm_reshard_t;

/** Where one tensor of the batch lies on this rank. */
typedef struct xm_tensor_buffers {
    const void *src;    /**< may be NULL when this rank holds nothing of the source */
    uint64_t src_bytes; /**< at least xm_layout_buffer_bytes() */
    void *dst;          /**< may be NULL when this rank holds nothing of the destination */
    uint64_t dst_bytes;
} xm_tensor_buffers_t;

/**
 * How a run proves that bytes have arrived as they were sent. Where they have not, it fails with
 * XM_ERR_CORRUPT, and the group is aborted with the sentence (group.h), so that all ranks hear of
 * it: in their runs, or in their next wait where those had ended.
 */
typedef enum xm_verify {
    XM_VERIFY_DEFAULT, /**< as XM_VERIFY says */
    XM_VERIFY_OFF,     /**< networks are trusted */
    XM_VERIFY_RUN,     /**< a run ends with what xm_reshard_verify() does */
    /** A checksum with each chunk: what came wrong is sent again, at most ten times, and counted
     * (counters.h). Costs little, but tiles on a device go by way of the host. */
    XM_VERIFY_CHUNK
} xm_verify_t;

/**
 * What a reshard is made of. All ranks give the same, apart from what is marked "of this rank";
 * what differs is found before a byte moves.
 */
typedef struct xm_reshard_params {
    size_t struct_size;
    const xm_tensor_t *tensors; /**< what is moved: one tensor or many, scheduled together */
    int tensor_count;
    const xm_tensor_buffers_t *buffers; /**< of every tensor, of this rank; NULL: it has no part */
    const char *dtype; /**< names of the element types ("float32"), compared on all ranks as they
                          are; NULL: only the elements' sizes are compared */

    xm_strategy_t strategy;
    xm_scheduler_t scheduler;
    const xm_network_t *network; /**< hosts and rates to plan for; NULL: xm_network_from_worker() */
    /** A plan that was made before, in the place of tensors, strategy, scheduler and network; it
     * must outlive the reshard. NULL: plan now. */
    const xm_plan_t *plan;

    uint64_t memory_limit; /**< bytes of pack buffers, of this rank; 0: at most 8 MiB per peer and
                              direction */
    int window;            /**< chunks in flight per peer, at most 64; 0: XM_WINDOW */
    /** Keep the plan's order on the NICs: a hop between hosts begins when those before it have sent
     * all but `turn_ahead` bytes (0: 8 ms of the NICs' rate, at most 1 MiB). For networks that
     * serve one message at a time badly when several share a NIC. */
    bool turns;
    uint64_t turn_ahead;
    /** Ranks of one host copy out of each other's CUDA tiles where they can. */
    bool device_peers;

    /** Called once per run and tensor as soon as this rank's part of the tensor has ended: all it
     * receives is in place, all it sends has left. Comes from inside a wait or progress of the
     * worker; may not call any function of the worker or of a reshard. Not called for tensors that
     * are unfinished when a run fails. NULL: not wanted. */
    void (*tensor_done)(void *arg, int tensor);
    void *arg; /**< of tensor_done */

    /** Why this rank cannot take part, for instance because it has no memory for its tile: then
     * everything above may be missing, and making the reshard fails on all ranks with this
     * sentence. NULL: it can. */
    const char *refusal;

    xm_verify_t verify; /**< equal on all ranks */
} xm_reshard_params_t;

/** Initialiser of an ::xm_reshard_params_t. */
#define XM_RESHARD_PARAMS_INIT                                                                     \
    {                                                                                              \
        sizeof(xm_reshard_params_t), NULL, 1, NULL, NULL, XM_STRATEGY_AUTO, XM_SCHEDULER_AUTO,     \
            NULL, NULL, 0, 0, false, 0, false, NULL, NULL, NULL, XM_VERIFY_DEFAULT                 \
    }

/**
 * Makes a reshard. Collective: all ranks of the worker call it, in the same order as other
 * collectives; it returns when all have. It fails on all ranks or on none: a rank whose buffer is
 * missing or too small, that cannot plan or has no memory, gives its status and sentence to all;
 * XM_ERR_MISMATCH names the first rank that differs from rank 0, and what differs (number of
 * tensors, or of which tensor the type, shape, mesh or spec, or the plan). XM_ERR_UNSUPPORTED: too
 * many reshards, see Limits. Only without a worker, or with a struct_size that is none, it fails
 * alone.
 */
XM_API xm_status_t xm_reshard_create(xm_worker_t *worker, const xm_reshard_params_t *params,
                                     xm_reshard_t **reshard);

/**
 * The same without waiting for the other ranks, for callers that have to look after other things as
 * well: go on with xm_reshard_test() or xm_reshard_wait() until they give something else than
 * XM_IN_PROGRESS. A reshard whose making has failed can only be destroyed. No other collective of
 * the worker may be called in the meantime. @p params need not be kept.
 */
XM_API xm_status_t xm_reshard_begin(xm_worker_t *worker, const xm_reshard_params_t *params,
                                    xm_reshard_t **reshard);

/**
 * Starts a run; the former one must have ended. Device tiles may be read and written now. A run
 * that has not ended at @p deadline (xm_worker_now()'s clock; 0: XM_TIMEOUT from now on) is given
 * up.
 */
XM_API xm_status_t xm_reshard_post(xm_reshard_t *reshard, int64_t deadline);

/** The same, but device tiles may be touched only after what is in @p stream now (a CUstream or
 *  cudaStream_t; NULL is CUDA's default stream). Host tiles may be touched at once. */
XM_API xm_status_t xm_reshard_post_after(xm_reshard_t *reshard, void *stream, int64_t deadline);

/**
 * XM_IN_PROGRESS, or how the last run has ended (XM_OK before the first). Never sleeps, and leaves
 * the worker alone: for callers that wait for several things at once. They look at all of them
 * after each return of xm_worker_wait(), with a deadline there that is not later than the run's.
 *
 * @code
 *     // Returns when one of two posted runs has ended.
 *     void wait_for_either(xm_worker_t *worker, xm_reshard_t *a, xm_reshard_t *b)
 *     {
 *         while (xm_reshard_test(a) == XM_IN_PROGRESS && xm_reshard_test(b) == XM_IN_PROGRESS) {
 *             (void)xm_worker_wait(worker, xm_worker_deadline(worker));
 *         }
 *     }
 * @endcode
 */
XM_API xm_status_t xm_reshard_test(xm_reshard_t *reshard);

/**
 * Sleeps until the run has ended, and returns its result, or XM_IN_PROGRESS when @p until has
 * passed first; then the run goes on with the next call. INT64_MAX: until the end, which comes at
 * the run's deadline at the latest. With XM_WATCHDOG it logs what a run waits for that does not
 * move.
 */
XM_API xm_status_t xm_reshard_wait(xm_reshard_t *reshard, int64_t until);

/** Posts and waits until the end. */
XM_API xm_status_t xm_reshard_run(xm_reshard_t *reshard, int64_t deadline);

/** Cancels the run; it ends with XM_ERR_CANCELED in the next test or wait. Other ranks need their
 * parts of it to end, too: they cancel as well, or wait for their deadlines. */
XM_API void xm_reshard_cancel(xm_reshard_t *reshard);

/**
 * Proves by checksums that every destination holds what the sources hold. All ranks call it after a
 * run that went well on all of them, before the buffers are used for anything else. XM_ERR_CORRUPT
 * names the first tensor and box that differ on this rank, the holder and the receiver; ranks where
 * nothing differs return XM_OK. @p deadline as in xm_reshard_post().
 */
XM_API xm_status_t xm_reshard_verify(xm_reshard_t *reshard, int64_t deadline);

/** How to go on. Start from ::XM_RESHARD_CONTINUE_PARAMS_INIT; equal on all ranks. */
typedef struct xm_reshard_continue_params {
    size_t struct_size;          /**< sizeof(xm_reshard_continue_params_t) */
    const xm_network_t *network; /**< of the ranks that are left; NULL: that of the first plan */
    /** Called for each range that no living rank holds; the reshard leaves them out. NULL: making
     * it fails with XM_ERR_NO_SOLUTION, which names the first tensor and box. NULL on all ranks or
     * on none. */
    void (*gap)(void *arg, const xm_plan_gap_t *gap);
    void *arg; /**< of gap */
} xm_reshard_continue_params_t;

/** Initialiser of an ::xm_reshard_continue_params_t. */
#define XM_RESHARD_CONTINUE_PARAMS_INIT                                                            \
    {                                                                                              \
        sizeof(xm_reshard_continue_params_t), NULL, NULL, NULL                                     \
    }

/**
 * Makes a reshard whose run brings what is missing of the last run of @p failed, and nothing else:
 * what has arrived on ranks that live stays, and serves others who need it. Collective among all
 * ranks of @p worker, each with its own end of the same reshard, after xm_group_shrink() or, when
 * nobody died, in the group as it is. Ranks whose run ended well take part, and those that had not
 * begun it, if it was the first; XM_ERR_MISMATCH when ranks were in different runs.
 *
 * The buffers are those of @p failed: destinations must hold what the run left in them, and sources
 * what they held in it. Its other parameters stay as well; a tensor_done comes for all tensors
 * again. The result can be run once; if that fails too, it can be continued in turn. @p failed can
 * be destroyed afterwards, but a plan of the caller's own must still exist here. NULL @p params:
 * the initialiser's.
 */
XM_API xm_status_t xm_reshard_continue(xm_worker_t *worker, const xm_reshard_t *failed,
                                       const xm_reshard_continue_params_t *params,
                                       xm_reshard_t **rest);

/** The plan, valid as long as the reshard: bytes, predicted time, digest (plan.h). */
XM_API const xm_plan_t *xm_reshard_plan(const xm_reshard_t *reshard);

/** Bytes of pack buffers of this rank, beside the caller's buffers. */
XM_API uint64_t xm_reshard_staging_bytes(const xm_reshard_t *reshard);

/** How tiles on a device reach the network: "pinned buffers, packed by kernels", "direct, packed by
 *  the driver's copies"; "" where this rank has none. */
XM_API const char *xm_reshard_device_path(const xm_reshard_t *reshard);

/**
 * Frees the reshard. A run in flight is ended first: cancelled, and where a peer never takes what
 * was sent to it, the connection to that peer is given up; so abort the group (group.h) before if
 * others take part in it. NULL is accepted.
 */
XM_API void xm_reshard_destroy(xm_reshard_t *reshard);

/**
 * A layout from texts: shape "1024x512", mesh "2x4" of the ranks "0-7" ("0,2,4-7"; NULL: from 0
 * on), spec "S0R". Mesh and spec fail as xm_mesh_parse() and xm_spec_parse() do; the number of
 * dimensions must agree.
 */
XM_API xm_status_t xm_layout_parse(const char *shape, const char *mesh, const char *ranks,
                                   const char *spec, xm_partition_t partition,
                                   xm_layout_t **layout);

/**
 * The worker's hosts as a network to plan for. Not collective: every rank gets the same, from what
 * all have told each other when the worker was made. Ranks of a host that use the same NICs
 * (XM_NICS, or the choice of docs/topology.md) share a rail; ranks that have a NIC in common and
 * others not, too. A rail's rate is that of its NICs, as XM_NICS or the driver tells it. Where a
 * host's NICs do not all tell theirs, its rails have equal shares of the rates of the NICs that are
 * suitable for tensors by its topology: of cable and slot, not measured. A host of which one such
 * NIC does not tell its speed, or that has none (containers, virtual machines), gets the slowest
 * rate that is known of any host, and 10 Gbit/s when none is known. Assumed for all: 20 µs between
 * hosts; 10 GB/s and 1 µs between the devices of a host; all hosts in one rack. The rates only
 * decide among plans, all of which are right; who has measured, takes xm_network_from_profile().
 */
XM_API xm_status_t xm_network_from_worker(xm_worker_t *worker, xm_network_t **network);

#ifdef __cplusplus
}
#endif

#endif
