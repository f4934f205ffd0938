/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/boundary.h"

#include <stdlib.h>

#include "resharding/plan.h"
#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

static const ap_shape_t shape = {3, {16, 1024, 64}}; /* 4 MiB of 32-bit elements */
static const double bytes = 16.0 * 1024 * 64 * 4;

static ap_spec_t spec(const char *text)
{
    ap_spec_t value;

    ck_assert_xm_ok(ap_spec_parse(text, 3, 2, &value));
    return value;
}

/* A transfer of one tensor; of() points it at it. */
typedef struct moved {
    ap_cross_mesh_tensor_t tensor;
    ap_cross_mesh_transfer_t transfer;
} case_t;

static case_t make_case(const ap_shape_t *dims, int element_size, ap_cross_mesh_side_t src,
                        const char *src_spec, ap_cross_mesh_side_t dst, const char *dst_spec)
{
    return (case_t){{*dims, element_size, spec(src_spec), spec(dst_spec)},
                    {src, dst, NULL, 1, false}};
}

static const ap_cross_mesh_transfer_t *of(case_t *c, const ap_shape_t *dims)
{
    c->tensor.shape = *dims;
    c->transfer.tensors = &c->tensor;
    return &c->transfer;
}

START_TEST(a_tensor_between_hosts_takes_its_bytes_over_the_nic)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 1e9);
    case_t c = make_case(&shape, 4, (ap_cross_mesh_side_t){0, {1, 4}}, "S1RR",
                         (ap_cross_mesh_side_t){4, {1, 4}}, "S1RR");
    ap_cross_mesh_cost_t cost;
    ap_cross_mesh_t *cross_mesh;

    ck_assert_xm_ok(ap_cross_mesh_create(profile, &cross_mesh));
    ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, of(&c, &shape), &cost));
    ck_assert_int_eq(cost.net_bytes, (int64_t)bytes);
    ck_assert_double_eq_tol(cost.bound, bytes / 1e9, 1e-7);
    ck_assert_double_eq_tol(cost.forward, bytes / 1e9 + 2e-5, 1e-5);
    ck_assert_double_eq_tol(cost.backward, cost.forward, 1e-9);
    /* Replicas at the destination cost no NIC, but every device receives the whole tensor. */
    c.tensor.dst = spec("RRR");
    ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, of(&c, &shape), &cost));
    ck_assert_int_eq(cost.net_bytes, (int64_t)bytes);
    ck_assert_double_ge(cost.forward, bytes / 1e9);
    ap_cross_mesh_destroy(cross_mesh);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(inside_a_host_the_intra_host_curve_counts)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(1, 4, 1e9);
    case_t c = make_case(&shape, 4, (ap_cross_mesh_side_t){0, {1, 2}}, "S1RR",
                         (ap_cross_mesh_side_t){2, {1, 2}}, "S1RR");
    ap_cross_mesh_cost_t cost;
    ap_cross_mesh_t *cross_mesh;

    ck_assert_xm_ok(ap_cross_mesh_create(profile, &cross_mesh));
    ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, of(&c, &shape), &cost));
    ck_assert_int_eq(cost.net_bytes, 0);
    /* Both devices could take data in through their ports and the NIC at once. */
    ck_assert_double_eq_tol(
        cost.bound, bytes / (2 * xm_cluster_profile_bandwidth(profile, XM_LINK_INTRA_HOST) + 1e9),
        1e-8);
    /* The larger of the curve's time and the simulation's, whose line is fitted to the curve. */
    ck_assert_double_eq_tol(
        cost.forward, xm_cluster_profile_seconds(profile, XM_LINK_INTRA_HOST, bytes / 2), 1e-6);
    ap_cross_mesh_destroy(cross_mesh);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(equal_places_are_simulated_once)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(4, 2, 1e9);
    case_t c = make_case(&shape, 4, (ap_cross_mesh_side_t){0, {1, 2}}, "S1RR",
                         (ap_cross_mesh_side_t){2, {1, 2}}, "RRR");
    ap_cross_mesh_cost_t first, again;
    ap_cross_mesh_t *cross_mesh;

    ck_assert_xm_ok(ap_cross_mesh_create(profile, &cross_mesh));
    ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, of(&c, &shape), &first));
    c.transfer.src.first_device = 4;
    c.transfer.dst.first_device = 6;
    ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, of(&c, &shape), &again));
    ck_assert_uint_eq(ap_cross_mesh_simulated(cross_mesh), 1);
    ck_assert_double_eq(first.forward, again.forward);
    for (int width = 1; width <= 300; ++width) { /* the cache grows */
        ap_shape_t other = {3, {16, 1024, width}};

        ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, of(&c, &other), &again));
    }
    ck_assert_uint_eq(ap_cross_mesh_simulated(cross_mesh), 300);
    ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, of(&c, &shape), &again));
    ck_assert_uint_eq(ap_cross_mesh_simulated(cross_mesh), 300);
    ck_assert_double_eq(first.forward, again.forward);
    ap_cross_mesh_destroy(cross_mesh);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* A number below @p end from a sequence that is the same everywhere. */
