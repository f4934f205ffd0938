/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/base/clock.h"
#include "resharding/solve/problem.h"

#include <stdio.h>

#include "resharding/solve/dominance.h"
#include "resharding/solve/exclusive.h"

#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

enum { MAX_HOSTS = 512, MAX_DEMANDS = 30000, GIB = 1 << 30 };

/* A problem and the arrays behind it. */
typedef struct instance {
    xm_network_t *network;
    xm_problem_t problem;
    xm_demand_t *demands;
    int *hosts; /* of holders and receivers, one after the other */
    int64_t used, most;
} instance_t;

static void instance_create(instance_t *t, int hosts, double rate, const double *egress,
                            const double *ingress, int64_t most)
{
    int host_of_rank[MAX_HOSTS];
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;

    for (int h = 0; h < hosts; ++h) {
        host_of_rank[h] = h;
    }
    params.ranks = hosts;
    params.host_of_rank = host_of_rank;
    params.nic_bandwidth = rate;
    params.host_bandwidth = 10 * rate;
    params.egress = egress;
    params.ingress = ingress;
    ck_assert_xm_ok(xm_network_create(&params, &t->network));
    t->demands = calloc((size_t)most, sizeof(xm_demand_t));
    t->hosts = calloc(8 * (size_t)most, sizeof(int));
    ck_assert_ptr_nonnull(t->demands);
    ck_assert_ptr_nonnull(t->hosts);
    t->used = 0;
    t->most = most;
    t->problem = (xm_problem_t){.network = t->network, .demands = t->demands};
}

static void instance_destroy(instance_t *t)
{
    free(t->hosts);
    free(t->demands);
    xm_network_destroy(t->network);
}

/* Sets of hosts as bits, for at most 64 hosts. */
static void add_demand(instance_t *t, int64_t bytes, uint64_t holders, uint64_t receivers)
{
    xm_demand_t *d = &t->demands[t->problem.count++];

    ck_assert(t->problem.count <= t->most &&
              __builtin_popcountll(holders) + __builtin_popcountll(receivers) <= 8);
    d->bytes = bytes;
    d->holders = t->hosts + t->used;
    d->holder_count = __builtin_popcountll(holders);
    for (uint64_t rest = holders; rest != 0; rest &= rest - 1) {
        t->hosts[t->used++] = __builtin_ctzll(rest);
    }
    d->receivers = t->hosts + t->used;
    d->receiver_count = __builtin_popcountll(receivers);
    for (uint64_t rest = receivers; rest != 0; rest &= rest - 1) {
        t->hosts[t->used++] = __builtin_ctzll(rest);
    }
}

static bool is_holder(const xm_demand_t *d, int host)
{
    for (int i = 0; i < d->holder_count; ++i) {
        if (d->holders[i] == host) {
            return true;
        }
    }
    return false;
}

/* Every demand once, from one of its holders. Returns the makespan. (Check writes to a file at
 * every assertion, so there are few in what runs often.) */
static int64_t check_steps(const xm_problem_t *problem, const xm_step_t *steps)
{
    char *seen = calloc((size_t)problem->count + 1, 1);
    int64_t makespan, wrong = 0;

    ck_assert_ptr_nonnull(seen);
    for (int64_t i = 0; i < problem->count; ++i) {
        int64_t d = steps[i].demand;

        if (d < 0 || d >= problem->count || seen[d]++ != 0 ||
            !is_holder(&problem->demands[d], steps[i].sender)) {
            ++wrong;
        }
    }
    free(seen);
    ck_assert_int_eq(wrong, 0);
    ck_assert_xm_ok(xm_steps_makespan(problem, steps, &makespan));
    return makespan;
}

/* ---- every order and every choice of senders --------------------------------------------------
 */

typedef struct brute {
    const xm_problem_t *problem;
    int64_t duration[8][8]; /* by demand and holder */
    int64_t egress[8], ingress[8];
    bool done[8];
    int64_t best;
} brute_t;

