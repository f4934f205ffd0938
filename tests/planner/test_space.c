#include "planner/space.h"

#include <stdio.h>
#include <string.h>

#include "planner/frontend_zoo.h"
#include "planner/stage.h"
#include "planner/stage_network.h"
#include "planner_fixture.h"
#include "xm_test.h"

/* The letter of the batch factor of the first operator called so, 0: none. */
static char batch_letter(const ap_graph_t *graph, const int *factors, const char *name)
{
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        if (strcmp(op->name, name) == 0) {
            return factors[o] < 0 ? '\0' : op->rule.factor[factors[o]].letter;
        }
    }
    ck_abort_msg("no operator %s", name);
}

/* A mixture of experts regroups the batch: g of "(gt)sh", and dimension 1 of "egch". */
START_TEST(the_batch_is_followed_through_the_graph)
{
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_graph_t *graph;
    int *factors;

    zoo.batch = 16;
    ck_assert_xm_ok(ap_zoo_create("moe-380m", &zoo, &graph));
    ck_assert_xm_ok(ap_space_batch_factors(graph, &factors));
    ck_assert_int_eq(batch_letter(graph, factors, "embedding"), 'b');
    ck_assert_int_eq(batch_letter(graph, factors, "block0.qkv"), 'b');
    ck_assert_int_eq(batch_letter(graph, factors, "block0.scores"), 'b');
    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);

        if (strstr(op->name, "expert.up") != NULL || strstr(op->name, "dispatch") != NULL ||
            strstr(op->name, "group") != NULL) {
            ck_assert_msg(factors[o] >= 0 && op->rule.factor[factors[o]].letter == 'g',
                          "%s has batch factor %d", op->name, factors[o]);
        }
        ck_assert_msg(factors[o] >= 0, "%s has no batch factor", op->name);
    }
    free(factors);
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
    ap_space_t space = ap_space_all();
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    ap_graph_t *graph;
    int *factors, narrowed = 0;

    zoo.batch = 8;
    ck_assert_xm_ok(ap_zoo_create("gpt-125m", &zoo, &graph));
    ck_assert_xm_ok(ap_space_batch_factors(graph, &factors));
    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &model));
    ck_assert_xm_ok(ap_cost_mesh_create(model, 1, 4, shape, 2, &mesh));
    space.roles[0] = AP_ROLE_DATA;
    space.roles[1] = AP_ROLE_TENSOR;
    space.scatter = false;
    for (int o = 0; o < ap_graph_ops(graph) && ap_graph_op(graph, o)->layer < 2; ++o) {
        const ap_op_t *op = ap_graph_op(graph, o);
        ap_strategy_site_t site = {.rule = &op->rule, .mesh = mesh};
        ap_strategy_list_t list;
        int before;

        for (int t = 0; t < AP_MAX_TERMS; ++t) {
            site.element_bytes[t] = 2;
        }
        ck_assert_xm_ok(ap_strategy_enumerate(&site, &options, &list));
        before = list.count;
        ck_assert(ap_space_filter(&space, &op->rule, factors[o], mesh, &list));
        ck_assert_int_ge(list.count, 1);
        narrowed += list.count < before;
        for (int s = 0; s < list.count; ++s) {
            ck_assert_uint_eq(ap_space_role(&op->rule, factors[o], &list.items[s], 0),
                              AP_ROLE_DATA);
            ck_assert_uint_eq(
                ap_space_role(&op->rule, factors[o], &list.items[s], 1) & AP_ROLE_DATA, 0);
            for (int c = 0; c < list.items[s].collective_count; ++c) {
                ck_assert_int_ne(list.items[s].collective[c].kind, AP_REDUCE_SCATTER);
            }
        }
        ap_strategy_list_free(&list);
    }
    ck_assert_int_gt(narrowed, 10);
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
    free(factors);
    ap_graph_destroy(graph);
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

            ck_assert_str_eq(ap_spec_format(choice->operands[operand], rank, text, sizeof(text)),
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
    ap_space_t space = ap_space_all();
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

START_TEST(containment_looks_at_every_part)
{
    ap_space_t whole = ap_space_all(), part = ap_space_all();

    ck_assert(ap_space_contains(&whole, &part));
    part.roles[1] = AP_ROLE_DATA;
    ck_assert(ap_space_contains(&whole, &part));
    ck_assert(!ap_space_contains(&part, &whole));
    part = ap_space_all();
    part.stage_devices = 1;
    ck_assert(ap_space_contains(&whole, &part));
    ck_assert(!ap_space_contains(&part, &whole));
    part = ap_space_all();
    part.keep = false;
    ck_assert(!ap_space_contains(&part, &whole));
    part = ap_space_all();
    part.one_axis = true;
    ck_assert(!ap_space_contains(&part, &whole));
    part = ap_space_all();
    part.parameter_modes = 1U << AP_PARAMETER_REPLICATED;
    ck_assert(!ap_space_contains(&part, &whole));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("space");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, the_batch_is_followed_through_the_graph);
    tcase_add_test(tcase, a_filter_leaves_the_roles_of_the_space);
    tcase_add_test(tcase, data_and_tensor_axes_give_megatron_blocks);
    tcase_add_test(tcase, containment_looks_at_every_part);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
