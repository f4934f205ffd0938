/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/solver/elimination/elimination.h
 * Minimising over the variables of a network exactly, by eliminating one after another.
 *
 * Eliminating a variable replaces the tables that mention it by one table over their other
 * variables that holds the minimum (Dechter, "Bucket elimination", 1999): dynamic programming over
 * a tree decomposition. The variable whose table is smallest goes first, of equal ones the lowest
 * number. Every exact search of the planner is this one:
 *
 *  - ap_elimination_plan() chooses the order and lays all tables out;
 *  - ap_elimination_solve() runs through them, as often as costs of values change, and traces an
 *    assignment back; ap_elimination_marginals() goes the other way and tells what every value
 *    costs at least;
 *  - where variables are *kept*, ap_elimination_run() makes the table of the minimum for every
 *    combination of their values; ap_elimination_minimum() and ap_elimination_trace() read it;
 *  - ap_elimination_walk() leaves the sums and minima to the caller, whose cells can hold more than
 *    a number.
 *
 * Costs of values are given to each run and replace those of the network; usage is not looked at.
 * HUGE_VAL forbids. Of equal values the lowest wins. Threads: one object by one thread at a time.
 */
#pragma once

#include <stdint.h>

#include "planner/solver/network.h"

enum { AP_ELIMINATION_SCOPE = 12 /**< variables of one table */ };

/** A table that a step adds up: of a link, or what an earlier step left. */
typedef struct ap_elimination_term {
    const double *table;                    /**< the step's own variable varies fastest */
    int child;                              /**< the earlier step; -1: a link */
    ptrdiff_t stride[AP_ELIMINATION_SCOPE]; /**< of the step's scope; 0: not in the table */
    ptrdiff_t jump[AP_ELIMINATION_SCOPE];   /**< to the next row when that variable moves on */
} ap_elimination_term_t;

typedef struct ap_elimination_step {
    int variable;
    int count;
    int scope[AP_ELIMINATION_SCOPE]; /**< other variables, those eliminated latest first */
    size_t rows;                     /**< combinations of the scope's values */
    double *least;   /**< per row: over the step's variable and all that was eliminated into it */
    double *outside; /**< per row: of all else; NULL: there are no marginals */
    ap_elimination_term_t *term;
    int terms;
} ap_elimination_step_t;

/** Variables are numbered as they were listed, and costs of values lie one after the other. */
typedef struct ap_elimination {
    const ap_cfn_core_t *core;
    int count;
    int *id;       /**< per variable: that of the core */
    int *size;     /**< per variable: values */
    size_t *at;    /**< per variable: where its costs begin; behind the last: all of them */
    int *position; /**< per variable: its step; -1: it is fixed */
    int *local;    /**< per variable of the core: its number here, or -1 */
    int steps;     /**< that are run; those of kept variables come after them */
    int kept;
    ap_elimination_step_t *step;
    double work;      /**< cells that a run looks at */
    double row_count; /**< in which those lie */
    double total;     /**< of the last run: the minimum, when nothing is kept */
    xm_arena_t pool;
    double *sum;         /**< of one row */
    const double **rows; /**< per term of a step: its row */
} ap_elimination_t;

typedef struct ap_elimination_params {
    const int *variables; /**< of the core; NULL: all */
    int count;
    const bool *keep; /**< per variable of the list; NULL: none */
    double cells;     /**< of one table, at most; 0: any number */
    double work;      /**< cells that a run may look at; 0: any number */
    bool fix;         /**< variables without a small table are fixed, not refused */
    bool marginals;
    double forbidden; /**< that forbidden cells count as, to be compared; 0: HUGE_VAL */
} ap_elimination_params_t;

/** For any number of plans on variables of @p core, which is borrowed. */
xm_status_t ap_elimination_create(const ap_cfn_core_t *core, ap_elimination_t **elimination);

/**
 * Lays out an elimination, in place of the last one. Only links between two listed variables count,
 * neither of them fixed. XM_ERR_UNSUPPORTED when the tables would exceed the limits.
 */
xm_status_t ap_elimination_plan(ap_elimination_t *elimination,
                                const ap_elimination_params_t *params);

/** Fills all tables; value x of variable v costs cost[at[v] + x]. */
void ap_elimination_run(ap_elimination_t *elimination, const double *cost);

/** After a run at the same costs: completes @p value, whose kept (and fixed) variables are set, to
 * a minimum. */
void ap_elimination_trace(const ap_elimination_t *elimination, const double *cost, int *value);

/** After a run at the same costs: the minimum given the values of the kept variables. */
double ap_elimination_minimum(const ap_elimination_t *elimination, const double *cost,
                              const int *value);

/** A run and its trace. Returns the minimum; HUGE_VAL, and any values: all are forbidden. */
double ap_elimination_solve(ap_elimination_t *elimination, const double *cost, int *value);

/** After a run at the same costs, nothing kept: marginal[at[v] + x], the least cost of any
 * assignment with that value. */
void ap_elimination_marginals(ap_elimination_t *elimination, const double *cost, double *marginal);

/** Gets a row of a step's table; row[k] is where term k's table has the row. */
typedef xm_status_t ap_elimination_visit_fn(void *context, const ap_elimination_step_t *step,
                                            size_t row, const double *const *rows);

/** Runs through the rows of a step in their order. */
xm_status_t ap_elimination_walk(const ap_elimination_t *elimination,
                                const ap_elimination_step_t *step, ap_elimination_visit_fn *visit,
                                void *context);

/** The row of a step's table that has these values. */
size_t ap_elimination_row(const ap_elimination_t *elimination, const ap_elimination_step_t *step,
                          const int *value);

void ap_elimination_destroy(ap_elimination_t *elimination);
