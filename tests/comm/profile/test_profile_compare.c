/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/profile/profile_compare.h"

#include <math.h>

#include "xm_test.h"

static const xm_curve_point_t curve_points[] = {{8, 1e-6}, {1024, 2e-6}, {4096, 4e-6}};

typedef struct {
    double nic, spread, scale; /* times of the curves are scaled */
    double point_spread;       /* negative: none */
    size_t points;
    bool collective;
    int hosts;
    double host_rates[4];
} shape_t;

static xm_cluster_profile_t *profile_of(const shape_t *shape)
{
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    xm_curve_point_t scaled[3];
    double spread[3] = {shape->point_spread, shape->point_spread, shape->point_spread};
    xm_collective_curve_t collective = {XM_ALL_REDUCE, 2,      2,    1,
                                        "Open MPI",    scaled, NULL, shape->points};
    xm_cluster_profile_t *profile;

    for (int i = 0; i < 3; ++i) {
        scaled[i] =
            (xm_curve_point_t){curve_points[i].bytes, curve_points[i].seconds * shape->scale};
    }
    params.name = "lab";
    params.provenance = "assumed";
    params.hosts = shape->hosts;
    params.devices_per_host = 2;
    params.device.flops = 1e12;
    params.device.memory_bytes = 1e9;
    params.device.memory_bandwidth = 1e10;
    params.nic_bandwidth = shape->nic;
    params.nic_spread = shape->spread;
    params.host_nic_bandwidth = shape->host_rates[0] > 0 ? shape->host_rates : NULL;
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        params.curve[link] = scaled;
        params.curve_points[link] = shape->points;
        params.curve_spread[link] = shape->point_spread >= 0 ? spread : NULL;
    }
    params.collectives = &collective;
    params.collective_count = shape->collective;
    ck_assert_xm_ok(xm_cluster_profile_create(&params, &profile));
    return profile;
}

static xm_profile_compare_t *compare(const shape_t *old, const shape_t *new)
{
    xm_cluster_profile_t *before = profile_of(old), *after = profile_of(new);
    xm_profile_compare_t *made;

    ck_assert_xm_ok(xm_profile_compare_create(before, after, &made));
    xm_cluster_profile_destroy(after);
    xm_cluster_profile_destroy(before);
    return made;
}

static const xm_profile_change_t *row_named(const xm_profile_compare_t *made, const char *name)
{
    for (size_t i = 0; i < xm_profile_compare_rows(made); ++i) {
        if (strcmp(xm_profile_compare_row(made, i)->name, name) == 0) {
            return xm_profile_compare_row(made, i);
        }
    }
    return NULL;
}

static const shape_t plain = {
    .nic = 1e9, .spread = 0.02, .scale = 1, .point_spread = 0.01, .points = 3, .hosts = 2};

START_TEST(equal_profiles_have_no_changes)
{
    xm_profile_compare_t *made = compare(&plain, &plain);

    /* Two rates of a device, the NIC, three curves of three sizes. */
    ck_assert_uint_eq(xm_profile_compare_rows(made), 3 + 9);
    ck_assert_uint_eq(xm_profile_compare_beyond(made, 0), 0);
    xm_profile_compare_destroy(made);
}
END_TEST

START_TEST(changes_beyond_the_spread_are_significant)
{
    shape_t slower = plain;
    xm_profile_compare_t *made;
    const xm_profile_change_t *row;

    slower.nic = 0.97e9; /* 3 %: within 2 % + 2 % */
    slower.scale = 1.05; /* 5 %: beyond 1 % + 1 % */
    made = compare(&plain, &slower);
    row = row_named(made, "nic B/s");
    ck_assert_double_eq_tol(row->change, -0.03, 1e-9);
    ck_assert_double_eq_tol(row->spread, 0.04, 1e-9);
    ck_assert(!row->significant && !row->is_time);
    row = row_named(made, "inter_host 1.00 KiB");
    ck_assert_ptr_nonnull(row);
    ck_assert_double_eq_tol(row->change, 0.05, 1e-9);
    ck_assert(row->significant && row->is_time);
    ck_assert_uint_eq(xm_profile_compare_beyond(made, 0.04), 9);
    ck_assert_uint_eq(xm_profile_compare_beyond(made, 0.06), 0);
    xm_profile_compare_destroy(made);
}
END_TEST

START_TEST(without_a_spread_every_change_counts)
{
    shape_t old = plain, new = plain;
    xm_profile_compare_t *made;

    old.point_spread = -1;
    new.scale = 0.999;
    made = compare(&old, &new);
    ck_assert(row_named(made, "self 8 B")->significant);
    ck_assert_double_lt(row_named(made, "self 8 B")->spread, 0);
    ck_assert_uint_eq(xm_profile_compare_beyond(made, 0.0005), 9);
    xm_profile_compare_destroy(made);
}
END_TEST

START_TEST(only_what_both_have_is_compared)
{
    shape_t old = plain, new = plain;
    xm_profile_compare_t *made;

    old.collective = true;
    old.points = 2;
    new.host_rates[0] = 1e9;
    new.host_rates[1] = 5e8;
    made = compare(&old, &new);
    ck_assert_ptr_null(row_named(made, "self 4.00 KiB"));
    ck_assert_ptr_null(row_named(made, "all-reduce 2x2x1 8 B"));
    /* A profile with one rate for all hosts has that of each. */
    ck_assert_double_eq_tol(row_named(made, "nic of host 1 B/s")->change, -0.5, 1e-9);
    xm_profile_compare_destroy(made);
    new.collective = true;
    new.scale = 2;
    made = compare(&old, &new);
    ck_assert_double_eq_tol(row_named(made, "all-reduce 2x2x1 1.00 KiB")->change, 1, 1e-9);
    xm_profile_compare_destroy(made);
}
END_TEST

START_TEST(clusters_of_two_sizes_are_refused)
{
    shape_t larger = plain;
    xm_cluster_profile_t *before = profile_of(&plain), *after;
    xm_profile_compare_t *made = NULL;

    larger.hosts = 3;
    after = profile_of(&larger);
    ck_assert_xm_fails(xm_profile_compare_create(before, after, &made), XM_ERR_MISMATCH,
                       "of 2 x 2 and of 3 x 2 devices");
    ck_assert_ptr_null(made);
    xm_profile_compare_destroy(NULL);
    xm_cluster_profile_destroy(after);
    xm_cluster_profile_destroy(before);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("profile_compare");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, equal_profiles_have_no_changes);
    tcase_add_test(tcase, changes_beyond_the_spread_are_significant);
    tcase_add_test(tcase, without_a_spread_every_change_counts);
    tcase_add_test(tcase, only_what_both_have_is_compared);
    tcase_add_test(tcase, clusters_of_two_sizes_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
