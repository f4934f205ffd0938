/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The presolve's view of memory as a whole: for every time, the least that can be used then with
 * each value of each node, whatever it costs. Forbidden cells tie large tensors together, so their
 * least usages, each by itself, say little: a block of a transformer needs 1.4 times their sum. The
 * dual of a problem that has usage at one time for cost, and of the tables only what they forbid,
 * bounds what they need together; a value with which more is needed than there is goes.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/bound.h"
#include "planner/solver/reduce/reduce_private.h"

/* Cells that all sweeps together may look at, those of a round that drops nothing, and a pass of
 * elimination; a part of the values that is worth beginning anew without them. */
static const double all_work = 1.5e8, trial_work = 3e7, pass_work = 3e6, large_part = 0.1;
enum { SWEEPS = 10, ROUNDS = 20 };
/* Sweeps go on at a time while the bound closes this part of its distance to the room there is. */
static const double worthwhile = 0.1;

static bool forbids(const ap_cfn_core_t *core, const ap_cfn_link_t *link)
{
    size_t cells = (size_t)core->variable[link->a].size * (size_t)core->variable[link->b].size;

    for (size_t k = 0; k < cells; ++k) {
        if (!(link->table[k] < HUGE_VAL)) {
            return true;
        }
    }
    return false;
}

/* A core without costs, and with those links only that forbid something. */
static xm_status_t make_bare(const ap_cfn_core_t *core, ap_cfn_core_t **bare)
{
    ap_cfn_core_size_t size = {
        .variables = core->variables, .times = core->times, .values = ap_cfn_core_values(core)};
    ap_cfn_core_maker_t maker;
    xm_status_t status;

    for (int v = 0; v < core->variables; ++v) {
        size.segments += (size_t)core->variable[v].segments;
        size.usages += (size_t)core->variable[v].segments * (size_t)core->variable[v].size;
    }
    for (int k = 0; k < core->links; ++k) {
        const ap_cfn_link_t *link = &core->link[k];

        if (forbids(core, link)) {
            ++size.links;
            size.cells +=
                (size_t)core->variable[link->a].size * (size_t)core->variable[link->b].size;
        }
    }
    status = ap_cfn_core_begin(&size, &maker);
    if (status != XM_OK) {
        return status;
    }
    memcpy(maker.capacity, core->capacity, (size_t)core->times * sizeof(double));
    for (int v = 0; v < core->variables; ++v) {
        const ap_cfn_variable_t *variable = &core->variable[v];

        memset(ap_cfn_core_add_variable(&maker, variable->size), 0,
               (size_t)variable->size * sizeof(double));
        for (int k = 0; k < variable->segments; ++k) {
            memcpy(
                ap_cfn_core_add_segment(&maker, variable->segment[k].from, variable->segment[k].to),
                variable->segment[k].usage, (size_t)variable->size * sizeof(double));
        }
    }
    for (int k = 0; k < core->links; ++k) {
        const ap_cfn_link_t *link = &core->link[k];

        if (forbids(core, link)) {
            double *table = ap_cfn_core_add_link(&maker, link->a, link->b);
            size_t cells =
                (size_t)core->variable[link->a].size * (size_t)core->variable[link->b].size;

            for (size_t c = 0; c < cells; ++c) {
                table[c] = link->table[c] < HUGE_VAL ? 0.0 : HUGE_VAL;
            }
        }
    }
    *bare = ap_cfn_core_finish(&maker);
    return XM_OK;
}

/* Drops what does not fit at a time, and counts it. Without room for anything the bound says so. */
static size_t fit_at(ap_cfn_reduction_t *self, ap_cfn_dual_t *dual, int time, double usages,
                     bool *keep, double *work)
{
    double room = dual->core->capacity[time], limit = 0.5 + ap_cfn_rounding(room), before;
    size_t dropped = 0;

    memset(dual->price, 0, (size_t)dual->core->times * sizeof(double));
    dual->price[time] = 1.0;
    ap_reduce_spend(self, usages);
    ap_cfn_dual_prices_changed(dual);
    dual->bound = -HUGE_VAL;
    for (int sweep = 0; sweep < SWEEPS; ++sweep) {
        before = dual->bound;
        dropped += (size_t)ap_cfn_dual_fix(dual, limit, keep);
        *work -= (dual->exact != NULL ? 3.0 : 1.0) * dual->work;
        self->spent += (dual->exact != NULL ? 3.0 : 1.0) * dual->nanoseconds;
        if (dual->exact != NULL || dual->bound >= limit ||
            dual->bound - before < worthwhile * (limit - dual->bound)) {
            break;
        }
    }
    return dropped;
}

