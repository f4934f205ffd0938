/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/resharding/plan/random_case.h"
#include "resharding/solve/bound.h"
#include "resharding/flow/flow.h"
#include "resharding/flow/cut_bound.h"
#include "xm_test.h"

enum { MAX_HOSTS = 40, MAX_DEMANDS = 160 };

/* A random problem whose rates are whole numbers, so that the references are exact. */
typedef struct {
    int hosts, racks;
    int host_of_rank[MAX_HOSTS], rack_of_host[MAX_HOSTS];
    double egress[MAX_HOSTS], ingress[MAX_HOSTS], uplink;
    xm_network_t *network;
    xm_demand_t demands[MAX_DEMANDS];
    int host[MAX_DEMANDS][MAX_HOSTS]; /* holders, then receivers */
    xm_problem_t problem;
} case_t;

static void random_demand(random_t *random, case_t *c, int d, int most_holders)
{
    int holders = random_int(random, 1, most_holders), chosen = 0;
    int receivers = random_int(random, 1, c->hosts - holders < 4 ? c->hosts - holders : 4);
    char role[MAX_HOSTS] = {0};

    while (chosen < holders + receivers) {
        int h = random_int(random, 0, c->hosts - 1);

        if (role[h] == 0) {
            role[h] = (char)(chosen++ < holders ? 1 : 2);
        }
    }
    for (int h = 0, held = 0, needed = holders; h < c->hosts; ++h) {
        if (role[h] == 1) {
            c->host[d][held++] = h;
        } else if (role[h] == 2) {
            c->host[d][needed++] = h;
        }
    }
    c->demands[d] = (xm_demand_t){random_int(random, 1, 10000), c->host[d], c->host[d] + holders,
                                  holders, receivers};
}

static double random_rate(random_t *random, bool fast)
{
    return fast ? 1e9 * random_int(random, 1, 25) : random_int(random, 10000, 1000000);
}

static void case_create(random_t *random, int hosts, int demands, int most_holders, case_t *c)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    bool equal = random_int(random, 0, 1) == 0, fast = random_int(random, 0, 1) == 0;
    double rate = random_rate(random, fast);

    memset(c, 0, sizeof(*c));
    c->hosts = hosts;
    c->racks = random_int(random, 1, hosts < 5 ? hosts : 5);
    for (int h = 0; h < hosts; ++h) {
        c->host_of_rank[h] = h;
        c->rack_of_host[h] = h < c->racks ? h : random_int(random, 0, c->racks - 1);
        c->egress[h] = equal ? rate : random_rate(random, fast);
        c->ingress[h] = equal ? rate : random_rate(random, fast);
    }
    c->uplink = random_int(random, 0, 2) == 0 ? 0 : random_rate(random, fast);
    params.ranks = hosts;
    params.host_of_rank = c->host_of_rank;
    params.host_bandwidth = 1e10;
    params.egress = c->egress;
    params.ingress = c->ingress;
    params.rack_of_host = c->rack_of_host;
    params.uplink_bandwidth = c->uplink;
    ck_assert_xm_ok(xm_network_create(&params, &c->network));
    for (int d = 0; d < demands; ++d) {
        random_demand(random, c, d, most_holders < hosts ? most_holders : hosts - 1);
    }
    c->problem = (xm_problem_t){c->network, c->demands, demands};
}

