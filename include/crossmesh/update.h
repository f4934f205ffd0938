/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file update.h
 * Keeps copies of tensors, in other layouts on other ranks, up to date by moving what has changed.
 *
 * Between two steps of training most weights are bit for bit what they were. An *update* is made
 * like a reshard (reshard.h), from tensors with two layouts and this rank's buffers; each
 * xm_update_commit() then makes every destination what the sources are now, and moves only the
 * elements that differ from the last version, on the routes and in the order of the reshard's plan:
 * a receiver gets its own elements, and a network link carries each once.
 *
 * @code
 *     // A trainer's rows become a server's columns after every step. NULL and 0 in `tiles` for the
 *     // side that this rank is not on.
 *     xm_status_t serve(xm_worker_t *worker, const xm_tensor_t *weights,
 *                       const xm_tensor_buffers_t *tiles, int steps, void (*step)(void))
 *     {
 *         xm_reshard_params_t params = XM_RESHARD_PARAMS_INIT;
 *         xm_update_t *update = NULL;
 *         xm_status_t status;
 *
 *         params.tensors = weights;
 *         params.buffers = tiles;
 *         status = xm_update_create(worker, &params, &update);
 *         for (int i = 0; status == XM_OK && i < steps; ++i) {
 *             step();
 *             status = xm_update_commit(update, 0, NULL);
 *         }
 *         xm_update_destroy(update);
 *         return status;
 *     }
 * @endcode
 *
 * Versions: a commit that ends well on all ranks is the next version, from 1 on. Its changes wait
 * at each receiver until all ranks have all of theirs, and are written then; so after a commit that
 * failed every destination is still the version that it was, and the next commit brings what both
 * would have. Readers in other threads ask xm_update_read_begin() and xm_update_read_end().
 *
 * Ranks may have different versions: a destination that has none yet is sent all of its elements,
 * which are written as they arrive; one that was away for some versions, or is one behind after a
 * failure, gets what has changed since its own, or all elements where that is less.
 * xm_update_continue() brings such ranks together.
 *
 * What has changed is found by comparing each source tile with a shadow of it, byte by byte, which
 * takes as much memory as the tile, and three bits for each element. A chunk goes as its changed
 * elements and where they are, in whichever of several ways takes the fewest bytes; where all
 * have changed, as it is, with 12 bytes before it. What has been found is on its way while the rest
 * is being compared.
 *
 * A tile on a CUDA device has a mirror in pinned host memory, and a source's shadow is on the
 * device too: kernels find and write what has changed, and only that crosses the bus. What the
 * device was given to do with a source has to be done when a commit begins, and what a commit
 * writes is there when it ends.
 *
 * Buffers, ownership, threads and failures are as reshard.h says. Sources may not be written during
 * a commit. Where several ranks hold the same part of a source, it has to
 * be the same on all.
 */
#ifndef CROSSMESH_UPDATE_H
#define CROSSMESH_UPDATE_H

#include <crossmesh/reshard.h>

#ifdef __cplusplus
extern "C" {
#endif

/** An update of one rank. */
typedef struct xm_update xm_update_t;

/** What a commit came to on this rank. Start from ::XM_UPDATE_INFO_INIT. */
typedef struct xm_update_info {
    size_t struct_size;   /**< sizeof(xm_update_info_t) */
    uint64_t version;     /**< the last one that is complete on all ranks */
    bool everything;      /**< no destination had a version: all elements have moved */
    uint64_t changed;     /**< elements of this rank's source tiles that differed */
    uint64_t sent_bytes;  /**< that this rank has sent, what it passed on included */
    uint64_t dense_bytes; /**< that it would have sent of everything */
    uint64_t held_bytes;  /**< what waited on this rank to be written */
} xm_update_info_t;

/** Initialiser of an ::xm_update_info_t. */
#define XM_UPDATE_INFO_INIT                                                                        \
    {                                                                                              \
        sizeof(xm_update_info_t), 0, false, 0, 0, 0, 0                                             \
    }

/**
 * Makes an update. Collective, with everything that xm_reshard_create() says; XM_ERR_UNSUPPORTED
 * for a plan of the rest of a run. `device_peers` and `tensor_done` of
 * the parameters have no meaning.
 */
XM_API xm_status_t xm_update_create(xm_worker_t *worker, const xm_reshard_params_t *params,
                                    xm_update_t **update);

/**
 * The same in another group, going on from @p previous: after xm_group_shrink(), or with ranks that
 * have joined. Collective in the new group; NULL on ranks that have no previous one. A rank keeps
 * its version where it has the same tile of each tensor at the same address as before, and finds
 * what has changed since then; a destination that has no version, or one that is more than eight
 * commits old, is sent all of its elements, and the others what they lack. When this has gone well
 * @p previous can only be destroyed: it has no version to read any more.
 *
 * @code
 *     // A trainer's or server's next group: `plan` is for its ranks.
 *     xm_status_t regroup(xm_worker_t *worker, const xm_plan_t *plan,
 *                         const xm_tensor_buffers_t *tiles, xm_update_t **update)
 *     {
 *         xm_reshard_params_t params = XM_RESHARD_PARAMS_INIT;
 *         xm_update_t *next = NULL;
 *         xm_status_t status;
 *
 *         params.plan = plan;
 *         params.buffers = tiles;
 *         status = xm_update_continue(worker, &params, *update, &next);
 *         if (status == XM_OK) {
 *             xm_update_destroy(*update);
 *             *update = next;
 *         }
 *         return status;
 *     }
 * @endcode
 */
XM_API xm_status_t xm_update_continue(xm_worker_t *worker, const xm_reshard_params_t *params,
                                      xm_update_t *previous, xm_update_t **update);

/**
 * Makes all destinations what the sources are now: collective, and ends on all ranks well or on
 * none, but for a rank that dies or a group that fails in its last exchange; ranks may then be a
 * version apart until the next commit. @p deadline of the run as in
 * xm_reshard_post(). @p info may be NULL.
 */
XM_API xm_status_t xm_update_commit(xm_update_t *update, int64_t deadline, xm_update_info_t *info);

/**
 * Which elements of this rank's destination tile of a tensor the last commit has written: a bit for
 * each, in the order of the tile, in words of 64, the lowest first; for those who hand on what has
 * changed. None where it failed before that.
 */
XM_API xm_status_t xm_update_changed(const xm_update_t *update, int tensor, uint64_t *bits);

/**
 * The version that this rank's destinations have: 0 when they have none, or are being written. Any
 * thread may ask. What is read after it is of that version if xm_update_read_end() says so.
 *
 * @code
 *     // Another thread's look at one element.
 *     float look(const xm_update_t *update, const float *weights, int at)
 *     {
 *         float seen = 0;
 *         uint64_t version;
 *
 *         do {
 *             version = xm_update_read_begin(update);
 *             seen = weights[at];
 *         } while (version == 0 || !xm_update_read_end(update, version));
 *         return seen;
 *     }
 * @endcode
 */
XM_API uint64_t xm_update_read_begin(const xm_update_t *update);
/** Whether nothing has been written since xm_update_read_begin() gave @p version. */
XM_API bool xm_update_read_end(const xm_update_t *update, uint64_t version);

/** The plan, valid as long as the update. */
XM_API const xm_plan_t *xm_update_plan(const xm_update_t *update);

/** Frees the update; a run in flight is ended as xm_reshard_destroy() says. NULL is accepted. */
XM_API void xm_update_destroy(xm_update_t *update);

#ifdef __cplusplus
}
#endif

#endif
