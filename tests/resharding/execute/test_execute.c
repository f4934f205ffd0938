/* SPDX-License-Identifier: Apache-2.0 */
#include "resharding/execute/execute.h"

#include <stdio.h>

#include "resharding/plan/plan_private.h"
#include "tests/resharding/execute/sim_job.h"
#include "xm_test.h"
#include "tests/resharding/plan/plan_lists.h"

enum { CASES = 20000 };

/* ---- random plans -----------------------------------------------------------------------------
 */

/* Returns how many entries of the plan's routes only pass on. */
static int check_case(uint64_t seed)
{
    random_t random = {seed};
    sim_options_t options = {.window = random_int(&random, 1, 3),
                             .tight_memory = random_int(&random, 0, 2) == 0,
                             .packed = random_int(&random, 0, 1) == 1,
                             .turns = random_int(&random, 0, 1) == 1,
                             .turn_ahead = (uint64_t)random_int(&random, 1, 500)};
    batch_t batch;
    sim_job_t job;
    int forwards;

    batch_create(&random, &batch);
    forwards = batch.forwards;
    sim_job_create(&job, batch.plan, batch.random.network, &options, &random);
    for (uint64_t round = 0; round < 2; ++round) { /* the second run reuses everything */
        xm_status_t results[SIM_MAX_RANKS];

        sim_job_fill(&job, seed * 2 + round);
        ck_assert_msg(sim_job_run(&job, results), "seed %d stands still: %s", (int)seed,
                      random_batch_text(&batch.random));
        for (int r = 0; r < job.ranks; ++r) {
            ck_assert_int_eq(results[r], XM_OK);
        }
        sim_job_check(&job, random_batch_text(&batch.random));
    }
    sim_job_destroy(&job);
    batch_destroy(&batch);
    return forwards;
}

START_TEST(random_plans_move_every_byte)
{
    int forwards = 0;

    for (uint64_t seed = 1 + (uint64_t)_i; seed <= (uint64_t)xm_test_rounds(CASES); seed += 4) {
        forwards += check_case(seed);
    }
    ck_assert_int_gt(forwards, xm_test_rounds(CASES) / 4);
}
END_TEST

/* ---- one plan, for faults and small checks ----------------------------------------------------
 */

static void ignore(xm_op_t *op, xm_status_t status)
{
    (void)op;
    (void)status;
}

static void fixed_job(sim_job_t *job, const fixed_t *fixed)
{
    random_t random = {1};
    sim_options_t options = {.window = 2};

    sim_job_create(job, fixed->plan, fixed->network, &options, &random);
    sim_job_fill(job, 1);
}

START_TEST(a_dead_rank_ends_every_run_that_needs_it)
{
    for (int victim = 0; victim < 16; ++victim) {
        fixed_t fixed;
        sim_job_t job;
        xm_status_t results[SIM_MAX_RANKS];
        int died = 0;

        fixed_default(&fixed);
        fixed_job(&job, &fixed);
        xm_sim_fabric_kill(job.fabric, victim);
        /* Ranks behind a relay that gave up are not told by this fabric; a worker's fault channel
         * does. */
        (void)sim_job_run(&job, results);
        for (int r = 0; r < job.ranks; ++r) {
            ck_assert(results[r] == XM_OK || results[r] == XM_ERR_PEER_DIED ||
                      results[r] == XM_IN_PROGRESS);
            died += r != victim && results[r] == XM_ERR_PEER_DIED;
            ck_assert_int_le(job.done[r][0], results[r] == XM_OK ? 1 : 0);
        }
        ck_assert_msg(victim < 8 || died > 0, "nobody noticed the death of receiver %d", victim);
        ck_assert(!job.incomplete);
        sim_job_destroy(&job);
        fixed_destroy(&fixed);
    }
}
END_TEST

START_TEST(a_cancelled_run_ends_and_can_be_repeated)
{
    fixed_t fixed;
    sim_job_t job;
    xm_status_t results[SIM_MAX_RANKS], first[SIM_MAX_RANKS];

    fixed_default(&fixed);
    fixed_job(&job, &fixed);
    for (int r = 0; r < job.ranks; ++r) {
        ck_assert_xm_ok(xm_executor_post(job.executor[r]));
        first[r] = xm_executor_advance(job.executor[r]);
    }
    ck_assert_int_eq(first[8], XM_IN_PROGRESS);
    ck_assert_xm_fails(xm_executor_post(job.executor[8]), XM_ERR_INVALID_ARGUMENT, "has not ended");
    for (int r = 0; r < job.ranks; ++r) {
        xm_executor_cancel(job.executor[r]);
    }
    for (int round = 0; round < 100; ++round) {
        for (int r = 0; r < job.ranks; ++r) {
            (void)xm_transport_progress(job.transport[r]);
            results[r] = xm_executor_advance(job.executor[r]);
        }
        (void)xm_sim_fabric_step(job.fabric);
    }
    for (int r = 0; r < job.ranks; ++r) {
        /* Ranks without work had ended before. */
        ck_assert_int_eq(results[r], first[r] == XM_OK ? XM_OK : XM_ERR_CANCELED);
        ck_assert_int_eq(job.done[r][0], first[r] == XM_OK);
    }
    sim_job_fill(&job, 2);
    ck_assert(sim_job_run(&job, results));
    sim_job_check(&job, "after a cancelled run");
    sim_job_destroy(&job);
    fixed_destroy(&fixed);
}
END_TEST

