#include "bench/pipeline/muster.h"

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

struct rb_muster {
    xm_transport_t *transport;
    int slot_count, channel, number;
    bool first, listens;
    int in, out; /* notes of a slot that come, and that go */
    slot_t *slots;
    note_t *notes;
};

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

/* The rank at the other end of note @p i of a slot: the first one and all others. */
static int peer_of(const rb_muster_t *muster, const rb_muster_params_t *params, int i)
{
    int other = i < muster->in ? i : i - muster->in;

    if (!muster->first) {
        return params->ranks[0];
    }
    return other < params->count - 1 ? params->ranks[1 + other]
                                     : params->listeners[other - (params->count - 1)];
}

static void find_role(rb_muster_t *muster, const rb_muster_params_t *params)
{
    muster->first = params->ranks[0] == params->transport->rank;
    muster->listens = true;
    for (int i = 0; i < params->count; ++i) {
        muster->listens = muster->listens && params->ranks[i] != params->transport->rank;
    }
    muster->in = muster->first ? params->count - 1 : 1;
    muster->out = muster->first     ? params->count - 1 + params->listener_count
                  : muster->listens ? 0
                                    : 1;
}

xm_status_t rb_muster_create(const rb_muster_params_t *params, rb_muster_t **result)
{
    rb_muster_t *muster = calloc(1, sizeof(*muster));
    size_t notes;

    if (muster == NULL) {
        goto no_memory;
    }
    muster->transport = params->transport;
    muster->slot_count = params->slots;
    muster->channel = params->channel;
    muster->number = params->number;
    find_role(muster, params);
    notes = (size_t)muster->in + (size_t)muster->out;
    muster->slots = calloc((size_t)params->slots, sizeof(*muster->slots));
    muster->notes = calloc((size_t)params->slots * notes + 1, sizeof(*muster->notes));
    if (muster->slots == NULL || muster->notes == NULL) {
        goto no_memory;
    }
    for (int s = 0; s < params->slots; ++s) {
        slot_t *slot = &muster->slots[s];

        slot->notes = muster->notes + (size_t)s * notes;
        for (int i = 0; i < (int)notes; ++i) {
            slot->notes[i] = (note_t){.slot = slot,
                                      .op = {.done = on_done, .arg = &slot->notes[i]},
                                      .peer = peer_of(muster, params, i),
                                      .incoming = i < muster->in};
        }
    }
    *result = muster;
    return XM_OK;

no_memory:
    rb_muster_destroy(muster);
    return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the notes of %d ranks", params->count);
}

/* Posts notes first … end - 1 of the slot. */
static xm_status_t post(rb_muster_t *muster, slot_t *slot, int first, int end)
{
    for (int i = first; i < end; ++i) {
        note_t *note = &slot->notes[i];
        xm_status_t status;

        note->busy = true;
        ++slot->busy;
        status = note->incoming ? xm_transport_receive(muster->transport, note->peer, slot->tag,
                                                       &note->byte, 1, NULL, &note->op)
                                : xm_transport_send(muster->transport, note->peer, slot->tag,
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

xm_status_t rb_muster_expect(rb_muster_t *muster, int index, int message)
{
    slot_t *slot = &muster->slots[index];

    slot->tag = (uint64_t)muster->channel << CHANNEL_BITS |
                (uint64_t)muster->number << MESSAGE_BITS |
                ((uint64_t)message & ((UINT64_C(1) << MESSAGE_BITS) - 1));
    slot->awaited = muster->in;
    slot->own = muster->listens;
    slot->passed = false;
    slot->failure = XM_OK;
    return post(muster, slot, 0, muster->in);
}

xm_status_t rb_muster_arrive(rb_muster_t *muster, int index)
{
    slot_t *slot = &muster->slots[index];

    slot->own = true;
    return muster->first ? XM_OK : post(muster, slot, muster->in, muster->in + muster->out);
}

xm_status_t rb_muster_state(rb_muster_t *muster, int index)
{
    slot_t *slot = &muster->slots[index];

    if (slot->failure < 0) {
        return xm_error_set(slot->failure,
                            "rank %d cannot tell the ranks of its stage that a message is there: "
                            "%s",
                            muster->transport->rank, xm_status_string(slot->failure));
    }
    if (!slot->own || slot->awaited > 0) {
        return XM_IN_PROGRESS;
    }
    if (muster->first && !slot->passed) {
        slot->passed = true;
        return post(muster, slot, muster->in, muster->in + muster->out);
    }
    return XM_OK;
}

bool rb_muster_is_idle(const rb_muster_t *muster, int slot)
{
    return muster->slots[slot].busy == 0;
}

static bool any_busy(const rb_muster_t *muster)
{
    bool busy = false;

    for (int s = 0; s < muster->slot_count; ++s) {
        busy = busy || muster->slots[s].busy > 0;
    }
    return busy;
}

/* After a failure. The notes' memory belongs to the transport until they have ended; a note that a
 * rank never takes ends with the transport. */
static void end_notes(rb_muster_t *muster)
{
    xm_transport_t *transport = muster->transport;

    for (int s = 0; s < muster->slot_count; ++s) {
        for (int i = 0; i < muster->in + muster->out; ++i) {
            if (muster->slots[s].notes[i].busy) {
                xm_transport_cancel(transport, &muster->slots[s].notes[i].op);
            }
        }
    }
    for (int i = 0; i < DRAIN_CALLS && any_busy(muster); ++i) {
        (void)xm_transport_progress(transport);
    }
    if (any_busy(muster)) {
        xm_transport_fence(transport);
    }
}

void rb_muster_destroy(rb_muster_t *muster)
{
    if (muster == NULL) {
        return;
    }
    if (muster->slots != NULL && muster->notes != NULL && any_busy(muster)) {
        end_notes(muster);
    }
    free(muster->notes);
    free(muster->slots);
    free(muster);
}
