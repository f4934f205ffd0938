/*
 * Cross-check against CBC: the same problems as a MILP with marginalised edges (z >= 0 per pair of
 * strategies, row sums = x of one end, column sums = x of the other).
 */
#include "tests/planner/cost/profile_fixture.h"

#include <stdio.h>
#include <unistd.h>

#include "planner/frontend/zoo.h"
#include "tests/planner/intra_op/tables_fixture.h"
#include "planner/passes/training.h"

static bool have_cbc(void)
{
    return system("command -v cbc > /dev/null 2>&1") == 0;
}

static void write_objective(FILE *lp, const ap_intra_op_problem_t *p, double scale)
{
    (void)fprintf(lp, "Minimize\n obj:\n");
    for (int n = 0; n < p->nodes; ++n) {
        for (int s = 0; s < p->strategies[n]; ++s) {
            (void)fprintf(lp, " + %.12g x%d_%d\n", scale * p->costs[n][s], n, s);
        }
    }
    for (int e = 0; e < p->edges; ++e) {
        int cells = p->strategies[p->edge[e].a] * p->strategies[p->edge[e].b];

        for (int c = 0; c < cells; ++c) {
            if (p->edge[e].costs[c] < AP_INTRA_OP_INFINITE) {
                (void)fprintf(lp, " + %.12g z%d_%d\n", scale * p->edge[e].costs[c], e, c);
            }
        }
    }
}

/* Sum of the pairs of one edge that have strategy s at one end, equal to x of that end. */
static void write_marginal(FILE *lp, const ap_intra_op_problem_t *p, int e, bool at_a, int s)
{
    const ap_intra_op_edge_t *edge = &p->edge[e];
    int columns = p->strategies[edge->b], others = p->strategies[at_a ? edge->b : edge->a];

    for (int t = 0; t < others; ++t) {
        int c = at_a ? s * columns + t : t * columns + s;

        if (edge->costs[c] < AP_INTRA_OP_INFINITE) {
            (void)fprintf(lp, " + z%d_%d", e, c);
        }
    }
    (void)fprintf(lp, " - x%d_%d = 0\n", at_a ? edge->a : edge->b, s);
}

static void write_lp(const char *path, const ap_intra_op_problem_t *p, double scale)
{
    FILE *lp = fopen(path, "w");

    ck_assert_ptr_nonnull(lp);
    write_objective(lp, p, scale);
    (void)fprintf(lp, "Subject To\n");
    for (int n = 0; n < p->nodes; ++n) {
        for (int s = 0; s < p->strategies[n]; ++s) {
            (void)fprintf(lp, " + x%d_%d", n, s);
        }
        (void)fprintf(lp, " = 1\n");
    }
    for (int e = 0; e < p->edges; ++e) {
        for (int s = 0; s < p->strategies[p->edge[e].a]; ++s) {
            write_marginal(lp, p, e, true, s);
        }
        for (int s = 0; s < p->strategies[p->edge[e].b]; ++s) {
            write_marginal(lp, p, e, false, s);
        }
    }
    (void)fprintf(lp, "Binary\n");
    for (int n = 0; n < p->nodes; ++n) {
        for (int s = 0; s < p->strategies[n]; ++s) {
            (void)fprintf(lp, " x%d_%d\n", n, s);
        }
    }
    (void)fprintf(lp, "End\n");
    ck_assert_int_eq(fclose(lp), 0);
}

/* Runs CBC and returns the objective of its first line "Optimal - objective value 1.23". */
static double run_cbc(const char *lp_path)
{
    char solution[64], command[256], line[256];
    double objective;
    FILE *file;
    char *number;

    (void)snprintf(solution, sizeof(solution), "%s.sol", lp_path);
    (void)snprintf(command, sizeof(command),
                   "timeout 100 cbc %s ratio 0 allow 0 solve solution %s > /dev/null 2>&1", lp_path,
                   solution);
    ck_assert_int_eq(system(command), 0);
    file = fopen(solution, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(line, sizeof(line), file));
    (void)fclose(file);
    (void)unlink(solution);
    ck_assert_msg(strncmp(line, "Optimal", 7) == 0, "cbc says: %s", line);
    number = strstr(line, "value ");
    ck_assert_ptr_nonnull(number);
    objective = strtod(number + 6, NULL);
    return objective;
}

