/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "comm/base/random.h"
#include "comm/transport/sim.h"
#include "xm_test.h"

/* Messages are as long as they like: nothing is copied. */
static char byte;

enum { MAX_RANKS = 12, MAX_SLOTS = 60 };

typedef struct {
    xm_op_t op;
    xm_sim_fabric_t *fabric;
    int ended;
    xm_status_t status;
    int64_t ended_ns;
    char sentence[160];
} request_t;

static void on_done(xm_op_t *op, xm_status_t status)
{
    request_t *request = op->arg;

    ++request->ended;
    request->status = status;
    request->ended_ns = xm_sim_fabric_now(request->fabric);
    strncpy(request->sentence, xm_last_error(), sizeof(request->sentence) - 1);
}

typedef struct {
    int ranks;
    xm_sim_fabric_t *fabric;
    xm_transport_t *transport[MAX_RANKS];
} job_t;

/* Four ranks, two a host, unless the params say otherwise; nothing is copied. */
static void job_create(job_t *job, xm_sim_fabric_params_t *params)
{
    static const int hosts[] = {0, 0, 1, 1};

    if (params->ranks == 0) {
        params->ranks = 4;
        params->host_of_rank = hosts;
    }
    params->no_copy = true;
    job->ranks = params->ranks;
    ck_assert_xm_ok(xm_sim_fabric_create(params, &job->fabric));
    for (int r = 0; r < job->ranks; ++r) {
        ck_assert_xm_ok(xm_transport_sim_create(job->fabric, r, &job->transport[r]));
    }
}

static void job_destroy(job_t *job)
{
    for (int r = 0; r < job->ranks; ++r) {
        xm_transport_destroy(job->transport[r]);
    }
    xm_sim_fabric_destroy(job->fabric);
}

static void progress(job_t *job)
{
    for (int r = 0; r < job->ranks; ++r) {
        (void)xm_transport_progress(job->transport[r]);
    }
}

/* Runs until nothing moves. */
static void run(job_t *job)
{
    progress(job);
    while (xm_sim_fabric_step(job->fabric)) {
        progress(job);
    }
}

static void post_send(job_t *job, int from, int to, uint64_t tag, size_t length, uint64_t order,
                      request_t *request)
{
    request->op = (xm_op_t){.done = on_done, .arg = request, .order = order};
    request->fabric = job->fabric;
    ck_assert_int_eq(
        xm_transport_send(job->transport[from], to, tag, &byte, length, NULL, &request->op),
        XM_IN_PROGRESS);
}

static void receive(job_t *job, int from, int to, uint64_t tag, size_t length, request_t *request)
{
    request->op = (xm_op_t){.done = on_done, .arg = request};
    request->fabric = job->fabric;
    ck_assert_int_eq(
        xm_transport_receive(job->transport[to], from, tag, &byte, length, NULL, &request->op),
        XM_IN_PROGRESS);
}

/* Both halves of a message; the tag is its order. */
static void message(job_t *job, int from, int to, size_t length, uint64_t order, request_t *half)
{
    memset(half, 0, 2 * sizeof(*half));
    receive(job, from, to, order, length, &half[1]);
    post_send(job, from, to, order, length, order, &half[0]);
}

static void expect_end(const request_t *half, int64_t ns)
{
    for (int i = 0; i < 2; ++i) {
        ck_assert_int_eq(half[i].ended, 1);
        ck_assert_int_eq(half[i].status, XM_OK);
        ck_assert_int_eq(half[i].ended_ns, ns);
    }
}

START_TEST(each_direction_is_busy_as_long_as_its_own_rate_says)
{
    const double egress[] = {2e9, 1e9, 1e9}, ingress[] = {1e9, 0.5e9, 1e9};
    xm_sim_fabric_params_t params = {0};
    request_t slow[2], next[2], other[2];
    job_t job;

    params.ranks = 3;
    params.egress = egress;
    params.ingress = ingress;
    params.nic_latency = 7e-9;
    job_create(&job, &params);
    message(&job, 0, 1, 1000, 0, slow);  /* egress of 0 until 500, ingress of 1 until 2000 */
    message(&job, 0, 2, 1000, 0, next);  /* 500 to 1500 */
    message(&job, 2, 1, 1001, 0, other); /* 2000 to 4002 */
    run(&job);
    expect_end(slow, 2007);
    expect_end(next, 1507);
    expect_end(other, 4009);
    job_destroy(&job);
}
END_TEST

