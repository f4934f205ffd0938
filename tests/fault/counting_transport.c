#include "tests/fault/counting_transport.h"

#include "xm_test.h"

#include "comm/base/random.h"

enum { SLOTS = 8192 };

typedef struct {
    xm_op_t *op;
    void (*done)(xm_op_t *op, xm_status_t status);
    int rank;
    bool in_flight;
} watched_t;

static watched_t slots[SLOTS];
static int used[SLOTS], used_count, surplus;
static const xm_transport_ops_t *plain;
static xm_transport_ops_t counting;

/* The operation's entry, or the free one where it would be. */
static watched_t *slot_of(const xm_op_t *op)
{
    size_t at = (size_t)(xm_hash_spread((uintptr_t)op >> 4) >> 51) % SLOTS;

    while (slots[at].op != NULL && slots[at].op != op) {
        at = (at + 1) % SLOTS;
    }
    return &slots[at];
}

static void ended(xm_op_t *op, xm_status_t status)
{
    watched_t *watched = slot_of(op);

    if (watched->op == NULL || !watched->in_flight) {
        ++surplus;
        return;
    }
    watched->in_flight = false;
    watched->done(op, status);
}

/* Before posting: `done` of a finished post must not come, so the entry counts from here. */
static watched_t *watch(const xm_transport_t *transport, xm_op_t *op)
{
    watched_t *watched = slot_of(op);

    if (watched->op == NULL) {
        if (used_count == SLOTS / 2) {
            ck_abort_msg("more than %d operations", used_count);
        }
        used[used_count++] = (int)(watched - slots);
        watched->op = op;
    }
    if (watched
            ->in_flight) { /* Check's assertions write to a file each time, also when they hold */
        ck_abort_msg("rank %d posts an operation that is in flight", transport->rank);
    }
    if (op->done != ended) {
        watched->done = op->done;
        op->done = ended;
    }
    watched->rank = transport->rank;
    watched->in_flight = true;
    return watched;
}

static xm_status_t counting_send(xm_transport_t *transport, int peer, uint64_t tag,
                                 const void *buffer, size_t length, xm_memory_t *memory,
                                 xm_op_t *op)
{
    watched_t *watched = watch(transport, op);
    xm_status_t status = plain->send(transport, peer, tag, buffer, length, memory, op);

    watched->in_flight = status == XM_IN_PROGRESS;
    return status;
}

static xm_status_t counting_receive(xm_transport_t *transport, int peer, uint64_t tag, void *buffer,
                                    size_t length, xm_memory_t *memory, xm_op_t *op)
{
    watched_t *watched = watch(transport, op);
    xm_status_t status = plain->receive(transport, peer, tag, buffer, length, memory, op);

    watched->in_flight = status == XM_IN_PROGRESS;
    return status;
}

void counting_transport_reset(void)
{
    for (int i = 0; i < used_count; ++i) {
        slots[used[i]] = (watched_t){.op = NULL};
    }
    used_count = 0;
}

void counting_transport_wrap(xm_transport_t *transport)
{
    plain = transport->ops;
    counting = *plain;
    counting.send = counting_send;
    counting.receive = counting_receive;
    transport->ops = &counting;
}

int counting_transport_in_flight(int rank)
{
    int count = 0;

    for (int i = 0; i < used_count; ++i) {
        count += slots[used[i]].rank == rank && slots[used[i]].in_flight;
    }
    return count;
}

void counting_transport_forget(int rank)
{
    for (int i = 0; i < used_count; ++i) {
        watched_t *watched = &slots[used[i]];

        if (watched->rank == rank && watched->in_flight) {
            watched->in_flight = false;
            watched->done(watched->op, XM_ERR_CANCELED);
        }
    }
}

int counting_transport_surplus(void)
{
    return surplus;
}
