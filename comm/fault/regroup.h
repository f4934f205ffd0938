/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file regroup.h
 * How the survivors of a group find each other again: they agree on who is left and come out with a
 * bootstrap of their own. Internal; group.h is the door to it.
 *
 * All talk goes through the detector (detector.h). Every rank asks after all others, and says HELLO
 * to the *centre*, the lowest rank that it has not found ended or cut off, with what it knows of
 * each rank. The centre learns from that who is cut off from whom, and chooses the next group
 * (quorum.h): when all of its members have said hello, it welcomes them. Nobody has to be told who
 * the centre is: a rank that takes itself for a mere member becomes the centre when it learns that
 * all below it are gone. A centre that is not in the group that it has chosen refuses everybody,
 * and they go on to the next one.
 *
 * So a decision is made once, by one rank, from what many have seen; a rank is left out when its
 * process has ended, when the application says so, or because some pair of ranks cannot reach each
 * other and one of them has to go.
 *
 * A group that is too small (quorum.h) does not come about: its ranks end with a sentence. So of a
 * network that has fallen apart one group goes on at most.
 *
 * The welcome is not confirmed, but given again to who says hello again. If the centre dies after
 * it has welcomed some, those have a group whose rank 0 is dead. They find that out as they do for
 * any group, shrink again, and meet the others at the next centre: ranks are named by their numbers
 * in the job as it began, and the new generation is one more than the largest that anybody brought
 * along.
 */
#pragma once

#include "comm/fault/detector.h"

typedef struct xm_regroup_params {
    const xm_endpoints_t *endpoints;
    xm_detector_t *detector;
    uint32_t generation;  /**< this rank's */
    double timeout;       /**< seconds for everybody to come */
    int least;            /**< ranks that the group must have; 0: more than half */
    const bool *excluded; /**< by rank of the job: left out by the application */
    const bool *cut; /**< by rank of the job: known to be gone, or out of the transport's reach */
} xm_regroup_params_t;

/**
 * Collective among the survivors. @p out: by rank of the job, who is no member of the old group; at
 * the end who is none of the new one. On success the detector has begun the new group, @p bootstrap
 * is its own, whose ranks are in the order of those of the job, and @p generation its number.
 * XM_ERR_PEER_DIED: the others go on without this rank. XM_ERR_UNREACHABLE: the network has split,
 * and this part is too small. XM_ERR_TIMEOUT: names who did not come.
 */
xm_status_t xm_regroup(const xm_regroup_params_t *params, bool *out, xm_bootstrap_t **bootstrap,
                       uint32_t *generation);
