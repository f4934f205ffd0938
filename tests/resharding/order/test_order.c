/* SPDX-License-Identifier: Apache-2.0 */
#include "resharding/order.h"

#include "tests/resharding/execute/sim_job.h"
#include "xm_test.h"
#include "tests/resharding/plan/plan_lists.h"

enum { CASES = 2000 };

START_TEST(messages_come_in_plan_order)
{
    for (uint64_t seed = 1; seed <= 50; ++seed) {
        random_t random = {seed};
        batch_t batch;
        xm_sim_slot_t *messages;
        int64_t count, transfers, at = 0;
        const xm_transfer_t *transfer;

        batch_create(&random, &batch);
        ck_assert_xm_ok(xm_plan_messages(batch.plan, &messages, &count));
        transfer = plan_transfers(batch.plan, &transfers);
        for (int64_t t = 0; t < transfers; ++t) {
            const xm_route_t *route = xm_plan_route(batch.plan, transfer[t].route);

            for (int64_t c = 0; c < xm_plan_chunks(batch.plan, t); ++c) {
                for (int i = 0; i < route->count; ++i) {
                    if (xm_transfer_is_copy(&transfer[t], route)) {
                        continue;
                    }
                    ck_assert_int_eq(messages[at].sender, xm_hop_sender(&transfer[t], route, i));
                    ck_assert_int_eq(messages[at].receiver, route->ranks[i]);
                    ck_assert_uint_eq(messages[at].order, (uint64_t)at + 1);
                    ++at;
                }
            }
        }
        ck_assert_int_eq(at, count);
        free(messages);
        batch_destroy(&batch);
    }
}
END_TEST

/* Every hop ends when the simulation says, at both of its ends, and starts no later. */
static void check_spans(const sim_job_t *job, const xm_span_t *planned, int64_t start,
                        const char *text)
{
    int64_t count;
    const xm_transfer_t *transfers = plan_transfers(job->plan, &count);

    for (int64_t t = 0; t < count; ++t) {
        const xm_route_t *route = xm_plan_route(job->plan, transfers[t].route);

        for (int i = 0; i < route->count; ++i) {
            int64_t hop = xm_plan_first_hop(job->plan, t) + i;
            int ends[2] = {xm_hop_sender(&transfers[t], route, i), route->ranks[i]};

            for (int e = 0; e < 2; ++e) {
                xm_span_t span;

                xm_executor_span(job->executor[ends[e]], hop, &span);
                ck_assert_msg(span.end_ns - start == planned[hop].end_ns &&
                                  span.start_ns - start <= planned[hop].start_ns,
                              "transfer %d, hop %d: measured %d … %d, planned %d … %d: %s", (int)t,
                              i, (int)(span.start_ns - start), (int)(span.end_ns - start),
                              (int)planned[hop].start_ns, (int)planned[hop].end_ns, text);
            }
        }
    }
}

START_TEST(the_executor_takes_the_simulated_time_to_the_nanosecond)
{
    for (uint64_t seed = 1 + (uint64_t)_i; seed <= (uint64_t)xm_test_rounds(CASES); seed += 4) {
        random_t random = {seed * 7919};
        sim_options_t options = {.ordered = true};
        xm_status_t results[SIM_MAX_RANKS];
        xm_span_t *planned;
        int64_t makespan;
        batch_t batch;
        sim_job_t job;

        batch_create(&random, &batch);
        planned = calloc((size_t)xm_plan_hops(batch.plan) + 1, sizeof(*planned));
        ck_assert_xm_ok(xm_simulate(batch.plan, batch.random.network, XM_SHARING_EXCLUSIVE, planned,
                                    &makespan));
        sim_job_create(&job, batch.plan, batch.random.network, &options, &random);
        for (uint64_t round = 0; round < 2; ++round) {
            int64_t start = xm_sim_fabric_now(job.fabric);

            sim_job_fill(&job, seed * 2 + round);
            ck_assert_msg(sim_job_run(&job, results), "seed %d stands still: %s", (int)seed,
                          random_batch_text(&batch.random));
            sim_job_check(&job, random_batch_text(&batch.random));
            check_spans(&job, planned, start, random_batch_text(&batch.random));
            ck_assert_msg(xm_sim_fabric_now(job.fabric) - start == makespan,
                          "seed %d took %lld ns, simulated %lld ns: %s", (int)seed,
                          (long long)(xm_sim_fabric_now(job.fabric) - start), (long long)makespan,
                          random_batch_text(&batch.random));
        }
        sim_job_destroy(&job);
        free(planned);
        batch_destroy(&batch);
    }
}
END_TEST

/* A fabric that waits for messages in order, and ranks that may hold next to nothing. */
START_TEST(tight_windows_and_buffers_do_not_block)
{
    for (uint64_t seed = 1 + (uint64_t)_i; seed <= (uint64_t)xm_test_rounds(CASES); seed += 4) {
        random_t random = {seed * 104729};
        sim_options_t options = {.window = random_int(&random, 1, 2),
                                 .ordered = true,
                                 .tight_memory = random_int(&random, 0, 3) > 0,
                                 .packed = random_int(&random, 0, 1) == 1};
        xm_status_t results[SIM_MAX_RANKS];
        batch_t batch;
        sim_job_t job;

        batch_create(&random, &batch);
        sim_job_create(&job, batch.plan, batch.random.network, &options, &random);
        for (uint64_t round = 0; round < 2; ++round) {
            sim_job_fill(&job, seed * 2 + round);
            ck_assert_msg(sim_job_run(&job, results), "seed %d stands still: %s", (int)seed,
                          random_batch_text(&batch.random));
            sim_job_check(&job, random_batch_text(&batch.random));
        }
        sim_job_destroy(&job);
        batch_destroy(&batch);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("order");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, messages_come_in_plan_order);
    tcase_add_loop_test(tcase, the_executor_takes_the_simulated_time_to_the_nanosecond, 0, 4);
    tcase_add_loop_test(tcase, tight_windows_and_buffers_do_not_block, 0, 4);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
