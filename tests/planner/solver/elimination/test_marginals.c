/* SPDX-License-Identifier: Apache-2.0 */
/* Elimination on whole cores: the minimum and every value's marginal, against brute force. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "planner/solver/elimination.h"
#include "tests/xm_test.h"

enum { VARIABLES = 7, SIZE = 4, PROBLEMS = 2000 };

static uint64_t state = 1;

static int below(int limit)
{
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)limit);
}

/* Any links, some twice, some cells forbidden; several components now and then. */
static ap_cfn_core_t *random_core(size_t *at)
{
    int variables = 1 + below(VARIABLES), links = variables > 1 ? below(2 * variables) : 0;
    int forbidden = below(3) == 0 ? 60 : 15;
    ap_cfn_core_size_t size = {.variables = variables,
                               .links = links,
                               .values = VARIABLES * SIZE,
                               .cells = (size_t)links * SIZE * SIZE};
    ap_cfn_core_maker_t maker;
    size_t next = 0;

    ck_assert_xm_ok(ap_cfn_core_begin(&size, &maker));
    for (int v = 0; v < variables; ++v) {
        int count = 1 + below(SIZE);
        double *cost = ap_cfn_core_add_variable(&maker, count);

        at[v] = next;
        next += (size_t)count;
        for (int x = 0; x < count; ++x) {
            cost[x] = below(30);
        }
    }
    for (int k = 0; k < links; ++k) {
        int a = below(variables - 1), b = a + 1 + below(variables - 1 - a);
        int cells = maker.core->variable[a].size * maker.core->variable[b].size;
        double *table = ap_cfn_core_add_link(&maker, a, b);

        for (int c = 0; c < cells; ++c) {
            table[c] = below(100) < forbidden ? HUGE_VAL : below(25);
        }
    }
    return ap_cfn_core_finish(&maker);
}

/* The least cost of all assignments, and of those with each value. */
static double brute_force(const ap_cfn_core_t *core, const size_t *at, double *marginal)
{
    int value[VARIABLES] = {0}, v;
    double best = HUGE_VAL;

    for (int k = 0; k < VARIABLES * SIZE; ++k) {
        marginal[k] = HUGE_VAL;
    }
    do {
        double cost = ap_cfn_core_cost(core, value);

        best = fmin(best, cost);
        for (v = 0; v < core->variables; ++v) {
            marginal[at[v] + (size_t)value[v]] = fmin(marginal[at[v] + (size_t)value[v]], cost);
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

START_TEST(minimum_and_marginals_equal_brute_force)
{
    int possible = 0;

    for (int k = 0; k < PROBLEMS; ++k) {
        double expected[VARIABLES * SIZE], marginal[VARIABLES * SIZE];
        const ap_elimination_params_t params = {.marginals = true};
        size_t at[VARIABLES];
        int value[VARIABLES];
        ap_cfn_core_t *core;
        ap_elimination_t *exact;
        double best, found;

        state = (uint64_t)k * 104729 + 7;
        core = random_core(at);
        best = brute_force(core, at, expected);
        ck_assert_xm_ok(ap_elimination_create(core, &exact));
        ck_assert_xm_ok(ap_elimination_plan(exact, &params));
        for (int again = 0; again < 2; ++again) {
            found = ap_elimination_solve(exact, ap_cfn_core_costs(core), value);
            ck_assert_msg(found == best, "problem %d: %g, not %g", k, found, best);
            if (best < HUGE_VAL) {
                ck_assert_double_eq(ap_cfn_core_cost(core, value), best);
                ap_elimination_marginals(exact, ap_cfn_core_costs(core), marginal);
                for (int v = 0; v < core->variables; ++v) {
                    for (int x = 0; x < core->variable[v].size; ++x) {
                        double is = marginal[at[v] + (size_t)x];
                        double should = expected[at[v] + (size_t)x];

                        ck_assert_msg(is == should || fabs(is - should) < 1e-9,
                                      "problem %d, value %d of %d: %g, not %g", k, x, v, is,
                                      should);
                    }
                }
            }
        }
        possible += best < HUGE_VAL;
        ap_elimination_destroy(exact);
        ap_cfn_core_destroy(core);
    }
    ck_assert_int_gt(possible, PROBLEMS / 2);
}
END_TEST

START_TEST(much_work_is_declined)
{
    const ap_elimination_params_t none = {.work = 1.0}, enough = {.work = 1e9};
    size_t at[VARIABLES];
    ap_cfn_core_t *core = NULL;
    ap_elimination_t *exact;

    do {
        ap_cfn_core_destroy(core);
        core = random_core(at);
    } while (core->links < 4);
    ck_assert_xm_ok(ap_elimination_create(core, &exact));
    ck_assert_xm_fails(ap_elimination_plan(exact, &none), XM_ERR_UNSUPPORTED, "more than 1 cells");
    ck_assert_xm_ok(ap_elimination_plan(exact, &enough));
    ck_assert_double_gt(exact->work, 1.0);
    ap_elimination_destroy(exact);
    ap_cfn_core_destroy(core);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cfn_exact");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 60);
    tcase_add_test(all, minimum_and_marginals_equal_brute_force);
    tcase_add_test(all, much_work_is_declined);
    suite_add_tcase(suite, all);
    return xm_test_run(suite);
}
