/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a UCX transport. The difficulty is to leave without losing anything: what was sent
 * must reach its peer, peers that still read must not see a reset, and UCX 1.13 aborts the
 * process if a worker is destroyed while connections are half made or requests have owners. So
 * destroy waits, within fixed bounds, then gives up what is left: all peers together take at
 * most CLOSE_MS + 2 PART_MS, and a worker that cannot be destroyed safely is leaked on purpose. */
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/transport/ucx/transport_ucx_private.h"

/* How long destroy waits for peers that are slow to take what was sent; at least for connections to
 * close, whatever the first took, and where all are known to live. Then for one that a peer is just
 * opening: at least, and in times that this process itself had to wait for a processor, since the
 * peer may have to. */
enum { CLOSE_MS = 1000, PART_MS = 250, LIVE_MS = 3000, QUIET_MS = 20, QUIET_TURNS = 20 };

/* Frees the requests of closes that have ended; true when none is left. */
static bool closes_ended(xm_ucx_transport_t *self)
{
    bool all = true;

    for (int rank = 0; rank < self->base.base.size; ++rank) {
        xm_ucx_peer_t *peer = &self->peers[rank];

        for (int i = 0; i < peer->base.stripe.rails; ++i) {
            void **closing = &peer->lanes[i].closing;

            if (*closing != NULL && ucp_request_check_status(*closing) != UCS_INPROGRESS) {
                ucp_request_free(*closing);
                *closing = NULL;
            }
            /* A rail with abandoned operations makes no more progress. */
            all = all && (*closing == NULL || xm_ucx_rail_of(peer, i)->abandoned > 0);
        }
        all = all && xm_list_is_empty(&peer->base.in_flight);
    }
    return all;
}

/* Peers that left without a word never answer a close; UCX aborts when such a request still has an
 * owner. */
static void forget_closes(xm_ucx_transport_t *self)
{
    for (int rank = 0; rank < self->base.base.size; ++rank) {
        xm_ucx_peer_t *peer = &self->peers[rank];

        for (int i = 0; i < peer->base.stripe.rails; ++i) {
            if (peer->lanes[i].closing != NULL) {
                ucp_request_free(peer->lanes[i].closing);
                peer->lanes[i].closing = NULL;
                ++xm_ucx_rail_of(peer, i)->abandoned;
            }
        }
    }
}

static int64_t after_ms(const xm_ucx_transport_t *self, int64_t milliseconds)
{
    return xm_transport_now(&self->base.base) + milliseconds * 1000000;
}

/* Forgets the endpoints of a peer that UCX does not watch. They are not closed: closing needs
 * the peer's cooperation, and a peer that is gone gives none. The rail remembers that it holds
 * something which cannot be freed, and is not destroyed at the end. */
void xm_ucx_abandon(xm_ucx_peer_t *peer)
{
    xm_ucx_abandon_ops(peer);
    for (int i = 0; i < peer->base.stripe.rails; ++i) {
        if (peer->base.failed && peer->lanes[i].ep != NULL) {
            /* Its endpoint cannot be closed without the peer. With rails UCX has no
             * memory of users, so the rail may go on with what it has for others. */
            ++*(peer->base.rails != NULL ? &xm_ucx_rail_of(peer, i)->stuck
                                         : &xm_ucx_rail_of(peer, i)->abandoned);
        }
        peer->lanes[i].ep = NULL;
    }
    peer->base.connected = false;
}

/* Begins to close the connections to a peer: in order if nothing is in flight with it, because
 * an orderly close flushes what was sent; by abandoning them if something is stuck, because the
 * flush would then never end. */
static void part_from(xm_ucx_peer_t *peer)
{
    bool busy = !xm_list_is_empty(&peer->base.in_flight);

    if (peer->base.rails != NULL) {
        for (int lane = 0; lane < peer->base.stripe.rails; ++lane) {
            if (!xm_rails_uses(peer->base.rails, lane)) {
                xm_ucx_retire_lane(peer, lane); /* in order it might never close */
            }
        }
        xm_ucx_abandon_ops(peer);
        busy = busy || xm_rails_has_packets(peer->base.rails);
    }
    if (!xm_ucx_watches(peer) && busy) {
        xm_ucx_abandon(peer);
    } else if (!peer->base.failed) {
        xm_ucx_close_endpoints(peer, busy);
    }
}

/* Makes progress until nothing has moved for a while, but not longer than PART_MS, or CLOSE_MS
 * where all live. A peer may have begun to connect: UCX 1.13 aborts the process if its answer to
 * that has not gone out when the worker is destroyed, and it shows nobody the endpoints that peers
 * have opened. So silence is the only evidence that there is none. The answer waits until the peer
 * has accepted the connection, for which it needs a processor: where turns of a millisecond take
 * longer, more silence is asked for. */
static void settle(xm_ucx_transport_t *self)
{
    int64_t end = after_ms(self, self->base.base.all_live ? CLOSE_MS : PART_MS);
    int64_t now = after_ms(self, 0), quiet = now, longest = 0, last;

    do {
        last = now;
        if (xm_transport_progress(&self->base.base) > 0) {
            quiet = last;
        } else {
            (void)poll(NULL, 0, 1);
        }
        now = after_ms(self, 0);
        longest = now - last > longest ? now - last : longest;
    } while (now < end &&
             (now - quiet < QUIET_MS * INT64_C(1000000) || now - quiet < QUIET_TURNS * longest));
}

/* Closes all peers side by side. The steps depend on each other: receives end first, so that
 * endpoints become idle; rails are flushed while endpoints still exist; only then are
 * endpoints closed, which flushes UCX's own queues; and closing gets PART_MS at least, whatever
 * the flush took. */
