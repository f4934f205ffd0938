/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stage_rank.h
 * One rank of a pipeline at work: it goes through its stage's list of the schedule, computes, and
 * hands tensors to the stages before and after it.
 *
 * An entry of the list means here what it means in the simulation (planner/pipeline/simulate.h,
 * transfers overlapped). A send is handed to its stage channel (stage_channel.h) and costs nothing;
 * a receive waits until the tensor is there for the whole stage; passes, and updates, take the
 * plan's time, collectives inside the stage included, as priced. All the while transfers go on.
 *
 * Where the device is elsewhere (compute.h, `wait`), it does what it is given one after the other,
 * as a GPU's queue does: a pass begins when the one before has ended and its input is there, and
 * not when this process, which shares its core with others, comes to notice.
 *
 * Threads: that of the worker.
 */
#pragma once

#include "bench/pipeline/compute.h"
#include "bench/pipeline/pipeline.h"
#include "comm/worker.h"

typedef struct rb_stage_rank rb_stage_rank_t;

/** What one run of the list took on this rank; times since its start. */
typedef struct rb_stage_run {
    int64_t ns;              /**< the whole list */
    int64_t first_update_ns; /**< end of the first update: schedules that span several batches */
    int64_t last_update_ns;
    uint64_t wrong; /**< bytes, in a checked run */
} rb_stage_run_t;

/** Buffers, executors and stage channels of this rank; one of no stage has none, and nothing to do.
 * The other objects must outlive it. */
xm_status_t rb_stage_rank_create(xm_worker_t *worker, const rb_pipeline_t *pipeline,
                                 rb_compute_t *compute, rb_stage_rank_t **rank);

/** Goes through the list once. All ranks call it, after a barrier; when it returns, nothing of this
 * rank is on the way any more. @p number tells runs apart, also between ranks. */
xm_status_t rb_stage_rank_run(rb_stage_rank_t *rank, bool checked, int number,
                              rb_stage_run_t *result);

/** When the entries of the list ran in the last run, since its start: as in ap_pipeline_run_t.
 * *count is 0 on ranks of no stage. */
const ap_pipeline_span_t *rb_stage_rank_spans(const rb_stage_rank_t *rank, int *count);

/** NULL is accepted. */
void rb_stage_rank_destroy(rb_stage_rank_t *rank);
