/* SPDX-License-Identifier: Apache-2.0 */
/* Programs against brute force: numbers are moved and added as the list says, in any order that its
 * dependencies leave; simulated times against bounds, which are found in another way for small
 * cases. */
#include "resharding/collective.h"

#include <math.h>

#include "comm/base.h"
#include "xm_test.h"

enum { DEVICES = 12, CHUNKS = 400, BYTES = 10000 };

static int below(xm_random_t *random, int limit)
{
    return (int)xm_random_below(random, (uint64_t)limit);
}

/* A random mesh of two or three dimensions, at most 12 devices. */
static void random_net(xm_random_t *random, xm_interconnect_t *net)
{
    *net = (xm_interconnect_t){.devices = 1, .dimensions = 2 + below(random, 2)};
    for (int k = 0; k < net->dimensions; ++k) {
        int extent = net->dimensions == 3 ? 2 : 2 + below(random, 2);

        net->dimension[k] = (xm_dimension_t){.extent = extent,
                                             .share = k == 1 && below(random, 2) ? net->devices : 1,
                                             .rate = 1 + below(random, 9),
                                             .latency = below(random, 2) * 0.25,
                                             .ratio = below(random, 3) ? 1 : 0.5};
        net->devices *= extent;
    }
}

static void random_build(xm_random_t *random, const xm_interconnect_t *net, xm_build_t *build)
{
    *build = (xm_build_t){.kind = (xm_collective_t)below(random, 3),
                          .devices = net->devices,
                          .pieces = 1 + below(random, 4),
                          .servers = 1 + below(random, 2),
                          .fallback = below(random, 3) * 0.5,
                          .factors = net->dimensions};
    for (int k = 0, stride = 1; k < net->dimensions; stride *= net->dimension[k++].extent) {
        build->factor[k] = (xm_factor_t){stride, net->dimension[k].extent, below(random, 2) != 0};
    }
    if (below(random, 3) == 0) {
        build->factors = 1;
        build->factor[0] = (xm_factor_t){1, net->devices, below(random, 2) != 0};
    } else if (below(random, 2)) {
        build->balance = net;
    }
    if (build->kind == XM_ALL_REDUCE && build->balance == NULL) {
        build->last = (xm_last_t)below(random, XM_LAST_SWITCH + 1);
    }
}

/* Does the moves one at a time, always a random one of those that nothing holds back, with a power
 * of 16 for each device's contribution: a digit other than 1 shows what is missing or twice there.
 */
static bool computes(const xm_program_t *p, xm_random_t *random)
{
    static uint64_t value[2 * DEVICES][CHUNKS];
    xm_dependencies_t d;
    size_t done = 0;
    bool *ended = calloc(p->count + 1, sizeof(*ended)), right = true;
    uint64_t all = 0;

    for (int n = 0; n < p->nodes; ++n) {
        for (int c = 0; c < p->chunks; ++c) {
            bool has = n < p->devices && (p->home[c] < 0 || p->home[c] == n);

            value[n][c] = has ? UINT64_C(1) << (4 * n) : 0;
        }
        all |= n < p->devices ? UINT64_C(1) << (4 * n) : 0;
    }
    ck_assert_xm_ok(xm_dependencies_find(p, &d));
    while (done < p->count) {
        size_t m = (size_t)below(random, (int)p->count);

        while (ended[m] || d.send_waits[m] > 0 || d.receive_waits[m] > 0) {
            m = (m + 1) % p->count;
        }
        for (int c = p->moves[m].chunk; c < p->moves[m].chunk + p->moves[m].count; ++c) {
            uint64_t *to = &value[p->moves[m].to][c];

            *to = value[p->moves[m].from][c] + (p->moves[m].reduce ? *to : 0);
        }
        for (int64_t i = d.first[m]; i < d.first[m + 1]; ++i) {
            --(d.next[i] % 2 != 0 ? d.receive_waits : d.send_waits)[d.next[i] / 2];
        }
        ended[m] = true;
        ++done;
    }
    for (int n = 0; n < p->devices; ++n) {
        for (int c = 0; c < p->chunks; ++c) {
            uint64_t wanted = p->home[c] < 0 ? all : UINT64_C(1) << (4 * p->home[c]);

            right = right && ((p->goal[c] >= 0 && p->goal[c] != n) || value[n][c] == wanted);
        }
    }
    xm_dependencies_clear(&d);
    free(ended);
    return right;
}