/* Messages of a run that failed may come for ever, so its tags are not used again. */
START_TEST(tags_of_a_failed_run_do_not_come_again)
{
    fixed_t fixed;
    sim_job_t job;
    xm_status_t results[SIM_MAX_RANKS];

    fixed_default(&fixed);
    fixed_job(&job, &fixed);
    for (int r = 0; r < job.ranks; ++r) {
        ck_assert_xm_ok(xm_executor_post(job.executor[r]));
        xm_executor_cancel(job.executor[r]);
    }
    for (int round = 0; round < 100; ++round) {
        for (int r = 0; r < job.ranks; ++r) {
            (void)xm_transport_progress(job.transport[r]);
            (void)xm_executor_advance(job.executor[r]);
        }
        (void)xm_sim_fabric_step(job.fabric);
    }
    for (int run = 0; run < 255; ++run) {
        sim_job_fill(&job, (uint64_t)run);
        ck_assert(sim_job_run(&job, results));
        sim_job_check(&job, "after a failed run");
    }
    ck_assert_xm_fails(xm_executor_post(job.executor[8]), XM_ERR_UNSUPPORTED, "255 runs ago");
    sim_job_destroy(&job);
    fixed_destroy(&fixed);
}
END_TEST

/* A message of the wrong length is what fails the run; cancelling the rest has sentences too. */
START_TEST(the_first_failure_is_the_one_that_is_named)
{
    const uint64_t first_of_first_run = UINT64_C(1) << 32;
    fixed_t fixed;
    sim_job_t job;
    xm_status_t results[SIM_MAX_RANKS];
    xm_op_t orphan = {0};
    int64_t count;
    const xm_transfer_t *transfer;
    int sender, receiver;
    char expected[100];

    fixed_default(&fixed);
    fixed_job(&job, &fixed);
    transfer = plan_transfers(fixed.plan, &count);
    sender = transfer->sender;
    receiver = xm_plan_route(fixed.plan, transfer->route)->ranks[0];
    orphan.done = ignore;
    ck_assert_int_eq(xm_transport_send(job.transport[sender], receiver, first_of_first_run, "abc",
                                       3, NULL, &orphan),
                     XM_IN_PROGRESS);
    ck_assert(!sim_job_run(&job, results)); /* this fabric tells nobody that the receiver gave up */
    ck_assert_int_eq(results[receiver], XM_ERR_CORRUPT);
    (void)snprintf(expected, sizeof(expected), "rank %d: receive from rank %d", receiver, sender);
    ck_assert_msg(strstr(xm_last_error(), expected) != NULL &&
                      strstr(xm_last_error(), "a message of 3 bytes came") != NULL,
                  "'%s'", xm_last_error());
    sim_job_destroy(&job);
    fixed_destroy(&fixed);
}
END_TEST

/* Strided boxes over the network and copies inside a rank: both would write. */
START_TEST(a_run_without_copies_leaves_the_buffers_alone)
{
    fixed_t fixed;
    sim_job_t job;
    xm_status_t results[SIM_MAX_RANKS];
    random_t random = {1};
    sim_options_t options = {.window = 2, .no_copy = true};

    fixed_create(&fixed, "2x4", "S01R", "2x4", 0, "RS01", 8, 64, 64);
    sim_job_create(&job, fixed.plan, fixed.network, &options, &random);
    sim_job_fill(&job, 1);
    ck_assert(sim_job_run(&job, results));
    for (int r = 0; r < job.ranks; ++r) {
        const xm_tensor_buffers_t *buffers = &job.buffers[r][0];
        const char *bytes = buffers->dst;

        ck_assert_int_eq(results[r], XM_OK);
        ck_assert_int_eq(job.done[r][0], 1);
        for (uint64_t i = 1; i < buffers->dst_bytes; ++i) {
            ck_assert_int_eq(bytes[i], bytes[0]); /* rubbish as before */
        }
    }
    sim_job_destroy(&job);
    fixed_destroy(&fixed);
}
END_TEST

START_TEST(spans_cover_what_the_rank_does)
{
    fixed_t fixed;
    sim_job_t job;
    xm_status_t results[SIM_MAX_RANKS];
    int64_t count;
    const xm_transfer_t *transfers;

    fixed_default(&fixed);
    fixed_job(&job, &fixed);
    ck_assert(sim_job_run(&job, results));
    transfers = plan_transfers(fixed.plan, &count);
    for (int64_t t = 0; t < count; ++t) {
        const xm_route_t *route = xm_plan_route(fixed.plan, transfers[t].route);

        for (int i = 0; i < route->count; ++i) {
            for (int r = 0; r < job.ranks; ++r) {
                xm_span_t span;

                xm_executor_span(job.executor[r], xm_plan_first_hop(fixed.plan, t) + i, &span);
                if (route->ranks[i] == r || xm_hop_sender(&transfers[t], route, i) == r) {
                    ck_assert_int_gt(span.end_ns, span.start_ns);
                } else {
                    ck_assert_int_eq(span.end_ns, 0);
                }
            }
        }
    }
    sim_job_destroy(&job);
    fixed_destroy(&fixed);
}
END_TEST

