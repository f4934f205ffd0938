/**
 * @file job_case.h
 * One case on real processes.
 */
#ifndef RB_JOB_CASE_H
#define RB_JOB_CASE_H

#include "bench/job_info.h"
#include "bench/result.h"
#include "comm/worker.h"

/**
 * Collective: runs case @p index, warm-ups and timed runs. Every rank gets the result, which
 * refers to @p prepared; the records of all ranks are gathered when a trace or a figure is wanted.
 */
xm_status_t rb_job_case(xm_worker_t *worker, const rb_job_info_t *job, int index,
                        const rb_prepared_t *prepared, rb_result_t *result);

#endif
