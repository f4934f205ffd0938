/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file group.h
 * A worker's group when something has gone wrong: ends what is under way on all ranks, and goes on
 * with the ranks that are left.
 *
 * A worker (worker.h) begins in a group of all ranks of the job. When a wait fails because a rank
 * is gone, the group is of no use any more. Shrinking makes a group of the survivors: the same
 * worker object, with new ranks 0 … m − 1 in the order of the old ones, a new transport, and a
 * *generation* one higher or more. Nothing of a former generation can reach the new one: it has
 * other endpoints.
 *
 * @code
 *     // Goes on with the ranks that are left after a failure of `status`; collective among them.
 *     xm_status_t survive(xm_worker_t *worker, xm_status_t status)
 *     {
 *         if (status == XM_ERR_PEER_DIED || status == XM_ERR_CANCELED) {
 *             xm_group_abort(worker, xm_last_error()); // for ranks that have not noticed
 *             // Reshards and messages belong to the old transport: destroy them here.
 *             status = xm_group_shrink(worker, 30.0);
 *             // Then new meshes of xm_worker_size(worker) ranks, and new plans.
 *         }
 *         return status;
 *     }
 * @endcode
 *
 * Who counts as dead, and how soon that is found: docs/failures.md. A rank that the others took for
 * dead although it lives (it was stopped, or cut off) is not taken back: its shrink fails with
 * XM_ERR_PEER_DIED and a sentence that says so.
 *
 * Threads: as the worker's. Source: the ways of ULFM's MPI_Comm_revoke() and MPI_Comm_shrink().
 */
#ifndef CROSSMESH_GROUP_H
#define CROSSMESH_GROUP_H

#include <crossmesh/worker.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Gives up what the group is doing. Every wait of every rank ends with XM_ERR_CANCELED and a
 * sentence that quotes @p sentence, also of ranks that sleep; ranks that compute learn of it at
 * their next wait. When this returns (it does not wait for the others) all operations of this rank
 * have ended, and nothing is written to its memory any more, whatever is still on the way. On the
 * other ranks the same holds when their wait returns. A group that has failed already keeps its
 * reason. What is left to do is xm_group_shrink() or xm_worker_destroy().
 */
XM_API xm_status_t xm_group_abort(xm_worker_t *worker, const char *sentence);

/** What xm_group_shrink_with() is to do. Start from ::XM_GROUP_SHRINK_PARAMS_INIT; equal on all
 * ranks. */
typedef struct xm_group_shrink_params {
    size_t struct_size;
    double timeout; /**< seconds; 0: the worker's */
    int min_size;   /**< ranks that the group must have at least; 0: more than half, as above. With
                       another number two parts of a network may both go on */
    int exclude_count;  /**< how many … */
    const int *exclude; /**< … ranks of the group are left out, whether they live or not: they must
                           not call it, and nobody waits for them */
} xm_group_shrink_params_t;

#define XM_GROUP_SHRINK_PARAMS_INIT                                                                \
    {                                                                                              \
        sizeof(xm_group_shrink_params_t), 0.0, 0, 0, NULL                                          \
    }

/**
 * Makes a group of the ranks that are alive. Collective among them: returns when all have called it
 * and their new transport stands, or after @p timeout seconds (0: the worker's). Ranks that die in
 * the meantime, rank 0 included, are left out. Before: destroy reshards and messages. Ends what is
 * in flight as xm_group_abort() does, but does not wake the others.
 *
 * Without a failure it makes a new group of the same ranks, for instance after an abort.
 *
 * The new group must be more than half of those that could make one: so of a network that has
 * fallen apart one part goes on at most, and the ranks of the others get XM_ERR_UNREACHABLE with a
 * sentence that names who is where. Processes that have ended do not count, nor does a rank that
 * hangs on a host whose others are members.
 *
 * XM_ERR_TIMEOUT names ranks that live but did not call it. After a failure the worker can only be
 * asked to shrink once more, or be destroyed.
 */
XM_API xm_status_t xm_group_shrink_with(xm_worker_t *worker,
                                        const xm_group_shrink_params_t *params);

/** The same with nothing else to say than how long it may take. */
static inline xm_status_t xm_group_shrink(xm_worker_t *worker, double timeout)
{
    xm_group_shrink_params_t params = XM_GROUP_SHRINK_PARAMS_INIT;

    params.timeout = timeout;
    return xm_group_shrink_with(worker, &params);
}

/** 0 as the job begins; larger after every shrink, equal on all members. */
XM_API int xm_group_generation(const xm_worker_t *worker);

/** The number that rank @p rank of the group had as the job began; −1 for no rank of the group. */
XM_API int xm_group_job_rank(const xm_worker_t *worker, int rank);

#ifdef __cplusplus
}
#endif

#endif