static void try_all(brute_t *b, int placed, int64_t end)
{
    if (end >= b->best) {
        return;
    }
    if (placed == b->problem->count) {
        b->best = end;
        return;
    }
    for (int d = 0; d < b->problem->count; ++d) {
        const xm_demand_t *demand = &b->problem->demands[d];

        if (b->done[d]) {
            continue;
        }
        b->done[d] = true;
        for (int i = 0; i < demand->holder_count; ++i) {
            int64_t egress = b->egress[demand->holders[i]], until = egress, saved[8];

            for (int r = 0; r < demand->receiver_count; ++r) {
                saved[r] = b->ingress[demand->receivers[r]];
                until = saved[r] > until ? saved[r] : until;
            }
            until += b->duration[d][i];
            b->egress[demand->holders[i]] = until;
            for (int r = 0; r < demand->receiver_count; ++r) {
                b->ingress[demand->receivers[r]] = until;
            }
            try_all(b, placed + 1, until > end ? until : end);
            b->egress[demand->holders[i]] = egress;
            for (int r = 0; r < demand->receiver_count; ++r) {
                b->ingress[demand->receivers[r]] = saved[r];
            }
        }
        b->done[d] = false;
    }
}

/* `known`: the makespan of some schedule. */
static int64_t optimum(const xm_problem_t *problem, int64_t known)
{
    brute_t b = {.problem = problem, .best = known};

    for (int d = 0; d < problem->count; ++d) {
        for (int i = 0; i < problem->demands[d].holder_count; ++i) {
            b.duration[d][i] = xm_problem_duration(problem, d, problem->demands[d].holders[i]);
        }
    }
    try_all(&b, 0, 0);
    return b.best;
}

/* At most 3 sending and 3 receiving hosts; in a fourth of the instances a host may be both. */
static void random_instance(random_t *random, instance_t *t, int count, bool unequal)
{
    bool both = random_int(random, 0, 3) == 0;
    int senders = random_int(random, 1, 3), receivers = random_int(random, 1, 3);
    int largest = random_int(random, 0, 1) == 0 ? 4 : 1000, hosts = senders + receivers;
    double egress[6], ingress[6];

    for (int h = 0; h < hosts; ++h) {
        egress[h] = 1e9 / random_int(random, 1, 3);
        ingress[h] = 1e9 / random_int(random, 1, 3);
    }
    instance_create(t, hosts, 1e9, unequal ? egress : NULL, unequal ? ingress : NULL, 8);
    while (t->problem.count < count) {
        uint64_t to_send = ((UINT64_C(1) << senders) - 1);
        uint64_t to_receive = ((UINT64_C(1) << receivers) - 1) << senders;
        uint64_t holders = xm_random_next(random) & (both ? (UINT64_C(1) << hosts) - 1 : to_send);
        uint64_t needs = xm_random_next(random) & (both ? (UINT64_C(1) << hosts) - 1 : to_receive);

        needs &= ~holders;
        if (holders != 0 && needs != 0 && __builtin_popcountll(holders) <= 3 &&
            __builtin_popcountll(needs) <= 3) {
            add_demand(t, random_int(random, 1, largest) * 100, holders, needs);
        }
    }
}

static xm_status_t steps_bound(const xm_problem_t *problem, int64_t *bound_ns)
{
    xm_exclusive_t *exclusive;
    xm_status_t status;

    ck_assert_xm_ok(xm_exclusive_create(problem, &exclusive));
    status = xm_exclusive_bound(exclusive, bound_ns);
    xm_exclusive_destroy(exclusive);
    return status;
}

/* What the search makes of the naive schedule with no bound but its own. */
static int64_t search_from_naive(const xm_problem_t *problem)
{
    xm_exclusive_t *exclusive;
    xm_step_t steps[8];
    int64_t makespan;
    bool optimal;

    ck_assert_xm_ok(xm_exclusive_create(problem, &exclusive));
    ck_assert_xm_ok(xm_schedule_naive(problem, steps));
    makespan = check_steps(problem, steps);
    ck_assert_xm_ok(xm_exclusive_search(exclusive, 0, 0, steps, makespan, &optimal));
    ck_assert(optimal);
    xm_exclusive_destroy(exclusive);
    return check_steps(problem, steps);
}

