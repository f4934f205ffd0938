/* SPDX-License-Identifier: Apache-2.0 */
/* What the application's thread asks of the detector: groups, the guard of the bootstrap, probes,
 * regroupings. Everything takes the one lock for a moment; what the detector's thread should act
 * upon wakes it. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/base.h"
#include "comm/fault/detector_private.h"

/* Longest wait for a first answer of every rank. */
enum { AWAIT_MS = 2000 };

static void lock(xm_detector_t *detector)
{
    (void)pthread_mutex_lock(&detector->mutex);
}

/* Lets go of the lock; `wake` makes the thread look at what has changed, for it may sleep long. */
static void unlock(xm_detector_t *detector, bool wake)
{
    (void)pthread_mutex_unlock(&detector->mutex);
    if (wake) {
        xm_detector_signal(detector->wake_fd);
    }
}

/* Ends what belongs to a group. */
static void end_group(xm_detector_t *self)
{
    xm_courier_attach(self->courier, -1, 0);
    for (int rank = 0; rank < self->endpoints->size; ++rank) {
        xm_detector_slot_t *slot = &self->slots[rank];

        if (slot->link >= 0) {
            (void)close(slot->link);
            slot->link = -1;
        }
        slot->centre = false;
        xm_liveness_watch(self->liveness, rank, false, 0);
    }
}

/* A group begins. What was known of the group before is forgotten, except who has ended and what
 * the regrouping has heard. The lowest rank watches all, all watch the lowest: 2 (n - 1) questions
 * an interval instead of n squared. */
void xm_detector_begin(xm_detector_t *detector, uint32_t generation, const int *rank_of)
{
    int own = detector->endpoints->rank;
    bool central = rank_of[own] == 0;
    int64_t now = xm_clock_ns();

    lock(detector);
    end_group(detector);
    detector->generation = generation;
    detector->muted = false;
    detector->finding.status = XM_OK;
    detector->repeats = 0;
    detector->near = false;
    detector->began_at = now;
    for (int rank = 0; rank < detector->endpoints->size; ++rank) {
        xm_detector_slot_t *slot = &detector->slots[rank];

        *slot = (xm_detector_slot_t){.group_rank = rank_of[rank],
                                     .closed = slot->closed,
                                     .link = -1,
                                     .received_at = slot->received_at,
                                     .said = slot->said,
                                     .centre = rank_of[rank] >= 0 && rank != own &&
                                               (central || rank_of[rank] == 0)};
        xm_liveness_set_host(detector->liveness, rank,
                             rank_of[rank] >= 0 ? detector->endpoints->of[rank].host_number : -1);
        xm_liveness_watch(detector->liveness, rank, slot->centre, now);
    }
    xm_detector_forget(detector);
    unlock(detector, true);
}

/* Or one of them has ended, and with it the group. */
static bool all_answer(xm_detector_t *self)
{
    bool all = true;

    lock(self);
    for (int rank = 0; rank < self->endpoints->size && all; ++rank) {
        all = !self->slots[rank].centre || xm_liveness_answers(self->liveness, rank);
    }
    all = all || self->finding.status != XM_OK;
    unlock(self, false);
    return all;
}

/* Not long, because some may start late. Everything that woke it is announced again afterwards,
 * since this loop has taken it off the descriptor. */
xm_status_t xm_detector_await(xm_detector_t *detector, xm_bootstrap_t *bootstrap, double timeout)
{
    int64_t began = xm_clock_ns(), deadline = began + AWAIT_MS * INT64_C(1000000);

    while (!all_answer(detector) && xm_clock_ns() < deadline) {
        struct pollfd entry = {.fd = detector->news_fd, .events = POLLIN};

        (void)poll(&entry, 1, (int)((deadline - xm_clock_ns()) / 1000000) + 1);
        lock(detector);
        xm_detector_drain(detector->news_fd);
        unlock(detector, false);
    }
    lock(detector);
    xm_detector_announce(detector);
    unlock(detector, false);
    /* For as long as this rank has heard nothing here, one that hangs has said nothing. */
    if (bootstrap->silence > 0) {
        xm_bootstrap_attend(bootstrap,
                            (double)(bootstrap->silence - (xm_clock_ns() - began)) * 1e-9);
    }
    return xm_bootstrap_barrier(bootstrap, timeout);
}

/* Watches a rank, or no longer. The lowest rank of the group and the others stay watched by each
 * other. */
