/* SPDX-License-Identifier: Apache-2.0 */
/* Plans on hosts whose devices have a NIC each: how long they may take is computed by hand. */
#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

enum { DEVICES = 4, MOST_RANKS = 24 };

/* One tensor of 2048 x 2048 elements of 16 bytes between disjoint meshes of hosts of four. */
typedef struct {
    int src_hosts, dst_hosts;
    const char *src_spec, *dst_spec;
    double copies; /* of the tensor that the busiest host sends or receives */
} shape_t;

static const shape_t shapes[] = {
    {1, 1, "RR", "RR", 1},     {1, 1, "RS1", "RR", 1},    {2, 2, "S0R", "S0R", 0.5},
    {2, 2, "RR", "S0R", 0.5},  {2, 2, "RS0", "S0R", 0.5}, {2, 2, "RS01", "S01R", 0.5},
    {2, 2, "S0R", "RS0", 0.5}, {2, 2, "S01R", "RR", 1},   {1, 2, "S1R", "RR", 1},
    {1, 4, "RR", "RR", 1},
};

static xm_layout_t *lay_out(int hosts, int first, const char *text)
{
    const int sizes[] = {hosts, DEVICES};
    const int64_t extents[] = {2048, 2048};
    int ranks[MOST_RANKS];
    xm_layout_t *layout;
    xm_mesh_t *mesh;
    xm_spec_t spec;

    for (int i = 0; i < hosts * DEVICES; ++i) {
        ranks[i] = first + i;
    }
    ck_assert_xm_ok(xm_mesh_create(2, sizes, ranks, &mesh));
    ck_assert_xm_ok(xm_spec_parse(text, &spec));
    ck_assert_xm_ok(xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, extents, &layout));
    xm_mesh_destroy(mesh);
    return layout;
}

/* Rails are numbered against the order of the ranks; `rates` are those of a host's rails. */
static xm_network_t *make_network(int ranks, const double *rates, double port)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    int hosts[MOST_RANKS], rails[MOST_RANKS];
    double rail_rates[MOST_RANKS];
    xm_network_t *network;

    for (int r = 0; r < ranks; ++r) {
        hosts[r] = r / DEVICES;
        rails[r] = ranks - 1 - r;
        rail_rates[rails[r]] = rates[r % DEVICES];
    }
    params.ranks = ranks;
    params.host_of_rank = hosts;
    params.rail_of_rank = rails;
    params.rail_egress = params.rail_ingress = rail_rates;
    params.nic_latency = 5e-6;
    params.host_bandwidth = port;
    params.host_latency = 2e-6;
    ck_assert_xm_ok(xm_network_create(&params, &network));
    return network;
}

static xm_plan_t *make_plan(const shape_t *shape, const double *rates, double port)
{
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    int from = shape->src_hosts * DEVICES, to = shape->dst_hosts * DEVICES;
    xm_layout_t *src = lay_out(shape->src_hosts, 0, shape->src_spec);
    xm_layout_t *dst = lay_out(shape->dst_hosts, from, shape->dst_spec);
    xm_network_t *network = make_network(from + to, rates, port);
    const xm_tensor_t tensor = {"t", src, dst, 128};
    xm_plan_t *plan;

    params.tensors = &tensor;
    params.tensor_count = 1;
    params.strategy = XM_STRATEGY_AUTO;
    params.scheduler = XM_SCHEDULER_AUTO;
    params.network = network;
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    xm_network_destroy(network);
    xm_layout_destroy(dst);
    xm_layout_destroy(src);
    return plan;
}

static const double bytes = 2048.0 * 2048 * 16;

START_TEST(all_rails_of_a_host_work_all_the_time)
{
    static const double rates[] = {1e9, 1e9, 1e9, 1e9};
    const shape_t *shape = &shapes[_i];
    xm_plan_t *plan = make_plan(shape, rates, 2e10);
    double least = 1e9 * shape->copies * bytes / 4e9;
    double makespan = (double)xm_plan_makespan_ns(plan);

    ck_assert_msg(makespan >= least && makespan <= 1.03 * least, "%s -> %s: %f of %f ns",
                  shape->src_spec, shape->dst_spec, makespan, least);
    xm_plan_destroy(plan);
}
END_TEST

/* What is replicated at both ends is shared out by the rates of the rails. */
START_TEST(rails_carry_by_their_rates)
{
    static const double rates[] = {1e9, 2e9, 3e9, 2e9};
    xm_plan_t *plan = make_plan(&shapes[0], rates, 4e10);
    double came[DEVICES] = {0};

    for (int64_t t = 0; t < plan_transfer_count(plan); ++t) {
        const xm_transfer_t *transfer = plan_transfer_at(plan, t);
        const xm_route_t *route = xm_plan_route(plan, transfer->route);

        for (int h = 0; h < route->count; ++h) {
            if (xm_hop_sender(transfer, route, h) < DEVICES) {
                came[route->ranks[h] % DEVICES] += (double)xm_plan_transfer_bytes(plan, t);
            }
        }
    }
    for (int d = 0; d < DEVICES; ++d) {
        ck_assert_double_eq_tol(came[d] / bytes, rates[d] / 8e9, 0.02);
    }
    xm_plan_destroy(plan);
}
END_TEST

/* With slow ports more than one copy comes over the network: four devices take the tensor in by
 * 4 x 1 GB/s of rails and 4 x 0.5 GB/s of ports, 4 / 6 s for each GB, where one copy by the rails
 * would leave 3 / 4 / 0.5 s to the ports. */
START_TEST(slow_ports_leave_more_to_the_rails)
{
    static const double rates[] = {1e9, 1e9, 1e9, 1e9};
    xm_plan_t *plan = make_plan(&shapes[0], rates, 5e8);

    ck_assert_double_le((double)xm_plan_makespan_ns(plan), 1.25 * bytes * 4 / 6);
    xm_plan_destroy(plan);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rails");
    TCase *tcase = tcase_create("all");

    tcase_add_loop_test(tcase, all_rails_of_a_host_work_all_the_time, 0,
                        (int)(sizeof(shapes) / sizeof(shapes[0])));
    tcase_add_test(tcase, rails_carry_by_their_rates);
    tcase_add_test(tcase, slow_ports_leave_more_to_the_rails);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