START_TEST(the_search_finds_the_optimum_of_small_instances)
{
    random_t random = {11};
    int instances = xm_test_rounds(100000), tight = 0, greedy_best = 0;

    for (int i = 0; i < instances; ++i) {
        instance_t t;
        xm_step_t steps[8];
        int64_t bound, best, naive, greedy, dfs;
        bool optimal;

        random_instance(&random, &t, random_int(&random, 1, i % 10 == 0 ? 6 : 5), i % 5 == 0);
        best = optimum(&t.problem, INT64_MAX);
        ck_assert_xm_ok(steps_bound(&t.problem, &bound));
        ck_assert_msg(bound <= best, "instance %d: bound %lld, optimum %lld", i, (long long)bound,
                      (long long)best);
        ck_assert_xm_ok(xm_schedule_naive(&t.problem, steps));
        naive = check_steps(&t.problem, steps);
        ck_assert_xm_ok(xm_schedule_balance(&t.problem, steps));
        ck_assert_int_ge(check_steps(&t.problem, steps), best);
        ck_assert_xm_ok(xm_schedule_greedy(&t.problem, 1, steps));
        greedy = check_steps(&t.problem, steps);
        ck_assert_int_ge(greedy, best);
        ck_assert_int_le(greedy, naive);
        ck_assert_xm_ok(xm_schedule_dfs(&t.problem, 1, 0, steps, &optimal));
        dfs = check_steps(&t.problem, steps);
        ck_assert_msg(dfs == best, "instance %d: dfs %lld, optimum %lld", i, (long long)dfs,
                      (long long)best);
        ck_assert(optimal);
        ck_assert_msg(search_from_naive(&t.problem) == best, "instance %d", i);
        tight += bound == best;
        greedy_best += greedy == best;
        instance_destroy(&t);
    }
    printf("bound tight in %.2f %%, greedy optimal in %.2f %% of %d instances\n",
           100.0 * tight / instances, 100.0 * greedy_best / instances, instances);
    ck_assert_int_ge(tight, instances / 10 * 9);
    ck_assert_int_ge(greedy_best, instances / 100 * 98);
}
END_TEST

START_TEST(the_search_alone_finds_the_optimum_of_seven_demands)
{
    random_t random = {29};

    for (int i = 0; i < xm_test_rounds(3000); ++i) {
        instance_t t;
        xm_step_t steps[8];

        random_instance(&random, &t, 7, i % 4 != 0);
        ck_assert_xm_ok(xm_schedule_greedy(&t.problem, 1, steps));
        ck_assert_msg(search_from_naive(&t.problem) ==
                          optimum(&t.problem, check_steps(&t.problem, steps)),
                      "instance %d", i);
        instance_destroy(&t);
    }
}
END_TEST

/* Makespans in units of a GiB's time on a 10 Gb/s NIC. */
typedef struct paper_case {
    double naive, balance, greedy, greedy_most, dfs;
} paper_case_t;

static const paper_case_t paper_cases[10] = {
    [1] = {1, 1, 1, 1, 1},     [2] = {2, 1, 1, 1, 1},
    [3] = {1.5, 1.5, 1, 1, 1}, [4] = {1.875, 1.875, 1, 1, 1},
    [5] = {2, 1.5, 1, 1, 1},   [6] = {1.992, 1.992, 0.996, 1.328, 0.996},
    [7] = {2, 2, 2, 2, 2},     [8] = {2, 2, 2, 2, 2},
    [9] = {1.5, 1.5, 1, 1, 1},
};

/* The hosts' view of the paper's cases, in the order (destination tile, source slice). */
static void paper_instance(int number, instance_t *t)
{
    const int64_t row = 1024 * 170 * 4, half = GIB / 2;

    instance_create(t, 5, 1.25e9, NULL, NULL, 64);
    switch (number) {
    case 1:
        add_demand(t, GIB, 1, 4);
        add_demand(t, GIB, 2, 8);
        break;
    case 2:
        add_demand(t, GIB, 3, 4);
        add_demand(t, GIB, 3, 8);
        break;
    case 4:
        for (int i = 0; i < 64; ++i) {
            add_demand(t, GIB / 32, UINT64_C(1) << i % 8 / 4, UINT64_C(4) << i / 32);
        }
        break;
    case 6:
        add_demand(t, 1024 * row, 1, 4);
        add_demand(t, 512 * row, 1, 8);
        add_demand(t, 512 * row, 2, 8);
        add_demand(t, 1024 * row, 2, 16);
        break;
    case 7:
    case 8:
        for (int i = 0; i < 4; ++i) {
            add_demand(t, half, 1, 6);
        }
        break;
    default: /* 3, 5 and 9 */
        for (int i = 0; i < 4; ++i) {
            add_demand(t, half, number == 5 ? 3 : UINT64_C(1) << i % 2, UINT64_C(4) << i / 2);
        }
    }
}

