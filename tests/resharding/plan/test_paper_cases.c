/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The microbenchmarks of MLSys'23 (section 5.1) at full size, on hosts of 4 devices with one 10
 * Gb/s NIC. The expected times are those of the paper's model (a host sends one unit task and
 * receives one at a time), in GiB through one NIC. There a slice that takes t to cross one NIC, to
 * A hosts of B devices, takes A·B·t by send/recv, A·t by local all-gather, t + (1 − 1 / (A·B))·t by
 * global all-gather over several hosts and t over one, and t by broadcast. Where three devices are
 * to share 2^28 elements, all go to each (by global all-gather to 3 × 2 devices, three times one
 * half). Alpa gathers only where a slice goes to one host.
 */
#include <stdio.h>

#include "tests/resharding/plan/random_case.h"
#include "xm_test.h"

static const double unit_ns = 1073741824.0 / 1.25e9 * 1e9;

typedef struct {
    const char *name;
    const char *src_mesh, *src_spec, *dst_mesh, *dst_spec, *shape;
    double bound, naive, balance, greedy[2], dfs; /* of broadcast */
    double send_recv;                             /* what send_recv needs at least */
    double local, global, alpa;                   /* what the published all-gathers need */
} paper_case_t;

static const paper_case_t cases[] = {
    {"1→(1,1)", "1x1", "R", "1x1", "R", "268435456", 1, 1, 1, {1, 1}, 1, 1, 1, 1, 1},
    {"1→(1,2)", "1x1", "R", "1x2", "R", "268435456", 1, 1, 1, {1, 1}, 1, 2, 1, 1, 1},
    {"1→(1,3)", "1x1", "R", "1x3", "R", "268435456", 1, 1, 1, {1, 1}, 1, 3, 3, 3, 3},
    {"1→(1,4)", "1x1", "R", "1x4", "R", "268435456", 1, 1, 1, {1, 1}, 1, 4, 1, 1, 1},
    {"1→(2,2)", "1x1", "R", "2x2", "R", "268435456", 1, 1, 1, {1, 1}, 1, 4, 2, 1.75, 4},
    {"1→(3,2)", "1x1", "R", "3x2", "R", "268435456", 1, 1, 1, {1, 1}, 1, 6, 3, 3, 6},
    {"1→(4,2)", "1x1", "R", "4x2", "R", "268435456", 1, 1, 1, {1, 1}, 1, 8, 4, 1.875, 8},
    {"case 1", "2x4", "S0RR", "2x4", "S0RR", "1024x1024x512", 1, 1, 1, {1, 1}, 1, 4, 1, 1, 1},
    {"case 2", "2x4", "RRR", "2x4", "S0RR", "1024x1024x512", 1, 2, 1, {1, 1}, 1, 4, 1, 1, 1},
    {"case 3", "2x4", "RS0R", "2x4", "S0RR", "1024x1024x512", 1, 1.5, 1.5, {1, 1}, 1, 4, 1, 1, 1},
    {"case 4",
     "2x4",
     "RS01R",
     "2x4",
     "S01RR",
     "1024x1024x512",
     1,
     1.875,
     1.875,
     {1, 1},
     1,
     1,
     1,
     1,
     1},
    {"case 5", "2x4", "S1RR", "2x4", "S0RR", "1024x1024x512", 1, 2, 1.5, {1, 1}, 1, 4, 1, 1, 1},
    {"case 6",
     "2x4",
     "S0RR",
     "3x4",
     "S0RR",
     "3072x1024x170",
     .996,
     1.992,
     1.992,
     {.996, 1.328},
     .996,
     3.984,
     .996,
     .996,
     .996},
    {"case 7", "1x4", "S1RR", "2x4", "RRR", "1024x1024x512", 2, 2, 2, {2, 2}, 2, 16, 4, 3.75, 16},
    {"case 8", "1x4", "S1RR", "2x4", "RRR", "1024x1024x512", 2, 2, 2, {2, 2}, 2, 16, 4, 3.75, 16},
    {"case 9", "2x4", "RS0R", "2x4", "RRS0", "1024x1024x512", 1, 1.5, 1.5, {1, 1}, 1, 4, 1, 1, 1},
};

enum { CASES = sizeof(cases) / sizeof(cases[0]), PER_HOST = 4 };

