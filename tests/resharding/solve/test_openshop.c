/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>

#include "comm/base/clock.h"
#include "resharding/solve/bound_relay.h"
#include "resharding/solve/problem.h"

#include "tests/resharding/solve/shop_case.h"
#include "xm_test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SLOW 1
#endif
#endif

/* Instances of each sort; XM_TEST_INSTANCES overrides. */
static int instances(int usual)
{
    const char *text = getenv("XM_TEST_INSTANCES");

    return text != NULL ? atoi(text) : xm_test_rounds(usual);
}

typedef struct {
    int count, within; /* within 1.02 */
    double least, sum, most, seconds, longest;
    int64_t hops;
} summary_t;

/* Schedules, checks, and returns makespan / bound. */
static double ratio_of(const xm_problem_t *problem, const xm_openshop_params_t *params,
                       summary_t *summary)
{
    int64_t count, makespan, bound;
    double ratio, start, seconds;
    xm_hop_t *hops;

    ck_assert_xm_ok(xm_bound_relay(problem, &bound));
    start = xm_clock_seconds();
    ck_assert_xm_ok(xm_schedule_openshop(problem, params, &hops, &count, &makespan));
    seconds = xm_clock_seconds() - start;
    shop_check(problem, hops, count, makespan);
    free(hops);
    ck_assert_int_ge(makespan, bound);
    ratio = (double)makespan / (double)bound;
    summary->least = summary->count == 0 || ratio < summary->least ? ratio : summary->least;
    summary->most = ratio > summary->most ? ratio : summary->most;
    summary->sum += ratio;
    summary->seconds += seconds;
    summary->longest = seconds > summary->longest ? seconds : summary->longest;
    summary->hops += count;
    summary->within += ratio <= 1.02;
    ++summary->count;
    return ratio;
}

static void print_summary(const char *name, const summary_t *s)
{
    (void)printf(
        "%s: %d instances, makespan / bound min %.4f mean %.4f worst %.4f, %.1f %% within 1.02; "
        "%.2f ms mean, %.1f ms worst, %.0f hops mean\n",
        name, s->count, s->least, s->sum / s->count, s->most, 100.0 * s->within / s->count,
        1e3 * s->seconds / s->count, 1e3 * s->longest, (double)s->hops / s->count);
    (void)fflush(stdout);
}

static void run_kind(const char *name, shop_kind_t kind, bool equal, int usual, double limit,
                     double share)
{
    static const int sizes[] = {3, 8, 24, 64};
    random_t random = {(uint64_t)kind * 2 + equal + 1};
    xm_openshop_params_t params = {.piece_bytes = 1024};
    summary_t summary = {0};

    for (int i = instances(usual); i > 0; --i) {
        uint64_t state = random.state;
        shop_case_t c;
        double ratio;

        shop_case_create(&random, kind, sizes[i % 4], equal, &c);
        ratio = ratio_of(&c.problem, &params, &summary);
        ck_assert_msg(ratio <= limit, "%s, state %llu: %.4f times the bound", name,
                      (unsigned long long)state, ratio);
        shop_case_destroy(&c);
    }
    print_summary(name, &summary);
    ck_assert(summary.within >= share * summary.count);
}

START_TEST(equal_random)
{
    run_kind("equal NICs, random", SHOP_RANDOM, true, 100, 1.02, 1);
}
END_TEST

START_TEST(equal_layouts)
{
    run_kind("equal NICs, layouts", SHOP_LAYOUT, true, 100, 1.02, 1);
}
END_TEST

START_TEST(equal_unicast)
{
    run_kind("equal NICs, unicast", SHOP_UNICAST, true, 100, 1.0001, 1);
}
END_TEST

START_TEST(unequal_random)
{
    run_kind("unequal NICs, random", SHOP_RANDOM, false, 50, 1.10, 0.9);
}
END_TEST

START_TEST(unequal_layouts)
{
    run_kind("unequal NICs, layouts", SHOP_LAYOUT, false, 50, 1.10, 0.9);
}
END_TEST

START_TEST(unequal_unicast)
{
    run_kind("unequal NICs, unicast", SHOP_UNICAST, false, 100, 1.10, 0.9);
}
END_TEST