/* ---- plans made by hand -----------------------------------------------------------------------
 */

/* A transfer to one receiver. */
typedef struct {
    int64_t task;
    int sender, receiver;
    int64_t parent, first, end;
} edge_t;

/* Replaces the transfers of a plan of two tasks. */
static void rewrite(xm_plan_t *plan, const edge_t *edges, int count, int64_t chunk_elements)
{
    xm_builder_clear(&plan->builder);
    ck_assert_xm_ok(xm_builder_init(&plan->builder, plan));
    plan->builder.chunk_elements[0] = plan->builder.chunk_elements[1] = chunk_elements;
    for (int i = 0; i < count; ++i) {
        xm_transfer_t transfer = {.task = edges[i].task,
                                  .parent = edges[i].parent,
                                  .first = edges[i].first,
                                  .end = edges[i].end,
                                  .sender = edges[i].sender};
        int parent = -1;

        ck_assert_xm_ok(
            xm_builder_route(&plan->builder, 1, &edges[i].receiver, &parent, &transfer.route));
        ck_assert_xm_ok(xm_builder_append(&plan->builder, &transfer, NULL));
    }
    ck_assert_xm_ok(xm_builder_number_hops(&plan->builder));
    ck_assert_xm_ok(xm_plan_verify(plan));
}

/*
 * Parts of what a transfer brings, with chunks that begin elsewhere, by two relays. The boxes are
 * strided in the destination, so that a chunk sent too early is packed too early.
 */
START_TEST(parts_of_a_transfer_are_relayed)
{
    const edge_t edges[] = {{0, 0, 2, -1, 0, 12}, {0, 2, 3, 0, 5, 9},  {0, 0, 3, -1, 0, 5},
                            {0, 0, 3, -1, 9, 12}, {0, 3, 4, 1, 6, 8},  {0, 2, 4, 0, 0, 6},
                            {0, 3, 4, 3, 9, 12},  {0, 3, 4, 1, 8, 9},  {1, 1, 2, -1, 0, 12},
                            {1, 1, 3, -1, 0, 12}, {1, 1, 4, -1, 0, 12}};

    for (int64_t chunk = 1; chunk <= 12; ++chunk) {
        fixed_t fixed;
        sim_job_t job;
        xm_status_t results[SIM_MAX_RANKS];

        fixed_create(&fixed, "2", "RS0", "3", 2, "RR", 5, 3, 8);
        rewrite(fixed.plan, edges, sizeof(edges) / sizeof(edges[0]), chunk);
        fixed_job(&job, &fixed);
        ck_assert(sim_job_run(&job, results));
        sim_job_check(&job, "edges made by hand");
        sim_job_destroy(&job);
        fixed_destroy(&fixed);
    }
}
END_TEST

/* Elements of 4, 2 and 1 bits, packed along the rows. */
START_TEST(packed_elements_are_moved)
{
    static const int bits[] = {4, 2, 1};
    random_t random = {3};
    sim_options_t options = {.window = 2, .packed = true};
    xm_status_t results[SIM_MAX_RANKS];
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_tensor_t tensors[3];
    xm_plan_t *plan;
    fixed_t fixed;
    sim_job_t job;

    fixed_create(&fixed, "4", "S0R", "4", 2, "RS0", 6, 8, 64);
    for (int t = 0; t < 3; ++t) {
        tensors[t] = (xm_tensor_t){NULL, xm_plan_src(fixed.plan), xm_plan_dst(fixed.plan), bits[t]};
    }
    params.tensors = tensors;
    params.tensor_count = 3;
    params.network = fixed.network;
    params.chunk_bytes = 5;
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    sim_job_create(&job, plan, fixed.network, &options, &random);
    for (int t = 0; t < 3; ++t) {
        ck_assert_uint_eq(job.buffers[2][t].dst_bytes, 8u * 16u * (unsigned)bits[t] / 8u);
    }
    sim_job_fill(&job, 1);
    ck_assert(sim_job_run(&job, results));
    sim_job_check(&job, "packed elements");
    sim_job_destroy(&job);
    xm_plan_destroy(plan);
    fixed_destroy(&fixed);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("execute");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, random_plans_move_every_byte, 0, 4);
    tcase_add_test(tcase, a_dead_rank_ends_every_run_that_needs_it);
    tcase_add_test(tcase, a_cancelled_run_ends_and_can_be_repeated);
    tcase_add_test(tcase, tags_of_a_failed_run_do_not_come_again);
    tcase_add_test(tcase, the_first_failure_is_the_one_that_is_named);
    tcase_add_test(tcase, a_run_without_copies_leaves_the_buffers_alone);
    tcase_add_test(tcase, spans_cover_what_the_rank_does);
    tcase_add_test(tcase, parts_of_a_transfer_are_relayed);
    tcase_add_test(tcase, packed_elements_are_moved);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