/* Begins a move if its resources are free. */
static bool begins(const xm_program_t *p, const xm_interconnect_t *net, size_t m, bool *busy,
                   double *at)
{
    const xm_move_t *move = &p->moves[m];
    xm_occupied_t use;
    double bytes = (double)(xm_program_first(p, move->chunk + move->count, BYTES) -
                            xm_program_first(p, move->chunk, BYTES));

    ck_assert_xm_ok(xm_interconnect_use(net, move->from, move->to, &use));
    if (busy[use.resource[0]] || busy[use.resource[use.count - 1]]) {
        return false;
    }
    busy[use.resource[0]] = busy[use.resource[use.count - 1]] = true;
    *at += use.dimension->overhead + bytes / use.rate;
    return true;
}

/* What simulate.h says, with a look at all moves at each event. */
static double simulated(const xm_program_t *p, const xm_interconnect_t *net)
{
    enum { NOT_YET, READY, MOVING, COMING, HERE } *state = calloc(p->count, sizeof(*state));
    double *at = calloc(p->count, sizeof(*at)), now = 0;
    bool *busy = calloc((size_t)xm_interconnect_resources(net), sizeof(*busy));
    xm_dependencies_t d;
    size_t m = 0;

    ck_assert_xm_ok(xm_dependencies_find(p, &d));
    for (size_t i = 0; i < p->count; ++i) {
        state[i] = d.send_waits[i] == 0 && d.receive_waits[i] == 0 ? READY : NOT_YET;
    }
    do {
        for (size_t i = 0; i < p->count; ++i) {
            at[i] = state[i] == READY ? now : at[i];
            state[i] = state[i] == READY && begins(p, net, i, busy, &at[i]) ? MOVING : state[i];
        }
        m = p->count;
        for (size_t i = 0; i < p->count; ++i) {
            bool under_way = state[i] == MOVING || state[i] == COMING;

            m = under_way && (m == p->count || at[i] < at[m]) ? i : m;
        }
        now = m < p->count ? at[m] : now;
        if (m < p->count && state[m] == MOVING) {
            xm_occupied_t use;

            ck_assert_xm_ok(xm_interconnect_use(net, p->moves[m].from, p->moves[m].to, &use));
            busy[use.resource[0]] = busy[use.resource[use.count - 1]] = false;
            at[m] = now + use.dimension->latency;
            state[m] = COMING;
        } else if (m < p->count) {
            state[m] = HERE;
            for (int64_t i = d.first[m]; i < d.first[m + 1]; ++i) {
                --(d.next[i] % 2 != 0 ? d.receive_waits : d.send_waits)[d.next[i] / 2];
            }
            for (int64_t i = d.first[m]; i < d.first[m + 1]; ++i) {
                size_t next = d.next[i] / 2;

                if (state[next] == NOT_YET && d.send_waits[next] == 0 &&
                    d.receive_waits[next] == 0) {
                    at[next] = now;
                    state[next] = begins(p, net, next, busy, &at[next]) ? MOVING : READY;
                }
            }
        }
    } while (m < p->count);
    xm_dependencies_clear(&d);
    free(busy);
    free(at);
    free(state);
    return now;
}

START_TEST(programs_compute_their_collectives_in_any_order)
{
    xm_random_t random = {5};

    for (int i = 0; i < xm_test_rounds(300); ++i) {
        xm_interconnect_t net;
        xm_build_t build;
        xm_program_t *p;
        double seconds, bound;

        random_net(&random, &net);
        random_build(&random, &net, &build);
        if (i % 10 == 0) {
            build = (xm_build_t){.kind = XM_ALL_TO_ALL};
            ck_assert_xm_ok(xm_build_all_to_all(net.devices, &p));
        } else {
            ck_assert_xm_ok(xm_build_factored(&build, &p));
        }
        ck_assert_int_le(p->chunks, CHUNKS);
        ck_assert_xm_ok(xm_program_check(p));
        ck_assert(computes(p, &random));
        ck_assert_xm_ok(xm_program_simulate(p, &net, BYTES, &seconds));
        ck_assert_double_eq_tol(seconds, simulated(p, &net), seconds * 1e-12);
        ck_assert_xm_ok(xm_collective_bound(
            &net, build.kind, build.last == XM_LAST_SWITCH,
            (double)BYTES / (build.kind == XM_ALL_TO_ALL ? net.devices : 1), 0, &bound));
        /* Chunks are whole bytes. */
        ck_assert_msg(seconds >= bound * 0.99, "%g below %g, case %d", seconds, bound, i);
        if (p->nodes == p->devices) { /* with messages that are announced */
            ck_assert_xm_ok(xm_program_simulate_queues(p, &net, 1000 * BYTES, &seconds));
            ck_assert_msg(seconds >= 1000 * bound * 0.99, "%g below %g, case %d", seconds,
                          1000 * bound, i);
        }
        xm_program_destroy(p);
    }
}
END_TEST

