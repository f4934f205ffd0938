/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/planner/cost/profile_fixture.h"

#include <math.h>

#include "planner/cost/cost.h"
#include "planner/cost/cost_private.h"
#include "planner/cost/reshard_memo.h"

static ap_cost_mesh_t *alpa_mesh(ap_cost_model_t **model, int d0, int d1)
{
    ap_alpa_params_t params = AP_ALPA_PARAMS_INIT;
    const int shape[] = {d0, d1};
    ap_cost_mesh_t *mesh;

    ck_assert_xm_ok(ap_cost_model_create_alpa(&params, model));
    ck_assert_xm_ok(ap_cost_mesh_create(*model, d0, d1, shape, 2, &mesh));
    return mesh;
}

static ap_spec_t spec(const char *text, int rank)
{
    ap_spec_t parsed;

    ck_assert_xm_ok(ap_spec_parse(text, rank, 2, &parsed));
    return parsed;
}

START_TEST(alpa_formulas_have_their_constants)
{
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh = alpa_mesh(&model, 4, 8);

    ck_assert_double_eq_tol(ap_cost_collective(mesh, AP_ALL_GATHER, 0, 1000), 1 + 750 + 0.1, 1e-9);
    ck_assert_double_eq_tol(ap_cost_collective(mesh, AP_ALL_REDUCE, 0, 1000), 1 + 1500 + 0.01,
                            1e-9);
    ck_assert_double_eq_tol(ap_cost_collective(mesh, AP_REDUCE_SCATTER, 0, 1000), 1 + 750 + 0.001,
                            1e-9);
    ck_assert_double_eq_tol(ap_cost_collective(mesh, AP_ALL_TO_ALL, 0, 1600),
                            1 + 3.0 / 16 * 1600 * 2 + 0.001, 1e-9);
    ck_assert_double_eq_tol(ap_cost_collective(mesh, AP_ALL_REDUCE, 1, 800),
                            1 + 0.1 * 2 * 7 / 8 * 800 + 0.01, 1e-9);
    ck_assert_double_eq_tol(ap_cost_op(mesh, AP_OP_EINSUM, AP_DTYPE_F32, 1e12, 1e12), 0, 1e-12);
    ck_assert_double_eq_tol(ap_cost_replicated(mesh), 2, 1e-12);
    ck_assert(ap_cost_model_is_alpa(model));
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
}
END_TEST

/* Alpa's table 2. The last column is the size of axis 1: where it is 1, a detour over a cheaper
 * axis is ruled out. */
START_TEST(resharding_takes_the_collectives_of_alpas_table)
{
    static const struct {
        const char *from, *to;
        int steps;
        bool slice;
        ap_collective_kind_t kind;
        int axis;
        double share; /* of the whole tensor, as cost.h counts B */
        int d1;
    } rows[] = {
        {"RR", "S0R", 1, true, AP_ALL_GATHER, 0, 0, 8},
        {"S0R", "RR", 1, false, AP_ALL_GATHER, 0, 1, 1},
        {"S0S1", "S0R", 1, false, AP_ALL_GATHER, 1, 1.0 / 4, 8},
        {"S0R", "RS0", 1, false, AP_ALL_TO_ALL, 0, 1, 1},
        {"S0S1", "S01R", 1, false, AP_ALL_TO_ALL, 1, 1.0 / 4, 8},
        {"S01R", "S0R", 1, false, AP_ALL_GATHER, 1, 1.0 / 4, 8},
        {"S0R", "S01R", 1, true, AP_ALL_GATHER, 1, 0, 8},
    };
    const ap_shape_t shape = {2, {64, 64}};
    const double bytes = 64 * 64 * 4;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        ap_cost_model_t *model;
        ap_cost_mesh_t *mesh = alpa_mesh(&model, 4, rows[i].d1);
        ap_reshard_step_t steps[AP_MAX_RESHARD_STEPS];
        int count;
        double cost = ap_cost_reshard(mesh, &shape, bytes, spec(rows[i].from, 2),
                                      spec(rows[i].to, 2), steps, &count);
        double expected = rows[i].slice ? 0
                                        : ap_cost_collective(mesh, rows[i].kind, rows[i].axis,
                                                             bytes * rows[i].share);

        ck_assert_msg(count == rows[i].steps, "%s to %s in %d steps for %g", rows[i].from,
                      rows[i].to, count, cost);
        ck_assert_int_eq(steps[0].slice, rows[i].slice);
        ck_assert_int_eq(steps[0].axis, rows[i].axis);
        ck_assert_uint_eq(steps[0].after, spec(rows[i].to, 2));
        ck_assert_double_eq_tol(cost, expected, 1e-9);
        ck_assert_double_eq_tol(ap_cost_reshard(mesh, &shape, bytes, spec(rows[i].from, 2),
                                                spec(rows[i].from, 2), NULL, NULL),
                                0, 1e-12);
        ap_cost_mesh_destroy(mesh);
        ap_cost_model_destroy(model);
    }
}
END_TEST

