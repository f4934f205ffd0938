/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stage barrier: the ranks of a stage wait until a message is there for all of them,
 * as the collectives of the pass behind it would make them. The first rank collects a
 * note from each and answers all; two rounds of one-byte messages pass while ranks
 * compute. The sending stage listens, which is how it learns that its next message may
 * leave.
 */
#include "bench/pipeline/stage_barrier.h"

#include <stdlib.h>

/* DRAIN_CALLS: progress calls that end what was cancelled. */
enum { MESSAGE_BITS = 24, CHANNEL_BITS = 40, DRAIN_CALLS = 1000 };

typedef struct slot slot_t;

typedef struct {
    xm_op_t op;
    slot_t *slot;
    int peer;
    unsigned char byte;
    bool busy, incoming;
} note_t;

struct slot {
    uint64_t tag;
    note_t *notes; /* that come, then those that go */
    int busy;
    int awaited; /* notes that have not come */
    bool own, passed;
    xm_status_t failure;
};

struct rb_stage_barrier {
    xm_transport_t *transport;
    int slot_count, channel, number;
    bool first, listens;
    int in, out; /* notes of a slot that come, and that go */
    slot_t *slots;
    note_t *notes;
};

/* The first failure of a slot is kept; later ones follow from it. */
static void on_done(xm_op_t *op, xm_status_t status)
{
    note_t *note = op->arg;
    slot_t *slot = note->slot;

    note->busy = false;
    --slot->busy;
    if (status < 0) {
        slot->failure = slot->failure < 0 ? slot->failure : status;
    } else if (note->incoming) {
        --slot->awaited;
    }
}

/* The rank at the other end of note @p i of a slot: everybody else for the first rank,
 * and the first rank for everybody else. */
static int peer_of(const rb_stage_barrier_t *stage_barrier, const rb_stage_barrier_params_t *params,
                   int i)
{
    int other = i < stage_barrier->in ? i : i - stage_barrier->in;

    if (!stage_barrier->first) {
        return params->ranks[0];
    }
    return other < params->count - 1 ? params->ranks[1 + other]
                                     : params->listeners[other - (params->count - 1)];
}

/* A listener has no part of the message and only hears when it is there. */
static void find_role(rb_stage_barrier_t *stage_barrier, const rb_stage_barrier_params_t *params)
{
    stage_barrier->first = params->ranks[0] == params->transport->rank;
    stage_barrier->listens = true;
    for (int i = 0; i < params->count; ++i) {
        stage_barrier->listens =
            stage_barrier->listens && params->ranks[i] != params->transport->rank;
    }
    stage_barrier->in = stage_barrier->first ? params->count - 1 : 1;
    stage_barrier->out = stage_barrier->first     ? params->count - 1 + params->listener_count
                         : stage_barrier->listens ? 0
                                                  : 1;
}

/* All notes are made here, so nothing is allocated while ranks run. */
xm_status_t rb_stage_barrier_create(const rb_stage_barrier_params_t *params,
                                    rb_stage_barrier_t **result)
{
    rb_stage_barrier_t *stage_barrier = calloc(1, sizeof(*stage_barrier));
    size_t notes;

    if (stage_barrier == NULL) {
        goto no_memory;
    }
    stage_barrier->transport = params->transport;
    stage_barrier->slot_count = params->slots;
    stage_barrier->channel = params->channel;
    stage_barrier->number = params->number;
    find_role(stage_barrier, params);
    notes = (size_t)stage_barrier->in + (size_t)stage_barrier->out;
    stage_barrier->slots = calloc((size_t)params->slots, sizeof(*stage_barrier->slots));
    stage_barrier->notes = calloc((size_t)params->slots * notes + 1, sizeof(*stage_barrier->notes));
    if (stage_barrier->slots == NULL || stage_barrier->notes == NULL) {
        goto no_memory;
    }
    for (int s = 0; s < params->slots; ++s) {
        slot_t *slot = &stage_barrier->slots[s];

        slot->notes = stage_barrier->notes + (size_t)s * notes;
        for (int i = 0; i < (int)notes; ++i) {
            slot->notes[i] = (note_t){.slot = slot,
                                      .op = {.done = on_done, .arg = &slot->notes[i]},
                                      .peer = peer_of(stage_barrier, params, i),
                                      .incoming = i < stage_barrier->in};
        }
    }
    *result = stage_barrier;
    return XM_OK;

no_memory:
    rb_stage_barrier_destroy(stage_barrier);
    return XM_NO_MEMORY("the notes of %d ranks", params->count);
}

