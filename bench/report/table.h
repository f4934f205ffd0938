/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file table.h
 * The report for people: a header of lines that start with '#', one row per case in fixed columns,
 * and a summary, after the habits of nccl-tests. docs/reshard-bench.md explains the columns.
 */
#pragma once

#include <stdio.h>

#include "bench/run.h"

/** Sets the table up and prints everything above its first row. */
void rb_table_begin(xm_table_t *table, const rb_job_info_t *job);
void rb_table_row(xm_table_t *table, const rb_result_t *result);

/** What the summary needs to know of all rows. */
typedef struct rb_totals {
    int cases;
    uint64_t wrong, resends;
    bool validated, verified;
    double cpu_s, bytes; /**< of one run of each case */
    double bound_fraction_sum, busbw_sum;
    int with_busbw;
    int bounded; /**< cases with a time and a bound above zero */
} rb_totals_t;

void rb_totals_add(rb_totals_t *totals, const rb_result_t *result);
void rb_table_summary(FILE *file, const rb_job_info_t *job, const rb_totals_t *totals);

/** The cases of --list. */
xm_status_t rb_table_list(FILE *file, const rb_options_t *options, const rb_selection_t *selection);
