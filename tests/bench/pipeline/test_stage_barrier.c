/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of a stage that wait for each other, on a simulated fabric. */
#include "bench/pipeline/stage_barrier.h"

#include "comm/transport/sim.h"
#include "xm_test.h"

enum { RANKS = 5, SLOTS = 2, MEMBERS = 3, CHANNEL = 254 };

/* Not the job's first ranks, and not in order. */
static const int members[MEMBERS] = {4, 1, 2};
static const int listener = 3;

typedef struct {
    xm_sim_fabric_t *fabric;
    xm_transport_t *transport[RANKS];
    rb_stage_barrier_t *stage_barrier[MEMBERS + 1]; /* of the members, then of the listener */
} fixture_t;

static void open_fixture(fixture_t *fixture, int count)
{
    xm_sim_fabric_params_t params = {0};

    *fixture = (fixture_t){0};
    params.ranks = RANKS;
    params.nic_latency = 1e-5;
    ck_assert_xm_ok(xm_sim_fabric_create(&params, &fixture->fabric));
    for (int r = 0; r < RANKS; ++r) {
        ck_assert_xm_ok(xm_transport_sim_create(fixture->fabric, r, &fixture->transport[r]));
    }
    for (int i = 0; i <= count; ++i) {
        int rank = i < count ? members[i] : listener;
        const rb_stage_barrier_params_t stage_barrier = {.transport = fixture->transport[rank],
                                                         .ranks = members,
                                                         .count = count,
                                                         .listeners = &listener,
                                                         .listener_count = 1,
                                                         .slots = SLOTS,
                                                         .channel = CHANNEL,
                                                         .number = 3};

        ck_assert_xm_ok(rb_stage_barrier_create(&stage_barrier, &fixture->stage_barrier[i]));
    }
}

static void close_fixture(fixture_t *fixture)
{
    for (int i = 0; i <= MEMBERS; ++i) {
        rb_stage_barrier_destroy(fixture->stage_barrier[i]);
    }
    for (int r = 0; r < RANKS; ++r) {
        xm_transport_destroy(fixture->transport[r]);
    }
    xm_sim_fabric_destroy(fixture->fabric);
}

/* Lets everything happen that can; the states are asked for as a rank in its loop would. */
static void settle(fixture_t *fixture, int count)
{
    do {
        for (int r = 0; r < RANKS; ++r) {
            while (xm_transport_progress(fixture->transport[r]) > 0) {
                continue;
            }
        }
        for (int i = 0; i <= count; ++i) {
            for (int s = 0; s < SLOTS; ++s) {
                (void)rb_stage_barrier_state(fixture->stage_barrier[i], s);
            }
        }
    } while (xm_sim_fabric_step(fixture->fabric));
}

static void expect_state(fixture_t *fixture, int slot, xm_status_t expected)
{
    for (int i = 0; i <= MEMBERS; ++i) {
        ck_assert_int_eq(rb_stage_barrier_state(fixture->stage_barrier[i], slot), expected);
    }
}

/* Nobody goes on before the last has arrived, whichever it is; then all do. */
START_TEST(all_wait_for_the_last)
{
    fixture_t fixture;

    open_fixture(&fixture, MEMBERS);
    for (int last = 0; last < MEMBERS; ++last) {
        for (int i = 0; i <= MEMBERS; ++i) {
            ck_assert_xm_ok(rb_stage_barrier_expect(fixture.stage_barrier[i], 0, last));
            ck_assert_xm_ok(rb_stage_barrier_expect(fixture.stage_barrier[i], 1, 100 + last));
        }
        for (int i = 0; i < MEMBERS; ++i) {
            if (i != last) {
                ck_assert_xm_ok(rb_stage_barrier_arrive(fixture.stage_barrier[i], 0));
            }
        }
        settle(&fixture, MEMBERS);
        expect_state(&fixture, 0, XM_IN_PROGRESS);
        /* A later message may be complete first. */
        for (int i = 0; i < MEMBERS; ++i) {
            ck_assert_xm_ok(rb_stage_barrier_arrive(fixture.stage_barrier[i], 1));
        }
        settle(&fixture, MEMBERS);
        expect_state(&fixture, 0, XM_IN_PROGRESS);
        expect_state(&fixture, 1, XM_OK);
        ck_assert_xm_ok(rb_stage_barrier_arrive(fixture.stage_barrier[last], 0));
        settle(&fixture, MEMBERS);
        expect_state(&fixture, 0, XM_OK);
        for (int i = 0; i <= MEMBERS; ++i) {
            ck_assert(rb_stage_barrier_is_idle(fixture.stage_barrier[i], 0));
            ck_assert(rb_stage_barrier_is_idle(fixture.stage_barrier[i], 1));
        }
    }
    close_fixture(&fixture);
}
END_TEST

START_TEST(one_rank_waits_for_nobody)
{
    fixture_t fixture;

    open_fixture(&fixture, 1);
    for (int i = 0; i < 2; ++i) {
        ck_assert_xm_ok(rb_stage_barrier_expect(fixture.stage_barrier[i], 0, 0));
        ck_assert_int_eq(rb_stage_barrier_state(fixture.stage_barrier[i], 0), XM_IN_PROGRESS);
    }
    ck_assert_xm_ok(rb_stage_barrier_arrive(fixture.stage_barrier[0], 0));
    ck_assert_int_eq(rb_stage_barrier_state(fixture.stage_barrier[0], 0), XM_OK);
    settle(&fixture, 1);
    ck_assert_int_eq(rb_stage_barrier_state(fixture.stage_barrier[1], 0), XM_OK);
    ck_assert(rb_stage_barrier_is_idle(fixture.stage_barrier[0], 0));
    close_fixture(&fixture);
}
END_TEST

/* The death of one is known to those that wait for it. */
START_TEST(a_dead_rank_is_an_error)
{
    fixture_t fixture;

    open_fixture(&fixture, MEMBERS);
    for (int i = 0; i < MEMBERS; ++i) {
        ck_assert_xm_ok(rb_stage_barrier_expect(fixture.stage_barrier[i], 0, 0));
    }
    xm_transport_peer_failed(fixture.transport[members[0]], members[1]);
    settle(&fixture, MEMBERS);
    ck_assert_xm_fails(rb_stage_barrier_state(fixture.stage_barrier[0], 0), XM_ERR_PEER_DIED,
                       "rank 4");
    close_fixture(&fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stage_barrier");
    TCase *tests = tcase_create("stage_barrier");

    tcase_add_test(tests, all_wait_for_the_last);
    tcase_add_test(tests, one_rank_waits_for_nobody);
    tcase_add_test(tests, a_dead_rank_is_an_error);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
