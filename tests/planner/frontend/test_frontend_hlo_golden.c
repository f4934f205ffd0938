/* Dumps of real training steps: Alpa's golden objectives, Megatron's pattern. */
#include "planner/frontend/hlo/hlo.h"
#include "planner/intra_op/plan.h"
#include "planner/intra_op/report.h"
#include "tests/planner/intra_op/tables_fixture.h"
#include "xm_test.h"

static const int shape_4x1[] = {4, 1}, shape_1x4[] = {1, 4};

typedef struct solved {
    ap_graph_t *graph;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    ap_shard_problem_t *problem;
    int *choice;
    double objective;
} solved_t;

static void solve(const char *file, const int *shape, bool force_data_parallel, solved_t *s)
{
    ap_alpa_params_t alpa = AP_ALPA_PARAMS_INIT;
    ap_shard_params_t params = AP_SHARD_PARAMS_INIT;
    ap_intra_op_result_t result;
    ap_frontend_notes_t *notes;
    char path[128];

    alpa.beta[0] = alpa.beta[1] = 1;
    alpa.force_data_parallel = force_data_parallel;
    (void)snprintf(path, sizeof(path), "tests/fixtures/hlo/%s", file);
    ck_assert_xm_ok(ap_hlo_from_file(xm_test_source_path(path), &s->graph, &notes));
    ck_assert_int_eq(ap_frontend_notes_count(notes), 0);
    ap_frontend_notes_destroy(notes);
    ck_assert_xm_ok(ap_cost_model_create_alpa(&alpa, &s->model));
    ck_assert_xm_ok(ap_cost_mesh_create(s->model, shape[0], shape[1], shape, 2, &s->mesh));
    params.graph = s->graph;
    params.mesh = s->mesh;
    ck_assert_xm_ok(ap_shard_problem_create(&params, &s->problem));
    s->choice = tables_solve(s->problem, &result);
    s->objective = result.objective;
}

static void release(solved_t *s)
{
    free(s->choice);
    ap_shard_problem_destroy(s->problem);
    ap_cost_mesh_destroy(s->mesh);
    ap_cost_model_destroy(s->model);
    ap_graph_destroy(s->graph);
}

/* Spec of a parameter or an operator's first result, by name. */
static const char *spec_of(const solved_t *s, const char *name, char *buffer)
{
    for (int t = 0; t < ap_graph_tensors(s->graph); ++t) {
        const ap_tensor_t *tensor = ap_graph_tensor(s->graph, t);

        if (strcmp(tensor->name, name) == 0) {
            return ap_spec_format(ap_shard_problem_spec(s->problem, s->choice, t),
                                  tensor->shape.rank, buffer, AP_SPEC_TEXT);
        }
    }
    return "no such tensor";
}

/* All-reduce of Alpa's model over some devices, alpha = beta = 1. */
static double all_reduce(int devices, double bytes)
{
    return 1 + 2.0 * (devices - 1) / devices * bytes + 0.01;
}

static ap_shard_report_t *report_of(const solved_t *s)
{
    ap_shard_solution_t *solution;
    ap_shard_report_t *report;

    ck_assert_xm_ok(ap_shard_solution_create(s->problem, s->choice, &solution));
    ck_assert_xm_ok(ap_shard_report_create(solution, &report));
    ap_shard_solution_destroy(solution);
    return report;
}

/* What Alpa's ILP prints, and for the loop of twelve layers the same without the penalties for its
 * weights, which are one array there. */
static const struct {
    const char *file;
    const int *shape;
    bool force_data_parallel;
    double objective;
} golden[] = {
    {"mlp2-b1024-h128.hlo", shape_4x1, false, 196614.02},
    {"mlp2-b1024-h128.hlo", shape_1x4, false, 196614.02},
    {"mlp2-b1024-h128.before_optimizations.txt", shape_4x1, false, 196614.02},
    {"mlp2-b128-h1024.hlo", shape_4x1, false, 786437.00},
    {"mlp2-b128-h1024.hlo", shape_1x4, false, 786437.00},
    {"mlp2-b128-h1024.hlo", shape_4x1, true, 12582918.00},
    {"mlp12-b1024-h128.hlo", shape_4x1, false, 1179684.09},
    {"scan12-b1024-h128.hlo", shape_4x1, false, 1179660.12},
};

START_TEST(objectives_are_alpas)
{
    ap_shard_options_t options = AP_SHARD_OPTIONS_INIT;
    ap_shard_plan_t *plan;
    solved_t s;

    solve(golden[_i].file, golden[_i].shape, golden[_i].force_data_parallel, &s);
    ck_assert_double_eq_tol(s.objective, golden[_i].objective, 1e-3 * golden[_i].objective);
    /* And as autopar shard solves it. */
    options.seconds = 60;
    ck_assert_xm_ok(ap_shard_solve(s.problem, &options, &plan));
    ck_assert_double_eq_tol(ap_shard_plan_result(plan)->objective, s.objective, 1e-6 * s.objective);
    ck_assert(ap_shard_plan_result(plan)->optimal);
    ap_shard_plan_destroy(plan);
    release(&s);
}
END_TEST

