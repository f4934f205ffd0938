/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Raises the bound of the whole problem, with the solutions that are met on the way. Everything
 * else begins with its prices: dives, searches of neighbourhoods, and every node of a tree. So it
 * is worth much that they are nearly right early, and little that they are exact: attempts of
 * branch and bound go on where this ends.
 */

#include "planner/solver/raise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

/* The dual has converged when less than this part of the gap was closed in the last so many steps.
 * Exact steps count for more, so fewer of them are watched, and so are those of large problems
 * before the first dive, as solutions cannot wait for the last of the bound. */
static const double worthwhile = 0.01;
enum { CONVERGED_STEPS = 150, CONVERGED_FIRST = 90, CONVERGED_EXACT = 40 };
/* Cells that a pass of elimination may look at: more than these would take longer than some
 * hundredths of a second, and a bound needs hundreds of passes. A pass that takes more than so many
 * sweeps by messages comes after them: of gpt-125m on four ranks the first 0.3 s have room for 28
 * passes, which found a third less than 300 sweeps did in a quarter of that time. */
static const double elimination_cells = 3e7, many_sweeps = 4.0;
enum { SCALINGS = 12, PUBLISH_EVERY = 10 };
/* What raising the bound before the first attempt may take of the time there is. Attempts look near
 * the bound, where few values are left, so they soon raise it faster than more of its own steps
 * would. */
static const double raise_part = 0.12;
/* Where one thread does all, searches take this part of the time that has passed, and so many
 * nanoseconds at least: fewer as long as there is no solution. */
#define FIRST_TIME INT64_C(1000000)
#define LATER_TIME INT64_C(50000000)
enum { SEARCH_PART = 10 };

/* Offers an assignment if it fits and nothing in it is forbidden. */
void ap_cfn_try(ap_cfn_shared_t *shared, const int *value, double *load)
{
    const ap_cfn_core_t *core = shared->core;

    if (ap_cfn_core_fits(core, value, load)) {
        double cost = core->constant + ap_cfn_core_cost(core, value);

        if (cost < HUGE_VAL) {
            (void)ap_cfn_shared_offer(shared, value, cost);
        }
    }
}

/* Raises the bound until that is no longer worth its time. A part of it goes to a search for
 * solutions, unless other threads search: `search` is NULL then. At the end the dual has its best
 * prices. */
xm_status_t ap_cfn_raise_bound(ap_cfn_shared_t *shared, ap_cfn_dual_t *dual,
                               ap_cfn_search_t *search)
{
    int every = dual->exact != NULL ? 1 : PUBLISH_EVERY;
    bool first = dual->steps == 0 && dual->core->variables > AP_CFN_PROVABLE;
    int look = dual->exact != NULL ? CONVERGED_EXACT : first ? CONVERGED_FIRST : CONVERGED_STEPS;
    double before = -HUGE_VAL;
    int64_t begin = ap_cfn_shared_now(shared), searched = 0;
    int64_t until =
        dual->core->variables <= AP_CFN_PROVABLE
            ? begin + (int64_t)(raise_part * (double)(ap_cfn_shared_end(shared) - begin))
            : INT64_MAX;
    xm_status_t status = XM_OK;

    for (int step = 0;
         status == XM_OK && !ap_cfn_shared_is_over(shared) && ap_cfn_shared_now(shared) < until;
         ++step) {
        (void)ap_cfn_dual_sweep(dual);
        ap_cfn_shared_spend(shared, dual->nanoseconds);
        ap_cfn_shared_raise(shared, dual->best);
        /* Decoding costs as much as a sweep by messages; after an exact solve the assignment is
         * there already. */
        if (step % every == 0) {
            ap_cfn_dual_decode(dual);
            ap_cfn_shared_publish(shared, dual->best_price, dual->decoded);
            ap_cfn_try(shared, dual->decoded, dual->load);
        }
        if (search != NULL && step % PUBLISH_EVERY == 0) {
            int64_t now = ap_cfn_shared_now(shared), more = (now - begin) / SEARCH_PART - searched;

            if (more > (ap_cfn_shared_cost(shared) < HUGE_VAL ? LATER_TIME : FIRST_TIME)) {
                searched += more;
                status = ap_cfn_search_run(search, now + more);
            }
        }
        /* Looks at the progress once in so many steps, since single subgradient steps go up and
         * down. */
        if (step % look == look - 1) {
            if (dual->best - before <
                worthwhile * (ap_cfn_dual_aim(dual, ap_cfn_shared_cost(shared)) - dual->best)) {
                break;
            }
            before = dual->best;
        }
        ap_cfn_dual_move_prices(dual, ap_cfn_dual_aim(dual, ap_cfn_shared_cost(shared)));
    }
    if (status == XM_OK) {
        memcpy(dual->price, dual->best_price, (size_t)dual->core->times * sizeof(double));
        ap_cfn_dual_prices_changed(dual);
    }
    return status;
}

