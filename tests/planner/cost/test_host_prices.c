/* SPDX-License-Identifier: Apache-2.0 */
/* The price of a stage on the hosts that it stands on, against arithmetic that looks at each host,
 * each link and each message by itself. */
#include "tests/planner/cost/profile_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/device_class.h"

enum { MOST_HOSTS = 5, MOST_DEVICES = 4 };

/* A random cluster, its hosts in a random order. */
typedef struct cluster {
    int hosts, devices;
    double nic[MOST_HOSTS];
    xm_cluster_device_t device[MOST_HOSTS];
    int order[MOST_HOSTS];
    xm_cluster_profile_t *profile;
    ap_device_classes_t *whole, *classes;
} cluster_t;

/* A number between 1 and 1000 times `least`, out of few, so that some hosts are alike. */
static double some(unsigned *state, double least)
{
    return least * pow(10.0, (double)(fixture_random(state) % 4));
}

static void make_cluster(cluster_t *c, unsigned *state)
{
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;

    fixture_params(&params);
    c->hosts = 1 + (int)(fixture_random(state) % MOST_HOSTS);
    c->devices = 1 << fixture_random(state) % 3;
    for (int h = 0; h < c->hosts; ++h) {
        int other = (int)(fixture_random(state) % (unsigned)(h + 1));

        c->nic[h] = some(state, 1e7);
        c->device[h] = (xm_cluster_device_t){
            .flops = some(state, 1e11), .memory_bytes = 1e9, .memory_bandwidth = some(state, 1e10)};
        if (fixture_random(state) % 2 == 0) {
            c->device[h].number_flops[XM_NUMBER_FLOAT16] = some(state, 1e12);
        }
        c->order[h] = c->order[other];
        c->order[other] = h;
    }
    params.hosts = c->hosts;
    params.devices_per_host = c->devices;
    params.host_nic_bandwidth = c->nic;
    params.host_device = c->device;
    ck_assert_xm_ok(xm_cluster_profile_create(&params, &c->profile));
    ck_assert_xm_ok(ap_device_classes_create(c->profile, (ap_memory_budget_t){0}, &c->whole));
    ck_assert_xm_ok(
        ap_device_classes_widen(c->whole, c->profile, (ap_memory_budget_t){0}, c->order));
    ck_assert_xm_ok(ap_device_classes_arrange(c->whole, c->profile, (ap_memory_budget_t){0},
                                              c->order, &c->classes));
}

static void free_cluster(cluster_t *c)
{
    ap_device_classes_destroy(c->classes);
    ap_device_classes_destroy(c->whole);
    xm_cluster_profile_destroy(c->profile);
}

/* Seconds of a step in which every device sends `bytes` to the next of its ring: each link by its
 * curve, and all that leaves or enters a host at its own NICs' rate. */
static double step_seconds(const cluster_t *c, int first, int hosts, const int *shape, int axis,
                           double bytes)
{
    const double latency = xm_cluster_profile_latency(c->profile, XM_LINK_INTER_HOST);
    int stride = axis == 0 ? shape[1] : 1, sent[MOST_HOSTS] = {0}, got[MOST_HOSTS] = {0};
    double slowest = 0;

    for (int d = 0; d < hosts * c->devices; ++d) {
        int at = d / stride % shape[axis];
        int next = d + ((at + 1) % shape[axis] - at) * stride;
        int from = d / c->devices, to = next / c->devices;
        xm_link_class_t link = from == to ? XM_LINK_INTRA_HOST : XM_LINK_INTER_HOST;

        slowest = fmax(slowest, xm_cluster_profile_seconds(c->profile, link, bytes));
        sent[from] += from != to;
        got[to] += from != to;
    }
    for (int h = 0; h < hosts; ++h) {
        double nic = c->nic[c->order[first + h]];

        if (sent[h] + got[h] > 0) {
            slowest = fmax(slowest, latency + fmax(sent[h], got[h]) * bytes / nic);
        }
    }
    return slowest;
}

