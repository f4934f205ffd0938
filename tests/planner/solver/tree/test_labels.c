/* SPDX-License-Identifier: Apache-2.0 */
/* Passes with labels on small problems, beside every assignment: no bound is above the optimum, and
 * what is said to be complete has found it. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "planner/solver/tree.h"
#include "tests/planner/solver/tree/random_core.h"
#include "tests/xm_test.h"

enum { PROBLEMS = 1500 };
enum { ITEMS = 80, ROOM = 400, KNAPSACKS = 40 };

/* One pass; returns how it ended. */
static ap_cfn_label_end_t pass(const ap_cfn_core_t *core, const ap_cfn_dual_t *dual, double best,
                               double cap, int times, size_t width)
{
    ap_cfn_shared_t shared;
    ap_cfn_label_end_t end;
    double load[TIMES + 1];

    ck_assert_xm_ok(ap_cfn_shared_create(core, INT64_MAX, &shared));
    ck_assert_xm_ok(ap_cfn_label(dual, &shared, cap, times, width, 1e9, &end));
    ck_assert_double_le(shared.bound, best + 1e-6);
    if (shared.cost < HUGE_VAL) {
        ck_assert(ap_cfn_core_fits(core, shared.best, load));
        ck_assert_double_eq(shared.cost, core->constant + ap_cfn_core_cost(core, shared.best));
        ck_assert_double_ge(shared.cost, best);
    }
    if (end == AP_CFN_LABEL_DONE && best < cap) {
        ck_assert_double_eq(shared.cost, best);
    } else if (end == AP_CFN_LABEL_DONE) {
        ck_assert_double_ge(shared.bound, cap < HUGE_VAL ? cap - 1e-6 : HUGE_VAL);
    }
    ap_cfn_shared_destroy(&shared);
    return end;
}

START_TEST(bounds_hold_and_optima_are_found)
{
    int many = 0, loose = 0, done = 0, solved = 0;

    for (int k = 0; k < PROBLEMS; ++k) {
        ap_cfn_core_t *core;
        ap_cfn_dual_t *dual;
        double best;

        seed_cores((uint64_t)k);
        core = random_core();
        best = least_of_all(core);
        solved += best < HUGE_VAL;
        ck_assert_xm_ok(ap_cfn_dual_create(core, &dual));
        if (k % 3 > 0) {
            ck_assert_xm_ok(ap_cfn_dual_eliminate(dual, 1e6));
        }
        for (int step = random_below(30); step >= 0; --step) {
            (void)ap_cfn_dual_sweep(dual);
            ap_cfn_dual_move_prices(dual, ap_cfn_dual_aim(dual, best));
        }
        ck_assert_int_eq(pass(core, dual, best, HUGE_VAL, TIMES, 4096), AP_CFN_LABEL_DONE);
        for (size_t width = 1; width < 10; width += 4) {
            ap_cfn_label_end_t end = pass(core, dual, best, HUGE_VAL, TIMES, width);

            many += end == AP_CFN_LABEL_MANY;
            loose +=
                pass(core, dual, best, HUGE_VAL, random_below(TIMES), 4096) == AP_CFN_LABEL_LOOSE;
            (void)pass(core, dual, best, best < HUGE_VAL ? best - 5 + random_below(20) : 300.0,
                       random_below(TIMES), width);
        }
        done += pass(core, dual, best, best < HUGE_VAL ? best + 1.0 : 1e6, TIMES, 4096) ==
                AP_CFN_LABEL_DONE;
        ap_cfn_dual_destroy(dual);
        ap_cfn_core_destroy(core);
    }
    ck_assert_int_gt(solved, PROBLEMS / 4);
    ck_assert_int_gt(many, PROBLEMS / 30);
    ck_assert_int_gt(loose, PROBLEMS / 30);
    ck_assert_int_eq(done, PROBLEMS);
}
END_TEST

/* A knapsack: variables without a link, which one time ties together. Either a variable uses its
 * weight, or it costs what goes roughly with that. *best is the least cost, by the usual table. */