void xm_detector_watch(xm_detector_t *detector, int rank, bool watch)
{
    lock(detector);
    if (!watch) {
        (void)xm_liveness_heed(detector->liveness, rank, false);
    }
    watch = watch || detector->slots[rank].centre;
    if (watch != xm_liveness_watches(detector->liveness, rank)) {
        /* Two ranks that have lost each other should not blame each other, so the lower rank
         * speaks first. */
        int64_t grace = rank < detector->endpoints->rank ? detector->interval / 2 : 0;

        xm_liveness_watch(detector->liveness, rank, watch, xm_clock_ns() + grace);
        xm_liveness_expect(detector->liveness, rank);
    }
    unlock(detector, watch);
}

void xm_detector_suspect(xm_detector_t *detector, int rank)
{
    lock(detector);
    xm_liveness_watch(detector->liveness, rank, true, xm_clock_ns());
    xm_liveness_suspect(detector->liveness, rank, xm_clock_ns());
    unlock(detector, true);
}

bool xm_detector_hears(xm_detector_t *detector, int rank, int64_t age)
{
    bool hears;

    lock(detector);
    hears = xm_liveness_is_heard(detector->liveness, rank) &&
            xm_liveness_silence(detector->liveness, rank, xm_clock_ns()) <= age;
    unlock(detector, false);
    return hears;
}

static int job_rank(const xm_detector_t *self, int group_rank)
{
    for (int rank = 0; rank < self->endpoints->size; ++rank) {
        if (group_rank >= 0 && self->slots[rank].group_rank == group_rank) {
            return rank;
        }
    }
    return -1;
}

/* A connection of the bootstrap has ended. Where the rank answers, it is looked at once whether
 * its process has ended, and a member makes another connection to the centre; where questions do
 * not get through, the end of the connection is all that is known. */
static void on_lost(void *arg, int group_rank)
{
    xm_detector_t *self = arg;
    int rank;

    lock(self);
    rank = job_rank(self, group_rank);
    if (rank >= 0 && self->generation == 0 && !xm_liveness_answers(self->liveness, rank)) {
        xm_detector_settle_closed(self, rank);
    } else if (rank >= 0) {
        xm_liveness_suspect(self->liveness, rank, xm_clock_ns());
        if (group_rank == 0) {
            xm_courier_attach(self->courier, rank, self->generation);
        }
        /* One that was found to have ended is asked no more: this is the last to be heard of it. */
        if (self->slots[rank].closed) {
            xm_detector_settle_closed(self, rank);
        }
    }
    unlock(self, true);
}

static void on_heard(void *arg, int group_rank)
{
    xm_detector_t *self = arg;
    int rank;

    lock(self);
    rank = job_rank(self, group_rank);
    if (rank >= 0) {
        xm_liveness_heard(self->liveness, rank, xm_clock_ns());
    }
    unlock(self, false);
}

static bool on_renewed(void *arg, int *group_rank, int *fd)
{
    xm_detector_t *self = arg;
    bool found = false;

    lock(self);
    xm_detector_drain(self->guard_fd);
    for (int rank = 0; rank < self->endpoints->size && !found; ++rank) {
        xm_detector_slot_t *slot = &self->slots[rank];

        if (slot->link >= 0) {
            *fd = slot->link;
            *group_rank = slot->group_rank;
            slot->link = -1;
            found = true;
        }
    }
    unlock(self, false);
    return found;
}

static bool on_failed(void *arg, xm_bootstrap_fault_t *fault)
{
    xm_detector_t *self = arg;
    bool found;

    lock(self);
    found = self->finding.status != XM_OK && !self->delivered;
    if (found) {
        *fault = self->finding;
        fault->rank = fault->rank >= 0 ? self->slots[fault->rank].group_rank : -1;
        self->delivered = true;
    }
    unlock(self, false);
    return found;
}

/* The first time the finding is sent at once: the process may be about to end. */
static void on_tell(void *arg, const xm_bootstrap_fault_t *told, bool all)
{
    xm_detector_t *self = arg;
    xm_bootstrap_fault_t fault = *told;

    lock(self);
    fault.rank = job_rank(self, fault.rank);
    if (!self->muted && self->finding.status == XM_OK) {
        xm_detector_settle(self, &fault, all);
        self->delivered = true;
        if (all) {
            xm_detector_send_finding(self);
        }
    }
    unlock(self, all);
}

xm_bootstrap_guard_t xm_detector_guard(xm_detector_t *detector)
{
    return (xm_bootstrap_guard_t){.fd = detector->guard_fd,
                                  .lost = on_lost,
                                  .heard = on_heard,
                                  .renewed = on_renewed,
                                  .failed = on_failed,
                                  .tell = on_tell,
                                  .arg = detector};
}

int xm_detector_fd(const xm_detector_t *detector)
{
    return detector->news_fd;
}

/* The common case is one relaxed load, because a busy rank asks in every progress call. */
bool xm_detector_take_news(xm_detector_t *detector)
{
    if (!atomic_load_explicit(&detector->news, memory_order_relaxed)) {
        return false;
    }
    lock(detector);
    atomic_store(&detector->news, false);
    xm_detector_drain(detector->news_fd);
    unlock(detector, false);
    return true;
}