static void check_mesh(const cluster_t *c, int first, int hosts, const int *shape, double bytes)
{
    int class = ap_device_classes_find(c->classes, first, hosts);
    const ap_device_class_t *of = &c->classes->classes[class];
    double flops = 1e12, moved = 1e9, longest[2] = {0};
    ap_cost_mesh_t *mesh;

    ck_assert_xm_ok(ap_cost_mesh_create(of->cost, hosts, c->devices, shape, 2, &mesh));
    for (int axis = 0; axis < 2; ++axis) {
        int n = shape[axis];
        double step = n > 1 ? step_seconds(c, first, hosts, shape, axis, bytes / n) : 0;
        double sum = ap_cost_collective(mesh, AP_ALL_REDUCE, axis, bytes);
        double gather = ap_cost_collective(mesh, AP_ALL_GATHER, axis, bytes);

        ck_assert_msg(fabs(sum - 2 * (n - 1) * step) <= 1e-9 * sum,
                      "%d hosts from %d as %d x %d, axis %d: %g instead of %g", hosts, first,
                      shape[0], shape[1], axis, sum, 2 * (n - 1) * step);
        ck_assert_double_eq_tol(2 * gather, sum, 1e-9 * sum + 1e-15);
    }
    for (int h = first; h < first + hosts; ++h) {
        const xm_cluster_device_t *device = &c->device[c->order[h]];
        double half = device->number_flops[XM_NUMBER_FLOAT16];

        longest[0] =
            fmax(longest[0], fmax(flops / device->flops, moved / device->memory_bandwidth));
        longest[1] = fmax(longest[1], fmax(flops / (half > 0 ? half : device->flops),
                                           moved / device->memory_bandwidth));
    }
    ck_assert_double_eq_tol(ap_cost_op(mesh, AP_OP_EINSUM, AP_DTYPE_F32, flops, moved), longest[0],
                            1e-9 * longest[0]);
    /* Rates and bandwidths are the least of the hosts, which need not be of one host. */
    ck_assert_double_eq_tol(ap_cost_op(mesh, AP_OP_EINSUM, AP_DTYPE_F16, flops, moved), longest[1],
                            1e-9 * longest[1]);
    ap_cost_mesh_destroy(mesh);
}

/* What a device has of what is cut by hosts, by devices and by both, host by host. */
static void check_parts(const cluster_t *c, const ap_cost_mesh_t *mesh)
{
    double whole = 0, slowest = HUGE_VAL, by_host = 0, by_both = 0;

    for (int h = 0; h < c->hosts; ++h) {
        double speed = xm_cluster_profile_host_device(c->profile, h).flops;

        whole += speed;
        slowest = fmin(slowest, speed);
    }
    for (int h = 0; h < c->hosts; ++h) {
        double speed = xm_cluster_profile_host_device(c->profile, h).flops;

        by_host = fmax(by_host, speed / whole / speed);
        by_both = fmax(by_both, speed / whole / c->devices / speed);
    }
    ck_assert_double_eq_tol(ap_cost_mesh_speedup(mesh, 1) * by_host * slowest, 1, 1e-9);
    ck_assert_double_eq_tol(ap_cost_mesh_speedup(mesh, 2), c->devices, 1e-9);
    ck_assert_double_eq_tol(ap_cost_mesh_speedup(mesh, 3) * by_both * slowest, 1, 1e-9);
    ck_assert_double_eq_tol(ap_cost_mesh_first_part(mesh, 0),
                            xm_cluster_profile_host_device(c->profile, 0).flops / whole, 1e-9);
    ck_assert_int_eq(ap_cost_mesh_divides(mesh, 720720, 2), 1);
}

/* In parts by speed every device computes as long as the fastest alone would, were the work shared
 * out by FLOP/s. */
START_TEST(parts_by_speed_end_together)
{
    unsigned state = 11;

    for (int round = 0; round < 200; ++round) {
        cluster_t c;
        ap_cost_model_t *model;
        ap_cost_mesh_t *mesh;

        make_cluster(&c, &state);
        ck_assert_xm_ok(ap_cost_model_create_profile(c.profile, &model));
        ck_assert_xm_ok(
            ap_cost_mesh_create(model, c.hosts, c.devices, (int[]){c.hosts, c.devices}, 2, &mesh));
        ck_assert_xm_ok(ap_cost_mesh_allow_ratio(mesh));
        check_parts(&c, mesh);
        ap_cost_mesh_destroy(mesh);
        ap_cost_model_destroy(model);
        free_cluster(&c);
    }
}
END_TEST

