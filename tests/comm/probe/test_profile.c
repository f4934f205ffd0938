/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/probe/profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "comm/base.h"
#include "comm/probe/compute.h"
#include "xm_test.h"

START_TEST(sizes_grow_by_four)
{
    uint64_t sizes[XM_CURVE_MAX_POINTS];

    ck_assert_int_eq(xm_curve_sizes(UINT64_C(64) << 20, sizes), 12);
    ck_assert_uint_eq(sizes[0], 8);
    ck_assert_uint_eq(sizes[1], 64);
    ck_assert_uint_eq(sizes[2], 256);
    ck_assert_uint_eq(sizes[11], UINT64_C(64) << 20);
    ck_assert_int_eq(xm_curve_sizes(100000, sizes), 7);
    ck_assert_uint_eq(sizes[6], 65536);
    ck_assert_int_le(xm_curve_sizes(UINT64_MAX, sizes), XM_CURVE_MAX_POINTS);
}
END_TEST

START_TEST(median_of_odd_and_even_counts)
{
    double values[] = {5, 1, 9, 3};

    ck_assert_double_eq(xm_array_median(values, 1), 5);
    ck_assert_double_eq(xm_array_median(values, 3), 5);
    ck_assert_double_eq(xm_array_median(values, 4), 4);
}
END_TEST

/* Against the definition: how often the interval misses the median of a uniform distribution. */
START_TEST(the_spread_is_a_95_percent_interval)
{
    enum { ROUNDS = 4000 };
    static const int counts[] = {6, 9, 12, 31};
    const double alike[] = {2, 2, 2, 2, 2, 2}, one[] = {3}, six[] = {9, 10, 10, 10, 10, 12};
    unsigned state = 99;

    ck_assert_double_eq(xm_curve_spread(alike, 6), 0);
    ck_assert_double_eq(xm_curve_spread(one, 1), 1);
    /* Six values: from the smallest to the largest. */
    ck_assert_double_eq_tol(xm_curve_spread(six, 6), 0.2, 1e-12);
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); ++c) {
        int missed = 0;

        for (int round = 0; round < ROUNDS; ++round) {
            double values[31], median, spread;

            for (int i = 0; i < counts[c]; ++i) {
                state = state * 1664525U + 1013904223U;
                values[i] = 1 + (double)(state >> 8) / (1 << 24);
            }
            median = xm_array_median(values, counts[c]);
            spread = xm_curve_spread(values, counts[c]);
            missed += fabs(median - 1.5) > spread * median;
        }
        /* The half-width is the larger of the two sides, so it may miss less often. */
        ck_assert_int_lt(missed, ROUNDS * 6 / 100);
        ck_assert_int_gt(missed, ROUNDS / 1000);
    }
}
END_TEST

static int smooth(const double *seconds, int points, xm_curve_point_t *curve)
{
    double spread[XM_CURVE_MAX_POINTS] = {0};

    for (int i = 0; i < points; ++i) {
        curve[i] = (xm_curve_point_t){(uint64_t)i + 1, seconds[i]};
    }
    return xm_curve_smooth(curve, spread, points);
}