void xm_detector_active(xm_detector_t *detector)
{
    atomic_fetch_add_explicit(&detector->activity, 1, memory_order_relaxed);
}

unsigned xm_detector_signs(xm_detector_t *detector, int rank)
{
    unsigned signs;

    lock(detector);
    signs = detector->slots[rank].signs;
    unlock(detector, false);
    return signs;
}

unsigned xm_detector_heed(xm_detector_t *detector, int rank)
{
    unsigned gaps;

    lock(detector);
    gaps = xm_liveness_heed(detector->liveness, rank, true);
    unlock(detector, true);
    return gaps;
}

/* Asks right away, with question number 0, which counts as no sign of life when it is answered. */
void xm_detector_want_probe(xm_detector_t *detector, int rank, uint32_t probe)
{
    lock(detector);
    detector->slots[rank].asked_probe = probe;
    xm_detector_ask(detector, rank, 0, -1, false);
    unlock(detector, false);
}

/* Takes one wish; the caller repeats until there is none. */
bool xm_detector_wanted(xm_detector_t *detector, int *rank, uint32_t *probe)
{
    bool found = false;

    lock(detector);
    for (int r = 0; r < detector->endpoints->size && !found; ++r) {
        if (detector->slots[r].wanted) {
            detector->slots[r].wanted = false;
            *rank = r;
            *probe = detector->slots[r].wanted_probe;
            found = true;
        }
    }
    unlock(detector, false);
    return found;
}

/* Answers without being asked, so that the probe need not wait for the next question. */
void xm_detector_set_ready(xm_detector_t *detector, int rank, uint32_t probe)
{
    lock(detector);
    detector->slots[rank].ready_probe = probe;
    xm_detector_answer(detector, rank, NULL, NULL);
    unlock(detector, false);
}

bool xm_detector_is_ready(xm_detector_t *detector, int rank, uint32_t probe)
{
    bool ready;

    lock(detector);
    ready = detector->slots[rank].ready_for == probe;
    unlock(detector, false);
    return ready;
}

/* The members are watched by everybody now, and anew: what was known is too old, except of those
 * that were found to be silent. Hellos that have come already stay, answers to earlier ones do
 * not. */
void xm_detector_convene(xm_detector_t *detector, const bool *out)
{
    lock(detector);
    end_group(detector);
    detector->muted = true;
    detector->repeats = 0;
    for (int rank = 0; rank < detector->endpoints->size; ++rank) {
        xm_detector_slot_t *slot = &detector->slots[rank];

        if (slot->said != NULL && slot->said->type != XM_FRAME_HELLO) {
            free(slot->said);
            slot->said = NULL;
        }
        xm_liveness_watch(detector->liveness, rank, !out[rank] && rank != detector->endpoints->rank,
                          xm_clock_ns());
    }
    unlock(detector, true);
}

xm_standing_t xm_detector_standing(xm_detector_t *detector, int rank)
{
    xm_standing_t standing = XM_STANDING_UNKNOWN;
    int64_t silence;

    lock(detector);
    silence = xm_liveness_silence(detector->liveness, rank, xm_clock_ns());
    if (rank == detector->endpoints->rank) {
        standing = XM_STANDING_WELL;
    } else if (detector->slots[rank].closed) {
        standing = XM_STANDING_CLOSED;
    } else if ((double)silence >= (double)detector->interval * XM_LIVENESS_SILENT) {
        standing = XM_STANDING_CUT;
    } else if (xm_liveness_is_heard(detector->liveness, rank)) {
        standing = XM_STANDING_WELL;
    }
    unlock(detector, false);
    return standing;
}

void xm_detector_say(xm_detector_t *detector, int rank, xm_frame_t *frame)
{
    lock(detector);
    frame->about = -1;
    frame->activity = atomic_load(&detector->activity);
    xm_courier_send(detector->courier, rank, frame, true);
    unlock(detector, false);
}

bool xm_detector_heard(xm_detector_t *detector, int rank, int64_t age, xm_frame_t *frame,
                       uint8_t *standing)
{
    const xm_detector_slot_t *slot = &detector->slots[rank];
    bool found;

    lock(detector);
    found = slot->said != NULL && xm_clock_ns() - slot->said_at <= age;
    if (found) {
        *frame = *slot->said;
        frame->standing = standing;
        memcpy(standing, slot->said->standing, (size_t)detector->endpoints->size);
    }
    unlock(detector, false);
    return found;
}

int64_t xm_detector_interval(const xm_detector_t *detector)
{
    return detector->interval;
}
