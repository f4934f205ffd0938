/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file resharding/execute/turns.h
 * The gate of turns (execute.h): hops between hosts begin in the plan's order, each when those
 * before it have left the NIC all but idle. Not installed.
 *
 * An executor with params.turns has one; others have none, and ask nobody. The core asks it whether
 * a hop may begin, and tells it which chunks of a hop have ended here. What follows from that at
 * other ranks of this rail the gate tells theirs, by signals, and what follows here it tells the
 * core by looking at the hop's lane again.
 */
#pragma once

#include "resharding/execute/execute_private.h"

/* Who waits for whom, from the plan alone: all ranks come to the same. @p ahead as in the params.
 */
xm_status_t xm_turns_create(xm_executor_t *executor, uint64_t ahead, turns_t **turns);

/* A run begins: nothing has moved yet. Where turns are not kept in it, each hop may begin. */
void xm_turns_start(turns_t *turns, bool kept);

/* Whether the hop may begin. Only from the first time on that this is asked are the turns that it
 * waits for expected from other ranks: it is the next of its lane then, so few are at a time. */
bool xm_turns_may_begin(turns_t *turns, const hop_t *hop);

/* True while the hop waits for a turn. */
bool xm_turns_waits(const turns_t *turns, const hop_t *hop);

/* The chunk of the hop has ended here, as have all before it. */
void xm_turns_moved(turns_t *turns, const hop_t *hop, int64_t chunk);

/* A turn that is being passed between this rank and a peer. */
typedef struct {
    const hop_t *hop; /* of this rank, that awaits it; NULL: this rank passes it on */
    int peer;
} xm_turn_t;

/* The next one from @p next on (0 at first), which it moves behind it; false: there is none. */
bool xm_turns_next(const turns_t *turns, int64_t *next, xm_turn_t *turn);

/* @p turns may be NULL. */
void xm_turns_destroy(turns_t *turns);
