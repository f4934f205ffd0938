/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file report.h
 * Everything a run of reshard-bench puts out: the table or JSON on standard output, and the files
 * that were asked for.
 */
#pragma once

#include "bench/run.h"

typedef struct rb_report rb_report_t;

/**
 * Fails when a file that the options name cannot be written, so that nobody waits for a run whose
 * outcome is lost. Creates nothing.
 */
xm_status_t rb_report_check(const rb_options_t *options);

/** Prints the header. @p job must outlive the report. */
xm_status_t rb_report_create(const rb_job_info_t *job, rb_report_t **report);

/** Prints the row of a case, and writes its figure and its plan where asked for. */
xm_status_t rb_report_add(rb_report_t *report, const rb_result_t *result);

/** Prints the summary and writes the files about all cases. */
xm_status_t rb_report_finish(rb_report_t *report);

/** Wrong bytes of all results so far. */
uint64_t rb_report_wrong(const rb_report_t *report);

void rb_report_destroy(rb_report_t *report);
