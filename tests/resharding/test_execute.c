#include "resharding/execute.h"

#include <stdio.h>

#include "comm/transport_sim.h"
#include "random_case.h"
#include "resharding/plan_private.h"
#include "xm_test.h"

enum { CASES = 2400, MAX_RANKS = 32 };

/* One in-process job: every rank's transport, executor and buffers. */
typedef struct {
    int ranks;
    xm_sim_fabric_t *fabric;
    xm_transport_t *transport[MAX_RANKS];
    xm_executor_t *executor[MAX_RANKS];
    char *src[MAX_RANKS], *dst[MAX_RANKS];
    uint64_t dst_bytes[MAX_RANKS];
} job_t;

static void job_create(job_t *job, const xm_plan_t *plan, const random_case_t *c, int window)
{
    xm_sim_fabric_params_t fabric = XM_SIM_FABRIC_PARAMS_INIT;

    memset(job, 0, sizeof(*job));
    job->ranks = c->ranks;
    fabric.ranks = c->ranks;
    fabric.host_of_rank = c->host_of_rank;
    fabric.nic_latency = 1e-5;
    ck_assert_xm_ok(xm_sim_fabric_create(&fabric, &job->fabric));
    for (int r = 0; r < c->ranks; ++r) {
        xm_executor_params_t params = XM_EXECUTOR_PARAMS_INIT;

        ck_assert_xm_ok(xm_transport_sim_create(job->fabric, r, &job->transport[r]));
        params.plan = plan;
        params.transport = job->transport[r];
        params.src_bytes = xm_layout_buffer_bytes(c->src, r, c->element_size);
        params.dst_bytes = xm_layout_buffer_bytes(c->dst, r, c->element_size);
        job->dst_bytes[r] = params.dst_bytes;
        /* Exact sizes, so that the sanitizers see any access outside. */
        job->src[r] = malloc(params.src_bytes > 0 ? params.src_bytes : 1);
        job->dst[r] = malloc(params.dst_bytes > 0 ? params.dst_bytes : 1);
        params.src = job->src[r];
        params.dst = job->dst[r];
        params.window = window;
        ck_assert_xm_ok(xm_executor_create(&params, &job->executor[r]));
    }
}

static void job_destroy(job_t *job)
{
    for (int r = 0; r < job->ranks; ++r) {
        xm_executor_destroy(job->executor[r]);
    }
    for (int r = 0; r < job->ranks; ++r) {
        xm_transport_destroy(job->transport[r]);
        free(job->src[r]);
        free(job->dst[r]);
    }
    xm_sim_fabric_destroy(job->fabric);
}

/* Runs until every rank has ended; false when the fabric stands still before that. */
static bool job_run(job_t *job, xm_status_t *results)
{
    for (int r = 0; r < job->ranks; ++r) {
        ck_assert_xm_ok(xm_executor_post(job->executor[r]));
        results[r] = XM_IN_PROGRESS;
    }
    for (;;) {
        int running = 0;
        bool busy = false;

        for (int r = 0; r < job->ranks; ++r) {
            if (results[r] != XM_IN_PROGRESS) {
                continue;
            }
            busy = xm_transport_progress(job->transport[r]) > 0 || busy;
            results[r] = xm_executor_advance(job->executor[r]);
            running += results[r] == XM_IN_PROGRESS;
            busy = busy || !xm_executor_may_sleep(job->executor[r]);
        }
        if (running == 0) {
            return true;
        }
        if (!busy && !xm_sim_fabric_step(job->fabric)) {
            bool due = false;

            for (int r = 0; r < job->ranks; ++r) {
                due = due || xm_transport_arm(job->transport[r]) == XM_IN_PROGRESS;
            }
            if (!due) {
                return false;
            }
        }
    }
}

