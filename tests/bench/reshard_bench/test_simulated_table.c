/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds and makespans of the suites at full size, against what the paper's model predicts. */
#include "tests/bench/cases/bench_fixture.h"

#include "resharding/solve/bound.h"
#include "tests/resharding/plan/plan_lists.h"

/* All numbers are GiB through one NIC. */
typedef struct {
    const char *name;
    double receive, send;       /* lower bounds of the broadcast's traffic */
    double naive, balance;      /* makespans under broadcast */
    double sr_receive, sr_send; /* busiest NIC under send_recv */
} row_t;

static const row_t rows[] = {
    {"nm1", 1.0, 1.0, 1.0, 1.0, 4, 4},
    {"nm2", 1.0, 1.0, 2.0, 1.0, 4, 4},
    {"nm3", 1.0, 1.0, 1.5, 1.5, 4, 4},
    {"nm4", 1.0, 1.0, 1.875, 1.875, 1, 1},
    {"nm5", 1.0, 1.0, 2.0, 1.5, 4, 4},
    {"nm6", 680.0 / 1024, 1020.0 / 1024, 2040.0 / 1024, 2040.0 / 1024, 2720.0 / 1024,
     4080.0 / 1024},
    {"nm7", 2.0, 2.0, 2.0, 2.0, 8, 16},
    {"nm8", 2.0, 2.0, 2.0, 2.0, 8, 16},
    {"nm9", 1.0, 1.0, 1.5, 1.5, 4, 4},
    {"1m1", 1.0, 1.0, 1.0, 1.0, 1, 1},
    {"1m2", 1.0, 1.0, 1.0, 1.0, 2, 2},
    {"1m3", 1.0, 1.0, 1.0, 1.0, 3, 3},
    {"1m4", 1.0, 1.0, 1.0, 1.0, 4, 4},
    {"1m5", 1.0, 1.0, 1.0, 1.0, 2, 4},
    {"1m6", 1.0, 1.0, 1.0, 1.0, 2, 6},
    {"1m7", 1.0, 1.0, 1.0, 1.0, 2, 8},
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

static double gib(int64_t ns)
{
    return (double)ns * 1e-9;
}

/* The bound does not depend on the strategy and is the larger of the two sides. */
START_TEST(bound_is_that_of_the_busiest_nic)
{
    const row_t *row = &rows[_i];

    for (int strategy = 0; strategy < XM_STRATEGY_COUNT; ++strategy) {
        bench_fixture_t fixture;

        bench_fixture_open(row->name, (xm_strategy_t)strategy, XM_SCHEDULER_BALANCE, &fixture);
        ck_assert_double_eq_tol(gib(xm_plan_bound_ns(fixture.prepared.plan)),
                                row->receive > row->send ? row->receive : row->send, 1e-6);
        bench_fixture_close(&fixture);
    }
}
END_TEST

START_TEST(broadcast_makespans_are_those_of_the_model)
{
    const row_t *row = &rows[_i];
    const double best = row->receive > row->send ? row->receive : row->send;
    const double expected[XM_SCHEDULER_COUNT] = {row->naive, row->balance, best, best, best, best};

    for (int s = 0; s < XM_SCHEDULER_COUNT; ++s) {
        bench_fixture_t fixture;
        double makespan;

        bench_fixture_open(row->name, XM_STRATEGY_BROADCAST, (xm_scheduler_t)s, &fixture);
        makespan = gib(xm_plan_makespan_ns(fixture.prepared.plan));
        ck_assert_msg(makespan > 0.99 * expected[s] && makespan < 1.01 * expected[s],
                      "%s under %s takes %.3f, expected %.3f", row->name,
                      xm_scheduler_name((xm_scheduler_t)s), makespan, expected[s]);
        bench_fixture_close(&fixture);
    }
}
END_TEST

/* What a plan's transfers put through the busiest NIC in each direction. */
static void busiest(const bench_fixture_t *fixture, double *receive, double *send)
{
    uint64_t in[8] = {0}, out[8] = {0}, most_in = 0, most_out = 0;
    int64_t count;
    const xm_transfer_t *transfers = plan_transfers(fixture->prepared.plan, &count);

    for (int64_t i = 0; i < count; ++i) {
        const xm_route_t *route = xm_plan_route(fixture->prepared.plan, transfers[i].route);

        for (int h = 0; h < route->count; ++h) {
            int from = xm_network_host_of(fixture->network, xm_hop_sender(&transfers[i], route, h));
            int to = xm_network_host_of(fixture->network, route->ranks[h]);

            if (from != to) {
                out[from] += xm_plan_transfer_bytes(fixture->prepared.plan, i);
                in[to] += xm_plan_transfer_bytes(fixture->prepared.plan, i);
            }
        }
    }
    for (int h = 0; h < 8; ++h) {
        most_in = in[h] > most_in ? in[h] : most_in;
        most_out = out[h] > most_out ? out[h] : most_out;
    }
    *receive = (double)most_in / GIB;
    *send = (double)most_out / GIB;
}

/* Every receiver gets its own message: the busiest NIC carries what the model says, and no schedule
 * is faster than that. */
START_TEST(send_recv_loads_are_those_of_the_model)
{
    const row_t *row = &rows[_i];
    double receive, send, makespan;
    bench_fixture_t fixture;

    bench_fixture_open(row->name, XM_STRATEGY_SEND_RECV, XM_SCHEDULER_BALANCE, &fixture);
    busiest(&fixture, &receive, &send);
    makespan = gib(xm_plan_makespan_ns(fixture.prepared.plan));
    ck_assert_double_eq_tol(receive, row->sr_receive, 0.01);
    ck_assert_double_eq_tol(send, row->sr_send, 0.01);
    ck_assert_double_ge(makespan, (receive > send ? receive : send) * 0.999);
    if (row->name[0] == '1') {
        ck_assert_double_eq_tol(makespan, row->sr_send, 0.01);
    }
    bench_fixture_close(&fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("simulated table");
    TCase *tests = tcase_create("suites");

    tcase_add_loop_test(tests, bound_is_that_of_the_busiest_nic, 0, ROWS);
    tcase_add_loop_test(tests, broadcast_makespans_are_those_of_the_model, 0, ROWS);
    tcase_add_loop_test(tests, send_recv_loads_are_those_of_the_model, 0, ROWS);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