static int next_below(uint32_t *state, int end)
{
    *state = *state * 1664525U + 1013904223U;
    return (int)((*state >> 16) % (uint32_t)end);
}

/* A mesh of 1 to 16 devices; returns a spec on it. */
static ap_spec_t make_side(uint32_t *state, ap_cross_mesh_side_t *side)
{
    static const char *const specs[] = {"RRR",   "S0RR",  "S1RR",  "RS0R", "RS1R",
                                        "S0S1R", "S1RS0", "S01RR", "RRS1", "S1S0R"};

    side->shape[0] = 1 << next_below(state, 3);
    side->shape[1] = 1 << next_below(state, 3);
    if (next_below(state, 8) == 0) {
        side->shape[1] = 3;
    }
    return spec(specs[next_below(state, (int)(sizeof(specs) / sizeof(specs[0])))]);
}

/* Where a stage of so many devices can stand at the earliest. */
static int place_after(int device, int devices, int per_host)
{
    bool whole = devices >= per_host;

    return whole || device % per_host + devices > per_host
               ? (device + per_host - 1) / per_host * per_host
               : device;
}

/* At least one bound in @p share is close to the cost. A round takes a sanitizer a tenth of a
 * second. */
static void check_least(const xm_cluster_profile_t *profile, uint32_t seed, int share, int all)
{
    int per_host = xm_cluster_profile_devices_per_host(profile), tight = 0, checked = 0;
    int few = 6 * xm_test_rounds(all), rounds = few < all ? few : all;
    uint32_t state = seed;
    ap_cross_mesh_t *cross_mesh;

    ck_assert_xm_ok(ap_cross_mesh_create(profile, &cross_mesh));
    for (int round = 0; round < rounds; ++round) {
        ap_shape_t small = {3, {48 << next_below(&state, 3), 48, 48 << next_below(&state, 6)}};
        case_t c = {.tensor = {.element_size = 2}, .transfer = {.count = 1}};
        ap_cross_mesh_side_t *src = &c.transfer.src, *dst = &c.transfer.dst;
        ap_cross_mesh_cost_t cost;
        double least, known;

        c.tensor.src = make_side(&state, src);
        c.tensor.dst = make_side(&state, dst);
        src->first_device =
            place_after(next_below(&state, 2 * per_host), src->shape[0] * src->shape[1], per_host);
        dst->first_device = place_after(src->first_device + src->shape[0] * src->shape[1],
                                        dst->shape[0] * dst->shape[1], per_host);
        ck_assert_xm_ok(ap_cross_mesh_lower_bound(cross_mesh, of(&c, &small), &least));
        ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, of(&c, &small), &cost));
        ck_assert_xm_ok(ap_cross_mesh_lower_bound(cross_mesh, of(&c, &small), &known));
        ck_assert_msg(least >= 0.0 && least <= cost.forward + cost.backward,
                      "round %d: %.12g is no bound of %.12g + %.12g", round, least, cost.forward,
                      cost.backward);
        ck_assert_double_eq(known, cost.forward + cost.backward);
        tight += least >= 0.8 * known;
        ++checked;
    }
    ck_assert_msg(share * tight > checked, "only %d of %d bounds are close", tight, checked);
    ap_cross_mesh_destroy(cross_mesh);
}

