/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/resharding/plan/message_trace.h"
#include "xm_test.h"

/* The same network, whose hosts have so many processors. */
static xm_network_t *with_processors(const xm_network_t *network, double cores, double nic_cpu,
                                     double host_cpu)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    int host[TRACE_RANKS], rail[TRACE_RANKS], rack[TRACE_RANKS];
    double egress[TRACE_RANKS], ingress[TRACE_RANKS];
    xm_network_t *made;

    params.ranks = xm_network_ranks(network);
    for (int r = 0; r < params.ranks; ++r) {
        host[r] = xm_network_host_of(network, r);
        rail[r] = xm_network_rail_of(network, r);
        rack[host[r]] = xm_network_rack_of(network, host[r]);
        egress[rail[r]] = xm_network_rail_egress(network, rail[r]);
        ingress[rail[r]] = xm_network_rail_ingress(network, rail[r]);
    }
    params.host_of_rank = host;
    params.rail_of_rank = rail;
    params.rack_of_host = rack;
    params.rail_egress = egress;
    params.rail_ingress = ingress;
    params.uplink_bandwidth = xm_network_uplink_bandwidth(network);
    params.nic_latency = xm_network_nic_latency(network);
    params.host_bandwidth = xm_network_host_bandwidth(network);
    params.host_latency = xm_network_host_latency(network);
    params.cores_per_host = cores;
    params.nic_cpu = nic_cpu;
    params.host_cpu = host_cpu;
    ck_assert_xm_ok(xm_network_create(&params, &made));
    return made;
}

/* Bytes that a rank has from the start and wants, by the layouts. */
static uint64_t kept_bytes(const random_batch_t *batch, int rank)
{
    uint64_t bytes = 0;

    for (int i = 0; i < batch->count; ++i) {
        const xm_layout_t *src = batch->tensors[i].src, *dst = batch->tensors[i].dst;
        int from = xm_mesh_position(xm_layout_mesh(src), rank);
        int to = xm_mesh_position(xm_layout_mesh(dst), rank);
        xm_box_t a, b;
        uint64_t volume = 1;

        if (from < 0 || to < 0) {
            continue;
        }
        xm_layout_tile_box(src, xm_layout_tile_at(src, from), &a);
        xm_layout_tile_box(dst, xm_layout_tile_at(dst, to), &b);
        for (int d = 0; d < a.dims; ++d) {
            int64_t low = a.lo[d] > b.lo[d] ? a.lo[d] : b.lo[d];
            int64_t end = a.hi[d] < b.hi[d] ? a.hi[d] : b.hi[d];

            volume *= (uint64_t)(end > low ? end - low : 0);
        }
        bytes += volume * (uint64_t)batch->tensors[i].element_bits / 8;
    }
    return bytes;
}

/* What the busiest rank, or host, has to do: from the messages one by one, rank by rank. */
static double work_ns(const random_batch_t *batch, const message_trace_t *trace, double cores,
                      double nic_cpu, double host_cpu)
{
    double most = 0;

    for (int r = 0; r < batch->ranks; ++r) {
        double own = 0, host = 0;

        for (int s = 0; s < batch->ranks; ++s) {
            double seconds = 2 * host_cpu * (double)kept_bytes(batch, s);

            for (int64_t m = 0; m < trace->count; ++m) {
                const traced_message_t *message = &trace->messages[m];
                bool inside =
                    batch->host_of_rank[message->sender] == batch->host_of_rank[message->receiver];
                int ends = (message->sender == s) + (message->receiver == s);

                seconds += ends * (inside ? host_cpu : nic_cpu) * (double)message->bytes;
            }
            own += s == r ? seconds : 0;
            host += batch->host_of_rank[s] == batch->host_of_rank[r] ? seconds : 0;
        }
        most = fmax(most, fmax(own, host / cores));
    }
    return 1e9 * most;
}

