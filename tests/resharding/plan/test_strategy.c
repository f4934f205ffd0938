/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

enum { MOST_HOSTS = 32 };

static bool crosses(const xm_plan_t *plan, const xm_transfer_t *transfer, const xm_route_t *route,
                    int hop)
{
    return xm_plan_host_of(plan, xm_hop_sender(transfer, route, hop)) !=
           xm_plan_host_of(plan, route->ranks[hop]);
}

/* Hosts of the ranks that hold a task's slice, as a mask. */
static uint32_t holding_hosts(const xm_plan_t *plan, const xm_unit_task_t *task)
{
    uint32_t hosts = 0;
    int count;
    const int *ranks =
        xm_layout_replicas(xm_plan_tensor_src(plan, task->tensor), task->src_tile, &count);

    for (int i = 0; i < count; ++i) {
        hosts |= UINT32_C(1) << xm_plan_host_of(plan, ranks[i]);
    }
    return hosts;
}

/* What a rank holds it copies, and what its host holds it gets from a neighbour. */
START_TEST(what_is_near_costs_no_nic)
{
    random_t random = {31};

    for (int i = 0; i < xm_test_rounds(800); ++i) {
        random_batch_t batch;
        xm_plan_t *plan;
        uint64_t net = 0;

        random_batch_create(&random, &batch);
        ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
        for (int64_t t = 0; t < plan_transfer_count(plan); ++t) {
            const xm_transfer_t *transfer = plan_transfer_at(plan, t);
            const xm_unit_task_t *task = plan_task_at(plan, transfer->task);
            const xm_route_t *route = xm_plan_route(plan, transfer->route);
            uint32_t near_hosts = holding_hosts(plan, task);

            for (int h = 0; h < route->count; ++h) {
                int receiver = route->ranks[h];
                bool far = crosses(plan, transfer, route, h);

                if (xm_layout_tile_of_rank(xm_plan_tensor_src(plan, task->tensor), receiver) ==
                    task->src_tile) {
                    ck_assert(xm_transfer_is_copy(transfer, route));
                }
                ck_assert(!far || (near_hosts >> xm_plan_host_of(plan, receiver) & 1) == 0);
                net += far ? xm_plan_transfer_bytes(plan, t) : 0;
            }
        }
        ck_assert_uint_eq(net, xm_plan_net_bytes(plan));
        xm_plan_destroy(plan);
        random_batch_destroy(&batch);
    }
}
END_TEST

/* Bytes of every task that enter every host through its NIC. */
static uint64_t *entering_bytes(const xm_plan_t *plan)
{
    int64_t tasks;
    uint64_t *bytes;

    (void)plan_tasks(plan, &tasks);
    bytes = calloc((size_t)tasks * MOST_HOSTS + 1, sizeof(*bytes));
    ck_assert_ptr_nonnull(bytes);
    for (int64_t t = 0; t < plan_transfer_count(plan); ++t) {
        const xm_transfer_t *transfer = plan_transfer_at(plan, t);
        const xm_route_t *route = xm_plan_route(plan, transfer->route);

        for (int h = 0; h < route->count; ++h) {
            if (crosses(plan, transfer, route, h)) {
                ck_assert((xm_plan_strategy(plan) != XM_STRATEGY_LOCAL_ALLGATHER &&
                           xm_plan_strategy(plan) != XM_STRATEGY_ALPA) ||
                          (transfer->parent < 0 && route->parents[h] < 0));
                bytes[transfer->task * MOST_HOSTS + xm_plan_host_of(plan, route->ranks[h])] +=
                    xm_plan_transfer_bytes(plan, t);
            }
        }
    }
    return bytes;
}

/* Receivers of a task on hosts without a holder, by host. */
static void count_remote(const xm_plan_t *plan, const xm_unit_task_t *task, int *remote)
{
    uint32_t near_hosts = holding_hosts(plan, task);
    int count;
    const int *ranks =
        xm_layout_replicas(xm_plan_tensor_dst(plan, task->tensor), task->dst_tile, &count);

    memset(remote, 0, MOST_HOSTS * sizeof(*remote));
    for (int i = 0; i < count; ++i) {
        int host = xm_plan_host_of(plan, ranks[i]);

        remote[host] += (near_hosts >> host & 1) == 0;
    }
}