static void assert_within(int number, const char *what, const xm_problem_t *problem,
                          const xm_step_t *steps, double least, double most)
{
    double ns = (double)check_steps(problem, steps), unit = GIB / 1.25;

    ck_assert_msg(ns >= 0.99 * least * unit && ns <= 1.01 * most * unit,
                  "case %d, %s: %.4f, expected %.3f to %.3f", number, what, ns / unit, least, most);
}

START_TEST(the_papers_cases_take_what_the_model_says)
{
    const paper_case_t *expected = &paper_cases[_i];
    instance_t t;
    xm_step_t steps[64];
    bool optimal;

    paper_instance(_i, &t);
    ck_assert_xm_ok(xm_schedule_naive(&t.problem, steps));
    assert_within(_i, "naive", &t.problem, steps, expected->naive, expected->naive);
    ck_assert_xm_ok(xm_schedule_balance(&t.problem, steps));
    assert_within(_i, "balance", &t.problem, steps, expected->balance, expected->balance);
    for (uint64_t seed = 0; seed < 20; ++seed) {
        ck_assert_xm_ok(xm_schedule_greedy(&t.problem, seed, steps));
        assert_within(_i, "greedy", &t.problem, steps, expected->greedy, expected->greedy_most);
    }
    ck_assert_xm_ok(xm_schedule_dfs(&t.problem, 1, 100000, steps, &optimal));
    assert_within(_i, "dfs", &t.problem, steps, expected->dfs, expected->dfs);
    ck_assert(optimal);
    instance_destroy(&t);
}
END_TEST

/* Every demand between `groups` of hosts each holding the same, and one to three receivers. */
static void large_instance(random_t *random, instance_t *t, int hosts, int count, bool unequal)
{
    double egress[MAX_HOSTS], ingress[MAX_HOSTS];

    for (int h = 0; h < hosts; ++h) {
        egress[h] = 1e9 * random_int(random, 1, 4);
        ingress[h] = 1e9 * random_int(random, 1, 4);
    }
    instance_create(t, hosts, 1e9, unequal ? egress : NULL, unequal ? ingress : NULL, count);
    for (int i = 0; i < count; ++i) {
        xm_demand_t *d = &t->demands[t->problem.count++];
        int half = hosts / 2, copies = 1 << random_int(random, 0, half < 4 ? 1 : 2);
        int first = random_int(random, 0, half / copies - 1) * copies;
        int spread = random_int(random, 1, hosts - half < 3 ? hosts - half : 3);
        int to = random_int(random, half, hosts - spread);

        d->bytes = random_int(random, 1, 64) * INT64_C(65536);
        d->holders = t->hosts + t->used;
        d->holder_count = copies;
        for (int k = 0; k < copies; ++k) {
            t->hosts[t->used++] = first + k;
        }
        d->receivers = t->hosts + t->used;
        d->receiver_count = spread;
        for (int k = 0; k < spread; ++k) {
            t->hosts[t->used++] = to + k;
        }
    }
}

/* Schedules of a few hosts and up to 24 demands: what the search adds to greedy, and at what cost.
 */
