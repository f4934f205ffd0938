/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/planner/cost/profile_fixture.h"

#include "planner/frontend/zoo.h"
#include "tests/planner/intra_op/tables_fixture.h"
#include "planner/intra_op/report.h"
#include "planner/passes/training.h"

typedef struct fixture {
    xm_cluster_profile_t *profile;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    ap_graph_t *forward, *training;
    ap_shard_params_t params;
} fixture_t;

static void set_up(fixture_t *f, const char *name, int layers, int d0, int d1)
{
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    const int shape[] = {d0, d1};

    zoo.batch = 4;
    zoo.layers = layers;
    f->profile = fixture_profile();
    ck_assert_xm_ok(ap_cost_model_create_profile(f->profile, &f->model));
    ck_assert_xm_ok(ap_cost_mesh_create(f->model, 1, d0 * d1, shape, 2, &f->mesh));
    ck_assert_xm_ok(ap_zoo_create(name, &zoo, &f->forward));
    ck_assert_xm_ok(ap_training_expand(f->forward, AP_OPTIMIZER_ADAM, &f->training));
    f->params = (ap_shard_params_t)AP_SHARD_PARAMS_INIT;
    f->params.graph = f->training;
    f->params.mesh = f->mesh;
    f->params.micro_batches = 8;
    f->params.state_bytes = 12;
}

static void tear_down(fixture_t *f)
{
    ap_graph_destroy(f->training);
    ap_graph_destroy(f->forward);
    ap_cost_mesh_destroy(f->mesh);
    ap_cost_model_destroy(f->model);
    xm_cluster_profile_destroy(f->profile);
}

/* Solves; the caller frees choice and problem. */
static ap_shard_problem_t *solve(const fixture_t *f, int **choice, ap_intra_op_result_t *result)
{
    ap_shard_problem_t *shard;

    ck_assert_xm_ok(ap_shard_problem_create(&f->params, &shard));
    *choice = tables_solve(shard, result);
    return shard;
}

START_TEST(every_operator_input_and_parameter_is_a_node)
{
    ap_shard_problem_t *shard;
    fixture_t f;
    int nodes = 0;

    set_up(&f, "gpt-125m", 1, 2, 2);
    ck_assert_xm_ok(ap_shard_problem_create(&f.params, &shard));
    for (int t = 0; t < ap_graph_tensors(f.training); ++t) {
        int node = shard->tensor_node[t];

        ck_assert((node >= 0) == (ap_graph_tensor(f.training, t)->producer < 0));
        nodes += node >= 0;
        if (node >= 0) {
            ck_assert_str_eq(ap_shard_problem_node_name(shard, node),
                             ap_graph_tensor(f.training, t)->name);
        }
    }
    for (int o = 0; o < ap_graph_ops(f.training); ++o) {
        char text[192];

        ck_assert_str_eq(ap_shard_problem_node_name(shard, shard->op_node[o]),
                         ap_graph_op(f.training, o)->name);
        (void)ap_shard_problem_strategy(shard, shard->op_node[o], 0, text, sizeof(text));
        ck_assert_ptr_nonnull(strstr(text, "->"));
        ++nodes;
    }
    ck_assert_int_eq(nodes, ap_shard_problem_nodes(shard));
    ap_shard_problem_destroy(shard);
    ap_shard_problem_destroy(NULL);
    tear_down(&f);
}
END_TEST

START_TEST(new_weights_go_back_to_where_the_old_are)
{
    ap_shard_problem_t *shard;
    ap_intra_op_result_t result;
    int *choice, aliases = 0;
    fixture_t f;

    set_up(&f, "gpt-125m", 1, 1, 4);
    shard = solve(&f, &choice, &result);
    for (int t = 0; t < ap_graph_tensors(f.training); ++t) {
        int old = ap_graph_tensor(f.training, t)->alias_of;

        if (old >= 0) {
            /* Updated in parts at most; gathering them costs, cutting them is free. */
            ck_assert_uint_eq(ap_spec_used_axes(ap_shard_problem_spec(shard, choice, old)) &
                                  ~ap_spec_used_axes(ap_shard_problem_spec(shard, choice, t)),
                              0);
            ++aliases;
        }
    }
    ck_assert_int_gt(aliases, 10);
    free(choice);
    ap_shard_problem_destroy(shard);
    tear_down(&f);
}
END_TEST

