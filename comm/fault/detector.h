/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file detector.h
 * The one place where a process finds out who is alive: a thread that answers for it and asks after
 * others, so that a rank that computes is not taken for a dead one, and one that hangs (SIGSTOP, a
 * lost host, a lost link) not for a living one. Internal; docs/failures.md says what users see.
 *
 * The lowest rank of the group asks everybody, everybody asks the lowest rank, and a rank that
 * waits for another one asks that one as well (a link may be down between two hosts only). When
 * silence becomes a finding, and by whom, is in liveness.h; how the frames travel, in courier.h. A
 * finding is sent to all members by the thread itself, several times, because datagrams get lost;
 * so they learn of it even while the application computes everywhere. The first finding stays.
 * Findings carry the group's generation; those of another one are ignored. They end what the group
 * does, and no more: who is left out of the next group is decided by its centre (regroup.h).
 *
 * The detector guards the bootstrap (bootstrap.h): a connection of it that ends is no death, but a
 * reason to look whether the process has ended; if it lives, the rank makes another connection to
 * the lowest one, at whichever of its addresses it can be reached.
 *
 * The thread also passes on who wants a *probe*: a message through the transport, see path_probe.h.
 *
 * Ranks here are those of the job as it began. Threads: all functions may be called from one thread
 * beside the detector's own. The thread has all signals blocked.
 */
#pragma once

#include "comm/fault/endpoint.h"
#include "comm/fault/frame.h"
#include "comm/transport.h"

typedef struct xm_detector xm_detector_t;

/** Starts the thread. It asks nobody before xm_detector_begin(). @p interval 0: nobody is asked as
 * long as there is no doubt, only processes that end are found. @p counters: what the transport
 * counts, by rank of the job, or NULL; they and @p endpoints must outlive the object. */
xm_status_t xm_detector_create(const xm_endpoints_t *endpoints, double interval,
                               const xm_counters_t *counters, xm_detector_t **detector);
/** Tells the others that this rank leaves in order. NULL is accepted. */
void xm_detector_destroy(xm_detector_t *detector);

/**
 * A group begins. @p rank_of has for every rank of the job its rank in the group, -1 when it is no
 * member. Forgets findings and probes of the group before.
 */
void xm_detector_begin(xm_detector_t *detector, uint32_t generation, const int *rank_of);

/**
 * Waits, for a moment at most, until all that are watched have answered once: from then on silence
 * means something; or until one of them has ended. Of whom no answer comes, questions may be
 * blocked, or it is held up at the start; it is not blamed later for silence (after a while there
 * is one warning). Then all ranks meet in the bootstrap, which finds who has hung meanwhile.
 */
xm_status_t xm_detector_await(xm_detector_t *detector, xm_bootstrap_t *bootstrap, double timeout);

/** What the bootstrap of the group that has begun asks and tells. */
xm_bootstrap_guard_t xm_detector_guard(xm_detector_t *detector);

/** Asks after a rank, or no longer. The lowest rank of the group and its members stay watched. */
void xm_detector_watch(xm_detector_t *detector, int rank, bool watch);
/** The rank may have ended: looks at once, and watches it from now on. */
void xm_detector_suspect(xm_detector_t *detector, int rank);
/** Whether a sign of life of the rank is not older than @p age nanoseconds. */
bool xm_detector_hears(xm_detector_t *detector, int rank, int64_t age);

/** Readable when there is news of a probe, or of a regrouping. */
int xm_detector_fd(const xm_detector_t *detector);
/** True once after there was news. Cheap. */
bool xm_detector_take_news(xm_detector_t *detector);

/** The caller's thread looks after its transport. Answers tell the others how often that was so. */
void xm_detector_active(xm_detector_t *detector);
/** How many answers of a rank have shown that its thread had looked after its transport since the
 * answer before. */
unsigned xm_detector_signs(xm_detector_t *detector, int rank);
/** Asks after a watched rank often, until xm_detector_watch() ends that; for what comes back see
 * xm_liveness_heed(). */
unsigned xm_detector_heed(xm_detector_t *detector, int rank);

/** Asks @p rank to get ready for probe number @p probe (not 0). */
void xm_detector_want_probe(xm_detector_t *detector, int rank, uint32_t probe);
/** Whether it says that it is. */
bool xm_detector_is_ready(xm_detector_t *detector, int rank, uint32_t probe);
/** The next rank that wants a probe from here, and which; false: none. */
bool xm_detector_wanted(xm_detector_t *detector, int *rank, uint32_t *probe);
/** Says that this rank is ready for a probe of @p rank. */
void xm_detector_set_ready(xm_detector_t *detector, int rank, uint32_t probe);

/** The group is no more, and the next one is to be found (regroup.h): all ranks are watched that
 * are not @p out, findings are noted only. */
void xm_detector_convene(xm_detector_t *detector, const bool *out);
/** What this rank knows of a rank by now. */
xm_standing_t xm_detector_standing(xm_detector_t *detector, int rank);
/** Sends a HELLO, WELCOME or REFUSAL, by every path. */
void xm_detector_say(xm_detector_t *detector, int rank, xm_frame_t *frame);
/** The last of these that a rank has sent since the regrouping began, when it is not older than
 * @p age; its table goes to @p standing. False: there is none. */
bool xm_detector_heard(xm_detector_t *detector, int rank, int64_t age, xm_frame_t *frame,
                       uint8_t *standing);
/** Nanoseconds between questions. */
int64_t xm_detector_interval(const xm_detector_t *detector);
