/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stage_barrier.h
 * The ranks of a stage wait for each other when a message has come for it, as the collectives of
 * the pass that follows would make them. Each tells the first of them that its part is there, and
 * that one tells all when every part is: messages of one byte, which pass while ranks compute. It
 * tells the listeners, too: the ranks that the message comes from, whose next one may then leave.
 *
 * Messages are numbered by the caller and live in slots, so that several can be under way.
 *
 * @code
 *     rb_stage_barrier_expect(stage_barrier, slot, n);      // on all ranks, any time before …
 *     rb_stage_barrier_arrive(stage_barrier, slot);         // … the own part of message n is there
 *     while ((status = rb_stage_barrier_state(stage_barrier, slot)) == XM_IN_PROGRESS) {
 *         xm_worker_wait(worker, deadline);
 *     }
 * @endcode
 *
 * Threads: that of the transport.
 */
#pragma once

#include <stdbool.h>

#include "comm/transport.h"

typedef struct rb_stage_barrier rb_stage_barrier_t;

/** Tags of a stage barrier: @p channel is one that no executor has (execute.h), @p number tells
 * stage barriers on it apart, 0 … 65535. */
typedef struct rb_stage_barrier_params {
    xm_transport_t *transport;
    const int *ranks;
    int count;
    const int *listeners; /**< none of `ranks`; NULL: none */
    int listener_count;
    int slots;
    int channel, number;
} rb_stage_barrier_params_t;

/** For one of the ranks or listeners, which the transport's is. */
xm_status_t rb_stage_barrier_create(const rb_stage_barrier_params_t *params,
                                    rb_stage_barrier_t **stage_barrier);

/** Message @p message will come in this slot, which has to be idle. */
xm_status_t rb_stage_barrier_expect(rb_stage_barrier_t *stage_barrier, int slot, int message);

/** This rank's part is there. Listeners have none. */
xm_status_t rb_stage_barrier_arrive(rb_stage_barrier_t *stage_barrier, int slot);

/** XM_OK when every rank's part is there, XM_IN_PROGRESS before, or what failed. */
xm_status_t rb_stage_barrier_state(rb_stage_barrier_t *stage_barrier, int slot);

/** True when nothing of the slot is in flight. */
bool rb_stage_barrier_is_idle(const rb_stage_barrier_t *stage_barrier, int slot);

/** Ends what is in flight. NULL is accepted. */
void rb_stage_barrier_destroy(rb_stage_barrier_t *stage_barrier);
