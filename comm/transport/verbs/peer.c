/* SPDX-License-Identifier: Apache-2.0 */
/* That a lane is lost or a peer has failed, and why. Both only take a note: completions are being
 * handled, and closing would handle more of them inside. xm_verbs_close_failed() acts on it later
 * in the same progress call. */
#include <stdarg.h>
#include <stdio.h>

#include "comm/transport/verbs/transport_verbs_private.h"

/* The first reason stays, because what follows a failure are its consequences. */
void xm_verbs_fail(xm_verbs_peer_t *peer, const char *format, ...)
{
    va_list args;

    if (peer->failed) {
        return;
    }
    peer->failed = true;
    ++peer->owner->failures;
    va_start(args, format);
    (void)vsnprintf(peer->reason, sizeof(peer->reason), format, args);
    va_end(args);
}

/* A peer fails with its last lane: then nothing is left that could tell a lost rail from a lost
 * rank. */
void xm_verbs_lose(xm_verbs_lane_t *lane, const char *format, ...)
{
    bool others = false;
    va_list args;

    if (lane->trying && !lane->peer->failed) {
        lane->trying = false;
        ++lane->peer->owner->failures;
    }
    if (lane->lost || lane->peer->failed) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(lane->reason, sizeof(lane->reason), format, args);
    va_end(args);
    lane->lost = true;
    ++lane->peer->owner->failures;
    for (int rail = 0; rail < lane->peer->stripe.rails; ++rail) {
        others = others || xm_verbs_lane_works(&lane->peer->lanes[rail]);
    }
    if (!others || !lane->peer->owner->failover) {
        xm_verbs_fail(lane->peer, "%s", lane->reason);
    }
}

xm_status_t xm_verbs_peer_error(const xm_verbs_peer_t *peer)
{
    if (peer->reason[0] == '\0') {
        return xm_error_set(XM_ERR_PEER_DIED, "rank %d died", peer->rank);
    }
    return xm_error_set(XM_ERR_PEER_DIED, "rank %d is gone: %s", peer->rank, peer->reason);
}