static bool inside(const int *hosts, int count, unsigned set)
{
    for (int i = 0; i < count; ++i) {
        if ((set >> hosts[i] & 1) == 0) {
            return false;
        }
    }
    return true;
}

/* The bound by trying all sets of hosts: what must leave inside a set, over the set's egress. */
static double bound_by_sets(const xm_problem_t *problem)
{
    int hosts = xm_network_hosts(problem->network);
    double longest = 0;

    for (unsigned set = 1; set < 1u << hosts; ++set) {
        double bytes = 0, rate = 0;

        for (int h = 0; h < hosts; ++h) {
            rate += (set >> h & 1) != 0 ? xm_network_egress(problem->network, h) : 0;
        }
        for (int64_t d = 0; d < problem->count; ++d) {
            const xm_demand_t *demand = &problem->demands[d];
            bool held = inside(demand->holders, demand->holder_count, set);
            bool known = held && inside(demand->receivers, demand->receiver_count, set);

            bytes += held ? (double)demand->bytes : 0;
            bytes += known ? (double)demand->bytes * (demand->receiver_count - 1) : 0;
        }
        longest = fmax(longest, bytes * 1e9 / rate);
    }
    for (int h = 0; h < hosts; ++h) {
        double bytes = 0;

        for (int64_t d = 0; d < problem->count; ++d) {
            const xm_demand_t *demand = &problem->demands[d];

            for (int i = 0; i < demand->receiver_count; ++i) {
                bytes += demand->receivers[i] == h ? (double)demand->bytes : 0;
            }
        }
        longest = fmax(longest, bytes * 1e9 / xm_network_ingress(problem->network, h));
    }
    return longest;
}

START_TEST(bound_is_that_of_the_worst_set)
{
    random_t random = {77};

    for (int i = 0; i < xm_test_rounds(200); ++i) {
        shop_case_t c;
        int64_t bound;

        shop_case_create(&random, i % 2 == 0 ? SHOP_RANDOM : SHOP_LAYOUT, 8, i % 3 == 0, &c);
        ck_assert_xm_ok(xm_bound_relay(&c.problem, &bound));
        /* Hosts send whole bytes, so the flow may need a few ns more than the sets say. */
        ck_assert_double_ge_tol((double)bound, bound_by_sets(&c.problem), 0.5);
        ck_assert_double_le_tol((double)bound, bound_by_sets(&c.problem), 12);
        shop_case_destroy(&c);
    }
}
END_TEST

START_TEST(what_is_given_wrong_is_refused)
{
    int hosts[] = {0, 1};
    shop_case_t c;
    random_t random = {3};
    xm_demand_t demand = {0, &hosts[0], &hosts[1], 1, 1};
    xm_openshop_params_t params = {0};
    xm_problem_t problem;
    int64_t count = -7, makespan = -7;
    xm_hop_t *hops = NULL;

    shop_case_create(&random, SHOP_UNICAST, 8, true, &c);
    problem = (xm_problem_t){c.network, &demand, 1};
    ck_assert_xm_fails(xm_schedule_openshop(&problem, &params, &hops, &count, &makespan),
                       XM_ERR_INVALID_ARGUMENT, "0 bytes");
    demand.bytes = INT64_C(1) << 60;
    ck_assert_xm_fails(xm_schedule_openshop(&problem, &params, &hops, &count, &makespan),
                       XM_ERR_UNSUPPORTED, "2^52");
    ck_assert(hops == NULL && count == -7 && makespan == -7);
    problem.count = 0;
    ck_assert_xm_ok(xm_schedule_openshop(&problem, &params, &hops, &count, &makespan));
    ck_assert(count == 0 && makespan == 0);
    free(hops);
    shop_case_destroy(&c);
}
END_TEST