static void check_case(uint64_t seed, xm_strategy_t strategy, xm_scheduler_t scheduler)
{
    random_t random = {seed};
    random_case_t c;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_plan_t *plan;
    job_t job;

    random_case_create(&random, &c);
    params.src = c.src;
    params.dst = c.dst;
    params.element_size = c.element_size;
    params.strategy = strategy;
    params.scheduler = scheduler;
    params.network = c.network;
    params.chunk_bytes = (uint64_t)random_int(&random, 1, 4) * 24;
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    ck_assert_xm_ok(xm_plan_verify(plan));
    job_create(&job, plan, &c, random_int(&random, 1, 3));
    for (uint64_t round = 0; round < 2; ++round) { /* the second run reuses everything */
        xm_status_t results[MAX_RANKS];

        for (int r = 0; r < c.ranks; ++r) {
            pattern_fill(c.src, r, c.element_size, seed * 2 + round, job.src[r]);
            memset(job.dst[r], 0xa5, job.dst_bytes[r]);
        }
        ck_assert_msg(job_run(&job, results), "seed %llu stands still: %s",
                      (unsigned long long)seed, random_case_text(&c));
        for (int r = 0; r < c.ranks; ++r) {
            int64_t wrong = pattern_wrong(c.dst, r, c.element_size, seed * 2 + round, job.dst[r]);

            ck_assert_int_eq(results[r], XM_OK);
            ck_assert_msg(wrong == 0, "seed %llu, round %d, rank %d: %lld wrong bytes: %s",
                          (unsigned long long)seed, (int)round, r, (long long)wrong,
                          random_case_text(&c));
            ck_assert_int_eq(pattern_wrong(c.src, r, c.element_size, seed * 2 + round, job.src[r]),
                             0);
        }
    }
    job_destroy(&job);
    xm_plan_destroy(plan);
    random_case_destroy(&c);
}

START_TEST(random_plans_move_every_byte)
{
    for (uint64_t seed = 1 + (uint64_t)_i; seed <= CASES; seed += 4) {
        check_case(seed, (xm_strategy_t)(_i % 2), (xm_scheduler_t)(_i / 2));
    }
}
END_TEST

/* (2,4) → (2,4), R R → S0 R: for faults and small checks. */
static void fixed_case(random_case_t *c, xm_plan_t **plan)
{
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_network_params_t network = XM_NETWORK_PARAMS_INIT;
    int64_t shape[2] = {64, 48};
    xm_mesh_t *src_mesh, *dst_mesh;
    xm_spec_t src_spec, dst_spec;

    memset(c, 0, sizeof(*c));
    c->ranks = 16;
    c->element_size = 4;
    for (int r = 0; r < 16; ++r) {
        c->host_of_rank[r] = r / 4;
    }
    ck_assert_xm_ok(xm_mesh_parse("2x4", NULL, 0, &src_mesh));
    ck_assert_xm_ok(xm_mesh_parse("2x4", NULL, 8, &dst_mesh));
    ck_assert_xm_ok(xm_spec_parse("RS0", &src_spec));
    ck_assert_xm_ok(xm_spec_parse("S0R", &dst_spec));
    ck_assert_xm_ok(xm_layout_create(src_mesh, &src_spec, XM_PARTITION_EVEN, shape, &c->src));
    ck_assert_xm_ok(xm_layout_create(dst_mesh, &dst_spec, XM_PARTITION_EVEN, shape, &c->dst));
    network.ranks = 16;
    network.host_of_rank = c->host_of_rank;
    network.nic_bandwidth = 1e9;
    network.host_bandwidth = 1e10;
    ck_assert_xm_ok(xm_network_create(&network, &c->network));
    params.src = c->src;
    params.dst = c->dst;
    params.element_size = 4;
    params.network = c->network;
    params.chunk_bytes = 256;
    ck_assert_xm_ok(xm_plan_create(&params, plan));
    xm_mesh_destroy(src_mesh);
    xm_mesh_destroy(dst_mesh);
}

