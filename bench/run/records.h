/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file records.h
 * When the hops of one rank ran.
 */
#pragma once

#include "bench/run/result.h"
#include "resharding/execute.h"

/**
 * Lists the hops that @p rank sent or received, and its copies, in the executor's last run, in a
 * malloc'ed array. @p start_ns is when the run started, on the transport's clock.
 */
xm_status_t rb_records_take(const xm_plan_t *plan, const xm_executor_t *executor, int rank,
                            int64_t start_ns, rb_record_t **records, size_t *count);
