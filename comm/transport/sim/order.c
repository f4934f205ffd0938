/* SPDX-License-Identifier: Apache-2.0 */
/* Executing messages in a given order. A plan's schedule says which message each NIC, uplink
 * and port serves next; this file makes the fabric keep to it, even if another message is ready
 * earlier, so that a plan's predicted time can be checked to the nanosecond. Each resource has
 * the list of its slots and serves them in turn, round and round, for runs that are repeated.
 * An order that contradicts the program stands still, and the fabric's step says so. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/transport/sim/transport_sim_private.h"

static const size_t nothing = SIZE_MAX;

typedef struct {
    xm_sim_slot_t name;
    xm_op_t *send, *receive; /* the message that waits here; NULL: none */
    int uses;                /* resources */
    int turns;               /* how many of them have it next */
    size_t next_ready;       /* slots whose message is about to start */
} slot_t;

/* A message starts when it is there and all its resources have it next. A slot's resources move
 * on together, so all of them have started it equally often, and one count for each slot tells
 * when its turn has come: nothing is ever searched. */
struct xm_sim_order {
    slot_t *slot;
    size_t count;
    size_t *first; /* by resource: where its slots start in `list`; one more at the end */
    size_t *head;  /* by resource: the place in `list` of the next; `nothing` when all are dead's */
    size_t *list;  /* slots */
    size_t *table; /* slots by order number, open addressing */
    size_t mask;
    size_t ready; /* chain of slots */
    size_t waiting;
};

void xm_sim_order_destroy(xm_sim_order_t *order)
{
    if (order != NULL) {
        free(order->table);
        free(order->list);
        free(order->head);
        free(order->first);
        free(order->slot);
        free(order);
    }
}

/* Finds the place of a number in the table, or where it would be. The table is twice as large
 * as the order at least, so probing is short. */
static size_t *find(const xm_sim_order_t *order, uint64_t number)
{
    size_t i = (size_t)xm_hash_mix(0, number) & order->mask;

    while (order->table[i] != nothing && order->slot[order->table[i]].name.order != number) {
        i = (i + 1) & order->mask;
    }
    return &order->table[i];
}

/* A message with a dead rank never comes; nobody may wait for it. */
static bool is_dead(const xm_sim_fabric_t *fabric, const slot_t *slot)
{
    return fabric->dead[slot->name.sender] || fabric->dead[slot->name.receiver];
}

/* Puts the slot on the chain of those to be started if its turn has come: all its resources
 * have it next, and its message is there. The two conditions come true in either order, so both
 * places that make one true call this. */
static void offer(xm_sim_order_t *order, size_t s)
{
    slot_t *slot = &order->slot[s];

    if (slot->turns == slot->uses && slot->send != NULL) {
        slot->next_ready = order->ready;
        order->ready = s;
    }
}

/* Gives the resource to the first living slot at or after place `at` of its list. It goes once
 * around at most; if all slots belong to the dead the resource serves nobody. */
static void serve(const xm_sim_fabric_t *fabric, xm_sim_order_t *order, int resource, size_t at)
{
    size_t first = order->first[resource], end = order->first[resource + 1];

    order->head[resource] = nothing;
    for (size_t tried = first; tried < end; ++tried, ++at) {
        at = at == end ? first : at;
        if (!is_dead(fabric, &order->slot[order->list[at]])) {
            order->head[resource] = at;
            ++order->slot[order->list[at]].turns;
            offer(order, order->list[at]);
            return;
        }
    }
}

/* Starts the messages whose turn it is. Each start moves its resources on, which may put
 * further slots on the chain, so this is a loop and not a recursion. */
static void start_ready(xm_sim_fabric_t *fabric, xm_sim_order_t *order)
{
    while (order->ready != nothing) {
        slot_t *slot = &order->slot[order->ready];
        xm_op_t *send = slot->send, *receive = slot->receive;
        xm_sim_route_t route;

        /* The slot is cleared before its resources are moved on, since the same slot may be the
         * next on all of them. */
        order->ready = slot->next_ready;
        slot->send = slot->receive = NULL;
        slot->turns = 0;
        --order->waiting;
        xm_sim_start(fabric, send, receive);
        xm_sim_route(fabric, slot->name.sender, slot->name.receiver, &route);
        for (int i = 0; i < route.count; ++i) {
            serve(fabric, order, route.resource[i], order->head[route.resource[i]] + 1);
        }
    }
}

/* A matched message enters the order. Refusals are mistakes of the program or the plan: an
 * unknown number, other ranks, or two messages with one number at a time. */
