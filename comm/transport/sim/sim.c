/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated fabric's transports: all ranks are in one process and time is virtual, so a
 * whole job runs deterministically, in one thread. A send is matched only when its receive is
 * posted, and nothing is buffered: what waits for ever on a network without eager buffers waits
 * for ever here, which is how deadlocks of plans are found. The rules at failures are those of
 * the real transports (each operation ends once, a dead peer's with XM_ERR_PEER_DIED), so
 * executors and fault campaigns are tested against them. */
#include "comm/transport/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/base.h"
#include "comm/transport/sim/transport_sim_private.h"

/* Ends an operation: `done` comes from progress of its own rank, as in the real transports. */
void xm_sim_finish(xm_op_t *op, xm_status_t status)
{
    op->priv.kind = XM_SIM_ENDED;
    op->priv.status = status;
    xm_list_append(&xm_sim_owner(op)->finished, &op->priv.link);
}

/* Ends an operation of a rank that is gone, or one with it. A killed process gets no callbacks:
 * its operations just become idle. */
void xm_sim_end_own(xm_op_t *op, int rank, xm_status_t own)
{
    if (xm_sim_rank(op) != rank) {
        xm_sim_finish(op, XM_ERR_PEER_DIED);
    } else if (own < 0) {
        xm_sim_finish(op, own);
    } else {
        op->priv.kind = XM_SIM_IDLE;
    }
}

/* The bucket of an operation. Both halves of a message compute the same one, from sender,
 * receiver and tag, so matching looks at one bucket only. */
static xm_list_t *bucket_of(const xm_sim_fabric_t *fabric, const xm_op_t *op)
{
    /* The kind must be SEND or RECEIVE here: it says which side of the message this operation
     * is. */
    bool sends = op->priv.kind == XM_SIM_SEND;
    uint64_t sender = (uint64_t)(sends ? xm_sim_rank(op) : op->priv.peer);
    uint64_t receiver = (uint64_t)(sends ? op->priv.peer : xm_sim_rank(op));
    /* Sender and receiver are mixed in one after the other, because their sum or difference
     * would be the same for many pairs. */
    uint64_t hash = xm_hash_spread(op->priv.tag ^ (sender << 40));

    hash = xm_hash_spread(hash ^ (hash >> 32) ^ receiver);
    /* The upper bits of the product are the well mixed ones, so they choose the bucket. */
    return &fabric->bucket[hash >> (64 - fabric->bucket_bits)];
}

/* Appends, so that a bucket is in the order of posts: this is what makes earlier posts match
 * first. */
xm_list_t *xm_sim_make_buckets(int bits)
{
    size_t count = (size_t)1 << bits;
    xm_list_t *buckets = malloc(count * sizeof(*buckets));

    for (size_t i = 0; buckets != NULL && i < count; ++i) {
        xm_list_init(&buckets[i]);
    }
    return buckets;
}

/* Doubles the buckets; without memory the old ones go on, only slower. Order within a bucket
 * survives, since operations are moved in the order in which they stand. */
static void grow_buckets(xm_sim_fabric_t *fabric)
{
    size_t old_count = (size_t)1 << fabric->bucket_bits;
    xm_list_t *old = fabric->bucket, *grown = xm_sim_make_buckets(fabric->bucket_bits + 1);

    if (grown == NULL) {
        return;
    }
    fabric->bucket = grown;
    ++fabric->bucket_bits;
    for (size_t b = 0; b < old_count; ++b) {
        for (xm_list_t *at = xm_list_first(&old[b]), *next; at != NULL; at = next) {
            next = xm_list_next(&old[b], at);
            xm_list_append(bucket_of(fabric, xm_op_of(at)), at);
        }
    }
    free(old);
}

/* Makes an operation wait, for the first time or again after its other half was taken back. */
void xm_sim_wait_for_match(xm_sim_fabric_t *fabric, xm_op_t *op)
{
    if (fabric->waiting >> fabric->bucket_bits != 0) {
        grow_buckets(fabric);
    }
    op->priv.owner = NULL;
    xm_list_append(bucket_of(fabric, op), &op->priv.link);
    ++fabric->waiting;
}

/* The bucket is found again by its hash: an operation does not store where it waits. */
static void stop_waiting(xm_sim_fabric_t *fabric, xm_op_t *op)
{
    xm_list_remove(&op->priv.link);
    --fabric->waiting;
}

/* Ends all that waits for a rank or belongs to it. A scan over all buckets is fine for a death. */
void xm_sim_end_waiting(xm_sim_fabric_t *fabric, int rank, xm_status_t own)
{
    for (size_t b = 0; fabric->waiting > 0 && b < (size_t)1 << fabric->bucket_bits; ++b) {
        const xm_list_t *bucket = &fabric->bucket[b];

        for (xm_list_t *at = xm_list_first(bucket), *next; at != NULL; at = next) {
            xm_op_t *op = xm_op_of(at);

            next = xm_list_next(bucket, at);
            if (xm_sim_rank(op) == rank || op->priv.peer == rank) {
                stop_waiting(fabric, op);
                xm_sim_end_own(op, rank, own);
            }
        }
    }
}

/* The waiting operation that `op` matches, or NULL. Earlier posts match first. Operations of
 * transports made before and after a fence never match, just as messages of an old group cannot
 * meet receives of a new one. */
static xm_op_t *find_match(const xm_sim_fabric_t *fabric, const xm_op_t *op)
{
    int rank = xm_sim_rank(op);
    const xm_list_t *bucket = bucket_of(fabric, op);

    /* A bucket holds other tags and pairs as well, and both kinds. */
    for (xm_list_t *at = xm_list_first(bucket); at != NULL; at = xm_list_next(bucket, at)) {
        xm_op_t *other = xm_op_of(at);

        if (other->priv.kind != op->priv.kind && other->priv.tag == op->priv.tag &&
            other->priv.peer == rank && xm_sim_rank(other) == op->priv.peer &&
            xm_sim_owner(other)->generation == xm_sim_owner(op)->generation) {
            return other;
        }
    }
    return NULL;
}

/* Both halves are posted. Without an order the message starts as soon as the wire is free; with
 * one it waits for its turn. Different lengths end the send well and the receive with both
 * lengths, as UCX does. */
static void begin_message(xm_sim_fabric_t *fabric, xm_op_t *send, xm_op_t *receive)
{
    if (send->priv.length != receive->priv.length) {
        receive->priv.received = send->priv.length;
        xm_sim_finish(send, XM_OK);
        xm_sim_finish(receive, XM_ERR_CORRUPT);
        return;
    }
    /* Order 0 means that the plan does not care when this message goes. */
    if (send->order == 0) {
        xm_sim_start(fabric, send, receive);
        return;
    }
    /* Each half names the other, so a cancel of one finds it. */
    send->priv.owner = receive;
    receive->priv.owner = send;
    if (xm_sim_order_enter(fabric, send, receive) < 0) {
        /* The sentence is kept, because `done` comes later, when other errors may have been set. */
        (void)snprintf(fabric->refusal, sizeof(fabric->refusal), "%s", xm_last_error());
        xm_sim_finish(send, XM_ERR_INVALID_ARGUMENT);
        xm_sim_finish(receive, XM_ERR_INVALID_ARGUMENT);
    }
}

/* Only the first peer that failed is kept, since later failures are mostly consequences of it. */
static void note_failed(xm_sim_transport_t *sim, int peer)
{
    if (sim->base.failed_peer < 0) {
        sim->base.failed_peer = peer;
    }
}

/* The common part of both kinds of posts. Checks are those of the real transports, so that a
 * program that works here does not fail there. */
static xm_status_t post(xm_transport_t *transport, int kind, int peer, uint64_t tag, void *buffer,
                        size_t length, xm_op_t *op)
{
    xm_sim_transport_t *sim = (xm_sim_transport_t *)transport;
    xm_sim_fabric_t *fabric = sim->fabric;
    xm_op_t *match;

    if (peer < 0 || peer >= fabric->ranks || peer == transport->rank || length == 0) {
        return XM_INVALID("cannot move %zu bytes between rank %d and rank %d", length,
                          transport->rank, peer);
    }
    if (sim->fenced) {
        return xm_error_set(XM_ERR_CANCELED,
                            "rank %d: the transport is closed: the group was aborted or shrunk",
                            transport->rank);
    }
    /* The fabric knows deaths at once; real transports refuse as soon as they know. */
    if (fabric->dead[peer]) {
        note_failed(sim, peer);
        return xm_error_set(XM_ERR_PEER_DIED, "rank %d died", peer);
    }
    op->priv.kind = kind;
    op->priv.pending = kind == XM_SIM_SEND ? XM_SENT : XM_RECEIVED;
    op->priv.peer = peer;
    op->priv.tag = tag;
    op->priv.buffer = buffer;
    op->priv.length = length;
    op->priv.handle = sim;
    /* A message that can be matched is matched at once, inside the later of the two posts. */
    match = find_match(fabric, op);
    if (match == NULL) {
        xm_sim_wait_for_match(fabric, op);
        return XM_IN_PROGRESS;
    }
    stop_waiting(fabric, match);
    if (kind == XM_SIM_SEND) {
        begin_message(fabric, op, match);
    } else {
        begin_message(fabric, match, op);
    }
    return XM_IN_PROGRESS;
}

static xm_status_t sim_send(xm_transport_t *transport, int peer, uint64_t tag, const void *buffer,
                            size_t length, xm_memory_t *memory, xm_op_t *op)
{
    (void)memory;
    /* The operation's buffer field serves both kinds; a send only reads from it. */
    return post(transport, XM_SIM_SEND, peer, tag, (void *)(uintptr_t)buffer, length, op);
}

static xm_status_t sim_receive(xm_transport_t *transport, int peer, uint64_t tag, void *buffer,
                               size_t length, xm_memory_t *memory, xm_op_t *op)
{
    (void)memory;
    return post(transport, XM_SIM_RECEIVE, peer, tag, buffer, length, op);
}

/* Registration has nothing to do here; a NULL handle is valid for sends and receives. */
static xm_status_t sim_memory_register(xm_transport_t *transport, void *address, size_t length,
                                       xm_memory_t **memory)
{
    (void)transport;
    (void)address;
    (void)length;
    *memory = NULL;
    return XM_OK;
}

static void sim_memory_deregister(xm_transport_t *transport, xm_memory_t *memory)
{
    (void)transport;
    (void)memory;
}

/* Cancels what has not started. A message on the wire runs to its end, since its bytes are
 * under way; of one that waits for its turn in the order, the other half waits for a new match. */
static void sim_cancel(xm_transport_t *transport, xm_op_t *op)
{
    xm_sim_fabric_t *fabric = ((xm_sim_transport_t *)transport)->fabric;
    xm_op_t *other = op->priv.owner;

    /* On the wire or ended already: its `done` comes anyway, so there is nothing to do. */
    if (op->priv.kind != XM_SIM_SEND && op->priv.kind != XM_SIM_RECEIVE) {
        return;
    }
    if (other == NULL) {
        /* Without a partner the operation stands in a bucket; with one, in the order. */
        stop_waiting(fabric, op);
    } else {
        xm_sim_order_leave(fabric, op->priv.kind == XM_SIM_SEND ? op : other);
        xm_sim_wait_for_match(fabric, other);
    }
    xm_sim_finish(op, XM_ERR_CANCELED);
}

/* Makes the sentence of a failed operation, just before its `done`. */
static void explain(xm_sim_transport_t *sim, const xm_op_t *op)
{
    switch (op->priv.status) {
    case XM_ERR_INVALID_ARGUMENT:
        (void)xm_error_set(op->priv.status, "%s", sim->fabric->refusal);
        break;
    case XM_ERR_CORRUPT:
        (void)xm_error_set(op->priv.status,
                           "rank %d: receive from rank %d with tag %" PRIu64
                           " expects %zu bytes, a message of %zu bytes came",
                           sim->base.rank, op->priv.peer, op->priv.tag, op->priv.length,
                           op->priv.received);
        break;
    case XM_ERR_PEER_DIED:
        (void)xm_error_set(op->priv.status, "rank %d died", op->priv.peer);
        note_failed(sim, op->priv.peer);
        break;
    default:
        (void)xm_error_set(
            op->priv.status, "rank %d: operation with rank %d with tag %" PRIu64 ": %s",
            sim->base.rank, op->priv.peer, op->priv.tag, xm_status_string(op->priv.status));
    }
}

/* Calls back all that has ended. Time does not pass here: xm_sim_fabric_step() moves the clock,
 * and the test's loop decides when. */
static int sim_progress(xm_transport_t *transport)
{
    xm_sim_transport_t *sim = (xm_sim_transport_t *)transport;
    /* `done` may post again and free the operation, so everything is read from it before. */
    int events = 0;

    while (!xm_list_is_empty(&sim->finished)) {
        xm_op_t *op = xm_op_of(sim->finished.next);
        xm_status_t status = op->priv.status;

        /* It leaves the list and becomes idle before `done`, so that `done` may post it again. */
        xm_list_remove(&op->priv.link);
        ++sim->ended;
        op->priv.kind = XM_SIM_IDLE;
        if (status < 0) {
            explain(sim, op);
        }
        xm_count_fragment(sim->counters, (xm_direction_t)op->priv.pending, op->priv.length, status);
        xm_transport_end(transport, op, (xm_direction_t)op->priv.pending, status);
        ++events;
    }
    return events;
}

/* There is nothing to sleep on in virtual time; the answer only tells whether callbacks are due. */
static xm_status_t sim_arm(xm_transport_t *transport)
{
    xm_sim_transport_t *sim = (xm_sim_transport_t *)transport;

    return xm_list_is_empty(&sim->finished) ? XM_OK : XM_IN_PROGRESS;
}

/* Callers that would sleep get no descriptor, because nothing outside this process wakes them. */
static int sim_event_fd(const xm_transport_t *transport)
{
    (void)transport;
    return -1;
}

/* Virtual nanoseconds, so that timeouts of tests do not depend on the speed of the machine. */
static int64_t sim_now(const xm_transport_t *transport)
{
    return ((const xm_sim_transport_t *)transport)->fabric->now;
}

/* The fabric has one truth about who is dead, so a report kills the rank for all. */
static void sim_peer_failed(xm_transport_t *transport, int peer)
{
    xm_sim_transport_t *sim = (xm_sim_transport_t *)transport;

    xm_sim_fabric_kill(sim->fabric, peer);
}

/* Tells whether a user waits for a peer. It searches, since only heartbeat tests ask. */
static bool sim_waits(const xm_transport_t *transport, int peer, uint64_t *moved)
{
    const xm_sim_transport_t *sim = (const xm_sim_transport_t *)transport;
    const xm_sim_fabric_t *fabric = sim->fabric;
    bool waits = false;

    *moved = sim->ended;
    /* Those without a partner, then those on the wire, then those on links that are down. */
    for (size_t b = 0; b < (size_t)1 << fabric->bucket_bits && !waits; ++b) {
        const xm_list_t *bucket = &fabric->bucket[b];

        for (xm_list_t *at = xm_list_first(bucket); at != NULL && !waits;
             at = xm_list_next(bucket, at)) {
            const xm_op_t *op = xm_op_of(at);

            waits = xm_sim_owner(op) == sim && op->priv.peer == peer &&
                    op->priv.tag < XM_TRANSPORT_TAG_OWN;
        }
    }
    for (size_t i = 0; i < fabric->heap_count && !waits; ++i) {
        int from = xm_sim_rank(fabric->heap[i].send), to = xm_sim_rank(fabric->heap[i].receive);

        waits = (from == transport->rank && to == peer) || (to == transport->rank && from == peer);
    }
    for (size_t i = 0; i < fabric->stalled_count && !waits; ++i) {
        int from = xm_sim_rank(fabric->stalled[i].send);
        int to = xm_sim_rank(fabric->stalled[i].receive);

        waits = (from == transport->rank && to == peer) || (to == transport->rank && from == peer);
    }
    return waits;
}

/* Fences a transport: its own operations end with XM_ERR_CANCELED, and the halves of its peers
 * go back to waiting, because a peer does not learn of a fence from the transport. The fence
 * count makes sure that they match nothing of the rank's next transport. */
static void sim_fence(xm_transport_t *transport)
{
    xm_sim_transport_t *sim = (xm_sim_transport_t *)transport;

    if (sim->fenced) {
        return;
    }
    sim->fenced = true;
    /* The next transport of this rank is one generation younger. */
    ++sim->fabric->fences[transport->rank];
    xm_sim_recall_messages(sim->fabric, transport->rank);
    for (size_t b = 0; b < (size_t)1 << sim->fabric->bucket_bits; ++b) {
        const xm_list_t *bucket = &sim->fabric->bucket[b];

        for (xm_list_t *at = xm_list_first(bucket), *next; at != NULL; at = next) {
            xm_op_t *op = xm_op_of(at);

            next = xm_list_next(bucket, at);
            if (xm_sim_owner(op) == sim) {
                stop_waiting(sim->fabric, op);
                xm_sim_finish(op, XM_ERR_CANCELED);
            }
        }
    }
    (void)sim_progress(transport);
}

/* The path names hosts instead of NICs: a host of the fabric has one NIC in each direction. */
static void sim_path(xm_transport_t *transport, int peer, char *buffer, size_t size)
{
    const xm_sim_fabric_t *fabric = ((const xm_sim_transport_t *)transport)->fabric;

    (void)snprintf(buffer, size, "sim/host%d-host%d", fabric->host_of_rank[transport->rank],
                   fabric->host_of_rank[peer]);
}

/* Leaves in order: peers' operations with this rank end with XM_ERR_PEER_DIED, as if a
 * connection had been closed. */
static void sim_destroy(xm_transport_t *transport)
{
    xm_sim_transport_t *sim = (xm_sim_transport_t *)transport;

    if (!sim->fenced) { /* else nothing of it is left, and the others have not been told */
        xm_sim_drop_messages(sim->fabric, transport->rank, XM_ERR_CANCELED);
        xm_sim_end_waiting(sim->fabric, transport->rank, XM_ERR_CANCELED);
    }
    /* Callbacks of what has just ended run here: afterwards there is no transport that could
     * make them. */
    (void)sim_progress(transport);
    sim->fabric->transport[transport->rank] = NULL;
    free(sim);
}

static const xm_transport_ops_t sim_ops = {
    .name = "sim",
    .memory_register = sim_memory_register,
    .memory_deregister = sim_memory_deregister,
    .send = sim_send,
    .receive = sim_receive,
    .cancel = sim_cancel,
    .progress = sim_progress,
    .arm = sim_arm,
    .event_fd = sim_event_fd,
    .peer_failed = sim_peer_failed,
    .now = sim_now,
    .waits = sim_waits,
    .fence = sim_fence,
    .path = sim_path,
    .destroy = sim_destroy,
};

/* Counts as one NIC called "sim", so that reports look the same as over real networks. */
void xm_transport_sim_count(xm_transport_t *transport, xm_counters_t *counters)
{
    transport->counters = counters;
    ((xm_sim_transport_t *)transport)->counters = xm_counters_open_nic(counters, "sim", 0);
}

/* Makes the transport of one rank. It belongs to the generation after all fences of this rank
 * so far. */
xm_status_t xm_transport_sim_create(xm_sim_fabric_t *fabric, int rank, xm_transport_t **transport)
{
    xm_sim_transport_t *created;

    /* A rank has one transport at a time: after a fence the old one must be destroyed first. */
    if (rank < 0 || rank >= fabric->ranks || fabric->transport[rank] != NULL) {
        return XM_INVALID("rank %d is taken or outside 0 … %d", rank, fabric->ranks - 1);
    }
    created = calloc(1, sizeof(*created));
    XM_NEED_MEMORY(created, "a simulated transport");
    created->base.ops = &sim_ops;
    created->base.rank = rank;
    created->base.size = fabric->ranks;
    /* Ranks do not know of failures before an operation tells them. */
    created->base.failed_peer = -1;
    created->fabric = fabric;
    created->generation = fabric->fences[rank];
    xm_list_init(&created->finished);
    fabric->transport[rank] = created;
    *transport = &created->base;
    return XM_OK;
}