static int64_t whole_bytes(double rate, int64_t ns)
{
    return ns * (int64_t)rate / 1000000000;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t set_bytes(const double *rate, uint32_t set, int64_t ns)
{
    int64_t bytes = 0;

    for (int h = 0; h < 32 && set >> h; ++h) {
        bytes += set >> h & 1 ? whole_bytes(rate[h], ns) : 0;
    }
    return bytes;
}

/* Smallest time in which the set's capacities in whole bytes reach `bytes`. */
static int64_t set_ns(const double *rate, uint32_t set, int64_t bytes)
{
    int64_t low = 0, high = 1;

    while (set_bytes(rate, set, high) < bytes) {
        low = high;
        high *= 2;
    }
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;

        if (set_bytes(rate, set, middle) < bytes) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return high;
}

static uint32_t mask_of(const int *hosts, int count, const int *group)
{
    uint32_t mask = 0;

    for (int i = 0; i < count; ++i) {
        mask |= 1u << (group != NULL ? group[hosts[i]] : hosts[i]);
    }
    return mask;
}

/* All sets of nodes, one by one. `group`: the node of a host, NULL: itself. */
static void reference(const case_t *c, int nodes, const int *group, const double *out,
                      const double *in, int64_t *send_ns, int64_t *receive_ns)
{
    uint32_t holds[MAX_DEMANDS], needs[MAX_DEMANDS];

    *send_ns = *receive_ns = 0;
    for (int64_t d = 0; d < c->problem.count; ++d) {
        const xm_demand_t *demand = &c->demands[d];

        holds[d] = mask_of(demand->holders, demand->holder_count, group);
        needs[d] = mask_of(demand->receivers, demand->receiver_count, group) & ~holds[d];
    }
    for (uint32_t set = 1; set < 1u << nodes; ++set) {
        int64_t out_bytes = 0, in_bytes = 0;

        for (int64_t d = 0; d < c->problem.count; ++d) {
            bool inside = needs[d] != 0 && (holds[d] & ~set) == 0;

            out_bytes += inside ? c->demands[d].bytes : 0;
            in_bytes += (needs[d] & set) != 0 ? c->demands[d].bytes : 0;
        }
        *send_ns = larger(*send_ns, out_bytes > 0 ? set_ns(out, set, out_bytes) : 0);
        if ((set & (set - 1)) == 0) {
            *receive_ns = larger(*receive_ns, in_bytes > 0 ? set_ns(in, set, in_bytes) : 0);
        }
    }
}

START_TEST(the_bound_is_that_of_all_subsets)
{
    random_t random = {11};
    int decided[5] = {0};

    for (int i = 0; i < 4000; ++i) {
        case_t c;
        xm_bound_t bound;
        int64_t send, receive, up = 0, down = 0;
        double uplinks[MAX_HOSTS];

        case_create(&random, random_int(&random, 2, 7), random_int(&random, 0, 14), 4, &c);
        ck_assert_xm_ok(xm_bound_compute_problem(&c.problem, &bound));
        reference(&c, c.hosts, NULL, c.egress, c.ingress, &send, &receive);
        for (int r = 0; r < c.racks; ++r) {
            uplinks[r] = c.uplink;
        }
        if (c.racks > 1 && c.uplink > 0) {
            reference(&c, c.racks, c.rack_of_host, uplinks, uplinks, &up, &down);
        }
        ck_assert_int_eq(bound.send_ns, send);
        ck_assert_int_eq(bound.receive_ns, receive);
        ck_assert_int_eq(bound.uplink_ns, larger(up, down));
        ck_assert_int_eq(bound.ns, larger(larger(send, receive), larger(up, down)));
        ++decided[bound.limit];
        xm_network_destroy(c.network);
    }
    ck_assert_int_gt(decided[XM_BOUND_NOTHING], 10);
    ck_assert_int_gt(decided[XM_BOUND_RECEIVE], 100);
    ck_assert_int_gt(decided[XM_BOUND_SEND], 100);
    ck_assert_int_gt(decided[XM_BOUND_UPLINK], 100);
}
END_TEST

/* Whether every demand can be dealt to its holders in whole bytes by then. */
static bool can_send(const case_t *c, int64_t ns)
{
    int demands = (int)c->problem.count, source = demands + c->hosts, sink = source + 1;
    xm_flow_t *flow;
    uint64_t value, total = 0;

    ck_assert_xm_ok(xm_flow_create(sink + 1, &flow));
    for (int d = 0; d < demands; ++d) {
        const xm_demand_t *demand = &c->demands[d];

        total += (uint64_t)demand->bytes;
        ck_assert_xm_ok(xm_flow_add_edge(flow, source, d, demand->bytes));
        for (int i = 0; i < demand->holder_count; ++i) {
            ck_assert_xm_ok(xm_flow_add_edge(flow, d, demands + demand->holders[i], demand->bytes));
        }
    }
    for (int h = 0; h < c->hosts; ++h) {
        ck_assert_xm_ok(xm_flow_add_edge(flow, demands + h, sink, whole_bytes(c->egress[h], ns)));
    }
    ck_assert_xm_ok(xm_flow_maximise(flow, source, sink, &value));
    xm_flow_destroy(flow);
    return value == total;
}

START_TEST(senders_can_do_it_in_the_bound_and_not_sooner)
{
    random_t random = {12};

    for (int i = 0; i < 400; ++i) {
        case_t c;
        xm_bound_t bound;

        case_create(&random, random_int(&random, 8, MAX_HOSTS), random_int(&random, 1, MAX_DEMANDS),
                    random_int(&random, 1, 12), &c);
        ck_assert_xm_ok(xm_bound_compute_problem(&c.problem, &bound));
        ck_assert(can_send(&c, bound.send_ns));
        ck_assert(!can_send(&c, bound.send_ns - 1));
        xm_network_destroy(c.network);
    }
}
END_TEST

/* Rates and sizes that no double divides well: what a host sends in pieces never beats the bound.
 */
START_TEST(rounding_never_lifts_the_bound)
{
    random_t random = {13};

    for (int i = 0; i < 20000; ++i) {
        int host_of_rank[] = {0};
        xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
        xm_network_t *network;
        int64_t bytes = 0, sum = 0, bound, whole;
        int pieces = random_int(&random, 1, 8), shift = random_int(&random, 10, 52);

        params.ranks = 1;
        params.host_of_rank = host_of_rank;
        params.host_bandwidth = 1;
        params.nic_bandwidth = 1e9 * (1 + random_int(&random, 0, 1000)) / 7;
        ck_assert_xm_ok(xm_network_create(&params, &network));
        for (int p = 0; p < pieces; ++p) {
            int64_t piece = 1 + (int64_t)(xm_random_next(&random) >> (64 - shift));

            bytes += piece;
            sum += xm_network_egress_ns(network, 0, (uint64_t)piece);
        }
        bound = xm_cut_bound_single(params.nic_bandwidth, bytes);
        ck_assert_int_le(bound, sum);
        whole = xm_network_egress_ns(network, 0, (uint64_t)bytes);
        ck_assert_int_ge(bound, whole - 1 - (whole >> 48));
        xm_network_destroy(network);
    }
}
END_TEST

static xm_network_t *equal_hosts(int hosts)
{
    int *host_of_rank = malloc((size_t)hosts * sizeof(int));
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    xm_network_t *network;

    ck_assert_ptr_nonnull(host_of_rank);
    for (int h = 0; h < hosts; ++h) {
        host_of_rank[h] = h;
    }
    params.ranks = hosts;
    params.host_of_rank = host_of_rank;
    params.nic_bandwidth = params.host_bandwidth = 1e9;
    ck_assert_xm_ok(xm_network_create(&params, &network));
    free(host_of_rank);
    return network;
}

START_TEST(all_to_all_of_many_hosts)
{
    enum { HOSTS = 512, BYTES = 1000 };
    static int host[HOSTS];
    xm_network_t *network = equal_hosts(HOSTS);
    xm_demand_t *demands = malloc((size_t)HOSTS * HOSTS * sizeof(*demands));
    xm_problem_t problem = {network, demands, 0};
    xm_bound_t bound;

    ck_assert_ptr_nonnull(demands);
    for (int h = 0; h < HOSTS; ++h) {
        host[h] = h;
    }
    for (int from = 0; from < HOSTS; ++from) {
        for (int to = 0; to < HOSTS; ++to) {
            demands[problem.count] = (xm_demand_t){BYTES, &host[from], &host[to], 1, 1};
            problem.count += from != to;
        }
    }
    ck_assert_xm_ok(xm_bound_compute_problem(&problem, &bound));
    ck_assert_int_eq(bound.send_ns, (HOSTS - 1) * BYTES);
    ck_assert_int_eq(bound.receive_ns, (HOSTS - 1) * BYTES);
    ck_assert_int_eq(bound.limit, XM_BOUND_RECEIVE);
    free(demands);
    xm_network_destroy(network);
}
END_TEST

START_TEST(many_replicas_on_many_hosts)
{
    enum { HOSTS = 1024, DEMANDS = 64, HOLDERS = 64 };
    static int host[DEMANDS][HOLDERS + 1];
    static xm_demand_t demands[DEMANDS];
    xm_network_t *network = equal_hosts(HOSTS);
    xm_problem_t problem = {network, demands, DEMANDS};
    xm_bound_t bound;

    /* Every demand lies on 64 neighbours, of which the next one shares 60. */
    for (int d = 0; d < DEMANDS; ++d) {
        for (int i = 0; i < HOLDERS; ++i) {
            host[d][i] = 4 * d + i;
        }
        host[d][HOLDERS] = HOSTS - 1 - d;
        demands[d] = (xm_demand_t){1000000 + d * 9973, host[d], &host[d][HOLDERS], HOLDERS, 1};
    }
    ck_assert_xm_ok(xm_bound_compute_problem(&problem, &bound));
    ck_assert_int_eq(bound.receive_ns, 1000000 + (DEMANDS - 1) * 9973);
    ck_assert_int_gt(bound.send_ns, 64 * 1000000 / (4 * (DEMANDS - 1) + HOLDERS));
    ck_assert_int_lt(bound.send_ns, bound.receive_ns);
    xm_network_destroy(network);
}
END_TEST

START_TEST(devices_and_sums)
{
    xm_network_t *network = equal_hosts(2);
    const int host[] = {0, 1};
    xm_demand_t demands[] = {{1000, &host[0], &host[1], 1, 1},
                             {INT64_MAX - 999, &host[0], &host[1], 1, 1}};
    xm_problem_t problem = {network, demands, 1};
    xm_bound_t bound;

    ck_assert_xm_ok(xm_bound_compute_problem(&problem, &bound));
    ck_assert_int_eq(bound.ns, 1000);
    xm_bound_set_device(&bound, 1000);
    ck_assert(bound.device_ns == 1000 && bound.limit == XM_BOUND_RECEIVE);
    xm_bound_set_device(&bound, 1001);
    ck_assert(bound.ns == 1001 && bound.limit == XM_BOUND_DEVICE);
    problem.count = 2;
    ck_assert_xm_fails(xm_bound_compute_problem(&problem, &bound), XM_ERR_INVALID_ARGUMENT,
                       "exceeds 9223372036854775807 bytes");
    ck_assert_int_eq(bound.ns, 1001);
    xm_network_destroy(network);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bound_problem");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, the_bound_is_that_of_all_subsets);
    tcase_add_test(tcase, senders_can_do_it_in_the_bound_and_not_sooner);
    tcase_add_test(tcase, rounding_never_lifts_the_bound);
    tcase_add_test(tcase, all_to_all_of_many_hosts);
    tcase_add_test(tcase, many_replicas_on_many_hosts);
    tcase_add_test(tcase, devices_and_sums);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
