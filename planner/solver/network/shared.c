/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the threads of one solve share. One mutex guards all of it: threads come here seldom
 * compared with the work that they do in between, and each time only copy a few thousand numbers,
 * so anything finer would buy nothing. Only the flag that stops everything is atomic, since the
 * inner loops ask for it.
 *
 * The one rule is that `bound` only rises and `cost` only falls; as soon as they meet, whoever sees
 * it stops all threads.
 */

#include "planner/solver/network/shared.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

/* Costs are integers, but the dual's sums of messages are not. The tolerance grows with the cost as
 * rounding does; it stays far below 1, so a bound above cost - 1 proves that no cheaper integer is
 * left. */
double ap_cfn_rounding(double cost)
{
    return 1e-3 + 2e-12 * fabs(cost);
}

/* On failure nothing stays allocated, and core == NULL says that there is no mutex to destroy. */
xm_status_t ap_cfn_shared_create(const ap_cfn_core_t *core, int64_t deadline,
                                 ap_cfn_shared_t *shared)
{
    *shared =
        (ap_cfn_shared_t){.core = core, .cost = HUGE_VAL, .bound = -HUGE_VAL, .deadline = deadline};
    shared->best = xm_arena_get(&shared->pool, (size_t)core->variables, sizeof(int));
    shared->start = xm_arena_get(&shared->pool, (size_t)core->variables, sizeof(int));
    shared->sums = xm_arena_get(&shared->pool, (size_t)core->times + 1, sizeof(double));
    if (shared->pool.failed || pthread_mutex_init(&shared->mutex, NULL) != 0) {
        xm_arena_clear(&shared->pool);
        shared->core = NULL;
        return XM_NO_MEMORY("a solution of %d variables", core->variables);
    }
    return XM_OK;
}

/* Whether the bound is so near that nothing better is looked for. Called with the mutex held. */
static bool is_enough(const ap_cfn_shared_t *shared)
{
    return shared->bound >= (1.0 - shared->gap) * shared->cost;
}

/* Tells whether no solution can be cheaper, or there is none. Costs are integers, so a bound above
 * cost - 1 is enough. Called with the mutex held. */
static bool is_proved(const ap_cfn_shared_t *shared)
{
    return !(shared->bound < HUGE_VAL) ||
           shared->bound > shared->cost - 1.0 + ap_cfn_rounding(shared->cost);
}

int64_t ap_cfn_shared_now(const ap_cfn_shared_t *shared)
{
    return shared->counted ? atomic_load_explicit(&shared->done, memory_order_relaxed)
                           : xm_clock_ns();
}

int64_t ap_cfn_shared_end(const ap_cfn_shared_t *shared)
{
    return shared->counted ? shared->most : shared->deadline;
}

/* Without a solution there is nothing to end with, so the work goes on: as long again each time,
 * which the work alone decides, and the clock at the latest. */
void ap_cfn_shared_spend(ap_cfn_shared_t *shared, double nanoseconds)
{
    int64_t work = (int64_t)nanoseconds;

    if (!shared->counted) {
        return;
    }
    while (!(shared->cost < HUGE_VAL) && shared->most < INT64_MAX / 4 &&
           shared->done + work >= shared->most) {
        shared->most *= 2;
    }
    (void)atomic_fetch_add_explicit(&shared->done, work, memory_order_relaxed);
}

/* The first thread that sees the deadline pass sets the flag for all others. */
bool ap_cfn_shared_is_over(ap_cfn_shared_t *shared)
{
    if (!atomic_load(&shared->stop) && (xm_clock_ns() >= shared->deadline ||
                                        ap_cfn_shared_now(shared) >= ap_cfn_shared_end(shared))) {
        atomic_store(&shared->stop, true);
    }
    return atomic_load(&shared->stop);
}

bool ap_cfn_shared_is_proved(ap_cfn_shared_t *shared)
{
    bool proved;

    (void)pthread_mutex_lock(&shared->mutex);
    proved = is_proved(shared);
    (void)pthread_mutex_unlock(&shared->mutex);
    return proved;
}

double ap_cfn_shared_cost(ap_cfn_shared_t *shared)
{
    double cost;

    (void)pthread_mutex_lock(&shared->mutex);
    cost = shared->cost;
    (void)pthread_mutex_unlock(&shared->mutex);
    return cost;
}

double ap_cfn_shared_bound(ap_cfn_shared_t *shared)
{
    double bound;

    (void)pthread_mutex_lock(&shared->mutex);
    bound = shared->bound;
    (void)pthread_mutex_unlock(&shared->mutex);
    return bound;
}

/* Only a cheaper solution replaces the best one: among solutions of equal cost, the first one found
 * stays. */
double ap_cfn_shared_offer(ap_cfn_shared_t *shared, const int *value, double cost)
{
    (void)pthread_mutex_lock(&shared->mutex);
    if (cost < shared->cost) {
        memcpy(shared->best, value, (size_t)shared->core->variables * sizeof(int));
        shared->cost = cost;
        if (is_proved(shared) || is_enough(shared)) {
            atomic_store(&shared->stop, true);
        }
    }
    cost = shared->cost;
    (void)pthread_mutex_unlock(&shared->mutex);
    return cost;
}

/* Publishes prices as prefix sums, because that is how regions read them. `start` is what the dual
 * suggests; it need not be a solution. */
void ap_cfn_shared_publish(ap_cfn_shared_t *shared, const double *price, const int *start)
{
    double sum = 0.0;

    (void)pthread_mutex_lock(&shared->mutex);
    for (int t = 0; t < shared->core->times; ++t) {
        shared->sums[t] = sum;
        sum += price[t];
    }
    shared->sums[shared->core->times] = sum;
    memcpy(shared->start, start, (size_t)shared->core->variables * sizeof(int));
    ++shared->prices;
    (void)pthread_mutex_unlock(&shared->mutex);
}

/* Copies the prices only when they changed; a reader remembers the count of the change that it
 * saw. */
bool ap_cfn_shared_prices(ap_cfn_shared_t *shared, double *sums, int *start, int *seen)
{
    bool changed;

    (void)pthread_mutex_lock(&shared->mutex);
    changed = *seen != shared->prices;
    if (changed) {
        memcpy(sums, shared->sums, ((size_t)shared->core->times + 1) * sizeof(double));
        memcpy(start, shared->start, (size_t)shared->core->variables * sizeof(int));
        *seen = shared->prices;
    }
    (void)pthread_mutex_unlock(&shared->mutex);
    return changed;
}

/* A weaker bound changes nothing, so threads may report theirs in any order. */
void ap_cfn_shared_raise(ap_cfn_shared_t *shared, double bound)
{
    (void)pthread_mutex_lock(&shared->mutex);
    shared->bound = bound > shared->bound ? bound : shared->bound;
    if (is_proved(shared) || is_enough(shared)) {
        atomic_store(&shared->stop, true);
    }
    (void)pthread_mutex_unlock(&shared->mutex);
}

void ap_cfn_shared_destroy(ap_cfn_shared_t *shared)
{
    if (shared->core != NULL) {
        (void)pthread_mutex_destroy(&shared->mutex);
    }
    xm_arena_clear(&shared->pool);
    *shared = (ap_cfn_shared_t){.core = NULL};
}