/* Two hosts of a rank each exchange a message: announced, granted, in segments of 64 KiB of which
 * the last crosses the second port alone, and acknowledged; short messages are only sent. One
 * processor does one message after the other. Of one message a burst passes both ports at once. */
START_TEST(queues_delay_what_is_announced_and_answered)
{
    enum { FRAME = 120, LONG = 1 << 20, SEGMENT = 1 << 16, SHORT = 1000, BURST = 100000 };
    const double rate = 1e6;
    xm_interconnect_t net = {.devices = 2, .dimensions = 2};
    xm_program_t *p;
    double seconds;

    net.dimension[0] = (xm_dimension_t){.extent = 1, .share = 1, .rate = rate, .ratio = 1};
    net.dimension[1] = (xm_dimension_t){.extent = 2, .share = 1, .rate = rate, .ratio = 1};
    ck_assert_xm_ok(xm_build_all_to_all(2, &p));
    ck_assert_xm_ok(xm_program_simulate_queues(p, &net, 4 * LONG, &seconds));
    ck_assert_double_eq_tol(seconds, (6 * FRAME + LONG + SEGMENT) / rate, 1e-9);
    ck_assert_xm_ok(xm_program_simulate_queues(p, &net, 4 * SHORT, &seconds));
    ck_assert_double_eq_tol(seconds, 2 * SHORT / rate, 1e-9);
    net.processors = 1;
    net.dimension[1].message = 3;
    net.dimension[1].cpu = 0.25;
    ck_assert_xm_ok(xm_program_simulate_queues(p, &net, 4 * SHORT, &seconds));
    ck_assert_double_eq_tol(seconds, 2 * SHORT / rate + 2 * (3 + 0.25 * SHORT), 1e-9);
    net.processors = 0;
    net.dimension[1].burst = BURST;
    xm_program_destroy(p);
    ck_assert_xm_ok(xm_program_create(XM_ALL_REDUCE, 2, 2, 1, &p));
    ck_assert_xm_ok(xm_program_add(p, (xm_move_t){0, 1, 0, 1, true}));
    ck_assert_xm_ok(xm_program_simulate_queues(p, &net, LONG, &seconds));
    ck_assert_double_eq_tol(seconds, (FRAME + LONG - BURST) / rate, 1e-9);
    xm_program_destroy(p);
}
END_TEST

/* A program with a move changed, left out or doubled: the checker says what moving numbers in the
 * order of the list says. */
START_TEST(the_checker_finds_what_is_wrong)
{
    xm_random_t random = {8};
    int wrong = 0, rounds = xm_test_rounds(400);

    for (int i = 0; i < rounds; ++i) {
        xm_interconnect_t net;
        xm_build_t build;
        xm_program_t *p;
        xm_move_t *move;
        bool right;

        random_net(&random, &net);
        random_build(&random, &net, &build);
        ck_assert_xm_ok(xm_build_factored(&build, &p));
        move = &p->moves[below(&random, (int)p->count)];
        switch (below(&random, 4)) {
        case 0:
            move->reduce = !move->reduce;
            break;
        case 1:
            *move = p->moves[--p->count];
            break;
        case 2:
            move->to = (move->from + 1 + below(&random, net.devices - 1)) % p->nodes;
            break;
        default:
            ck_assert_xm_ok(xm_program_add(p, *move));
        }
        right = xm_program_check(p) == XM_OK;
        wrong += !right;
        /* What is right computes; the checker refuses more: empty data that is sent in vain, and
         * what is doubled and then copied over. */
        ck_assert(!right || computes(p, &random));
        xm_program_destroy(p);
    }
    ck_assert_int_gt(wrong, rounds / 2);
}
END_TEST

