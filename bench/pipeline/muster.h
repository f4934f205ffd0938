/**
 * @file muster.h
 * The ranks of a stage wait for each other when a message has come for it, as the collectives of
 * the pass that follows would make them. Each tells the first of them that its part is there, and
 * that one tells all when every part is: messages of one byte, which pass while ranks compute. It
 * tells the listeners, too: the ranks that the message comes from, whose next one may then leave.
 *
 * Messages are numbered by the caller and live in slots, so that several can be under way.
 *
 * @code
 *     rb_muster_expect(muster, slot, n);      // on all ranks, any time before …
 *     rb_muster_arrive(muster, slot);         // … the own part of message n is there
 *     while ((status = rb_muster_state(muster, slot)) == XM_IN_PROGRESS) {
 *         xm_worker_wait(worker, deadline);
 *     }
 * @endcode
 *
 * Threads: that of the transport.
 */
#ifndef RB_PIPELINE_MUSTER_H
#define RB_PIPELINE_MUSTER_H

#include <stdbool.h>

#include "comm/transport.h"

typedef struct rb_muster rb_muster_t;

/** Tags of a muster: @p channel is one that no executor has (execute.h), @p number tells musters on
 * it apart, 0 … 65535. */
typedef struct rb_muster_params {
    xm_transport_t *transport;
    const int *ranks;
    int count;
    const int *listeners; /**< none of `ranks`; NULL: none */
    int listener_count;
    int slots;
    int channel, number;
} rb_muster_params_t;

/** For one of the ranks or listeners, which the transport's is. */
xm_status_t rb_muster_create(const rb_muster_params_t *params, rb_muster_t **muster);

/** Message @p message will come in this slot, which has to be idle. */
xm_status_t rb_muster_expect(rb_muster_t *muster, int slot, int message);

/** This rank's part is there. Listeners have none. */
xm_status_t rb_muster_arrive(rb_muster_t *muster, int slot);

/** XM_OK when every rank's part is there, XM_IN_PROGRESS before, or what failed. */
xm_status_t rb_muster_state(rb_muster_t *muster, int slot);

/** True when nothing of the slot is in flight. */
bool rb_muster_is_idle(const rb_muster_t *muster, int slot);

/** Ends what is in flight. NULL is accepted. */
void rb_muster_destroy(rb_muster_t *muster);

#endif
