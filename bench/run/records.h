/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file records.h
 * When the hops of one rank ran.
 */
#pragma once

#include "bench/run/result.h"
#include "resharding/execute.h"

/** The chunks of a rank's last run, for xm_executor_params_t's chunk_ran. It is emptied before a
 * run, and keeps what there was memory for. */
typedef struct rb_chunk_times {
    rb_record_t *records; /**< on the transport's clock, and without the rank */
    size_t count, room;
} rb_chunk_times_t;

void rb_chunk_times_note(void *times, int64_t transfer, int hop, int64_t chunk, xm_span_t span);

/**
 * Lists the hops that @p rank sent or received, and its copies, in the executor's last run, in a
 * malloc'ed array, and then the chunks of @p times. @p start_ns is when the run started, on the
 * transport's clock.
 */
xm_status_t rb_records_take(const xm_plan_t *plan, const xm_executor_t *executor, int rank,
                            int64_t start_ns, const rb_chunk_times_t *times, rb_record_t **records,
                            size_t *count);