START_TEST(a_dead_rank_ends_every_run_that_needs_it)
{
    for (int victim = 0; victim < 16; ++victim) {
        random_case_t c;
        xm_plan_t *plan;
        job_t job;
        xm_status_t results[MAX_RANKS];
        int died = 0;

        fixed_case(&c, &plan);
        job_create(&job, plan, &c, 2);
        for (int r = 0; r < c.ranks; ++r) {
            pattern_fill(c.src, r, 4, 1, job.src[r]);
        }
        xm_sim_fabric_kill(job.fabric, victim);
        /* Ranks behind a relay that gave up are not told by this fabric; a worker's fault channel
         * does. */
        (void)job_run(&job, results);
        for (int r = 0; r < c.ranks; ++r) {
            ck_assert(results[r] == XM_OK || results[r] == XM_ERR_PEER_DIED ||
                      results[r] == XM_IN_PROGRESS);
            died += r != victim && results[r] == XM_ERR_PEER_DIED;
        }
        ck_assert_msg(victim < 8 || died > 0, "nobody noticed the death of receiver %d", victim);
        job_destroy(&job);
        xm_plan_destroy(plan);
        random_case_destroy(&c);
    }
}
END_TEST

START_TEST(a_cancelled_run_ends_and_can_be_repeated)
{
    random_case_t c;
    xm_plan_t *plan;
    job_t job;
    xm_status_t results[MAX_RANKS], first[MAX_RANKS];

    fixed_case(&c, &plan);
    job_create(&job, plan, &c, 2);
    for (int r = 0; r < c.ranks; ++r) {
        pattern_fill(c.src, r, 4, 1, job.src[r]);
        ck_assert_xm_ok(xm_executor_post(job.executor[r]));
        first[r] = xm_executor_advance(job.executor[r]);
    }
    ck_assert_int_eq(first[8], XM_IN_PROGRESS);
    ck_assert_xm_fails(xm_executor_post(job.executor[8]), XM_ERR_INVALID_ARGUMENT, "has not ended");
    for (int r = 0; r < c.ranks; ++r) {
        xm_executor_cancel(job.executor[r]);
    }
    for (int round = 0; round < 100; ++round) {
        for (int r = 0; r < c.ranks; ++r) {
            (void)xm_transport_progress(job.transport[r]);
            results[r] = xm_executor_advance(job.executor[r]);
        }
        (void)xm_sim_fabric_step(job.fabric);
    }
    for (int r = 0; r < c.ranks; ++r) {
        /* Ranks without work had ended before. */
        ck_assert_int_eq(results[r], first[r] == XM_OK ? XM_OK : XM_ERR_CANCELED);
        memset(job.dst[r], 0, job.dst_bytes[r]);
    }
    ck_assert(job_run(&job, results));
    for (int r = 0; r < c.ranks; ++r) {
        ck_assert_int_eq(results[r], XM_OK);
        ck_assert_int_eq(pattern_wrong(c.dst, r, 4, 1, job.dst[r]), 0);
    }
    job_destroy(&job);
    xm_plan_destroy(plan);
    random_case_destroy(&c);
}
END_TEST

START_TEST(spans_cover_what_the_rank_does)
{
    random_case_t c;
    xm_plan_t *plan;
    job_t job;
    xm_status_t results[MAX_RANKS];
    int64_t count;
    const xm_transfer_t *transfers;

    fixed_case(&c, &plan);
    job_create(&job, plan, &c, 2);
    ck_assert(job_run(&job, results));
    transfers = xm_plan_transfers(plan, &count);
    for (int64_t i = 0; i < count; ++i) {
        for (int r = 0; r < c.ranks; ++r) {
            xm_span_t span;

            xm_executor_span(job.executor[r], i, &span);
            if (transfers[i].sender == r || transfers[i].receiver == r) {
                ck_assert_int_gt(span.end_ns, span.start_ns);
            } else {
                ck_assert_int_eq(span.end_ns, 0);
            }
        }
    }
    job_destroy(&job);
    xm_plan_destroy(plan);
    random_case_destroy(&c);
}
END_TEST

/* The verifier allows to relay what a local copy brings: the end of the copy must wake the relay.
 */
