/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/published/choice/mcmc.h"

#include <string.h>

#include "tests/planner/published/choice_fixture.h"
#include "xm_test.h"

START_TEST(never_beats_the_optimum_nor_loses_to_its_start)
{
    int found = 0;

    for (unsigned seed = 1; seed <= 100; ++seed) {
        ap_mcmc_params_t params = AP_MCMC_PARAMS_INIT;
        choice_fixture_t f;
        int assignment[CHOICE_VARIABLES] = {0};
        double start, least;

        choice_fixture_random(&f, seed, 4);
        params.seed = seed;
        params.proposals = 3000;
        params.beta = 20;
        start = ap_choice_network_seconds(f.network, assignment);
        least = choice_fixture_least(f.network);
        ck_assert_xm_ok(ap_search_mcmc(f.network->core, &params, assignment));
        ck_assert_double_ge(ap_choice_network_seconds(f.network, assignment), least);
        ck_assert_double_le(ap_choice_network_seconds(f.network, assignment), start);
        found += ap_choice_network_seconds(f.network, assignment) == least;
        ap_choice_network_destroy(f.network);
    }
    ck_assert_int_ge(found, 90); /* small networks: it should nearly always get there */
}
END_TEST

START_TEST(one_seed_gives_one_answer)
{
    ap_mcmc_params_t params = AP_MCMC_PARAMS_INIT;
    choice_fixture_t f;
    int first[CHOICE_VARIABLES] = {0}, second[CHOICE_VARIABLES] = {0};

    params.proposals = 50;
    choice_fixture_random(&f, 7, 4);
    ck_assert_xm_ok(ap_search_mcmc(f.network->core, &params, first));
    ck_assert_xm_ok(ap_search_mcmc(f.network->core, &params, second));
    ck_assert_mem_eq(first, second, sizeof(first));
    ap_choice_network_destroy(f.network);
}
END_TEST

/* With a dear enough byte the walk ends within a limit that an assignment keeps. */
START_TEST(heeds_the_memory_limit)
{
    for (unsigned seed = 1; seed <= 30; ++seed) {
        ap_mcmc_params_t params = AP_MCMC_PARAMS_INIT;
        choice_fixture_t f;
        int assignment[CHOICE_VARIABLES] = {0};
        double least = 1e9;

        choice_fixture_random(&f, seed, 3);
        do {
            double bytes = ap_choice_network_bytes(f.network->core, assignment);

            least = bytes < least ? bytes : least;
        } while (choice_fixture_next(f.network, assignment));
        params.seed = seed;
        params.proposals = 5000;
        params.beta = 20;
        params.memory_limit = least + 5;
        params.byte_penalty = 100;
        ck_assert_xm_ok(ap_search_mcmc(f.network->core, &params, assignment));
        ck_assert_double_le(ap_choice_network_bytes(f.network->core, assignment), least + 5);
        ap_choice_network_destroy(f.network);
    }
}
END_TEST

START_TEST(refuses_a_walk_without_a_seed)
{
    ap_mcmc_params_t params = AP_MCMC_PARAMS_INIT;
    choice_fixture_t f;
    int assignment[CHOICE_VARIABLES] = {0};

    choice_fixture_random(&f, 1, 0);
    params.seed = 0;
    ck_assert_xm_fails(ap_search_mcmc(f.network->core, &params, assignment),
                       XM_ERR_INVALID_ARGUMENT, "a seed other than 0");
    ap_choice_network_destroy(f.network);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("search mcmc");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, never_beats_the_optimum_nor_loses_to_its_start);
    tcase_add_test(tcase, one_seed_gives_one_answer);
    tcase_add_test(tcase, heeds_the_memory_limit);
    tcase_add_test(tcase, refuses_a_walk_without_a_seed);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
