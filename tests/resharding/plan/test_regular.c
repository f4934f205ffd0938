/* SPDX-License-Identifier: Apache-2.0 */
/* Regular plans against lists of what they say, and chains that are folded against those that are
 * not. */
#include <stdlib.h>
#include <string.h>

#include "resharding/plan/regular/regular.h"
#include "resharding/plan/simulate.h"
#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

/* Hosts of 4 devices with a NIC each, and so many processors. */
static xm_network_t *four_nics(int ranks, double cores)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    int *hosts = calloc((size_t)ranks, sizeof(*hosts));
    xm_network_t *network;

    for (int r = 0; r < ranks; ++r) {
        hosts[r] = r / 4;
    }
    params.ranks = ranks;
    params.host_of_rank = hosts;
    params.nic_bandwidth = 4e10;
    params.nics_per_host = 4;
    params.nic_latency = 5e-6;
    params.host_bandwidth = 1e11;
    params.host_latency = 2e-6;
    params.cores_per_host = cores;
    params.nic_cpu = params.host_cpu = 1e-9;
    ck_assert_xm_ok(xm_network_create(&params, &network));
    free(hosts);
    return network;
}

static xm_layout_t *layout_on(int first, int hosts, const char *text, int64_t side)
{
    int ranks[512], sizes[] = {hosts, 4};
    int64_t shape[] = {side, side};
    xm_mesh_t *mesh;
    xm_spec_t spec;
    xm_layout_t *layout;

    for (int i = 0; i < 4 * hosts; ++i) {
        ranks[i] = first + i;
    }
    ck_assert_xm_ok(xm_mesh_create(2, sizes, ranks, &mesh));
    ck_assert_xm_ok(xm_spec_parse(text, &spec));
    ck_assert_xm_ok(xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, shape, &layout));
    xm_mesh_destroy(mesh);
    return layout;
}

typedef struct {
    const char *from, *to;
    int src_hosts, dst_hosts;
    bool apart; /* or on the same ranks */
    int64_t side;
    double cores; /* 0: they are no limit */
} all_to_all_t;

static const all_to_all_t cases[] = {
    {"S01R", "RS01", 16, 16, true, 512, 0},    {"S01R", "RS01", 16, 16, false, 512, 0},
    {"S01R", "RS01", 32, 8, true, 1024, 0},    {"S01R", "RS01", 8, 32, true, 1024, 0},
    {"S10R", "RS01", 16, 16, true, 4096, 0},   {"S0R", "RS0", 64, 64, true, 2048, 0},
    {"S01R", "RS0", 16, 64, true, 1024, 0},    {"S0R", "RS01", 64, 16, true, 1024, 0},
    {"S0R", "RS0", 64, 64, true, 64 * 256, 0}, {"S01R", "RS01", 16, 16, false, 512, 2},
    {"S01R", "RS01", 16, 16, true, 512, 2}};

static xm_plan_t *plan_of(const all_to_all_t *c, xm_network_t **network)
{
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    int first = c->apart ? 4 * c->src_hosts : 0, src = 4 * c->src_hosts, dst = 4 * c->dst_hosts;
    xm_layout_t *layouts[] = {layout_on(0, c->src_hosts, c->from, c->side),
                              layout_on(first, c->dst_hosts, c->to, c->side)};
    xm_plan_t *plan;

    *network = four_nics(first + dst > src ? first + dst : src, c->cores);
    params.src = layouts[0];
    params.dst = layouts[1];
    params.element_size = 2;
    params.network = *network;
    params.strategy = XM_STRATEGY_AUTO;
    params.scheduler = XM_SCHEDULER_AUTO;
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    ck_assert_ptr_nonnull(plan->regular);
    xm_layout_destroy(layouts[1]);
    xm_layout_destroy(layouts[0]);
    return plan;
}

