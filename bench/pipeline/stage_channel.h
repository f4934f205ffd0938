/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stage_channel.h
 * One direction between two stages, as one of their ranks sees it: the micro-batches' tensors
 * (activations, or gradients) pass one after the other, each by a resharding of its own, while the
 * rank computes.
 *
 * The sending ranks offer a message when the pass that made it has ended; it leaves when the one
 * before it has arrived, for what a rank has handed over may be on its way for long. The receiving
 * ranks are ready for the next messages at any time, as long as no more than RB_STAGE_CHANNEL_SLOTS
 * wait to be taken: each slot has an executor and buffers. A message is there for a rank when it is
 * there for all ranks of its stage (stage_barrier.h). Both sides number messages from 0 in each
 * run.
 *
 * In checked runs every message's bytes depend on their place in the tensor, on the message, the
 * stage channel and the run, are written just before it leaves, and compared when it is taken.
 *
 * @code
 *     rb_stage_channel_begin(channel, checked, run);  // on all ranks, which then meet
 *     rb_stage_channel_offer(channel);                // a sender, once a message
 *     while (rb_stage_channel_advance(channel), !rb_stage_channel_has_arrived(channel, &when)) {
 *         xm_worker_wait(worker, deadline);           // a receiver
 *     }
 *     rb_stage_channel_take(channel);
 * @endcode
 *
 * Threads: that of the worker.
 */
#pragma once

#include "bench/pipeline/pipeline.h"
#include "comm/worker.h"

/** Messages of a stage channel that may be at the receiver, or on the way, and not taken. */
enum { RB_STAGE_CHANNEL_SLOTS = 4 };

/** Ways that one job can have stage channels for: their executors share 255 channels, of which
 * stage barriers have one. */
enum { RB_STAGE_CHANNEL_WAYS = 254 / RB_STAGE_CHANNEL_SLOTS };

typedef struct rb_stage_channel rb_stage_channel_t;

/** Of way @p index of the pipeline, which this rank is at one end of. */
xm_status_t rb_stage_channel_create(xm_worker_t *worker, const rb_pipeline_t *pipeline, int index,
                                    rb_stage_channel_t **stage_channel);

/** Starts run @p run. Nothing of the one before may be left. */
void rb_stage_channel_begin(rb_stage_channel_t *stage_channel, bool checked, int run);

/** A sender: the next message may leave. */
void rb_stage_channel_offer(rb_stage_channel_t *stage_channel);

/** Does what can be done now; XM_OK unless something has failed. */
xm_status_t rb_stage_channel_advance(rb_stage_channel_t *stage_channel);

/** False while there is something to do that no event will announce. */
bool rb_stage_channel_may_sleep(const rb_stage_channel_t *stage_channel);

/** A receiver: whether the next message is there, and since when (the transport's clock). */
bool rb_stage_channel_has_arrived(const rb_stage_channel_t *stage_channel, int64_t *when);

/** A receiver has got what it wanted of that message. */
void rb_stage_channel_take(rb_stage_channel_t *stage_channel);

/** True when every message of the run has passed. */
bool rb_stage_channel_is_done(const rb_stage_channel_t *stage_channel);

/** From when this rank began with message @p message of the last run until it was there. */
ap_pipeline_span_t rb_stage_channel_span(const rb_stage_channel_t *stage_channel, int message);

/** Wrong bytes of the last run. */
uint64_t rb_stage_channel_wrong(const rb_stage_channel_t *stage_channel);

/** Ends what is in flight. NULL is accepted. */
void rb_stage_channel_destroy(rb_stage_channel_t *stage_channel);
