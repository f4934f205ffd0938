#include "comm/probe_profile.h"

#include <math.h>
#include <stdio.h>

#include "comm/probe_compute.h"
#include "xm_test.h"

START_TEST(sizes_grow_by_four)
{
    uint64_t sizes[XM_PROBE_MAX_POINTS];

    ck_assert_int_eq(xm_probe_sizes(UINT64_C(64) << 20, sizes), 12);
    ck_assert_uint_eq(sizes[0], 8);
    ck_assert_uint_eq(sizes[1], 64);
    ck_assert_uint_eq(sizes[2], 256);
    ck_assert_uint_eq(sizes[11], UINT64_C(64) << 20);
    ck_assert_int_eq(xm_probe_sizes(100000, sizes), 7);
    ck_assert_uint_eq(sizes[6], 65536);
    ck_assert_int_le(xm_probe_sizes(UINT64_MAX, sizes), XM_PROBE_MAX_POINTS);
}
END_TEST

START_TEST(median_of_odd_and_even_counts)
{
    double values[] = {5, 1, 9, 3};

    ck_assert_double_eq(xm_probe_median(values, 1), 5);
    ck_assert_double_eq(xm_probe_median(values, 3), 5);
    ck_assert_double_eq(xm_probe_median(values, 4), 4);
}
END_TEST

static int smooth(const double *seconds, int points, xm_curve_point_t *curve)
{
    for (int i = 0; i < points; ++i) {
        curve[i] = (xm_curve_point_t){(uint64_t)i + 1, seconds[i]};
    }
    return xm_probe_smooth(curve, points);
}

START_TEST(falling_times_are_pooled)
{
    xm_curve_point_t curve[XM_PROBE_MAX_POINTS];

    ck_assert_int_eq(smooth((const double[]){1, 2, 3}, 3, curve), 3);
    ck_assert_double_eq(curve[1].seconds, 2);
    ck_assert_int_eq(smooth((const double[]){1, 4, 2, 5}, 4, curve), 4);
    ck_assert_double_eq(curve[1].seconds, 3);
    ck_assert_double_eq(curve[2].seconds, 3);
    ck_assert_double_eq(curve[3].seconds, 5);
    /* Pooling cascades: 3, 2 gives 2.5, 2.5; then 1 joins them. */
    ck_assert_int_eq(smooth((const double[]){3, 2, 1, 6}, 4, curve), 4);
    ck_assert_double_eq(curve[0].seconds, 2);
    ck_assert_double_eq(curve[2].seconds, 2);
    /* A pool at the end is its largest size. */
    ck_assert_int_eq(smooth((const double[]){1, 5, 3}, 3, curve), 2);
    ck_assert_uint_eq(curve[1].bytes, 3);
    ck_assert_double_eq(curve[1].seconds, 4);
    /* Nothing but noise: two points remain, and the curve rises. */
    ck_assert_int_eq(smooth((const double[]){3, 2, 1}, 3, curve), 2);
    ck_assert_double_eq(curve[0].seconds, 2);
    ck_assert_uint_eq(curve[1].bytes, 3);
    ck_assert_double_gt(curve[1].seconds, 2);
}
END_TEST

/* Least squares over non-decreasing sequences by brute force: on a grid of levels, the best
 * sequence by dynamic programming must not beat the pooled one. */
START_TEST(pooling_is_the_nearest_monotone_curve)
{
    enum { LEVELS = 61, POINTS = 6 };
    unsigned state = 12345;

    for (int round = 0; round < 200; ++round) {
        double seconds[POINTS], best[LEVELS] = {0}, pooled = 0, optimum = INFINITY;
        xm_curve_point_t curve[XM_PROBE_MAX_POINTS];
        int kept;

        for (int i = 0; i < POINTS; ++i) {
            state = state * 1664525U + 1013904223U;
            seconds[i] = 1 + (double)(state >> 16 & 7);
        }
        kept = smooth(seconds, POINTS, curve);
        for (int i = 0; i < POINTS; ++i) {
            /* Points dropped at the end had the time of the last one. */
            double value = i < kept - 1 ? curve[i].seconds : curve[kept - 1].seconds;

            pooled += (value - seconds[i]) * (value - seconds[i]);
        }
        for (int i = 0; i < POINTS; ++i) {
            double lowest = INFINITY;

            for (int level = 0; level < LEVELS; ++level) {
                double value = 1 + level * 7.0 / (LEVELS - 1);

                lowest = fmin(lowest, best[level]);
                best[level] = lowest + (value - seconds[i]) * (value - seconds[i]);
            }
        }
        for (int level = 0; level < LEVELS; ++level) {
            optimum = fmin(optimum, best[level]);
        }
        ck_assert_double_le(pooled, optimum + 1e-9);
        for (int i = 1; i < kept; ++i) {
            ck_assert_double_ge(curve[i].seconds, curve[i - 1].seconds);
        }
    }
}
END_TEST