xm_status_t xm_sim_order_enter(xm_sim_fabric_t *fabric, xm_op_t *send, xm_op_t *receive)
{
    xm_sim_order_t *order = fabric->order;
    int from = xm_sim_rank(send), to = xm_sim_rank(receive);
    /* Numbers are the plan's; places in the table are this file's. */
    size_t s = order != NULL ? *find(order, send->order) : nothing;
    slot_t *slot;

    if (s == nothing) {
        return XM_INVALID("the message from rank %d to rank %d has the order %" PRIu64
                          ", which is none of the fabric's %zu",
                          from, to, send->order, order != NULL ? order->count : 0);
    }
    slot = &order->slot[s];
    /* A number that is used by other ranks than the plan says would make the wrong resources
     * wait. */
    if (slot->name.sender != from || slot->name.receiver != to) {
        return XM_INVALID("the order %" PRIu64
                          " is for a message from rank %d to rank %d, not from rank %d to rank %d",
                          send->order, slot->name.sender, slot->name.receiver, from, to);
    }
    if (slot->send != NULL) {
        return XM_INVALID("a message with the order %" PRIu64
                          " from rank %d to rank %d still waits for its turn",
                          send->order, from, to);
    }
    slot->send = send;
    slot->receive = receive;
    ++order->waiting;
    offer(order, s);
    start_ready(fabric, order);
    return XM_OK;
}

/* Takes a message out again. The resources keep waiting for the slot, so the order is not
 * changed by a cancel. */
void xm_sim_order_leave(xm_sim_fabric_t *fabric, const xm_op_t *send)
{
    slot_t *slot = &fabric->order->slot[*find(fabric->order, send->order)];

    slot->send = slot->receive = NULL;
    --fabric->order->waiting;
}

/* Ends the messages of a rank that is gone. The slots stay in the lists and are passed over
 * because the rank is dead. */
void xm_sim_order_drop(xm_sim_fabric_t *fabric, int rank, xm_status_t own)
{
    xm_sim_order_t *order = fabric->order;

    for (size_t s = 0; order != NULL && order->waiting > 0 && s < order->count; ++s) {
        slot_t *slot = &order->slot[s];

        if (slot->send != NULL && (slot->name.sender == rank || slot->name.receiver == rank)) {
            xm_sim_end_own(slot->send, rank, own);
            xm_sim_end_own(slot->receive, rank, own);
            slot->send = slot->receive = NULL;
            --order->waiting;
        }
    }
}

/* Takes the messages of a fenced rank out: its halves end, and the others wait for a new match,
 * with their turn still to come. */
void xm_sim_order_recall(xm_sim_fabric_t *fabric, int rank)
{
    xm_sim_order_t *order = fabric->order;

    for (size_t s = 0; order != NULL && order->waiting > 0 && s < order->count; ++s) {
        slot_t *slot = &order->slot[s];
        xm_op_t *halves[2] = {slot->send, slot->receive};

        if (slot->send == NULL || (slot->name.sender != rank && slot->name.receiver != rank)) {
            continue;
        }
        slot->send = slot->receive = NULL;
        --order->waiting;
        for (int h = 0; h < 2; ++h) {
            if (xm_sim_rank(halves[h]) == rank) {
                xm_sim_finish(halves[h], XM_ERR_CANCELED);
            } else {
                xm_sim_wait_for_match(fabric, halves[h]);
            }
        }
    }
}

/* After a death: every resource that waits for a dead rank's slot moves on to the next living
 * one, and what can start does. */
void xm_sim_order_pass_dead(xm_sim_fabric_t *fabric)
{
    xm_sim_order_t *order = fabric->order;

    if (order == NULL) {
        return;
    }
    /* Only resources that wait for a dead slot have to move; the others will pass it when they
     * come there. */
    for (int r = 0; r < fabric->resources; ++r) {
        if (order->head[r] != nothing &&
            is_dead(fabric, &order->slot[order->list[order->head[r]]])) {
            serve(fabric, order, r, order->head[r]);
        }
    }
    start_ready(fabric, order);
}

/* Number 0 means "no order" in an operation, so no slot can have it. */
static xm_status_t check_slot(const xm_sim_fabric_t *fabric, const xm_sim_slot_t *slot, size_t s)
{
    if (slot->sender < 0 || slot->sender >= fabric->ranks || slot->receiver < 0 ||
        slot->receiver >= fabric->ranks || slot->sender == slot->receiver || slot->order == 0) {
        return XM_INVALID("slot %zu of the order, number %" PRIu64
                          ", is from rank %d to rank %d of %d; numbers are not 0",
                          s, slot->order, slot->sender, slot->receiver, fabric->ranks);
    }
    return XM_OK;
}