START_TEST(stages_know_the_hosts_they_stand_on)
{
    unsigned state = (unsigned)_i + 1;

    for (int round = 0; round < 20; ++round) {
        double bytes = some(&state, 1e5);
        cluster_t c = {0};

        make_cluster(&c, &state);
        for (int first = 0; first < c.hosts; ++first) {
            for (int hosts = 1; first + hosts <= c.hosts; ++hosts) {
                for (int d0 = 1; d0 <= hosts * c.devices; ++d0) {
                    const int shape[] = {d0, hosts * c.devices / d0};

                    /* Rings that leave some hosts more often than others are priced as the
                     * busiest host with the slowest NIC. */
                    if (hosts * c.devices % d0 == 0 &&
                        (c.devices % shape[1] == 0 || shape[1] % c.devices == 0)) {
                        check_mesh(&c, first, hosts, shape, bytes);
                    }
                }
            }
        }
        free_cluster(&c);
    }
}
END_TEST

/* A model of the whole profile puts its meshes on the first hosts. */
START_TEST(a_whole_profile_begins_with_its_first_hosts)
{
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    const double nics[] = {3e9, 3e9, 3e7};
    const int shape[][2] = {{2, 1}, {3, 1}};
    const double bytes = 6e6;
    xm_cluster_profile_t *profile;
    ap_cost_model_t *model;

    fixture_params(&params);
    params.hosts = 3;
    params.devices_per_host = 1;
    params.host_nic_bandwidth = nics;
    ck_assert_xm_ok(xm_cluster_profile_create(&params, &profile));
    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &model));
    for (int i = 0; i < 2; ++i) {
        int hosts = shape[i][0];
        ap_cost_mesh_t *mesh;
        double alone = xm_cluster_profile_seconds(profile, XM_LINK_INTER_HOST, bytes / hosts);
        double slow = 2e-5 + bytes / hosts / 3e7;

        ck_assert_xm_ok(ap_cost_mesh_create(model, hosts, 1, shape[i], 2, &mesh));
        ck_assert_double_eq_tol(ap_cost_collective(mesh, AP_REDUCE_SCATTER, 0, bytes),
                                (hosts - 1) * (i == 0 ? alone : slow), 1e-9);
        ap_cost_mesh_destroy(mesh);
    }
    ap_cost_model_destroy(model);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Measured collectives are those of typical NICs; slower ones take as much longer as a ring would.
 */
START_TEST(measured_collectives_slow_down_with_the_nic)
{
    static const xm_curve_point_t points[] = {{1, 1e-3}, {1 << 20, 7e-3}};
    xm_collective_curve_t curve = {.kind = XM_ALL_REDUCE,
                                   .hosts = 2,
                                   .devices_per_host = 1,
                                   .groups_per_host = 1,
                                   .library = "test",
                                   .points = (xm_curve_point_t *)points,
                                   .count = 2};
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    const double nics[] = {3e9, 3e7}, half = 1 << 19;
    char text[512];
    const int shape[] = {2, 1};
    xm_cluster_profile_t *profile;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;

    fixture_params(&params);
    params.devices_per_host = 1;
    params.host_nic_bandwidth = nics;
    params.collectives = &curve;
    params.collective_count = 1;
    ck_assert_xm_ok(xm_cluster_profile_create(&params, &profile));
    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &model));
    ck_assert_xm_ok(ap_cost_mesh_create(model, 2, 1, shape, 2, &mesh));
    (void)ap_cost_explain_collective(mesh, AP_ALL_REDUCE, 0, 2 * half, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "the slowest host's NICs carry 0.03 GB/s"));
    (void)ap_cost_explain_collective(mesh, AP_ALL_GATHER, 0, 2 * half, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "the slowest host's NICs carry 0.03 GB/s"));
    ck_assert_double_eq_tol(ap_cost_collective(mesh, AP_ALL_REDUCE, 0, 2 * half),
                            7e-3 * (2e-5 + half / 3e7) /
                                xm_cluster_profile_seconds(profile, XM_LINK_INTER_HOST, half),
                            1e-9);
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
    xm_cluster_profile_destroy(profile);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("host_prices");
    TCase *tcase = tcase_create("prices");

    tcase_add_loop_test(tcase, stages_know_the_hosts_they_stand_on, 0, 10);
    tcase_add_test(tcase, a_whole_profile_begins_with_its_first_hosts);
    tcase_add_test(tcase, parts_by_speed_end_together);
    tcase_add_test(tcase, measured_collectives_slow_down_with_the_nic);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