START_TEST(racks_share_their_uplinks)
{
    const int racks[] = {0, 0, 1, 1};
    xm_sim_fabric_params_t params = {0};
    request_t first[2], second[2], inside[2], back[2];
    job_t job;

    params.ranks = 4;
    params.rack_of_host = racks;
    params.uplink_bandwidth = 0.25e9;
    job_create(&job, &params);
    message(&job, 0, 2, 1000, 0, first);  /* the uplinks until 4000, the NICs until 1000 */
    message(&job, 1, 3, 1000, 0, second); /* 4000 to 8000 */
    message(&job, 0, 1, 1000, 0, inside); /* 1000 to 2000 */
    message(&job, 3, 1, 1000, 0, back);   /* the ingress of 1 is free at 2000 */
    run(&job);
    expect_end(first, 4000);
    expect_end(second, 8000);
    expect_end(inside, 2000);
    expect_end(back, 6000);
    job_destroy(&job);
}
END_TEST

START_TEST(ports_inside_a_host_are_shared)
{
    const int hosts[] = {0, 0, 0, 0};
    xm_sim_fabric_params_t params = {0};
    request_t a[2], b[2], c[2], d[2];
    job_t job;

    params.ranks = 4;
    params.host_of_rank = hosts;
    params.host_bandwidth = 1e9;
    params.host_latency = 3e-9;
    job_create(&job, &params);
    message(&job, 0, 1, 100, 0, a);
    message(&job, 0, 2, 100, 0, b); /* the port out of 0 */
    message(&job, 3, 2, 100, 0, c); /* the port into 2 */
    message(&job, 1, 0, 100, 0, d); /* the other directions */
    run(&job);
    expect_end(a, 103);
    expect_end(b, 203);
    expect_end(c, 303);
    expect_end(d, 103);
    job_destroy(&job);
}
END_TEST

START_TEST(bad_rates_and_racks_are_refused)
{
    const double none[] = {1e9, 0};
    const int racks[] = {0, 2};
    xm_sim_fabric_params_t params = {0};
    xm_sim_fabric_t *fabric;

    params.ranks = 2;
    params.ingress = none;
    ck_assert_xm_fails(xm_sim_fabric_create(&params, &fabric), XM_ERR_INVALID_ARGUMENT,
                       "the NICs of host 1 have no bandwidth");
    params.ingress = NULL;
    params.rack_of_host = racks;
    ck_assert_xm_fails(xm_sim_fabric_create(&params, &fabric), XM_ERR_INVALID_ARGUMENT,
                       "host 1 is on rack 2, outside 0 … 1");
}
END_TEST

START_TEST(resources_wait_for_the_message_whose_turn_it_is)
{
    const xm_sim_slot_t slots[] = {{0, 2, 7}, {1, 3, 5}, {0, 3, 9}};
    xm_sim_fabric_params_t params = {0};
    request_t first[2], second[2], third[2], aside[2];
    job_t job;

    job_create(&job, &params);
    ck_assert_xm_ok(xm_sim_fabric_set_order(job.fabric, slots, 3));
    for (int lap = 0; lap < 3; ++lap) {
        int64_t start = xm_sim_fabric_now(job.fabric);

        message(&job, 0, 3, 300, 9, third);
        message(&job, 1, 3, 200, 5, second);
        ck_assert(!xm_sim_fabric_step(job.fabric)); /* host 0's egress is 7's */
        ck_assert_xm_fails(xm_sim_fabric_set_order(job.fabric, NULL, 0), XM_ERR_INVALID_ARGUMENT,
                           "2 messages still wait for their turn");
        message(&job, 0, 2, 50, 0, aside); /* not subject to the order */
        message(&job, 0, 2, 100, 7, first);
        run(&job);
        expect_end(aside, start + 50);
        expect_end(first, start + 150);
        expect_end(second, start + 350);
        expect_end(third, start + 650);
    }
    ck_assert_xm_ok(xm_sim_fabric_set_order(job.fabric, NULL, 0));
    job_destroy(&job);
}
END_TEST