START_TEST(the_search_improves_on_greedy_and_proves_it)
{
    random_t random = {5};
    int instances = xm_test_rounds(2000), certified = 0, proved = 0, improved = 0;

    for (int i = 0; i < instances; ++i) {
        instance_t t;
        xm_step_t steps[24];
        int64_t bound, greedy, dfs;
        bool optimal;

        large_instance(&random, &t, random_int(&random, 4, 10), random_int(&random, 6, 24), i % 2);
        ck_assert_xm_ok(steps_bound(&t.problem, &bound));
        ck_assert_xm_ok(xm_schedule_greedy(&t.problem, 5, steps));
        greedy = check_steps(&t.problem, steps);
        ck_assert_xm_ok(xm_schedule_dfs(&t.problem, 5, 1000, steps, &optimal));
        dfs = check_steps(&t.problem, steps);
        ck_assert_int_le(bound, dfs);
        ck_assert_int_le(dfs, greedy);
        certified += greedy == bound;
        improved += dfs < greedy;
        proved += optimal;
        instance_destroy(&t);
    }
    printf("of %d instances greedy meets the bound in %d, 1000 nodes improve on it in %d and prove "
           "the optimum in %d\n",
           instances, certified, improved, proved);
    ck_assert_int_ge(proved, certified);
}
END_TEST

START_TEST(large_problems_take_bounded_work)
{
    static const int shape[][3] = {{8, 40, 0},     {16, 100, 1},    {64, 1000, 0},
                                   {64, 1000, 1},  {32, 4096, 0},   {512, 4096, 0},
                                   {512, 4096, 1}, {512, 30000, 0}, {64, 30000, 0}};
    random_t random = {7};
    xm_step_t *steps = malloc(MAX_DEMANDS * sizeof(*steps));

    for (size_t i = 0; i < sizeof(shape) / sizeof(*shape); ++i) {
        instance_t t;
        int64_t bound, balance, greedy, dfs;
        double began, greedy_ms, dfs_ms;
        bool optimal;

        large_instance(&random, &t, shape[i][0], shape[i][1], shape[i][2] != 0);
        ck_assert_xm_ok(steps_bound(&t.problem, &bound));
        ck_assert_xm_ok(xm_schedule_balance(&t.problem, steps));
        balance = check_steps(&t.problem, steps);
        began = 1e3 * xm_clock_seconds();
        ck_assert_xm_ok(xm_schedule_greedy(&t.problem, 5, steps));
        greedy_ms = 1e3 * xm_clock_seconds() - began;
        greedy = check_steps(&t.problem, steps);
        began = 1e3 * xm_clock_seconds();
        ck_assert_xm_ok(xm_schedule_dfs(&t.problem, 5, 20000, steps, &optimal));
        dfs_ms = 1e3 * xm_clock_seconds() - began;
        dfs = check_steps(&t.problem, steps);
        printf("%d hosts, %d demands%s: balance %.4f, greedy %.4f (%.1f ms), dfs %.4f of the bound "
               "(%.1f ms%s)\n",
               shape[i][0], shape[i][1], shape[i][2] ? ", unequal" : "",
               (double)balance / (double)bound, (double)greedy / (double)bound, greedy_ms,
               (double)dfs / (double)bound, dfs_ms, optimal ? ", proved" : "");
        ck_assert_int_le(bound, dfs);
        ck_assert_int_le(dfs, greedy);
        ck_assert_int_le(greedy, balance);
        ck_assert(!optimal || dfs == bound || shape[i][1] <= 64);
        instance_destroy(&t);
    }
    free(steps);
}
END_TEST

START_TEST(equal_seeds_give_equal_schedules)
{
    random_t random = {3};

    for (int i = 0; i < xm_test_rounds(200); ++i) {
        instance_t t;
        xm_step_t first[40], again[40];
        bool optimal;

        large_instance(&random, &t, random_int(&random, 4, 12), random_int(&random, 1, 40),
                       i % 2 == 1);
        ck_assert_xm_ok(xm_schedule_greedy(&t.problem, 9, first));
        ck_assert_xm_ok(xm_schedule_greedy(&t.problem, 9, again));
        for (int64_t s = 0; s < t.problem.count; ++s) {
            ck_assert_int_eq(first[s].demand, again[s].demand);
            ck_assert_int_eq(first[s].sender, again[s].sender);
        }
        ck_assert_xm_ok(xm_schedule_dfs(&t.problem, 9, 500, first, &optimal));
        ck_assert_xm_ok(xm_schedule_dfs(&t.problem, 9, 500, again, &optimal));
        for (int64_t s = 0; s < t.problem.count; ++s) {
            ck_assert_int_eq(first[s].demand, again[s].demand);
            ck_assert_int_eq(first[s].sender, again[s].sender);
        }
        instance_destroy(&t);
    }
}
END_TEST