/* Alpa's rule for the parts of a box: each dimension takes what its extent and the devices that are
 * left over have in common. */
static int64_t alpa_parts(const xm_box_t *box, int devices)
{
    int64_t left = devices;

    for (int d = 0; d < box->dims; ++d) {
        int64_t common = left;

        while (left % common != 0 || (box->hi[d] - box->lo[d]) % common != 0) {
            --common;
        }
        left /= common;
    }
    return devices / left;
}

/* How often a slice enters a host with so many receivers, out of so many hosts: at least, at most.
 */
static void times_entered(const xm_plan_t *plan, int64_t task, int receivers, int hosts, int *times)
{
    xm_box_t box;

    times[0] = times[1] = receivers > 0;
    xm_plan_task_box(plan, task, &box);
    switch (xm_plan_strategy(plan)) {
    case XM_STRATEGY_SEND_RECV:
        times[0] = times[1] = receivers;
        break;
    case XM_STRATEGY_LOCAL_ALLGATHER:
        times[0] = times[1] = receivers / (int)alpa_parts(&box, receivers > 0 ? receivers : 1);
        break;
    case XM_STRATEGY_ALPA:
        times[0] = times[1] =
            receivers / (int)(hosts == 1 && receivers > 0 ? alpa_parts(&box, receivers) : 1);
        break;
    case XM_STRATEGY_AUTO:
    case XM_STRATEGY_GLOBAL_ALLGATHER:
        times[1] = receivers;
        break;
    default:
        break;
    }
}

/* Every byte enters a receiving host once; under send_recv once for each of its receivers; under
 * the published all-gathers once for each that shares none of its part, and from holders alone
 * where they gather inside hosts. */
START_TEST(every_byte_enters_a_host_once)
{
    random_t random = {32};
    int several[XM_STRATEGY_COUNT] = {0};

    for (int i = 0; i < xm_test_rounds(800); ++i) {
        random_batch_t batch;
        xm_plan_t *plan;
        uint64_t *bytes;
        int64_t tasks;

        random_batch_create(&random, &batch);
        batch.params.strategy = (xm_strategy_t)(i % XM_STRATEGY_COUNT);
        ck_assert_xm_ok(xm_plan_create(&batch.params, &plan));
        bytes = entering_bytes(plan);
        (void)plan_tasks(plan, &tasks);
        for (int64_t t = 0; t < tasks; ++t) {
            const xm_unit_task_t *task = plan_task_at(plan, t);
            uint64_t size =
                (uint64_t)(task->elements * xm_plan_tensor_element_size(plan, task->tensor));
            int remote[MOST_HOSTS], hosts = 0, times[2];

            count_remote(plan, task, remote);
            for (int h = 0; h < batch.hosts; ++h) {
                hosts += remote[h] > 0;
            }
            for (int h = 0; h < batch.hosts; ++h) {
                uint64_t entered = bytes[t * MOST_HOSTS + h];

                several[batch.params.strategy] += remote[h] > 1;
                times_entered(plan, t, remote[h], hosts, times);
                ck_assert_uint_ge(entered, size * (uint64_t)times[0]);
                ck_assert_uint_le(entered, size * (uint64_t)times[1]);
                ck_assert(batch.params.strategy != XM_STRATEGY_AUTO ||
                          entered == size * (uint64_t)times[0] ||
                          entered == size * (uint64_t)times[1]);
            }
        }
        free(bytes);
        xm_plan_destroy(plan);
        random_batch_destroy(&batch);
    }
    /* Fewer cases than these need not have one of each. */
    for (int s = 0; s < XM_STRATEGY_COUNT && xm_test_rounds(800) >= 200; ++s) {
        ck_assert_int_gt(several[s], 0);
    }
}
END_TEST

/* One tensor from ranks 0 … to the ranks that follow, on hosts of four devices each. */
typedef struct {
    xm_layout_t *src, *dst;
    xm_network_t *network;
    xm_plan_params_t params;
} pair_t;