/* Replaces the formula by the lists that the layouts and its numbers give. */
static xm_regular_t *enumerate(xm_plan_t *plan)
{
    xm_regular_t *regular = plan->regular;
    xm_builder_t *builder = &plan->builder;
    int64_t count;

    ck_assert_xm_ok(
        xm_unit_tasks_create(xm_plan_src(plan), xm_plan_dst(plan), 0, &plan->tasks, &count));
    ck_assert_int_eq(count, plan->task_count);
    for (int64_t t = 0; t < count; ++t) {
        const xm_unit_task_t task = xm_plan_task(plan, t);

        ck_assert_int_eq(task.src_tile, plan->tasks[t].src_tile);
        ck_assert_int_eq(task.dst_tile, plan->tasks[t].dst_tile);
        ck_assert_int_eq(task.elements, plan->tasks[t].elements);
    }
    builder->chunk_elements = realloc(builder->chunk_elements, (size_t)count * sizeof(int64_t));
    builder->transfers = malloc((size_t)builder->transfer_count * sizeof(xm_transfer_t));
    for (int64_t t = 0; t < count; ++t) {
        builder->chunk_elements[t] = xm_plan_chunk_elements(plan, t);
    }
    for (int64_t i = 0; i < builder->transfer_count; ++i) {
        builder->transfers[i] = xm_plan_transfer(plan, i);
    }
    plan->regular = NULL;
    ck_assert_xm_ok(xm_builder_number_hops(builder));
    return regular;
}

/* All transfers that a rank has a part in are among those that it is told to look at, and these are
 * few. */
static void check_parts(const xm_plan_t *plan, int rank)
{
    int64_t count = xm_plan_transfer_count(plan), looked_at = 0;
    int64_t next = xm_plan_next_transfer(plan, rank, 0);

    for (int64_t t = 0; t < count; ++t) {
        const xm_transfer_t transfer = xm_plan_transfer(plan, t);
        const xm_route_t *route = xm_plan_route(plan, transfer.route);
        bool has_part = transfer.sender == rank;

        for (int i = 0; i < route->count; ++i) {
            has_part = has_part || route->ranks[i] == rank;
        }
        ck_assert(!has_part || t == next);
        looked_at += t == next;
        next = t == next ? xm_plan_next_transfer(plan, rank, t + 1) : next;
    }
    ck_assert_int_eq(next, count);
    ck_assert_int_ge(looked_at, 1);
    ck_assert_int_le(looked_at, count / 4);
}

/* The list has the same tasks as the layouts, passes the verifier, which goes through all of it,
 * and has the times of the formula; and the plan is near its bound, which all latencies of a
 * message come on top of. */
START_TEST(regular_plans_are_what_they_list)
{
    const all_to_all_t *c = &cases[_i];
    xm_network_t *network;
    xm_plan_t *plan = plan_of(c, &network);
    int64_t hops = xm_plan_hops(plan), makespan, listed;
    uint64_t crossing = 0;
    xm_regular_t *regular;

    ck_assert_int_ge(xm_plan_makespan_ns(plan), xm_plan_bound_ns(plan));
    ck_assert((double)xm_plan_makespan_ns(plan) <= 1.05 * ((double)xm_plan_bound_ns(plan) + 7000) ||
              c->cores > 0);
    ck_assert_xm_ok(xm_plan_verify(plan));
    ck_assert_xm_ok(xm_simulate(plan, network, XM_SHARING_EXCLUSIVE, NULL, &makespan));
    for (int r = 0; r < xm_plan_ranks(plan); r += 5) {
        check_parts(plan, r);
    }
    regular = enumerate(plan);
    ck_assert_xm_ok(xm_plan_verify(plan));
    ck_assert_int_eq(xm_plan_hops(plan), hops);
    for (int64_t t = 0; t < xm_plan_transfer_count(plan); ++t) {
        const xm_transfer_t transfer = xm_plan_transfer(plan, t);
        int receiver = xm_plan_route(plan, transfer.route)->ranks[0];

        crossing += xm_plan_host_of(plan, transfer.sender) != xm_plan_host_of(plan, receiver)
                        ? xm_plan_transfer_bytes(plan, t)
                        : 0;
    }
    ck_assert_int_eq((int64_t)xm_plan_net_bytes(plan), (int64_t)crossing);
    ck_assert_xm_ok(xm_simulate(plan, network, XM_SHARING_EXCLUSIVE, NULL, &listed));
    ck_assert_int_eq(listed, makespan);
    ck_assert_int_eq(listed, xm_plan_makespan_ns(plan));
    xm_regular_destroy(regular);
    xm_plan_destroy(plan);
    xm_network_destroy(network);
}
END_TEST

/* The digest of a plan whose formula has changed is another one, and the verifier finds the fault.
 */
static void expect_caught(xm_plan_t *plan)
{
    char digest[XM_DIGEST_TEXT];

    (void)strcpy(digest, xm_plan_digest(plan));
    ck_assert_int_eq(xm_plan_verify(plan), XM_ERR_CORRUPT);
    ck_assert_xm_ok(xm_plan_hash(plan));
    ck_assert_str_ne(xm_plan_digest(plan), digest);
    (void)strcpy(plan->digest, digest);
}

