/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file peer_report.h
 * What rank 0 of reshard-peer-mpi says: a table on standard output, or a JSON document with the
 * keys of reshard-bench's.
 */
#pragma once

#include "bench/run.h"
#include "bench/peers/timing.h"

typedef struct rb_peer_report rb_peer_report_t;

/** What is the same for all results. Outlives the report. */
typedef struct rb_peer_job {
    const rb_options_t *options;
    const rb_host_map_t *hosts;
    const rb_rank_info_t *ranks;
} rb_peer_job_t;

/** Prints the header. */
xm_status_t rb_peer_report_create(const rb_peer_job_t *job, rb_peer_report_t **report);
xm_status_t rb_peer_report_add(rb_peer_report_t *report, const rb_case_t *one,
                               const rb_peer_method_t *method, const rb_peer_result_t *result);
/** Prints the end, or the document, and writes the file of -J. */
xm_status_t rb_peer_report_finish(rb_peer_report_t *report);
void rb_peer_report_destroy(rb_peer_report_t *report);