static void pair_create(pair_t *pair, const char *src_mesh, const char *src_spec,
                        const char *dst_mesh, const char *dst_spec, const char *shape_text,
                        int per_host, double latency)
{
    xm_network_params_t network = XM_NETWORK_PARAMS_INIT;
    xm_mesh_t *src, *dst;
    xm_spec_t specs[2];
    int64_t shape[XM_MAX_DIMS];
    int dims, host_of[64], first;

    ck_assert_xm_ok(xm_shape_parse(shape_text, &dims, shape));
    ck_assert_xm_ok(xm_mesh_parse(src_mesh, NULL, 0, &src));
    first = (xm_mesh_size(src) + per_host - 1) / per_host * per_host;
    ck_assert_xm_ok(xm_mesh_parse(dst_mesh, NULL, first, &dst));
    ck_assert_xm_ok(xm_spec_parse(src_spec, &specs[0]));
    ck_assert_xm_ok(xm_spec_parse(dst_spec, &specs[1]));
    ck_assert_xm_ok(xm_layout_create(src, &specs[0], XM_PARTITION_EVEN, shape, &pair->src));
    ck_assert_xm_ok(xm_layout_create(dst, &specs[1], XM_PARTITION_EVEN, shape, &pair->dst));
    network.ranks = xm_mesh_max_rank(dst) + 1;
    for (int r = 0; r < network.ranks; ++r) {
        host_of[r] = r / per_host;
    }
    network.host_of_rank = host_of;
    network.nic_bandwidth = 1e9;
    network.nic_latency = latency;
    network.host_bandwidth = 1e11;
    network.host_latency = latency / 10;
    ck_assert_xm_ok(xm_network_create(&network, &pair->network));
    pair->params = (xm_plan_params_t)XM_PLAN_PARAMS_INIT;
    pair->params.src = pair->src;
    pair->params.dst = pair->dst;
    pair->params.element_size = 4;
    pair->params.network = pair->network;
    xm_mesh_destroy(dst);
    xm_mesh_destroy(src);
}

static void pair_destroy(pair_t *pair)
{
    xm_network_destroy(pair->network);
    xm_layout_destroy(pair->dst);
    xm_layout_destroy(pair->src);
}

static uint64_t net_bytes(pair_t *pair, xm_strategy_t strategy)
{
    xm_plan_t *plan;
    uint64_t bytes;

    pair->params.strategy = strategy;
    ck_assert_xm_ok(xm_plan_create(&pair->params, &plan));
    bytes = xm_plan_net_bytes(plan);
    xm_plan_destroy(plan);
    return bytes;
}

/* The cases of Alpa's tests, with the volumes they need at least; 32-bit elements. */
static const struct {
    const char *src_mesh, *src_spec, *dst_mesh, *dst_spec, *shape;
    uint64_t plain, once;
} volumes[] = {
    {"1x2", "RRR", "1x2", "S1RR", "4x8x16", 2048, 2048},
    {"1x2", "S1RR", "1x2", "S1RR", "4x8x16", 2048, 2048},
    {"1x2", "RS1R", "1x2", "S1RR", "4x8x16", 2048, 2048},
    {"1x2", "RRR", "1x2", "RRR", "4x8x16", 4096, 2048},
    {"1x2", "S1RR", "1x2", "RRR", "4x8x16", 4096, 2048},
    {"1x2", "RS1R", "1x2", "RRR", "4x8x16", 4096, 2048},
    {"1x2", "RS1R", "1x2", "RRR", "3x8x2", 384, 192},
    {"1x4", "RRR", "1x4", "RRR", "6x8x16", 12288, 3072},
    {"2x2", "S0S1R", "1x4", "RRR", "2x64x64", 131072, 32768},
    {"2x2", "S0S1R", "2x2", "S0RS1", "64x64x64", 1048576, 1048576},
};

START_TEST(volumes_are_the_least)
{
    for (size_t i = 0; i < sizeof(volumes) / sizeof(volumes[0]); ++i) {
        pair_t pair;

        pair_create(&pair, volumes[i].src_mesh, volumes[i].src_spec, volumes[i].dst_mesh,
                    volumes[i].dst_spec, volumes[i].shape, 4, 0);
        ck_assert_uint_eq(net_bytes(&pair, XM_STRATEGY_SEND_RECV), volumes[i].plain);
        ck_assert_uint_eq(net_bytes(&pair, XM_STRATEGY_ALLGATHER), volumes[i].once);
        ck_assert_uint_eq(net_bytes(&pair, XM_STRATEGY_BROADCAST), volumes[i].once);
        ck_assert_uint_eq(net_bytes(&pair, XM_STRATEGY_AUTO), volumes[i].once);
        pair_destroy(&pair);
    }
}
END_TEST

