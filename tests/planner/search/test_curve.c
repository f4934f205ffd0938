/* SPDX-License-Identifier: Apache-2.0 */
/* The curve of step time against memory, held against plans under limits that it knows nothing of.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "planner/explain.h"
#include "planner/search.h"
#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

/* Steps and memory are told apart to a thousandth. */
static const double APART = 2e-3;

static const int64_t b4[] = {1, 4, 16};

typedef struct problem {
    const char *model;
    int blocks, hosts, devices;
    ap_recompute_t recompute;
    bool two_kinds;
} problem_t;

static const problem_t problems[] = {{"gpt-125m", 2, 2, 2, AP_RECOMPUTE_AUTO, false},
                                     {"gpt-350m", 3, 1, 4, AP_RECOMPUTE_OFF, false},
                                     {"moe-380m", 2, 2, 1, AP_RECOMPUTE_AUTO, false},
                                     {"gpt-125m", 2, 2, 1, AP_RECOMPUTE_AUTO, true}};

static double fullest(const ap_plan_t *plan)
{
    double most = 0.0;

    for (int i = 0; i < ap_plan_stages(plan); ++i) {
        most = fmax(most, ap_plan_stage_memory(ap_plan_stage(plan, i)));
    }
    return most;
}

static double step_of(const ap_planner_curve_t *curve, int index)
{
    return ap_plan_info(curve->plans[index])->step;
}

/* Each plan is one that the verification accepts, takes what it says, and is beaten by none. */
static void check_points(const ap_planner_params_t *params, const ap_planner_curve_t *curve)
{
    for (int i = 0; i < curve->count; ++i) {
        const ap_plan_t *plan = curve->plans[i];

        ck_assert_xm_ok(ap_plan_verify(params, plan));
        ck_assert_double_eq_tol(
            1e-9 * (double)planner_fixture_step_ns(plan, AP_SCHEDULE_1F1B, params->profile),
            step_of(curve, i), 1e-6 * step_of(curve, i));
        ck_assert(i == 0 || (fullest(curve->plans[i - 1]) > fullest(plan) &&
                             step_of(curve, i - 1) < step_of(curve, i)));
    }
}

/* No plan under a limit beats the curve, and where the curve ends there is none. */
static int check_limit(const ap_planner_params_t *params, const ap_planner_curve_t *curve,
                       double limit)
{
    ap_planner_params_t within = *params;
    ap_planner_result_t result;
    double bytes, step;
    bool held = false;
    xm_status_t status;

    within.memory_limit = limit;
    status = ap_planner_run(&within, &result);
    if (status == XM_ERR_NO_SOLUTION) {
        ck_assert_double_ge(fullest(curve->plans[curve->count - 1]), limit * (1 - APART));
        return 0;
    }
    ck_assert_xm_ok(status);
    bytes = fullest(result.plan);
    step = ap_plan_info(result.plan)->step;
    for (int i = 0; i < curve->count; ++i) {
        held = held || (fullest(curve->plans[i]) <= bytes * (1 + APART) &&
                        step_of(curve, i) <= step * (1 + APART));
    }
    ck_assert_msg(held, "%.0f bytes and %.6f s beat the curve", bytes, step);
    /* The other way round: what the curve has within the limit, the search finds. */
    for (int i = 0; i < curve->count; ++i) {
        ck_assert(fullest(curve->plans[i]) > limit || step_of(curve, i) >= step * (1 - APART));
    }
    ap_planner_result_clear(&result);
    return 1;
}

START_TEST(no_plan_under_a_limit_beats_the_curve)
{
    enum { LIMITS = 24 };
    const problem_t *problem = &problems[_i];
    xm_cluster_profile_t *profile =
        problem->two_kinds ? planner_fixture_two_kinds(problem->hosts, problem->devices, 16e9)
                           : planner_fixture_profile(problem->hosts, problem->devices, 16e9);
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_planner_curve_t curve;
    double least, most;
    int planned = 0;

    params.model = problem->model;
    params.layers = problem->blocks;
    params.profile = profile;
    params.global_batch = 16;
    params.micro_batches = b4;
    params.micro_batch_count = 3;
    params.recompute = problem->recompute;
    params.memory_reserve = 0;
    ck_assert_xm_ok(ap_planner_curve(&params, &curve));
    ck_assert(!curve.stopped);
    check_points(&params, &curve);
    least = 0.9 * fullest(curve.plans[curve.count - 1]);
    most = fmin(1.05 * fullest(curve.plans[0]), problem->two_kinds ? 8e9 : 16e9);
    for (int i = 0; i < LIMITS; ++i) {
        planned += check_limit(&params, &curve,
                               floor(least * pow(most / least, (double)i / (LIMITS - 1))));
    }
    (void)printf("%s: %d plans on the curve, %d limits of %d\n", problem->model, curve.count,
                 planned, LIMITS);
    ck_assert_int_ge(curve.count, 3);
    ck_assert_int_ge(planned, LIMITS / 2);
    ck_assert_int_lt(planned, LIMITS);
    ap_planner_curve_clear(&curve);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* A curve whose time is over has its first plan all the same, and says so. */
START_TEST(a_curve_may_be_cut_short)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 2, 16e9);
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    ap_planner_curve_t curve;

    params.model = "gpt-125m";
    params.profile = profile;
    params.global_batch = 16;
    params.time_limit = 1e-9;
    ck_assert_xm_ok(ap_planner_curve(&params, &curve));
    ck_assert(curve.stopped);
    ck_assert_int_eq(curve.count, 1);
    ap_planner_curve_clear(&curve);
    params.time_limit = 0.0;
    params.memory_limit = 1e6;
    ck_assert_xm_fails(ap_planner_curve(&params, &curve), XM_ERR_NO_SOLUTION, "does not fit into");
    xm_cluster_profile_destroy(profile);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("planner_curve");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, no_plan_under_a_limit_beats_the_curve, 0,
                        (int)(sizeof(problems) / sizeof(problems[0])));
    tcase_add_test(tcase, a_curve_may_be_cut_short);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
