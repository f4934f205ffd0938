/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/stage/space.h"

#include <stdio.h>
#include <string.h>

#include "planner/frontend/zoo.h"
#include "planner/stage/stage.h"
#include "planner/published/like/stage_network.h"
#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

/* Checks the role of a factor in every operator whose name ends so. */
static void check_role(const ap_graph_t *graph, const ap_factor_roles_t *roles, const char *name,
                       char letter, unsigned role)
{
    int found = 0;

    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);
        size_t length = strlen(op->name), ending = strlen(name);

        if (length >= ending && strcmp(op->name + length - ending, name) == 0) {
            int factor = ap_sharding_rule_factor(&op->rule, letter, 0);

            ck_assert_msg(factor >= 0, "%s has no factor %c: %s", op->name, letter, op->rule.text);
            ck_assert_msg(roles[o].role[factor] == role, "%s: %c has role %u", op->name, letter,
                          roles[o].role[factor]);
            ++found;
        }
    }
    ck_assert_msg(found > 0, "no operator %s", name);
}

/* A mixture of experts regroups the batch: g of "(gt)sh", and dimension 1 of "egch". */
START_TEST(roles_are_followed_through_the_graph)
{
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_factor_roles_t *roles;
    ap_graph_t *graph;

    zoo.batch = 16;
    ck_assert_xm_ok(ap_zoo_create("moe-380m", &zoo, &graph));
    ck_assert_xm_ok(ap_space_roles(graph, &roles));
    check_role(graph, roles, "embedding", 'b', AP_ROLE_DATA);
    check_role(graph, roles, "embedding", 's', AP_ROLE_SEQUENCE);
    check_role(graph, roles, "embedding", 'v', AP_ROLE_TENSOR);
    check_role(graph, roles, "position.add", 's', AP_ROLE_SEQUENCE);
    check_role(graph, roles, "scores", 'b', AP_ROLE_DATA);
    check_role(graph, roles, "scores", 't', AP_ROLE_SEQUENCE);
    check_role(graph, roles, "scores", 'n', AP_ROLE_TENSOR);
    check_role(graph, roles, "dispatch", 'g', AP_ROLE_DATA);
    check_role(graph, roles, "expert.up", 'g', AP_ROLE_DATA);
    check_role(graph, roles, "expert.up", 'e', AP_ROLE_TENSOR);
    check_role(graph, roles, "ungroup", 'g', AP_ROLE_DATA);
    check_role(graph, roles, "cross_entropy", 'b', AP_ROLE_DATA);
    free(roles);
    ap_graph_destroy(graph);
    /* The columns of an input are features where a weight sums over them. */
    ck_assert_xm_ok(ap_zoo_create("mlp2", &zoo, &graph));
    ck_assert_xm_ok(ap_space_roles(graph, &roles));
    for (int f = 0; f < ap_graph_op(graph, 0)->rule.factors; ++f) {
        ck_assert_uint_ne(roles[0].role[f], AP_ROLE_SEQUENCE);
    }
    free(roles);
    ap_graph_destroy(graph);
}
END_TEST

/* Of every operator of a layer on a 2 x 2 mesh: what is left has the roles of the space. */
START_TEST(a_filter_leaves_the_roles_of_the_space)
{
    static const int shape[] = {2, 2};
    const ap_strategy_options_t options = {.scatter = true};
    xm_cluster_profile_t *profile = planner_fixture_profile(1, 4, 64e9);
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_space_t space = AP_SPACE_INIT;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    ap_graph_t *graph;
    ap_factor_roles_t *roles;
    int narrowed = 0;

    zoo.batch = 8;
    ck_assert_xm_ok(ap_zoo_create("gpt-125m", &zoo, &graph));
    ck_assert_xm_ok(ap_space_roles(graph, &roles));
    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &model));
    ck_assert_xm_ok(ap_cost_mesh_create(model, 1, 4, shape, 2, &mesh));
    space.roles[0] = AP_ROLE_DATA;
    space.roles[1] = AP_ROLE_TENSOR;
    space.scatter = false;
    for (int o = 0; o < ap_graph_ops(graph) && ap_graph_op(graph, o)->layer < 2; ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);
        ap_strategy_context_t site = {.rule = &op->rule, .mesh = mesh};
        ap_strategy_list_t list;
        int before;

        site.element_bytes = 2;
        ck_assert_xm_ok(ap_strategy_enumerate(&site, &options, &list));
        before = list.count;
        ck_assert(ap_space_filter(&space, &op->rule, &roles[o], mesh, &list));
        ck_assert_int_ge(list.count, 1);
        narrowed += list.count < before;
        for (int s = 0; s < list.count; ++s) {
            ck_assert_uint_eq(ap_space_role(&op->rule, &roles[o], &list.items[s], 0), AP_ROLE_DATA);
            ck_assert_uint_eq(ap_space_role(&op->rule, &roles[o], &list.items[s], 1) &
                                  ~(unsigned)AP_ROLE_TENSOR,
                              0);
            for (int c = 0; c < list.items[s].collective_count; ++c) {
                ck_assert_int_ne(list.items[s].collective[c].kind, AP_REDUCE_SCATTER);
            }
        }
        ap_strategy_list_free(&list);
    }
    ck_assert_int_gt(narrowed, 10);
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
    free(roles);
    ap_graph_destroy(graph);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* The cheapest way to compute a small product is often to repeat it; a space can forbid that. */
