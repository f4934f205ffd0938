/* SPDX-License-Identifier: Apache-2.0 */
/* Who is alive. This is a state machine without sockets and clock: the caller says what time it is
 * and gets called back with what to do, so that tests run every case on a virtual clock. Two things
 * are hard. One is not to mistake the own deafness for the death of others: a rank that nobody
 * answers, or that was stopped itself, has to say nothing about them; hence the witnesses, and
 * hence each tick knows when it should have come. The other is that messages may pass one way
 * only, so nothing counts that does not show that they pass to and fro. */
#include "comm/fault/liveness.h"

#include <stdlib.h>

/* SPREAD: first questions to neighbouring ranks are spread over a quarter of an interval.
 * WITNESSES: asked about one rank at the same time. QUESTIONS_EACH: questions that a witness gets
 * before another one takes its place. */
enum { SPREAD = 64, WITNESSES = 4, QUESTIONS_EACH = 3 };

/* In intervals. CALL_AFTER: of unanswered questions until a connection is tried. CONFIRM: without
 * a sign after a refusal until the process counts as ended. PRESSING, SUSPECTED: pace and length of
 * a suspicion. TESTIFY_FOR: a witness looks after a rank so long after the last request, and
 * knows that it is silent after TESTIFY_SILENT. LATELY: what was heard so long ago is heard.
 * LONELY: until a rank whom no witness answers knows that it is alone. GAP: a silence that is
 * counted when it ends. */
static const double CALL_AFTER = 0.2, CONFIRM = 0.03, PRESSING = 0.005, SUSPECTED = 0.5,
                    TESTIFY_FOR = 2.0, TESTIFY_SILENT = 0.75, LATELY = 1.5, LONELY = 4.0,
                    GAP = 0.25;

#define NEVER INT64_MIN

/* A witness against one rank. */
typedef struct {
    int rank; /* -1: none */
    int asked;
    bool told;
    xm_opinion_t opinion;
} witness_t;

typedef struct {
    int host; /* -1: no member */
    bool watched;
    bool heeded;              /* asked often although it answers */
    unsigned gaps;            /* silences that have ended */
    bool given_up;            /* there was a finding, and no sign has come since */
    bool answers;             /* has answered a question, ever: silence means something */
    bool expected;            /* or others like it have */
    bool heard;               /* since watching began */
    uint64_t asked, answered; /* numbers of the last question and of the last one answered */
    int64_t asked_at;         /* the last question; NEVER: none since watching began */
    int64_t unanswered_since; /* the first question since the last sign */
    int64_t heard_at;         /* the last sign of life, at first the beginning */
    int64_t came_at;          /* anything has come of it */
    int64_t suspected_until;
    int64_t testify_until, testify_since; /* looked after for others */
    int64_t refused_at;
    int64_t witnessed_at; /* the last question to the witnesses */
    int next_witness;     /* where to look for another one */
    witness_t witnesses[WITNESSES];
} slot_t;

struct xm_liveness {
    int ranks, own;
    int end; /* no rank from here on has ever been looked after: most look after the lowest only */
    int64_t interval;
    bool judging;
    int64_t expected; /* when the next tick was meant to be; INT64_MAX: no matter */
    slot_t *slots;
};

static int64_t span(const xm_liveness_t *liveness, double intervals)
{
    return (int64_t)((double)liveness->interval * intervals);
}

