/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/resharding/solve/shop_case.h"

#include <stdlib.h>
#include <string.h>

#include "xm_test.h"

enum { MOST_DEMANDS = 256 };

typedef struct {
    shop_case_t *c;
    int hosts;
    size_t used; /* of c->hosts */
    char holds[64], needs[64];
} builder_t;

/* Log-uniform between 2^low and 2^high. */
static int64_t random_size(random_t *random, int low, int high)
{
    int bits = random_int(random, low, high - 1);

    return (INT64_C(1) << bits) + (int64_t)(xm_random_next(random) % (UINT64_C(1) << bits));
}

static void random_network(random_t *random, int hosts, bool equal, shop_case_t *c)
{
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    double egress[64], ingress[64];
    int host_of_rank[64], rack_of_host[64], racks = random_int(random, 1, hosts < 4 ? hosts : 4);
    int shape = random_int(random, 0, 2);

    for (int h = 0; h < hosts; ++h) {
        double slow = (double)random_int(random, 25, 100) / 100;

        host_of_rank[h] = h;
        rack_of_host[h] = h % racks;
        if (shape == 0) { /* one slow host in a few */
            slow = random_int(random, 0, 4) == 0 ? 0.5 : 1;
        }
        egress[h] = 12.5e9 * slow;
        ingress[h] = shape == 1 ? 12.5e9 * (double)random_int(random, 25, 100) / 100 : egress[h];
    }
    params.ranks = hosts;
    params.host_of_rank = host_of_rank;
    params.nic_bandwidth = (double)random_int(random, 1, 100) * 1e9 / 4;
    params.host_bandwidth = 1e11;
    params.rack_of_host = rack_of_host;
    if (!equal) {
        params.egress = egress;
        params.ingress = ingress;
    }
    ck_assert_xm_ok(xm_network_create(&params, &c->network));
}

/* A demand of those that b->holds for those that b->needs and do not hold; nothing without. */
static void add_demand(builder_t *b, int64_t bytes)
{
    xm_demand_t *demand = &b->c->demands[b->c->problem.count];
    int *holders = &b->c->hosts[b->used], *receivers;

    *demand = (xm_demand_t){.bytes = bytes, .holders = holders};
    for (int h = 0; h < b->hosts; ++h) {
        if (b->holds[h]) {
            holders[demand->holder_count++] = h;
        }
    }
    demand->receivers = receivers = holders + demand->holder_count;
    for (int h = 0; h < b->hosts; ++h) {
        if (b->needs[h] && !b->holds[h]) {
            receivers[demand->receiver_count++] = h;
        }
    }
    if (demand->holder_count > 0 && demand->receiver_count > 0 &&
        b->c->problem.count < MOST_DEMANDS) {
        b->used += (size_t)demand->holder_count + (size_t)demand->receiver_count;
        ++b->c->problem.count;
    }
}

static void random_demands(random_t *random, builder_t *b, shop_kind_t kind)
{
    int count = random_int(random, 1, random_int(random, 0, 1) == 0 ? 8 : MOST_DEMANDS);
    int holders = random_int(random, 1, random_int(random, 0, 1) == 0 ? 3 : b->hosts);
    int receivers = random_int(random, 1, random_int(random, 0, 1) == 0 ? 4 : b->hosts);
    bool apart = b->hosts > 1 && random_int(random, 0, 1) == 0;
    int low = random_int(random, 20, 30), high = random_int(random, low + 1, 32);

    for (int d = 0; d < count; ++d) {
        int senders = apart ? (b->hosts + 1) / 2 : b->hosts, from = apart ? senders : 0;

        memset(b->holds, 0, sizeof(b->holds));
        memset(b->needs, 0, sizeof(b->needs));
        for (int i = kind == SHOP_UNICAST ? 1 : random_int(random, 1, holders); i > 0; --i) {
            b->holds[random_int(random, 0, senders - 1)] = 1;
        }
        for (int i = kind == SHOP_UNICAST ? 1 : random_int(random, 1, receivers); i > 0; --i) {
            b->needs[random_int(random, from, b->hosts - 1)] = 1;
        }
        add_demand(b, random_size(random, low, high));
    }
}

/*
 * Shards in order on groups of hosts: source shard i of m on hosts with (host − start) / stride % m
 * = i, and so for the n destination shards. Each two that overlap share a demand, once cut along
 * one dimension, once along two (all pairs overlap).
 */
static void layout_demands(random_t *random, builder_t *b)
{
    int split = random_int(random, 0, 2),
        half = b->hosts > 1 ? random_int(random, 1, b->hosts - 1) : 1;
    int src_to = split > 0 ? half : b->hosts, dst_from = split > 0 ? half : 0;
    int m = random_int(random, 1, src_to < 16 ? src_to : 16);
    int n = random_int(
        random, 1,
        b->hosts - dst_from < 16 ? (b->hosts - dst_from > 0 ? b->hosts - dst_from : 1) : 16);
    int src_stride = random_int(random, 1, 4), dst_stride = random_int(random, 1, 4);
    bool pairs = random_int(random, 0, 1) == 0;
    int64_t bytes = random_size(random, 26, 32) * (pairs ? m * n : m > n ? m : n);

    for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) {
            int64_t low = bytes * i / m, high = bytes * (i + 1) / m;
            int64_t from = bytes * j / n, to = bytes * (j + 1) / n;

            low = pairs || low > from ? low : from;
            high = pairs || high < to ? high : to;
            if (low >= high) {
                continue;
            }
            memset(b->holds, 0, sizeof(b->holds));
            memset(b->needs, 0, sizeof(b->needs));
            for (int h = 0; h < src_to; ++h) {
                b->holds[h] = h / src_stride % m == i;
            }
            for (int h = dst_from; h < b->hosts; ++h) {
                b->needs[h] = (h - dst_from) / dst_stride % n == j;
            }
            add_demand(b, pairs ? (high - low) / n : high - low);
        }
    }
}