/* Attention: heads cut in the projection, rows of the output; MLP: columns, then rows. Each of the
 * two reduces the activation once forward and once backward, and nothing else is said. */
START_TEST(megatrons_pattern_is_found)
{
    static const int shape_1x8[] = {1, 8};
    const double replicated = 2, activation = 4.0 * 8 * 8 * 128;
    const int *const shapes[] = {shape_1x4, shape_1x8};
    char spec[AP_SPEC_TEXT];
    ap_shard_report_t *report;
    solved_t s;

    for (int i = 0; i < 2; ++i) {
        solve("transformer1.before_optimizations.txt", shapes[i], false, &s);
        ck_assert_str_eq(spec_of(&s, "weights[0]['qkv']", spec), "RS1R");
        ck_assert_str_eq(spec_of(&s, "weights[0]['out']", spec), "S1RR");
        ck_assert_str_eq(spec_of(&s, "weights[0]['up']", spec), "RS1");
        ck_assert_str_eq(spec_of(&s, "weights[0]['down']", spec), "S1R");
        ck_assert_str_eq(spec_of(&s, "weights[0]['norm1']", spec), "R");
        ck_assert_double_eq_tol(s.objective,
                                4 * all_reduce(shapes[i][1], activation) + 4 * replicated, 1);
        report = report_of(&s);
        ck_assert_int_eq(report->transfer_count, 4);
        ck_assert_double_eq(report->total[AP_ALL_REDUCE][2].count, 4);
        ck_assert_double_eq(report->total[AP_ALL_REDUCE][2].bytes, 4 * activation);
        ap_shard_report_destroy(report);
        release(&s);
    }
    solve("transformer2.hlo", shape_1x4, false, &s);
    ck_assert_double_eq_tol(s.objective, 8 * all_reduce(4, activation) + 6 * replicated, 1);
    release(&s);
}
END_TEST

/* A small MLP and a large batch: every weight whole, the batch cut, gradients summed. */
START_TEST(small_models_are_data_parallel)
{
    char spec[AP_SPEC_TEXT];
    ap_shard_report_t *report;
    solved_t s;

    solve("mlp2-b1024-h128.before_optimizations.txt", shape_4x1, false, &s);
    ck_assert_str_eq(spec_of(&s, "weights[0]", spec), "RR");
    ck_assert_str_eq(spec_of(&s, "weights[1]", spec), "RR");
    ck_assert_str_eq(spec_of(&s, "batch[0]", spec), "S0R");
    report = report_of(&s);
    ck_assert_int_eq(report->transfer_count, 2);
    ck_assert_double_eq(report->total[AP_ALL_REDUCE][1].bytes, 2 * 4.0 * 128 * 128);
    ap_shard_report_destroy(report);
    release(&s);
}
END_TEST

/* Convolutions and pooling work on a part of the batch. */
START_TEST(a_convnet_is_cut_by_samples)
{
    char spec[AP_SPEC_TEXT];
    solved_t s;

    solve("convnet.hlo", shape_4x1, false, &s);
    ck_assert_str_eq(spec_of(&s, "Arg_4.5", spec), "S0RRR");
    for (int o = 0; o < ap_graph_ops(s.graph); ++o) {
        const ap_op_t *op = ap_graph_op(s.graph, o);

        if (strncmp(op->name, "reduce-window", 13) == 0) {
            ck_assert_str_eq(spec_of(&s, op->name, spec), "S0RRR");
        }
    }
    release(&s);
}
END_TEST

START_TEST(experts_are_spread)
{
    int experts = 0;
    solved_t s;

    solve("moe.hlo", shape_4x1, false, &s);
    for (int t = 0; t < ap_graph_tensors(s.graph); ++t) {
        const ap_tensor_t *tensor = ap_graph_tensor(s.graph, t);
        char spec[AP_SPEC_TEXT];

        if (tensor->kind == AP_TENSOR_PARAMETER && tensor->shape.rank == 3) {
            ck_assert_str_eq(spec_of(&s, tensor->name, spec), "S0RR");
            ++experts;
        }
    }
    ck_assert_int_eq(experts, 2);
    release(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("frontend_hlo_golden");
    TCase *tcase = tcase_create("dumps");

    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, objectives_are_alpas, 0, (int)(sizeof(golden) / sizeof(golden[0])));
    tcase_add_test(tcase, megatrons_pattern_is_found);
    tcase_add_test(tcase, small_models_are_data_parallel);
    tcase_add_test(tcase, a_convnet_is_cut_by_samples);
    tcase_add_test(tcase, experts_are_spread);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
