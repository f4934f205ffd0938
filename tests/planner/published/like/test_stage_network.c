/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/published/like/stage_network.h"

#include <math.h>

#include "planner/frontend/zoo.h"
#include "planner/published/choice/ordering.h"
#include "tests/planner/published/choice/reduction.h"
#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

enum { MICRO_BATCHES = 4, MOST = 4096 };

typedef struct site {
    xm_cluster_profile_t *profile;
    ap_cost_model_t *model;
    ap_graph_t *graph;
    ap_stage_context_t *context;
    ap_stage_query_t query;
    ap_stage_network_t *network;
} site_t;

static void open_site(site_t *site, const char *model, const ap_space_t *space, bool recompute)
{
    ap_stage_context_params_t params = AP_STAGE_CONTEXT_PARAMS_INIT;
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;

    zoo.batch = 16;
    site->profile = planner_fixture_profile(2, 2, 64e9);
    ck_assert_xm_ok(ap_zoo_create(model, &zoo, &site->graph));
    ck_assert_xm_ok(ap_cost_model_create_profile(site->profile, &site->model));
    params.graph = site->graph;
    params.cost = site->model;
    params.micro_batches = MICRO_BATCHES;
    params.rematerialize = recompute;
    params.space = space;
    ck_assert_xm_ok(ap_stage_context_create(&params, &site->context));
    site->query = (ap_stage_query_t)AP_STAGE_QUERY_INIT;
    site->query.last = ap_graph_layers(site->graph) - 1;
    site->query.hosts = site->query.devices = 2;
    site->query.shape[0] = site->query.shape[1] = 2;
    ck_assert_xm_ok(ap_stage_network_create(site->context, &site->query, &site->network));
}

static void close_site(site_t *site)
{
    ap_stage_network_destroy(site->network);
    ap_stage_context_destroy(site->context);
    ap_cost_model_destroy(site->model);
    ap_graph_destroy(site->graph);
    xm_cluster_profile_destroy(site->profile);
}

/* Both exact searches on the network find the plan that the layer tables give, and the solution
 * made of their assignment costs what the network says. */
static void check_exact(const char *model, const ap_space_t *space, bool recompute)
{
    const ap_choice_network_t *choices;
    int assignment[MOST];
    ap_stage_solution_t *solution;
    const ap_stage_cost_t *cost;
    ap_stage_cost_t best;
    double least, seconds;
    site_t site;

    open_site(&site, model, space, recompute);
    choices = ap_stage_network_choices(site.network);
    ck_assert_int_lt(choices->core->variables, MOST);
    ck_assert_xm_ok(ap_stage_evaluate(site.context, &site.query, &best));
    least = ap_stage_objective(&best, MICRO_BATCHES);
    ck_assert_xm_ok(ap_search_ordering(choices->core, assignment));
    seconds = ap_choice_network_seconds(choices, assignment);
    ck_assert_double_eq_tol(seconds, least, 1e-9 * least);
    ck_assert_xm_ok(ap_stage_network_solution(site.network, assignment, &solution));
    cost = ap_stage_solution_cost(solution);
    ck_assert_double_eq_tol(ap_stage_objective(cost, MICRO_BATCHES), least, 1e-9 * least);
    ck_assert_double_eq_tol(cost->mem_stage + cost->mem_act,
                            ap_choice_network_bytes(choices, assignment), 1.0);
    ap_stage_solution_destroy(solution);
    ck_assert_xm_ok(ap_search_reduction(choices, assignment, NULL));
    seconds = ap_choice_network_seconds(choices, assignment);
    ck_assert_double_eq_tol(seconds, least, 1e-9 * least);
    close_site(&site);
}

START_TEST(exact_searches_find_the_plan_of_the_layer_tables)
{
    ap_space_t space = AP_SPACE_INIT;

    space.scatter = false;
    space.parameter_modes = 1U << AP_PARAMETER_REPLICATED;
    check_exact("gpt-125m", &space, false);
    check_exact("gpt-125m", &space, true);
    check_exact("gpt-125m", NULL, false);
}
END_TEST

START_TEST(the_data_parallel_start_moves_nothing_between_layers)
{
    ap_space_t space = AP_SPACE_INIT;
    int assignment[MOST];
    ap_stage_solution_t *solution;
    site_t site;

    space.scatter = false;
    open_site(&site, "gpt-125m", &space, false);
    ap_stage_network_data_parallel(site.network, assignment);
    ck_assert_xm_ok(ap_stage_network_solution(site.network, assignment, &solution));
    for (int c = 0; c < ap_stage_solution_choices(solution); ++c) {
        const ap_stage_choice_t *choice = ap_stage_solution_choice(solution, c);

        ck_assert_msg(choice->reshard == 0.0, "%s: %g s", ap_graph_op(site.graph, choice->op)->name,
                      choice->reshard);
    }
    ap_stage_solution_destroy(solution);
    close_site(&site);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stage network");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, exact_searches_find_the_plan_of_the_layer_tables);
    tcase_add_test(tcase, the_data_parallel_start_moves_nothing_between_layers);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