/* Cutting the major axis of a dimension whose minor one is cut moves data. */
START_TEST(axis_order_matters)
{
    const ap_shape_t shape = {2, {64, 64}};
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh = alpa_mesh(&model, 4, 8);

    ck_assert_double_gt(
        ap_cost_reshard(mesh, &shape, 1 << 14, spec("S1R", 2), spec("S01R", 2), NULL, NULL), 1);
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
}
END_TEST

/* Shortest paths: no detour over a third spec is cheaper, and the batch answers agree. */
START_TEST(resharding_costs_are_a_metric_of_shortest_paths)
{
    const ap_shape_t shape = {3, {8, 64, 12}};
    const double bytes = 8 * 64 * 12 * 2;
    xm_cluster_profile_t *profile = fixture_profile();
    const int mesh_shape[] = {2, 4};
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    ap_spec_t specs[AP_MAX_SPECS];
    double cost[32][32];
    int count;

    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &model));
    ck_assert_xm_ok(ap_cost_mesh_create(model, 2, 4, mesh_shape, 2, &mesh));
    count = ap_specs_enumerate(mesh, &shape, specs);
    ck_assert_int_eq(count, 15); /* 16 without S01 on the last dimension (12 / 8) */
    for (int i = 0; i < count; ++i) {
        ap_cost_reshard_many(mesh, &shape, bytes, specs[i], specs, count, cost[i]);
        ck_assert_double_eq_tol(cost[i][i], 0, 1e-15);
        for (int j = 0; j < count; ++j) {
            ck_assert_double_eq_tol(
                cost[i][j], ap_cost_reshard(mesh, &shape, bytes, specs[i], specs[j], NULL, NULL),
                1e-15);
        }
    }
    for (int i = 0; i < count; ++i) {
        for (int j = 0; j < count; ++j) {
            for (int k = 0; k < count; ++k) {
                ck_assert_double_le(cost[i][j], cost[i][k] + cost[k][j] + 1e-15);
            }
        }
    }
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Rings by hand from the fixture's curves. */
START_TEST(profile_rings_use_the_link_class_of_their_axis)
{
    xm_cluster_profile_t *profile = fixture_profile();
    const int shape[] = {2, 4}, flat[] = {8, 1};
    const double mib = 1 << 20;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh, *ring;

    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &model));
    ck_assert_xm_ok(ap_cost_mesh_create(model, 2, 4, shape, 2, &mesh));
    /* Axis 1 stays in a host: 3 steps of 1 MiB at 1e-4 s. */
    ck_assert_double_eq_tol(ap_cost_collective(mesh, AP_ALL_GATHER, 1, 4 * mib), 3e-4, 1e-12);
    ck_assert_double_eq_tol(ap_cost_collective(mesh, AP_ALL_REDUCE, 1, 4 * mib), 6e-4, 1e-12);
    /* Axis 0 crosses: 4 rings leave each host at once and share its NICs. */
    ck_assert_double_eq_tol(ap_cost_collective(mesh, AP_REDUCE_SCATTER, 0, 2 * mib),
                            fmax(4e-4, 2e-5 + 4 * mib / 3e9), 1e-12);
    ck_assert_double_eq_tol(ap_cost_collective(mesh, AP_PERMUTE, 1, mib), 1e-4, 1e-12);
    /* One ring over both hosts: a single flow leaves each. */
    ck_assert_xm_ok(ap_cost_mesh_create(model, 2, 4, flat, 2, &ring));
    ck_assert_double_eq_tol(ap_cost_collective(ring, AP_ALL_GATHER, 0, 8 * mib), 7 * 4e-4, 1e-12);
    /* All-to-all: 3 near and 4 far messages; 16 pairs leave each host. */
    ck_assert_double_eq_tol(ap_cost_collective(ring, AP_ALL_TO_ALL, 0, 64 * mib),
                            3 * 1e-4 + fmax(4 * 4e-4, 2e-5 + 16 * mib / 3e9), 1e-12);
    ck_assert_double_eq_tol(ap_cost_collective(ring, AP_ALL_REDUCE, 1, 8 * mib), 0, 1e-15);
    ap_cost_mesh_destroy(ring);
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* The fixture's cluster with collectives measured on one kind of axis each. */
static xm_cluster_profile_t *measured_profile(void)
{
    static const xm_curve_point_t points[] = {{1 << 10, 1e-5}, {1 << 20, 2e-3}};
    static const xm_curve_point_t slow[] = {{1 << 10, 3e-5}, {1 << 20, 7e-3}};
    const xm_collective_curve_t curves[] = {
        {XM_ALL_REDUCE, 1, 4, 1, "Open MPI 4.1.4", points, NULL, 2},  /* inside a host */
        {XM_ALL_REDUCE, 2, 1, 4, "Open MPI 4.1.4", slow, NULL, 2},    /* across hosts */
        {XM_ALL_TO_ALL, 2, 4, 1, "NCCL 2.28.7", points, NULL, 2},     /* all devices */
        {XM_REDUCE_SCATTER, 2, 1, 1, "NCCL 2.28.7", points, NULL, 2}, /* one group alone */
        {XM_ALL_GATHER, 1, 2, 2, "NCCL 2.28.7", points, NULL, 2},     /* halves of a host */
    };
    xm_cluster_profile_t *plain = fixture_profile(), *profile = NULL;

    ck_assert_xm_ok(xm_cluster_profile_add_collectives(
        plain, curves, sizeof(curves) / sizeof(curves[0]), "curves of a test", &profile));
    xm_cluster_profile_destroy(plain);
    return profile;
}

