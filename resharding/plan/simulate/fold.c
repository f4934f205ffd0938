/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Folds long chains of equal links for the exclusive simulation, so that a message costs the same
 * through 4 hosts and through 4,000. A message that takes d with latency L reaches hop h when it
 * has come from hop 0, at d + L a hop, and when the hop is free. So, with s = d + L,
 *
 *     start(h) = max(start(0) + h s, max over 1 ≤ g ≤ h of free(g) + (h − g) s)
 *
 * and each hop is then free at start(h) + d. Of many messages in a row there remain: the sum of
 * their d, the largest s, which is all that the times before them go through, and a straight line
 * for each message that is not overtaken by a later one of at least its slope. Hop 0 is always
 * known, so a chain's other hops need not be until another route uses one of them.
 */
#include <stdlib.h>

#include "resharding/plan/plan_private.h"
#include "resharding/plan/simulate/private.h"

enum { SHORTEST_CHAIN = 8 /* hops from which on folding is less work */ };

/* True when each rank but the first is fed by the one before it, over links that are alike. */
static bool is_even_chain(const xm_fold_t *fold, const xm_route_t *route, const xm_use_t *uses)
{
    const double *rate = fold->resources->rate;

    if (route->count < SHORTEST_CHAIN) {
        return false;
    }
    for (int h = 0; h < route->count; ++h) {
        if (route->parents[h] != h - 1 ||
            (h > 0 && (uses[h].count != 2 || uses[h].latency_ns != uses[1].latency_ns ||
                       rate[uses[h].resource[0]] != rate[uses[1].resource[0]] ||
                       rate[uses[h].resource[1]] != rate[uses[1].resource[0]]))) {
            return false;
        }
    }
    return true;
}

/* True when no two hops of the chain but the first share a resource; marks are cleared again. */
static bool has_own_links(xm_fold_t *fold, const xm_route_t *route, const xm_use_t *uses)
{
    bool own = true;

    for (int h = 1; h < route->count; ++h) {
        for (int i = 0; i < 2; ++i) {
            own = own && fold->pending[uses[h].resource[i]] == 0;
            fold->pending[uses[h].resource[i]] = 1;
        }
    }
    for (int h = 1; h < route->count; ++h) {
        fold->pending[uses[h].resource[0]] = fold->pending[uses[h].resource[1]] = 0;
    }
    return own;
}

xm_status_t xm_fold_init(xm_fold_t *fold, const xm_plan_t *plan, xm_resources_t *resources,
                         const xm_hop_uses_t *uses, int64_t *free_at)
{
    int routes = xm_plan_routes(plan);
    int chains = 0;

    *fold = (xm_fold_t){.resources = resources, .uses = uses, .free_at = free_at};
    fold->chain_of = calloc((size_t)routes + 1, sizeof(*fold->chain_of));
    fold->pending = calloc((size_t)resources->count, sizeof(*fold->pending));
    if (fold->chain_of == NULL || fold->pending == NULL) {
        goto no_memory;
    }
    for (int r = 0; r < routes; ++r) {
        const xm_route_t *route = xm_plan_route(plan, r);
        const xm_use_t *use = uses->use + uses->first[r];

        if (is_even_chain(fold, route, use) && has_own_links(fold, route, use)) {
            fold->chain_of[r] = ++chains;
        }
    }
    fold->chains = calloc((size_t)chains + 1, sizeof(*fold->chains));
    if (fold->chains == NULL) {
        goto no_memory;
    }
    for (int r = 0; r < routes; ++r) {
        xm_folded_t *chain = &fold->chains[fold->chain_of[r]];

        chain->hops = xm_plan_route(plan, r)->count;
        chain->uses = uses->use + uses->first[r];
    }
    fold->count = chains;
    return XM_OK;

no_memory:
    return XM_NO_MEMORY("simulating %d routes", routes);
}

void xm_fold_clear(xm_fold_t *fold)
{
    free(fold->chains);
    free(fold->pending);
    free(fold->chain_of);
}

/* Works out the times of a chain's hops, which are nobody's secret from then on. */
static void unfold(xm_fold_t *fold, xm_folded_t *chain)
{
    int64_t passed = 0, free_at = 0;

    for (int h = 1; h < chain->hops; ++h) {
        int64_t *out = &fold->free_at[chain->uses[h].resource[0]];
        int64_t *in = &fold->free_at[chain->uses[h].resource[1]];
        int64_t before = *out > *in ? *out : *in;

        passed = h > 1 && passed + chain->slope > before ? passed + chain->slope : before;
        free_at = passed;
        for (int l = 0; l < chain->lines; ++l) {
            int64_t line = chain->line[l].start + chain->line[l].slope * h;

            free_at = line > free_at ? line : free_at;
        }
        free_at += chain->busy;
        *out = *in = free_at;
        fold->pending[chain->uses[h].resource[0]] = 0;
        fold->pending[chain->uses[h].resource[1]] = 0;
    }
    free_at += chain->uses[1].latency_ns;
    fold->makespan = free_at > fold->makespan ? free_at : fold->makespan;
    chain->lines = 0;
    chain->busy = chain->slope = 0;
    chain->folded = false;
}

void xm_fold_touch(xm_fold_t *fold, const xm_use_t *use)
{
    for (int r = 0; r < use->count; ++r) {
        if (fold->pending[use->resource[r]] != 0) {
            unfold(fold, &fold->chains[fold->pending[use->resource[r]]]);
        }
    }
}

void xm_fold_end(xm_fold_t *fold)
{
    for (int c = 1; c <= fold->count; ++c) {
        if (fold->chains[c].folded) {
            unfold(fold, &fold->chains[c]);
        }
    }
}

bool xm_fold_takes(xm_fold_t *fold, int route, const xm_use_t *first)
{
    int index = fold->chain_of[route];
    xm_folded_t *chain = &fold->chains[index];
    const double *rate = fold->resources->rate;

    if (index == 0 || first->count != 2 || first->latency_ns != chain->uses[1].latency_ns ||
        rate[first->resource[0]] != rate[chain->uses[1].resource[0]] ||
        rate[first->resource[1]] != rate[chain->uses[1].resource[0]]) {
        return false;
    }
    if (chain->lines > XM_FOLDED_LINES - 2) {
        unfold(fold, chain);
    }
    if (!chain->folded) {
        for (int h = 1; h < chain->hops; ++h) {
            xm_fold_touch(fold, &chain->uses[h]);
            fold->pending[chain->uses[h].resource[0]] = index;
            fold->pending[chain->uses[h].resource[1]] = index;
        }
        chain->folded = true;
    }
    /* The first hop is not folded; where it shares a later one's resource nothing can be. */
    xm_fold_touch(fold, first);
    return chain->folded;
}

void xm_fold_add(xm_fold_t *fold, int route, int64_t start, int64_t busy, int64_t count)
{
    xm_folded_t *chain = &fold->chains[fold->chain_of[route]];
    int64_t slope = busy + chain->uses[1].latency_ns;

    start -= chain->busy;
    while (chain->lines > 0 && chain->line[chain->lines - 1].slope <= slope) {
        --chain->lines;
    }
    chain->line[chain->lines++] = (xm_line_t){start, slope};
    chain->slope = slope > chain->slope ? slope : chain->slope;
    chain->busy += count * busy;
}
