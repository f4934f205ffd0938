/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file execute.h
 * Runs a plan on a transport, from one rank's point of view.
 *
 * An executor is persistent: created once for (plan, rank, buffers), posted as often as wanted. It
 * is event-driven and has no barrier: a rank serves its hops in plan order per peer and prefers
 * earlier ones among peers, a relay forwards a chunk as soon as it has arrived, receives are posted
 * ahead. A chunk that is contiguous in the user's buffer goes straight from or to it; others pass
 * through pack buffers: at most 8 MiB per peer and direction, and `memory_limit` in all. Nothing is
 * allocated after creation.
 *
 * @code
 *     xm_reshard_agree(worker, plan, "int32");           // once: all ranks have the same plan
 *     xm_executor_create(&params, &executor);
 *     xm_executor_run(worker, executor, xm_worker_deadline(worker));
 *     xm_executor_verify(worker, executor, xm_worker_deadline(worker));  // checksum.h, if wanted
 * @endcode
 *
 * Buffers: for every tensor, `src` holds this rank's source tile and `dst` receives its destination
 * tile, both row-major and without padding (layout.h). They may be parts of one allocation; a
 * destination may not overlap any other buffer. The user may not touch them between post and the
 * end.
 *
 * Direct hops: inside a host a receiver copies straight out of the sender's tile, if that tile lies
 * in shared memory (comm/memory/shared_memory.h) that it can map, the hop has at least 64 KiB, and
 * such hops between the two ranks have 1 MiB: one copy, no packing. Nothing need be asked for or
 * agreed on; the two ends settle it in each run. Both kinds of memory may be mixed freely.
 * XM_DIRECT_COPY=off turns it off on a rank.
 *
 * CUDA: a tile may lie in the memory of a CUDA device; that is recognised by its address, at
 * creation. All device tiles of a rank are on one device. Strided boxes are packed there by
 * kernels, and what the rank needs of its own is copied there. Where the transport takes device
 * memory (transport.h), contiguous chunks are sent from and received into it; otherwise chunks pass
 * through pinned pack buffers, and while one is sent the next is being fetched. With
 * params.device_peers, ranks of one host copy out of each other's device tiles instead. Neither the
 * device nor the user's streams are waited for: xm_executor_post_after() lets the device's part of
 * a run follow a stream, and when a run has ended well its work on the device has too, so whatever
 * is put into any stream afterwards finds the data.
 *
 * Turns (params.turns): schedulers order transfers for NICs that serve one at a time. A network
 * with congestion control lets all that are ready share a NIC, so a relay's chunks and the sends it
 * was to overlap with slow each other down. With turns, a hop between hosts begins when those
 * before it in the plan have sent all but the last `turn_ahead` bytes through the sender's rail
 * (network.h), and its receive is offered when those before it have brought all but as many bytes
 * through the receiver's rail. The ranks of a rail pass turns on by messages of one byte inside
 * their host. Runs then take the simulated time of XM_SHARING_EXCLUSIVE; without, about that of
 * XM_SHARING_FAIR.
 *
 * Failure: the first failed operation makes the run fail with its status; the rest is cancelled.
 * The contents of `dst` are then undefined but for what xm_executor_delivered() says, `src` is
 * never written. Every run ends exactly once.
 * A rank that copies directly from one whose run has failed fails with XM_ERR_UNREACHABLE.
 *
 * Progress: no limit here can block a run for ever. Take the earliest message in plan order that
 * has not ended at both ends. What it passes on came by an earlier one, so its sender has it; the
 * lane it belongs to has nothing before it, and it waits for no turn but of earlier ones; the limit
 * on messages in flight between hosts counts only earlier ones; and of the pack buffers one is kept
 * for the earliest unfinished message of each direction. So both ends have posted it, and it can
 * run even on a network that serves messages strictly in plan order. A rank that only passes a box
 * on holds a pack buffer until its own sends of that chunk have ended: these come right after the
 * chunk's arrival in plan order, so nothing earlier than the earliest message holds one.
 *
 * Threads: one thread at a time per transport and its executors.
 */
#pragma once

#include <crossmesh/reshard.h>

#include "comm/transport.h"
#include "comm/worker.h"
#include "resharding/layout.h"
#include "resharding/plan.h"

typedef struct xm_executor xm_executor_t;

/**
 * What has changed, for an executor that moves nothing else: chunks carry encodings
 * (resharding/delta.h), on the plan's routes and in its order. They wait in a journal until
 * xm_executor_write_changes() writes the destination tiles, or are written as they arrive. Tiles in
 * host memory only.
 */
