/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file liveness.h
 * The rules by which a rank finds out who is alive. No sockets and no clock of its own (the caller
 * tells the time), so that it runs in tests on a virtual clock as well. Internal.
 *
 * - A watched rank is asked every *interval*. As long as no sign of life comes, the question is
 *   repeated eight times an interval, by every path; so a few lost packets are no silence.
 * - Every sign that shows that messages pass *to and fro* counts: an answer, a question whose
 * sender says that it hears this rank, bytes of the transport or of the bootstrap.
 * - After ::XM_LIVENESS_DOUBT intervals without a sign the rank is doubted: up to four *witnesses*
 *   on hosts other than its own and this one are asked what they hear of it. After
 *   ::XM_LIVENESS_SILENT intervals there is a finding:
 *     - SILENT, when a witness does not hear the rank either: it hangs, or its host is gone;
 *     - CUT, when a witness hears it: it lives, but not for this rank;
 *     - ALONE, when no witness has answered, nor anybody of another host: this rank's own link is
 *       down, and nobody is blamed.
 *   Where the group has no third host there is nobody to ask, and it is SILENT.
 * - CLOSED is the finding when a connection to the rank is refused by its host and no sign of life
 *   comes afterwards: its process has ended. That needs no witness, and hardly any time.
 * - A rank that was itself held up (stopped by a signal, a paused virtual machine, a starved
 *   thread) cannot tell silence from its own deafness: whenever it comes later than it meant to,
 *   that time does not count against the others.
 *
 * How probable a false finding is: with a share p of packets lost each way, all questions between
 * the last sign and the finding (at least 8 (XM_LIVENESS_SILENT - 1) = 20) have to be lost, which
 * has a probability of (1 - (1 - p)^2)^20 for each question of the usual pace: 1e-34 with 1 % lost,
 * 6e-21 with 5 %, 1e-9 with 20 %. Then the witnesses have to be mistaken as well.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "comm/base.h"
#include "comm/fault/frame.h"

/** Intervals without a sign of life until witnesses are asked, and until the finding. */
#define XM_LIVENESS_DOUBT  2.5
#define XM_LIVENESS_SILENT 3.5
/** Questions an interval while no sign of life comes. */
enum { XM_LIVENESS_REPEATS = 8 };

typedef enum xm_finding {
    XM_FINDING_CLOSED,
    XM_FINDING_SILENT,
    XM_FINDING_CUT,
    XM_FINDING_ALONE
} xm_finding_t;

typedef struct xm_liveness xm_liveness_t;

/** What xm_liveness_tick() asks its caller to do. */
typedef struct xm_liveness_actions {
    /** Asks a rank; @p about: and what it hears of that one, −1: of nobody. @p urgent: by every
     * path. */
    void (*ask)(void *arg, int rank, uint64_t question, int about, bool urgent);
    /** Opens a connection to the rank, if there is none; see xm_liveness_refused(). */
    void (*call)(void *arg, int rank);
    /** Is told once for each watch. @p witness: a rank that agrees, or −1. */
    void (*finding)(void *arg, int rank, xm_finding_t finding, int64_t silent_ns, int witness);
    void *arg;
} xm_liveness_actions_t;

/** @p judging false: nobody's silence counts, only CLOSED is found. */
xm_status_t xm_liveness_create(int ranks, int own, int64_t interval_ns, bool judging,
                               xm_liveness_t **liveness);
void xm_liveness_destroy(xm_liveness_t *liveness);

/** The host of a rank, by whatever number; −1 (at first): it is no member, so no witness. */
void xm_liveness_set_host(xm_liveness_t *liveness, int rank, int host);

/** Begins or ends watching a rank; no change when it is so already. Begins: it is asked at the next
 *  tick, and has never been silent, unless a finding was found and no sign has come since. */
void xm_liveness_watch(xm_liveness_t *liveness, int rank, bool watch, int64_t now);
bool xm_liveness_watches(const xm_liveness_t *liveness, int rank);
/** Of a rank that has never answered silence means nothing: questions may not get through to it at
 * all. From now on it counts, if others that are as far away have answered. */
void xm_liveness_expect(xm_liveness_t *liveness, int rank);

/** For half an interval from now the rank is asked and called all the time: it may have ended. */
void xm_liveness_suspect(xm_liveness_t *liveness, int rank, int64_t now);

/** A witness is wanted by another rank: looks after @p rank for a while, and tells what it knows.
 */
xm_opinion_t xm_liveness_testify(xm_liveness_t *liveness, int rank, int64_t now);

/** An answer has come. False when it answers nothing (an old one, or made up). @p about, @p
 * opinion: the testimony in it. */
bool xm_liveness_answered(xm_liveness_t *liveness, int rank, uint64_t question, int about,
                          xm_opinion_t opinion, int64_t now);
/** A question has come. @p hears: the sender says that it hears this rank. */
void xm_liveness_asked(xm_liveness_t *liveness, int rank, bool hears, int64_t now);
/** Bytes have passed to and fro, on whatever way. @p at: when they came, maybe some time ago; older
 * than the last sign, they are none. */
void xm_liveness_heard(xm_liveness_t *liveness, int rank, int64_t at);
/** A connection was refused where the rank has been reached before. @p sure: there is no need to
 * wait for a sign of life that would prove it wrong. */
void xm_liveness_refused(xm_liveness_t *liveness, int rank, bool sure, int64_t now);

/** @p often: a watched rank is asked at the pace of repeated questions although it answers, so that
 * no silence escapes. Returns how many of a quarter of an interval or more have ended so far. */
unsigned xm_liveness_heed(xm_liveness_t *liveness, int rank, bool often);

/** Whether anything of the rank has come lately: what questions tell it. */
bool xm_liveness_hears(const xm_liveness_t *liveness, int rank, int64_t now);
/** Nanoseconds since the last sign, or since watching began, without those for which this rank
 * itself was held up. */
int64_t xm_liveness_silence(const xm_liveness_t *liveness, int rank, int64_t now);
/** Whether there was a sign since watching began. */
bool xm_liveness_is_heard(const xm_liveness_t *liveness, int rank);
/** Whether it has ever answered a question. Where questions do not get through at all, silence
 * means nothing. */
bool xm_liveness_answers(const xm_liveness_t *liveness, int rank);

/** Does what is due and returns when the next thing will be; INT64_MAX: nothing is watched. */
int64_t xm_liveness_tick(xm_liveness_t *liveness, int64_t now,
                         const xm_liveness_actions_t *actions);
