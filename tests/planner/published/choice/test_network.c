/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/published/choice/network.h"

#include "tests/planner/published/choice_fixture.h"
#include "xm_test.h"

START_TEST(changing_one_value_changes_its_local_seconds)
{
    for (unsigned seed = 1; seed <= 100; ++seed) {
        choice_fixture_t f;
        int assignment[CHOICE_VARIABLES] = {0};

        choice_fixture_random(&f, seed, 4);
        do {
            int v = (int)seed % f.network->core->variables;
            int value = f.network->core->variable[v].size - 1, before = assignment[v];
            double whole = ap_choice_network_seconds(f.network, assignment);
            double more = ap_cfn_core_cost_of(f.network->core, v, value, assignment) -
                          ap_cfn_core_cost_of(f.network->core, v, before, assignment);

            assignment[v] = value;
            ck_assert_double_eq(ap_choice_network_seconds(f.network, assignment), whole + more);
            assignment[v] = before;
        } while (choice_fixture_next(f.network, assignment) && assignment[0] == 0);
        ap_choice_network_destroy(f.network);
    }
}
END_TEST

START_TEST(lists_the_edges_of_every_variable)
{
    for (unsigned seed = 1; seed <= 50; ++seed) {
        choice_fixture_t f;

        choice_fixture_random(&f, seed, 5);
        for (int v = 0; v < f.network->core->variables; ++v) {
            int count = 0;

            for (int e = 0; e < f.network->core->links; ++e) {
                count += f.network->core->link[e].a == v || f.network->core->link[e].b == v;
            }
            ck_assert_int_eq(f.network->core->variable[v].degree, count);
            for (int i = 0; i < count; ++i) {
                const ap_cfn_link_t *edge =
                    &f.network->core->link[f.network->core->variable[v].link[i]];

                ck_assert(edge->a == v || edge->b == v);
            }
        }
        ap_choice_network_destroy(f.network);
    }
}
END_TEST

START_TEST(refuses_what_is_no_network)
{
    const double seconds[] = {1.0, 2.0}, table[] = {0.0, 0.0, 0.0, 0.0};
    const ap_choice_variable_t variables[] = {{2, seconds, NULL, NULL}, {2, seconds, NULL, NULL}};
    const ap_choice_variable_t empty = {0, seconds, NULL, NULL};
    const ap_choice_edge_t loop = {1, 1, table}, outside = {0, 2, table};
    ap_choice_network_t *network;

    ck_assert_int_eq(ap_choice_network_create(&empty, 1, NULL, 0, &network),
                     XM_ERR_INVALID_ARGUMENT);
    ck_assert_str_eq(xm_last_error(), "variable 0 has 0 values");
    ck_assert_int_eq(ap_choice_network_create(variables, 2, &loop, 1, &network),
                     XM_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(ap_choice_network_create(variables, 2, &outside, 1, &network),
                     XM_ERR_INVALID_ARGUMENT);
    ck_assert_str_eq(xm_last_error(), "edge 0 is from 0 to 2 of 2 variables");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("choice network");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, changing_one_value_changes_its_local_seconds);
    tcase_add_test(tcase, lists_the_edges_of_every_variable);
    tcase_add_test(tcase, refuses_what_is_no_network);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