/* The verifier judges the formula, not its maker: whatever number is changed is found. */
START_TEST(wrong_formulas_are_caught)
{
    xm_network_t *network;
    xm_plan_t *plan = plan_of(&cases[_i], &network);
    xm_regular_t *regular = plan->regular;
    int *lists[] = {regular->src.tile, regular->src.rank, regular->dst.tile};

    for (size_t l = 0; l < sizeof(lists) / sizeof(lists[0]); ++l) {
        int was = lists[l][1];

        lists[l][1] = lists[l][7];
        if (was != lists[l][1]) {
            expect_caught(plan);
        }
        lists[l][1] = was;
    }
    ++regular->elements;
    expect_caught(plan);
    --regular->elements;
    --plan->builder.transfer_count;
    ck_assert_int_eq(xm_plan_verify(plan), XM_ERR_CORRUPT);
    ++plan->builder.transfer_count;
    ck_assert_xm_ok(xm_plan_verify(plan));
    xm_plan_destroy(plan);
    xm_network_destroy(network);
}
END_TEST

/* Long chains over many hosts, of messages of many sizes, that cross others: the makespan, which
 * folds them, is when the last hop ends, where each is run by itself. */
START_TEST(folded_chains_end_as_if_they_were_not)
{
    random_t random = {77};
    int long_ones = 0;

    for (int i = 0; i < xm_test_rounds(60); ++i) {
        enum { TENSORS = 24 };
        static const char *const to[] = {"RS1", "S1R", "RR", "RS1", "RS1"};
        xm_tensor_t tensors[TENSORS];
        xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
        int hosts = random_int(&random, 9, 24), apart = random_int(&random, 0, 1);
        xm_network_t *network = four_nics(4 * (2 + hosts), 0);
        xm_plan_t *plan;
        xm_span_t *spans;
        int64_t makespan, last = 0, full;

        for (int t = 0; t < TENSORS; ++t) {
            int64_t side = 4 * random_int(&random, 1, 400);

            tensors[t] =
                (xm_tensor_t){NULL, layout_on(apart ? 0 : 4 * (hosts / 2), 2, "S1R", side),
                              layout_on(apart ? 8 : 0, hosts, to[random_int(&random, 0, 4)], side),
                              8 << random_int(&random, 0, 2)};
        }
        params.tensors = tensors;
        params.tensor_count = TENSORS;
        params.network = network;
        params.strategy = XM_STRATEGY_BROADCAST;
        params.scheduler = XM_SCHEDULER_BALANCE;
        params.chunk_bytes = (uint64_t)random_int(&random, 1, 20) * 4096;
        ck_assert_xm_ok(xm_plan_create(&params, &plan));
        spans = calloc((size_t)xm_plan_hops(plan) + 1, sizeof(*spans));
        ck_assert_xm_ok(xm_simulate(plan, network, XM_SHARING_EXCLUSIVE, spans, &full));
        for (int64_t h = 0; h < xm_plan_hops(plan); ++h) {
            last = spans[h].end_ns > last ? spans[h].end_ns : last;
        }
        for (int r = 0; r < xm_plan_routes(plan); ++r) {
            long_ones += xm_plan_route(plan, r)->count >= 8;
        }
        ck_assert_xm_ok(xm_simulate(plan, network, XM_SHARING_EXCLUSIVE, NULL, &makespan));
        ck_assert_int_eq(makespan, last);
        ck_assert_int_eq(full, last);
        free(spans);
        xm_plan_destroy(plan);
        for (int t = 0; t < TENSORS; ++t) {
            xm_layout_destroy((xm_layout_t *)(uintptr_t)tensors[t].src);
            xm_layout_destroy((xm_layout_t *)(uintptr_t)tensors[t].dst);
        }
        xm_network_destroy(network);
    }
    ck_assert_int_gt(long_ones, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("regular");
    TCase *tests = tcase_create("regular");

    tcase_add_loop_test(tests, regular_plans_are_what_they_list, 0,
                        (int)(sizeof(cases) / sizeof(cases[0])));
    tcase_add_loop_test(tests, wrong_formulas_are_caught, 0,
                        (int)(sizeof(cases) / sizeof(cases[0])));
    tcase_add_test(tests, folded_chains_end_as_if_they_were_not);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
