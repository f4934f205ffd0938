/* SPDX-License-Identifier: Apache-2.0 */
/* Passes with labels on small problems, beside every assignment: no bound is above the optimum, and
 * what is said to be complete has found it. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "planner/solver/tree.h"
#include "tests/xm_test.h"

enum { VARIABLES = 8, SIZE = 3, TIMES = 5, PROBLEMS = 1500 };
enum { ITEMS = 80, ROOM = 400, KNAPSACKS = 40 };

static uint64_t state = 1;

static int below(int limit)
{
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)limit);
}

/* Costs and usages that are against each other, in one to three components. */
static ap_cfn_core_t *random_core(void)
{
    int variables = 2 + below(VARIABLES - 1), parts = 1 + below(3);
    ap_cfn_core_size_t size = {.variables = variables,
                               .links = VARIABLES * VARIABLES,
                               .times = TIMES,
                               .values = VARIABLES * SIZE,
                               .segments = 2 * VARIABLES,
                               .usages = 2 * VARIABLES * SIZE,
                               .cells = VARIABLES * VARIABLES * SIZE * SIZE};
    ap_cfn_core_maker_t maker;
    int sizes[VARIABLES];
    double most[TIMES] = {0};

    ck_assert_xm_ok(ap_cfn_core_begin(&size, &maker));
    for (int v = 0; v < variables; ++v) {
        int from = below(TIMES), to = from + 1 + below(TIMES - from), count = to < TIMES ? 2 : 1;
        double *cost;

        sizes[v] = 1 + below(SIZE);
        cost = ap_cfn_core_add_variable(&maker, sizes[v]);
        for (int x = 0; x < sizes[v]; ++x) {
            cost[x] = below(100);
        }
        for (int k = 0; k < count; ++k) {
            double *usage = ap_cfn_core_add_segment(&maker, from, to), largest = 0.0;

            for (int x = 0; x < sizes[v]; ++x) {
                usage[x] = (120.0 - cost[x]) * (1 + below(2)) + below(20);
                largest = fmax(largest, usage[x]);
            }
            for (int t = from; t < to; ++t) {
                most[t] += largest;
            }
            from = to;
            to = TIMES;
        }
    }
    for (int a = 0; a < variables; ++a) {
        for (int b = a + 1; b < variables; ++b) {
            if (a % parts == b % parts && below(3) > 0) {
                double *table = ap_cfn_core_add_link(&maker, a, b);

                for (int k = 0; k < sizes[a] * sizes[b]; ++k) {
                    table[k] = k > 0 && below(12) == 0 ? HUGE_VAL : below(60);
                }
            }
        }
    }
    for (int t = 0; t < TIMES; ++t) {
        maker.capacity[t] = floor(most[t] * (60 + below(35)) / 100.0);
        maker.when[t] = t;
    }
    return ap_cfn_core_finish(&maker);
}

/* The least cost of an assignment that fits; HUGE_VAL: there is none. */
static double optimum(const ap_cfn_core_t *core)
{
    int value[VARIABLES] = {0}, v;
    double load[TIMES + 1], best = HUGE_VAL;

    do {
        if (ap_cfn_core_fits(core, value, load)) {
            best = fmin(best, core->constant + ap_cfn_core_cost(core, value));
        }
        for (v = 0; v < core->variables; ++v) {
            if (++value[v] < core->variable[v].size) {
                break;
            }
            value[v] = 0;
        }
    } while (v < core->variables);
    return best;
}

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

        state = (uint64_t)k * 7919 + 17;
        core = random_core();
        best = optimum(core);
        solved += best < HUGE_VAL;
        ck_assert_xm_ok(ap_cfn_dual_create(core, &dual));
        if (k % 3 > 0) {
            ck_assert_xm_ok(ap_cfn_dual_eliminate(dual, 1e6));
        }
        for (int step = below(30); step >= 0; --step) {
            (void)ap_cfn_dual_sweep(dual);
            ap_cfn_dual_move_prices(dual, ap_cfn_dual_aim(dual, best));
        }
        ck_assert_int_eq(pass(core, dual, best, HUGE_VAL, TIMES, 4096), AP_CFN_LABEL_DONE);
        for (size_t width = 1; width < 10; width += 4) {
            ap_cfn_label_end_t end = pass(core, dual, best, HUGE_VAL, TIMES, width);

            many += end == AP_CFN_LABEL_MANY;
            loose += pass(core, dual, best, HUGE_VAL, below(TIMES), 4096) == AP_CFN_LABEL_LOOSE;
            (void)pass(core, dual, best, best < HUGE_VAL ? best - 5 + below(20) : 300.0,
                       below(TIMES), width);
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
        int weight = 1 + below(ROOM / 20);
        double price = 10 * weight + below(30);
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

        state = (uint64_t)k * 7919 + 17;
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

int main(void)
{
    Suite *suite = suite_create("cfn_labels");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 120);
    tcase_add_test(all, bounds_hold_and_optima_are_found);
    tcase_add_test(all, many_components_are_joined);
    suite_add_tcase(suite, all);
    return xm_test_run(suite);
}