START_TEST(pairs_are_the_first_of_their_class)
{
    const int mixed[] = {0, 1, 1, 0}, spread[] = {0, 1, 2}, lone[] = {0}, together[] = {0, 0};
    int a = -1, b = -1;

    ck_assert(xm_probe_pair(mixed, 4, 2, XM_LINK_INTRA_HOST, &a, &b));
    ck_assert(a == 0 && b == 3);
    ck_assert(xm_probe_pair(mixed, 4, 2, XM_LINK_INTER_HOST, &a, &b));
    ck_assert(a == 0 && b == 1);
    ck_assert(!xm_probe_pair(spread, 3, 3, XM_LINK_INTRA_HOST, &a, &b));
    ck_assert(xm_probe_pair(spread, 3, 3, XM_LINK_INTER_HOST, &a, &b));
    ck_assert(!xm_probe_pair(lone, 1, 1, XM_LINK_INTRA_HOST, &a, &b));
    ck_assert(!xm_probe_pair(together, 2, 1, XM_LINK_INTER_HOST, &a, &b));
    ck_assert(!xm_probe_pair(together, 2, 1, XM_LINK_SELF, &a, &b));
    ck_assert_int_eq(xm_probe_rank_on(mixed, 4, 1, 1), 2);
    ck_assert_int_eq(xm_probe_rank_on(mixed, 4, 1, 2), -1);
    ck_assert_int_eq(xm_probe_ranks_on(mixed, 4, 1), 2);
}
END_TEST

static void set_curve(xm_probe_report_t *report, xm_link_class_t link, double latency)
{
    report->points[link] = 2;
    report->curve[link][0] = (xm_curve_point_t){8, latency};
    report->curve[link][1] = (xm_curve_point_t){64, latency + 64e-9};
}

START_TEST(reports_survive_the_wire)
{
    const uint64_t sizes[XM_PROBE_MAX_POINTS] = {8, 64};
    uint64_t words[XM_PROBE_REPORT_WORDS];
    xm_probe_report_t report = {
        .flops = 1.0 / 3, .copy_bandwidth = 2e10, .host_memory = 16e9, .machine = UINT64_MAX};
    xm_probe_report_t read;

    memset(&read, 0xff, sizeof(read));
    set_curve(&report, XM_LINK_INTRA_HOST, 1e-6);
    xm_probe_report_encode(&report, words);
    ck_assert_xm_ok(xm_probe_report_decode(words, sizes, 2, &read));
    ck_assert_mem_eq(&read, &report, sizeof(report));
    report.points[XM_LINK_SELF] = 3;
    xm_probe_report_encode(&report, words);
    ck_assert_xm_fails(xm_probe_report_decode(words, sizes, 2, &read), XM_ERR_CORRUPT,
                       "3 points of 2 sizes");
}
END_TEST

static xm_probe_summary_t summary_of(const xm_probe_report_t *reports, const int *host_of,
                                     int ranks, int hosts)
{
    return (xm_probe_summary_t){.reports = reports,
                                .host_of = host_of,
                                .ranks = ranks,
                                .hosts = hosts,
                                .name = "lab",
                                .conditions = "in a test"};
}

