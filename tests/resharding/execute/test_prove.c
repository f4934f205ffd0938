/* SPDX-License-Identifier: Apache-2.0 */
/* XM_VERIFY=chunk on a network that flips bits (spoiler.h). */
#include <stdlib.h>

#include "tests/resharding/execute/spoiler.h"
#include "xm_test.h"

enum { CASES = 200, ALWAYS = 1 };

/* A job on that network. */
typedef struct {
    batch_t batch;
    sim_job_t job;
} lab_t;

static void make(lab_t *lab, uint64_t seed, int one_in)
{
    random_t random = {seed * 7919};
    sim_options_t options = {.window = random_int(&random, 0, 4),
                             .tight_memory = random_int(&random, 0, 2) == 0,
                             .turns = random_int(&random, 0, 2) == 0};

    batch_create(&random, &lab->batch);
    sim_job_create(&lab->job, lab->batch.plan, lab->batch.random.network, &options, &random);
    spoiler_attach(&lab->job, seed, one_in);
    sim_job_fill(&lab->job, seed);
}

static void end(lab_t *lab)
{
    sim_job_destroy(&lab->job);
    spoiler_release();
    batch_destroy(&lab->batch);
}

START_TEST(spoiled_chunks_are_sent_again)
{
    int64_t again = 0;

    for (uint64_t seed = 1; seed <= (uint64_t)xm_test_rounds(CASES); ++seed) {
        lab_t lab;
        xm_status_t results[SIM_MAX_RANKS];

        make(&lab, seed, 20);
        for (int run = 0; run < 2; ++run) {
            sim_job_fill(&lab.job, seed + (uint64_t)run);
            ck_assert_msg(sim_job_run(&lab.job, results), "seed %d stands still", (int)seed);
            for (int r = 0; r < lab.job.ranks; ++r) {
                ck_assert_msg(results[r] == XM_OK, "seed %d, rank %d: %s", (int)seed, r,
                              xm_last_error());
            }
            sim_job_check(&lab.job, random_batch_text(&lab.batch.random));
        }
        /* Data and hash of one chunk may both be hit. */
        ck_assert_int_le(spoiler_resends(), spoiler_hits());
        ck_assert_int_ge(2 * spoiler_resends(), spoiler_hits());
        again += spoiler_resends();
        end(&lab);
    }
    ck_assert_int_gt(again, xm_test_rounds(CASES));
}
END_TEST

START_TEST(without_it_nobody_notices)
{
    int wrong = 0;

    ck_assert_int_eq(setenv("XM_VERIFY", "off", 1), 0);
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        lab_t lab;
        xm_status_t results[SIM_MAX_RANKS];

        make(&lab, seed, 3);
        ck_assert(sim_job_run(&lab.job, results));
        for (int r = 0; r < lab.job.ranks; ++r) {
            ck_assert_xm_ok(results[r]);
        }
        ck_assert_int_eq(spoiler_resends(), 0);
        wrong += spoiler_hits() > 0;
        end(&lab);
    }
    ck_assert_int_gt(wrong, 0);
}
END_TEST

START_TEST(a_link_that_always_spoils_ends_the_run)
{
    int ended = 0;

    for (uint64_t seed = 1; seed <= 20; ++seed) {
        lab_t lab;
        xm_status_t results[SIM_MAX_RANKS];

        make(&lab, seed, ALWAYS);
        (void)sim_job_run(&lab.job, results); /* nobody tells the others: there is no group */
        for (int r = 0; r < lab.job.ranks; ++r) {
            ended += results[r] == XM_ERR_CORRUPT;
            ck_assert(results[r] == XM_ERR_CORRUPT || results[r] == XM_IN_PROGRESS ||
                      results[r] == XM_OK);
        }
        if (spoiler_resends() > 0) {
            const char *sentence = xm_last_error();

            ck_assert_int_ge(spoiler_resends(), 11);
            ck_assert_msg(strstr(sentence, "wrong 11 times in a row") != NULL, "%s", sentence);
        }
        spoiler_rest(); /* what is left is ended in peace */
        end(&lab);
    }
    ck_assert_int_gt(ended, 10);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("prove");
    TCase *tcase = tcase_create("all");

    (void)setenv("XM_VERIFY", "chunk", 1);
    tcase_set_timeout(tcase, 100);
    tcase_add_test(tcase, spoiled_chunks_are_sent_again);
    tcase_add_test(tcase, without_it_nobody_notices);
    tcase_add_test(tcase, a_link_that_always_spoils_ends_the_run);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
