/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file refit.h
 * What the suite `refit` adds to the table: published times beside planned ones, and measured times
 * as messages × overhead + bytes / bandwidth.
 */
#pragma once

#include <stdio.h>

#include "bench/report/comparison.h"

/** The load of a plan's busiest host. */
xm_status_t rb_load_of(const xm_plan_t *plan, rb_load_t *load);

/** The terms of time = messages × overhead + bytes / bandwidth. */
typedef struct rb_terms {
    double overhead_s;  /**< of a message */
    double bytes_per_s; /**< infinite where the bytes explain nothing */
    double worst_error; /**< relative, of the times that they were fitted to */
} rb_terms_t;

/** Fits the terms, neither below zero, to times by least squares of the relative errors. False
 * when the loads are fewer than two or all alike. */
bool rb_terms_fit(const rb_outcome_t *outcomes, size_t count, rb_terms_t *terms);

/** The lines for published cases; nothing where there are none. */
void rb_refit_print(FILE *file, const rb_comparison_t *comparison);