static ap_cfn_core_t *knapsack(double *best)
{
    ap_cfn_core_size_t size = {.variables = ITEMS,
                               .times = 1,
                               .values = 2 * ITEMS,
                               .segments = ITEMS,
                               .usages = 2 * ITEMS};
    double least[ROOM + 1] = {0};
    ap_cfn_core_maker_t maker;

    ck_assert_xm_ok(ap_cfn_core_begin(&size, &maker));
    for (int v = 0; v < ITEMS; ++v) {
        int weight = 1 + random_below(ROOM / 20);
        double price = 10 * weight + random_below(30);
        double *cost = ap_cfn_core_add_variable(&maker, 2);
        double *usage = ap_cfn_core_add_segment(&maker, 0, 1);

        cost[0] = usage[1] = 0.0;
        cost[1] = price;
        usage[0] = weight;
        for (int room = ROOM; room >= 0; --room) { /* least[room]: of the variables up to here */
            double used = room >= weight ? least[room - weight] : HUGE_VAL;

            least[room] = fmin(used, least[room] + price);
        }
    }
    maker.capacity[0] = ROOM;
    maker.when[0] = 0;
    *best = least[ROOM];
    return ap_cfn_core_finish(&maker);
}

/* Far more components than a step may have children. */
START_TEST(many_components_are_joined)
{
    for (int k = 0; k < KNAPSACKS; ++k) {
        ap_cfn_core_t *core;
        ap_cfn_dual_t *dual;
        double best;

        seed_cores((uint64_t)k);
        core = knapsack(&best);
        ck_assert_xm_ok(ap_cfn_dual_create(core, &dual));
        ck_assert_xm_ok(ap_cfn_dual_eliminate(dual, 1e6));
        for (int step = 0; step < 100; ++step) {
            (void)ap_cfn_dual_sweep(dual);
            ap_cfn_dual_move_prices(dual, ap_cfn_dual_aim(dual, best));
        }
        ck_assert_int_eq(pass(core, dual, best, HUGE_VAL, 1, 4096), AP_CFN_LABEL_DONE);
        ap_cfn_dual_destroy(dual);
        ap_cfn_core_destroy(core);
    }
}
END_TEST

/* What a pass spends that may spend so much. */
static double spent(const ap_cfn_core_t *core, const ap_cfn_dual_t *dual, double work,
                    ap_cfn_label_end_t *end)
{
    ap_cfn_shared_t shared;
    double done;

    ck_assert_xm_ok(ap_cfn_shared_create(core, INT64_MAX, &shared));
    shared.counted = true;
    shared.most = INT64_MAX / 8;
    ck_assert_xm_ok(ap_cfn_label(dual, &shared, HUGE_VAL, 1, (size_t)1 << 20, work, end));
    done = (double)ap_cfn_shared_now(&shared);
    ap_cfn_shared_destroy(&shared);
    return done;
}

/* Joins of components are most of the work here, and end with it like all else. */
START_TEST(joins_end_with_their_work)
{
    for (int k = 0; k < KNAPSACKS; ++k) {
        ap_cfn_label_end_t end;
        ap_cfn_core_t *core;
        ap_cfn_dual_t *dual;
        double best, whole;

        seed_cores((uint64_t)k);
        core = knapsack(&best);
        ck_assert_xm_ok(ap_cfn_dual_create(core, &dual));
        ck_assert_xm_ok(ap_cfn_dual_eliminate(dual, 1e6));
        (void)ap_cfn_dual_sweep(dual);
        whole = spent(core, dual, 1e12, &end);
        ck_assert_int_eq(end, AP_CFN_LABEL_DONE);
        ck_assert_double_lt(spent(core, dual, whole / 4, &end), whole / 2);
        ck_assert_int_eq(end, AP_CFN_LABEL_LARGE);
        ap_cfn_dual_destroy(dual);
        ap_cfn_core_destroy(core);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cfn_labels");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 120);
    tcase_add_test(all, bounds_hold_and_optima_are_found);
    tcase_add_test(all, many_components_are_joined);
    tcase_add_test(all, joins_end_with_their_work);
    suite_add_tcase(suite, all);
    return xm_test_run(suite);
}