/* Enters the slots in the table, and counts for each resource how many it has; the counts
 * become positions in fill_lists(). */
static xm_status_t fill_slots(const xm_sim_fabric_t *fabric, xm_sim_order_t *order,
                              const xm_sim_slot_t *slots)
{
    xm_sim_route_t route;

    for (size_t s = 0; s < order->count; ++s) {
        size_t *entry;

        XM_TRY(check_slot(fabric, &slots[s], s));
        entry = find(order, slots[s].order);
        if (*entry != nothing) {
            return XM_INVALID("slots %zu and %zu of the order both have number %" PRIu64, *entry, s,
                              slots[s].order);
        }
        *entry = s;
        xm_sim_route(fabric, slots[s].sender, slots[s].receiver, &route);
        /* The number of resources is the number of turns that a start needs. */
        order->slot[s] = (slot_t){.name = slots[s], .uses = route.count};
        for (int i = 0; i < route.count; ++i) {
            ++order->first[route.resource[i] + 1];
        }
    }
    return XM_OK;
}

/* Lists every resource's slots, in the order of the slots; `head` serves as the place of the
 * next entry until the lists are full. */
static xm_status_t fill_lists(const xm_sim_fabric_t *fabric, xm_sim_order_t *order)
{
    xm_sim_route_t route;

    for (int r = 0; r < fabric->resources; ++r) {
        order->first[r + 1] += order->first[r];
        order->head[r] = order->first[r];
    }
    order->list = malloc((order->first[fabric->resources] + 1) * sizeof(*order->list));
    XM_NEED_MEMORY(order->list, "an order of %zu messages", order->count);
    for (size_t s = 0; s < order->count; ++s) {
        xm_sim_route(fabric, order->slot[s].name.sender, order->slot[s].name.receiver, &route);
        for (int i = 0; i < route.count; ++i) {
            order->list[order->head[route.resource[i]]++] = s;
        }
    }
    /* Every resource begins with its first slot. */
    for (int r = 0; r < fabric->resources; ++r) {
        serve(fabric, order, r, order->first[r]);
    }
    return XM_OK;
}

/* Builds an order; the fabric's own is not touched until all of it is right. */
static xm_status_t create(const xm_sim_fabric_t *fabric, const xm_sim_slot_t *slots, size_t count,
                          xm_sim_order_t **order)
{
    xm_sim_order_t *created = calloc(1, sizeof(*created));
    size_t resources = (size_t)fabric->resources, size = 2;
    xm_status_t status;

    XM_NEED_MEMORY(created, "an order of %zu messages", count);
    /* At most half full, for short probes. */
    while (size < 2 * count) {
        size *= 2;
    }
    created->count = count;
    created->mask = size - 1;
    created->ready = nothing;
    created->slot = malloc(count * sizeof(*created->slot));
    created->first = calloc(resources + 1, sizeof(*created->first));
    created->head = malloc(resources * sizeof(*created->head));
    created->table = malloc(size * sizeof(*created->table));
    if (created->slot == NULL || created->first == NULL || created->head == NULL ||
        created->table == NULL) {
        xm_sim_order_destroy(created);
        return XM_NO_MEMORY("an order of %zu messages", count);
    }
    /* All bytes set give SIZE_MAX, which is `nothing`. */
    memset(created->table, -1, size * sizeof(*created->table));
    status = fill_slots(fabric, created, slots);
    XM_THEN(status, fill_lists(fabric, created));
    if (status < 0) {
        xm_sim_order_destroy(created);
        return status;
    }
    *order = created;
    return XM_OK;
}

/* Replaces the order; none when `count` is 0. Messages that still wait in the old one would
 * lose their turn, so that is refused. */
xm_status_t xm_sim_fabric_set_order(xm_sim_fabric_t *fabric, const xm_sim_slot_t *slots,
                                    size_t count)
{
    xm_sim_order_t *order = NULL;

    if (fabric->order != NULL && fabric->order->waiting > 0) {
        return XM_INVALID("%zu messages still wait for their turn in the previous order",
                          fabric->order->waiting);
    }
    if (count > 0) {
        XM_TRY(create(fabric, slots, count, &order));
    }
    xm_sim_order_destroy(fabric->order);
    fabric->order = order;
    return XM_OK;
}