START_TEST(products_can_be_demanded_to_be_cut)
{
    static const int shape[] = {2, 2};
    const ap_strategy_options_t options = {0};
    const ap_shape_t operands[] = {{2, {8, 6}}, {2, {6, 4}}}, odd[] = {{2, {8, 3}}, {2, {3, 5}}};
    uint8_t role[] = {AP_ROLE_DATA, AP_ROLE_TENSOR, AP_ROLE_TENSOR};
    const ap_factor_roles_t roles = {role};
    xm_cluster_profile_t *profile = planner_fixture_profile(1, 4, 64e9);
    ap_space_t space = AP_SPACE_INIT;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;

    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &model));
    ck_assert_xm_ok(ap_cost_mesh_create(model, 1, 4, shape, 2, &mesh));
    space.roles[0] = AP_ROLE_DATA;
    space.roles[1] = AP_ROLE_TENSOR;
    for (int demanded = 0; demanded < 2; ++demanded) {
        for (int divides = 0; divides < 2; ++divides) {
            ap_sharding_rule_t rule;
            ap_strategy_context_t site = {.rule = &rule, .mesh = mesh};
            ap_strategy_list_t list;
            int repeating = 0;

            site.element_bytes = 4;
            ck_assert_xm_ok(ap_sharding_rule_create("bk,kn->bn", NULL, NULL, NULL,
                                                    divides != 0 ? operands : odd, 2, &rule));
            ck_assert_xm_ok(ap_strategy_enumerate(&site, &options, &list));
            space.cut_products = demanded != 0;
            ck_assert(ap_space_filter(&space, &rule, &roles, mesh, &list));
            for (int s = 0; s < list.count; ++s) {
                repeating += ap_space_role(&rule, &roles, &list.items[s], 1) == 0;
            }
            /* Where neither features nor sums divide, repeating is all there is. */
            ck_assert_int_eq(repeating > 0, demanded == 0 || divides == 0);
            ck_assert_int_ge(list.count, 1);
            ap_strategy_list_free(&list);
            ap_sharding_rule_destroy(&rule);
        }
    }
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
    xm_cluster_profile_destroy(profile);
}
END_TEST

static void check_spec(const ap_graph_t *graph, const ap_stage_solution_t *solution,
                       const char *name, int operand, const char *expected)
{
    for (int c = 0; c < ap_stage_solution_choices(solution); ++c) {
        const ap_stage_choice_t *choice = ap_stage_solution_choice(solution, c);
        const ap_op_t *op = ap_graph_op(graph, choice->op);
        char text[AP_SPEC_TEXT];

        if (strcmp(op->name, name) == 0) {
            int rank = ap_graph_tensor(graph, op->operands[operand])->shape.rank;

            ck_assert_str_eq(ap_spec_format(choice->specs[operand], rank, text, sizeof(text)),
                             expected);
            return;
        }
    }
    ck_abort_msg("no operator %s", name);
}

/* With data on one axis and tensor on the other the best block is Megatron's: columns of the first
 * product, rows of the second. */