START_TEST(falling_times_are_pooled)
{
    xm_curve_point_t curve[XM_CURVE_MAX_POINTS];

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
        xm_curve_point_t curve[XM_CURVE_MAX_POINTS];
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

static void set_curve(xm_probe_summary_t *summary, xm_link_class_t link, double latency)
{
    xm_probe_curve_t *curve = &summary->curve[link];

    curve->count = 2;
    curve->points[0] = (xm_curve_point_t){8, latency};
    curve->points[1] = (xm_curve_point_t){64, latency + 64e-9};
    curve->spread[0] = 0.5;
    curve->spread[1] = 0.01;
}

/* A rank whose rates do not matter. */
static xm_probe_device_t device_of(double machine, double cores, double machine_cores)
{
    return (xm_probe_device_t){.flops = {[XM_NUMBER_FLOAT32] = {1, 0, 0}},
                               .copy_bandwidth = {1, 0, 0},
                               .host_memory = 1e9,
                               .machine = machine,
                               .cores = cores,
                               .machine_cores = machine_cores};
}

static xm_probe_summary_t summary_of(const xm_probe_device_t *devices, const int *host_of,
                                     int ranks, int hosts)
{
    return (xm_probe_summary_t){.devices = devices,
                                .host_of = host_of,
                                .ranks = ranks,
                                .hosts = hosts,
                                .name = "lab",
                                .conditions = "in a test"};
}

START_TEST(a_profile_takes_medians_and_the_smallest_host)
{
    const int host_of[] = {0, 0, 0, 1, 1};
    xm_probe_device_t devices[5] = {device_of(0, 1, 1)};
    double egress[] = {5e9, 5.1e9}, ingress[] = {5.1e9, 5.05e9};
    xm_probe_summary_t summary = summary_of(devices, host_of, 5, 2);
    xm_cluster_profile_t *profile = NULL;

    for (int rank = 0; rank < 5; ++rank) {
        devices[rank].flops[XM_NUMBER_FLOAT32] =
            (xm_probe_figure_t){1e9 * (rank + 1), 0.01, 0.1 * rank};
        devices[rank].flops[XM_NUMBER_BFLOAT16] = (xm_probe_figure_t){2e9 * (rank + 1), 0.09, 0};
        devices[rank].copy_bandwidth = (xm_probe_figure_t){1e10 * (5 - rank), 0.1 * rank, 0};
        devices[rank].host_memory = host_of[rank] == 0 ? 30e9 : 10e9;
        devices[rank].machine = host_of[rank];
    }
    set_curve(&summary, XM_LINK_SELF, 1e-9);
    set_curve(&summary, XM_LINK_INTRA_HOST, 1e-6);
    set_curve(&summary, XM_LINK_INTER_HOST, 1e-5);
    summary.egress = egress;
    summary.ingress = ingress;
    summary.nic_spread = 0.03;
    summary.nic_both_ways = 4e9;
    summary.host_fabric = 9e9;
    summary.host_fabric_spread = 0.11;
    ck_assert_xm_ok(xm_probe_profile(&summary, &profile));
    ck_assert_int_eq(xm_cluster_profile_hosts(profile), 2);
    ck_assert_int_eq(xm_cluster_profile_devices_per_host(profile), 2);
    ck_assert_double_eq(xm_cluster_profile_device_flops(profile), 3e9);
    ck_assert_double_eq(xm_cluster_profile_device(profile).number_flops[XM_NUMBER_FLOAT32], 3e9);
    ck_assert_double_eq(xm_cluster_profile_device(profile).number_flops[XM_NUMBER_BFLOAT16], 6e9);
    /* What no rank has measured is not in the profile. */
    ck_assert_double_eq(xm_cluster_profile_device(profile).number_flops[XM_NUMBER_FLOAT16], 0);
    ck_assert_double_eq(xm_cluster_profile_runtime(profile)->jitter, 0.2);
    ck_assert_double_eq(xm_cluster_profile_device_memory_bandwidth(profile), 3e10);
    ck_assert_double_eq(xm_cluster_profile_device_memory_bytes(profile), 4e9);
    ck_assert_double_eq(xm_cluster_profile_nic_bandwidth(profile), 5.025e9);
    ck_assert(!xm_cluster_profile_hosts_differ(profile));
    ck_assert_double_eq(xm_cluster_profile_nic_spread(profile), 0.03);
    ck_assert_double_eq(xm_cluster_profile_nic_both_ways(profile), 4e9);
    ck_assert_double_eq(xm_cluster_profile_host_fabric(profile), 9e9);
    ck_assert_double_eq(xm_cluster_profile_spread(profile, XM_LINK_INTRA_HOST)[0], 0.5);
    ck_assert_str_eq(xm_cluster_profile_provenance(profile),
                     "measured in a test; hosts have 2 to 3 ranks, the smallest counts; NIC "
                     "capacity from concurrent flows; 3 of 6 points are not known to +-2 %; "
                     "device memory B/s is known to +-20 %; fabric of a host B/s is known to "
                     "+-11 %");
    ck_assert_double_eq(xm_cluster_profile_device(profile).number_spread[XM_NUMBER_BFLOAT16], 0.09);
    ck_assert_double_eq(xm_cluster_profile_device(profile).memory_spread, 0.2);
    xm_cluster_profile_destroy(profile);
    /* A short message was faster than all streams: a burst. */
    egress[0] = egress[1] = ingress[0] = ingress[1] = 1;
    ck_assert_xm_ok(xm_probe_profile(&summary, &profile));
    ck_assert_double_eq(xm_cluster_profile_nic_bandwidth(profile), 1);
    xm_cluster_profile_destroy(profile);
    /* A long one was. */
    summary.curve[XM_LINK_INTER_HOST].points[1] = (xm_curve_point_t){1 << 24, 0.01};
    ck_assert_xm_ok(xm_probe_profile(&summary, &profile));
    ck_assert_double_eq_tol(xm_cluster_profile_nic_bandwidth(profile), (1 << 24) / 0.01, 1);
    ck_assert_ptr_nonnull(
        strstr(xm_cluster_profile_provenance(profile), "from the longest message"));
    ck_assert_double_eq(xm_cluster_profile_nic_spread(profile), 0);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* The three ranks of hosts 0 and 1 are on one machine, each bound to 2 of its 60 processors; those
 * of host 2 may all use its 8. */
START_TEST(hosts_of_a_machine_share_its_processors)
{
    const int host_of[] = {0, 1, 2, 0, 2};
    static const double machines[] = {7, 7, 9, 7, 9}, cores[] = {2, 2, 8, 2, 8};
    xm_probe_device_t devices[5] = {device_of(0, 1, 1)};
    xm_probe_summary_t summary = summary_of(devices, host_of, 5, 3);
    xm_cluster_profile_t *profile = NULL;
    double per_host, nic, host;

    for (int rank = 0; rank < 5; ++rank) {
        devices[rank] = device_of(machines[rank], cores[rank], machines[rank] > 8 ? 8 : 60);
    }
    set_curve(&summary, XM_LINK_SELF, 1e-9);
    summary.nic_cpu = 8e-10;
    summary.host_cpu = 3e-10;
    ck_assert_xm_ok(xm_probe_profile(&summary, &profile));
    xm_cluster_profile_processors(profile, &per_host, &nic, &host);
    ck_assert_double_eq(per_host, 2); /* host 1, with one rank of three */
    ck_assert_double_eq(nic, 4e-10);
    ck_assert_double_eq(host, 1.5e-10);
    xm_cluster_profile_destroy(profile);
    devices[2].machine_cores = devices[4].machine_cores = 1;
    ck_assert_xm_ok(xm_probe_profile(&summary, &profile));
    xm_cluster_profile_processors(profile, &per_host, &nic, &host);
    ck_assert_double_eq(per_host, 1); /* host 2 */
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(hosts_that_differ_have_rates_of_their_own)
{
    const int host_of[] = {0, 1, 2, 3};
    xm_probe_device_t devices[4] = {0};
    double egress[] = {4e9, 2e9, 4e9, 0}, ingress[] = {4.1e9, 2e9, 3e9, 0};
    xm_probe_summary_t summary = summary_of(devices, host_of, 4, 4);
    xm_cluster_profile_t *profile = NULL;
    const char *told;

    for (int rank = 0; rank < 4; ++rank) {
        devices[rank] = device_of(rank, 1, 1);
    }
    set_curve(&summary, XM_LINK_SELF, 1e-9);
    set_curve(&summary, XM_LINK_INTER_HOST, 1e-5);
    summary.egress = egress;
    summary.ingress = ingress;
    ck_assert_xm_ok(xm_probe_profile(&summary, &profile));
    ck_assert_ptr_nonnull(strstr(xm_cluster_profile_provenance(profile),
                                 "no time was left to measure both directions at once"));
    ck_assert(xm_cluster_profile_hosts_differ(profile));
    ck_assert_double_eq(xm_cluster_profile_host_nic_bandwidth(profile, 0), 4e9);
    ck_assert_double_eq(xm_cluster_profile_host_nic_bandwidth(profile, 1), 2e9);
    ck_assert_double_eq(xm_cluster_profile_host_nic_bandwidth(profile, 2), 3e9);
    /* The one that was not measured is typical. */
    ck_assert_double_eq(xm_cluster_profile_host_nic_bandwidth(profile, 3), 3e9);
    ck_assert_double_eq(xm_cluster_profile_nic_bandwidth(profile), 3e9);
    told = xm_cluster_profile_provenance(profile);
    ck_assert_msg(strstr(told, "the NICs of 1 of 4 hosts, which count as typical") != NULL, "%s",
                  told);
    ck_assert_msg(strstr(told,
                         "the NICs of 1 host are faster in one direction (host 2: 4 out, 3 in, "
                         "GB/s)") != NULL,
                  "%s", told);
    ck_assert_msg(strstr(told, "NIC capacity of each host from concurrent flows") != NULL, "%s",
                  told);
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* 1 MiB passes in a burst, 64 MiB at the rate that the NIC is limited to. */
START_TEST(a_burst_is_not_the_capacity)
{
    const int host_of[] = {0, 1};
    const xm_probe_device_t devices[2] = {device_of(0, 1, 1), device_of(1, 1, 1)};
    xm_probe_summary_t summary = summary_of(devices, host_of, 2, 2);
    xm_probe_curve_t *curve = &summary.curve[XM_LINK_INTER_HOST];
    xm_cluster_profile_t *profile = NULL;

    set_curve(&summary, XM_LINK_SELF, 1e-9);
    curve->count = 3;
    curve->points[0] = (xm_curve_point_t){1 << 20, 0.002};
    curve->points[1] = (xm_curve_point_t){1 << 22, 0.04};
    curve->points[2] = (xm_curve_point_t){1 << 26, 0.61};
    ck_assert_xm_ok(xm_probe_profile(&summary, &profile));
    ck_assert_double_eq_tol(xm_cluster_profile_nic_bandwidth(profile), (1 << 26) / 0.61, 1);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(substitutes_are_chosen_and_named)
{
    const int host_of[] = {0};
    const xm_probe_device_t device = device_of(1, 1, 1);
    xm_probe_summary_t summary = summary_of(&device, host_of, 1, 1);
    xm_cluster_profile_t *profile = NULL;

    set_curve(&summary, XM_LINK_SELF, 1e-9);
    ck_assert_xm_ok(xm_probe_profile(&summary, &profile));
    ck_assert_double_eq(xm_cluster_profile_latency(profile, XM_LINK_INTRA_HOST), 1e-9);
    ck_assert_double_eq(xm_cluster_profile_latency(profile, XM_LINK_INTER_HOST), 1e-9);
    ck_assert_ptr_nonnull(strstr(xm_cluster_profile_provenance(profile),
                                 "intra_host is not in this job, the curve of self stands in; "
                                 "inter_host is not in this job, the curve of self stands in"));
    xm_cluster_profile_destroy(profile);
    set_curve(&summary, XM_LINK_INTER_HOST, 1e-5);
    ck_assert_xm_ok(xm_probe_profile(&summary, &profile));
    ck_assert_double_eq(xm_cluster_profile_latency(profile, XM_LINK_INTRA_HOST), 1e-5);
    xm_cluster_profile_destroy(profile);
    summary.curve[XM_LINK_SELF].count = 0;
    ck_assert_xm_fails(xm_probe_profile(&summary, &profile), XM_ERR_INVALID_ARGUMENT,
                       "probe: curves.self has 0 points");
}
END_TEST

START_TEST(one_core_computes_and_copies)
{
    static unsigned char from[1 << 16], to[1 << 16];
    double flops, spread;

    memset(from, 7, sizeof(from));
    flops = xm_probe_flops(XM_NUMBER_FLOAT32, 0.02).value;
    /* Between a slow emulator and twice the fastest core there is. */
    ck_assert_double_gt(flops, 1e7);
    ck_assert_double_lt(flops, 2e12);
    ck_assert_ptr_nonnull(strstr(xm_probe_flops_kind(), "multiply-add"));
    for (int n = XM_NUMBER_FLOAT16; n < XM_NUMBER_COUNT; ++n) {
        xm_probe_figure_t other = xm_probe_flops((xm_number_t)n, 0.02);

        /* Widening costs a few operations, hardware gains a factor of 2 to 8; the rest is for a
         * sanitizer's checks and for 20 ms of a core that others use. */
        ck_assert_msg(other.value == 0 || (other.value > flops / 500 && other.value < flops * 500),
                      "%s: %g of %g", xm_number_name((xm_number_t)n), other.value, flops);
        ck_assert(other.spread >= 0 && other.spread <= 1);
        ck_assert(other.jitter >= 0 && other.jitter < 2);
    }
    ck_assert_double_gt(xm_probe_copy_bandwidth(to, from, sizeof(from), 0.01).value, 1e6);
    ck_assert_mem_eq(to, from, sizeof(from));
    ck_assert_double_lt(xm_probe_copy_seconds(to, from, sizeof(to), 8, 5, &spread),
                        xm_probe_copy_seconds(to, from, sizeof(to), sizeof(from), 5, &spread));
    ck_assert_double_le(spread, 1);
}
END_TEST

static long faults(void)
{
    struct rusage usage;

    ck_assert_int_eq(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_minflt + usage.ru_majflt;
}

/* By the kernel's count: memory of which pages are missing has 8192 faults here. A checker's own
 * pages would count as well. */
START_TEST(no_pages_are_missing_while_copies_are_timed)
{
    const size_t bytes = 32 << 20;
    unsigned char *from = xm_probe_memory(bytes), *to = xm_probe_memory(bytes);
    double spread;
    long before;

    if (getenv("TEST_FEW") != NULL) {
        free(from);
        free(to);
        return;
    }
    ck_assert(from != NULL && to != NULL);
    (void)faults(); /* pages of the code */
    before = faults();
    (void)xm_probe_copy_bandwidth(to, from, bytes, 0.05);
    ck_assert_int_le(faults() - before, 10);
    (void)xm_probe_copy_seconds(to, from, bytes, 1 << 20, 40, &spread);
    ck_assert_int_le(faults() - before, 10);
    free(from);
    free(to);
}
END_TEST

/* Bytes read plus written per second by one pass over arrays, as the STREAM benchmark counts. */
static double stream_rate(char *to, const char *from, size_t bytes)
{
    enum { BLOCK = 4096 };
    double start = xm_clock_seconds();

    for (size_t at = 0; at < bytes; at += BLOCK) {
        memcpy(to + at, from + at, BLOCK);
        __asm__ volatile("" : : "r"(to) : "memory");
    }
    return 2 * (double)bytes / (xm_clock_seconds() - start);
}

/* The memory rate against that of passes over arrays of their own, in turns, the best of each: what
 * else the machine does only makes them slower. Other work on the machine can still change either,
 * so this finds what is wrong by a factor, as missing pages are; bench/memory.sh says how near they
 * are on a quiet one. The first try that agrees counts. */
START_TEST(the_memory_rate_is_that_of_a_pass_over_arrays)
{
    enum { TURNS = 7, TRIES = 5 };
    size_t bytes = xm_probe_cold_bytes(2, 32 << 20);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
    char *arrays = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    unsigned char *from = xm_probe_memory(bytes), *to = xm_probe_memory(bytes);
    double ratio = 0;

    ck_assert(arrays != MAP_FAILED && from != NULL && to != NULL);
    for (int try = 0; try < TRIES && !(ratio > 0.6 && ratio < 1.7); ++try) {
        double probed = 0, streamed = 0;

        memset(arrays, try + 1, bytes);
        for (int turn = 0; turn < TURNS; ++turn) {
            streamed = fmax(streamed, stream_rate(arrays + bytes, arrays, bytes));
            probed = fmax(probed, xm_probe_copy_bandwidth(to, from, bytes, 0.06).value);
        }
        ratio = probed / streamed;
    }
    ck_assert_msg(ratio > 0.6 && ratio < 1.7, "the probe's rate is %.2f of the passes'", ratio);
    free(from);
    free(to);
    (void)munmap(arrays, 2 * bytes);
}
END_TEST

/* Against the definition: every place of the pool once, and none of them the neighbour of the one
 * before. */
START_TEST(places_of_a_pool_take_turns)
{
    enum { POOL = 1 << 16, BYTES = 200, SLOT = 256, SLOTS = POOL / SLOT };
    int visits[SLOTS] = {0}, neighbours = 0;
    size_t before = 0;

    for (uint64_t i = 0; i < SLOTS; ++i) {
        size_t at = xm_probe_place(POOL, BYTES, i);

        ck_assert(at % SLOT == 0 && at + BYTES <= POOL);
        ++visits[at / SLOT];
        neighbours += i > 0 && (at == before + SLOT || before == at + SLOT);
        before = at;
    }
    for (int i = 0; i < SLOTS; ++i) {
        ck_assert_int_eq(visits[i], 1);
    }
    ck_assert_int_lt(neighbours, SLOTS / 16);
    ck_assert_uint_eq(xm_probe_place(BYTES, BYTES, 5), 0);
    ck_assert_uint_ge(2 * xm_probe_cold_bytes(1, 1), 1 << 20);
    ck_assert_uint_ge(xm_probe_cold_bytes(1000000, 3 << 20), 4 << 20);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("probe_profile");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, sizes_grow_by_four);
    tcase_add_test(tcase, median_of_odd_and_even_counts);
    tcase_add_test(tcase, the_spread_is_a_95_percent_interval);
    tcase_add_test(tcase, falling_times_are_pooled);
    tcase_add_test(tcase, pooling_is_the_nearest_monotone_curve);
    tcase_add_test(tcase, pairs_are_the_first_of_their_class);
    tcase_add_test(tcase, a_profile_takes_medians_and_the_smallest_host);
    tcase_add_test(tcase, hosts_of_a_machine_share_its_processors);
    tcase_add_test(tcase, hosts_that_differ_have_rates_of_their_own);
    tcase_add_test(tcase, a_burst_is_not_the_capacity);
    tcase_add_test(tcase, substitutes_are_chosen_and_named);
    tcase_add_test(tcase, one_core_computes_and_copies);
    tcase_add_test(tcase, no_pages_are_missing_while_copies_are_timed);
    tcase_add_test(tcase, the_memory_rate_is_that_of_a_pass_over_arrays);
    tcase_add_test(tcase, places_of_a_pool_take_turns);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
