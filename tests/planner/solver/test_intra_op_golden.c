/* Objectives that Alpa's own solver printed, and the formulas behind them (tolerance 0.1 %). */
#include "xm_test.h"

#include <math.h>
#include <stdio.h>

#include "planner/frontend/zoo.h"
#include "tests/planner/intra_op/tables_fixture.h"
#include "planner/passes/training.h"

typedef struct golden {
    const char *model;
    int batch, hidden;
    int shape[2];
    double beta[2];
    bool data_parallel;
    double formula; /* communication alone */
    double printed; /* with 2 per replicated parameter or input */
} golden_t;

static const golden_t goldens[] = {
    {"mlp2", 1024, 128, {4, 1}, {1, 1}, false, 196610.02, 196614.02},
    {"mlp2", 1024, 128, {1, 4}, {1, 1}, false, 196610.02, 196614.02},
    {"mlp2", 128, 1024, {4, 1}, {1, 1}, false, 786433.01, 786437.00},
    {"mlp2", 128, 1024, {1, 4}, {1, 1}, false, 786433.01, 786437.00},
    {"mlp12", 1024, 128, {4, 1}, {1, 1}, false, 1179660.12, 1179684.09},
    {"mlp12", 1024, 128, {1, 4}, {1, 1}, false, 1179660.12, 1179684.09},
    {"mlp2", 1024, 128, {4, 8}, {1, 0.01}, false, 26872.03, 26872.03},
    {"mlp2", 128, 1024, {4, 1}, {1, 1}, true, 12582914.02, 12582918.00},
};

enum { GOLDENS = sizeof(goldens) / sizeof(goldens[0]) };

/* A golden row's graph on its mesh, solved. */
typedef struct solved {
    ap_graph_t *forward, *training;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    ap_shard_problem_t *shard;
    int *choice;
    ap_intra_op_result_t result;
} solved_t;

static solved_t solve(const golden_t *row)
{
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_alpa_params_t alpa = AP_ALPA_PARAMS_INIT;
    ap_shard_params_t params = AP_SHARD_PARAMS_INIT;
    solved_t s = {0};

    zoo.batch = row->batch;
    zoo.hidden = row->hidden;
    ck_assert_xm_ok(ap_zoo_create(row->model, &zoo, &s.forward));
    ck_assert_xm_ok(ap_training_expand(s.forward, AP_OPTIMIZER_SGD, &s.training));
    alpa.beta[0] = row->beta[0];
    alpa.beta[1] = row->beta[1];
    alpa.force_data_parallel = row->data_parallel;
    ck_assert_xm_ok(ap_cost_model_create_alpa(&alpa, &s.model));
    ck_assert_xm_ok(
        ap_cost_mesh_create(s.model, row->shape[0], row->shape[1], row->shape, 2, &s.mesh));
    params.graph = s.training;
    params.mesh = s.mesh;
    ck_assert_xm_ok(ap_shard_problem_create(&params, &s.shard));
    s.choice = tables_solve(s.shard, &s.result);
    return s;
}

static void release(solved_t *s)
{
    free(s->choice);
    ap_shard_problem_destroy(s->shard);
    ap_cost_mesh_destroy(s->mesh);
    ap_cost_model_destroy(s->model);
    ap_graph_destroy(s->training);
    ap_graph_destroy(s->forward);
}

/* The penalties in a choice: what parameters and inputs cost by themselves. */
static double penalties(const solved_t *s)
{
    double sum = 0;

    for (int t = 0; t < ap_graph_tensors(s->training); ++t) {
        int node = s->shard->tensor_node[t];

        sum += node >= 0 ? ap_strategy_table_of(s->shard, node)->costs[s->choice[node]] : 0;
    }
    return sum;
}

static int find_tensor(const ap_graph_t *graph, const char *name)
{
    for (int t = 0; t < ap_graph_tensors(graph); ++t) {
        if (strcmp(ap_graph_tensor(graph, t)->name, name) == 0) {
            return t;
        }
    }
    ck_abort_msg("no tensor %s", name);
}

static void check_spec(const solved_t *s, const char *tensor, const char *expected)
{
    int id = find_tensor(s->training, tensor);
    char text[AP_SPEC_TEXT];

    (void)ap_spec_format(ap_shard_problem_spec(s->shard, s->choice, id),
                         ap_graph_tensor(s->training, id)->shape.rank, text, sizeof(text));
    ck_assert_msg(strcmp(text, expected) == 0, "%s is %s, expected %s", tensor, text, expected);
}

START_TEST(objectives_meet_what_alpa_prints)
{
    const golden_t *row = &goldens[_i];
    solved_t s = solve(row);
    double communication = s.result.objective - penalties(&s);

    printf("%s b%d h%d (%d,%d)%s: %.2f, without penalties %.2f; formula %.2f, Alpa prints %.2f\n",
           row->model, row->batch, row->hidden, row->shape[0], row->shape[1],
           row->data_parallel ? " data parallel" : "", s.result.objective, communication,
           row->formula, row->printed);
    ck_assert(s.result.eliminated);
    ck_assert_double_eq_tol(s.result.objective, row->printed, 1e-3 * row->printed);
    ck_assert_double_eq_tol(communication, row->formula, 1e-3 * row->formula);
    ck_assert_double_eq_tol(s.result.objective, s.result.bound, 1e-6 * row->printed);
    release(&s);
}
END_TEST

/* On one axis the formula is met to the last cent: no truncation as on Alpa's side. */
START_TEST(one_axis_objectives_are_exact)
{
    const golden_t *row = &goldens[_i];

    if (row->shape[0] == 1 || row->shape[1] == 1) {
        solved_t s = solve(row);

        ck_assert_double_eq_tol(s.result.objective - penalties(&s), row->formula, 5e-3);
        release(&s);
    }
}
END_TEST

START_TEST(chosen_specs_are_the_known_patterns)
{
    solved_t data = solve(&goldens[0]), model = solve(&goldens[2]), both = solve(&goldens[6]);

    check_spec(&data, "x", "S0R");
    check_spec(&data, "y", "S0R");
    check_spec(&data, "w1", "RR");
    check_spec(&data, "w2", "RR");
    check_spec(&data, "h1", "S0R");
    check_spec(&model, "x", "RR");
    check_spec(&model, "w1", "RS0");
    check_spec(&model, "w2", "S0R");
    check_spec(&model, "h1", "RS0");
    check_spec(&model, "h2", "RR");
    check_spec(&both, "x", "S0R");
    check_spec(&both, "y", "S0R");
    check_spec(&both, "w1", "RS1");
    check_spec(&both, "w2", "S1R");
    release(&data);
    release(&model);
    release(&both);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("intra_op_golden");
    TCase *tcase = tcase_create("all");

    tcase_add_loop_test(tcase, objectives_meet_what_alpa_prints, 0, GOLDENS);
    tcase_add_loop_test(tcase, one_axis_objectives_are_exact, 0, GOLDENS);
    tcase_add_test(tcase, chosen_specs_are_the_known_patterns);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
