/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/planner/cost/profile_fixture.h"

#include <math.h>

#include "planner/solver/elimination/elimination.h"

enum { MAX_VARIABLES = 6, MAX_TABLES = 10 };

/* A random sum of tables, kept aside for brute force. */
typedef struct instance {
    int variables, domain[MAX_VARIABLES];
    int tables, arity[MAX_TABLES], scope[MAX_TABLES][3];
    double values[MAX_TABLES][64];
} instance_t;

static void draw(instance_t *x, unsigned *seed)
{
    x->variables = 1 + (int)(fixture_random(seed) % MAX_VARIABLES);
    x->tables = 1 + (int)(fixture_random(seed) % MAX_TABLES);
    for (int v = 0; v < x->variables; ++v) {
        x->domain[v] = 1 + (int)(fixture_random(seed) % 4);
    }
    for (int t = 0; t < x->tables; ++t) {
        int most = x->variables < 3 ? x->variables : 3, cells = 1;

        x->arity[t] = (int)(fixture_random(seed) % (unsigned)(most + 1));
        for (int i = 0; i < x->arity[t]; ++i) {
            bool again = true;

            while (again) {
                x->scope[t][i] = (int)(fixture_random(seed) % (unsigned)x->variables);
                again = false;
                for (int j = 0; j < i; ++j) {
                    again = again || x->scope[t][j] == x->scope[t][i];
                }
            }
            cells *= x->domain[x->scope[t][i]];
        }
        for (int c = 0; c < cells; ++c) {
            x->values[t][c] = fixture_random(seed) % 100;
        }
    }
}

static double value_of(const instance_t *x, const int *assignment)
{
    double sum = 0;

    for (int t = 0; t < x->tables; ++t) {
        int cell = 0;

        for (int i = 0; i < x->arity[t]; ++i) {
            cell = cell * x->domain[x->scope[t][i]] + assignment[x->scope[t][i]];
        }
        sum += x->values[t][cell];
    }
    return sum;
}

/* Moves on to the next assignment; false after the last. */
static bool next(const instance_t *x, int *assignment)
{
    for (int v = 0; v < x->variables; ++v) {
        if (++assignment[v] < x->domain[v]) {
            return true;
        }
        assignment[v] = 0;
    }
    return false;
}

static double brute_force(const instance_t *x, const bool *keep, const int *fixed)
{
    int assignment[MAX_VARIABLES] = {0};
    double best = HUGE_VAL;

    do {
        bool agrees = true;

        for (int v = 0; v < x->variables; ++v) {
            agrees = agrees && (!keep[v] || assignment[v] == fixed[v]);
        }
        best = agrees ? fmin(best, value_of(x, assignment)) : best;
    } while (next(x, assignment));
    return best;
}

START_TEST(every_cell_is_the_minimum_and_is_attained)
{
    unsigned seed = 7;

    for (int round = 0; round < 2000; ++round) {
        instance_t x = {0};
        bool keep[MAX_VARIABLES];
        int assignment[MAX_VARIABLES] = {0};
        ap_elimination_t *e;

        draw(&x, &seed);
        for (int v = 0; v < x.variables; ++v) {
            keep[v] = fixture_random(&seed) % 3 == 0;
        }
        ck_assert_xm_ok(ap_elimination_create(x.variables, x.domain, &e));
        for (int t = 0; t < x.tables; ++t) {
            ck_assert_xm_ok(ap_elimination_add(e, x.scope[t], x.arity[t], x.values[t]));
        }
        ck_assert_xm_ok(ap_elimination_run(e, keep, 1 << 20));
        do {
            int traced[MAX_VARIABLES];
            double expected = brute_force(&x, keep, assignment);

            memcpy(traced, assignment, sizeof(traced));
            ck_assert_double_eq_tol(ap_elimination_minimum(e, assignment), expected, 1e-9);
            ap_elimination_trace(e, traced);
            ck_assert_double_eq_tol(value_of(&x, traced), expected, 1e-9);
            for (int v = 0; v < x.variables; ++v) {
                ck_assert(!keep[v] || traced[v] == assignment[v]);
            }
        } while (next(&x, assignment));
        ap_elimination_destroy(e);
    }
}
END_TEST

START_TEST(limits_and_bad_input_are_refused)
{
    const int domain[] = {10, 10, 10}, bad_domain[] = {0}, pair[] = {0, 1}, other[] = {0, 2};
    const int twice[] = {1, 1}, outside[] = {3};
    double values[100] = {0};
    ap_elimination_t *e;

    ck_assert_xm_fails(ap_elimination_create(1, bad_domain, &e), XM_ERR_INVALID_ARGUMENT,
                       "variable 0 has 0 values");
    ck_assert_xm_ok(ap_elimination_create(3, domain, &e));
    ck_assert_xm_fails(ap_elimination_add(e, twice, 2, values), XM_ERR_INVALID_ARGUMENT, "twice");
    ck_assert_xm_fails(ap_elimination_add(e, outside, 1, values), XM_ERR_INVALID_ARGUMENT,
                       "variable 3 of 3");
    ck_assert_xm_ok(ap_elimination_add(e, pair, 2, values));
    ck_assert_xm_ok(ap_elimination_add(e, other, 2, values));
    ck_assert_xm_fails(ap_elimination_run(e, NULL, 5), XM_ERR_UNSUPPORTED, "10 cells");
    ap_elimination_destroy(e);
    ap_elimination_destroy(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("elimination");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 50);
    tcase_add_test(tcase, every_cell_is_the_minimum_and_is_attained);
    tcase_add_test(tcase, limits_and_bad_input_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