/* Elements that reach every receiver over the network under allgather, one source device. */
static void check_shards(const char *dst_mesh, int hosts, int devices, const char *shape)
{
    pair_t pair;
    xm_plan_t *plan;
    int64_t elements, *over_nic = calloc(64, sizeof(*over_nic));

    ck_assert_ptr_nonnull(over_nic);
    pair_create(&pair, "1", "R", dst_mesh, "R", shape, devices, 0);
    pair.params.strategy = XM_STRATEGY_ALLGATHER;
    pair.params.scheduler = XM_SCHEDULER_BALANCE;
    ck_assert_xm_ok(xm_plan_create(&pair.params, &plan));
    elements = xm_layout_shape(pair.src)[0];
    for (int64_t t = 0; t < plan_transfer_count(plan); ++t) {
        const xm_transfer_t *transfer = plan_transfer_at(plan, t);
        const xm_route_t *route = xm_plan_route(plan, transfer->route);

        for (int h = 0; h < route->count; ++h) {
            over_nic[route->ranks[h]] +=
                crosses(plan, transfer, route, h) ? transfer->end - transfer->first : 0;
        }
    }
    for (int h = 1; h <= hosts; ++h) {
        int64_t sum = 0;

        for (int r = h * devices; r < (h + 1) * devices; ++r) {
            sum += over_nic[r];
            ck_assert_int_ge(over_nic[r], elements / devices);
            ck_assert_int_le(over_nic[r], (elements + devices - 1) / devices);
        }
        ck_assert_int_eq(sum, elements);
    }
    xm_plan_destroy(plan);
    pair_destroy(&pair);
    free(over_nic);
}

/* Counts that do not divide, and groups that span hosts. */
START_TEST(allgather_spreads_a_box_over_the_devices)
{
    check_shards("1x3", 1, 3, "268435456");
    check_shards("1x4", 1, 4, "268435456");
    check_shards("2x2", 2, 2, "268435456");
    check_shards("4x2", 4, 2, "1001");
    check_shards("3x4", 3, 4, "7");
    check_shards("3x4", 3, 4, "3"); /* fewer elements than devices */
    check_shards("5x7", 5, 7, "100003");
}
END_TEST

/* One task: `auto` is about as fast as the best of the three it chooses from. */
static void check_auto(const char *mesh, int per_host, const char *shape, double latency)
{
    int64_t best = INT64_MAX, makespan = 0;
    pair_t pair;

    pair_create(&pair, "1", "R", mesh, "R", shape, per_host, latency);
    for (int strategy = 0; strategy <= XM_STRATEGY_AUTO; ++strategy) {
        xm_plan_t *plan;

        pair.params.strategy = (xm_strategy_t)strategy;
        ck_assert_xm_ok(xm_plan_create(&pair.params, &plan));
        makespan = xm_plan_makespan_ns(plan);
        if (strategy != XM_STRATEGY_AUTO) {
            best = makespan < best ? makespan : best;
        }
        xm_plan_destroy(plan);
    }
    ck_assert_msg((double)makespan <= 1.05 * (double)best,
                  "mesh %s, %d a host, %s elements, latency %g: auto takes %lld ns, the best %lld",
                  mesh, per_host, shape, latency, (long long)makespan, (long long)best);
    pair_destroy(&pair);
}

START_TEST(auto_takes_the_fastest_strategy)
{
    static const struct {
        const char *mesh;
        int per_host;
    } groups[] = {{"1", 1}, {"1x2", 2}, {"1x4", 4}, {"2x1", 1}, {"2x2", 2}, {"4x4", 4}, {"7", 1}};
    static const char *const shapes[] = {"1", "1000", "65536", "1000000", "30000000"};

    for (int g = 0; g < 7; ++g) {
        for (int s = 0; s < 5; ++s) {
            check_auto(groups[g].mesh, groups[g].per_host, shapes[s], 0);
            check_auto(groups[g].mesh, groups[g].per_host, shapes[s], 1e-5);
        }
    }
}
END_TEST

