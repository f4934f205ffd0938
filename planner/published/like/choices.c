/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that shard the whole model over the whole cluster: one stage, a choice network, a search.
 * OptCNN, PaSE, FlexFlow, Tofu, Double Recursive and TensorOpt get the same network
 * (stage_network.h) and differ in nothing but the search. Each logical shape of the cluster is a
 * network of its own, because these planners choose shardings on a given mesh.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/published/like/like_private.h"
#include "planner/published/choice.h"
#include "planner/published/like/flexflow.h"
#include "planner/published/like/moves.h"
#include "planner/published/like/stage_network.h"

enum { AXES = 2, CURVE_POINTS = 16, PROPOSALS = 1000 /* of a random walk, for each variable */ };

/* One network of a run: the case, the logical shape, the choices. */
typedef struct site {
    ap_like_t *like;
    const ap_like_case_t *one;
    ap_stage_query_t query;
    ap_stage_network_t *network;
} site_t;

static xm_status_t evaluate_assignment(const site_t *site, const int *assignment, bool *kept)
{
    ap_plan_part_t part = {.query = site->query, .first_device = 0};
    xm_status_t status;

    *kept = false;
    if (ap_cfn_core_cost(ap_stage_network_choices(site->network), assignment) >= AP_COST_INFINITE) {
        return XM_NO_SOLUTION("no sharding divides on %d x %d devices with %lld micro-batches",
                              site->query.shape[0], site->query.shape[1],
                              (long long)site->one->micro_batches);
    }
    status = ap_stage_network_solution(site->network, assignment, &part.solution);
    if (status == XM_OK) {
        status = ap_like_consider(site->like, site->one, &part, 1, kept);
        ap_stage_solution_destroy(part.solution);
    }
    return status;
}

/* Keeps the points of a curve, fastest first. The judge counts temporaries as well, which the
 * search does not: points that then are beaten are left out. */
static xm_status_t keep_curve(const site_t *site, const ap_frontier_t *frontier,
                              const ap_like_point_t *judged)
{
    ap_like_result_t *result = site->like->result;
    ap_like_point_t *curve = malloc((size_t)frontier->count * sizeof(*curve));

    XM_NEED_MEMORY(curve, "a curve");
    free(result->curve);
    result->curve = curve;
    result->curve_count = 0;
    for (int i = 0; i < frontier->count; ++i) {
        if (i == 0 || judged[i].memory < curve[result->curve_count - 1].memory) {
            curve[result->curve_count++] = judged[i];
        }
    }
    return XM_OK;
}

/* What the judge says of a point, whether or not its plan is kept. */
static xm_status_t price_point(const site_t *site, const ap_frontier_point_t *point,
                               ap_like_point_t *judged)
{
    ap_stage_solution_t *solution;
    xm_status_t status = ap_stage_network_solution(site->network, point->assignment, &solution);
    const ap_stage_cost_t *cost;

    XM_TRY(status);
    cost = ap_stage_solution_cost(solution);
    *judged = (ap_like_point_t){.seconds = point->seconds,
                                .bytes = point->bytes,
                                .step = (double)site->one->micro_batches *
                                        ap_stage_objective(cost, (int)site->one->micro_batches),
                                .memory = ap_stage_memory(cost, 1),
                                .micro_batches = site->one->micro_batches};
    ap_stage_solution_destroy(solution);
    return XM_OK;
}

/* Points come with rising time, so the first that fits is the fastest that does; the last one is
 * judged even if it does not fit. */
static xm_status_t walk_frontier(const site_t *site, const ap_frontier_t *frontier)
{
    ap_like_point_t judged[CURVE_POINTS];
    bool any = false;
    xm_status_t status = XM_OK;

    for (int i = 0; i < frontier->count && status == XM_OK; ++i) {
        status = price_point(site, &frontier->points[i], &judged[i]);
    }
    for (int i = 0; i < frontier->count && status == XM_OK; ++i) {
        bool kept, fits = judged[i].memory <= site->like->limit;

        if (fits || i == frontier->count - 1) {
            status = evaluate_assignment(site, frontier->points[i].assignment, &kept);
            any = any || kept;
            break; /* slower ones are of no use */
        }
    }
    return status == XM_OK && any ? keep_curve(site, frontier, judged) : status;
}

static xm_status_t search_curve(const site_t *site)
{
    ap_frontier_t frontier = {0};
    xm_status_t status =
        ap_search_frontier(ap_stage_network_choices(site->network), CURVE_POINTS, &frontier);

    XM_THEN(status, walk_frontier(site, &frontier));
    ap_frontier_clear(&frontier);
    return status;
}

/* What a random walk may use: not what the temporaries of data parallelism take, where it starts.
 */
static xm_status_t walk_limit(const site_t *site, const int *assignment, double *limit)
{
    ap_stage_solution_t *start;
    XM_TRY(ap_stage_network_solution(site->network, assignment, &start));

    *limit = fmax(1.0, site->like->limit - ap_stage_solution_cost(start)->mem_work);
    ap_stage_solution_destroy(start);
    return XM_OK;
}

static xm_status_t walk_at_random(const ap_like_choice_t *choice, int *assignment)
{
    ap_mcmc_params_t walk = AP_MCMC_PARAMS_INIT;

    walk.seed = choice->effort.seed > 0 ? choice->effort.seed : walk.seed;
    walk.proposals = choice->effort.budget > 0 ? choice->effort.budget
                                               : PROPOSALS * (int64_t)choice->network->variables;
    walk.beta = choice->effort.alpha > 0 ? choice->effort.alpha : walk.beta;
    walk.memory_limit = choice->memory_limit;
    return ap_search_mcmc(choice->network, &walk, assignment);
}