START_TEST(a_relay_of_a_local_copy_is_sent)
{
    random_case_t c = {.ranks = 2, .element_size = 4};
    xm_network_params_t network = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_mesh_t *src_mesh, *dst_mesh;
    xm_spec_t spec;
    int64_t shape[] = {6};
    xm_status_t results[MAX_RANKS];
    xm_plan_t *plan;
    job_t job;

    network.ranks = c.ranks;
    network.host_of_rank = c.host_of_rank;
    network.nic_bandwidth = network.host_bandwidth = 1e9;
    ck_assert_xm_ok(xm_network_create(&network, &c.network));
    ck_assert_xm_ok(xm_mesh_parse("1", NULL, 0, &src_mesh));
    ck_assert_xm_ok(xm_mesh_parse("2", NULL, 0, &dst_mesh));
    ck_assert_xm_ok(xm_spec_parse("R", &spec));
    ck_assert_xm_ok(xm_layout_create(src_mesh, &spec, XM_PARTITION_EVEN, shape, &c.src));
    ck_assert_xm_ok(xm_layout_create(dst_mesh, &spec, XM_PARTITION_EVEN, shape, &c.dst));
    params.src = c.src;
    params.dst = c.dst;
    params.element_size = c.element_size;
    params.network = c.network;
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    ck_assert_int_eq(plan->transfer_count, 2);
    ck_assert_int_eq(plan->transfers[0].receiver, 0);
    plan->transfers[1].parent = 0;
    ck_assert_xm_ok(xm_plan_verify(plan));
    job_create(&job, plan, &c, 1);
    pattern_fill(c.src, 0, c.element_size, 1, job.src[0]);
    ck_assert(job_run(&job, results));
    for (int r = 0; r < c.ranks; ++r) {
        ck_assert_int_eq(results[r], XM_OK);
        ck_assert_int_eq(pattern_wrong(c.dst, r, c.element_size, 1, job.dst[r]), 0);
    }
    job_destroy(&job);
    xm_plan_destroy(plan);
    xm_layout_destroy(c.dst);
    xm_layout_destroy(c.src);
    xm_mesh_destroy(dst_mesh);
    xm_mesh_destroy(src_mesh);
    xm_network_destroy(c.network);
}
END_TEST

START_TEST(bad_buffers_are_refused)
{
    random_case_t c;
    xm_plan_t *plan;
    xm_sim_fabric_params_t fabric_params = XM_SIM_FABRIC_PARAMS_INIT;
    xm_sim_fabric_t *fabric;
    xm_executor_params_t params = XM_EXECUTOR_PARAMS_INIT;
    xm_executor_t *executor;
    char buffer[8192];

    fixed_case(&c, &plan);
    fabric_params.ranks = 16;
    ck_assert_xm_ok(xm_sim_fabric_create(&fabric_params, &fabric));
    params.plan = plan;
    ck_assert_xm_ok(xm_transport_sim_create(fabric, 9, &params.transport));
    params.dst = buffer;
    params.dst_bytes = 6143;
    ck_assert_xm_fails(xm_executor_create(&params, &executor), XM_ERR_BUFFER_TOO_SMALL,
                       "rank 9: the destination buffer has 6143 bytes, its tile needs 6144");
    params.dst_bytes = 6144;
    params.dst = NULL;
    ck_assert_xm_fails(xm_executor_create(&params, &executor), XM_ERR_INVALID_ARGUMENT,
                       "rank 9: the destination buffer is NULL");
    params.dst = buffer;
    params.window = 65;
    ck_assert_xm_fails(xm_executor_create(&params, &executor), XM_ERR_INVALID_ARGUMENT,
                       "window 65 is outside 0 … 64");
    xm_transport_destroy(params.transport);
    xm_sim_fabric_destroy(fabric);
    xm_plan_destroy(plan);
    random_case_destroy(&c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("execute");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 240);
    tcase_add_loop_test(tcase, random_plans_move_every_byte, 0, 4);
    tcase_add_test(tcase, a_dead_rank_ends_every_run_that_needs_it);
    tcase_add_test(tcase, a_cancelled_run_ends_and_can_be_repeated);
    tcase_add_test(tcase, spans_cover_what_the_rank_does);
    tcase_add_test(tcase, a_relay_of_a_local_copy_is_sent);
    tcase_add_test(tcase, bad_buffers_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
