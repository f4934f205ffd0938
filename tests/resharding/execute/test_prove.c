/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XM_VERIFY=chunk on a network that flips bits: what is received is spoiled between the transport
 * and whoever waits for it, in data, hashes and answers alike.
 */
#include <crossmesh/counters.h>
#include <stdlib.h>

#include "comm/transport/counters_private.h"
#include "tests/resharding/execute/sim_job.h"
#include "xm_test.h"

enum { CASES = 200, SPOILED_AT_ONCE = 4096, ALWAYS = 1 };

/* A receive whose end passes by the spoiler. */
typedef struct {
    void (*done)(xm_op_t *op, xm_status_t status);
    xm_op_t *op;
    char *buffer;
    size_t length;
    bool answer;
} watched_t;

static struct {
    const xm_transport_ops_t *sim;
    xm_transport_ops_t ops;
    watched_t watched[SPOILED_AT_ONCE];
    random_t random;
    int one_in;      /* messages */
    int64_t spoiled; /* messages that must be sent again */
} network;

static void arrived(xm_op_t *op, xm_status_t status)
{
    watched_t *watched = network.watched;

    while (watched->op != op) {
        ++watched;
    }
    if (status == XM_OK && random_int(&network.random, 1, network.one_in) == 1) {
        size_t byte = xm_random_next(&network.random) % watched->length;

        watched->buffer[byte] ^= (char)(1 << random_int(&network.random, 0, 7));
        network.spoiled += !watched->answer;
    }
    watched->op = NULL;
    op->done = watched->done;
    op->done(op, status);
}

static xm_status_t receive(xm_transport_t *transport, int peer, uint64_t tag, void *buffer,
                           size_t length, xm_memory_t *memory, xm_op_t *op)
{
    uint64_t kind = tag & UINT64_C(0xe0000000);
    watched_t *watched = network.watched;
    xm_status_t status;

    if (kind != 0 && kind != UINT64_C(0xa0000000) && kind != UINT64_C(0xc0000000)) {
        return network.sim->receive(transport, peer, tag, buffer, length, memory, op);
    }
    while (watched->op != NULL) {
        ++watched;
        ck_assert_int_lt(watched - network.watched, SPOILED_AT_ONCE);
    }
    *watched = (watched_t){op->done, op, buffer, length, kind == UINT64_C(0xc0000000)};
    op->done = arrived;
    status = network.sim->receive(transport, peer, tag, buffer, length, memory, op);
    if (status != XM_IN_PROGRESS) {
        op->done = watched->done;
        watched->op = NULL;
    }
    return status;
}

/* A job on that network, with counters. */
typedef struct {
    batch_t batch;
    sim_job_t job;
    xm_counters_t *counters[SIM_MAX_RANKS];
} lab_t;

static void make(lab_t *lab, uint64_t seed, int one_in)
{
    random_t random = {seed * 7919};
    sim_options_t options = {.window = random_int(&random, 0, 4),
                             .tight_memory = random_int(&random, 0, 2) == 0,
                             .turns = random_int(&random, 0, 2) == 0};

    batch_create(&random, &lab->batch);
    sim_job_create(&lab->job, lab->batch.plan, lab->batch.random.network, &options, &random);
    network.sim = lab->job.transport[0]->ops;
    network.ops = *network.sim;
    network.ops.receive = receive;
    network.random = (random_t){seed};
    network.one_in = one_in;
    network.spoiled = 0;
    memset(network.watched, 0, sizeof(network.watched));
    for (int r = 0; r < lab->job.ranks; ++r) {
        ck_assert_xm_ok(xm_counters_create(lab->job.ranks, &lab->counters[r]));
        xm_transport_sim_count(lab->job.transport[r], lab->counters[r]);
        lab->job.transport[r]->ops = &network.ops;
    }
    sim_job_fill(&lab->job, seed);
}

static int64_t resends(const lab_t *lab)
{
    int64_t count = 0;

    for (int r = 0; r < lab->job.ranks; ++r) {
        xm_rank_counts_t counts;

        xm_counters_rank(lab->counters[r], &counts);
        count += (int64_t)counts.resends;
    }
    return count;
}

static void end(lab_t *lab)
{
    sim_job_destroy(&lab->job);
    for (int r = 0; r < lab->job.ranks; ++r) {
        xm_counters_destroy(lab->counters[r]);
    }
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
        ck_assert_int_le(resends(&lab), network.spoiled);
        ck_assert_int_ge(2 * resends(&lab), network.spoiled);
        again += resends(&lab);
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
        ck_assert_int_eq(resends(&lab), 0);
        wrong += network.spoiled > 0;
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
        if (resends(&lab) > 0) {
            const char *sentence = xm_last_error();

            ck_assert_int_ge(resends(&lab), 11);
            ck_assert_msg(strstr(sentence, "wrong 11 times in a row") != NULL, "%s", sentence);
        }
        network.one_in = 1000000; /* what is left is ended in peace */
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
