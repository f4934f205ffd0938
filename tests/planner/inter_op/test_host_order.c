/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/inter_op/host_order.h"

#include <stdlib.h>
#include <string.h>

#include "tests/planner/search/planner_fixture.h"
#include "xm_test.h"

enum { MOST_HOSTS = 16, MOST = 128 };

static const double two_by_two[] = {1.0, 0.5, 1.0, 0.5};

static ap_host_orders_t *orders_of(int hosts, const double *shares, const double *nics,
                                   int hosts_per_rack)
{
    xm_cluster_profile_t *profile =
        planner_fixture_unequal(hosts, 2, 64e9, shares, nics, hosts_per_rack);
    ap_host_orders_t *orders;

    ck_assert_xm_ok(ap_host_orders_create(profile, 0.0, &orders));
    xm_cluster_profile_destroy(profile);
    return orders;
}

/* Every order is a permutation that keeps racks whole, and no two are alike. */
static void check_list(const ap_host_orders_t *orders, int hosts, int hosts_per_rack,
                       const int *list, int count)
{
    for (int i = 0; i < count; ++i) {
        const int *order = list + i * hosts;
        bool taken[MOST_HOSTS] = {false};

        for (int p = 0; p < hosts; ++p) {
            ck_assert_int_ge(order[p], 0);
            ck_assert_int_lt(order[p], hosts);
            ck_assert(!taken[order[p]]);
            taken[order[p]] = true;
            if (hosts_per_rack > 0) {
                ck_assert_int_eq(order[p] / hosts_per_rack,
                                 order[p / hosts_per_rack * hosts_per_rack] / hosts_per_rack);
            }
        }
        for (int k = 0; k < i; ++k) {
            ck_assert(!ap_host_orders_same(orders, order, list + k * hosts));
        }
    }
}

static const double shares3[] = {1.0, 0.5, 1.0, 0.5, 0.25};
static const double shares8[] = {1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5};
static const double racks5[] = {1.0, 0.5, 0.5, 1.0, 0.5};
static const double nics4[] = {1e9, 5e8, 1e9, 1e9};

static const struct {
    int hosts;
    const double *shares, *nics;
    int hosts_per_rack, count;
} listings[] = {
    {4, NULL, NULL, 0, 1},       {4, two_by_two, NULL, 0, 6},
    {4, NULL, nics4, 0, 4},      {4, two_by_two, nics4, 0, 12}, /* kinds of 2, 1 and 1 hosts */
    {5, shares3, NULL, 0, 30},   {8, shares8, NULL, 0, 70},
    {4, two_by_two, NULL, 2, 4}, /* each of two racks either way round */
    {8, shares8, NULL, 4, 2},    /* two racks of one kind each */
    {5, racks5, NULL, 2, 4},     /* the last rack has one host and stays */
    {4, shares8, NULL, 2, 1},    {3, two_by_two, NULL, 5, 3}, /* a rack for all */
};

START_TEST(orders_that_differ_are_listed_once)
{
    int hosts = listings[_i].hosts, racks = listings[_i].hosts_per_rack, list[MOST * 8], count;
    ap_host_orders_t *orders = orders_of(hosts, listings[_i].shares, listings[_i].nics, racks);

    count = ap_host_orders_list(orders, MOST, list);
    ck_assert_int_eq(count, listings[_i].count);
    check_list(orders, hosts, racks, list, count);
    for (int h = 0; h < hosts; ++h) {
        ck_assert_int_eq(list[h], h);
    }
    if (count > 1) {
        ck_assert_int_eq(ap_host_orders_list(orders, count - 1, list), count);
    }
    ap_host_orders_destroy(orders);
}
END_TEST