typedef struct xm_executor_changes {
    /** A bit for each element of this rank's source tile of a tensor, of which those below @p end
     * are right when this returns; NULL: all elements of the task move. Asked as a run goes on, so
     * that what has been found is on its way while the next is being looked for. */
    const uint64_t *(*changed)(void *arg, int64_t task, int tensor, int64_t end);
    void *arg;
    /** What arrives waits in the journal; false: it is written at once, and all that comes to this
     * rank is all elements of its tasks. May change between runs. */
    bool keeps;
    /** Turns are kept, if there are any; equal on all ranks, may change between runs. What has
     * changed is so little that ranks would wait for turns longer than for each other. */
    bool in_turns;
    /** How what the caller has made for it went; a reshard tells all ranks. */
    xm_status_t made;
} xm_executor_changes_t;

typedef struct xm_executor_params {
    const xm_plan_t *plan;     /**< must outlive the executor */
    xm_transport_t *transport; /**< must outlive the executor; its rank is the one that runs */
    const xm_tensor_buffers_t *buffers; /**< of every tensor of the batch; copied. NULL for a batch
                                           of one tensor, given by the next four */
    const void *src;
    uint64_t src_bytes;
    void *dst;
    uint64_t dst_bytes;
    int window;  /**< chunks in flight per peer, at most 64; 0: XM_WINDOW (twice its default where
                      the transport acknowledges), or 64 if ordered */
    int channel; /**< 0 … 254, equal on all ranks, different for executors alive together.
                    After a run has failed on it, a channel takes no new executor on the same
                    transport, because messages of the failed run may still come: another channel
                    does, or the transport after xm_group_shrink() */
    uint64_t memory_limit; /**< bytes of pack buffers on this rank; 0: no limit beyond that per peer
                            */
    bool turns;            /**< keep the plan's order on the NICs, see above; equal on all ranks */
    uint64_t turn_ahead;   /**< with turns: bytes of other transfers that a NIC may still have to
                              carry when a hop begins; 0: 8 ms of its rate, at most 1 MiB; equal on
                              all ranks */
    /** Ranks of one host copy out of each other's device tiles (CUDA IPC) where they can; where
     * they cannot, messages carry the data. Equal on all ranks, those without a device included. */
    bool device_peers;
    /** Number the sends for a simulated fabric that serves the plan's order (order.h). The run then
     *  takes xm_simulate()'s time to the nanosecond, as long as the window covers the latency. */
    bool ordered;
    /** Take all steps of a run but leave the buffers alone, for a simulated fabric that does
     *  (comm/transport/sim.h). */
    bool no_copy;
    xm_verify_t verify;                   /**< as in xm_reshard_params_t; equal on all ranks */
    const xm_executor_changes_t *changes; /**< must outlive the executor; NULL: everything is moved.
                                             NULL on all ranks or on none */
    /**
     * Called from xm_executor_advance() once per run and tensor, as soon as this rank's part of the
     * tensor has ended: everything it receives is in place, everything it sends has left. Tensors
     * that this rank has no part in: at the first advance. Not called for tensors that are
     * unfinished when a run fails. May not post or destroy the executor. NULL: not wanted.
     */
    void (*tensor_done)(void *arg, int tensor);
    /** Called when a chunk that this rank sends or receives has ended: transfer, place in its
     * route, chunk, and from its post to its end. NULL: not wanted. */
    void (*chunk_ran)(void *arg, int64_t transfer, int hop, int64_t chunk, xm_span_t span);
    void *arg; /**< of tensor_done and chunk_ran */
} xm_executor_params_t;

/**
 * Prepares everything a run needs. Fails when a buffer is missing or too small (with both sizes),
 * when a destination overlaps another buffer, and when the memory limit is too small to run at all
 * (with the least that is needed).
 */
XM_API xm_status_t xm_executor_create(const xm_executor_params_t *params, xm_executor_t **executor);

/** What is meant by a proof: XM_VERIFY's where none, or no known one, is asked for. */
XM_API xm_verify_t xm_executor_proof(xm_verify_t asked);

/** Chunks in flight per peer where `window` is 0 and nothing is `ordered`. */
XM_API int xm_executor_window(const xm_transport_t *transport);

/** Starts a run. The previous one must have ended. Device tiles may be read and written now. After
 * a run that failed or was cancelled there can be 255 more; then tags come again, and another
 *  executor on another channel is needed (XM_ERR_UNSUPPORTED). */
XM_API xm_status_t xm_executor_post(xm_executor_t *executor);

/** The same, but device tiles may be touched only after what is in @p stream now (a CUstream, or
 *  cudaStream_t; NULL is CUDA's default stream). Host tiles may be touched at once. */
