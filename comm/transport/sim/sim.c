#include "comm/transport/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/base.h"
#include "comm/transport/sim/transport_sim_private.h"

void xm_sim_finish(xm_op_t *op, xm_status_t status)
{
    op->priv.kind = XM_SIM_ENDED;
    op->priv.status = status;
    xm_list_append(&xm_sim_owner(op)->finished, &op->priv.link);
}

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

/* Both halves of a message are in the same bucket. */
static xm_list_t *bucket_of(const xm_sim_fabric_t *fabric, const xm_op_t *op)
{
    bool sends = op->priv.kind == XM_SIM_SEND;
    uint64_t sender = (uint64_t)(sends ? xm_sim_rank(op) : op->priv.peer);
    uint64_t receiver = (uint64_t)(sends ? op->priv.peer : xm_sim_rank(op));
    uint64_t hash = xm_hash_spread(op->priv.tag ^ (sender << 40));

    hash = xm_hash_spread(hash ^ (hash >> 32) ^ receiver);
    return &fabric->bucket[hash >> (64 - fabric->bucket_bits)];
}

xm_list_t *xm_sim_make_buckets(int bits)
{
    size_t count = (size_t)1 << bits;
    xm_list_t *buckets = malloc(count * sizeof(*buckets));

    for (size_t i = 0; buckets != NULL && i < count; ++i) {
        xm_list_init(&buckets[i]);
    }
    return buckets;
}

/* Twice the buckets; without memory the old ones do, only slower. */
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

void xm_sim_wait_for_match(xm_sim_fabric_t *fabric, xm_op_t *op)
{
    if (fabric->waiting >> fabric->bucket_bits != 0) {
        grow_buckets(fabric);
    }
    op->priv.owner = NULL;
    xm_list_append(bucket_of(fabric, op), &op->priv.link);
    ++fabric->waiting;
}

static void stop_waiting(xm_sim_fabric_t *fabric, xm_op_t *op)
{
    xm_list_remove(&op->priv.link);
    --fabric->waiting;
}

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

/* The waiting operation that `op` matches, or NULL. Earlier posts match first. */
static xm_op_t *find_match(const xm_sim_fabric_t *fabric, const xm_op_t *op)
{
    int rank = xm_sim_rank(op);
    const xm_list_t *bucket = bucket_of(fabric, op);

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

/* Both halves are posted. */
static void begin_message(xm_sim_fabric_t *fabric, xm_op_t *send, xm_op_t *receive)
{
    if (send->priv.length != receive->priv.length) {
        receive->priv.received = send->priv.length;
        xm_sim_finish(send, XM_OK);
        xm_sim_finish(receive, XM_ERR_CORRUPT);
        return;
    }
    if (send->order == 0) {
        xm_sim_start(fabric, send, receive);
        return;
    }
    send->priv.owner = receive;
    receive->priv.owner = send;
    if (xm_sim_order_enter(fabric, send, receive) < 0) {
        (void)snprintf(fabric->refusal, sizeof(fabric->refusal), "%s", xm_last_error());
        xm_sim_finish(send, XM_ERR_INVALID_ARGUMENT);
        xm_sim_finish(receive, XM_ERR_INVALID_ARGUMENT);
    }
}

static void note_failed(xm_sim_transport_t *sim, int peer)
{
    if (sim->base.failed_peer < 0) {
        sim->base.failed_peer = peer;
    }
}

static xm_status_t post(xm_transport_t *transport, int kind, int peer, uint64_t tag, void *buffer,
                        size_t length, xm_op_t *op)
{
    xm_sim_transport_t *sim = (xm_sim_transport_t *)transport;
    xm_sim_fabric_t *fabric = sim->fabric;
    xm_op_t *match;

    if (peer < 0 || peer >= fabric->ranks || peer == transport->rank || length == 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "cannot move %zu bytes between rank %d and rank %d", length,
                            transport->rank, peer);
    }
    if (sim->fenced) {
        return xm_error_set(XM_ERR_CANCELED,
                            "rank %d: the transport is closed: the group was aborted or shrunk",
                            transport->rank);
    }
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
    /* The op's buffer is shared by both kinds; a send only reads it. */
    return post(transport, XM_SIM_SEND, peer, tag, (void *)(uintptr_t)buffer, length, op);
}

