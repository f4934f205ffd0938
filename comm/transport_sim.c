#include "comm/transport_sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KIND_IDLE = 0, KIND_SEND, KIND_RECEIVE };

/* Buckets of the table of posted operations that wait for their other half. */
enum { BUCKETS = 4096 };

typedef struct {
    xm_transport_t base;
    xm_sim_fabric_t *fabric;
    xm_op_t finished; /* list head: operations whose `done` is due */
} sim_transport_t;

/* A send and a receive that have met. */
typedef struct {
    int64_t end_ns;
    int64_t order; /* ties end in the order in which they were matched */
    xm_op_t *send, *receive;
} message_t;

struct xm_sim_fabric {
    int ranks;
    int *host_of_rank;
    double nic_bandwidth, nic_latency, host_bandwidth, host_latency;
    int64_t now, order;
    sim_transport_t **transport; /* by rank; NULL while there is none */
    char *dead;                  /* by rank */
    int64_t *egress, *ingress;   /* by host: when the NIC is free again */
    message_t *heap;             /* by end time */
    size_t heap_count, heap_capacity;
    xm_op_t waiting[BUCKETS]; /* list heads */
};

static void list_init(xm_op_t *head)
{
    head->priv.next = head->priv.previous = head;
}

static void list_remove(xm_op_t *op)
{
    op->priv.previous->priv.next = op->priv.next;
    op->priv.next->priv.previous = op->priv.previous;
    op->priv.next = op->priv.previous = op;
}

static void list_append(xm_op_t *head, xm_op_t *op)
{
    op->priv.previous = head->priv.previous;
    op->priv.next = head;
    head->priv.previous->priv.next = op;
    head->priv.previous = op;
}

/* While an operation is in flight, `handle` is its transport; when it is finished, its status is in
 * `tag`. */
static sim_transport_t *owner(const xm_op_t *op)
{
    return op->priv.handle;
}

static void finish(xm_op_t *op, xm_status_t status)
{
    op->priv.tag = (uint64_t)(int64_t)status;
    list_append(&owner(op)->finished, op);
}

static bool earlier(const message_t *a, const message_t *b)
{
    return a->end_ns < b->end_ns || (a->end_ns == b->end_ns && a->order < b->order);
}