START_TEST(a_profile_takes_medians_and_the_smallest_host)
{
    const int host_of[] = {0, 0, 0, 1, 1};
    xm_probe_report_t reports[5] = {{0}};
    xm_probe_summary_t summary = summary_of(reports, host_of, 5, 2);
    xm_cluster_profile_t *profile = NULL;

    for (int rank = 0; rank < 5; ++rank) {
        reports[rank].flops = 1e9 * (rank + 1);
        reports[rank].copy_bandwidth = 1e10 * (5 - rank);
        reports[rank].host_memory = host_of[rank] == 0 ? 30e9 : 10e9;
        reports[rank].machine = (uint64_t)host_of[rank];
    }
    set_curve(&reports[0], XM_LINK_SELF, 1e-9);
    set_curve(&reports[0], XM_LINK_INTRA_HOST, 1e-6);
    set_curve(&reports[0], XM_LINK_INTER_HOST, 1e-5);
    summary.nic_bandwidth = 5e9;
    summary.nic_flows = 2;
    ck_assert_xm_ok(xm_probe_profile(&summary, &profile));
    ck_assert_int_eq(xm_cluster_profile_hosts(profile), 2);
    ck_assert_int_eq(xm_cluster_profile_devices_per_host(profile), 2);
    ck_assert_double_eq(xm_cluster_profile_device_flops(profile), 3e9);
    ck_assert_double_eq(xm_cluster_profile_device_memory_bandwidth(profile), 3e10);
    ck_assert_double_eq(xm_cluster_profile_device_memory_bytes(profile), 4e9);
    ck_assert_double_eq(xm_cluster_profile_nic_bandwidth(profile), 5e9);
    ck_assert_str_eq(xm_cluster_profile_provenance(profile),
                     "measured in a test; hosts have 2 to 3 ranks, the smallest counts; NIC "
                     "capacity from 2 concurrent flows");
    xm_cluster_profile_destroy(profile);
    /* A single message was faster than all streams. */
    summary.nic_bandwidth = 1;
    ck_assert_xm_ok(xm_probe_profile(&summary, &profile));
    ck_assert_double_eq_tol(xm_cluster_profile_nic_bandwidth(profile), 64 / (1e-5 + 64e-9), 1);
    ck_assert_ptr_nonnull(
        strstr(xm_cluster_profile_provenance(profile), "from the longest message"));
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* 1 MiB passes in a burst, 64 MiB at the rate that the NIC is limited to. */
START_TEST(a_burst_is_not_the_capacity)
{
    const int host_of[] = {0, 1};
    xm_probe_report_t reports[2] = {{.flops = 1, .copy_bandwidth = 1, .host_memory = 1e9},
                                    {.flops = 1, .copy_bandwidth = 1, .host_memory = 1e9}};
    xm_probe_summary_t summary = summary_of(reports, host_of, 2, 2);
    xm_cluster_profile_t *profile = NULL;

    reports[1].machine = 1;
    set_curve(&reports[0], XM_LINK_SELF, 1e-9);
    reports[0].points[XM_LINK_INTER_HOST] = 3;
    reports[0].curve[XM_LINK_INTER_HOST][0] = (xm_curve_point_t){1 << 20, 0.002};
    reports[0].curve[XM_LINK_INTER_HOST][1] = (xm_curve_point_t){1 << 22, 0.04};
    reports[0].curve[XM_LINK_INTER_HOST][2] = (xm_curve_point_t){1 << 26, 0.61};
    ck_assert_xm_ok(xm_probe_profile(&summary, &profile));
    ck_assert_double_eq_tol(xm_cluster_profile_nic_bandwidth(profile), (1 << 26) / 0.61, 1);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(substitutes_are_chosen_and_named)
{
    const int host_of[] = {0};
    xm_probe_report_t report = {.flops = 1, .copy_bandwidth = 1, .host_memory = 1e9, .machine = 1};
    xm_probe_summary_t summary = summary_of(&report, host_of, 1, 1);
    xm_cluster_profile_t *profile = NULL;

    set_curve(&report, XM_LINK_SELF, 1e-9);
    ck_assert_xm_ok(xm_probe_profile(&summary, &profile));
    ck_assert_double_eq(xm_cluster_profile_latency(profile, XM_LINK_INTRA_HOST), 1e-9);
    ck_assert_double_eq(xm_cluster_profile_latency(profile, XM_LINK_INTER_HOST), 1e-9);
    ck_assert_ptr_nonnull(strstr(xm_cluster_profile_provenance(profile),
                                 "intra_host is not in this job, the curve of self stands in; "
                                 "inter_host is not in this job, the curve of self stands in"));
    xm_cluster_profile_destroy(profile);
    set_curve(&report, XM_LINK_INTER_HOST, 1e-5);
    ck_assert_xm_ok(xm_probe_profile(&summary, &profile));
    ck_assert_double_eq(xm_cluster_profile_latency(profile, XM_LINK_INTRA_HOST), 1e-5);
    xm_cluster_profile_destroy(profile);
    report.points[XM_LINK_SELF] = 0;
    ck_assert_xm_fails(xm_probe_profile(&summary, &profile), XM_ERR_INVALID_ARGUMENT,
                       "probe: curves.self has 0 points");
}
END_TEST

START_TEST(one_core_computes_and_copies)
{
    static unsigned char from[1 << 16], to[1 << 16];
    double flops;

    memset(from, 7, sizeof(from));
    flops = xm_probe_flops(0.02);
    /* Between a slow emulator and twice the fastest core there is. */
    ck_assert_double_gt(flops, 1e7);
    ck_assert_double_lt(flops, 2e12);
    ck_assert_ptr_nonnull(strstr(xm_probe_flops_kind(), "multiply-add"));
    ck_assert_double_gt(xm_probe_copy_bandwidth(to, from, sizeof(from), 0.01), 1e6);
    ck_assert_mem_eq(to, from, sizeof(from));
    ck_assert_double_lt(xm_probe_copy_seconds(to, from, 8, 5),
                        xm_probe_copy_seconds(to, from, sizeof(from), 5));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("probe_profile");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, sizes_grow_by_four);
    tcase_add_test(tcase, median_of_odd_and_even_counts);
    tcase_add_test(tcase, falling_times_are_pooled);
    tcase_add_test(tcase, pooling_is_the_nearest_monotone_curve);
    tcase_add_test(tcase, pairs_are_the_first_of_their_class);
    tcase_add_test(tcase, reports_survive_the_wire);
    tcase_add_test(tcase, a_profile_takes_medians_and_the_smallest_host);
    tcase_add_test(tcase, a_burst_is_not_the_capacity);
    tcase_add_test(tcase, substitutes_are_chosen_and_named);
    tcase_add_test(tcase, one_core_computes_and_copies);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
