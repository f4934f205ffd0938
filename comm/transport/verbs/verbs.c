/* SPDX-License-Identifier: Apache-2.0 */
/* The ops table of the verbs transport: posting, cancelling, progress. It does by hand what UCX
 * does elsewhere, because over RDMA three promises can be kept exactly that way: a send is
 * never refused for want of receive buffers (credits), long messages are written into the
 * user's memory without a copy, and after a failure nothing touches that memory any more (queue
 * pairs are destroyed before operations end, or before another rail does the lost one's work).
 * Devices act on their own, so fencing means closing connections, not just being passive. One
 * thread at a time may call; `done` runs from progress, fence and destroy only. */
#include "comm/transport/verbs.h"

#include <stdio.h>

#include "comm/base.h"
#include "comm/transport/verbs/transport_verbs_private.h"

/* How many busy calls of progress pass between two looks at what does not come as a completion:
 * asynchronous events and the timer. */
enum { EVENTS_EVERY = 1024 };

static xm_status_t verbs_send(xm_transport_t *transport, int rank, uint64_t tag, const void *buffer,
                              size_t length, xm_memory_t *memory, xm_op_t *op)
{
    xm_rails_transport_t *self = (xm_rails_transport_t *)transport;
    xm_status_t status = xm_rails_check(self, rank, tag, buffer, length, op);

    return status < 0 ? status : xm_rails_send(self->peers[rank], tag, buffer, length, memory, op);
}

static xm_status_t verbs_receive(xm_transport_t *transport, int rank, uint64_t tag, void *buffer,
                                 size_t length, xm_memory_t *memory, xm_op_t *op)
{
    xm_rails_transport_t *self = (xm_rails_transport_t *)transport;
    xm_status_t status = xm_rails_check(self, rank, tag, buffer, length, op);

    return status < 0 ? status
                      : xm_rails_receive(self->peers[rank], tag, buffer, length, memory, op);
}

static void verbs_cancel(xm_transport_t *transport, xm_op_t *op)
{
    if (op->priv.kind != XM_RAILS_IDLE) {
        xm_rails_rx_cancel(((xm_rails_transport_t *)transport)->peers[op->priv.peer]->rails, op);
    }
}

/* Handles completions, then events now and then, then what rails and lanes have to send. Failed
 * peers are closed before and after sending: completions and refused requests both report them,
 * and their operations should end in the same call that found out. Callbacks come last, when
 * all state is consistent. */
static int verbs_progress(xm_transport_t *transport)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;
    int count;

    if (self->base.fenced) {
        return xm_rails_deliver(&self->base);
    }
    self->base.clock = xm_transport_now(transport);
    count = xm_verbs_poll(self);
    /* After a sleep something is likely to be there; a busy rank looks now and then, so that
     * the devices are heard as well. */
    if (self->slept || ++self->calls % EVENTS_EVERY == 0) {
        xm_verbs_events_read(self);
    }
    xm_rails_failover_look(&self->base);
    xm_verbs_act_on_reports(self);
    xm_rails_progress(&self->base);
    xm_verbs_flush_lanes(self);
    xm_verbs_act_on_reports(self);
    return count + xm_rails_deliver(&self->base);
}

static int verbs_event_fd(const xm_transport_t *transport)
{
    const xm_verbs_transport_t *self = (const xm_verbs_transport_t *)transport;

    return self->spin ? -1 : self->epoll;
}

/* Devices write to the user's memory by themselves, so the connections go: only a destroyed
 * queue pair cannot be written through any more. The transport is of no use after that, which
 * is what a fence is for. */
static void verbs_fence(xm_transport_t *transport)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;

    if (!self->base.fenced) {
        self->base.fenced = true;
        xm_verbs_sever(self);
        (void)xm_rails_deliver(&self->base);
    }
}

/* Describes the ports that join this rank with another, for logs and sentences. */
xm_status_t xm_transport_verbs_lanes(xm_transport_t *transport, int rank, char *buffer, size_t size)
{
    const xm_verbs_transport_t *self = (const xm_verbs_transport_t *)transport;
    const xm_verbs_peer_t *peer;

    if (transport->ops != &xm_verbs_ops || rank < 0 || rank >= transport->size ||
        rank == transport->rank || size == 0) {
        return XM_INVALID("lanes: no verbs peer %d", rank);
    }
    peer = &self->peers[rank];
    buffer[0] = '\0';
    for (int rail = 0; rail < peer->base.stripe.rails; ++rail) {
        if (xm_rails_uses(peer->base.rails, rail)) {
            xm_text_list_add(buffer, size, " + ", "%s > %s", self->offer.port[rail].name,
                             peer->there[rail]);
        }
    }
    return XM_OK;
}

static void verbs_path(xm_transport_t *transport, int rank, char *buffer, size_t size)
{
    if (xm_transport_verbs_lanes(transport, rank, buffer, size) < 0 && size > 0) {
        buffer[0] = '\0';
    }
}

/* A queue pair joins two ranks from the start, or after a comeback. */
static bool connect_peer(xm_rails_peer_t *peer)
{
    peer->connected = true;
    return true;
}

static bool ready(xm_rails_peer_t *peer, int rail)
{
    return peer->rails->lanes[rail].joined;
}

/* A port that is down may come back before its connections have given up, and only they decide:
 * their retries cover a short loss. */
static unsigned down(xm_rails_transport_t *self)
{
    (void)self;
    return 0;
}

static uint32_t key(const xm_memory_t *memory, int rail)
{
    return memory->mr[rail]->rkey;
}

const xm_rails_lanes_t xm_verbs_lanes = {.post = xm_verbs_lane_post,
                                         .connect = connect_peer,
                                         .attempt = xm_verbs_attempt,
                                         .ready = ready,
                                         .retire = xm_verbs_retire,
                                         .down = down,
                                         .hold = xm_verbs_memory_hold,
                                         .release = xm_verbs_memory_release,
                                         .key = key,
                                         .told = xm_verbs_told};

const xm_transport_ops_t xm_verbs_ops = {.name = "verbs",
                                         .memory_register = xm_verbs_memory_register,
                                         .memory_deregister = xm_verbs_memory_deregister,
                                         .send = verbs_send,
                                         .receive = verbs_receive,
                                         .cancel = verbs_cancel,
                                         .progress = verbs_progress,
                                         .arm = xm_verbs_arm,
                                         .event_fd = verbs_event_fd,
                                         .peer_failed = xm_verbs_peer_failed,
                                         .now = xm_rails_now,
                                         .waits = xm_rails_waits,
                                         .fence = verbs_fence,
                                         .path = verbs_path,
                                         .destroy = xm_verbs_destroy};
