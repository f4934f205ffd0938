/* SPDX-License-Identifier: Apache-2.0 */
#include "resharding/plan/simulate.h"

#include <stdio.h>

#include "tests/resharding/plan/message_trace.h"
#include "tests/resharding/plan/random_relay.h"
#include "xm_test.h"

/* Message by message, in plan order: each starts when its data and all that it occupies are there.
 */
static int64_t run_exclusive(message_trace_t *trace)
{
    int64_t free_at[RESOURCE_KINDS][TRACE_RANKS] = {{0}}, makespan = 0;

    for (int64_t m = 0; m < trace->count; ++m) {
        traced_message_t *message = &trace->messages[m];
        int64_t longest = 0;

        if (!message->reads_source) {
            for (int64_t source = message_trace_source(trace, message, -1); source >= 0;
                 source = message_trace_source(trace, message, source)) {
                ck_assert_int_lt(source, m);
                if (trace->messages[source].arrived > message->start) {
                    message->start = trace->messages[source].arrived;
                }
            }
        }
        for (int u = 0; u < message->use.count; ++u) {
            int64_t at = free_at[message->use.kind[u]][message->use.number[u]];

            message->start = at > message->start ? at : message->start;
        }
        for (int u = 0; u < message->use.count; ++u) {
            int kind = message->use.kind[u], number = message->use.number[u];
            int64_t busy = resource_busy_ns(trace->network, kind, number, message->bytes);

            free_at[kind][number] = message->start + busy;
            longest = busy > longest ? busy : longest;
        }
        message->arrived = message->start + longest + message->use.latency_ns;
        makespan = message->arrived > makespan ? message->arrived : makespan;
    }
    return makespan;
}

static void compare_exclusive(const xm_plan_t *plan, const random_batch_t *batch)
{
    int64_t makespan, expected;
    xm_span_t *spans = malloc(((size_t)xm_plan_hops(plan) + 1) * sizeof(*spans)), *reference;
    message_trace_t trace;

    ck_assert_ptr_nonnull(spans);
    ck_assert_xm_ok(xm_simulate(plan, batch->network, XM_SHARING_EXCLUSIVE, spans, &makespan));
    message_trace_create(plan, batch->network, &trace);
    expected = run_exclusive(&trace);
    reference = message_trace_spans(&trace);
    ck_assert_msg(makespan == expected, "%lld ns, not %lld: %s", (long long)makespan,
                  (long long)expected, random_batch_text(batch));
    for (int64_t h = 0; h < xm_plan_hops(plan); ++h) {
        ck_assert_msg(spans[h].start_ns == reference[h].start_ns &&
                          spans[h].end_ns == reference[h].end_ns,
                      "hop %d is from %lld to %lld, not from %lld to %lld: %s", (int)h,
                      (long long)spans[h].start_ns, (long long)spans[h].end_ns,
                      (long long)reference[h].start_ns, (long long)reference[h].end_ns,
                      random_batch_text(batch));
    }
    ck_assert_xm_ok(xm_simulate(plan, batch->network, XM_SHARING_EXCLUSIVE, NULL, &makespan));
    ck_assert_int_eq(makespan, expected);
    /* Below the limit it is exact, otherwise at least the limit. */
    ck_assert_xm_ok(xm_simulate_until(plan, batch->network, expected + 1, &makespan));
    ck_assert_int_eq(makespan, expected);
    ck_assert_xm_ok(xm_simulate_until(plan, batch->network, expected / 2, &makespan));
    ck_assert(makespan >= expected / 2 && makespan <= expected);
    free(reference);
    free(spans);
    message_trace_destroy(&trace);
}

START_TEST(exclusive_is_message_by_message_in_plan_order)
{
    random_t random = {41};
    int long_ones = 0;

    for (int i = 0; i < xm_test_rounds(4000); ++i) {
        random_batch_t batch;
        xm_plan_t *plan;

        random_batch_create(&random, &batch);
        ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
        if (i % 2 == 0) {
            random_trees(&random, plan);
            random_chunks(&random, plan, 300);
        }
        if (i % 3 == 0) {
            (void)random_relay(&random, plan);
        }
        compare_exclusive(plan, &batch);
        for (int64_t t = 0; t < plan->builder.transfer_count; ++t) {
            long_ones += xm_plan_chunks(plan, t) > 20;
        }
        xm_plan_destroy(plan);
        random_batch_destroy(&batch);
    }
    ck_assert_int_gt(long_ones, xm_test_rounds(4000)); /* the simulation's short cut is taken */
}
END_TEST

/* The network simulated on need not be the one that was planned for. */
START_TEST(any_network_will_do)
{
    random_t random = {42};
    int different = 0;

    for (int i = 0; i < xm_test_rounds(200); ++i) {
        random_batch_t batch, other;
        xm_plan_t *plan;
        int64_t own, foreign;

        random_batch_create(&random, &batch);
        random_batch_create(&random, &other);
        ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
        if (other.ranks >= batch.ranks) {
            xm_network_t *network = batch.network;

            ck_assert_xm_ok(xm_simulate(plan, network, XM_SHARING_EXCLUSIVE, NULL, &own));
            ck_assert_int_eq(own, xm_plan_makespan_ns(plan));
            batch.network = other.network;
            compare_exclusive(plan, &batch);
            ck_assert_xm_ok(xm_simulate(plan, batch.network, XM_SHARING_EXCLUSIVE, NULL, &foreign));
            different += own != foreign;
            batch.network = network;
        }
        xm_plan_destroy(plan);
        random_batch_destroy(&other);
        random_batch_destroy(&batch);
    }
    ck_assert_int_gt(different, 0);
}
END_TEST

