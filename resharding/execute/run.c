/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a run has come to. Everything that moves data reports here: the first failure, chunks and
 * hops that are over, lanes that the core should look at again, and signals in flight. Nothing here
 * calls upwards, but for the user's own callback, so that whatever reports may do so from any
 * callback of the transport: the core acts on it in its next advance.
 */
#include <stdio.h>

#include "resharding/execute/carrier.h"

uint64_t xm_executor_tag(const xm_executor_t *executor)
{
    return (uint64_t)executor->channel << 40 | (uint64_t)executor->generation << 32;
}

int64_t xm_executor_find_hop(const xm_executor_t *executor, int64_t number)
{
    int64_t low = 0;

    XM_BISECT(int64_t, i, low, executor->hop_count, executor->hops[i].number < number);
    return low < executor->hop_count && executor->hops[low].number == number ? low : -1;
}

/* What is cancelled after the first failure sets other sentences. */
void xm_executor_fail(xm_executor_t *executor, xm_status_t status)
{
    if (executor->result == XM_OK) {
        executor->result = status;
        xm_transport_spend_channel(executor->transport, executor->channel);
        executor->runs_left = executor->runs_left < 0 ? UINT8_MAX : executor->runs_left;
        (void)snprintf(executor->reason, sizeof(executor->reason), "%s", xm_last_error());
    }
}

/* A list, not a queue: which lane comes first is decided by the order of messages, when they post.
 */
void xm_executor_revisit(lane_t *lane)
{
    if (!lane->revisited) {
        lane->revisited = true;
        lane->next = lane->executor->revisits;
        lane->executor->revisits = lane;
    }
}

void xm_executor_settled(lane_t *lane)
{
    --lane->unsettled;
    xm_executor_revisit(lane);
}

/* ---- chunks and hops ------------------------------------------------------------------------ */

/* `done` is the carrier's own, so that its states are in one file; the transport calls it directly.
 */
void xm_executor_transmit(slot_t *slot, void (*done)(xm_op_t *op, xm_status_t status))
{
    const lane_t *lane = slot->lane;
    xm_transport_t *transport = lane->executor->transport;

    slot->op_busy = true;
    slot->op.done = done;
    slot->status = lane_sends(lane)
                       ? xm_transport_send(transport, lane->peer, slot->tag, slot->buffer,
                                           slot->length, slot->memory, &slot->op)
                       : xm_transport_receive(transport, lane->peer, slot->tag, slot->buffer,
                                              slot->length, slot->memory, &slot->op);
    if (slot->status != XM_IN_PROGRESS) {
        done(&slot->op, slot->status);
    }
}

/* The slot stays taken until the core has retired it, in the lane's order. */
void xm_executor_chunk_ended(slot_t *slot, xm_status_t status)
{
    slot->busy = false;
    slot->status = status;
    if (status < 0) {
        xm_executor_fail(slot->lane->executor, status);
    }
    xm_executor_revisit(slot->lane);
}

/* Copies and what comes from others, in plan order; nothing that has been counted is undone later.
 * Without a run there is nothing, whatever the hops say. */
xm_status_t xm_executor_delivered(const xm_executor_t *executor, void **bytes, size_t *length)
{
    xm_delivery_t delivery = {.rank = executor->transport->rank, .run = executor->runs};
    xm_status_t status = XM_OK;

    for (int64_t i = 0; executor->posted && status == XM_OK && i < executor->hop_count; ++i) {
        const hop_t *hop = &executor->hops[i];

        if (hop->lane < 0 || !lane_sends(&executor->lanes[hop->lane])) {
            status = xm_delivery_add(&delivery, hop->transfer, hop->arrived - hop->first,
                                     hop->end - hop->first);
        }
    }
    XM_THEN(status, xm_delivery_write(&delivery, executor->plan, bytes, length));
    xm_delivery_clear(&delivery);
    return status;
}

void xm_executor_tell_tensor_done(xm_executor_t *executor, int tensor)
{
    if (executor->tensor_done != NULL && executor->result == XM_OK) {
        executor->tensor_done(executor->arg, tensor);
    }
}

void xm_executor_end_hop(xm_executor_t *executor, hop_t *hop)
{
    hop->span.end_ns = xm_transport_now(executor->transport);
    hop->arrived = hop->end; /* nobody has told a copy so far */
    --executor->left;
    if (--executor->tensors[hop->tensor].left == 0) {
        xm_executor_tell_tensor_done(executor, hop->tensor);
    }
}

/* The hop is listed and ends in the next advance: here a callback of the transport may be running,
 * in which the user's may not be called. */
void xm_executor_hop_finished(xm_executor_t *executor, hop_t *hop)
{
    lane_t *lane = &executor->lanes[hop->lane];

    hop->next_finished = lane->finished;
    lane->finished = hop;
    xm_executor_revisit(lane);
}

/* ---- signals -------------------------------------------------------------------------------- */

/* It has left the list before its owner hears of it, who may post it, or another, again. */
static void signal_done(xm_op_t *op, xm_status_t status)
{
    signal_t *signal = op->arg;
    xm_executor_t *executor = signal->executor;

    signal->busy = false;
    *(signal->previous != NULL ? &signal->previous->next : &executor->signals) = signal->next;
    if (signal->next != NULL) {
        signal->next->previous = signal->previous;
    }
    ++executor->steps;
    if (status < 0 && !signal->lasts) {
        xm_executor_fail(executor, status);
    } else if (status == XM_OK && signal->ended != NULL) {
        signal->ended(signal);
    }
}

void xm_signal_post(xm_executor_t *executor, signal_t *signal, uint64_t tag, void *bytes,
                    size_t length)
{
    xm_transport_t *transport = executor->transport;
    xm_status_t status;

    signal->executor = executor;
    signal->op.done = signal_done;
    signal->op.arg = signal;
    signal->busy = true;
    signal->previous = NULL;
    signal->next = executor->signals;
    if (signal->next != NULL) {
        signal->next->previous = signal;
    }
    executor->signals = signal;
    tag |= xm_executor_tag(executor);
    status =
        signal->sends
            ? xm_transport_send(transport, signal->peer, tag, bytes, length, NULL, &signal->op)
            : xm_transport_receive(transport, signal->peer, tag, bytes, length, NULL, &signal->op);
    if (status != XM_IN_PROGRESS) {
        signal_done(&signal->op, status);
    }
}

/* What is cancelled may leave the list at once, but takes no other with it. */
void xm_signals_cancel(xm_executor_t *executor)
{
    for (signal_t *signal = executor->signals, *next; signal != NULL; signal = next) {
        next = signal->next;
        if (!signal->lasts) {
            xm_transport_cancel(executor->transport, &signal->op);
        }
    }
}

static bool has_signal_with(const xm_executor_t *executor, int peer)
{
    const signal_t *signal = executor->signals;

    while (signal != NULL && signal->peer != peer) {
        signal = signal->next;
    }
    return signal != NULL;
}

/* Peer by peer, because all signals with one may leave the list at once. */
void xm_signals_give_up(xm_executor_t *executor)
{
    for (int peer = 0; executor->signals != NULL && peer < executor->transport->size; ++peer) {
        if (has_signal_with(executor, peer)) {
            xm_transport_peer_failed(executor->transport, peer);
        }
    }
}