static void compare(const char *model, const ap_zoo_params_t *zoo, const ap_cost_model_t *cost,
                    const int *shape)
{
    ap_shard_params_t params = AP_SHARD_PARAMS_INIT;
    const ap_intra_op_problem_t *problem;
    tables_t tables;
    ap_graph_t *forward, *training;
    ap_cost_mesh_t *mesh;
    ap_shard_problem_t *shard;
    ap_intra_op_result_t result;
    char path[] = "/tmp/test_intra_op_cbc_XXXXXX.lp";
    int fd = mkstemps(path, 3), *choice;
    double scale, cbc;

    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    ck_assert_xm_ok(ap_zoo_create(model, zoo, &forward));
    ck_assert_xm_ok(ap_training_expand(forward, AP_OPTIMIZER_ADAM, &training));
    ck_assert_xm_ok(ap_cost_mesh_create(cost, 1, shape[0] * shape[1], shape, 2, &mesh));
    params.graph = training;
    params.mesh = mesh;
    params.micro_batches = 4;
    ck_assert_xm_ok(ap_shard_problem_create(&params, &shard));
    tables_open(shard, &tables);
    problem = &tables.problem;
    choice = calloc((size_t)problem->nodes, sizeof(int));
    ck_assert_xm_ok(ap_intra_op_solve(problem, 0, choice, &result));
    ck_assert(result.eliminated);
    scale = 1000 / result.objective; /* CBC's tolerances are absolute */
    write_lp(path, problem, scale);
    cbc = run_cbc(path) / scale;
    (void)unlink(path);
    printf("%s on (%d,%d): %d nodes, ours %.9g, CBC %.9g\n", model, shape[0], shape[1],
           problem->nodes, result.objective, cbc);
    ck_assert_double_eq_tol(result.objective, cbc, 1e-6 * cbc);
    free(choice);
    tables_close(&tables);
    ap_shard_problem_destroy(shard);
    ap_cost_mesh_destroy(mesh);
    ap_graph_destroy(training);
    ap_graph_destroy(forward);
}

START_TEST(mlp_graphs_meet_cbc)
{
    const int shapes[][2] = {{4, 1}, {2, 2}, {4, 8}};
    ap_alpa_params_t alpa = AP_ALPA_PARAMS_INIT;
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_cost_model_t *cost;

    ck_assert_xm_ok(ap_cost_model_create_alpa(&alpa, &cost));
    zoo.batch = 256;
    zoo.hidden = 512;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); ++i) {
        compare("mlp2", &zoo, cost, shapes[i]);
        compare("mlp5", &zoo, cost, shapes[i]);
    }
    ap_cost_model_destroy(cost);
}
END_TEST

START_TEST(a_gpt_block_meets_cbc)
{
    const int shapes[][2] = {{1, 4}, {2, 1}};
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    xm_cluster_profile_t *profile = fixture_profile();
    ap_cost_model_t *cost;

    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &cost));
    zoo.batch = 4;
    zoo.layers = 1;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); ++i) {
        compare("gpt-1.3b", &zoo, cost, shapes[i]);
    }
    ap_cost_model_destroy(cost);
    xm_cluster_profile_destroy(profile);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("intra_op_cbc");
    TCase *tcase = tcase_create("all");

    if (!have_cbc()) {
        printf("skipped: no cbc in PATH (Debian package coinor-cbc)\n");
        return 77;
    }
    tcase_set_timeout(tcase, 150);
    tcase_add_test(tcase, mlp_graphs_meet_cbc);
    tcase_add_test(tcase, a_gpt_block_meets_cbc);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
