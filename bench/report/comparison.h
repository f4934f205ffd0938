/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comparison.h
 * What the results of a run say next to each other: how the variants of a case compare, and how far
 * the simulation was off.
 */
#pragma once

#include <stdio.h>

#include "bench/run.h"

/** What a plan asks of its busiest host: in the direction with the most bytes between hosts, those
 * and their messages. Zeros where nothing leaves a host. */
typedef struct rb_load {
    double messages, bytes;
} rb_load_t;

/** What is kept of a result. */
typedef struct rb_outcome {
    char name[RB_CASE_NAME];
    int variant, variants; /**< as in case.h */
    xm_strategy_t strategy;
    xm_scheduler_t scheduler;
    int runs;      /**< timed ones */
    double time_s; /**< median; makespan after a dry run */
    double plan_s, setup_s;
    rb_load_t load; /**< of the busiest host */
    double cpu_s;
    double bound_fraction, sim_error; /**< may be NaN */
    char obstacle[RB_OBSTACLE_TEXT];  /**< why there is no error to speak of; may be empty */
} rb_outcome_t;

/** Results in the order in which they came: the variants of a case side by side. Starts as zeros.
 */
typedef struct rb_comparison {
    rb_outcome_t *outcomes;
    size_t count, capacity;
} rb_comparison_t;

xm_status_t rb_comparison_add(rb_comparison_t *comparison, const rb_result_t *result);

/**
 * The outcome that @p index is compared with: among the variants of its case the first with
 * strategy and scheduler `auto`, else with one of them, else the first.
 */
size_t rb_comparison_reference(const rb_comparison_t *comparison, size_t index);

/** Time over that of the reference; NaN when that took no time. */
double rb_comparison_ratio(const rb_comparison_t *comparison, size_t index);

/**
 * Median of the absolute errors of the simulation, and the outcome with the largest. False when no
 * outcome has one.
 */
bool rb_comparison_prediction(const rb_comparison_t *comparison, double *median, size_t *worst);

/** Lines of the table's end; nothing where no case has variants, and nothing was predicted. */
void rb_comparison_print_ratios(FILE *file, const rb_comparison_t *comparison);
void rb_comparison_print_prediction(FILE *file, const rb_comparison_t *comparison);

void rb_comparison_clear(rb_comparison_t *comparison);