/* Mesh (hosts, devices): the first devices of each host. */
static xm_layout_t *layout_on(const char *mesh_text, const char *spec_text, const char *shape_text,
                              int first_host, int *hosts)
{
    int ranks[64], count = 0, devices, dims, sizes[2];
    int64_t shape[XM_MAX_DIMS];
    xm_mesh_t *mesh;
    xm_layout_t *layout;
    xm_spec_t spec;

    ck_assert_int_eq(sscanf(mesh_text, "%dx%d", hosts, &devices), 2);
    for (int h = 0; h < *hosts; ++h) {
        for (int d = 0; d < devices; ++d) {
            ranks[count++] = (first_host + h) * PER_HOST + d;
        }
    }
    sizes[0] = *hosts;
    sizes[1] = devices;
    ck_assert_xm_ok(xm_mesh_create(2, sizes, ranks, &mesh));
    ck_assert_xm_ok(xm_spec_parse(spec_text, &spec));
    ck_assert_xm_ok(xm_shape_parse(shape_text, &dims, shape));
    ck_assert_xm_ok(xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, shape, &layout));
    xm_mesh_destroy(mesh);
    return layout;
}

typedef struct {
    const paper_case_t *paper;
    xm_layout_t *src, *dst;
    xm_network_t *network;
    xm_plan_params_t params;
} problem_t;

static void problem_create(const paper_case_t *paper, problem_t *p)
{
    xm_network_params_t network = XM_NETWORK_PARAMS_INIT;
    int src_hosts, dst_hosts, host_of[64];

    p->paper = paper;
    p->src = layout_on(paper->src_mesh, paper->src_spec, paper->shape, 0, &src_hosts);
    p->dst = layout_on(paper->dst_mesh, paper->dst_spec, paper->shape, src_hosts, &dst_hosts);
    network.ranks = (src_hosts + dst_hosts) * PER_HOST;
    for (int r = 0; r < network.ranks; ++r) {
        host_of[r] = r / PER_HOST;
    }
    network.host_of_rank = host_of;
    network.nic_bandwidth = 1.25e9;
    network.nic_latency = 1e-5;
    network.host_bandwidth = 1e11;
    network.host_latency = 1e-6;
    ck_assert_xm_ok(xm_network_create(&network, &p->network));
    p->params = (xm_plan_params_t)XM_PLAN_PARAMS_INIT;
    p->params.src = p->src;
    p->params.dst = p->dst;
    p->params.element_size = 4;
    p->params.network = p->network;
}

static void problem_destroy(problem_t *p)
{
    xm_network_destroy(p->network);
    xm_layout_destroy(p->dst);
    xm_layout_destroy(p->src);
}

/* Plans, prints a line of the table, and returns the makespan in GiB through one NIC. */
static double run(problem_t *p, xm_strategy_t strategy, xm_scheduler_t scheduler, uint64_t seed,
                  double low, double high)
{
    xm_plan_t *plan;
    double makespan, bound;
    bool own;

    p->params.strategy = strategy;
    p->params.scheduler = scheduler;
    p->params.seed = seed;
    ck_assert_xm_ok(xm_plan_create(&p->params, &plan));
    makespan = (double)xm_plan_makespan_ns(plan) / unit_ns;
    bound = (double)xm_plan_bound_ns(plan) / unit_ns;
    own = xm_plan_chosen_scheduler(plan) == scheduler;
    (void)printf("%-8s %-9s %-8s makespan %7.4f GiB = %.4f × bound, expected %.3f to %.3f%s%s\n",
                 p->paper->name, xm_strategy_name(strategy), xm_scheduler_name(scheduler), makespan,
                 makespan / bound, low, high, own ? "" : ", planned by ",
                 own ? "" : xm_scheduler_name(xm_plan_chosen_scheduler(plan)));
    xm_plan_destroy(plan);
    ck_assert_double_eq_tol(bound, p->paper->bound, 0.001 * p->paper->bound);
    ck_assert_double_ge(makespan, bound);
    ck_assert_msg(makespan >= 0.99 * low && makespan <= 1.01 * high,
                  "%s, %s, %s, seed %d: %.4f GiB, not %.3f to %.3f", p->paper->name,
                  xm_strategy_name(strategy), xm_scheduler_name(scheduler), (int)seed, makespan,
                  low, high);
    return makespan;
}

START_TEST(naive_and_balance_take_what_the_model_says)
{
    const paper_case_t *paper = &cases[_i];
    problem_t p;

    problem_create(paper, &p);
    (void)run(&p, XM_STRATEGY_BROADCAST, XM_SCHEDULER_NAIVE, 0, paper->naive, paper->naive);
    (void)run(&p, XM_STRATEGY_BROADCAST, XM_SCHEDULER_BALANCE, 0, paper->balance, paper->balance);
    problem_destroy(&p);
}
END_TEST