/*
 * One slice of 64 MB from one device, over NICs of 1 GB/s and ports of 100: every group of
 * receivers is sent so many copies, in parts; then a ring brings each what it is missing, over
 * ports inside a host and over NICs between several.
 */
START_TEST(published_all_gathers_by_their_formulas)
{
    static const struct {
        const char *mesh, *spec, *shape;
        int hosts, devices;
        double local, global; /* copies that are sent to a host, and to all hosts together */
    } rows[] = {
        {"1x2", "R", "16000000", 1, 2, 1, 1},        {"1x8", "R", "16000000", 1, 8, 1, 1},
        {"1x3", "R", "16000000", 1, 3, 3, 3},        {"1x6", "R", "16000000", 1, 6, 3, 3},
        {"2x1", "R", "16000000", 2, 1, 1, 1},        {"2x4", "R", "16000000", 2, 4, 1, 1},
        {"4x4", "R", "16000000", 4, 4, 1, 1},        {"5x4", "R", "16000000", 5, 4, 1, 1},
        {"3x2", "R", "16000000", 3, 2, 1, 3},        {"3x4", "RRR", "2x3x2500000", 3, 4, 1, 1},
        {"2x4", "RRRR", "2x3x7x380951", 2, 4, 2, 4},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        double local_ring = 1 - rows[i].local / rows[i].devices;
        double global_ring = 1 - rows[i].global / (rows[i].devices * rows[i].hosts);
        bool over_nics = rows[i].hosts > 1 && rows[i].global < rows[i].hosts;
        double expected[] = {rows[i].hosts * rows[i].local + local_ring / 100,
                             rows[i].global + global_ring / (over_nics ? 1 : 100)};
        pair_t pair;

        pair_create(&pair, "1", rows[i].spec, rows[i].mesh, rows[i].spec, rows[i].shape,
                    rows[i].devices, 0);
        for (int k = 0; k < 2; ++k) {
            xm_plan_t *plan;
            double makespan;

            pair.params.strategy =
                k == 0 ? XM_STRATEGY_LOCAL_ALLGATHER : XM_STRATEGY_GLOBAL_ALLGATHER;
            ck_assert_xm_ok(xm_plan_create(&pair.params, &plan));
            makespan = (double)xm_plan_makespan_ns(plan) / (double)xm_plan_bytes(plan);
            ck_assert_msg(fabs(makespan / expected[k] - 1) < 0.01,
                          "%s to %s, %s: %.4f of a slice's time, expected %.4f", rows[i].shape,
                          rows[i].mesh, xm_strategy_name(xm_plan_strategy(plan)), makespan,
                          expected[k]);
            xm_plan_destroy(plan);
        }
        pair_destroy(&pair);
    }
}
END_TEST

/* Inside a host a chain keeps the holder's port as busy as any other; send_recv does not. */
START_TEST(neighbours_pass_it_on)
{
    static const struct {
        xm_strategy_t strategy;
        double times;
    } expected[] = {
        {XM_STRATEGY_BROADCAST, 1}, {XM_STRATEGY_ALLGATHER, 1}, {XM_STRATEGY_SEND_RECV, 3}};
    int host_of[] = {0, 0, 0, 0};
    int64_t shape[] = {1000000000};
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_mesh_t *meshes[2];
    xm_spec_t spec;
    xm_network_t *network;
    xm_layout_t *src, *dst;

    network_params.ranks = 4;
    network_params.host_of_rank = host_of;
    network_params.nic_bandwidth = 1e9;
    network_params.host_bandwidth = 1e10;
    ck_assert_xm_ok(xm_network_create(&network_params, &network));
    ck_assert_xm_ok(xm_mesh_parse("1", NULL, 0, &meshes[0]));
    ck_assert_xm_ok(xm_mesh_parse("3", NULL, 1, &meshes[1]));
    ck_assert_xm_ok(xm_spec_parse("R", &spec));
    ck_assert_xm_ok(xm_layout_create(meshes[0], &spec, XM_PARTITION_EVEN, shape, &src));
    ck_assert_xm_ok(xm_layout_create(meshes[1], &spec, XM_PARTITION_EVEN, shape, &dst));
    params.src = src;
    params.dst = dst;
    params.element_size = 1;
    params.network = network;
    for (int i = 0; i < 3; ++i) {
        xm_plan_t *plan;

        params.strategy = expected[i].strategy;
        ck_assert_xm_ok(xm_plan_create(&params, &plan));
        ck_assert_uint_eq(xm_plan_net_bytes(plan), 0);
        ck_assert_double_eq_tol((double)xm_plan_makespan_ns(plan), 1e8 * expected[i].times, 1e6);
        xm_plan_destroy(plan);
    }
    xm_layout_destroy(dst);
    xm_layout_destroy(src);
    xm_mesh_destroy(meshes[1]);
    xm_mesh_destroy(meshes[0]);
    xm_network_destroy(network);
}
END_TEST