START_TEST(an_order_that_contradicts_the_program_stands_still)
{
    const xm_sim_slot_t slots[] = {{0, 2, 1}, {0, 2, 2}};
    xm_sim_fabric_params_t params = {0};
    request_t late[2];
    job_t job;

    job_create(&job, &params);
    ck_assert_xm_ok(xm_sim_fabric_set_order(job.fabric, slots, 2));
    message(&job, 0, 2, 10, 2, late);
    run(&job);
    ck_assert_int_eq(late[0].ended + late[1].ended, 0);
    job_destroy(&job);
    ck_assert_int_eq(late[0].status, XM_ERR_CANCELED);
    ck_assert_int_eq(late[1].status, XM_ERR_PEER_DIED); /* its sender's transport went first */
}
END_TEST

static void expect_refused(job_t *job, const request_t *half, const char *text)
{
    progress(job);
    for (int i = 0; i < 2; ++i) {
        ck_assert_int_eq(half[i].ended, 1);
        ck_assert_int_eq(half[i].status, XM_ERR_INVALID_ARGUMENT);
        ck_assert_msg(strstr(half[i].sentence, text) != NULL, "'%s' lacks '%s'", half[i].sentence,
                      text);
    }
}

START_TEST(messages_outside_the_order_are_refused)
{
    const xm_sim_slot_t slots[] = {{0, 2, 1}, {0, 2, 2}, {0, 2, 2}};
    const xm_sim_slot_t nowhere[] = {{0, 4, 1}}, unnamed[] = {{0, 2, 0}};
    xm_sim_fabric_params_t params = {0};
    request_t half[2], waits[2], again[2];
    job_t job;

    job_create(&job, &params);
    message(&job, 0, 2, 10, 1, half);
    expect_refused(&job, half,
                   "from rank 0 to rank 2 has the order 1, which is none of the "
                   "fabric's 0");
    ck_assert_xm_fails(xm_sim_fabric_set_order(job.fabric, slots, 3), XM_ERR_INVALID_ARGUMENT,
                       "slots 1 and 2 of the order both have number 2");
    ck_assert_xm_fails(xm_sim_fabric_set_order(job.fabric, nowhere, 1), XM_ERR_INVALID_ARGUMENT,
                       "from rank 0 to rank 4 of 4");
    ck_assert_xm_fails(xm_sim_fabric_set_order(job.fabric, unnamed, 1), XM_ERR_INVALID_ARGUMENT,
                       "numbers are not 0");
    ck_assert_xm_ok(xm_sim_fabric_set_order(job.fabric, slots, 2));
    message(&job, 0, 2, 10, 3, half);
    expect_refused(&job, half, "the order 3, which is none of the fabric's 2");
    message(&job, 0, 3, 10, 2, half);
    expect_refused(&job, half,
                   "the order 2 is for a message from rank 0 to rank 2, not from rank "
                   "0 to rank 3");
    message(&job, 0, 2, 10, 2, waits);
    message(&job, 0, 2, 10, 2, again);
    expect_refused(&job, again, "a message with the order 2 from rank 0 to rank 2 still waits");
    message(&job, 0, 2, 10, 1, half);
    run(&job);
    expect_end(half, 10);
    expect_end(waits, 20);
    job_destroy(&job);
}
END_TEST

START_TEST(a_message_that_waits_for_its_turn_can_be_cancelled)
{
    const xm_sim_slot_t slots[] = {{0, 2, 1}, {0, 2, 2}};
    xm_sim_fabric_params_t params = {0};
    request_t first[2], second[2];
    job_t job;

    for (int side = 0; side < 2; ++side) { /* the sender's or the receiver's half */
        job_create(&job, &params);
        ck_assert_xm_ok(xm_sim_fabric_set_order(job.fabric, slots, 2));
        message(&job, 0, 2, 10, 2, second);
        xm_transport_cancel(job.transport[side == 0 ? 0 : 2], &second[side].op);
        message(&job, 0, 2, 10, 1, first);
        run(&job);
        expect_end(first, 10);
        ck_assert(second[side].ended == 1 && second[side].status == XM_ERR_CANCELED);
        ck_assert_int_eq(second[1 - side].ended, 0);
        /* The other half matches a new one. */
        second[side].ended = 0;
        if (side == 0) {
            post_send(&job, 0, 2, 2, 10, 2, &second[0]);
        } else {
            receive(&job, 0, 2, 2, 10, &second[1]);
        }
        run(&job);
        expect_end(second, 20);
        job_destroy(&job);
    }
}
END_TEST

