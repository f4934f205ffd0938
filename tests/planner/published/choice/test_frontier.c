/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/published/choice/frontier.h"

#include <math.h>

#include "tests/planner/published/choice_fixture.h"
#include "xm_test.h"

static void check_curve(const ap_choice_network_t *network, const ap_frontier_t *frontier)
{
    ck_assert_int_ge(frontier->count, 1);
    for (int i = 0; i < frontier->count; ++i) {
        const ap_frontier_point_t *point = &frontier->points[i];

        ck_assert_double_eq(ap_choice_network_seconds(network, point->assignment), point->seconds);
        ck_assert_double_eq(ap_choice_network_bytes(network->core, point->assignment),
                            point->bytes);
        if (i > 0) { /* nothing beats anything */
            ck_assert_double_gt(point->seconds, point[-1].seconds);
            ck_assert_double_lt(point->bytes, point[-1].bytes);
        }
    }
}

/* How many pairs of seconds and bytes no assignment beats, and the ends of them. */
static int count_best(const ap_choice_network_t *network, double *seconds, double *bytes)
{
    enum { COSTS = 512 };
    static double least[COSTS]; /* per seconds, which are whole: least bytes */
    int assignment[CHOICE_VARIABLES] = {0}, count = 0;
    double lowest = INFINITY;

    for (int s = 0; s < COSTS; ++s) {
        least[s] = INFINITY;
    }
    *seconds = INFINITY;
    do {
        int s = (int)ap_choice_network_seconds(network, assignment);

        ck_assert_int_lt(s, COSTS);
        least[s] = fmin(least[s], ap_choice_network_bytes(network->core, assignment));
        *seconds = fmin(*seconds, s);
    } while (choice_fixture_next(network, assignment));
    for (int s = 0; s < COSTS; ++s) {
        count += least[s] < lowest;
        lowest = fmin(lowest, least[s]);
    }
    *bytes = lowest;
    return count;
}

START_TEST(gives_every_point_that_nothing_beats)
{
    for (unsigned seed = 1; seed <= 150; ++seed) {
        choice_fixture_t f;
        ap_frontier_t frontier;
        double seconds, bytes;

        choice_fixture_random(&f, seed, (int)(seed % 5));
        ck_assert_xm_ok(ap_search_frontier(f.network->core, 256, &frontier));
        check_curve(f.network, &frontier);
        ck_assert(frontier.complete);
        ck_assert_int_eq(frontier.count, count_best(f.network, &seconds, &bytes));
        ck_assert_double_eq(frontier.points[0].seconds, seconds);
        ck_assert_double_eq(frontier.points[frontier.count - 1].bytes, bytes);
        ap_frontier_clear(&frontier);
        ap_choice_network_destroy(f.network);
    }
}
END_TEST

START_TEST(a_thin_curve_keeps_its_ends)
{
    int thinned = 0;

    for (unsigned seed = 1; seed <= 150; ++seed) {
        choice_fixture_t f;
        ap_frontier_t frontier;
        double seconds, bytes;

        choice_fixture_random(&f, seed, 3);
        (void)count_best(f.network, &seconds, &bytes);
        ck_assert_xm_ok(ap_search_frontier(f.network->core, 2, &frontier));
        check_curve(f.network, &frontier);
        ck_assert_int_le(frontier.count, 2);
        ck_assert_double_eq(frontier.points[0].seconds, seconds);
        ck_assert_double_eq(frontier.points[frontier.count - 1].bytes, bytes);
        thinned += !frontier.complete;
        ap_frontier_clear(&frontier);
        ap_choice_network_destroy(f.network);
    }
    ck_assert_int_gt(thinned, 0);
}
END_TEST

START_TEST(refuses_a_curve_of_one_point)
{
    choice_fixture_t f;
    ap_frontier_t frontier;

    choice_fixture_random(&f, 1, 0);
    ck_assert_xm_fails(ap_search_frontier(f.network->core, 1, &frontier), XM_ERR_INVALID_ARGUMENT,
                       "1 points of a frontier: from 2 to 256");
    ap_choice_network_destroy(f.network);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("search frontier");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, gives_every_point_that_nothing_beats);
    tcase_add_test(tcase, a_thin_curve_keeps_its_ends);
    tcase_add_test(tcase, refuses_a_curve_of_one_point);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
