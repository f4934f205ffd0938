/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file measured_run.h
 * The timeline of a run as it was measured, in the simulation's form, so that it is drawn like one.
 */
#pragma once

#include "bench/pipeline/pipeline.h"

/** Files to write; NULL: not wanted. */
typedef struct rb_timeline_files {
    const char *trace, *plot;
} rb_timeline_files_t;

/** Writes the files of a run whose entries ran at spans[stage][entry]; @p step_s is its step. */
xm_status_t rb_measured_run_write(const rb_pipeline_t *pipeline, ap_pipeline_span_t *const *spans,
                                  double step_s, const rb_timeline_files_t *files);
