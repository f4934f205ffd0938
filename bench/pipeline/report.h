/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bench/pipeline/report.h
 * What pipeline-bench prints: a row for each plan, and the same as a JSON document
 * (docs/pipeline-bench.md lists columns and keys).
 */
#pragma once

#include "bench/cases.h"
#include "bench/pipeline/pipeline.h"
#include "bench/pipeline/options.h"

typedef struct rb_pipeline_report rb_pipeline_report_t;

/** What concerns the whole job. Nothing in it is owned. */
typedef struct rb_pipeline_job_info {
    const rb_pipeline_options_t *options;
    const rb_host_map_t *hosts;
    const char *start;  /**< what rank 0 runs on, xm_worker_describe() */
    const char *source; /**< of the reshardings' predicted times */
} rb_pipeline_job_info_t;

/** What came of one plan. */
typedef struct rb_pipeline_result {
    const char *path;
    const rb_pipeline_t *pipeline;
    double *seconds; /**< of the timed runs' steps, the slowest rank's */
    int runs;
    uint64_t wrong; /**< bytes in the checked runs, of all ranks */
} rb_pipeline_result_t;

/** Prints the header. */
xm_status_t rb_pipeline_report_create(const rb_pipeline_job_info_t *job,
                                      rb_pipeline_report_t **report);

xm_status_t rb_pipeline_report_add(rb_pipeline_report_t *report,
                                   const rb_pipeline_result_t *result);

/** Prints the summary or the document, and writes the file. */
xm_status_t rb_pipeline_report_finish(rb_pipeline_report_t *report);

/** NULL is accepted. */
void rb_pipeline_report_destroy(rb_pipeline_report_t *report);