/* The most trees that fit between the parts of any partition (Tutte, Nash-Williams), over all of
 * them. */
static double strength(const xm_interconnect_t *net, int *part, int device, int parts)
{
    int n = net->devices;
    double crossing = 0, least = INFINITY;

    if (device < n) {
        for (part[device] = 0; part[device] <= parts; ++part[device]) {
            least = fmin(least, strength(net, part, device + 1, parts + (part[device] == parts)));
        }
        return least;
    }
    for (int l = 0; l < n * n; ++l) {
        crossing += part[l / n] < part[l % n] || part[l / n] > part[l % n] ? net->link[l] / 2 : 0;
    }
    return parts > 1 ? crossing / (parts - 1) : INFINITY;
}

START_TEST(packed_trees_come_near_the_strength_of_the_links)
{
    xm_random_t random = {3};

    for (int i = 0; i < xm_test_rounds(30); ++i) {
        double link[64] = {0}, rate, seconds, bound, best;
        int n = 3 + below(&random, 4), part[8];
        xm_interconnect_t net = {.devices = n, .dimensions = 1, .link = link};
        xm_program_t *p;

        net.dimension[0].ratio = 1;
        for (int a = 0; a < n; ++a) {
            for (int b = 0; b < a; ++b) {
                link[a * n + b] = link[b * n + a] = b == a - 1 ? 1 : below(&random, 3);
            }
        }
        best = strength(&net, part, 0, 0);
        ck_assert_xm_ok(xm_build_packed_trees(&net, 16, &rate, &p));
        ck_assert_xm_ok(xm_program_check(p));
        ck_assert_double_ge(rate, best * 0.999999);
        ck_assert_double_le(rate, best * 1.03);
        ck_assert_xm_ok(xm_program_simulate(p, &net, 100000000, &seconds));
        ck_assert_xm_ok(xm_collective_bound(&net, XM_ALL_REDUCE, false, 1e8, rate, &bound));
        ck_assert_double_ge(seconds, bound * 0.999);
        ck_assert_double_ge(seconds, 1e8 / best * 0.999);
        xm_program_destroy(p);
    }
}
END_TEST

/* 512 devices: rings of 8 in hosts with a rail for each device, and all-to-all. */
START_TEST(programs_of_512_devices_are_near_the_bound)
{
    xm_interconnect_t net = {.devices = 512, .dimensions = 2};
    xm_build_t build = {.kind = XM_ALL_REDUCE,
                        .devices = 512,
                        .pieces = 24,
                        .factors = 2,
                        .factor = {{1, 8, false}, {8, 64, false}}};
    xm_program_t *p;
    double seconds, bound;

    net.dimension[0] = (xm_dimension_t){.extent = 8, .share = 1, .rate = 450e9, .ratio = 1};
    net.dimension[1] = (xm_dimension_t){.extent = 64, .share = 1, .rate = 50e9, .ratio = 1};
    ck_assert_xm_ok(xm_build_factored(&build, &p));
    ck_assert_xm_ok(xm_program_simulate(p, &net, 1 << 30, &seconds));
    /* Between hosts, with 512 NICs, and what a byte must cross: 2 · 63 times. */
    bound = 2.0 * 63 * (1 << 30) / (512 * 50e9);
    ck_assert_double_ge(seconds, bound);
    ck_assert_double_le(seconds, bound * 1.05);
    xm_program_destroy(p);
    ck_assert_xm_ok(xm_build_all_to_all(512, &p));
    ck_assert_xm_ok(xm_program_simulate(p, &net, INT64_C(512) << 28, &seconds));
    bound = 504.0 / 512 * (1 << 28) / 50e9;
    ck_assert_double_ge(seconds, bound);
    ck_assert_double_le(seconds, bound * 1.05);
    xm_program_destroy(p);
}
END_TEST

/* Each device has a place in each axis; along an axis only its place there changes. Found by trying
 * all ways to give axes parts, and held against the factors. */
