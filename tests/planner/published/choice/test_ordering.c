/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/published/choice/ordering.h"

#include "tests/planner/published/choice_fixture.h"
#include "xm_test.h"

START_TEST(equals_trying_every_assignment)
{
    for (unsigned seed = 1; seed <= 300; ++seed) {
        choice_fixture_t f;
        int assignment[CHOICE_VARIABLES];

        choice_fixture_random(&f, seed, (int)(seed % 6));
        ck_assert_xm_ok(ap_search_ordering(f.network->core, assignment));
        ck_assert_double_eq(ap_choice_network_seconds(f.network, assignment),
                            choice_fixture_least(f.network));
        ap_choice_network_destroy(f.network);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("search ordering");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, equals_trying_every_assignment);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