START_TEST(measured_collectives_count_where_groups_lie_alike)
{
    static const struct {
        ap_collective_kind_t kind;
        int hosts, devices, d0, d1, d2, axis;
        double seconds; /* of 1 MiB; 0: not measured, a ring */
    } rows[] = {
        {AP_ALL_REDUCE, 2, 4, 2, 4, 1, 1, 2e-3},     {AP_ALL_REDUCE, 2, 4, 2, 4, 1, 0, 7e-3},
        {AP_ALL_REDUCE, 1, 4, 1, 4, 1, 1, 2e-3},     {AP_ALL_REDUCE, 1, 4, 4, 1, 1, 0, 2e-3},
        {AP_ALL_REDUCE, 2, 4, 8, 1, 1, 0, 0},        {AP_ALL_TO_ALL, 2, 4, 8, 1, 1, 0, 2e-3},
        {AP_ALL_TO_ALL, 2, 4, 2, 4, 1, 0, 0},        {AP_REDUCE_SCATTER, 2, 4, 2, 4, 1, 0, 0},
        {AP_REDUCE_SCATTER, 2, 1, 2, 1, 1, 0, 2e-3}, {AP_ALL_GATHER, 2, 4, 2, 2, 2, 2, 2e-3},
        {AP_ALL_GATHER, 2, 4, 2, 2, 2, 1, 2e-3},     {AP_ALL_GATHER, 2, 4, 2, 2, 2, 0, 0},
        {AP_PERMUTE, 2, 4, 2, 4, 1, 1, 0},
    };
    xm_cluster_profile_t *plain = fixture_profile(), *profile = measured_profile();
    ap_cost_model_t *rings, *model;

    ck_assert_xm_ok(ap_cost_model_create_profile(plain, &rings));
    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &model));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        const int shape[] = {rows[i].d0, rows[i].d1, rows[i].d2};
        ap_cost_mesh_t *mesh, *ring;
        double cost, expected;

        ck_assert_xm_ok(
            ap_cost_mesh_create(model, rows[i].hosts, rows[i].devices, shape, 3, &mesh));
        ck_assert_xm_ok(
            ap_cost_mesh_create(rings, rows[i].hosts, rows[i].devices, shape, 3, &ring));
        cost = ap_cost_collective(mesh, rows[i].kind, rows[i].axis, 1 << 20);
        expected = rows[i].seconds > 0
                       ? rows[i].seconds
                       : ap_cost_collective(ring, rows[i].kind, rows[i].axis, 1 << 20);
        ck_assert_msg(fabs(cost - expected) < 1e-12, "row %zu costs %g instead of %g", i, cost,
                      expected);
        ap_cost_mesh_destroy(ring);
        ap_cost_mesh_destroy(mesh);
    }
    ap_cost_model_destroy(model);
    ap_cost_model_destroy(rings);
    xm_cluster_profile_destroy(profile);
    xm_cluster_profile_destroy(plain);
}
END_TEST