START_TEST(steps_start_in_list_order_as_soon_as_hosts_are_free)
{
    instance_t t;
    int64_t makespan, bound;
    xm_step_t steps[3] = {{0, 0}, {1, 1}, {2, 0}};
    const double egress[4] = {1e9, 0.5e9, 1e9, 1e9}, ingress[4] = {1e9, 1e9, 1e9, 0.25e9};

    instance_create(&t, 4, 1e9, egress, ingress, 3);
    ck_assert_xm_ok(xm_steps_makespan(&t.problem, steps, &makespan));
    ck_assert_int_eq(makespan, 0);
    ck_assert_xm_ok(steps_bound(&t.problem, &bound));
    ck_assert_int_eq(bound, 0);
    add_demand(&t, 100, 1, 4);  /* 0 → 2: 100 ns */
    add_demand(&t, 100, 3, 4);  /* {0, 1} → 2: 100 ns from 0, 200 ns from 1 */
    add_demand(&t, 100, 1, 12); /* 0 → {2, 3}: 400 ns because of 3 */
    ck_assert_int_eq(xm_problem_duration(&t.problem, 0, 0), 100);
    ck_assert_int_eq(xm_problem_duration(&t.problem, 1, 0), 100);
    ck_assert_int_eq(xm_problem_duration(&t.problem, 1, 1), 200);
    ck_assert_int_eq(xm_problem_duration(&t.problem, 2, 0), 400);
    ck_assert_xm_ok(xm_steps_makespan(&t.problem, steps, &makespan));
    ck_assert_int_eq(makespan, 700);
    ck_assert_xm_ok(steps_bound(&t.problem, &bound));
    ck_assert_int_eq(bound, 600);
    instance_destroy(&t);
}
END_TEST

START_TEST(a_state_is_seen_when_no_time_is_later)
{
    xm_dominance_t *seen;

    ck_assert_xm_ok(xm_dominance_create(3, 2, &seen));
    ck_assert(!xm_dominance_seen(seen, 5, (int64_t[]){10, 20}));
    ck_assert(xm_dominance_seen(seen, 5, (int64_t[]){10, 20}));
    ck_assert(xm_dominance_seen(seen, 5, (int64_t[]){11, 20}));
    ck_assert(xm_dominance_seen(seen, 5, (int64_t[]){10, 21}));
    ck_assert(!xm_dominance_seen(seen, 4, (int64_t[]){10, 20})); /* other things left */
    ck_assert(!xm_dominance_seen(seen, 5, (int64_t[]){9, 21}));
    ck_assert(!xm_dominance_seen(seen, 5, (int64_t[]){30, 19}));
    ck_assert(xm_dominance_seen(seen, 5, (int64_t[]){30, 19}));
    for (int i = 0; i < 1000; ++i) { /* more than there is room for */
        ck_assert(!xm_dominance_seen(seen, 5, (int64_t[]){2000 + i, -i}));
    }
    xm_dominance_destroy(seen);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("schedule_exclusive");
    TCase *exclusive = tcase_create("exclusive");

    tcase_set_timeout(exclusive, 120);
    tcase_add_test(exclusive, steps_start_in_list_order_as_soon_as_hosts_are_free);
    tcase_add_test(exclusive, a_state_is_seen_when_no_time_is_later);
    tcase_add_loop_test(exclusive, the_papers_cases_take_what_the_model_says, 1, 10);
    tcase_add_test(exclusive, equal_seeds_give_equal_schedules);
    tcase_add_test(exclusive, the_search_improves_on_greedy_and_proves_it);
    tcase_add_test(exclusive, large_problems_take_bounded_work);
    tcase_add_test(exclusive, the_search_finds_the_optimum_of_small_instances);
    tcase_add_test(exclusive, the_search_alone_finds_the_optimum_of_seven_demands);
    suite_add_tcase(suite, exclusive);
    return xm_test_run(suite);
}
