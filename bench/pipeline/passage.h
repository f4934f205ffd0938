/**
 * @file passage.h
 * One direction between two stages, as one of their ranks sees it: the micro-batches' tensors
 * (activations, or gradients) pass one after the other, each by a resharding of its own, while the
 * rank computes.
 *
 * The sending ranks offer a message when the pass that made it has ended; it leaves when the one
 * before it has arrived, for what a rank has handed over may be on its way for long. The receiving
 * ranks are ready for the next messages at any time, as long as no more than RB_PASSAGE_SLOTS wait
 * to be taken: each slot has an executor and buffers. A message is there for a rank when it is
 * there for all ranks of its stage (muster.h). Both sides number messages from 0 in each run.
 *
 * In checked runs every message's bytes depend on their place in the tensor, on the message, the
 * passage and the run, are written just before it leaves, and compared when it is taken.
 *
 * @code
 *     rb_passage_begin(passage, messages, checked, run);   // on all ranks, which then meet
 *     rb_passage_offer(passage);                           // a sender, once a message
 *     while (rb_passage_advance(passage), !rb_passage_has_arrived(passage, &when)) {
 *         xm_worker_wait(worker, deadline);                // a receiver
 *     }
 *     rb_passage_take(passage);
 * @endcode
 *
 * Threads: that of the worker.
 */
#ifndef RB_PIPELINE_PASSAGE_H
#define RB_PIPELINE_PASSAGE_H

#include "bench/pipeline/pipeline.h"
#include "comm/worker.h"

/** Messages of a passage that may be at the receiver, or on the way, and not taken. */
enum { RB_PASSAGE_SLOTS = 4 };

/** Ways that one job can have passages for: their executors share 255 channels, of which musters
 * have one. */
enum { RB_PASSAGE_WAYS = 254 / RB_PASSAGE_SLOTS };

typedef struct rb_passage rb_passage_t;

/** Of way @p index of the pipeline, which this rank is at one end of. */
xm_status_t rb_passage_create(xm_worker_t *worker, const rb_pipeline_t *pipeline, int index,
                              rb_passage_t **passage);

/** Starts run @p run. Nothing of the one before may be left. */
void rb_passage_begin(rb_passage_t *passage, bool checked, int run);

/** A sender: the next message may leave. */
void rb_passage_offer(rb_passage_t *passage);

/** Does what can be done now; XM_OK unless something has failed. */
xm_status_t rb_passage_advance(rb_passage_t *passage);

/** False while there is something to do that no event will announce. */
bool rb_passage_may_sleep(const rb_passage_t *passage);

/** A receiver: whether the next message is there, and since when (the transport's clock). */
bool rb_passage_has_arrived(const rb_passage_t *passage, int64_t *when);

/** A receiver has got what it wanted of that message. */
void rb_passage_take(rb_passage_t *passage);

/** True when every message of the run has passed. */
bool rb_passage_is_done(const rb_passage_t *passage);

/** From when this rank began with message @p message of the last run until it was there. */
ap_pipeline_span_t rb_passage_span(const rb_passage_t *passage, int message);

/** Wrong bytes of the last run. */
uint64_t rb_passage_wrong(const rb_passage_t *passage);

/** Ends what is in flight. NULL is accepted. */
void rb_passage_destroy(rb_passage_t *passage);

#endif