START_TEST(greedy_is_in_its_range_and_dfs_no_worse)
{
    const paper_case_t *paper = &cases[_i];
    problem_t p;

    problem_create(paper, &p);
    for (uint64_t seed = 0; seed < 5; ++seed) {
        double greedy = run(&p, XM_STRATEGY_BROADCAST, XM_SCHEDULER_GREEDY, seed, paper->greedy[0],
                            paper->greedy[1]);
        double dfs = run(&p, XM_STRATEGY_BROADCAST, XM_SCHEDULER_DFS, seed, paper->dfs, paper->dfs);

        ck_assert_double_le(dfs, 1.001 * greedy);
    }
    problem_destroy(&p);
}
END_TEST

START_TEST(openshop_and_auto_meet_the_bound)
{
    const paper_case_t *paper = &cases[_i];
    problem_t p;

    problem_create(paper, &p);
    (void)run(&p, XM_STRATEGY_BROADCAST, XM_SCHEDULER_OPENSHOP, 0, paper->bound, paper->bound);
    (void)run(&p, XM_STRATEGY_BROADCAST, XM_SCHEDULER_AUTO, 0, paper->bound, paper->bound);
    (void)run(&p, XM_STRATEGY_ALLGATHER, XM_SCHEDULER_AUTO, 0, paper->bound, paper->bound);
    (void)run(&p, XM_STRATEGY_AUTO, XM_SCHEDULER_AUTO, 0, paper->bound, paper->bound);
    problem_destroy(&p);
}
END_TEST

/* Each receiver's own copy crosses the network: what a tree saves. In the worst order the senders
 * work one after the other. */
START_TEST(send_recv_pays_for_every_receiver)
{
    const paper_case_t *paper = &cases[_i];
    problem_t p;

    problem_create(paper, &p);
    (void)run(&p, XM_STRATEGY_SEND_RECV, XM_SCHEDULER_NAIVE, 0, paper->send_recv,
              2 * paper->send_recv);
    (void)run(&p, XM_STRATEGY_SEND_RECV, XM_SCHEDULER_BALANCE, 0, paper->send_recv,
              2 * paper->send_recv);
    (void)run(&p, XM_STRATEGY_SEND_RECV, XM_SCHEDULER_GREEDY, 0, paper->send_recv,
              1.34 * paper->send_recv);
    (void)run(&p, XM_STRATEGY_SEND_RECV, XM_SCHEDULER_OPENSHOP, 0, paper->send_recv,
              paper->send_recv);
    (void)run(&p, XM_STRATEGY_SEND_RECV, XM_SCHEDULER_AUTO, 0, paper->send_recv, paper->send_recv);
    problem_destroy(&p);
}
END_TEST

/* In the given order a slice for one host keeps its sender busy as long as a broadcast does.
 * openshop has nothing to cut, and greedy takes its place. */
START_TEST(published_all_gathers_take_what_the_model_says)
{
    const paper_case_t *paper = &cases[_i];
    const struct {
        xm_strategy_t strategy;
        double expected;
    } published[] = {{XM_STRATEGY_LOCAL_ALLGATHER, paper->local},
                     {XM_STRATEGY_GLOBAL_ALLGATHER, paper->global},
                     {XM_STRATEGY_ALPA, paper->alpa}};
    problem_t p;

    problem_create(paper, &p);
    for (int i = 0; i < 3; ++i) {
        double expected = published[i].expected, naive = expected * paper->naive / paper->bound;
        xm_plan_t *plan;

        (void)run(&p, published[i].strategy, XM_SCHEDULER_NAIVE, 0, naive, naive);
        (void)run(&p, published[i].strategy, XM_SCHEDULER_AUTO, 0, expected, expected);
        p.params.scheduler = XM_SCHEDULER_OPENSHOP;
        ck_assert_xm_ok(xm_plan_create(&p.params, &plan));
        ck_assert_int_eq(xm_plan_chosen_scheduler(plan), XM_SCHEDULER_GREEDY);
        xm_plan_destroy(plan);
    }
    problem_destroy(&p);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("paper_cases");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, naive_and_balance_take_what_the_model_says, 0, CASES);
    tcase_add_loop_test(tcase, greedy_is_in_its_range_and_dfs_no_worse, 0, CASES);
    tcase_add_loop_test(tcase, openshop_and_auto_meet_the_bound, 0, CASES);
    tcase_add_loop_test(tcase, send_recv_pays_for_every_receiver, 0, CASES);
    tcase_add_loop_test(tcase, published_all_gathers_take_what_the_model_says, 0, CASES);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