/* On one device there is nothing to choose: the objective is the compute time of all operators. */
START_TEST(one_device_has_one_plan)
{
    ap_shard_problem_t *shard;
    ap_intra_op_result_t result;
    double sum = 0;
    int *choice;
    fixture_t f;

    set_up(&f, "gpt-125m", 1, 1, 1);
    shard = solve(&f, &choice, &result);
    for (int n = 0; n < ap_shard_problem_nodes(shard); ++n) {
        ck_assert_int_eq(ap_strategy_table_of(shard, n)->count, 1);
        sum += ap_strategy_table_of(shard, n)->costs[0];
    }
    ck_assert_double_eq_tol(result.objective, sum, 1e-12);
    free(choice);
    ap_shard_problem_destroy(shard);
    tear_down(&f);
}
END_TEST

/* A table of 2^20 rows of which 64 are looked up: what is paid for is 64 rows read and written and
 * the indices, in the problem and in the report, however the table is cut. */
START_TEST(a_look_up_costs_its_rows)
{
    static const ap_shape_t places = {1, {64}}, words = {2, {1 << 20, 256}};
    const double bytes = 64 * 4 + 2 * 64 * 256 * 4, bandwidth = 5e11;
    ap_op_params_t embedding = AP_OP_PARAMS_INIT;
    ap_shard_solution_t *solution;
    ap_shard_report_t *report;
    ap_shard_problem_t *shard;
    ap_intra_op_result_t result;
    ap_graph_t *graph;
    int indices, table, *choice, looked_up;
    fixture_t f;

    set_up(&f, "gpt-125m", 1, 1, 1);
    ck_assert_xm_ok(ap_graph_create("table", &graph));
    ck_assert_xm_ok(
        ap_graph_add_tensor(graph, "indices", AP_TENSOR_INPUT, &places, AP_DTYPE_I32, &indices));
    ck_assert_xm_ok(
        ap_graph_add_tensor(graph, "table", AP_TENSOR_PARAMETER, &words, AP_DTYPE_F32, &table));
    embedding.kind = AP_OP_EMBEDDING;
    embedding.name = "rows";
    embedding.rule = "b,vh->bh";
    embedding.operand_count = 2;
    embedding.operands = (const int[]){indices, table};
    embedding.result_dtype = AP_DTYPE_F32;
    ck_assert_xm_ok(ap_graph_add_op(graph, &embedding, &looked_up));
    ck_assert_xm_ok(ap_graph_finish(graph));
    f.params.graph = graph;
    f.params.micro_batches = 1;
    shard = solve(&f, &choice, &result);
    ck_assert_double_eq_tol(result.objective, bytes / bandwidth, 1e-12);
    ck_assert_xm_ok(ap_shard_solution_create(shard, choice, &solution));
    ck_assert_xm_ok(ap_shard_report_create(solution, &report));
    ck_assert_double_eq_tol(report->compute, bytes / bandwidth, 1e-12);
    ap_shard_report_destroy(report);
    ap_shard_solution_destroy(solution);
    free(choice);
    ap_shard_problem_destroy(shard);
    ap_graph_destroy(graph);
    tear_down(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shard_problem");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 50);
    tcase_add_test(tcase, every_operator_input_and_parameter_is_a_node);
    tcase_add_test(tcase, new_weights_go_back_to_where_the_old_are);
    tcase_add_test(tcase, one_device_has_one_plan);
    tcase_add_test(tcase, a_look_up_costs_its_rows);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