/* Posts notes first … end − 1 of the slot. */
static xm_status_t post(rb_stage_barrier_t *stage_barrier, slot_t *slot, int first, int end)
{
    for (int i = first; i < end; ++i) {
        note_t *note = &slot->notes[i];
        xm_status_t status;

        note->busy = true;
        ++slot->busy;
        status = note->incoming ? xm_transport_receive(stage_barrier->transport, note->peer,
                                                       slot->tag, &note->byte, 1, NULL, &note->op)
                                : xm_transport_send(stage_barrier->transport, note->peer, slot->tag,
                                                    &note->byte, 1, NULL, &note->op);
        if (status != XM_IN_PROGRESS) {
            on_done(&note->op, status);
        }
        if (status < 0) {
            return status;
        }
    }
    return XM_OK;
}

/* The message's number is part of the tag, so a note of an earlier message is never taken
 * for this one. */
xm_status_t rb_stage_barrier_expect(rb_stage_barrier_t *stage_barrier, int index, int message)
{
    slot_t *slot = &stage_barrier->slots[index];

    slot->tag = (uint64_t)stage_barrier->channel << CHANNEL_BITS |
                (uint64_t)stage_barrier->number << MESSAGE_BITS |
                ((uint64_t)message & ((UINT64_C(1) << MESSAGE_BITS) - 1));
    slot->awaited = stage_barrier->in;
    slot->own = stage_barrier->listens;
    slot->passed = false;
    slot->failure = XM_OK;
    return post(stage_barrier, slot, 0, stage_barrier->in);
}

xm_status_t rb_stage_barrier_arrive(rb_stage_barrier_t *stage_barrier, int index)
{
    slot_t *slot = &stage_barrier->slots[index];

    slot->own = true;
    return stage_barrier->first ? XM_OK
                                : post(stage_barrier, slot, stage_barrier->in,
                                       stage_barrier->in + stage_barrier->out);
}

/* The first rank answers at the moment it learns that all parts are there, once. */
xm_status_t rb_stage_barrier_state(rb_stage_barrier_t *stage_barrier, int index)
{
    slot_t *slot = &stage_barrier->slots[index];

    if (slot->failure < 0) {
        return xm_error_set(slot->failure,
                            "rank %d cannot tell the ranks of its stage that a message is there: "
                            "%s",
                            stage_barrier->transport->rank, xm_status_string(slot->failure));
    }
    if (!slot->own || slot->awaited > 0) {
        return XM_IN_PROGRESS;
    }
    if (stage_barrier->first && !slot->passed) {
        slot->passed = true;
        return post(stage_barrier, slot, stage_barrier->in, stage_barrier->in + stage_barrier->out);
    }
    return XM_OK;
}

bool rb_stage_barrier_is_idle(const rb_stage_barrier_t *stage_barrier, int slot)
{
    return stage_barrier->slots[slot].busy == 0;
}

static bool any_busy(const rb_stage_barrier_t *stage_barrier)
{
    bool busy = false;

    for (int s = 0; s < stage_barrier->slot_count; ++s) {
        busy = busy || stage_barrier->slots[s].busy > 0;
    }
    return busy;
}

/* Ends the notes after a failure. Their memory belongs to the transport until they have
 * ended; a note that a rank never takes ends with the transport. */
static void end_notes(rb_stage_barrier_t *stage_barrier)
{
    xm_transport_t *transport = stage_barrier->transport;

    for (int s = 0; s < stage_barrier->slot_count; ++s) {
        for (int i = 0; i < stage_barrier->in + stage_barrier->out; ++i) {
            if (stage_barrier->slots[s].notes[i].busy) {
                xm_transport_cancel(transport, &stage_barrier->slots[s].notes[i].op);
            }
        }
    }
    for (int i = 0; i < DRAIN_CALLS && any_busy(stage_barrier); ++i) {
        (void)xm_transport_progress(transport);
    }
    if (any_busy(stage_barrier)) {
        xm_transport_fence(transport);
    }
}

/* The notes may be NULL when creation failed half-way. */
void rb_stage_barrier_destroy(rb_stage_barrier_t *stage_barrier)
{
    if (stage_barrier == NULL) {
        return;
    }
    if (stage_barrier->slots != NULL && stage_barrier->notes != NULL && any_busy(stage_barrier)) {
        end_notes(stage_barrier);
    }
    free(stage_barrier->notes);
    free(stage_barrier->slots);
    free(stage_barrier);
}