static void close_all(xm_ucx_transport_t *self)
{
    int64_t deadline = after_ms(self, CLOSE_MS), soonest;

    if (self->base.railed > 0) {
        (void)xm_transport_progress(&self->base.base); /* hears who has left before */
    }
    for (int rank = 0; rank < self->base.base.size; ++rank) {
        xm_ucx_cancel_receives(&self->peers[rank]);
    }
    for (int nic = 0; nic < self->nics.count; ++nic) {
        self->base.nics[nic].halted = self->rails[XM_UCX_RAIL_NIC + nic].abandoned > 0;
    }
    xm_rails_part(&self->base, deadline);
    for (int rank = 0; rank < self->base.base.size; ++rank) {
        part_from(&self->peers[rank]);
    }
    soonest = after_ms(self, self->base.base.all_live ? LIVE_MS : PART_MS);
    deadline = deadline > soonest ? deadline : soonest;
    while (!closes_ended(self) && xm_transport_now(&self->base.base) < deadline) {
        if (xm_transport_progress(&self->base.base) == 0) {
            (void)poll(NULL, 0, 1);
        }
    }
    settle(self);
    forget_closes(self);
    (void)xm_rails_deliver(&self->base);
}

/* UCX hands the request over with the message; nobody but this callback can free it. */
static void ignore_message(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                           void *user_data)
{
    (void)status;
    (void)info;
    (void)user_data;
    ucp_request_free(request);
}

/* Throws away messages that nobody received: after a failure that is normal, but UCX would warn
 * about each. Their senders see a closed connection. False for one whose bytes are still with its
 * sender: if that has closed its connection since, UCX 1.13 aborts the process when it is received.
 */
static bool discard_messages(xm_ucx_rail_t *rail)
{
    enum { EAGER_BYTES = 4096 }; /* below, UCX sends bytes at once, whatever the transport */
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK,
                                 .cb.recv = ignore_message};
    ucp_tag_recv_info_t info;
    ucp_tag_message_h message;
    char nothing;

    while (ucp_tag_probe_nb(rail->worker, 0, 0, 0, &info) != NULL) {
        if (info.length >= EAGER_BYTES) {
            return false;
        }
        message = ucp_tag_probe_nb(rail->worker, 0, 0, 1, &info);
        (void)ucp_tag_msg_recv_nbx(rail->worker, &nothing, 0, message, &param);
    }
    return true;
}

/* Counts the peers of which UCX has packets that it has not sent over a rail: these requests keep
 * the worker alive. */
static int packets_stuck(const xm_ucx_transport_t *self, int rail)
{
    int stuck = 0;

    for (int rank = 0; rank < self->base.base.size; ++rank) {
        const xm_ucx_peer_t *peer = &self->peers[rank];
        int lane = rail - peer->rail;

        if (peer->base.rails != NULL && lane >= 0 && lane < XM_NICS_MAX) {
            stuck += !xm_list_is_empty(&peer->base.rails->lanes[lane].posted);
        }
    }
    return stuck;
}

/* Closes what rails have besides their memory. This comes after the workers are gone, because
 * until then UCX may still read a packet's header. */
static void close_rails(xm_ucx_transport_t *self)
{
    if (self->has_packet_type) {
        ucp_dt_destroy(self->packet_type);
    }
    xm_nic_watch_close(&self->watch);
    if (self->base.timer_fd >= 0) {
        (void)close(self->base.timer_fd);
    }
}

/* True if a failure brought the end. Connections may then be half made, with the dead or with those
 * that left because of them, and messages wait whose senders are gone: UCX 1.13 aborts the process
 * over either when it destroys the worker, or receives the message to throw it away. */
static bool ended_badly(const xm_ucx_transport_t *self)
{
    bool badly = self->base.fenced && !self->base.base.all_live;

    for (int rank = 0; rank < self->base.base.size && !badly; ++rank) {
        badly = self->peers[rank].base.failed;
    }
    return badly;
}

/* Ends the transport; it always succeeds. Operations that are still open end with
 * XM_ERR_CANCELED, their callbacks run, and then nothing of the transport is left except
 * workers that UCX could not be trusted to destroy. */
void xm_ucx_destroy(xm_transport_t *transport)
{
    xm_ucx_transport_t *self = (xm_ucx_transport_t *)transport;
    bool badly;

    self->base.closing = true;
    close_all(self);
    badly = ended_badly(self);
    xm_ucx_gate_destroy(self->gate);
    self->gate = NULL;
    /* The caller forgot these; UCX would abort the process over them. */
    while (!xm_list_is_empty(&self->memory)) {
        xm_ucx_memory_deregister(transport, xm_list_entry(self->memory.next, xm_memory_t, link));
    }
    for (int rail = 0; rail < XM_UCX_RAIL_COUNT; ++rail) {
        if (badly || (self->rails[rail].open && !discard_messages(&self->rails[rail]))) {
            ++self->rails[rail].stuck;
        }
        self->rails[rail].stuck += packets_stuck(self, rail);
        xm_ucx_rail_close(&self->rails[rail]);
    }
    /* UCX has let go of everything now: whatever it did not end, ends here. */
    for (int rank = 0; rank < self->base.base.size; ++rank) {
        while (!xm_list_is_empty(&self->peers[rank].base.in_flight)) {
            xm_rails_end_op(xm_op_of(self->peers[rank].base.in_flight.next), XM_ERR_CANCELED);
        }
    }
    (void)xm_rails_deliver(&self->base);
    close_rails(self);
    if (self->epoll >= 0) {
        (void)close(self->epoll);
    }
    xm_blocks_clear(&self->base.blocks);
    free(self->addresses);
    free((void *)self->base.peers);
    free(self->peers);
    free(self);
}