START_TEST(the_least_is_below_every_cost)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(8, 4, 1e9);

    check_least(profile, 7, 2, 400);
    xm_cluster_profile_destroy(profile);
    ck_assert_xm_ok(xm_cluster_profile_load(
        xm_test_source_path("tests/fixtures/profiles/p3-16xlarge-8x8.json"), &profile));
    check_least(profile, 8, 2, 400);
    xm_cluster_profile_destroy(profile);
    profile = planner_fixture_two_rates(16, 4, 1e9);
    check_least(profile, 9, 2, 400);
    xm_cluster_profile_destroy(profile);
    /* Where halves may take less than the whole, bounds are not as close. */
    ck_assert_xm_ok(xm_cluster_profile_load(
        xm_test_source_path("tests/fixtures/profiles/busy-8x4.json"), &profile));
    check_least(profile, 10, 8, 400);
    xm_cluster_profile_destroy(profile);
    /* Messages cost much, and at first hardly more for more bytes than the NIC needs for them. */
    ck_assert_xm_ok(xm_cluster_profile_load(
        xm_test_source_path("tests/fixtures/profiles/ways-4x2.json"), &profile));
    check_least(profile, 11, 8, 40);
    xm_cluster_profile_destroy(profile);
}
END_TEST

static xm_layout_t *layout_of(const ap_cross_mesh_side_t *side, const ap_shape_t *dims,
                              ap_spec_t cuts)
{
    int ranks[64], count = side->shape[0] * side->shape[1];
    char text[AP_SPEC_TEXT];
    xm_layout_t *layout;
    xm_spec_t parsed;
    xm_mesh_t *mesh;

    for (int i = 0; i < count; ++i) {
        ranks[i] = side->first_device + i;
    }
    ck_assert_xm_ok(xm_mesh_create(2, side->shape, ranks, &mesh));
    ck_assert_xm_ok(xm_spec_parse(ap_spec_format(cuts, dims->rank, text, sizeof(text)), &parsed));
    ck_assert_xm_ok(xm_layout_create(mesh, &parsed, XM_PARTITION_EVEN, dims->dims, &layout));
    xm_mesh_destroy(mesh);
    return layout;
}

/* What resharding says by itself of a transfer, with the recorded strategy and scheduler. */
static void simulate_alone(const xm_cluster_profile_t *profile,
                           const ap_cross_mesh_transfer_t *transfer, xm_plan_info_t *info)
{
    int per_host = xm_cluster_profile_devices_per_host(profile);
    const ap_cross_mesh_side_t *dst = &transfer->dst;
    int ranks = dst->first_device + dst->shape[0] * dst->shape[1], host_of[256];
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_tensor_t batch[2] = {0};
    xm_network_t *network;
    xm_plan_t *plan;

    ck_assert_int_le(ranks, 256);
    for (int r = 0; r < ranks; ++r) {
        host_of[r] = r / per_host;
    }
    for (int t = 0; t < transfer->count; ++t) {
        const ap_cross_mesh_tensor_t *tensor = &transfer->tensors[t];

        batch[t].src = layout_of(&transfer->src, &tensor->shape, tensor->src);
        batch[t].dst = layout_of(&transfer->dst, &tensor->shape, tensor->dst);
        batch[t].element_bits = 8 * tensor->element_size;
    }
    ck_assert_xm_ok(xm_network_from_profile(profile, ranks, host_of, &network));
    ck_assert_xm_ok(xm_strategy_parse(ap_cross_mesh_strategy(), &params.strategy));
    ck_assert_xm_ok(xm_scheduler_parse(ap_cross_mesh_scheduler(), &params.scheduler));
    params.tensors = batch;
    params.tensor_count = transfer->count;
    params.network = network;
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    ck_assert_xm_ok(xm_plan_get_info(plan, info));
    xm_plan_destroy(plan);
    xm_network_destroy(network);
    for (int t = 0; t < transfer->count; ++t) {
        xm_layout_destroy((xm_layout_t *)batch[t].src);
        xm_layout_destroy((xm_layout_t *)batch[t].dst);
    }
}