/* ---- by hand -----------------------------------------------------------------------------------
 */

/* Bytes from ranks 0 … to the ranks behind them; two ranks on a host; NICs of 1 byte/ns. */
typedef struct {
    xm_network_t *network;
    xm_plan_t *plan;
} small_t;

static void small_create(const char *src_mesh, const char *src_spec, const char *dst_mesh,
                         const char *dst_spec, int64_t bytes, double slow_ingress, small_t *s)
{
    xm_network_params_t network = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    double egress[16], ingress[16];
    int host_of[16];
    xm_mesh_t *meshes[2];
    xm_layout_t *src, *dst;
    xm_spec_t spec;

    ck_assert_xm_ok(xm_mesh_parse(src_mesh, NULL, 0, &meshes[0]));
    ck_assert_xm_ok(
        xm_mesh_parse(dst_mesh, NULL, (xm_mesh_size(meshes[0]) + 1) / 2 * 2, &meshes[1]));
    network.ranks = xm_mesh_max_rank(meshes[1]) + 1;
    for (int r = 0; r < 16; ++r) {
        host_of[r] = r / 2;
        egress[r] = ingress[r] = 1e9;
    }
    ingress[(network.ranks - 1) / 2] = slow_ingress;
    network.host_of_rank = host_of;
    network.egress = egress;
    network.ingress = ingress;
    network.nic_latency = 5e-6;
    network.host_bandwidth = 1e10;
    network.host_latency = 1e-6;
    ck_assert_xm_ok(xm_network_create(&network, &s->network));
    ck_assert_xm_ok(xm_spec_parse(src_spec, &spec));
    ck_assert_xm_ok(xm_layout_create(meshes[0], &spec, XM_PARTITION_EVEN, &bytes, &src));
    ck_assert_xm_ok(xm_spec_parse(dst_spec, &spec));
    ck_assert_xm_ok(xm_layout_create(meshes[1], &spec, XM_PARTITION_EVEN, &bytes, &dst));
    params.src = src;
    params.dst = dst;
    params.element_size = 1;
    params.network = s->network;
    params.scheduler = XM_SCHEDULER_NAIVE;
    ck_assert_xm_ok(xm_plan_create(&params, &s->plan));
    for (int64_t t = 0; t < s->plan->task_count; ++t) {
        int64_t *chunk = &s->plan->builder.chunk_elements[t];

        *chunk = s->plan->tasks[t].elements < 100000 ? s->plan->tasks[t].elements : 100000;
    }
    xm_layout_destroy(dst);
    xm_layout_destroy(src);
    xm_mesh_destroy(meshes[1]);
    xm_mesh_destroy(meshes[0]);
}

static void expect(const char *src_mesh, const char *src_spec, const char *dst_mesh,
                   const char *dst_spec, int64_t bytes, double slow_ingress, int64_t exclusive,
                   int64_t fair)
{
    small_t s;
    int64_t makespan;

    small_create(src_mesh, src_spec, dst_mesh, dst_spec, bytes, slow_ingress, &s);
    ck_assert_xm_ok(xm_simulate(s.plan, s.network, XM_SHARING_EXCLUSIVE, NULL, &makespan));
    ck_assert_int_eq(makespan, exclusive);
    ck_assert_xm_ok(xm_simulate(s.plan, s.network, XM_SHARING_FAIR, NULL, &makespan));
    ck_assert_int_ge(makespan, fair);
    ck_assert_int_le(makespan, fair + 1);
    xm_plan_destroy(s.plan);
    xm_network_destroy(s.network);
}

START_TEST(hand_made_cases)
{
    /* One message, or ten chunks: the bytes and the latency, once. */
    expect("1", "R", "1", "R", 50000, 1e9, 55000, 55000);
    expect("1", "R", "1", "R", 1000000, 1e9, 1005000, 1005000);
    /* A slow receiver. */
    expect("1", "R", "1", "R", 1000000, 2.5e8, 4005000, 4005000);
    /* Two flows share both NICs: twice as long. */
    expect("2", "S0", "2", "S0", 2000000, 1e9, 2005000, 2005000);
    /* Two flows on two pairs of hosts do not. */
    expect("4", "S0", "4", "S0", 4000000, 1e9, 2005000, 2005000);
    /* Two chains over three hosts, one after the other or at half the rate each: two chunks' times
     * and three latencies to fill them. */
    expect("1", "R", "3x2", "S1", 2000000, 1e9, 2215000, 2415000);
}
END_TEST

/* Max-min shares: 250 MB/s to the slow host leave 750 MB/s to the other. */
START_TEST(the_scarcest_resource_decides)
{
    small_t s;
    int64_t makespan;
    xm_span_t spans[4];

    small_create("1", "R", "4x1", "S0", 4000000, 2.5e8, &s);
    ck_assert_xm_ok(xm_simulate(s.plan, s.network, XM_SHARING_FAIR, spans, &makespan));
    for (int64_t t = 0; t < 4; ++t) {
        int to = xm_plan_route(s.plan, s.plan->builder.transfers[t].route)->ranks[0];
        int64_t end = to < 4 ? 2671667 : 8005000;

        ck_assert_int_eq(spans[t].start_ns, 0);
        ck_assert_int_ge(spans[t].end_ns, end - 1);
        ck_assert_int_le(spans[t].end_ns, end + 1);
    }
    xm_plan_destroy(s.plan);
    xm_network_destroy(s.network);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("simulate");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 600);
    tcase_add_test(tcase, exclusive_is_message_by_message_in_plan_order);
    tcase_add_test(tcase, any_network_will_do);
    tcase_add_test(tcase, hand_made_cases);
    tcase_add_test(tcase, the_scarcest_resource_decides);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