START_TEST(measured_collectives_say_so)
{
    xm_cluster_profile_t *profile = measured_profile();
    const int shape[] = {2, 4};
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    char text[512];

    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &model));
    ck_assert_xm_ok(ap_cost_mesh_create(model, 2, 4, shape, 2, &mesh));
    (void)ap_cost_explain_collective(mesh, AP_ALL_REDUCE, 0, 1 << 20, text, sizeof(text));
    ck_assert_str_eq(text, "all-reduce of 1.00 MiB over axis 0 (2 devices): 7.00 ms, measured "
                           "with Open MPI 4.1.4, the point at 1.00 MiB");
    (void)ap_cost_explain_collective(mesh, AP_ALL_GATHER, 0, 1 << 20, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "inter_host curve"));
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(devices_of_a_host_share_its_fabric)
{
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    const int shape[] = {2, 4};
    const double mib = 1 << 20;
    xm_cluster_profile_t *profile;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;

    params.name = "fixture";
    params.provenance = "assumed for a test";
    params.hosts = 2;
    params.devices_per_host = 4;
    params.device.flops = params.device.memory_bytes = params.device.memory_bandwidth = 1e12;
    params.nic_bandwidth = 3e9;
    params.host_fabric = 8e9; /* one device alone has 10 GB/s */
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        params.curve[link] = fixture_intra;
        params.curve_points[link] = 3;
    }
    ck_assert_xm_ok(xm_cluster_profile_create(&params, &profile));
    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &model));
    ck_assert_xm_ok(ap_cost_mesh_create(model, 2, 4, shape, 2, &mesh));
    ck_assert_double_eq_tol(ap_cost_collective(mesh, AP_ALL_GATHER, 1, 4 * mib),
                            3 * (1e-6 + 4 * mib / 8e9), 1e-12);
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(compute_is_a_roofline_and_explains_itself)
{
    xm_cluster_profile_t *profile = fixture_profile();
    const int shape[] = {1, 4};
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    char text[512];

    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &model));
    ck_assert_xm_ok(ap_cost_mesh_create(model, 1, 4, shape, 2, &mesh));
    ck_assert_double_eq_tol(ap_cost_op(mesh, AP_OP_EINSUM, AP_DTYPE_F32, 1e13, 1e3), 1, 1e-9);
    ck_assert_double_eq_tol(ap_cost_op(mesh, AP_OP_EINSUM, AP_DTYPE_F32, 1e3, 5e11), 1, 1e-9);
    ck_assert_double_eq_tol(ap_cost_replicated(mesh), 0, 1e-15);
    (void)ap_cost_explain_op(mesh, AP_OP_EINSUM, AP_DTYPE_F32, 1e13, 1e3, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "FLOP/s"));
    (void)ap_cost_explain_op(mesh, AP_OP_EINSUM, AP_DTYPE_F32, 1, 5e11, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "memory bandwidth"));
    (void)ap_cost_explain_collective(mesh, AP_ALL_REDUCE, 1, 1 << 22, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "all-reduce of 4.00 MiB over axis 1 (4 devices): 6 steps"));
    ck_assert_ptr_nonnull(strstr(text, "intra_host curve, the point at 1.00 MiB"));
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* Measured operators correct the roofline of their kind, and of no other. */
START_TEST(measured_operators_correct_the_roofline)
{
    static const xm_op_time_t measured[] = {
        {.op = "einsum", .flops = 1e11, .bytes = 1, .seconds = 0.04},
        {.op = "einsum", .flops = 1e9, .bytes = 1, .seconds = 1e-3}};
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    const int shape[] = {1, 4};
    xm_cluster_profile_t *profile;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    char text[512];

    fixture_params(&params);
    params.op_times = measured;
    params.op_time_count = 2;
    params.gradient_overlap = 0.75;
    params.runtime.bucket = 1 << 20;
    ck_assert_xm_ok(xm_cluster_profile_create(&params, &profile));
    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &model));
    ck_assert_xm_ok(ap_cost_mesh_create(model, 1, 4, shape, 2, &mesh));
    /* 10 and 4 times slower than 10 TFLOP/s at 1 and 100 GFLOP; between them the time is
     * interpolated: the tenth part of 100 GFLOP lies 9/99 of the way from 1 to 40 ms. */
    ck_assert_double_eq_tol(ap_cost_op(mesh, AP_OP_EINSUM, AP_DTYPE_F32, 1e9, 1), 1e-3, 1e-9);
    ck_assert_double_eq_tol(ap_cost_op(mesh, AP_OP_EINSUM, AP_DTYPE_F32, 1e10, 1),
                            1e-3 + 9.0 / 99 * 39e-3, 1e-9);
    ck_assert_double_eq_tol(ap_cost_op(mesh, AP_OP_EINSUM, AP_DTYPE_F32, 1e13, 1), 4, 1e-9);
    ck_assert_double_eq_tol(ap_cost_op(mesh, AP_OP_EINSUM, AP_DTYPE_F32, 1e6, 1), 1e-6, 1e-12);
    ck_assert_double_eq_tol(ap_cost_op(mesh, AP_OP_EINSUM, AP_DTYPE_F32, 0, 0), 0, 1e-12);
    ck_assert_double_eq_tol(ap_cost_op(mesh, AP_OP_SOFTMAX, AP_DTYPE_F32, 1e9, 1), 1e-4, 1e-9);
    (void)ap_cost_explain_op(mesh, AP_OP_EINSUM, AP_DTYPE_F32, 1e10, 1, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "times 4.55 as einsum was measured"));
    /* A quarter of it counts; what is below a bucket has its part of a full one's. */
    for (int k = 0; k < 2; ++k) {
        const ap_collective_kind_t kind = k == 0 ? AP_ALL_REDUCE : AP_REDUCE_SCATTER;
        const double big = ap_cost_collective_over(mesh, kind, 2, 1 << 22);
        const double full = ap_cost_collective_over(mesh, kind, 2, 1 << 20);
        const double small = ap_cost_collective_over(mesh, kind, 2, 1 << 10);

        ck_assert_double_gt(small, 2 * full / 1024);
        ck_assert_double_eq_tol(ap_cost_gradient_collective(mesh, kind, 2, 1 << 22), big / 4,
                                1e-12);
        ck_assert_double_eq_tol(ap_cost_gradient_collective(mesh, kind, 2, 1 << 10),
                                (k == 0 ? full / 1024 : small) / 4, 1e-12);
    }
    ck_assert_double_eq(ap_cost_gradient_collective(mesh, AP_ALL_REDUCE, 2, 0), 0);
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* What one axis of a mesh is, counted pair by pair. */
static void check_axis(const ap_cost_mesh_t *mesh, int axis, int stride)
{
    const ap_cost_axis_t *on = &mesh->axis[axis];
    int ring[8] = {0}, all[8] = {0}, most_ring = 0, most_all = 0, most_far = 0;
    bool inside = false;

    for (int d = 0; d < mesh->hosts * mesh->devices && on->size > 1; ++d) {
        int position = d / stride % on->size, far = 0;

        for (int k = 1; k < on->size; ++k) {
            int peer = d + ((position + k) % on->size - position) * stride;
            bool leaves = peer / mesh->devices != d / mesh->devices;

            far += leaves;
            ring[d / mesh->devices] += k == 1 && leaves;
            inside = inside || (k == 1 && !leaves);
        }
        all[d / mesh->devices] += far;
        most_far = far > most_far ? far : most_far;
    }
    for (int h = 0; h < mesh->hosts; ++h) {
        most_ring = ring[h] > most_ring ? ring[h] : most_ring;
        most_all = all[h] > most_all ? all[h] : most_all;
    }
    ck_assert_int_eq(on->inside, inside);
    ck_assert_int_eq(on->ring_flows, most_ring);
    ck_assert_int_eq(on->far_peers, most_far);
    ck_assert_int_eq(on->all_to_all_flows, most_all);
}