/* Memory that does not count makes no kind. */
START_TEST(a_limit_takes_the_place_of_memory)
{
    static const xm_curve_point_t curve[] = {{8, 1e-7}, {1 << 20, 1e-4}};
    const xm_cluster_device_t devices[] = {
        {.flops = 1e10, .memory_bytes = 1e9, .memory_bandwidth = 1e9},
        {.flops = 1e10, .memory_bytes = 2e9, .memory_bandwidth = 1e9}};
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    xm_cluster_profile_t *profile;
    ap_host_orders_t *orders;

    params.name = params.provenance = "test";
    params.hosts = 2;
    params.devices_per_host = 1;
    params.device.flops = 1e10;
    params.device.memory_bytes = params.device.memory_bandwidth = params.nic_bandwidth = 1e9;
    params.host_device = devices;
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        params.curve[link] = curve;
        params.curve_points[link] = 2;
    }
    ck_assert_xm_ok(xm_cluster_profile_create(&params, &profile));
    ck_assert_xm_ok(ap_host_orders_create(profile, 0.0, &orders));
    ck_assert_int_eq(ap_host_orders_kinds(orders), 2);
    ap_host_orders_destroy(orders);
    ck_assert_xm_ok(ap_host_orders_create(profile, 5e8, &orders));
    ck_assert_int_eq(ap_host_orders_kinds(orders), 1);
    ap_host_orders_destroy(orders);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(kinds_are_grouped_in_every_order)
{
    static const double shares[] = {1.0, 0.5, 0.25, 1.0, 0.5, 0.25};
    static const int grouped[][6] = {{0, 1, 2, 3, 4, 5}, {0, 3, 1, 4, 2, 5}, {0, 3, 2, 5, 1, 4},
                                     {1, 4, 0, 3, 2, 5}, {2, 5, 0, 3, 1, 4}, {1, 4, 2, 5, 0, 3},
                                     {2, 5, 1, 4, 0, 3}};
    static const double six[] = {1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 1.0, 0.5};
    int list[MOST * 8];
    ap_host_orders_t *orders = orders_of(6, shares, NULL, 0);

    ck_assert_int_eq(ap_host_orders_grouped(orders, MOST, list), 7);
    ck_assert_mem_eq(list, grouped, sizeof(grouped));
    ck_assert_int_eq(ap_host_orders_grouped(orders, 3, list), 3);
    ap_host_orders_destroy(orders);
    orders = orders_of(6, shares, NULL, 3);
    ck_assert_int_eq(ap_host_orders_grouped(orders, MOST, list), 6);
    check_list(orders, 6, 3, list, 6);
    ap_host_orders_destroy(orders);
    orders = orders_of(8, six, NULL, 0); /* too many kinds for all orders of them */
    ck_assert_int_eq(ap_host_orders_grouped(orders, MOST, list), 3);
    check_list(orders, 8, 0, list, 3);
    ap_host_orders_destroy(orders);
}
END_TEST

/* Steps from the best-known order reach every order that there is. */
static void check_reach(int hosts, const double *shares, int hosts_per_rack)
{
    ap_host_orders_t *orders = orders_of(hosts, shares, NULL, hosts_per_rack);
    int all[MOST * 8], near[MOST * 8], reached[MOST * 8], count = 1, total;

    total = ap_host_orders_list(orders, MOST, all);
    memcpy(reached, all, (size_t)hosts * sizeof(int));
    for (int i = 0; i < count; ++i) {
        int steps = ap_host_orders_near(orders, reached + i * hosts, MOST, near);

        check_list(orders, hosts, hosts_per_rack, near, steps);
        for (int s = 0; s < steps; ++s) {
            bool known = false;

            ck_assert(!ap_host_orders_same(orders, near + s * hosts, reached + i * hosts));
            for (int k = 0; k < count && !known; ++k) {
                known = ap_host_orders_same(orders, near + s * hosts, reached + k * hosts);
            }
            if (!known) {
                ck_assert_int_lt(count, total);
                memcpy(reached + count++ * hosts, near + s * hosts, (size_t)hosts * sizeof(int));
            }
        }
        ck_assert_int_le(ap_host_orders_near(orders, reached + i * hosts, 2, near), 2);
    }
    ck_assert_int_eq(count, total);
    ap_host_orders_destroy(orders);
}

START_TEST(steps_lead_to_every_order)
{
    check_reach(4, two_by_two, 0);
    check_reach(8, shares8, 0);
    check_reach(5, shares3, 0);
    check_reach(4, two_by_two, 2);
    check_reach(8, shares8, 4);
    check_reach(5, racks5, 2);
}
END_TEST

/* A cluster beyond what is listed does not take long to say so. */
START_TEST(large_clusters_have_too_many)
{
    double shares[MOST_HOSTS];
    int list[3 * MOST_HOSTS];
    ap_host_orders_t *orders;

    for (int h = 0; h < MOST_HOSTS; ++h) {
        shares[h] = h % 2 == 0 ? 1.0 : 0.5;
    }
    orders = orders_of(MOST_HOSTS, shares, NULL, 0);
    ck_assert_int_eq(ap_host_orders_list(orders, 2, list), 3);
    ck_assert_int_eq(ap_host_orders_grouped(orders, 3, list), 3);
    check_list(orders, MOST_HOSTS, 0, list, 3);
    ap_host_orders_destroy(orders);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("host_order");
    TCase *tcase = tcase_create("all");

    tcase_add_loop_test(tcase, orders_that_differ_are_listed_once, 0,
                        (int)(sizeof(listings) / sizeof(listings[0])));
    tcase_add_test(tcase, a_limit_takes_the_place_of_memory);
    tcase_add_test(tcase, kinds_are_grouped_in_every_order);
    tcase_add_test(tcase, steps_lead_to_every_order);
    tcase_add_test(tcase, large_clusters_have_too_many);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