START_TEST(a_plan_takes_what_its_busiest_processors_need)
{
    random_t random = {47};
    int slowed = 0, as_before = 0;

    for (int i = 0; i < xm_test_rounds(1500); ++i) {
        double cores = 0.5 * random_int(&random, 1, 8);
        double nic_cpu = 1e-11 * random_int(&random, 0, 100);
        double host_cpu = 1e-11 * random_int(&random, 0, 30);
        xm_sharing_t sharing = (xm_sharing_t)(i % 2);
        random_batch_t batch;
        xm_network_t *network;
        message_trace_t trace;
        xm_plan_t *plan;
        xm_span_t *before, *after;
        int64_t free_ns, makespan, last = 0;
        double expected;

        random_batch_create(&random, &batch);
        network = with_processors(batch.network, cores, nic_cpu, host_cpu);
        batch.params.network = i % 3 == 0 ? network : batch.network;
        ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
        before = calloc((size_t)xm_plan_hops(plan) + 1, sizeof(*before));
        after = calloc((size_t)xm_plan_hops(plan) + 1, sizeof(*after));
        ck_assert(before != NULL && after != NULL);
        ck_assert_xm_ok(xm_simulate(plan, batch.network, sharing, before, &free_ns));
        ck_assert_xm_ok(xm_simulate(plan, network, sharing, after, &makespan));
        message_trace_create(plan, network, &trace);
        expected = fmax((double)free_ns, work_ns(&batch, &trace, cores, nic_cpu, host_cpu));
        ck_assert_msg(fabs((double)makespan - expected) <= 1 + 1e-9 * expected,
                      "%lld ns, not %.1f: %s", (long long)makespan, expected,
                      random_batch_text(&batch));
        for (int64_t h = 0; h < xm_plan_hops(plan); ++h) {
            double factor = free_ns > 0 ? expected / (double)free_ns : 1;

            ck_assert_double_eq_tol((double)after[h].start_ns, (double)before[h].start_ns * factor,
                                    2);
            ck_assert_double_eq_tol((double)after[h].end_ns, (double)before[h].end_ns * factor, 2);
            last = after[h].end_ns > last ? after[h].end_ns : last;
        }
        ck_assert(free_ns == 0 || last == makespan);
        ck_assert_int_le(xm_plan_bound_ns(plan), makespan);
        if (batch.params.network == network && sharing == XM_SHARING_EXCLUSIVE) {
            ck_assert_int_eq(makespan, xm_plan_makespan_ns(plan));
        }
        slowed += makespan > free_ns;
        as_before += makespan == free_ns;
        message_trace_destroy(&trace);
        free(after);
        free(before);
        xm_plan_destroy(plan);
        xm_network_destroy(network);
        random_batch_destroy(&batch);
    }
    ck_assert_int_gt(slowed, xm_test_rounds(1500) / 10);
    ck_assert_int_gt(as_before, xm_test_rounds(1500) / 10);
}
END_TEST

START_TEST(processors_that_cannot_be_are_refused)
{
    const int host_of_rank[] = {0};
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    xm_network_t *network;

    params.ranks = 1;
    params.host_of_rank = host_of_rank;
    params.nic_bandwidth = params.host_bandwidth = 1e9;
    params.cores_per_host = 2;
    params.nic_cpu = -1;
    ck_assert_xm_fails(
        xm_network_create(&params, &network), XM_ERR_INVALID_ARGUMENT,
        "neither cores of a host (2) nor their seconds for a byte (-1 between hosts, "
        "0 inside) can be negative or infinite");
    params.nic_cpu = 0;
    params.cores_per_host = INFINITY;
    ck_assert_xm_fails(xm_network_create(&params, &network), XM_ERR_INVALID_ARGUMENT,
                       "neither cores of a host (inf)");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("simulate_processors");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 300);
    tcase_add_test(tcase, a_plan_takes_what_its_busiest_processors_need);
    tcase_add_test(tcase, processors_that_cannot_be_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
