/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/published/choice/recursive.h"

#include <math.h>

#include "tests/planner/published/choice_fixture.h"
#include "xm_test.h"

static uint8_t part(const ap_choice_network_t *network, int v, int value, int axis)
{
    return network->part[v][value * AP_CHOICE_LEVELS + axis];
}

/* Least seconds among the assignments that use no axis from `levels` on, and agree with `like`
 * (NULL: any) on the axes before `axis`. */
static double least_within(const ap_choice_network_t *network, int axis, int levels,
                           const int *like)
{
    int assignment[CHOICE_VARIABLES] = {0};
    double least = INFINITY;

    do {
        bool within = true;

        for (int v = 0; v < network->core->variables && within; ++v) {
            for (int a = 0; a < 2; ++a) {
                within = within && (a < levels || part(network, v, assignment[v], a) == 0) &&
                         (a >= axis ||
                          part(network, v, assignment[v], a) == part(network, v, like[v], a));
            }
        }
        if (within) {
            least = fmin(least, ap_choice_network_seconds(network, assignment));
        }
    } while (choice_fixture_next(network, assignment));
    return least;
}

/* One level: the best without the second axis. Both: the best that keeps what the first decided. */
START_TEST(every_level_is_an_optimum_of_its_own)
{
    int not_optimal = 0;

    for (unsigned seed = 1; seed <= 150; ++seed) {
        choice_fixture_t f;
        int first[CHOICE_VARIABLES], both[CHOICE_VARIABLES];

        choice_fixture_random(&f, seed, 2);
        ck_assert_xm_ok(ap_search_recursive(f.network, 1, false, first));
        ck_assert_double_eq(ap_choice_network_seconds(f.network, first),
                            least_within(f.network, 0, 1, first));
        ck_assert_xm_ok(ap_search_recursive(f.network, 2, false, both));
        ck_assert_double_eq(ap_choice_network_seconds(f.network, both),
                            least_within(f.network, 1, 2, first));
        not_optimal += ap_choice_network_seconds(f.network, both) > choice_fixture_least(f.network);
        ap_choice_network_destroy(f.network);
    }
    ck_assert_int_gt(not_optimal, 0); /* or this test could not fail */
}
END_TEST

START_TEST(greedy_keeps_the_levels_and_is_not_better)
{
    for (unsigned seed = 1; seed <= 150; ++seed) {
        choice_fixture_t f;
        int first[CHOICE_VARIABLES], both[CHOICE_VARIABLES];

        choice_fixture_random(&f, seed, 2);
        ck_assert_xm_ok(ap_search_recursive(f.network, 1, true, first));
        ck_assert_xm_ok(ap_search_recursive(f.network, 2, true, both));
        for (int v = 0; v < f.network->core->variables; ++v) {
            ck_assert_uint_eq(part(f.network, v, first[v], 1), 0);
            ck_assert_uint_eq(part(f.network, v, both[v], 0), part(f.network, v, first[v], 0));
        }
        ck_assert_double_ge(ap_choice_network_seconds(f.network, both),
                            choice_fixture_least(f.network));
        ap_choice_network_destroy(f.network);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("search recursive");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, every_level_is_an_optimum_of_its_own);
    tcase_add_test(tcase, greedy_keeps_the_levels_and_is_not_better);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
