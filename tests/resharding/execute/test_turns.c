/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "resharding/execute/execute.h"
#include "tests/resharding/execute/sim_job.h"
#include "xm_test.h"
#include "tests/resharding/plan/plan_lists.h"

enum { CASES = 3000 };

typedef enum { EGRESS, INGRESS } direction_t;

/* The rank at one end of a hop between hosts; −1: a hop inside a host. */
static int end_of_hop(const xm_plan_t *plan, int64_t transfer, int place, direction_t direction)
{
    int64_t count;
    const xm_transfer_t *one = &plan_transfers(plan, &count)[transfer];
    const xm_route_t *route = xm_plan_route(plan, one->route);
    int sender = xm_hop_sender(one, route, place), receiver = route->ranks[place];

    if (xm_plan_host_of(plan, sender) == xm_plan_host_of(plan, receiver)) {
        return -1;
    }
    return direction == EGRESS ? sender : receiver;
}

/* How this rank or another saw a hop between hosts. False: it does not use that rail. */
static bool span_at(const sim_job_t *job, int64_t transfer, int place, direction_t direction,
                    int rail, xm_span_t *span)
{
    int rank = end_of_hop(job->plan, transfer, place, direction);

    if (rank < 0 || xm_network_rail_of(xm_plan_network(job->plan), rank) != rail) {
        return false;
    }
    xm_executor_span(job->executor[rank], xm_plan_first_hop(job->plan, transfer) + place, span);
    return true;
}

/* With one chunk a hop, a hop begins after those of the transfer before have ended, but for one in
 * its own lane, which may be expected earlier. Returns how often one had to follow another. */
static int check_pair(const sim_job_t *job, int64_t before, int64_t transfer, direction_t direction,
                      int rail)
{
    int64_t count;
    const xm_transfer_t *transfers = plan_transfers(job->plan, &count);
    const xm_route_t *first = xm_plan_route(job->plan, transfers[before].route);
    const xm_route_t *second = xm_plan_route(job->plan, transfers[transfer].route);
    int followers = 0;

    for (int i = 0; i < first->count; ++i) {
        for (int k = 0; k < second->count; ++k) {
            bool one_lane = first->ranks[i] == second->ranks[k] &&
                            xm_hop_sender(&transfers[before], first, i) ==
                                xm_hop_sender(&transfers[transfer], second, k);
            xm_span_t a, b;

            if (!one_lane && span_at(job, before, i, direction, rail, &a) &&
                span_at(job, transfer, k, direction, rail, &b)) {
                ++followers;
                ck_assert_msg(
                    b.start_ns >= a.end_ns,
                    "rail %d %s: transfer %lld begins at %lld, transfer %lld ends at %lld", rail,
                    direction == EGRESS ? "egress" : "ingress", (long long)transfer,
                    (long long)b.start_ns, (long long)before, (long long)a.end_ns);
            }
        }
    }
    return followers;
}

static int check_rail(const sim_job_t *job, int rail, direction_t direction)
{
    int64_t count, before = -1;
    const xm_transfer_t *transfers = plan_transfers(job->plan, &count);
    int followers = 0;

    for (int64_t t = 0; t < count; ++t) {
        const xm_route_t *route = xm_plan_route(job->plan, transfers[t].route);
        bool uses = false;
        xm_span_t span;

        for (int i = 0; i < route->count; ++i) {
            uses = uses || span_at(job, t, i, direction, rail, &span);
        }
        if (uses && before >= 0) {
            followers += check_pair(job, before, t, direction, rail);
        }
        /* One byte may still be under way (turn_ahead). */
        before = uses && xm_plan_transfer_bytes(job->plan, t) > 1 ? t : before;
    }
    return followers;
}

START_TEST(a_rail_serves_one_transfer_at_a_time_in_plan_order)
{
    int followers = 0;

    for (uint64_t seed = 1; seed <= (uint64_t)xm_test_rounds(CASES); ++seed) {
        random_t random = {seed};
        sim_options_t options = {.window = 1, .turns = true, .turn_ahead = 1};
        xm_status_t results[SIM_MAX_RANKS];
        xm_plan_params_t params;
        xm_plan_t *plan;
        batch_t batch;
        sim_job_t job;

        batch_create(&random, &batch);
        params = batch.random.params;
        params.chunk_bytes = 8 << 20;
        ck_assert_xm_ok(xm_plan_create(&params, &plan));
        sim_job_create(&job, plan, batch.random.network, &options, &random);
        sim_job_fill(&job, seed);
        ck_assert_msg(sim_job_run(&job, results), "seed %d stands still: %s", (int)seed,
                      random_batch_text(&batch.random));
        sim_job_check(&job, random_batch_text(&batch.random));
        for (int r = 0; r < xm_network_rails(batch.random.network); ++r) {
            followers += check_rail(&job, r, EGRESS) + check_rail(&job, r, INGRESS);
        }
        sim_job_destroy(&job);
        xm_plan_destroy(plan);
        batch_destroy(&batch);
    }
    ck_assert_int_gt(followers, xm_test_rounds(CASES));
}
END_TEST