/* Receivers from last to first: the order that sorting them by host finds hardest. */
START_TEST(chains_go_round_the_hosts)
{
    enum { HOSTS = 64, PER_HOST = 4, RANKS = HOSTS * PER_HOST };
    int host_of[RANKS];
    int64_t shape[] = {HOSTS};
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_mesh_t *src_mesh, *dst_mesh;
    xm_spec_t src_spec, dst_spec;
    xm_layout_t *src, *dst;
    xm_network_t *network;
    xm_plan_t *plan;

    for (int r = 0; r < RANKS; ++r) {
        host_of[r] = r / PER_HOST;
    }
    network_params.ranks = RANKS;
    network_params.host_of_rank = host_of;
    network_params.nic_bandwidth = network_params.host_bandwidth = 1e9;
    ck_assert_xm_ok(xm_network_create(&network_params, &network));
    ck_assert_xm_ok(xm_mesh_parse("64x4", "0-255", 0, &src_mesh));
    ck_assert_xm_ok(xm_mesh_parse("64x4", "255-0", 0, &dst_mesh));
    ck_assert_xm_ok(xm_spec_parse("S0", &src_spec));
    ck_assert_xm_ok(xm_spec_parse("R", &dst_spec));
    ck_assert_xm_ok(xm_layout_create(src_mesh, &src_spec, XM_PARTITION_EVEN, shape, &src));
    ck_assert_xm_ok(xm_layout_create(dst_mesh, &dst_spec, XM_PARTITION_EVEN, shape, &dst));
    params.src = src;
    params.dst = dst;
    params.element_size = 1;
    params.network = network;
    params.strategy = XM_STRATEGY_BROADCAST;
    params.scheduler = XM_SCHEDULER_BALANCE;
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    ck_assert_uint_eq(xm_plan_net_bytes(plan), HOSTS * (HOSTS - 1));
    for (int64_t t = 0; t < plan_transfer_count(plan); ++t) {
        const xm_transfer_t *transfer = plan_transfer_at(plan, t);
        const xm_route_t *route = xm_plan_route(plan, transfer->route);

        for (int h = 0; h < route->count; ++h) {
            int sender = xm_hop_sender(transfer, route, h), receiver = route->ranks[h];

            if (crosses(plan, transfer, route, h)) {
                ck_assert_int_eq(host_of[receiver], (host_of[sender] + 1) % HOSTS);
            } else if (route->parents[h] >= 0) { /* a host's ranks stay in the mesh's order */
                ck_assert_int_eq((sender - receiver + PER_HOST) % PER_HOST, 1);
            }
        }
    }
    xm_plan_destroy(plan);
    xm_layout_destroy(dst);
    xm_layout_destroy(src);
    xm_mesh_destroy(dst_mesh);
    xm_mesh_destroy(src_mesh);
    xm_network_destroy(network);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("strategy");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 600);
    tcase_add_test(tcase, what_is_near_costs_no_nic);
    tcase_add_test(tcase, every_byte_enters_a_host_once);
    tcase_add_test(tcase, volumes_are_the_least);
    tcase_add_test(tcase, allgather_spreads_a_box_over_the_devices);
    tcase_add_test(tcase, auto_takes_the_fastest_strategy);
    tcase_add_test(tcase, published_all_gathers_by_their_formulas);
    tcase_add_test(tcase, neighbours_pass_it_on);
    tcase_add_test(tcase, chains_go_round_the_hosts);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
