/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sharding problem's network in the form that the published searches take: costs as doubles,
 * where infinite ones are infinite. The searches are those of stages (choices.c), on the same
 * prices but for one thing: here the operators of the backward pass choose for themselves.
 */

#include "planner/published/like/shard.h"

#include <math.h>
#include <stdlib.h>

#include "planner/published/choice.h"

xm_status_t ap_like_shard_check(const ap_planner_preset_t *row)
{
    switch (row->search) {
    case AP_SEARCH_REDUCTION:
    case AP_SEARCH_ORDERING:
    case AP_SEARCH_MCMC:
    case AP_SEARCH_RECURSIVE:
    case AP_SEARCH_TREE:
    case AP_SEARCH_GREEDY:
        return XM_OK;
    default:
        return XM_INVALID("--like %s: its search is for pipelines or curves (%s); shard takes "
                          "those that choose one sharding, e.g. optcnn, tofu or accpar",
                          row->name, ap_planner_preset_search(row));
    }
}

static double cost_of(int64_t cost)
{
    return cost >= AP_CFN_INFINITE ? HUGE_VAL : (double)cost;
}

/* Without a limit there are edges between two nodes only: what depends on three is a copy's
 * memory. */
static xm_status_t to_core(const ap_cfn_t *cfn, ap_cfn_core_t **core)
{
    ap_cfn_core_size_t size = {.variables = (int)cfn->nodes,
                               .links = (int)cfn->edges,
                               .values = cfn->node_at[cfn->nodes],
                               .cells = cfn->cell_at[cfn->edges]};
    ap_cfn_core_maker_t maker;

    XM_TRY(ap_cfn_core_begin(&size, &maker));
    for (size_t n = 0; n < cfn->nodes; ++n) {
        double *costs = ap_cfn_core_add_variable(&maker, (int)ap_cfn_strategies(cfn, n));

        for (size_t x = cfn->node_at[n]; x < cfn->node_at[n + 1]; ++x) {
            *costs++ = cost_of(cfn->costs[x]);
        }
    }
    for (size_t e = 0; e < cfn->edges; ++e) {
        const int *scope = &cfn->scope[cfn->scope_at[e]];
        double *cells = ap_cfn_core_add_link(&maker, scope[0], scope[1]);

        for (size_t c = cfn->cell_at[e]; c < cfn->cell_at[e + 1]; ++c) {
            *cells++ = cost_of(cfn->cells[c]);
        }
    }
    *core = ap_cfn_core_finish(&maker);
    return XM_OK;
}

/* A random walk starts where nothing is annotated. */
static xm_status_t start(const ap_cfn_core_t *core, const ap_planner_preset_t *row, int *choice)
{
    ap_choice_completion_t *completion;

    if (row->search != AP_SEARCH_MCMC) {
        return XM_OK;
    }
    for (int v = 0; v < core->variables; ++v) {
        choice[v] = -1;
    }
    XM_TRY(ap_choice_completion_create(core, &completion));
    ap_choice_complete(completion, true, choice);
    ap_choice_completion_destroy(completion);
    return XM_OK;
}

xm_status_t ap_like_shard_search(void *arg, const ap_cfn_t *cfn, const uint8_t *part, int *choice)
{
    const ap_like_shard_t *like = arg;
    const uint8_t **of = malloc((cfn->nodes + 1) * sizeof(*of));
    ap_cfn_core_t *core = NULL;
    xm_status_t status = of == NULL ? XM_NO_MEMORY("a search") : to_core(cfn, &core);

    for (size_t n = 0; n < cfn->nodes && status == XM_OK; ++n) {
        of[n] = &part[cfn->node_at[n] * AP_CHOICE_LEVELS];
    }
    if (status == XM_OK) {
        const ap_like_choice_t on = {.row = like->row,
                                     .effort = like->effort,
                                     .network = core,
                                     .part = of,
                                     .axes = AP_CHOICE_LEVELS};

        status = start(core, like->row, choice);
        XM_THEN(status, ap_like_choose(&on, choice));
        ap_cfn_core_destroy(core);
    }
    free(of);
    return status;
}