START_TEST(links_are_counted_as_if_one_by_one)
{
    static const int devices[] = {4, 8, 12, 18, 24};
    ap_alpa_params_t params = AP_ALPA_PARAMS_INIT;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;
    int meshes = 0;

    ck_assert_xm_ok(ap_cost_model_create_alpa(&params, &model));
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); ++i) {
        for (int hosts = 1; hosts <= 8; ++hosts) {
            for (int a = 1; a <= devices[i]; ++a) {
                for (int b = 1; a * b <= devices[i]; ++b) {
                    const int shape[] = {a, b, devices[i] / a / b};

                    if (devices[i] % hosts != 0 || devices[i] % (a * b) != 0) {
                        continue;
                    }
                    ck_assert_xm_ok(
                        ap_cost_mesh_create(model, hosts, devices[i] / hosts, shape, 3, &mesh));
                    check_axis(mesh, 0, shape[1] * shape[2]);
                    check_axis(mesh, 1, shape[2]);
                    check_axis(mesh, 2, 1);
                    ap_cost_mesh_destroy(mesh);
                    ++meshes;
                }
            }
        }
    }
    ck_assert_int_gt(meshes, 200);
    ap_cost_model_destroy(model);
}
END_TEST

/* A million devices have 10^12 pairs: counted one by one, this would not end. */
START_TEST(large_meshes_are_made_at_once)
{
    const int shape[] = {1 << 20};
    ap_alpa_params_t params = AP_ALPA_PARAMS_INIT;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh;

    ck_assert_xm_ok(ap_cost_model_create_alpa(&params, &model));
    ck_assert_xm_ok(ap_cost_mesh_create(model, 2, 1 << 19, shape, 1, &mesh));
    ck_assert_int_eq(mesh->axis[0].far_peers, 1 << 19);
    ck_assert_int_eq(mesh->axis[0].all_to_all_flows, (int64_t)1 << 38);
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
}
END_TEST