static xm_status_t sim_receive(xm_transport_t *transport, int peer, uint64_t tag, void *buffer,
                               size_t length, xm_memory_t *memory, xm_op_t *op)
{
    (void)memory;
    return post(transport, XM_SIM_RECEIVE, peer, tag, buffer, length, op);
}

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

/* A message on the wire finishes; one that waits for its turn loses its other half. */
static void sim_cancel(xm_transport_t *transport, xm_op_t *op)
{
    xm_sim_fabric_t *fabric = ((xm_sim_transport_t *)transport)->fabric;
    xm_op_t *other = op->priv.owner;

    if (op->priv.kind != XM_SIM_SEND && op->priv.kind != XM_SIM_RECEIVE) {
        return;
    }
    if (other == NULL) {
        stop_waiting(fabric, op);
    } else {
        xm_sim_order_leave(fabric, op->priv.kind == XM_SIM_SEND ? op : other);
        xm_sim_wait_for_match(fabric, other);
    }
    xm_sim_finish(op, XM_ERR_CANCELED);
}

/* The sentence that goes with the failure of an operation. */
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

static int sim_progress(xm_transport_t *transport)
{
    xm_sim_transport_t *sim = (xm_sim_transport_t *)transport;
    int events = 0;

    while (!xm_list_is_empty(&sim->finished)) {
        xm_op_t *op = xm_op_of(sim->finished.next);
        xm_status_t status = op->priv.status;

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

static xm_status_t sim_arm(xm_transport_t *transport)
{
    xm_sim_transport_t *sim = (xm_sim_transport_t *)transport;

    return xm_list_is_empty(&sim->finished) ? XM_OK : XM_IN_PROGRESS;
}

static int sim_event_fd(const xm_transport_t *transport)
{
    (void)transport;
    return -1;
}

static int64_t sim_now(const xm_transport_t *transport)
{
    return ((const xm_sim_transport_t *)transport)->fabric->now;
}

static void sim_peer_failed(xm_transport_t *transport, int peer)
{
    xm_sim_transport_t *sim = (xm_sim_transport_t *)transport;

    xm_sim_fabric_kill(sim->fabric, peer);
}

/* Searches: it is for the few who ask. */
static bool sim_waits(const xm_transport_t *transport, int peer, uint64_t *moved)
{
    const xm_sim_transport_t *sim = (const xm_sim_transport_t *)transport;
    const xm_sim_fabric_t *fabric = sim->fabric;
    bool waits = false;

    *moved = sim->ended;
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

static void sim_fence(xm_transport_t *transport)
{
    xm_sim_transport_t *sim = (xm_sim_transport_t *)transport;

    if (sim->fenced) {
        return;
    }
    sim->fenced = true;
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

static void sim_path(xm_transport_t *transport, int peer, char *buffer, size_t size)
{
    const xm_sim_fabric_t *fabric = ((const xm_sim_transport_t *)transport)->fabric;

    (void)snprintf(buffer, size, "sim/host%d-host%d", fabric->host_of_rank[transport->rank],
                   fabric->host_of_rank[peer]);
}

static void sim_destroy(xm_transport_t *transport)
{
    xm_sim_transport_t *sim = (xm_sim_transport_t *)transport;

    if (!sim->fenced) { /* else nothing of it is left, and the others have not been told */
        xm_sim_drop_messages(sim->fabric, transport->rank, XM_ERR_CANCELED);
        xm_sim_end_waiting(sim->fabric, transport->rank, XM_ERR_CANCELED);
    }
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

void xm_transport_sim_count(xm_transport_t *transport, xm_counters_t *counters)
{
    transport->counters = counters;
    ((xm_sim_transport_t *)transport)->counters = xm_counters_open_nic(counters, "sim", 0);
}

xm_status_t xm_transport_sim_create(xm_sim_fabric_t *fabric, int rank, xm_transport_t **transport)
{
    xm_sim_transport_t *created;

    if (rank < 0 || rank >= fabric->ranks || fabric->transport[rank] != NULL) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "rank %d is taken or outside 0 … %d", rank,
                            fabric->ranks - 1);
    }
    created = calloc(1, sizeof(*created));
    if (created == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a simulated transport");
    }
    created->base.ops = &sim_ops;
    created->base.rank = rank;
    created->base.size = fabric->ranks;
    created->base.failed_peer = -1;
    created->fabric = fabric;
    created->generation = fabric->fences[rank];
    xm_list_init(&created->finished);
    fabric->transport[rank] = created;
    *transport = &created->base;
    return XM_OK;
}
