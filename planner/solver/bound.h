/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lower bound of a core's optimum, by moving costs between variables and links and by pricing
 * usage. Private to the solver.
 *
 * The dual of the local linear relaxation: messages shift costs from links to their ends so that
 * the sum of all minima grows (sequential tree-reweighted message passing: Kolmogorov, "Convergent
 * tree-reweighted message passing for energy minimization", 2006, in the form of "A new look at
 * reweighted message passing", 2015), and a price per time turns usage into cost. Messages converge
 * by themselves; prices follow averaged subgradients (Barahona and Anbil, "The volume algorithm",
 * 2000), of those times only that are exceeded next to no worse one, or have a price already.
 *
 * Where the core's variables can be eliminated (planner/solver/elimination/elimination.h), a sweep
 * does that instead: the bound is then the best one at the prices, and `choice` an assignment that
 * costs it.
 *
 * Every state is a valid bound, whatever the prices and messages.
 */
#pragma once

#include <stdint.h>

#include "planner/solver/network.h"
#include "planner/solver/elimination.h"

typedef struct ap_cfn_dual {
    const ap_cfn_core_t *core;
    double **to_a, **to_b; /* per link: messages to its ends */
    double *price;         /* per time, not negative */
    double *priced;        /* all variables' costs at the prices, one after the other */
    size_t *at;            /* of a variable in `priced` */
    double *messages;      /* what to_a and to_b point into */
    int *choice;           /* per variable: its cheapest value at its last visit */
    int *decoded;          /* per variable: of ap_cfn_dual_decode() */
    double *margin;        /* per variable: how much more its second cheapest cost then */
    double *slope;         /* per time: load less capacity, averaged */
    double *share;         /* of all values: how often each was chosen, averaged as the slopes */
    double *load, *sums, *scratch, *best_price;
    ap_elimination_t *exact; /* NULL: messages are passed */
    double *marginal;        /* of all values, for `exact` */
    double bound;            /* of the last sweep, with the constant */
    double best;             /* largest bound so far */
    double work;             /* cells that a sweep looks at */
    double nanoseconds;      /* that it takes a usual core, with a step of the prices */
    double fixing;           /* what ap_cfn_dual_fix() takes more */
    double factor;           /* of the steps' length */
    int since_best;          /* steps without a better bound */
    int64_t steps;
    xm_arena_t pool; /* all arrays */
} ap_cfn_dual_t;

xm_status_t ap_cfn_dual_create(const ap_cfn_core_t *core, ap_cfn_dual_t **dual);

/* Takes to elimination, if a pass looks at no more than `work` cells; otherwise nothing changes. */
xm_status_t ap_cfn_dual_eliminate(ap_cfn_dual_t *dual, double work);

/* Passes over all variables and back; returns the new bound. */
double ap_cfn_dual_sweep(ap_cfn_dual_t *dual);

/* The cost that the steps of the prices should aim at: of a known solution, or a guess above the
 * bound while that is better, as steps that aim at a bad first solution are too long. */
double ap_cfn_dual_aim(const ap_cfn_dual_t *dual, double cost);

/* Moves the prices towards a larger bound; `upper` is the cost of a known solution or a guess of
 * one. To be followed by a sweep. */
void ap_cfn_dual_move_prices(ap_cfn_dual_t *dual, double upper);

/* To be called after `price` was written to. */
void ap_cfn_dual_prices_changed(ap_cfn_dual_t *dual);

/* Whether `choice` uses no more than the capacities. */
bool ap_cfn_dual_choice_fits(ap_cfn_dual_t *dual);

/* Makes `decoded` the assignment that the messages suggest: each variable in turn takes its best
 * value given the earlier ones. May be forbidden, may not fit. */
void ap_cfn_dual_decode(ap_cfn_dual_t *dual);

/*
 * A sweep that also tells which values no solution below `upper` can have: keep[at[v] + x] becomes
 * false for them. Returns how many those are.
 */
int ap_cfn_dual_fix(ap_cfn_dual_t *dual, double upper, bool *keep);

/* A variable that uses nothing that matters and has at most one link: what it costs is added to the
 * other end's values, and its best value follows from that. */
typedef struct ap_cfn_fold {
    int variable, other;
    const int *best; /* per value of the other end */
} ap_cfn_fold_t;

typedef struct ap_cfn_folds {
    ap_cfn_fold_t *fold; /* the other end is folded later, if at all */
    int count;
    xm_arena_t pool; /* both, and what they point into */
} ap_cfn_folds_t;

/*
 * The core that is left when only the values with keep[at[v] + x] may be taken, with messages and
 * prices of `dual`: variables with one value go into their neighbours and the capacities. `number`
 * (per variable of the old core) says which variable of the new one it is, or -1 - value, or
 * AP_CFN_FOLDED. The caller clears the pool of `folds`, which NULL forbids.
 */
enum { AP_CFN_FOLDED = INT32_MIN };
xm_status_t ap_cfn_dual_restrict(const ap_cfn_dual_t *dual, const bool *keep, ap_cfn_folds_t *folds,
                                 ap_cfn_core_t **core, ap_cfn_dual_t **restricted, int *number);

void ap_cfn_dual_destroy(ap_cfn_dual_t *dual);
