/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/planner/published/choice/reduction.h"

#include "tests/planner/published/choice_fixture.h"
#include "planner/published/choice/ordering.h"
#include "tests/planner/cost/profile_fixture.h"
#include "xm_test.h"

START_TEST(equals_trying_every_assignment)
{
    for (unsigned seed = 1; seed <= 300; ++seed) {
        choice_fixture_t f;
        int assignment[CHOICE_VARIABLES];

        choice_fixture_random(&f, seed, (int)(seed % 8));
        ck_assert_xm_ok(ap_search_reduction(f.network, assignment, NULL));
        ck_assert_double_eq(ap_choice_network_seconds(f.network, assignment),
                            choice_fixture_least(f.network));
        ap_choice_network_destroy(f.network);
    }
}
END_TEST

/* Residual blocks are what the method is made for: only the two ends are enumerated. */
START_TEST(residual_blocks_shrink_to_two_variables)
{
    for (unsigned seed = 1; seed <= 50; ++seed) {
        choice_fixture_t f;
        int assignment[CHOICE_VARIABLES], left;

        choice_fixture_residual(&f, seed);
        ck_assert_xm_ok(ap_search_reduction(f.network, assignment, &left));
        ck_assert_int_eq(left, 2);
        ck_assert_double_eq(ap_choice_network_seconds(f.network, assignment),
                            choice_fixture_least(f.network));
        ap_choice_network_destroy(f.network);
    }
}
END_TEST

/* A multiplier steps with diagonals has nothing to eliminate, and is too long to enumerate. */
START_TEST(what_is_too_much_to_enumerate_is_ordered)
{
    enum { MULTIPLIERS = 14, MANY = 2 * MULTIPLIERS, VALUES = 4, TABLES = 5 * MULTIPLIERS };
    static double table[TABLES][VALUES * VALUES];
    static const double zeros[VALUES];
    ap_choice_variable_t variables[MANY];
    ap_choice_edge_t edges[TABLES];
    ap_choice_network_t *network;
    int first[MANY], second[MANY], count = 0, left;
    unsigned random = 5;

    for (int v = 0; v < MANY; ++v) {
        variables[v] = (ap_choice_variable_t){.domain = VALUES, .seconds = zeros};
    }
    for (int multiplier = 0; multiplier < MULTIPLIERS; ++multiplier) {
        const int a = 2 * multiplier, b = a + 1;
        const int ends[][2] = {{a, b}, {a, a + 2}, {b, b + 2}, {a, b + 2}, {b, a + 2}};

        for (int e = 0; e < (multiplier + 1 < MULTIPLIERS ? 5 : 1); ++e) {
            edges[count] = (ap_choice_edge_t){ends[e][0], ends[e][1], table[count]};
            for (int i = 0; i < VALUES * VALUES; ++i) {
                table[count][i] = fixture_random(&random) % 3;
            }
            ++count;
        }
    }
    ck_assert_xm_ok(ap_choice_network_create(variables, MANY, edges, count, &network));
    ck_assert_xm_ok(ap_search_reduction(network, first, &left));
    ck_assert_xm_ok(ap_search_ordering(network->core, second));
    ck_assert_int_eq(left, MANY);
    ck_assert_double_eq(ap_choice_network_seconds(network, first),
                        ap_choice_network_seconds(network, second));
    ap_choice_network_destroy(network);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("search reduction");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, equals_trying_every_assignment);
    tcase_add_test(tcase, residual_blocks_shrink_to_two_variables);
    tcase_add_test(tcase, what_is_too_much_to_enumerate_is_ordered);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
