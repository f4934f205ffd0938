/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file regroup.h
 * How the survivors of a group find each other again: they agree on who is left and come out with a
 * bootstrap of their own. Internal; group.h is the door to it.
 *
 * Every rank has listened on a socket of its own since the job began (endpoint.h). The *centre* is
 * the lowest rank that is not known to be dead. The others connect to it and say hello, with the
 * ranks they know to be dead; the centre learns from that, and welcomes all when everybody has come
 * who is not dead. Nobody has to be told who the centre is: a rank that takes itself for a mere
 * member serves its socket as well, and becomes the centre when it learns that all below it are
 * dead.
 *
 * A rank is dead when nothing listens at its socket any more (its process has ended), when the
 * heartbeat finds it silent, or when its address cannot be reached for as long and no heartbeat of
 * it has been heard either. A connection that ends says only that it ended. So whoever dies in the
 * course of this is left out, the centre included: then the next rank is it.
 *
 * The welcome is not confirmed. If the centre dies after it has welcomed some, those have a group
 * whose rank 0 is dead. They find that out as they do for any group, shrink again, and meet the
 * others at the next centre: ranks are named by their numbers in the job as it began, and the new
 * generation is one more than the largest that anybody brought along.
 *
 * There is no quorum: where a network falls into halves, two groups may form. Each knows its size.
 */
#pragma once

#include "comm/fault/endpoint.h"
#include "comm/fault/heartbeat.h"

typedef struct xm_regroup_params {
    const xm_endpoints_t *endpoints;
    xm_heartbeat_t *heartbeat; /**< muted; NULL: none */
    double interval;           /**< of the heartbeat; without one, what counts as that */
    uint32_t generation;       /**< this rank's */
    double timeout;            /**< seconds for everybody to come */
} xm_regroup_params_t;

/**
 * Collective among the survivors. @p dead: by rank of the job, those known to be dead; at the end
 * everybody who is not in the new group, also when it fails. On success @p bootstrap is of the new
 * group, whose ranks are in the order of those of the job, and @p generation is its own.
 * XM_ERR_PEER_DIED: the others take this rank for dead. XM_ERR_TIMEOUT: names who did not come.
 */
xm_status_t xm_regroup(const xm_regroup_params_t *params, bool *dead, xm_bootstrap_t **bootstrap,
                       uint32_t *generation);