static int64_t time_of(const fixed_t *fixed, bool turns, bool ordered)
{
    random_t random = {1};
    sim_options_t options = {.window = 8, .turns = turns, .turn_ahead = 512, .ordered = ordered};
    xm_status_t results[SIM_MAX_RANKS];
    sim_job_t job;
    int64_t now = 0;

    sim_job_create(&job, fixed->plan, fixed->network, &options, &random);
    sim_job_fill(&job, 1);
    ck_assert(sim_job_run(&job, results));
    sim_job_check(&job, "a fixed job");
    for (int r = 0; r < job.ranks; ++r) {
        int64_t time = xm_transport_now(job.transport[r]);

        now = time > now ? time : now;
    }
    sim_job_destroy(&job);
    return now;
}

/* Both source hosts begin with the same destination host, so a NIC idles where turns are kept: the
 * time is that of a fabric which serves the plan's order, within the notes' latency. */
START_TEST(turns_take_the_time_of_the_plans_order)
{
    fixed_t fixed;
    double turns, ordered, free_for_all;

    fixed_create(&fixed, "2x4", "RS0", "2x4", 8, "S0R", 16, 512, 768);
    turns = (double)time_of(&fixed, true, false);
    ordered = (double)time_of(&fixed, false, true);
    free_for_all = (double)time_of(&fixed, false, false);
    ck_assert_double_ge(turns, 0.97 * ordered);
    ck_assert_double_le(turns, 1.03 * ordered);
    ck_assert_double_lt(free_for_all, 0.9 * turns);
    fixed_destroy(&fixed);
}
END_TEST

/* Every rank cancels after so many steps; all must end soon. False: one did not. */
static bool cancel_after(sim_job_t *job, int steps, xm_status_t *results)
{
    bool ended = false;

    for (int r = 0; r < job->ranks; ++r) {
        ck_assert_xm_ok(xm_executor_post(job->executor[r]));
    }
    for (int round = 0; round < steps + 2000 && !ended; ++round) {
        ended = true;
        for (int r = 0; r < job->ranks; ++r) {
            if (round == steps) {
                xm_executor_cancel(job->executor[r]);
            }
            (void)xm_transport_progress(job->transport[r]);
            results[r] = xm_executor_advance(job->executor[r]);
            ended = ended && results[r] != XM_IN_PROGRESS;
        }
        (void)xm_sim_fabric_step(job->fabric);
    }
    return ended;
}

/* Lanes of several hops whose notes are awaited, at any moment of a run. */
START_TEST(a_cancelled_run_gives_its_turns_back)
{
    int cancelled = 0;

    for (uint64_t seed = 1; seed <= (uint64_t)xm_test_rounds(1000); ++seed) {
        random_t random = {seed};
        sim_options_t options = {
            .window = random_int(&random, 1, 3), .turns = true, .turn_ahead = 1};
        xm_status_t results[SIM_MAX_RANKS];
        batch_t batch;
        sim_job_t job;

        batch_create(&random, &batch);
        sim_job_create(&job, batch.plan, batch.random.network, &options, &random);
        sim_job_fill(&job, 1);
        ck_assert_msg(cancel_after(&job, random_int(&random, 0, 40), results),
                      "seed %d does not end: %s", (int)seed, random_batch_text(&batch.random));
        for (int r = 0; r < job.ranks; ++r) {
            ck_assert_msg(results[r] == XM_OK || results[r] == XM_ERR_CANCELED, "rank %d: %s", r,
                          xm_status_string(results[r]));
            cancelled += results[r] == XM_ERR_CANCELED;
        }
        sim_job_fill(&job, 2);
        ck_assert(sim_job_run(&job, results));
        sim_job_check(&job, "after a cancelled run");
        sim_job_destroy(&job);
        batch_destroy(&batch);
    }
    ck_assert_int_gt(cancelled, xm_test_rounds(1000));
}
END_TEST

START_TEST(a_dead_rank_ends_every_run_that_needs_it)
{
    for (int victim = 0; victim < 16; ++victim) {
        fixed_t fixed;
        sim_job_t job;
        random_t random = {1};
        sim_options_t options = {.window = 2, .turns = true, .turn_ahead = 512};
        xm_status_t results[SIM_MAX_RANKS];
        int died = 0;

        fixed_default(&fixed);
        sim_job_create(&job, fixed.plan, fixed.network, &options, &random);
        sim_job_fill(&job, 1);
        xm_sim_fabric_kill(job.fabric, victim);
        (void)sim_job_run(&job, results);
        for (int r = 0; r < job.ranks; ++r) {
            ck_assert(results[r] == XM_OK || results[r] == XM_ERR_PEER_DIED ||
                      results[r] == XM_IN_PROGRESS);
            died += r != victim && results[r] == XM_ERR_PEER_DIED;
        }
        ck_assert_msg(victim < 8 || died > 0, "nobody noticed the death of receiver %d", victim);
        sim_job_destroy(&job);
        fixed_destroy(&fixed);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("execute_turns");
    TCase *tcase = tcase_create("turns");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, a_rail_serves_one_transfer_at_a_time_in_plan_order);
    tcase_add_test(tcase, turns_take_the_time_of_the_plans_order);
    tcase_add_test(tcase, a_cancelled_run_gives_its_turns_back);
    tcase_add_test(tcase, a_dead_rank_ends_every_run_that_needs_it);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