START_TEST(axes_are_laid_on_dimensions_in_all_ways)
{
    const int size[] = {4, 6};
    const xm_interconnect_t net = {
        .devices = 24, .dimensions = 2, .dimension = {{.extent = 4}, {.extent = 6}}};
    xm_mapping_t *mappings;
    int count, expected = 0;

    for (int i = 0; i < 25 * 25; ++i) { /* parts of the first axis, which leave the second's */
        int a = i / 25, b = i % 25;

        expected += a * b == 4 && 4 % (a > 0 ? a : 5) == 0 && 6 % (b > 0 ? b : 7) == 0;
    }
    ck_assert_xm_ok(xm_mappings_list(&net, size, 2, &mappings, &count));
    ck_assert_int_eq(count, expected);
    for (int m = 0; m < count; ++m) {
        bool met[24] = {false};

        for (int first = 0; first < 4; ++first) {
            for (int second = 0; second < 6; ++second) {
                const int place[] = {first, second};
                int device = 0;

                for (int axis = 0; axis < 2; ++axis) {
                    xm_factor_t factors[XM_FACTORS_MOST];
                    int of[XM_FACTORS_MOST], left = place[axis];
                    int n = xm_mapping_factors(&net, &mappings[m], axis, factors, of);

                    for (int f = 0; f < n; left /= factors[f++].extent) {
                        device += left % factors[f].extent * factors[f].stride;
                    }
                }
                ck_assert(!met[device]);
                met[device] = true;
            }
        }
    }
    free(mappings);
    ck_assert_xm_fails(xm_mappings_list(&net, size, 1, &mappings, &count), XM_ERR_INVALID_ARGUMENT,
                       "multiply");
}
END_TEST

/* All numbers of 16 bits against the definition; and sums of any type against doubles. */
START_TEST(elements_are_added_and_rounded_to_the_nearest)
{
    xm_random_t random = {1};

    for (int h = 0; h < 0x7c00; ++h) {
        double value = h < 0x400 ? ldexp(h, -24) : ldexp((h & 0x3ff) | 0x400, (h >> 10) - 25);
        float found = xm_half_to_float((uint16_t)h), next = xm_half_to_float((uint16_t)(h + 1));

        ck_assert_double_eq((double)found, value);
        ck_assert_uint_eq(xm_half_of_float(-found), (uint16_t)(h | 0x8000));
        if (h + 1 < 0x7c00) {
            float half = (found + next) / 2;

            ck_assert_uint_eq(xm_half_of_float(half), (uint16_t)(h + (h & 1)));
            ck_assert_uint_eq(xm_half_of_float(nextafterf(half, INFINITY)), (uint16_t)(h + 1));
        }
    }
    ck_assert_uint_eq(xm_half_of_float(65520), 0x7c00);
    ck_assert(isinf(xm_half_to_float(0x7c00)) && isnan(xm_half_to_float(xm_half_of_float(NAN))));
    for (int t = 0; t < XM_ELEMENTS; ++t) {
        uint8_t a[1500 * 4], b[1500 * 4], sum[1500 * 4];

        for (int i = 0; i < 1500; ++i) {
            int x = below(&random, 100), y = below(&random, 100);

            xm_elements[t].put(a + (size_t)i * xm_elements[t].size, x);
            xm_elements[t].put(b + (size_t)i * xm_elements[t].size, y);
            xm_elements[t].put(sum + (size_t)i * xm_elements[t].size, x + y);
        }
        xm_elements[t].add(a, b, 1500);
        ck_assert_int_eq(memcmp(a, sum, 1500 * xm_elements[t].size), 0);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("collective");
    TCase *tcase = tcase_create("programs");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, programs_compute_their_collectives_in_any_order);
    tcase_add_test(tcase, queues_delay_what_is_announced_and_answered);
    tcase_add_test(tcase, the_checker_finds_what_is_wrong);
    tcase_add_test(tcase, packed_trees_come_near_the_strength_of_the_links);
    tcase_add_test(tcase, programs_of_512_devices_are_near_the_bound);
    tcase_add_test(tcase, axes_are_laid_on_dimensions_in_all_ways);
    tcase_add_test(tcase, elements_are_added_and_rounded_to_the_nearest);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
