/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file heartbeat.h
 * A thread per process that answers for it and asks after others, so that a rank that computes is
 * not taken for a dead one, and one that hangs (SIGSTOP, a lost host, a lost link) not for a living
 * one. Internal; worker.h says what users see of it.
 *
 * The lowest rank of the group asks everybody, everybody asks the lowest rank, and a rank that
 * waits for another one asks that one as well (a link may be down between two hosts only).
 * Questions and answers are datagrams (heartbeat_wire.h), one each per pair and interval;
 * liveness.h says when silence becomes a fault status. A fault status is sent to all members by the
 * thread itself, several times, because datagrams get lost; so they learn of it even while the
 * application computes everywhere. The first fault status stays. Fault statuses carry the group's
 * generation; those of another one are ignored.
 *
 * The thread also passes on who wants a *probe*: a message through the transport, see path_probe.h.
 *
 * Ranks here are those of the job as it began. Threads: all functions may be called from one thread
 * beside the heartbeat's own. The thread has all signals blocked.
 */
#pragma once

#include "comm/fault/endpoint.h"

typedef struct xm_heartbeat xm_heartbeat_t;

/** Starts the thread. It asks nobody before xm_heartbeat_begin(). @p endpoints must outlive it. */
xm_status_t xm_heartbeat_create(const xm_endpoints_t *endpoints, double interval,
                                xm_heartbeat_t **heartbeat);
void xm_heartbeat_destroy(xm_heartbeat_t *heartbeat);

/**
 * A group begins. @p rank_of has for every rank of the job its rank in the group, -1 when it is no
 * member. Forgets fault statuses, silences and probes of the group before.
 */
void xm_heartbeat_begin(xm_heartbeat_t *heartbeat, uint32_t generation, const int *rank_of);

/**
 * Waits, for a moment at most, until all that are watched have been heard once: from then on
 * silence means something. Of whom nothing comes, datagrams may be blocked, or he is held up at the
 * start; he is not blamed later (after a while there is one warning).
 */
void xm_heartbeat_await(xm_heartbeat_t *heartbeat);

/** The group is no more: from now on silence is only noted, and nobody is watched who is not named
 *  to xm_heartbeat_watch(). */
void xm_heartbeat_mute(xm_heartbeat_t *heartbeat);

/** Asks after a rank, or no longer. The lowest rank of the group and its members stay watched. */
void xm_heartbeat_watch(xm_heartbeat_t *heartbeat, int rank, bool watch);

/** True when a watched rank has been silent for too long. */
bool xm_heartbeat_is_silent(xm_heartbeat_t *heartbeat, int rank);

/** True when it was heard before, and has not become silent since it is watched. */
bool xm_heartbeat_is_heard(xm_heartbeat_t *heartbeat, int rank);

/** Readable when there is news: a fault status, a silence, a wanted probe. */
int xm_heartbeat_fd(const xm_heartbeat_t *heartbeat);

/** True once after there was news. Cheap. */
bool xm_heartbeat_take_news(xm_heartbeat_t *heartbeat);

/** The group's fault status, if there is one. */
bool xm_heartbeat_fault_status(xm_heartbeat_t *heartbeat, xm_bootstrap_fault_t *fault);

/** Makes a fault the fault status, unless there is one, and tells all members. */
void xm_heartbeat_tell(xm_heartbeat_t *heartbeat, const xm_bootstrap_fault_t *fault);

/** The caller's thread looks after its transport. Answers tell the others how often that was so. */
void xm_heartbeat_active(xm_heartbeat_t *heartbeat);
/** How many answers of a rank, one per interval while it is watched, have shown that its thread had
 *  looked after its transport since the answer before. */
unsigned xm_heartbeat_signs(xm_heartbeat_t *heartbeat, int rank);

/** Asks @p rank to get ready for probe number @p probe (not 0). */
void xm_heartbeat_want_probe(xm_heartbeat_t *heartbeat, int rank, uint32_t probe);
/** Whether it says that it is. */
bool xm_heartbeat_is_ready(xm_heartbeat_t *heartbeat, int rank, uint32_t probe);
/** The next rank that wants a probe from here, and which; false: none. */
bool xm_heartbeat_wanted(xm_heartbeat_t *heartbeat, int *rank, uint32_t *probe);
/** Says that this rank is ready for a probe of @p rank. */
void xm_heartbeat_set_ready(xm_heartbeat_t *heartbeat, int rank, uint32_t probe);