/* A price is what resharding simulates, but where one device's messages, by the measured curves,
 * take longer than the network: then it is more. The bound is below both. */
START_TEST(prices_are_those_of_the_resharding_that_runs)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(12, 4, 1e9);
    uint32_t state = 11;
    ap_cross_mesh_t *cross_mesh;
    int equal = 0, rounds = 150;

    ck_assert_xm_ok(ap_cross_mesh_create(profile, &cross_mesh));
    for (int round = 0; round < rounds; ++round) {
        ap_cross_mesh_tensor_t tensors[2];
        ap_cross_mesh_transfer_t transfer = {.tensors = tensors,
                                             .count = 1 + next_below(&state, 2)};
        ap_cross_mesh_side_t *src = &transfer.src, *dst = &transfer.dst;
        xm_plan_info_t there = XM_PLAN_INFO_INIT;
        ap_cross_mesh_cost_t cost;
        double least;

        for (int t = 0; t < 2; ++t) { /* the second of other extents, and whole on every device */
            tensors[t] =
                (ap_cross_mesh_tensor_t){.shape = {3, {48, 48 << t, 48 << next_below(&state, 5)}},
                                         .element_size = t == 0 ? 2 : 4};
        }
        tensors[0].src = make_side(&state, src);
        tensors[0].dst = make_side(&state, dst);
        src->first_device = 0;
        dst->first_device =
            place_after(src->shape[0] * src->shape[1], dst->shape[0] * dst->shape[1], 4);
        ck_assert_xm_ok(ap_cross_mesh_lower_bound(cross_mesh, &transfer, &least));
        ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, &transfer, &cost));
        simulate_alone(profile, &transfer, &there);
        ck_assert_double_le(least, cost.forward + cost.backward);
        ck_assert_double_eq_tol(cost.bound, 1e-9 * (double)there.bound_ns, 1e-12);
        ck_assert_double_le(cost.bound, 1e-9 * (double)there.makespan_ns + 1e-12);
        ck_assert_double_ge(cost.forward, 1e-9 * (double)there.makespan_ns - 1e-12);
        ck_assert_int_eq(cost.net_bytes, (int64_t)there.net_bytes);
        equal += cost.forward <= 1e-9 * (double)there.makespan_ns * 1.001;
    }
    ck_assert_msg(2 * equal > rounds, "only %d of %d prices are the simulated time", equal, rounds);
    ap_cross_mesh_destroy(cross_mesh);
    xm_cluster_profile_destroy(profile);
}
END_TEST

static const ap_link_load_t *load_of(const ap_link_load_t *loads, int count, bool rack, int index)
{
    for (int i = 0; i < count; ++i) {
        if (loads[i].rack == rack && loads[i].index == index) {
            return &loads[i];
        }
    }
    return NULL;
}

static void check_load(const double *load, double out, double in)
{
    ck_assert_double_eq_tol(load[AP_LINK_OUT], out, 1e-12);
    ck_assert_double_eq_tol(load[AP_LINK_IN], in, 1e-12);
}

/* From one host to two that both need all of it: it leaves the one once, and once more the one or a
 * receiver for the other. The gradient is one tensor that one of them sends. */
