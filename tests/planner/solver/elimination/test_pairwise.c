/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/planner/cost/profile_fixture.h"

#include <math.h>

#include "tests/planner/solver/elimination/pairwise.h"

enum { MAX_NODES = 6, MAX_EDGES = 10, MAX_STRATEGIES = 4 };

typedef struct instance {
    ap_intra_op_problem_t problem;
    int strategies[MAX_NODES];
    double costs[MAX_NODES][MAX_STRATEGIES];
    const double *cost_rows[MAX_NODES];
    ap_intra_op_edge_t edges[MAX_EDGES];
    double tables[MAX_EDGES][MAX_STRATEGIES * MAX_STRATEGIES];
} instance_t;

/* Edges of three kinds: dense, with forbidden pairs, and "follows" (one finite partner each). */
static void draw_edge(instance_t *x, int e, unsigned *seed)
{
    ap_intra_op_edge_t *edge = &x->edges[e];
    unsigned kind = fixture_random(seed) % 3;

    edge->a = (int)(fixture_random(seed) % (unsigned)x->problem.nodes);
    do {
        edge->b = (int)(fixture_random(seed) % (unsigned)x->problem.nodes);
    } while (edge->a == edge->b);
    edge->costs = x->tables[e];
    for (int s = 0; s < x->strategies[edge->a]; ++s) {
        int partner = (int)(fixture_random(seed) % (unsigned)x->strategies[edge->b]);

        for (int t = 0; t < x->strategies[edge->b]; ++t) {
            bool forbidden =
                (kind == 1 && fixture_random(seed) % 4 == 0) || (kind == 2 && t != partner);

            x->tables[e][s * x->strategies[edge->b] + t] =
                forbidden ? 1e13 : fixture_random(seed) % 50;
        }
    }
}

static void draw(instance_t *x, unsigned *seed)
{
    x->problem.nodes = 2 + (int)(fixture_random(seed) % (MAX_NODES - 1));
    x->problem.edges = (int)(fixture_random(seed) % (MAX_EDGES + 1));
    for (int n = 0; n < x->problem.nodes; ++n) {
        x->strategies[n] = 1 + (int)(fixture_random(seed) % MAX_STRATEGIES);
        for (int s = 0; s < MAX_STRATEGIES; ++s) {
            x->costs[n][s] = fixture_random(seed) % 60;
        }
        x->cost_rows[n] = x->costs[n];
    }
    for (int e = 0; e < x->problem.edges; ++e) {
        draw_edge(x, e, seed);
    }
    x->problem.strategies = x->strategies;
    x->problem.costs = x->cost_rows;
    x->problem.edge = x->edges;
}

static double brute_force(const ap_intra_op_problem_t *problem)
{
    int choice[MAX_NODES] = {0}, n = 0;
    double best = HUGE_VAL;

    while (n < problem->nodes) {
        best = fmin(best, ap_intra_op_cost(problem, choice));
        for (n = 0; n < problem->nodes && ++choice[n] == problem->strategies[n]; ++n) {
            choice[n] = 0;
        }
    }
    return best;
}

static void check_answer(const ap_intra_op_problem_t *problem, double expected, xm_status_t status,
                         const int *choice, const ap_intra_op_result_t *result)
{
    if (expected >= AP_INTRA_OP_INFINITE) {
        ck_assert_int_eq(status, XM_ERR_NO_SOLUTION);
        return;
    }
    ck_assert_msg(status == XM_OK, "%s", xm_last_error());
    ck_assert_double_eq_tol(ap_intra_op_cost(problem, choice), result->objective, 1e-9);
    ck_assert_double_eq_tol(result->objective, expected, 1e-6);
    ck_assert_double_eq_tol(result->bound, expected, 1e-6);
}

START_TEST(random_problems_meet_brute_force)
{
    unsigned seed = 11;
    int solved = 0;

    for (int round = 0; round < 3000; ++round) {
        instance_t x;
        int choice[MAX_NODES];
        ap_intra_op_result_t result;
        xm_status_t status;
        double expected;

        draw(&x, &seed);
        expected = brute_force(&x.problem);
        status = ap_intra_op_solve(&x.problem, 0, choice, &result);
        check_answer(&x.problem, expected, status, choice, &result);
        ck_assert(status != XM_OK || result.eliminated);
        solved += status == XM_OK;
    }
    ck_assert_int_gt(solved, 2000);
}
END_TEST

/* Tables of one cell force the way by diffusion; it must stay between bound and optimum. */
START_TEST(wide_problems_get_bounds_that_hold)
{
    unsigned seed = 12;
    int solved = 0, optimal = 0;

    for (int round = 0; round < 1500; ++round) {
        instance_t x;
        int choice[MAX_NODES];
        ap_intra_op_result_t result;
        double expected;

        draw(&x, &seed);
        expected = brute_force(&x.problem);
        if (expected >= AP_INTRA_OP_INFINITE ||
            ap_intra_op_solve(&x.problem, 1, choice, &result) != XM_OK) {
            continue;
        }
        ++solved;
        ck_assert_double_ge(result.objective, expected - 1e-6);
        ck_assert_double_le(result.bound, expected + 1e-2);
        ck_assert_double_eq_tol(result.objective, ap_intra_op_cost(&x.problem, choice), 1e-9);
        optimal += result.objective <= expected + 1e-6;
    }
    ck_assert_int_gt(solved, 800);
    ck_assert_int_gt(optimal * 100, solved * 95);
}
END_TEST

START_TEST(failures_say_why)
{
    unsigned seed = 1;
    instance_t x;
    int choice[MAX_NODES] = {77};
    ap_intra_op_result_t result;

    draw(&x, &seed);
    x.problem.edges = 1;
    x.edges[0].b = x.edges[0].a;
    ck_assert_xm_fails(ap_intra_op_solve(&x.problem, 0, choice, &result), XM_ERR_INVALID_ARGUMENT,
                       "edge 0 joins");
    x.problem.edges = 0;
    x.strategies[0] = 0;
    ck_assert_xm_fails(ap_intra_op_solve(&x.problem, 0, choice, &result), XM_ERR_INVALID_ARGUMENT,
                       "node 0 has no strategies");
    x.strategies[0] = 1;
    x.costs[0][0] = 1e13;
    ck_assert_xm_fails(ap_intra_op_solve(&x.problem, 0, choice, &result), XM_ERR_NO_SOLUTION,
                       "forbidden");
    ck_assert_int_eq(choice[0], 77);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("intra_op");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 50);
    tcase_add_test(tcase, random_problems_meet_brute_force);
    tcase_add_test(tcase, wide_problems_get_bounds_that_hold);
    tcase_add_test(tcase, failures_say_why);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