static xm_status_t search_tree(const ap_like_choice_t *choice, int *assignment)
{
    ap_mcts_params_t tree = AP_MCTS_PARAMS_INIT;

    tree.seed = choice->effort.seed > 0 ? choice->effort.seed : tree.seed;
    tree.budget = choice->effort.budget > 0 ? choice->effort.budget : tree.budget;
    for (int v = 0; v < choice->network->variables; ++v) {
        assignment[v] = -1;
    }
    return ap_search_mcts(choice->network, &tree, assignment);
}

xm_status_t ap_like_choose(const ap_like_choice_t *choice, int *assignment)
{
    switch (choice->row->search) {
    /* OptCNN's node elimination takes a variable between two others out, and its edge elimination
     * adds tables up: both are steps of eliminating in an order, so both rows have one search. */
    case AP_SEARCH_REDUCTION:
    case AP_SEARCH_ORDERING:
        return ap_search_ordering(choice->network, assignment);
    case AP_SEARCH_MCMC:
        return walk_at_random(choice, assignment);
    case AP_SEARCH_TREE:
        return search_tree(choice, assignment);
    default:
        return ap_search_recursive(choice->network, choice->part, choice->axes,
                                   choice->row->search == AP_SEARCH_GREEDY, assignment);
    }
}

static xm_status_t substitute(const site_t *site, int *assignment)
{
    const ap_like_effort_t *effort = &site->like->effort;
    ap_substitution_params_t params = AP_SUBSTITUTION_PARAMS_INIT;
    ap_choice_moves_t moves;
    xm_arena_t arena = {0};
    xm_status_t status = ap_like_moves(site->network, effort->rules, &arena, &moves);

    params.budget = effort->budget > 0 ? effort->budget : params.budget;
    params.alpha = effort->alpha > 0 ? effort->alpha : params.alpha;
    if (status == XM_OK) {
        ap_stage_network_data_parallel(site->network, assignment);
        status = ap_search_substitution(ap_stage_network_choices(site->network),
                                        ap_stage_network_parts(site->network), &moves, &params,
                                        assignment);
    }
    xm_arena_clear(&arena);
    return status;
}

/* What a file of strategies says; the tensors between are completed. */
static xm_status_t take_strategies(const site_t *site, int *assignment)
{
    ap_choice_completion_t *completion = NULL;
    XM_TRY(ap_like_read_flexflow(site->network, site->like->effort.strategies, site->query.shape,
                                 assignment));

    XM_TRY(ap_choice_completion_create(ap_stage_network_choices(site->network), &completion));
    ap_choice_complete(completion, true, assignment);
    ap_choice_completion_destroy(completion);
    return XM_OK;
}

static xm_status_t search_one(const site_t *site, int *assignment)
{
    ap_like_choice_t choice = {.row = site->like->row,
                               .effort = site->like->effort,
                               .network = ap_stage_network_choices(site->network),
                               .part = ap_stage_network_parts(site->network),
                               .axes = AXES};
    xm_status_t status = XM_OK;

    if (choice.effort.strategies != NULL) {
        return take_strategies(site, assignment);
    }
    if (choice.row->search == AP_SEARCH_SUBSTITUTION) {
        return substitute(site, assignment);
    }
    if (choice.row->search == AP_SEARCH_MCMC) {
        ap_stage_network_data_parallel(site->network, assignment);
        status = walk_limit(site, assignment, &choice.memory_limit);
    }
    return status == XM_OK ? ap_like_choose(&choice, assignment) : status;
}

static xm_status_t search_site(const site_t *site)
{
    int *assignment;
    bool kept;
    xm_status_t status;

    if (site->like->row->search == AP_SEARCH_FRONTIER) {
        return search_curve(site);
    }
    assignment =
        calloc((size_t)ap_stage_network_choices(site->network)->variables + 1, sizeof(*assignment));
    XM_NEED_MEMORY(assignment, "an assignment");
    status = search_one(site, assignment);
    XM_THEN(status, evaluate_assignment(site, assignment, &kept));
    free(assignment);
    return status;
}

/* A shape that has no sharding is a reason to be told if no other shape has one, either. */
xm_status_t ap_like_choices(ap_like_t *like, ap_like_case_t *one)
{
    site_t site = {.like = like, .one = one, .query = AP_STAGE_QUERY_INIT};
    xm_status_t status = XM_OK;

    site.query.last = like->layers - 1;
    site.query.hosts = like->hosts;
    site.query.devices = like->devices_per_host;
    while (status == XM_OK && ap_like_next_shape(like, &site.query)) {
        if (site.query.shape[1] == 1 && site.query.shape[0] > 1) {
            break; /* n x 1 is 1 x n with its axis renamed */
        }
        status = ap_stage_network_create(one->context, &site.query, &site.network);
        if (status == XM_OK) {
            status = search_site(&site);
            ap_stage_network_destroy(site.network);
            if (status == XM_ERR_NO_SOLUTION) {
                (void)snprintf(like->result->why, sizeof(like->result->why), "%s", xm_last_error());
                status = XM_OK;
            }
        }
    }
    return status;
}