void shop_case_create(random_t *random, shop_kind_t kind, int hosts, bool equal, shop_case_t *c)
{
    builder_t b = {.c = c, .hosts = random_int(random, 2, hosts)};

    memset(c, 0, sizeof(*c));
    c->demands = malloc((MOST_DEMANDS + 1) * sizeof(*c->demands));
    c->hosts = malloc((size_t)(MOST_DEMANDS + 1) * 2 * (size_t)b.hosts * sizeof(*c->hosts));
    ck_assert(c->demands != NULL && c->hosts != NULL);
    random_network(random, b.hosts, equal, c);
    do {
        if (kind == SHOP_LAYOUT) {
            layout_demands(random, &b);
        } else {
            random_demands(random, &b, kind);
        }
    } while (c->problem.count == 0);
    c->problem.network = c->network;
    c->problem.demands = c->demands;
}

void shop_case_destroy(shop_case_t *c)
{
    xm_network_destroy(c->network);
    free(c->hosts);
    free(c->demands);
}

typedef struct {
    int64_t key, from, to;
} span_t;

static int compare_spans(const void *a, const void *b)
{
    const span_t *left = a, *right = b;

    if (left->key != right->key) {
        return left->key < right->key ? -1 : 1;
    }
    return (left->from > right->from) - (left->from < right->from);
}

/* No two spans of a key overlap. */
static void check_apart(span_t *spans, int64_t count, const char *what)
{
    qsort(spans, (size_t)count, sizeof(*spans), compare_spans);
    for (int64_t i = 1; i < count; ++i) {
        ck_assert_msg(spans[i].key != spans[i - 1].key || spans[i].from >= spans[i - 1].to,
                      "%s %lld: [%lld, %lld) overlaps [%lld, %lld)", what, (long long)spans[i].key,
                      (long long)spans[i - 1].from, (long long)spans[i - 1].to,
                      (long long)spans[i].from, (long long)spans[i].to);
    }
}

static bool member(const int *hosts, int count, int host)
{
    for (int i = 0; i < count; ++i) {
        if (hosts[i] == host) {
            return true;
        }
    }
    return false;
}

static int64_t arrival(const xm_network_t *network, const xm_hop_t *hop)
{
    uint64_t bytes = (uint64_t)(hop->end - hop->first);
    int64_t egress = xm_network_egress_ns(network, hop->sender, bytes);
    int64_t ingress = xm_network_ingress_ns(network, hop->receiver, bytes);

    return hop->start_ns + (egress > ingress ? egress : ingress);
}

static void check_hop(const xm_problem_t *problem, const xm_hop_t *hops, int64_t i)
{
    const xm_hop_t *hop = &hops[i];
    const xm_demand_t *demand;

    ck_assert(hop->demand >= 0 && hop->demand < problem->count && hop->start_ns >= 0);
    demand = &problem->demands[hop->demand];
    ck_assert(hop->first >= 0 && hop->first < hop->end && hop->end <= demand->bytes);
    ck_assert(i == 0 || hops[i - 1].start_ns <= hop->start_ns);
    ck_assert(member(demand->receivers, demand->receiver_count, hop->receiver));
    if (hop->parent < 0) {
        ck_assert(hop->parent == -1);
        ck_assert(member(demand->holders, demand->holder_count, hop->sender));
    } else {
        const xm_hop_t *parent = &hops[hop->parent];

        ck_assert(hop->parent < i && parent->demand == hop->demand);
        ck_assert(parent->receiver == hop->sender);
        ck_assert(parent->first <= hop->first && hop->end <= parent->end);
        ck_assert(arrival(problem->network, parent) <= hop->start_ns);
    }
}

void shop_check(const xm_problem_t *problem, const xm_hop_t *hops, int64_t count,
                int64_t makespan_ns)
{
    int hosts = xm_network_hosts(problem->network);
    span_t *egress = malloc(((size_t)count + 1) * sizeof(*egress));
    span_t *ingress = malloc(((size_t)count + 1) * sizeof(*ingress));
    span_t *ranges = malloc(((size_t)count + 1) * sizeof(*ranges));
    int64_t end = 0, delivered = 0, wanted = 0;

    ck_assert(egress != NULL && ingress != NULL && ranges != NULL);
    for (int64_t i = 0; i < count; ++i) {
        const xm_hop_t *hop = &hops[i];
        uint64_t bytes = (uint64_t)(hop->end - hop->first);
        int64_t arrives = arrival(problem->network, hop);

        check_hop(problem, hops, i);
        egress[i] =
            (span_t){hop->sender, hop->start_ns,
                     hop->start_ns + xm_network_egress_ns(problem->network, hop->sender, bytes)};
        ingress[i] =
            (span_t){hop->receiver, hop->start_ns,
                     hop->start_ns + xm_network_ingress_ns(problem->network, hop->receiver, bytes)};
        ranges[i] = (span_t){hop->demand * hosts + hop->receiver, hop->first, hop->end};
        end = arrives > end ? arrives : end;
        delivered += (int64_t)bytes;
    }
    check_apart(egress, count, "egress of host");
    check_apart(ingress, count, "ingress of host");
    check_apart(ranges, count, "bytes of demand * hosts + receiver");
    for (int64_t d = 0; d < problem->count; ++d) {
        wanted += problem->demands[d].bytes * problem->demands[d].receiver_count;
    }
    ck_assert_int_eq(delivered, wanted); /* apart and of the right sum: exactly once */
    ck_assert_int_eq(end, makespan_ns);
    free(ranges);
    free(ingress);
    free(egress);
}
