/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/boundary.h"

#include <stdlib.h>

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

START_TEST(a_tensor_between_hosts_takes_its_bytes_over_the_nic)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 1e9);
    ap_cross_mesh_side_t src = {0, {1, 4}, spec("S1RR")}, dst = {4, {1, 4}, spec("S1RR")};
    ap_cross_mesh_cost_t cost;
    ap_cross_mesh_t *cross_mesh;

    ck_assert_xm_ok(ap_cross_mesh_create(profile, &cross_mesh));
    ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, &shape, 4, &src, &dst, &cost));
    ck_assert_int_eq(cost.net_bytes, (int64_t)bytes);
    ck_assert_double_eq_tol(cost.bound, bytes / 1e9, 1e-7);
    ck_assert_double_eq_tol(cost.forward, bytes / 1e9 + 2e-5, 1e-5);
    ck_assert_double_eq_tol(cost.backward, cost.forward, 1e-9);
    /* Replicas at the destination cost no NIC, but every device receives the whole tensor. */
    dst.spec = spec("RRR");
    ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, &shape, 4, &src, &dst, &cost));
    ck_assert_int_eq(cost.net_bytes, (int64_t)bytes);
    ck_assert_double_ge(cost.forward, bytes / 1e9);
    ap_cross_mesh_destroy(cross_mesh);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(inside_a_host_the_intra_host_curve_counts)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(1, 4, 1e9);
    ap_cross_mesh_side_t src = {0, {1, 2}, spec("S1RR")}, dst = {2, {1, 2}, spec("S1RR")};
    ap_cross_mesh_cost_t cost;
    ap_cross_mesh_t *cross_mesh;

    ck_assert_xm_ok(ap_cross_mesh_create(profile, &cross_mesh));
    ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, &shape, 4, &src, &dst, &cost));
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
    ap_cross_mesh_side_t src = {0, {1, 2}, spec("S1RR")}, dst = {2, {1, 2}, spec("RRR")};
    ap_cross_mesh_cost_t first, again;
    ap_cross_mesh_t *cross_mesh;

    ck_assert_xm_ok(ap_cross_mesh_create(profile, &cross_mesh));
    ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, &shape, 4, &src, &dst, &first));
    src.first_device = 4;
    dst.first_device = 6;
    ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, &shape, 4, &src, &dst, &again));
    ck_assert_uint_eq(ap_cross_mesh_simulated(cross_mesh), 1);
    ck_assert_double_eq(first.forward, again.forward);
    for (int width = 1; width <= 300; ++width) { /* the cache grows */
        ap_shape_t other = {3, {16, 1024, width}};

        ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, &other, 4, &src, &dst, &again));
    }
    ck_assert_uint_eq(ap_cross_mesh_simulated(cross_mesh), 300);
    ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, &shape, 4, &src, &dst, &again));
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

/* A mesh of 1 to 16 devices and a spec on it. */
static void make_side(uint32_t *state, ap_cross_mesh_side_t *side)
{
    static const char *const specs[] = {"RRR",   "S0RR",  "S1RR",  "RS0R", "RS1R",
                                        "S0S1R", "S1RS0", "S01RR", "RRS1", "S1S0R"};

    side->shape[0] = 1 << next_below(state, 3);
    side->shape[1] = 1 << next_below(state, 3);
    if (next_below(state, 8) == 0) {
        side->shape[1] = 3;
    }
    side->spec = spec(specs[next_below(state, (int)(sizeof(specs) / sizeof(specs[0])))]);
}

/* Where a stage of so many devices can stand at the earliest. */
static int place_after(int device, int devices, int per_host)
{
    bool whole = devices >= per_host;

    return whole || device % per_host + devices > per_host
               ? (device + per_host - 1) / per_host * per_host
               : device;
}

static void check_least(const xm_cluster_profile_t *profile, uint32_t seed)
{
    int per_host = xm_cluster_profile_devices_per_host(profile), tight = 0, checked = 0;
    uint32_t state = seed;
    ap_cross_mesh_t *cross_mesh;

    ck_assert_xm_ok(ap_cross_mesh_create(profile, &cross_mesh));
    for (int round = 0; round < 400; ++round) {
        ap_shape_t small = {3, {48 << next_below(&state, 3), 48, 48 << next_below(&state, 6)}};
        ap_cross_mesh_side_t src, dst;
        ap_cross_mesh_cost_t cost;
        double least, known;

        make_side(&state, &src);
        make_side(&state, &dst);
        src.first_device =
            place_after(next_below(&state, 2 * per_host), src.shape[0] * src.shape[1], per_host);
        dst.first_device = place_after(src.first_device + src.shape[0] * src.shape[1],
                                       dst.shape[0] * dst.shape[1], per_host);
        ck_assert_xm_ok(ap_cross_mesh_lower_bound(cross_mesh, &small, 2, &src, &dst, &least));
        ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, &small, 2, &src, &dst, &cost));
        ck_assert_xm_ok(ap_cross_mesh_lower_bound(cross_mesh, &small, 2, &src, &dst, &known));
        ck_assert_msg(least >= 0.0 && least <= cost.forward + cost.backward,
                      "round %d: %.12g is no bound of %.12g + %.12g", round, least, cost.forward,
                      cost.backward);
        ck_assert_double_eq(known, cost.forward + cost.backward);
        tight += least >= 0.8 * known;
        ++checked;
    }
    ck_assert_msg(2 * tight > checked, "only %d of %d bounds are close", tight, checked);
    ap_cross_mesh_destroy(cross_mesh);
}

