/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file doctor.h
 * The doctor for a whole job: every rank examines its machine (doctor.h), and what should be equal
 * is compared.
 *
 * Findings that several ranks share are one row. Compared are versions, uniform settings
 * (config.h) and MTUs: where most agree the others are named. The clocks of the hosts are compared
 * with rank 0's, by a few rounds of the bootstrap: what rank 0 read in a round happened before this
 * rank's round ended, and after this rank had begun the round before; the narrowest of these
 * intervals is the offset and its uncertainty.
 *
 * Only the bootstrap is used, so that a job is examined whose transport would not start.
 */
#pragma once

#include "comm/job.h"
#include "comm/doctor/doctor.h"

typedef struct xm_report xm_report_t;

/** A finding and the ranks it is of, ascending. */
typedef struct xm_report_row {
    xm_finding_t finding;
    int count;
    const int *ranks;
} xm_report_row_t;

/**
 * Examines this process's job. Collective; NULL is a job of this process alone. @p params: what is
 * equal on all ranks, or this rank's own; the numbers of ranks are found out here. Every rank gets
 * all rows.
 */
xm_status_t xm_report_create(xm_bootstrap_t *bootstrap, double timeout,
                             const xm_doctor_params_t *params, xm_report_t **report);

int xm_report_ranks(const xm_report_t *report);
/** Name of the host that a rank is on, e.g. "node7". */
const char *xm_report_host(const xm_report_t *report, int rank);

int xm_report_rows(const xm_report_t *report);
const xm_report_row_t *xm_report_row(const xm_report_t *report, int row);

/** Rows with a severity. */
int xm_report_count(const xm_report_t *report, xm_severity_t severity);

/** NULL is accepted. */
void xm_report_destroy(xm_report_t *report);
