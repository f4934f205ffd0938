#include "planner/search_reduction.h"

#include "choice_fixture.h"
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

/* Every variable beside every other: nothing to eliminate, and equal costs leave nothing to cut. */
START_TEST(says_when_too_many_are_left)
{
    enum { MANY = 12, VALUES = 6 };
    static const double zeros[VALUES * VALUES];
    double equal[VALUES * VALUES];
    ap_choice_variable_t variables[MANY];
    ap_choice_edge_t edges[MANY * MANY];
    ap_choice_network_t *network;
    int assignment[MANY], count = 0;

    for (int i = 0; i < VALUES * VALUES; ++i) {
        equal[i] = i % (VALUES + 1) == 0 ? 1.0 : 0.0;
    }
    for (int v = 0; v < MANY; ++v) {
        variables[v] = (ap_choice_variable_t){.domain = VALUES, .seconds = zeros};
        for (int w = 0; w < v; ++w) {
            edges[count++] = (ap_choice_edge_t){w, v, equal};
        }
    }
    ck_assert_xm_ok(ap_choice_network_create(variables, MANY, edges, count, &network));
    ck_assert_xm_fails(ap_search_reduction(network, assignment, NULL), XM_ERR_UNSUPPORTED,
                       "leaves 12 of 12, too many to enumerate");
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
    tcase_add_test(tcase, says_when_too_many_are_left);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