START_TEST(data_and_tensor_axes_give_megatron_blocks)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(1, 4, 64e9);
    ap_stage_context_params_t params = AP_STAGE_CONTEXT_PARAMS_INIT;
    ap_stage_query_t query = AP_STAGE_QUERY_INIT;
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_space_t space = AP_SPACE_INIT;
    ap_stage_solution_t *solution;
    ap_stage_context_t *context;
    ap_cost_model_t *model;
    ap_graph_t *graph;

    zoo.batch = 8;
    ck_assert_xm_ok(ap_zoo_create("gpt-125m", &zoo, &graph));
    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &model));
    space.roles[0] = AP_ROLE_DATA;
    space.roles[1] = AP_ROLE_TENSOR;
    space.parameter_modes = 1U << AP_PARAMETER_REPLICATED;
    space.scatter = false;
    params.graph = graph;
    params.cost = model;
    params.micro_batches = 4;
    params.space = &space;
    ck_assert_xm_ok(ap_stage_context_create(&params, &context));
    query.first = 2;
    query.last = 3;
    query.hosts = 1;
    query.devices = 4;
    query.shape[0] = query.shape[1] = 2;
    ck_assert_xm_ok(ap_stage_solve(context, &query, &solution));
    check_spec(graph, solution, "block2.up", 0, "S0RR");
    check_spec(graph, solution, "block2.up", 1, "RS1");
    check_spec(graph, solution, "block2.down", 0, "S0RS1");
    check_spec(graph, solution, "block2.down", 1, "S1R");
    ap_stage_solution_destroy(solution);
    ap_stage_context_destroy(context);
    ap_cost_model_destroy(model);
    ap_graph_destroy(graph);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* What all of a model takes on a mesh of 2 x 2, data on one axis and tensor on the other, in layers
 * of its own or in one. */
static double step_in_layers(ap_graph_t *graph, const ap_cost_model_t *model)
{
    ap_stage_context_params_t params = AP_STAGE_CONTEXT_PARAMS_INIT;
    ap_stage_query_t query = AP_STAGE_QUERY_INIT;
    ap_space_t space = AP_SPACE_INIT;
    ap_stage_context_t *context;
    ap_stage_cost_t cost;

    space.roles[0] = AP_ROLE_DATA;
    space.roles[1] = AP_ROLE_TENSOR;
    space.parameter_modes = 1U << AP_PARAMETER_REPLICATED;
    params.graph = graph;
    params.cost = model;
    params.space = &space;
    ck_assert_xm_ok(ap_stage_context_create(&params, &context));
    query.last = ap_graph_layers(graph) - 1;
    query.hosts = 4;
    query.devices = 1;
    query.shape[0] = query.shape[1] = 2;
    ck_assert_xm_ok(ap_stage_evaluate(context, &query, &cost));
    ap_stage_context_destroy(context);
    return ap_stage_objective(&cost, 1);
}

/* What skips layers, an encoder's output and the sums beside a block's products, rests as the space
 * lets it lie: a model in many layers takes no more than as one, where nothing rests. */
START_TEST(layers_add_nothing_to_what_a_space_allows)
{
    static const double fast[] = {1000, 1000, 1000,
                                  1000}; /* so that it is resharding that counts */
    xm_cluster_profile_t *profile = planner_fixture_unequal(4, 1, 64e9, fast, NULL, 0);
    ap_layering_t how = AP_LAYERING_INIT;
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_graph_t *graph, *one, *many;
    ap_cost_model_t *model;
    double least;

    zoo.batch = 8;
    ck_assert_xm_ok(ap_zoo_create("t5-60m", &zoo, &graph));
    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &model));
    how.layers = 1;
    ck_assert_xm_ok(ap_graph_make_layers(graph, &how, &one));
    least = step_in_layers(one, model);
    for (how.layers = 8; how.layers <= 32; how.layers *= 2) {
        ck_assert_xm_ok(ap_graph_make_layers(graph, &how, &many));
        ck_assert_double_le(step_in_layers(many, model), 1.001 * least);
        ap_graph_destroy(many);
    }
    ap_cost_model_destroy(model);
    ap_graph_destroy(graph);
    ap_graph_destroy(one);
    xm_cluster_profile_destroy(profile);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("space");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, roles_are_followed_through_the_graph);
    tcase_add_test(tcase, a_filter_leaves_the_roles_of_the_space);
    tcase_add_test(tcase, products_can_be_demanded_to_be_cut);
    tcase_add_test(tcase, data_and_tensor_axes_give_megatron_blocks);
    tcase_add_test(tcase, layers_add_nothing_to_what_a_space_allows);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
