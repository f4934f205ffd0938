/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file trace.h
 * The hops of the last run of every case as a Chrome trace (chrome://tracing, Perfetto): one
 * process per rank with a row for what it sends and one for what it receives. Cases follow each
 * other on the time axis. Times are microseconds from the start of each rank's run.
 */
#pragma once

#include "bench/run.h"

typedef struct rb_trace rb_trace_t;

xm_status_t rb_trace_create(rb_trace_t **trace);
xm_status_t rb_trace_add(rb_trace_t *trace, const rb_result_t *result);
xm_status_t rb_trace_write(const rb_trace_t *trace, const char *path);
void rb_trace_destroy(rb_trace_t *trace);
