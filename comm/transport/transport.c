/* SPDX-License-Identifier: Apache-2.0 */
/* What all transports share: counting. Operations are counted where they are posted and where
 * they end, once for each peer, whichever transport moves them; fragments are counted by the
 * transports, which alone know the NIC. After a shrink ranks are renumbered, so counters are
 * kept by rank of the job: a peer's counts go on in the next group. */
#include "comm/transport/transport.h"

#include <stdio.h>

#include "comm/transport/counters_private.h"

/* The peer's counters; NULL for a number that no peer has, which posting calls refuse. */
static xm_peer_counters_t *find_peer(const xm_transport_t *transport, int peer)
{
    xm_counters_t *counters = transport->counters;

    if (peer < 0 || peer >= transport->size) {
        return NULL;
    }
    peer = transport->job_rank != NULL ? transport->job_rank[peer] : peer;
    return peer < counters->peer_count ? &counters->peer[peer] : NULL;
}

/* Counts a post, also one that was refused. Out of line: the inline part in the header has
 * tested whether counting is on. */
void xm_transport_count_post(const xm_transport_t *transport, int peer, xm_direction_t direction,
                             uint64_t tag, size_t length, xm_status_t status)
{
    xm_peer_counters_t *counted = find_peer(transport, peer);

    if (counted == NULL) {
        return;
    }
    xm_count_post(counted, direction, length, status);
    if (transport->counters->trace) {
        xm_counters_trace(transport->rank, peer, direction, tag, length,
                          status == XM_OK  ? "done at once"
                          : status > XM_OK ? "posted"
                                           : xm_status_string(status));
    }
}

/* Counts the end of an operation. Every operation that was posted comes here exactly once. */
void xm_transport_count_end(const xm_transport_t *transport, int peer, xm_direction_t direction,
                            uint64_t tag, size_t length, xm_status_t status)
{
    xm_peer_counters_t *counted = find_peer(transport, peer);

    if (counted == NULL) {
        return;
    }
    xm_count_end(counted, direction, length, status);
    if (transport->counters->trace) {
        char what[128];

        (void)snprintf(what, sizeof(what), "ended, %s", xm_status_string(status));
        xm_counters_trace(transport->rank, peer, direction, tag, length, what);
    }
}

/* Counts bytes that this rank copied itself from a peer's memory, past the transport. */
void xm_transport_count_copy(const xm_transport_t *transport, int peer, size_t bytes)
{
    xm_peer_counters_t *counted = transport->counters != NULL ? find_peer(transport, peer) : NULL;

    if (counted != NULL) {
        xm_count(&counted->copies, 1);
        xm_count(&counted->copied_bytes, bytes);
    }
}

void xm_transport_count_resend(const xm_transport_t *transport)
{
    if (transport->counters != NULL) {
        xm_count(&transport->counters->resends, 1);
    }
}