xm_status_t xm_liveness_create(int ranks, int own, int64_t interval_ns, bool judging,
                               xm_liveness_t **liveness)
{
    xm_liveness_t *self = calloc(1, sizeof(*self));

    if (self != NULL) {
        self->slots = calloc((size_t)ranks, sizeof(*self->slots));
    }
    if (self == NULL || self->slots == NULL) {
        free(self);
        return XM_NO_MEMORY("watching %d ranks", ranks);
    }
    *self = (xm_liveness_t){.ranks = ranks,
                            .own = own,
                            .interval = interval_ns,
                            .judging = judging,
                            .expected = INT64_MAX,
                            .slots = self->slots};
    for (int rank = 0; rank < ranks; ++rank) {
        self->slots[rank] = (slot_t){.host = -1,
                                     .asked_at = NEVER,
                                     .unanswered_since = NEVER,
                                     .heard_at = NEVER,
                                     .came_at = NEVER,
                                     .suspected_until = NEVER,
                                     .testify_until = NEVER,
                                     .refused_at = NEVER,
                                     .witnessed_at = NEVER};
    }
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

void xm_liveness_set_host(xm_liveness_t *liveness, int rank, int host)
{
    liveness->slots[rank].host = host;
}

static void dismiss_witnesses(slot_t *slot)
{
    slot->witnessed_at = NEVER;
    slot->next_witness = 0;
    for (int i = 0; i < WITNESSES; ++i) {
        slot->witnesses[i].rank = -1;
    }
}

/* True while there is a reason to ask after the rank. */
static bool is_active(const slot_t *slot, int64_t now)
{
    return slot->watched || now < slot->testify_until || now < slot->suspected_until;
}

static void look_after(xm_liveness_t *liveness, int rank)
{
    liveness->end = rank < liveness->end ? liveness->end : rank + 1;
}

/* Begins to ask after a rank, as if it had just been heard, unless it is known to be silent. */
static void begin(xm_liveness_t *liveness, int rank, int64_t now)
{
    slot_t *slot = &liveness->slots[rank];

    look_after(liveness, rank);
    slot->asked_at = NEVER;
    slot->unanswered_since = NEVER;
    slot->heard = slot->heeded = false;
    if (!slot->given_up && slot->heard_at < now) {
        slot->heard_at = now;
    }
    dismiss_witnesses(slot);
}

void xm_liveness_watch(xm_liveness_t *liveness, int rank, bool watch, int64_t now)
{
    slot_t *slot = &liveness->slots[rank];

    if (watch && !slot->watched) {
        begin(liveness, rank, now);
        /* A little apart, so that the answers of many do not come all at once. */
        slot->asked_at = now + liveness->interval / 256 * (rank % SPREAD) - liveness->interval;
        slot->given_up = false;
    }
    slot->watched = watch;
}

unsigned xm_liveness_heed(xm_liveness_t *liveness, int rank, bool often)
{
    liveness->slots[rank].heeded = often;
    return liveness->slots[rank].gaps;
}

bool xm_liveness_watches(const xm_liveness_t *liveness, int rank)
{
    return liveness->slots[rank].watched;
}

void xm_liveness_expect(xm_liveness_t *liveness, int rank)
{
    liveness->slots[rank].expected = true;
}

void xm_liveness_suspect(xm_liveness_t *liveness, int rank, int64_t now)
{
    slot_t *slot = &liveness->slots[rank];

    if (!is_active(slot, now)) {
        begin(liveness, rank, now);
    }
    slot->suspected_until = now + span(liveness, SUSPECTED);
    liveness->expected = INT64_MAX; /* the next tick comes earlier than was meant */
}

xm_opinion_t xm_liveness_testify(xm_liveness_t *liveness, int rank, int64_t now)
{
    slot_t *slot = &liveness->slots[rank];
    bool fresh = !is_active(slot, now);

    if (fresh) {
        begin(liveness, rank, now);
    }
    if (fresh || now >= slot->testify_until) {
        slot->testify_since = now;
    }
    slot->testify_until = now + span(liveness, TESTIFY_FOR);
    if (slot->heard && now - slot->heard_at < liveness->interval) {
        return XM_OPINION_HEARS;
    }
    return now - slot->heard_at >= span(liveness, TESTIFY_SILENT) &&
                   now - slot->testify_since >= span(liveness, TESTIFY_SILENT)
               ? XM_OPINION_SILENT
               : XM_OPINION_NONE;
}

/* A sign of life ends every doubt, but not what has been asked or refused since. */
void xm_liveness_heard(xm_liveness_t *liveness, int rank, int64_t at)
{
    slot_t *slot = &liveness->slots[rank];

    if (at < slot->heard_at) {
        return;
    }
    slot->heard_at = at;
    slot->came_at = slot->came_at > at ? slot->came_at : at;
    if (slot->unanswered_since <= at) {
        slot->gaps +=
            slot->unanswered_since != NEVER && at - slot->unanswered_since >= span(liveness, GAP);
        slot->unanswered_since = NEVER;
    }
    slot->refused_at = slot->refused_at <= at ? NEVER : slot->refused_at;
    slot->heard = true;
    slot->given_up = false;
    if (slot->witnessed_at != NEVER) {
        dismiss_witnesses(slot);
    }
}

static void take_testimony(slot_t *about, int witness, xm_opinion_t opinion)
{
    for (int i = 0; i < WITNESSES; ++i) {
        if (about->witnesses[i].rank == witness) {
            about->witnesses[i].told = true;
            about->witnesses[i].opinion = opinion;
        }
    }
}

/* Accepts an answer to an open question only: one that was answered before, or was never asked,
 * proves nothing. */
bool xm_liveness_answered(xm_liveness_t *liveness, int rank, uint64_t question, int about,
                          xm_opinion_t opinion, int64_t now)
{
    slot_t *slot = &liveness->slots[rank];

    if (question <= slot->answered || question > slot->asked) {
        return false;
    }
    slot->answered = question;
    slot->answers = true;
    xm_liveness_heard(liveness, rank, now);
    if (about >= 0) {
        take_testimony(&liveness->slots[about], rank, opinion);
    }
    return true;
}

void xm_liveness_asked(xm_liveness_t *liveness, int rank, bool hears, int64_t now)
{
    liveness->slots[rank].came_at = now;
    if (hears) {
        xm_liveness_heard(liveness, rank, now);
    }
}

void xm_liveness_refused(xm_liveness_t *liveness, int rank, bool sure, int64_t now)
{
    slot_t *slot = &liveness->slots[rank];

    look_after(liveness, rank);
    if (sure) {
        slot->refused_at = now - span(liveness, CONFIRM);
    } else if (slot->refused_at == NEVER) {
        slot->refused_at = now;
    }
}

static bool was_lately(const xm_liveness_t *liveness, int64_t at, int64_t now)
{
    return at != NEVER && now - at < span(liveness, LATELY);
}

bool xm_liveness_hears(const xm_liveness_t *liveness, int rank, int64_t now)
{
    return was_lately(liveness, liveness->slots[rank].came_at, now);
}

/* How much later it is than the next tick was meant to be. Half an interval is normal scheduling,
 * and would be lost in the limit of 3.5. */
static int64_t lateness(const xm_liveness_t *liveness, int64_t now)
{
    bool late =
        liveness->expected != INT64_MAX && now - liveness->interval / 2 > liveness->expected;

    return late ? now - liveness->expected : 0;
}

int64_t xm_liveness_silence(const xm_liveness_t *liveness, int rank, int64_t now)
{
    int64_t heard_at = liveness->slots[rank].heard_at;

    return heard_at == NEVER ? 0 : now - heard_at - lateness(liveness, now);
}

bool xm_liveness_is_heard(const xm_liveness_t *liveness, int rank)
{
    return liveness->slots[rank].heard;
}

bool xm_liveness_answers(const xm_liveness_t *liveness, int rank)
{
    return liveness->slots[rank].answers;
}

/* The rank came late: what it did not hear meanwhile may be waiting for it, so the time does not
 * count against anybody. */
static void forgive(xm_liveness_t *liveness, int64_t late)
{
    for (int rank = 0; rank < liveness->ranks; ++rank) {
        slot_t *slot = &liveness->slots[rank];

        slot->heard_at += slot->heard_at == NEVER ? 0 : late;
        slot->came_at += slot->came_at == NEVER ? 0 : late;
        slot->testify_since += late;
        slot->refused_at = NEVER;
    }
}

/* Whether a rank can tell something about another one that this rank cannot see by itself: it is
 * on a third host, and not known to be silent. */
static bool can_witness(const xm_liveness_t *liveness, int rank, int about)
{
    const slot_t *slot = &liveness->slots[rank];
    int own_host = liveness->slots[liveness->own].host;

    return slot->host >= 0 && slot->host != own_host && slot->host != liveness->slots[about].host &&
           !slot->given_up;
}

static bool is_witness(const slot_t *about, int rank)
{
    for (int i = 0; i < WITNESSES; ++i) {
        if (about->witnesses[i].rank == rank) {
            return true;
        }
    }
    return false;
}

/* The next rank that can be a witness, in an order that differs from rank to rank, so that the
 * ranks of a large group do not all ask the same ones; -1: there is none. */
static int find_witness(const xm_liveness_t *liveness, int about)
{
    slot_t *slot = &liveness->slots[about];

    for (int tried = 0; tried < liveness->ranks; ++tried) {
        int rank = (liveness->own + 1 + slot->next_witness) % liveness->ranks;

        slot->next_witness = (slot->next_witness + 1) % liveness->ranks;
        if (can_witness(liveness, rank, about) && !is_witness(slot, rank)) {
            return rank;
        }
    }
    return -1;
}

/* Asks the witnesses; one that does not answer makes room for another. */
static void ask_witnesses(const xm_liveness_t *liveness, int about, int64_t now,
                          const xm_liveness_actions_t *actions)
{
    slot_t *slot = &liveness->slots[about];

    slot->witnessed_at = now;
    for (int i = 0; i < WITNESSES; ++i) {
        witness_t *witness = &slot->witnesses[i];

        if (witness->rank < 0 || (witness->asked >= QUESTIONS_EACH && !witness->told)) {
            int other = find_witness(liveness, about);

            *witness = other >= 0 || witness->rank < 0 ? (witness_t){.rank = other} : *witness;
        }
        if (witness->rank >= 0) {
            ++witness->asked;
            actions->ask(actions->arg, witness->rank, ++liveness->slots[witness->rank].asked, about,
                         true);
        }
    }
}

/* True when somebody of another host, but not of the doubted rank's, was heard lately. */
static bool hears_others(const xm_liveness_t *liveness, int about, int64_t now)
{
    for (int rank = 0; rank < liveness->ranks; ++rank) {
        if (can_witness(liveness, rank, about) &&
            was_lately(liveness,
                       liveness->slots[rank].heard ? liveness->slots[rank].heard_at : NEVER, now)) {
            return true;
        }
    }
    return false;
}

static bool has_third_host(const xm_liveness_t *liveness, int about)
{
    for (int rank = 0; rank < liveness->ranks; ++rank) {
        const slot_t *slot = &liveness->slots[rank];

        if (slot->host >= 0 && slot->host != liveness->slots[liveness->own].host &&
            slot->host != liveness->slots[about].host) {
            return true;
        }
    }
    return false;
}

/* Weighs what the witnesses say: one that hears the rank is enough to know that it lives. False:
 * it is too early to tell. */
static bool judge(const xm_liveness_t *liveness, int rank, int64_t now, xm_finding_t *finding,
                  int *agrees)
{
    const slot_t *slot = &liveness->slots[rank];
    bool told = false;

    *agrees = -1;
    *finding = XM_FINDING_SILENT;
    if (!has_third_host(liveness, rank)) {
        return true;
    }
    for (int i = 0; i < WITNESSES; ++i) {
        const witness_t *witness = &slot->witnesses[i];

        if (witness->rank < 0 || !witness->told) {
            continue;
        }
        told = true;
        if (witness->opinion == XM_OPINION_HEARS) {
            *finding = XM_FINDING_CUT;
            *agrees = witness->rank;
            return true;
        }
        *agrees = witness->opinion == XM_OPINION_SILENT ? witness->rank : *agrees;
    }
    if (*agrees >= 0) {
        return true;
    }
    *finding = XM_FINDING_ALONE;
    return !told && now - slot->heard_at >= span(liveness, LONELY) &&
           !hears_others(liveness, rank, now);
}

static void pronounce(xm_liveness_t *liveness, int rank, xm_finding_t finding, int64_t now,
                      int witness, const xm_liveness_actions_t *actions)
{
    slot_t *slot = &liveness->slots[rank];

    slot->given_up = true;
    slot->suspected_until = NEVER;
    actions->finding(actions->arg, rank, finding, now - slot->heard_at, witness);
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Asks when it is time; a question that stays unanswered is repeated, and then a connection is
 * tried as well. Returns when the next question is due. */
static int64_t question(const xm_liveness_t *liveness, int rank, int64_t now,
                        const xm_liveness_actions_t *actions)
{
    slot_t *slot = &liveness->slots[rank];
    bool suspected = now < slot->suspected_until;
    bool waiting = slot->unanswered_since != NEVER, first = !slot->heard;
    bool often = waiting || slot->heeded || !slot->watched;
    int64_t pause = suspected ? span(liveness, PRESSING)
                    : often   ? liveness->interval / XM_LIVENESS_REPEATS
                              : liveness->interval;
    int64_t due = slot->asked_at == NEVER ? now : slot->asked_at + pause;

    if (now < due) {
        return due;
    }
    slot->asked_at = now;
    slot->unanswered_since = waiting ? slot->unanswered_since : now;
    actions->ask(actions->arg, rank, ++slot->asked, -1, first || waiting || suspected);
    if (suspected || (slot->unanswered_since != NEVER &&
                      now - slot->unanswered_since >= span(liveness, CALL_AFTER))) {
        actions->call(actions->arg, rank);
    }
    return now + (suspected ? span(liveness, PRESSING) : liveness->interval / XM_LIVENESS_REPEATS);
}

/* Looks at the silence of a watched rank. Returns when to look again. */
static int64_t weigh_silence(xm_liveness_t *liveness, int rank, int64_t now,
                             const xm_liveness_actions_t *actions)
{
    slot_t *slot = &liveness->slots[rank];
    int64_t doubt_at = slot->heard_at + span(liveness, XM_LIVENESS_DOUBT);
    int64_t silent_at = slot->heard_at + span(liveness, XM_LIVENESS_SILENT);
    int64_t pause = liveness->interval / XM_LIVENESS_REPEATS;
    xm_finding_t finding;
    int witness;

    if (now < doubt_at) {
        return doubt_at;
    }
    if (slot->witnessed_at == NEVER || now >= slot->witnessed_at + pause) {
        ask_witnesses(liveness, rank, now, actions);
    }
    if (now >= silent_at && judge(liveness, rank, now, &finding, &witness)) {
        pronounce(liveness, rank, finding, now, witness, actions);
        return INT64_MAX;
    }
    return now < silent_at ? earlier(silent_at, slot->witnessed_at + pause)
                           : slot->witnessed_at + pause;
}

/* Whether silence of the rank means anything. A firewall between hosts lets local questions pass,
 * so only ranks of the own host, or only others, compare. */
static bool can_answer(const xm_liveness_t *liveness, int rank)
{
    const slot_t *slot = &liveness->slots[rank];
    int own_host = liveness->slots[liveness->own].host;
    bool can = slot->answers;

    for (int other = 0; other < liveness->ranks && slot->expected && !can; ++other) {
        can = liveness->slots[other].answers &&
              (liveness->slots[other].host == own_host) == (slot->host == own_host);
    }
    return can;
}

/* What is due for one rank. A given up one is asked no more, except for others. */
static int64_t tend(xm_liveness_t *liveness, int rank, int64_t now,
                    const xm_liveness_actions_t *actions)
{
    slot_t *slot = &liveness->slots[rank];
    int64_t next = INT64_MAX;

    if (slot->refused_at != NEVER && !slot->given_up) {
        next = slot->refused_at + span(liveness, CONFIRM);
        if (now >= next) {
            pronounce(liveness, rank, XM_FINDING_CLOSED, now, -1, actions);
            next = INT64_MAX;
        }
    }
    if (!is_active(slot, now) || (slot->given_up && now >= slot->testify_until)) {
        return next;
    }
    next = earlier(next, question(liveness, rank, now, actions));
    if (slot->watched && liveness->judging && !slot->given_up && can_answer(liveness, rank)) {
        next = earlier(next, weigh_silence(liveness, rank, now, actions));
    }
    return next;
}

/* Does what is due for all, and returns when to call again, so the caller can sleep until then. */
int64_t xm_liveness_tick(xm_liveness_t *liveness, int64_t now, const xm_liveness_actions_t *actions)
{
    int64_t next = INT64_MAX, late = lateness(liveness, now);

    if (late > 0) {
        forgive(liveness, late);
    }
    for (int rank = 0; rank < liveness->end; ++rank) {
        if (rank != liveness->own) {
            next = earlier(next, tend(liveness, rank, now, actions));
        }
    }
    liveness->expected = next;
    return next;
}