START_TEST(equal_calls_give_equal_schedules)
{
    random_t random = {21};

    for (int i = 0; i < xm_test_rounds(20); ++i) {
        xm_openshop_params_t params = {.piece_bytes = 4096, .seed = 5};
        int64_t count[2], makespan[2];
        xm_hop_t *hops[2];
        shop_case_t c;

        shop_case_create(&random, SHOP_LAYOUT, 24, i % 2 == 0, &c);
        for (int k = 0; k < 2; ++k) {
            ck_assert_xm_ok(
                xm_schedule_openshop(&c.problem, &params, &hops[k], &count[k], &makespan[k]));
        }
        ck_assert(count[0] == count[1] && makespan[0] == makespan[1]);
        for (int64_t h = 0; h < count[0]; ++h) {
            ck_assert(hops[0][h].start_ns == hops[1][h].start_ns &&
                      hops[0][h].demand == hops[1][h].demand &&
                      hops[0][h].first == hops[1][h].first && hops[0][h].end == hops[1][h].end &&
                      hops[0][h].parent == hops[1][h].parent &&
                      hops[0][h].sender == hops[1][h].sender &&
                      hops[0][h].receiver == hops[1][h].receiver);
        }
        free(hops[0]);
        free(hops[1]);
        shop_case_destroy(&c);
    }
}
END_TEST

/* `hosts` hosts of one rate, `demands` alike: holders are `groups` groups of `held`, receivers the
 * last `needed` hosts. */
static double run_grid(const char *name, int hosts, int demands, int groups, int held, int needed,
                       int64_t bytes)
{
    xm_network_params_t network = XM_NETWORK_PARAMS_INIT;
    int *host_of_rank = malloc((size_t)hosts * sizeof(int));
    xm_demand_t *demand = malloc((size_t)demands * sizeof(*demand));
    xm_openshop_params_t params = {0};
    summary_t summary = {0};
    xm_problem_t problem;
    xm_network_t *created;
    double ratio;

    ck_assert(host_of_rank != NULL && demand != NULL);
    for (int h = 0; h < hosts; ++h) {
        host_of_rank[h] = h;
    }
    for (int d = 0; d < demands; ++d) {
        demand[d] = (xm_demand_t){bytes, &host_of_rank[d % groups * held],
                                  &host_of_rank[hosts - needed], held, needed};
    }
    network.ranks = hosts;
    network.host_of_rank = host_of_rank;
    network.nic_bandwidth = 12.5e9;
    network.host_bandwidth = 1e11;
    ck_assert_xm_ok(xm_network_create(&network, &created));
    problem = (xm_problem_t){created, demand, demands};
    ratio = ratio_of(&problem, &params, &summary);
    print_summary(name, &summary);
    ck_assert_int_le(summary.hops, 3000000);
    xm_network_destroy(created);
    free(demand);
    free(host_of_rank);
    return ratio;
}

START_TEST(broadcasts_meet_the_bound)
{
    ck_assert(run_grid("1 to 7", 8, 1, 1, 1, 7, INT64_C(1) << 30) <= 1.01);
    ck_assert(run_grid("1 to 31", 32, 1, 1, 1, 31, INT64_C(1) << 30) <= 1.01);
    ck_assert(run_grid("1 to 63", 64, 1, 1, 1, 63, INT64_C(1) << 30) <= 1.02);
    ck_assert(run_grid("4 groups of 8 to 32", 64, 16, 4, 8, 32, INT64_C(1) << 28) <= 1.01);
}
END_TEST

/* Hosts 0 and 2 in one rack, 1, 3 and 5 in the other, whose uplink is half as fast as a NIC: every
 * byte crosses it once, in the time that the slow uplink needs for that. */
START_TEST(racks_get_every_byte_once)
{
    static const int hosts[] = {0, 1, 2, 3, 4, 5}, receivers[] = {1, 2, 3, 5};
    static const int racks[] = {0, 1, 0, 1, 0, 1};
    const xm_demand_t demand = {INT64_C(1) << 30, hosts, receivers, 1, 4};
    xm_network_params_t network = XM_NETWORK_PARAMS_INIT;
    xm_openshop_params_t params = {0};
    int64_t count, makespan, crossing = 0;
    xm_problem_t problem = {NULL, &demand, 1};
    xm_network_t *created;
    xm_hop_t *hops;

    network.ranks = 6;
    network.host_of_rank = hosts;
    network.rack_of_host = racks;
    network.nic_bandwidth = 2e9;
    network.uplink_bandwidth = 1e9;
    network.host_bandwidth = 1e11;
    ck_assert_xm_ok(xm_network_create(&network, &created));
    problem.network = created;
    ck_assert_xm_ok(xm_schedule_openshop(&problem, &params, &hops, &count, &makespan));
    shop_check(&problem, hops, count, makespan);
    for (int64_t h = 0; h < count; ++h) {
        crossing +=
            racks[hops[h].sender] != racks[hops[h].receiver] ? hops[h].end - hops[h].first : 0;
    }
    ck_assert_int_eq(crossing, demand.bytes);
    ck_assert(makespan >= demand.bytes && (double)makespan <= 1.02 * (double)demand.bytes);
    free(hops);
    xm_network_destroy(created);
}
END_TEST

