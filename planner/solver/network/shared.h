/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the threads of one solve share: the best solution, the best bound, the prices, and when to
 * stop. Private to the solver. All calls may come from any thread.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "comm/base.h"
#include "planner/solver/network/core.h"

typedef struct ap_cfn_shared {
    const ap_cfn_core_t *core;
    xm_arena_t pool; /* the arrays */
    pthread_mutex_t mutex;
    int *best;        /* values of the core's variables */
    double cost;      /* of `best`; HUGE_VAL: none yet */
    double bound;     /* on every solution's cost */
    int *start;       /* an assignment to search from, whatever it is worth */
    bool warm;        /* `best` was there at the beginning: searches begin with it */
    double *sums;     /* per time: prices of the times before it */
    int prices;       /* counts their changes; 0: there are none yet */
    int64_t deadline; /* monotonic nanoseconds */
    double gap;       /* a solution within this part of the bound is enough */
    atomic_bool stop;
    /* One thread that counts its work takes the same way in every run, however fast it goes. */
    bool counted;
    /* Work that ends it where there is a solution; then no clock has ended it. */
    atomic_int_least64_t most;
    atomic_int_least64_t done; /* in nanoseconds of a usual core */
} ap_cfn_shared_t;

/* Time for decisions of a search, in nanoseconds since whenever: of the clock, or of the work
 * where that is counted. */
int64_t ap_cfn_shared_now(const ap_cfn_shared_t *shared);

/* When ap_cfn_shared_now() ends. */
int64_t ap_cfn_shared_end(const ap_cfn_shared_t *shared);

/* Counts work, by what a usual core takes for it. */
void ap_cfn_shared_spend(ap_cfn_shared_t *shared, double nanoseconds);

xm_status_t ap_cfn_shared_create(const ap_cfn_core_t *core, int64_t deadline,
                                 ap_cfn_shared_t *shared);

/* True when the time is up, or the best solution's cost has been proved least. */
bool ap_cfn_shared_is_over(ap_cfn_shared_t *shared);

/* Whether the best solution's cost has been proved least, or that there is none. */
bool ap_cfn_shared_is_proved(ap_cfn_shared_t *shared);

double ap_cfn_shared_cost(ap_cfn_shared_t *shared);
double ap_cfn_shared_bound(ap_cfn_shared_t *shared);

/* Takes a solution that is cheaper than the best, or copies the best (if there is one and it is
 * cheaper than `cost`) to `value`; returns the best's cost. */
double ap_cfn_shared_offer(ap_cfn_shared_t *shared, const int *value, double cost);

/* Publishes prices (per time) and an assignment found at them. */
void ap_cfn_shared_publish(ap_cfn_shared_t *shared, const double *price, const int *start);

/* Copies published prices' sums to `sums` (times + 1) and the assignment found at them to `start`
 * when they changed since *seen. */
bool ap_cfn_shared_prices(ap_cfn_shared_t *shared, double *sums, int *start, int *seen);

/* Raises the bound; HUGE_VAL: there is no solution. Stops everything when nothing better is left.
 */
void ap_cfn_shared_raise(ap_cfn_shared_t *shared, double bound);

/* How much a bound may be off by rounding. */
double ap_cfn_rounding(double cost);

void ap_cfn_shared_destroy(ap_cfn_shared_t *shared);