START_TEST(bad_meshes_are_refused)
{
    xm_cluster_profile_t *profile = fixture_profile();
    const int shape[] = {2, 4}, zero[] = {0, 4};
    ap_alpa_params_t alpa = AP_ALPA_PARAMS_INIT;
    ap_cost_model_t *model;
    ap_cost_mesh_t *mesh = NULL;

    ck_assert_xm_ok(ap_cost_model_create_profile(profile, &model));
    ck_assert_xm_fails(ap_cost_mesh_create(model, 1, 4, shape, 2, &mesh), XM_ERR_INVALID_ARGUMENT,
                       "8 devices does not fit a submesh of 1 x 4");
    ck_assert_xm_fails(ap_cost_mesh_create(model, 1, 8, shape, 2, &mesh), XM_ERR_INVALID_ARGUMENT,
                       "larger than the cluster of 2 x 4");
    ck_assert_xm_fails(ap_cost_mesh_create(model, 1, 4, zero, 2, &mesh), XM_ERR_INVALID_ARGUMENT,
                       "axis 0 has size 0");
    ck_assert_xm_fails(ap_cost_mesh_create(model, 1, 4, shape, 5, &mesh), XM_ERR_INVALID_ARGUMENT,
                       "1 … 4 axes");
    ck_assert_ptr_null(mesh);
    ap_cost_model_destroy(model);
    alpa.beta[1] = -1;
    ck_assert_xm_fails(ap_cost_model_create_alpa(&alpa, &model), XM_ERR_INVALID_ARGUMENT,
                       "beta -1 of axis 1");
    xm_cluster_profile_destroy(profile);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cost");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, alpa_formulas_have_their_constants);
    tcase_add_test(tcase, resharding_takes_the_collectives_of_alpas_table);
    tcase_add_test(tcase, axis_order_matters);
    tcase_add_test(tcase, resharding_costs_are_a_metric_of_shortest_paths);
    tcase_add_test(tcase, profile_rings_use_the_link_class_of_their_axis);
    tcase_add_test(tcase, measured_collectives_count_where_groups_lie_alike);
    tcase_add_test(tcase, measured_collectives_say_so);
    tcase_add_test(tcase, devices_of_a_host_share_its_fabric);
    tcase_add_test(tcase, compute_is_a_roofline_and_explains_itself);
    tcase_add_test(tcase, measured_operators_correct_the_roofline);
    tcase_add_test(tcase, links_are_counted_as_if_one_by_one);
    tcase_add_test(tcase, large_meshes_are_made_at_once);
    tcase_add_test(tcase, bad_meshes_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