/* The two broadcasts have two to three million hops each: what instruments every access checks the
 * first problem alone, and broadcasts to 64 hosts above. */
START_TEST(many_hosts_take_little_time)
{
#ifdef SLOW
    ck_assert(run_grid("128 to 128", 256, 64, 2, 64, 128, INT64_C(1) << 28) <= 1.002);
#else
    int hosts = xm_test_rounds(2) < 2 ? 256 : 512;

    ck_assert(run_grid("512 to 512", 2 * hosts, 64, hosts / 64, 64, hosts, INT64_C(1) << 28) <=
              1.002);
    ck_assert(run_grid("1 to 511", hosts, 1, 1, 1, hosts - 1, INT64_C(4) << 30) <= 1.02);
    ck_assert(run_grid("8 to 504", hosts, 8, 8, 1, hosts - 8, INT64_C(1) << 30) <= 1.02);
#endif
}
END_TEST

START_TEST(dense_unicast)
{
    static const int sides[] = {64, 512};

    for (int i = 0; i < 2; ++i) {
        random_t random = {5};
        int n = sides[i], *hosts = malloc(2 * (size_t)n * sizeof(int));
        xm_network_params_t network = XM_NETWORK_PARAMS_INIT;
        xm_demand_t *demand = malloc((size_t)n * (size_t)n * sizeof(*demand));
        xm_openshop_params_t params = {0};
        summary_t summary = {0};
        xm_network_t *created;
        xm_problem_t problem;

#ifdef SLOW
        if (n > 64) {
            n = 64;
        }
#endif
        ck_assert(hosts != NULL && demand != NULL);
        for (int h = 0; h < 2 * n; ++h) {
            hosts[h] = h;
        }
        for (int d = 0; d < n * n; ++d) {
            demand[d] = (xm_demand_t){random_int(&random, 1 << 20, 1 << 24), &hosts[d / n],
                                      &hosts[n + d % n], 1, 1};
        }
        network.ranks = 2 * n;
        network.host_of_rank = hosts;
        network.nic_bandwidth = 12.5e9;
        network.host_bandwidth = 1e11;
        ck_assert_xm_ok(xm_network_create(&network, &created));
        problem = (xm_problem_t){created, demand, (int64_t)n * n};
        ck_assert(ratio_of(&problem, &params, &summary) <= 1.0001);
        print_summary("all to all", &summary);
        xm_network_destroy(created);
        free(demand);
        free(hosts);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("schedule_openshop");
    TCase *equal = tcase_create("equal"), *unequal = tcase_create("unequal");
    TCase *other = tcase_create("other");

    tcase_set_timeout(equal, 3600);
    tcase_set_timeout(unequal, 3600);
    tcase_set_timeout(other, 3600);
    tcase_add_test(equal, equal_random);
    tcase_add_test(equal, equal_layouts);
    tcase_add_test(equal, equal_unicast);
    tcase_add_test(unequal, unequal_random);
    tcase_add_test(unequal, unequal_layouts);
    tcase_add_test(unequal, unequal_unicast);
    tcase_add_test(other, broadcasts_meet_the_bound);
    tcase_add_test(other, racks_get_every_byte_once);
    tcase_add_test(other, many_hosts_take_little_time);
    tcase_add_test(other, dense_unicast);
    tcase_add_test(other, bound_is_that_of_the_worst_set);
    tcase_add_test(other, what_is_given_wrong_is_refused);
    tcase_add_test(other, equal_calls_give_equal_schedules);
    suite_add_tcase(suite, equal);
    suite_add_tcase(suite, unequal);
    suite_add_tcase(suite, other);
    return xm_test_run(suite);
}
