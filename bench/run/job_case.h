/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file job_case.h
 * One case on real processes, in all its variants: run by run they take turns, so that whatever
 * disturbs the machine disturbs all alike and their ratios hold.
 */
#pragma once

#include "bench/run/job_info.h"
#include "bench/run/result.h"
#include "comm/worker.h"

/**
 * Collective: runs @p count variants of a case, the first of which is number @p first of the
 * selection, warm-ups and timed runs. They share one set of buffers; each has its own executor.
 * Every rank gets the results, which refer to @p prepared; the records of all ranks are gathered
 * when a trace or a figure is wanted. @p results are zeros before and after a failure.
 */
xm_status_t rb_job_case(xm_worker_t *worker, const rb_job_info_t *job, int first, int count,
                        const rb_prepared_t *prepared, rb_result_t *results);