XM_API xm_status_t xm_executor_post_after(xm_executor_t *executor, void *stream);

/**
 * Does what can be done now: packs, unpacks, copies, posts. Call it after every progress of the
 * transport. XM_IN_PROGRESS until the run has ended, then its result.
 */
XM_API xm_status_t xm_executor_advance(xm_executor_t *executor);

/**
 * False while the rank has copies of its own left to do, or the end of one to pass on, or work on a
 * device, which no event of the transport will announce: then call xm_executor_advance() again
 * without sleeping.
 */
XM_API bool xm_executor_may_sleep(const xm_executor_t *executor);

/** Cancels a run; it ends with XM_ERR_CANCELED once xm_executor_advance() says so. */
XM_API void xm_executor_cancel(xm_executor_t *executor);

/**
 * Writes what this rank has received in the last run (plan.h, xm_delivered_t) into malloc'ed bytes.
 * It may be asked at any time; what is under way does not count.
 */
XM_API xm_status_t xm_executor_delivered(const xm_executor_t *executor, void **bytes,
                                         size_t *length);

/**
 * When a hop that this rank sends or receives ran in the last run: ns of the transport's clock from
 * the first chunk's post to the last chunk's end. @p hop counts all hops of the plan: hop i of a
 * transfer is xm_plan_first_hop() plus i. Hops of other ranks give zeros.
 */
XM_API void xm_executor_span(const xm_executor_t *executor, int64_t hop, xm_span_t *span);

/**
 * Describes what a run in flight waits for, one call of @p line for each: peer, tensor, transfer
 * and hop, chunk, since when, bytes moved, and what carries them; at most about two dozen. @p
 * worker knows the names of hosts; NULL: none. XM_WATCHDOG has xm_executor_run() log this.
 */
XM_API void xm_executor_describe(const xm_executor_t *executor, const xm_worker_t *worker,
                                 void (*line)(void *arg, const char *text), void *arg);

/** Writes what the last run has brought, which ended well, into the destination tiles. */
XM_API xm_status_t xm_executor_write_changes(xm_executor_t *executor);

/** Sets the bits of the elements of this rank's destination tile that it has written. */
XM_API xm_status_t xm_executor_changed(const xm_executor_t *executor, int tensor, uint64_t *bits);

/** What a run with changes has come to on this rank, in bytes. */
typedef struct xm_executor_moved {
    uint64_t sent;    /**< encodings */
    uint64_t covered; /**< the elements that they are of, changed or not */
    uint64_t held;    /**< in the journal */
} xm_executor_moved_t;

XM_API void xm_executor_changes_moved(const xm_executor_t *executor, xm_executor_moved_t *moved);

/** Bytes of pack buffers that this executor has allocated. */
XM_API uint64_t xm_executor_staging_bytes(const xm_executor_t *executor);

/** How tiles on a device reach the network: "pinned buffers, packed by kernels", "direct, packed by
 *  the driver's copies"; "" where this rank has none. */
XM_API const char *xm_executor_device_path(const xm_executor_t *executor);

/**
 * Frees the executor. A run in flight is ended first: cancelled, and where a peer never takes what
 * was sent to it, the connection to that peer is given up. NULL is accepted.
 */
XM_API void xm_executor_destroy(xm_executor_t *executor);

/**
 * Collective: compares element types, tensors, layouts and digest on all ranks. XM_ERR_MISMATCH
 * names the first rank that differs from rank 0 and what differs: the number of tensors, or of
 * which tensor the type, shape with dimension and numbers, mesh or spec, or the plan. @p dtype is
 * the caller's name of the element type or types ("int32"), which plans know only the size of.
 */
XM_API xm_status_t xm_reshard_agree(xm_worker_t *worker, const xm_plan_t *plan, const char *dtype);

/** Posts and waits until the run has ended or the deadline (xm_worker_now()'s clock) passes. */
XM_API xm_status_t xm_executor_run(xm_worker_t *worker, xm_executor_t *executor, int64_t deadline);

/**
 * Goes on with a run that was posted: its result when it has ended, or XM_IN_PROGRESS when @p until
 * has passed first; then the run goes on with the next call. A run that has not ended at @p
 * deadline is given up with XM_ERR_TIMEOUT, as xm_executor_run() does, which is a post and this
 * without an `until`. A time in the past makes @p until a test that does not wait. For callers that
 * have to look after other things as well: several runs at once, signals, other threads.
 */
XM_API xm_status_t xm_executor_wait(xm_worker_t *worker, xm_executor_t *executor, int64_t until,
                                    int64_t deadline);

/** Gives an executor that has not run yet another channel than it was created on. */
void xm_executor_take_channel(xm_executor_t *executor, int channel);
