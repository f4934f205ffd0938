/* SPDX-License-Identifier: Apache-2.0 */
/* Who was heard when. This is a state machine without sockets and clock: the caller says what
 * time it is and gets called back with what to do, so that tests run every case on a virtual
 * clock. The hard part is the watcher's own deafness: a process that was stopped for ten
 * seconds has heard nobody for ten seconds. So each tick knows when it should have come, and
 * the time by which it is late is taken off everybody's silence. */
#include "comm/fault/liveness.h"

#include <stdlib.h>

/* First questions to neighbouring ranks are spread over a quarter of an interval. */
enum { SPREAD = 64 };

typedef struct {
    bool watched, reported;
    uint64_t asked, answered; /* numbers of the last question and of the last one answered */
    int64_t ask_at, heard_at;
} slot_t;

struct xm_liveness {
    int ranks;
    int64_t interval, limit;
    int64_t expected; /* when the next tick was meant to be; INT64_MAX: no matter */
    slot_t *slots;
};

xm_status_t xm_liveness_create(int ranks, int64_t interval_ns, xm_liveness_t **liveness)
{
    xm_liveness_t *self = calloc(1, sizeof(*self));

    if (self != NULL) {
        self->slots = calloc((size_t)ranks, sizeof(*self->slots));
    }
    if (self == NULL || self->slots == NULL) {
        free(self);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory to watch %d ranks", ranks);
    }
    self->ranks = ranks;
    self->interval = interval_ns;
    self->limit = (int64_t)((double)interval_ns * XM_LIVENESS_SILENT_INTERVALS);
    self->expected = INT64_MAX;
    *liveness = self;
    return XM_OK;
}

void xm_liveness_destroy(xm_liveness_t *liveness)
{
    if (liveness != NULL) {
        free(liveness->slots);
        free(liveness);
    }
}

/* Begins to watch as if the rank had just been heard. */
void xm_liveness_watch(xm_liveness_t *liveness, int rank, bool watch, int64_t now)
{
    slot_t *slot = &liveness->slots[rank];

    if (watch && !slot->watched) {
        /* A little apart, so that the answers of many do not come all at once. */
        slot->ask_at = now + liveness->interval / 256 * (rank % SPREAD);
        slot->heard_at = now;
        slot->reported = false;
    }
    slot->watched = watch;
}

bool xm_liveness_watches(const xm_liveness_t *liveness, int rank)
{
    return liveness->slots[rank].watched;
}

/* Accepts an answer to an open question only: one that was answered before, or was never asked,
 * proves nothing. */
bool xm_liveness_answered(xm_liveness_t *liveness, int rank, uint64_t question, int64_t now)
{
    slot_t *slot = &liveness->slots[rank];

    if (question <= slot->answered || question > slot->asked) {
        return false;
    }
    slot->answered = question;
    slot->heard_at = now;
    return true;
}

/* The watcher came late: what it did not hear meanwhile may be waiting for it, so the time does
 * not count against anybody. */
static void forgive(xm_liveness_t *liveness, int64_t late)
{
    for (int rank = 0; rank < liveness->ranks; ++rank) {
        liveness->slots[rank].heard_at += late;
    }
}

/* Asks whom it is time to ask, and reports each silence once. It returns when to call again, so
 * the caller can sleep until then. The callback may stop or renew the watch on the rank that it
 * is told of, so the fields are read again after it. */
int64_t xm_liveness_tick(xm_liveness_t *liveness, int64_t now, const xm_liveness_actions_t *actions)
{
    int64_t next = INT64_MAX;

    /* Being late by half an interval is normal scheduling and would be lost in the limit of 3.5. */
    if (now - liveness->interval / 2 > liveness->expected) {
        forgive(liveness, now - liveness->expected);
    }
    for (int rank = 0; rank < liveness->ranks; ++rank) {
        slot_t *slot = &liveness->slots[rank];
        int64_t dead_at = slot->heard_at + liveness->limit;

        if (!slot->watched || slot->reported) {
            continue;
        }
        if (now >= dead_at) {
            slot->reported = true;
            actions->silent(actions->arg, rank, now - slot->heard_at);
            if (!slot->watched || slot->reported) {
                continue;
            }
            dead_at = slot->heard_at + liveness->limit; /* watched anew */
        }
        if (now >= slot->ask_at) {
            slot->ask_at = now + liveness->interval;
            actions->ask(actions->arg, rank, ++slot->asked);
        }
        next = slot->ask_at < next ? slot->ask_at : next;
        next = dead_at < next ? dead_at : next;
    }
    liveness->expected = next;
    return next;
}