START_TEST(nobody_waits_for_the_dead)
{
    const xm_sim_slot_t slots[] = {{0, 2, 1}, {1, 2, 2}, {0, 3, 3}, {0, 2, 4}};
    xm_sim_fabric_params_t params = {0};
    request_t dead[2], alive[2];
    job_t job;

    job_create(&job, &params);
    ck_assert_xm_ok(xm_sim_fabric_set_order(job.fabric, slots, 4));
    message(&job, 1, 2, 10, 2, dead);
    message(&job, 0, 3, 10, 3, alive);
    run(&job);
    ck_assert_int_eq(dead[0].ended + alive[0].ended, 0);
    xm_sim_fabric_kill(job.fabric, 2);
    run(&job);
    ck_assert(dead[0].ended == 1 && dead[0].status == XM_ERR_PEER_DIED && dead[1].ended == 0);
    expect_end(alive, 10);
    message(&job, 0, 3, 10, 3, alive); /* the next lap has this one only */
    run(&job);
    expect_end(alive, 20);
    job_destroy(&job);
}
END_TEST

static int random_below(xm_random_t *state, int end)
{
    return (int)(xm_random_below(state, (uint64_t)end));
}

/* A random fabric, a random order on it, and its times by the rule, slot after slot. */
typedef struct {
    int hosts, racks, slots;
    int host_of[MAX_RANKS], rack_of[MAX_RANKS];
    double egress[MAX_RANKS], ingress[MAX_RANKS], uplink, port;
    xm_sim_slot_t slot[MAX_SLOTS];
    size_t bytes[MAX_SLOTS];
    int64_t free_out[MAX_RANKS], free_in[MAX_RANKS], free_up[MAX_RANKS], free_down[MAX_RANKS];
    int64_t port_out[MAX_RANKS], port_in[MAX_RANKS];
    int64_t end[MAX_SLOTS];
} scene_t;

static void scene_create(xm_random_t *state, scene_t *scene, xm_sim_fabric_params_t *params)
{
    int ranks = 2 + random_below(state, MAX_RANKS - 1);

    memset(scene, 0, sizeof(*scene));
    scene->hosts = 1 + random_below(state, ranks);
    scene->racks = 1 + random_below(state, scene->hosts);
    scene->slots = 1 + random_below(state, MAX_SLOTS);
    for (int i = 0; i < ranks; ++i) {
        scene->host_of[i] = random_below(state, scene->hosts);
        scene->rack_of[i] = random_below(state, scene->racks);
        scene->egress[i] = 1e8 * (1 + random_below(state, 30));
        scene->ingress[i] = 1e8 * (1 + random_below(state, 30));
    }
    scene->host_of[0] = scene->hosts - 1; /* as many as the arrays have */
    scene->uplink = 1e8 * random_below(state, 30);
    scene->port = 1e8 * (1 + random_below(state, 30));
    for (int s = 0; s < scene->slots; ++s) {
        scene->slot[s].sender = random_below(state, ranks);
        scene->slot[s].receiver =
            (scene->slot[s].sender + 1 + random_below(state, ranks - 1)) % ranks;
        scene->slot[s].order = (xm_random_next(state) & 0xffffff00) + (uint64_t)s + 1;
        scene->bytes[s] = 1 + (size_t)random_below(state, 5000);
    }
    params->ranks = ranks;
    params->host_of_rank = scene->host_of;
    params->egress = scene->egress;
    params->ingress = scene->ingress;
    params->rack_of_host = scene->rack_of;
    params->uplink_bandwidth = scene->uplink;
    params->host_bandwidth = scene->port;
    params->nic_latency = 11e-9;
    params->host_latency = 5e-9;
}

/* Slot s of a lap, ready at `ready`. */
static void advance(scene_t *scene, int s, int64_t ready)
{
    int from = scene->host_of[scene->slot[s].sender], to = scene->host_of[scene->slot[s].receiver];
    int64_t *free_at[4] = {&scene->free_out[from], &scene->free_in[to]}, start = ready, longest = 0;
    double rate[4] = {scene->egress[from], scene->ingress[to], scene->uplink, scene->uplink};
    int uses = 2;

    if (from == to) {
        free_at[0] = &scene->port_out[scene->slot[s].sender];
        free_at[1] = &scene->port_in[scene->slot[s].receiver];
        rate[0] = rate[1] = scene->port;
    } else if (scene->uplink > 0 && scene->rack_of[from] != scene->rack_of[to]) {
        free_at[2] = &scene->free_up[scene->rack_of[from]];
        free_at[3] = &scene->free_down[scene->rack_of[to]];
        uses = 4;
    }
    for (int i = 0; i < uses; ++i) {
        start = *free_at[i] > start ? *free_at[i] : start;
    }
    for (int i = 0; i < uses; ++i) {
        int64_t busy = (int64_t)ceil((double)scene->bytes[s] * 1e9 / rate[i]);

        *free_at[i] = start + busy;
        longest = busy > longest ? busy : longest;
    }
    scene->end[s] = start + longest + (from == to ? 5 : 11);
}