/* The times with the least room come first: what they drop lets the others tell more. */
static void sort_times(const ap_cfn_core_t *core, int *order)
{
    for (int t = 0; t < core->times; ++t) {
        int k = t;

        for (; k > 0 && core->capacity[order[k - 1]] > core->capacity[t]; --k) {
            order[k] = order[k - 1];
        }
        order[k] = t;
    }
}

/* Looks at the times until enough has gone to begin anew, as far as the work lasts. */
static xm_status_t look(ap_cfn_reduction_t *self, ap_cfn_dual_t *dual, bool *keep, int *order,
                        double *work, size_t *dropped)
{
    double begin = *work, usages = dual->core->times;

    for (int v = 0; v < dual->core->variables; ++v) {
        usages += (double)dual->core->variable[v].segments * dual->core->variable[v].size;
    }
    sort_times(dual->core, order);
    for (int k = 0; k<dual->core->times && * work> 0.0 && ap_reduce_goes_on(self); ++k) {
        double room = dual->core->capacity[order[k]];

        *dropped += fit_at(self, dual, order[k], usages, keep, work);
        if (dual->bound >= 0.5 + ap_cfn_rounding(room)) {
            return XM_NO_SOLUTION("no choice fits: at some time the least that can be used "
                                  "together is more than the limit %lld",
                                  (long long)self->cfn->limit);
        }
        if ((double)*dropped > large_part * (double)ap_cfn_core_values(dual->core) ||
            (*dropped == 0 && *work < begin - trial_work)) {
            break;
        }
    }
    return XM_OK;
}

/* One round on the present core. */
static xm_status_t fit_once(ap_cfn_reduction_t *self, double *work, size_t *dropped)
{
    ap_cfn_core_t *bare = NULL;
    ap_cfn_dual_t *dual = NULL;
    xm_arena_t pool = {0};
    size_t values = ap_cfn_core_values(self->core);
    bool *keep = xm_arena_take(&pool, values * sizeof(*keep));
    int *order = xm_arena_take(&pool, ((size_t)self->core->times + 1) * sizeof(*order));
    xm_status_t status = pool.failed ? ap_reduce_no_memory() : make_bare(self->core, &bare);

    *dropped = 0;
    if (status == XM_OK) {
        status = ap_cfn_dual_create(bare, &dual);
    }
    if (status == XM_OK) {
        status = ap_cfn_dual_eliminate(dual, pass_work);
    }
    if (status == XM_OK) {
        memset(keep, true, values * sizeof(*keep));
        status = look(self, dual, keep, order, work, dropped);
    }
    for (int v = 0; status == XM_OK && v<self->core->variables && * dropped> 0; ++v) {
        status = ap_reduce_shrink(self, self->root[v], keep + dual->at[v]);
    }
    ap_cfn_dual_destroy(dual);
    ap_cfn_core_destroy(bare);
    xm_arena_clear(&pool);
    return status;
}

xm_status_t ap_reduce_fit_together(ap_cfn_reduction_t *self)
{
    double work = all_work;
    size_t dropped = 1;
    xm_status_t status = XM_OK;

    /* A certificate has no words for this. */
    for (int round = 0; status == XM_OK && round < ROUNDS && dropped > 0 && work > 0.0 &&
                        self->times > 0 && !self->noted;
         ++round) {
        status = fit_once(self, &work, &dropped);
        if (status == XM_OK && dropped > 0) {
            status = ap_reduce_propagate(self);
            if (status == XM_OK) {
                status = ap_reduce_refit(self);
            }
            if (status == XM_OK) {
                status = ap_reduce_values(self);
            }
            if (status == XM_OK) {
                ap_cfn_core_destroy(self->core);
                self->core = NULL;
                status = ap_reduce_make_core(self);
            }
        }
    }
    return status;
}