/* Tries multiples of the best prices where every step finds the best assignment at its prices: they
 * are raised until the assignment fits and narrowed down then. The best prices leave an assignment
 * that just fails to fit as often as not; a little more on all prices usually gives a solution with
 * a small gap. The prices are as before afterwards. */
xm_status_t ap_cfn_scale_prices(ap_cfn_shared_t *shared, ap_cfn_dual_t *dual)
{
    size_t times = (size_t)dual->core->times;
    double *base = malloc((times + 1) * sizeof(*base)), low = 1.0, high = HUGE_VAL;

    if (base == NULL) {
        return XM_NO_MEMORY("prices");
    }
    memcpy(base, dual->price, times * sizeof(double));
    for (int k = 0; k < SCALINGS && !ap_cfn_shared_is_over(shared); ++k) {
        /* The distance from 1 grows about fourfold with each step until something fits; then the
         * geometric mean halves the interval in logarithms. */
        double factor = high < HUGE_VAL ? sqrt(low * high) : 1.0 + 4.0 * (low - 0.99);

        for (size_t t = 0; t < times; ++t) {
            dual->price[t] = factor * base[t];
        }
        ap_cfn_dual_prices_changed(dual);
        (void)ap_cfn_dual_sweep(dual);
        ap_cfn_shared_spend(shared, dual->nanoseconds);
        ap_cfn_shared_raise(shared, dual->best);
        ap_cfn_try(shared, dual->choice, dual->load);
        if (ap_cfn_dual_choice_fits(dual)) {
            high = factor;
        } else {
            low = factor;
        }
    }
    memcpy(dual->price, base, times * sizeof(double));
    ap_cfn_dual_prices_changed(dual);
    free(base);
    return XM_OK;
}

/* Raises the bound of a dual that eliminates by messages first, of which a sweep takes so long. The
 * elimination is laid aside meanwhile; the prices, their average and the best of them stay. */
static xm_status_t raise_by_messages(ap_cfn_shared_t *shared, ap_cfn_dual_t *dual, double sweep,
                                     ap_cfn_search_t *search)
{
    ap_elimination_t *exact = dual->exact;
    double nanoseconds = dual->nanoseconds;
    xm_status_t status;

    dual->exact = NULL;
    dual->nanoseconds = sweep;
    status = ap_cfn_raise_bound(shared, dual, search);
    dual->exact = exact;
    dual->nanoseconds = nanoseconds;
    return status;
}

/* Makes a dual and raises its bound: by elimination where that takes few enough cells, by messages
 * elsewhere. Where an elimination takes as long as many sweeps, few are done in the time that
 * there is; messages then find its prices nearly as well, and it goes on from there. */
xm_status_t ap_cfn_make_dual(ap_cfn_shared_t *shared, size_t cells, ap_cfn_search_t *search,
                             ap_cfn_dual_t **dual)
{
    xm_status_t status = ap_cfn_dual_create(shared->core, dual);
    double sweep;

    if (status != XM_OK) {
        return status;
    }
    sweep = (*dual)->nanoseconds;
    status = ap_cfn_dual_eliminate(*dual, cells > 0 ? (double)cells : elimination_cells);
    if (status == XM_OK && (*dual)->exact != NULL && (*dual)->nanoseconds > many_sweeps * sweep) {
        status = raise_by_messages(shared, *dual, sweep, search);
    }
    if (status == XM_OK) {
        /* The prices are converged when this returns, unless the time was up. */
        status = ap_cfn_raise_bound(shared, *dual, search);
    }
    if (status != XM_OK) {
        ap_cfn_dual_destroy(*dual);
    }
    return status;
}
