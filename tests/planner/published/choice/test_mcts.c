/* SPDX-License-Identifier: Apache-2.0 */
/* Completion and tree search, against trying every assignment. */
#include "planner/published/choice/mcts.h"

#include <string.h>

#include "planner/published/choice/completion.h"
#include "tests/planner/published/choice_fixture.h"
#include "xm_test.h"

static void forget(int *assignment)
{
    for (int v = 0; v < CHOICE_VARIABLES; ++v) {
        assignment[v] = -1;
    }
}

static void search(const choice_fixture_t *f, unsigned seed, int64_t budget, int *assignment)
{
    ap_mcts_params_t params = AP_MCTS_PARAMS_INIT;

    params.seed = seed;
    params.budget = budget;
    forget(assignment);
    ck_assert_xm_ok(ap_search_mcts(f->network->core, &params, assignment));
}

START_TEST(time_enough_finds_the_optimum)
{
    for (unsigned seed = 1; seed <= 60; ++seed) {
        choice_fixture_t f;
        int assignment[CHOICE_VARIABLES];
        double assignments = 1;

        choice_fixture_random(&f, seed, 3);
        for (int v = 0; v < f.network->core->variables; ++v) {
            assignments *= f.network->core->variable[v].size;
        }
        if (assignments < 3000) { /* the tree has at most twice as many nodes, each judged twice */
            search(&f, seed, 20000, assignment);
            ck_assert_double_eq(ap_choice_network_seconds(f.network, assignment),
                                choice_fixture_least(f.network));
        }
        ap_choice_network_destroy(f.network);
    }
}
END_TEST

START_TEST(a_small_budget_is_near_it_and_repeats)
{
    int found = 0;

    for (unsigned seed = 1; seed <= 100; ++seed) {
        choice_fixture_t f;
        int first[CHOICE_VARIABLES], second[CHOICE_VARIABLES], none[CHOICE_VARIABLES];
        ap_choice_completion_t *completion;
        double least;

        choice_fixture_random(&f, seed, 3);
        least = choice_fixture_least(f.network);
        search(&f, seed, 500, first);
        search(&f, seed, 500, second);
        ck_assert_mem_eq(first, second, (size_t)f.network->core->variables * sizeof(int));
        forget(none);
        ck_assert_xm_ok(ap_choice_completion_create(f.network->core, &completion));
        ap_choice_complete(completion, true, none);
        ck_assert_double_ge(ap_choice_network_seconds(f.network, first), least);
        ck_assert_double_le(ap_choice_network_seconds(f.network, first),
                            ap_choice_network_seconds(f.network, none));
        found += ap_choice_network_seconds(f.network, first) == least;
        ap_choice_completion_destroy(completion);
        ap_choice_network_destroy(f.network);
    }
    ck_assert_int_ge(found, 80);
}
END_TEST

/* A chain whose links cost nothing between equal values: one annotation decides all of it, and the
 * variable behind the break keeps what it likes best. */
START_TEST(one_annotation_reaches_what_hangs_on_it)
{
    enum { LENGTH = 6, BREAK = 4, VALUES = 3 };
    static const double same[VALUES * VALUES] = {0, 5, 5, 5, 0, 5, 5, 5, 0};
    static const double any[VALUES * VALUES] = {0};
    static const double prefers_last[VALUES] = {3, 2, 1};
    ap_choice_variable_t variable[LENGTH];
    ap_choice_edge_t edge[LENGTH - 1];
    ap_choice_network_t *network;
    ap_choice_completion_t *completion;
    int assignment[LENGTH];

    for (int v = 0; v < LENGTH; ++v) {
        variable[v] = (ap_choice_variable_t){VALUES, prefers_last, NULL, NULL};
    }
    for (int e = 0; e + 1 < LENGTH; ++e) {
        edge[e] = (ap_choice_edge_t){e, e + 1, e + 1 == BREAK ? any : same};
    }
    ck_assert_xm_ok(ap_choice_network_create(variable, LENGTH, edge, LENGTH - 1, &network));
    ck_assert_xm_ok(ap_choice_completion_create(network->core, &completion));
    for (int all = 0; all < 2; ++all) {
        memset(assignment, -1, sizeof(assignment));
        assignment[2] = 1;
        ap_choice_complete(completion, all == 1, assignment);
        for (int v = 0; v < LENGTH; ++v) {
            ck_assert_int_eq(assignment[v], v < BREAK ? 1 : all == 1 ? 2 : -1);
        }
    }
    ap_choice_completion_destroy(completion);
    ap_choice_network_destroy(network);
}
END_TEST

START_TEST(refuses_no_seed_and_no_budget)
{
    ap_mcts_params_t params = {.seed = 0, .budget = 1};
    choice_fixture_t f;
    int assignment[CHOICE_VARIABLES];

    choice_fixture_random(&f, 1, 0);
    ck_assert_int_eq(ap_search_mcts(f.network->core, &params, assignment), XM_ERR_INVALID_ARGUMENT);
    params = (ap_mcts_params_t){.seed = 1, .budget = 0};
    ck_assert_int_eq(ap_search_mcts(f.network->core, &params, assignment), XM_ERR_INVALID_ARGUMENT);
    ap_choice_network_destroy(f.network);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mcts");
    TCase *tcase = tcase_create("search");

    tcase_add_test(tcase, time_enough_finds_the_optimum);
    tcase_add_test(tcase, a_small_budget_is_near_it_and_repeats);
    tcase_add_test(tcase, one_annotation_reaches_what_hangs_on_it);
    tcase_add_test(tcase, refuses_no_seed_and_no_budget);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