START_TEST(the_least_is_below_every_cost)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(8, 4, 1e9);

    check_least(profile, 7);
    xm_cluster_profile_destroy(profile);
    ck_assert_xm_ok(xm_cluster_profile_load(
        xm_test_source_path("tests/fixtures/profiles/p3-16xlarge-8x8.json"), &profile));
    check_least(profile, 8);
    xm_cluster_profile_destroy(profile);
    profile = planner_fixture_two_rates(16, 4, 1e9);
    check_least(profile, 9);
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

/* From one host to two that both need all of it: it leaves the one once, and once more for the
 * second receiver. The gradient is one tensor that one of them sends. */
START_TEST(loads_are_those_of_the_stages_own_hosts)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(6, 2, 1e9);
    ap_cross_mesh_side_t src = {4, {1, 2}, spec("RRR")}, dst = {6, {2, 2}, spec("RRR")};
    const ap_link_load_t *sender, *receivers[2];
    double time = bytes / 1e9;
    ap_cross_mesh_cost_t cost;
    ap_cross_mesh_t *cross_mesh;
    ap_link_load_t *loads;
    int count;

    ck_assert_xm_ok(ap_cross_mesh_create(profile, &cross_mesh));
    ck_assert_xm_ok(ap_cross_mesh_loads(cross_mesh, &shape, 4, &src, &dst, &loads, &count));
    ck_assert_int_eq(count, 3);
    sender = load_of(loads, count, false, 2);
    receivers[0] = load_of(loads, count, false, 3);
    receivers[1] = load_of(loads, count, false, 4);
    ck_assert(sender != NULL && receivers[0] != NULL && receivers[1] != NULL);
    check_load(receivers[0]->forward, time - receivers[1]->forward[AP_LINK_OUT], time);
    check_load(receivers[1]->forward, time - receivers[0]->forward[AP_LINK_OUT], time);
    check_load(sender->forward, time, 0.0);
    ck_assert_double_eq_tol(sender->backward[AP_LINK_IN], time, 1e-12);
    ck_assert_double_eq_tol(
        receivers[0]->backward[AP_LINK_OUT] + receivers[1]->backward[AP_LINK_OUT], time, 1e-12);
    /* Never busy for longer than the resharding takes. */
    ck_assert_xm_ok(ap_cross_mesh_cost(cross_mesh, &shape, 4, &src, &dst, &cost));
    for (int i = 0; i < count; ++i) {
        for (int d = 0; d < AP_LINK_DIRECTIONS; ++d) {
            ck_assert_double_le(loads[i].forward[d], cost.forward);
            ck_assert_double_le(loads[i].backward[d], cost.backward);
        }
    }
    ck_assert_uint_eq(ap_cross_mesh_simulated(cross_mesh), 1);
    free(loads);
    /* Inside a host there is nothing to share. */
    src = (ap_cross_mesh_side_t){4, {1, 1}, spec("RRR")};
    dst = (ap_cross_mesh_side_t){5, {1, 1}, spec("RRR")};
    ck_assert_xm_ok(ap_cross_mesh_loads(cross_mesh, &shape, 4, &src, &dst, &loads, &count));
    ck_assert_int_eq(count, 0);
    free(loads);
    ap_cross_mesh_destroy(cross_mesh);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(bad_sides_are_refused)
{
    xm_cluster_profile_t *profile = planner_fixture_profile(2, 4, 1e9);
    ap_cross_mesh_side_t src = {0, {1, 4}, spec("S1RR")}, dst = {2, {1, 4}, spec("S1RR")};
    ap_shape_t odd = {3, {3, 5, 7}};
    ap_cross_mesh_cost_t cost;
    ap_cross_mesh_t *cross_mesh;

    ck_assert_xm_ok(ap_cross_mesh_create(profile, &cross_mesh));
    ck_assert_xm_fails(ap_cross_mesh_cost(cross_mesh, &shape, 4, &src, &dst, &cost),
                       XM_ERR_INVALID_ARGUMENT, "devices 0 to 3 and 2 to 5 of two stages overlap");
    dst.first_device = 4;
    ck_assert_xm_fails(ap_cross_mesh_cost(cross_mesh, &odd, 4, &src, &dst, &cost),
                       XM_ERR_INVALID_ARGUMENT, "3");
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
    tcase_add_test(tcase, loads_are_those_of_the_stages_own_hosts);
    tcase_add_test(tcase, bad_sides_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