START_TEST(loads_are_those_of_the_stages_own_hosts)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(6, 2, 1e9);
    case_t c = make_case(&shape, 4, (ap_cross_mesh_side_t){4, {1, 2}}, "RRR",
                         (ap_cross_mesh_side_t){6, {2, 2}}, "RRR");
    const ap_link_load_t *sender, *receivers[2];
    double time = bytes / 1e9, out;
    ap_cross_mesh_cost_t cost;
    ap_cross_mesh_t *cross_mesh;
    const ap_link_load_t *loads;
    xm_arena_t arena = {0};
    int count;

    ck_assert_xm_ok(ap_cross_mesh_create(profile, &cross_mesh));
    ck_assert_xm_ok(ap_cross_mesh_loads(cross_mesh, of(&c, &shape), &arena, &loads, &count));
    ck_assert_int_eq(count, 3);
    sender = load_of(loads, count, false, 2);
    receivers[0] = load_of(loads, count, false, 3);
    receivers[1] = load_of(loads, count, false, 4);
    ck_assert(sender != NULL && receivers[0] != NULL && receivers[1] != NULL);
    out = receivers[0]->forward[AP_LINK_OUT] + receivers[1]->forward[AP_LINK_OUT];
    check_load(receivers[0]->forward, receivers[0]->forward[AP_LINK_OUT], time);
    check_load(receivers[1]->forward, receivers[1]->forward[AP_LINK_OUT], time);
    check_load(sender->forward, 2 * time - out, 0.0);
    ck_assert_double_le(out, time + 1e-12);
    ck_assert_double_eq_tol(sender->backward[AP_LINK_IN], time, 1e-12);
    ck_assert_double_eq_tol(
        receivers[0]->backward[AP_LINK_OUT] + receivers[1]->backward[AP_LINK_OUT], time, 1e-12);
    /* Never busy for longer than the resharding takes. */
    ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, of(&c, &shape), &cost));
    for (int i = 0; i < count; ++i) {
        for (int d = 0; d < AP_LINK_DIRECTIONS; ++d) {
            ck_assert_double_le(loads[i].forward[d], cost.forward);
            ck_assert_double_le(loads[i].backward[d], cost.backward);
        }
    }
    ck_assert_uint_eq(ap_cross_mesh_simulated(cross_mesh), 1);
    /* Inside a host there is nothing to share. */
    c = make_case(&shape, 4, (ap_cross_mesh_side_t){4, {1, 1}}, "RRR",
                  (ap_cross_mesh_side_t){5, {1, 1}}, "RRR");
    ck_assert_xm_ok(ap_cross_mesh_loads(cross_mesh, of(&c, &shape), &arena, &loads, &count));
    ck_assert_int_eq(count, 0);
    xm_arena_clear(&arena);
    ap_cross_mesh_destroy(cross_mesh);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(bad_sides_are_refused)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 1e9);
    case_t c = make_case(&shape, 4, (ap_cross_mesh_side_t){0, {1, 4}}, "S1RR",
                         (ap_cross_mesh_side_t){2, {1, 4}}, "S1RR");
    ap_shape_t odd = {3, {3, 5, 7}};
    ap_cross_mesh_cost_t cost;
    ap_cross_mesh_t *cross_mesh;

    ck_assert_xm_ok(ap_cross_mesh_create(profile, &cross_mesh));
    ck_assert_xm_fails(ap_cross_mesh_cost(cross_mesh, of(&c, &shape), &cost),
                       XM_ERR_INVALID_ARGUMENT, "devices 0 to 3 and 2 to 5 of two stages overlap");
    c.transfer.dst.first_device = 4;
    ck_assert_xm_fails(ap_cross_mesh_cost(cross_mesh, of(&c, &odd), &cost), XM_ERR_INVALID_ARGUMENT,
                       "3");
    ap_cross_mesh_destroy(cross_mesh);
    ap_cross_mesh_destroy(NULL);
    xm_cluster_profile_destroy(profile);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cross_mesh");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, a_tensor_between_hosts_takes_its_bytes_over_the_nic);
    tcase_add_test(tcase, inside_a_host_the_intra_host_curve_counts);
    tcase_add_test(tcase, equal_places_are_simulated_once);
    tcase_add_test(tcase, the_least_is_below_every_cost);
    tcase_add_test(tcase, prices_are_those_of_the_resharding_that_runs);
    tcase_add_test(tcase, loads_are_those_of_the_stages_own_hosts);
    tcase_add_test(tcase, bad_sides_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