static xm_status_t heap_push(xm_sim_fabric_t *fabric, message_t message)
{
    size_t i = fabric->heap_count;

    if (fabric->heap_count == fabric->heap_capacity) {
        size_t grown = fabric->heap_capacity > 0 ? fabric->heap_capacity * 2 : 64;
        message_t *heap = realloc(fabric->heap, grown * sizeof(*heap));

        if (heap == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %zu simulated messages", grown);
        }
        fabric->heap = heap;
        fabric->heap_capacity = grown;
    }
    ++fabric->heap_count;
    while (i > 0 && earlier(&message, &fabric->heap[(i - 1) / 2])) {
        fabric->heap[i] = fabric->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    fabric->heap[i] = message;
    return XM_OK;
}

/* Puts `message` at hole i, whose children may be earlier. */
static void heap_sink(xm_sim_fabric_t *fabric, size_t i, message_t message)
{
    for (;;) {
        size_t child = 2 * i + 1;

        if (child + 1 < fabric->heap_count &&
            earlier(&fabric->heap[child + 1], &fabric->heap[child])) {
            ++child;
        }
        if (child >= fabric->heap_count || !earlier(&fabric->heap[child], &message)) {
            break;
        }
        fabric->heap[i] = fabric->heap[child];
        i = child;
    }
    fabric->heap[i] = message;
}

static message_t heap_pop(xm_sim_fabric_t *fabric)
{
    message_t top = fabric->heap[0];

    --fabric->heap_count;
    if (fabric->heap_count > 0) {
        heap_sink(fabric, 0, fabric->heap[fabric->heap_count]);
    }
    return top;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* A matched message occupies its NICs from when both are free, and ends a latency later. */
static xm_status_t start_message(xm_sim_fabric_t *fabric, xm_op_t *send, xm_op_t *receive)
{
    int from = fabric->host_of_rank[owner(send)->base.rank];
    int to = fabric->host_of_rank[owner(receive)->base.rank];
    double bytes = (double)send->priv.length;
    message_t message = {.order = fabric->order++, .send = send, .receive = receive};

    if (from == to) {
        message.end_ns = fabric->now + llround(fabric->host_latency * 1e9) +
                         llround(ceil(bytes * 1e9 / fabric->host_bandwidth));
    } else {
        int64_t start = later(fabric->now, later(fabric->egress[from], fabric->ingress[to]));
        int64_t free_at = start + llround(ceil(bytes * 1e9 / fabric->nic_bandwidth));

        fabric->egress[from] = fabric->ingress[to] = free_at;
        message.end_ns = free_at + llround(fabric->nic_latency * 1e9);
    }
    return heap_push(fabric, message);
}

static xm_op_t *bucket(xm_sim_fabric_t *fabric, int sender, int receiver, uint64_t tag)
{
    uint64_t hash = (tag ^ ((uint64_t)sender << 40) ^ ((uint64_t)receiver << 52)) *
                    UINT64_C(0x9e3779b97f4a7c15);

    return &fabric->waiting[hash >> 52];
}

/* The waiting operation that `op` matches, or NULL. Earlier posts match first. */
static xm_op_t *find_match(xm_op_t *head, const xm_op_t *op)
{
    int rank = owner(op)->base.rank;

    for (xm_op_t *other = head->priv.next; other != head; other = other->priv.next) {
        if (other->priv.kind != op->priv.kind && other->priv.tag == op->priv.tag &&
            other->priv.peer == rank && owner(other)->base.rank == op->priv.peer) {
            return other;
        }
    }
    return NULL;
}

static xm_status_t post(xm_transport_t *transport, int kind, int peer, uint64_t tag, void *buffer,
                        size_t length, xm_op_t *op)
{
    sim_transport_t *sim = (sim_transport_t *)transport;
    xm_sim_fabric_t *fabric = sim->fabric;
    xm_op_t *head, *match;

    if (peer < 0 || peer >= fabric->ranks || peer == transport->rank || length == 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "cannot move %zu bytes between rank %d and rank %d", length,
                            transport->rank, peer);
    }
    if (fabric->dead[peer]) {
        return xm_error_set(XM_ERR_PEER_DIED, "rank %d died", peer);
    }
    op->priv.kind = kind;
    op->priv.peer = peer;
    op->priv.tag = tag;
    op->priv.buffer = buffer;
    op->priv.length = length;
    op->priv.handle = sim;
    head = kind == KIND_SEND ? bucket(fabric, transport->rank, peer, tag)
                             : bucket(fabric, peer, transport->rank, tag);
    match = find_match(head, op);
    if (match == NULL) {
        list_append(head, op);
        return XM_IN_PROGRESS;
    }
    list_remove(match);
    op->priv.next = op->priv.previous = op;
    if (match->priv.length != length) {
        xm_op_t *receive = kind == KIND_RECEIVE ? op : match;
        xm_op_t *send = kind == KIND_RECEIVE ? match : op;

        finish(send, XM_OK);
        finish(receive, XM_ERR_CORRUPT);
        return XM_IN_PROGRESS;
    }
    if (start_message(fabric, kind == KIND_SEND ? op : match, kind == KIND_SEND ? match : op) < 0) {
        finish(op, XM_ERR_NO_MEMORY);
        finish(match, XM_ERR_NO_MEMORY);
    }
    return XM_IN_PROGRESS;
}

static xm_status_t sim_send(xm_transport_t *transport, int peer, uint64_t tag, const void *buffer,
                            size_t length, xm_memory_t *memory, xm_op_t *op)
{
    (void)memory;
    /* The op's buffer is shared by both kinds; a send only reads it. */
    return post(transport, KIND_SEND, peer, tag, (void *)(uintptr_t)buffer, length, op);
}

static xm_status_t sim_receive(xm_transport_t *transport, int peer, uint64_t tag, void *buffer,
                               size_t length, xm_memory_t *memory, xm_op_t *op)
{
    (void)memory;
    return post(transport, KIND_RECEIVE, peer, tag, buffer, length, op);
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

/* Only what still waits for its other half can be cancelled; a message on the wire finishes. */
static bool is_waiting(xm_sim_fabric_t *fabric, const xm_op_t *op)
{
    for (size_t i = 0; i < fabric->heap_count; ++i) {
        if (fabric->heap[i].send == op || fabric->heap[i].receive == op) {
            return false;
        }
    }
    return true;
}

static void sim_cancel(xm_transport_t *transport, xm_op_t *op)
{
    sim_transport_t *sim = (sim_transport_t *)transport;

    if (op->priv.kind == KIND_IDLE) {
        return;
    }
    for (xm_op_t *due = sim->finished.priv.next; due != &sim->finished; due = due->priv.next) {
        if (due == op) {
            return;
        }
    }
    if (is_waiting(sim->fabric, op)) {
        list_remove(op);
        finish(op, XM_ERR_CANCELED);
    }
}

static int sim_progress(xm_transport_t *transport)
{
    sim_transport_t *sim = (sim_transport_t *)transport;
    int events = 0;

    while (sim->finished.priv.next != &sim->finished) {
        xm_op_t *op = sim->finished.priv.next;
        xm_status_t status = (xm_status_t)(int64_t)op->priv.tag;

        list_remove(op);
        op->priv.kind = KIND_IDLE;
        op->done(op, status);
        ++events;
    }
    return events;
}

static xm_status_t sim_arm(xm_transport_t *transport)
{
    sim_transport_t *sim = (sim_transport_t *)transport;

    return sim->finished.priv.next == &sim->finished ? XM_OK : XM_IN_PROGRESS;
}

static int sim_event_fd(const xm_transport_t *transport)
{
    (void)transport;
    return -1;
}

static int64_t sim_now(const xm_transport_t *transport)
{
    return ((const sim_transport_t *)transport)->fabric->now;
}

/*
 * Ends every operation of a rank that leaves, and its peers' operations with it. A killed process
 * gets no callbacks (`own` is XM_OK), one that leaves in order does.
 */
static void end_own(xm_op_t *op, xm_status_t own)
{
    if (own < 0) {
        finish(op, own);
    } else {
        op->priv.kind = KIND_IDLE;
    }
}

static void end_waiting(xm_sim_fabric_t *fabric, int rank, xm_status_t own)
{
    for (int b = 0; b < BUCKETS; ++b) {
        xm_op_t *head = &fabric->waiting[b];

        for (xm_op_t *op = head->priv.next, *next; op != head; op = next) {
            next = op->priv.next;
            if (owner(op)->base.rank == rank) {
                list_remove(op);
                end_own(op, own);
            } else if (op->priv.peer == rank) {
                list_remove(op);
                finish(op, XM_ERR_PEER_DIED);
            }
        }
    }
}

/* Takes the messages of a dead or leaving rank off the wire. */
static void drop_messages(xm_sim_fabric_t *fabric, int rank, xm_status_t own)
{
    message_t *old = fabric->heap;
    size_t count = fabric->heap_count, kept = 0;

    for (size_t i = 0; i < count; ++i) {
        xm_op_t *ends[2] = {old[i].send, old[i].receive};

        if (owner(ends[0])->base.rank != rank && owner(ends[1])->base.rank != rank) {
            old[kept++] = old[i];
            continue;
        }
        for (int e = 0; e < 2; ++e) {
            if (owner(ends[e])->base.rank != rank) {
                finish(ends[e], XM_ERR_PEER_DIED);
            } else {
                end_own(ends[e], own);
            }
        }
    }
    fabric->heap_count = kept;
    for (size_t i = kept; i-- > 0;) {
        heap_sink(fabric, i, fabric->heap[i]);
    }
}

static void sim_peer_failed(xm_transport_t *transport, int peer)
{
    sim_transport_t *sim = (sim_transport_t *)transport;

    xm_sim_fabric_kill(sim->fabric, peer);
}

static void sim_destroy(xm_transport_t *transport)
{
    sim_transport_t *sim = (sim_transport_t *)transport;

    drop_messages(sim->fabric, transport->rank, XM_ERR_CANCELED);
    end_waiting(sim->fabric, transport->rank, XM_ERR_CANCELED);
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
    .destroy = sim_destroy,
};

xm_status_t xm_transport_sim_create(xm_sim_fabric_t *fabric, int rank, xm_transport_t **transport)
{
    sim_transport_t *created;

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
    list_init(&created->finished);
    fabric->transport[rank] = created;
    *transport = &created->base;
    return XM_OK;
}

bool xm_sim_fabric_step(xm_sim_fabric_t *fabric)
{
    bool stepped = false;

    while (fabric->heap_count > 0 && (!stepped || fabric->heap[0].end_ns == fabric->now)) {
        message_t message = heap_pop(fabric);

        fabric->now = message.end_ns;
        memcpy(message.receive->priv.buffer, message.send->priv.buffer, message.send->priv.length);
        finish(message.send, XM_OK);
        finish(message.receive, XM_OK);
        stepped = true;
    }
    return stepped;
}

int64_t xm_sim_fabric_now(const xm_sim_fabric_t *fabric)
{
    return fabric->now;
}

void xm_sim_fabric_kill(xm_sim_fabric_t *fabric, int rank)
{
    if (!fabric->dead[rank]) {
        fabric->dead[rank] = 1;
        drop_messages(fabric, rank, XM_OK);
        end_waiting(fabric, rank, XM_OK);
    }
}

xm_status_t xm_sim_fabric_create(const xm_sim_fabric_params_t *params, xm_sim_fabric_t **fabric)
{
    size_t ranks = (size_t)params->ranks;
    xm_sim_fabric_t *created;

    if (params->ranks < 1) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "a fabric has at least one rank, not %d",
                            params->ranks);
    }
    created = calloc(1, sizeof(*created));
    if (created == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a simulated fabric");
    }
    created->ranks = params->ranks;
    created->nic_bandwidth = params->nic_bandwidth > 0 ? params->nic_bandwidth : 1e9;
    created->nic_latency = params->nic_latency;
    created->host_bandwidth = params->host_bandwidth > 0 ? params->host_bandwidth : 1e10;
    created->host_latency = params->host_latency;
    created->host_of_rank = malloc(ranks * sizeof(int));
    created->transport = calloc(ranks, sizeof(sim_transport_t *));
    created->dead = calloc(ranks, 1);
    created->egress = calloc(ranks, sizeof(int64_t));
    created->ingress = calloc(ranks, sizeof(int64_t));
    if (created->host_of_rank == NULL || created->transport == NULL || created->dead == NULL ||
        created->egress == NULL || created->ingress == NULL) {
        xm_sim_fabric_destroy(created);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a fabric of %d ranks", params->ranks);
    }
    for (int r = 0; r < params->ranks; ++r) {
        created->host_of_rank[r] = params->host_of_rank != NULL ? params->host_of_rank[r] : r;
        if (created->host_of_rank[r] < 0 || created->host_of_rank[r] >= params->ranks) {
            xm_sim_fabric_destroy(created);
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "rank %d is on host %d, outside 0 … %d", r,
                                params->host_of_rank[r], params->ranks - 1);
        }
    }
    for (int b = 0; b < BUCKETS; ++b) {
        list_init(&created->waiting[b]);
    }
    *fabric = created;
    return XM_OK;
}

void xm_sim_fabric_destroy(xm_sim_fabric_t *fabric)
{
    if (fabric != NULL) {
        free(fabric->heap);
        free(fabric->ingress);
        free(fabric->egress);
        free(fabric->dead);
        free(fabric->transport);
        free(fabric->host_of_rank);
        free(fabric);
    }
}