START_TEST(times_are_those_of_the_list)
{
    enum { LAPS = 3 };
    static request_t half[MAX_SLOTS][2];
    xm_random_t state = {5};

    for (int i = 0; i < 400; ++i) {
        xm_sim_fabric_params_t params = {0};
        int permutation[MAX_SLOTS], lap[MAX_SLOTS] = {0};
        int64_t expected[LAPS][MAX_SLOTS];
        static scene_t scene;
        job_t job;

        scene_create(&state, &scene, &params);
        for (int l = 0; l < LAPS; ++l) {
            for (int s = 0; s < scene.slots; ++s) {
                advance(&scene, s, l == 0 ? 0 : expected[l - 1][s]);
                expected[l][s] = scene.end[s];
            }
        }
        job_create(&job, &params);
        ck_assert_xm_ok(xm_sim_fabric_set_order(job.fabric, scene.slot, (size_t)scene.slots));
        for (int s = 0; s < scene.slots; ++s) {
            int other = random_below(&state, s + 1);

            permutation[s] = permutation[other];
            permutation[other] = s;
        }
        for (int p = 0; p < scene.slots; ++p) {
            int s = permutation[p];

            message(&job, scene.slot[s].sender, scene.slot[s].receiver, scene.bytes[s],
                    scene.slot[s].order, half[s]);
        }
        while (xm_sim_fabric_step(job.fabric)) {
            progress(&job);
            for (int s = 0; s < scene.slots; ++s) {
                if (half[s][0].ended == 1 && lap[s] < LAPS) {
                    expect_end(half[s], expected[lap[s]++][s]);
                    if (lap[s] < LAPS) {
                        message(&job, scene.slot[s].sender, scene.slot[s].receiver, scene.bytes[s],
                                scene.slot[s].order, half[s]);
                    }
                }
            }
        }
        for (int s = 0; s < scene.slots; ++s) {
            ck_assert_int_eq(lap[s], LAPS);
        }
        job_destroy(&job);
    }
}
END_TEST

/* Long lists that become ready back to front: quick only if nothing is searched. */
START_TEST(many_messages_in_order)
{
    enum { MESSAGES = 60000 };
    xm_sim_slot_t *slots = malloc(MESSAGES * sizeof(*slots));
    request_t(*half)[2] = malloc(MESSAGES * sizeof(*half));
    xm_sim_fabric_params_t params = {0};
    job_t job;

    ck_assert(slots != NULL && half != NULL);
    job_create(&job, &params);
    for (int s = 0; s < MESSAGES; ++s) {
        slots[s] = (xm_sim_slot_t){s % 2, 2 + s / 2 % 2, (uint64_t)s + 1};
    }
    ck_assert_xm_ok(xm_sim_fabric_set_order(job.fabric, slots, MESSAGES));
    for (int s = MESSAGES; s-- > 0;) {
        message(&job, slots[s].sender, slots[s].receiver, 10, slots[s].order, half[s]);
    }
    run(&job);
    for (int s = 0; s < MESSAGES; ++s) {
        expect_end(half[s], 10 * (s + 1));
    }
    job_destroy(&job);
    free(half);
    free(slots);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport_sim_order");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, each_direction_is_busy_as_long_as_its_own_rate_says);
    tcase_add_test(tcase, racks_share_their_uplinks);
    tcase_add_test(tcase, ports_inside_a_host_are_shared);
    tcase_add_test(tcase, bad_rates_and_racks_are_refused);
    tcase_add_test(tcase, resources_wait_for_the_message_whose_turn_it_is);
    tcase_add_test(tcase, an_order_that_contradicts_the_program_stands_still);
    tcase_add_test(tcase, messages_outside_the_order_are_refused);
    tcase_add_test(tcase, a_message_that_waits_for_its_turn_can_be_cancelled);
    tcase_add_test(tcase, nobody_waits_for_the_dead);
    tcase_add_test(tcase, times_are_those_of_the_list);
    tcase_add_test(tcase, many_messages_in_order);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
