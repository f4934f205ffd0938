/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file offline.h
 * What --dry-run and --transport sim share: one process, no job; rates from the options or assumed,
 * a report, and every selected case in turn.
 */
#pragma once

#include "bench/run.h"
#include "bench/report.h"

/** Deals with case @p index, which is planned, and adds it to the report. */
typedef xm_status_t rb_offline_case_t(const rb_job_info_t *job, int index,
                                      const rb_prepared_t *prepared, rb_report_t *report);

/** Plans all cases, runs @p run_case on each and finishes the report. @p wrong: wrong bytes that
 * the cases reported. */
xm_status_t rb_offline_run(const rb_options_t *options, const rb_selection_t *selection,
                           const rb_host_map_t *hosts, rb_offline_case_t *run_case,
                           uint64_t *wrong);

/** --dry-run: plans, bounds and simulates the selected cases without starting a rank. */
xm_status_t rb_dry_run(const rb_options_t *options, const rb_selection_t *selection,
                       const rb_host_map_t *hosts);
