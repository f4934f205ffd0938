/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/search/trial.h
 * One case of a planner run: a number of micro-batches, a schedule and a way to recompute, first
 * bounded, then planned. Not installed.
 */
#pragma once

#include "planner/search/host_permutation.h"
#include "planner/search/case.h"

/* A trial at work. */
typedef struct ap_planner_work {
    ap_planner_trial_t *trial;
    const ap_planner_pin_t *pins; /* its only stages; NULL: those of the run */
    int pin_count;
    bool bounded;
    double estimate;        /* of the step: as the search counts, boundaries for free */
    double *order_estimate; /* of the objective with the hosts in each order of the run, or NULL */
    double *order_bound;    /* of the step, likewise */
    ap_plan_t *plan;        /* of this batch, or NULL */
    int64_t priced;
    bool refused; /* its plan does not fit under its schedule */
    bool cut;     /* time was up before its search had ended */
    xm_status_t status;
    char error[512];
} ap_planner_work_t;

/* One run: what all trials share, and the best plan so far. */
typedef struct ap_planner_run {
    const ap_planner_params_t *params;
    ap_planner_setup_t setup;
    ap_host_permutations_t host_permutations;
    int layers;
    int64_t micro_batches[AP_PLANNER_MICRO_BATCHES];
    int count;
    ap_planner_result_t result;
    ap_planner_work_t *work; /* per trial */
    double best;             /* smallest objective of a plan so far */
    double deadline;         /* seconds of the monotonic clock; INFINITY: none */
    double first_deadline;   /* the same, for the first plan */
    bool stopped;
    ap_schedule_kind_t schedules[AP_SCHEDULE_KINDS];
    int schedule_count;
    bool automatic;    /* whichever schedule is fastest */
    char refused[256]; /* why the last plan did not fit under its schedule */
} ap_planner_run_t;

/* What a case takes at least with its hosts as they stand. */
typedef struct ap_planner_bounds {
    double objective; /* as the search counts, boundaries for free; INFINITY: there is no plan */
    double step;
} ap_planner_bounds_t;

/* A case being planned. */
typedef struct ap_planner_candidate {
    ap_planner_run_t *run;
    ap_planner_work_t *work;
    ap_planner_case_t one;
    int stages; /* at most so many, 0: any */
    int count;  /* stages of the last plan */
} ap_planner_candidate_t;

/* Whether the time of an ap_planner_run_t is over; for ap_planner_case_options_t.stop. */
bool ap_planner_out_of_time(void *arg);

/* What a case must stay below to be of interest. */
double ap_planner_cutoff(const ap_planner_run_t *run);

/* Bounds of a case as its table stands. */
xm_status_t ap_planner_find_bounds(const ap_planner_run_t *run, ap_stage_table_t *table,
                                   ap_planner_bounds_t *bounds);
/* Slices the case with its hosts as they stand; with a host permutation, in that. *bound: no plan
 * of theirs is faster. XM_ERR_NO_SOLUTION: there is no plan, or none that is fast enough. */
xm_status_t ap_planner_slice(ap_planner_candidate_t *attempt,
                             const ap_host_permutation_t *host_permutation, double *bound,
                             bool *better);

/* The same for every order of the run (planner/search/orders.c): bounds, of which the least come
 * back; and plans, where only those that pay are kept. XM_ERR_NO_SOLUTION: no order has a plan that
 * does. */
xm_status_t ap_planner_bound_orders(ap_planner_run_t *run, ap_planner_work_t *work,
                                    ap_stage_table_t *table, ap_planner_bounds_t *least);
xm_status_t ap_planner_try_orders(ap_planner_candidate_t *attempt);

/* Makes the run's first plan, quickly, in so many micro-batches (planner/search/first.c). */
xm_status_t ap_planner_try_first(ap_planner_run_t *run, int64_t micro_batches);

/* First a bound, with no configuration priced. */
xm_status_t ap_planner_bounding_pass(ap_planner_run_t *run, ap_planner_work_t *work);

/* Then its best plan. Finding none is not a failure here. */
xm_status_t ap_planner_solve(ap_planner_run_t *run, ap_planner_work_t *work);
