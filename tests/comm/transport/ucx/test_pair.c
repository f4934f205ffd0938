/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks' multirail over three lanes without UCX, whose place this test takes: frames are packed
 * and arrive when chance says so, in order on each lane; lanes die, one way or both, and come back
 * too late. Whatever happens, every message arrives once, whole, and in the order of its tag. Where
 * lanes fetch, a fetch writes until it has ended, from memory that the sender's owner may use again
 * as soon as it has ended. */
#include <stdlib.h>
#include <string.h>

#include "tests/comm/transport/ucx/fake_ucx.h"
#include "tests/comm/transport/ucx/multirail_peer.h"
#include "xm_test.h"

#include "comm/base/random.h"

enum {
    RANKS = FAKE_RANKS,
    LANES = FAKE_LANES,
    MESSAGES = 120,
    TAGS = 5,
    LONGEST = 300000,
    SEEDS = 16,
    RING = 4096
};
enum { MOST_STEPS = 400000, STEP_NS = 1000000 };

static bool fetching; /* the lanes fetch */
static int64_t clock_ns;

/* ---- the ranks ----------------------------------------------------------------------------------
 */

static int64_t virtual_now(const xm_transport_t *transport)
{
    (void)transport;
    return clock_ns;
}

static multirail_peer_t *sit(int rank)
{
    static xm_transport_ops_t ops;
    multirail_peer_t *slot = multirail_peer_open(rank, RANKS, LANES);
    xm_ucx_transport_t *self = &slot->transport;

    ops = xm_ucx_ops;
    ops.now = virtual_now;
    self->base.base.ops = &ops;
    self->base.rail_timeout = INT64_C(1600000000);
    slot->peers[1 - rank].base.rails->way = fetching ? XM_RAILS_FETCH : XM_RAILS_COPY;
    slot->peers[1 - rank].base.connected = !fetching;
    for (int lane = 0; lane < LANES; ++lane) {
        if (!fetching) {
            slot->peers[1 - rank].lanes[lane].ep = (ucp_ep_h)(void *)&fake.ways[rank][lane];
        }
        slot->peers[1 - rank].lanes[lane].address = &fake.ways[rank][lane];
        slot->peers[1 - rank].lanes[lane].peer = &slot->peers[1 - rank];
        self->rails[XM_UCX_RAIL_NIC + lane].worker =
            (ucp_worker_h)(void *)&fake.ways[1 - rank][lane];
        ck_assert_xm_ok(xm_ucx_listen(self, XM_UCX_RAIL_NIC + lane));
    }
    return slot;
}

static void progress(multirail_peer_t *slot)
{
    xm_ucx_transport_t *self = &slot->transport;

    self->base.clock = clock_ns;
    fake.counting = fake.strict;
    xm_rails_failover_look(&self->base);
    xm_rails_progress(&self->base);
    (void)xm_rails_deliver(&self->base);
    fake.counting = false;
}

typedef struct {
    xm_op_t op;
    uint8_t *bytes;
    size_t sent; /* bytes of a send */
    int ends;
    xm_status_t status;
} request_t;

typedef struct {
    size_t length[MESSAGES];
    request_t sends[MESSAGES], receives[MESSAGES];
    int sent, received; /* posted */
} traffic_t;

static void on_done(xm_op_t *op, xm_status_t status)
{
    request_t *request = op->arg;

    ++request->ends;
    request->status = status;
    /* Who has ended a send may write to its memory. */
    if (request->sent > 0) {
        memset(request->bytes, 0, request->sent);
    }
}

static uint8_t pattern(int rank, int message, size_t i)
{
    return (uint8_t)((xm_hash_spread(i + 1) + (uint64_t)(RANKS * message + rank) * 0xbf58476d) >>
                     56);
}

/* The next message from `rank`, or its receive. */
static void post(multirail_peer_t *const *slots, traffic_t *traffic, int rank, bool send)
{
    int i = send ? traffic->sent++ : traffic->received++, at = send ? rank : 1 - rank;
    request_t *request = send ? &traffic->sends[i] : &traffic->receives[i];
    xm_transport_t *transport = &slots[at]->transport.base.base;
    size_t length = traffic->length[i];
    xm_status_t status;

    request->op.done = on_done;
    request->op.arg = request;
    request->sent = send ? length : 0;
    request->bytes = calloc(1, length);
    ck_assert_ptr_nonnull(request->bytes);
    for (size_t byte = 0; byte < length && send; ++byte) {
        request->bytes[byte] = pattern(rank, i, byte);
    }
    fake.counting = fake.strict;
    status = send ? xm_ucx_send(transport, 1 - at, (uint64_t)i % TAGS, request->bytes, length, NULL,
                                &request->op)
                  : xm_ucx_receive(transport, 1 - at, (uint64_t)i % TAGS, request->bytes, length,
                                   NULL, &request->op);
    fake.counting = false;
    if (status != XM_IN_PROGRESS) {
        on_done(&request->op, status);
    }
}

static bool all_ended(const traffic_t *traffic)
{
    bool all = true;

    for (int i = 0; i < MESSAGES && all; ++i) {
        all = traffic->sends[i].ends > 0 && traffic->receives[i].ends > 0;
    }
    return all;
}

static void check(const traffic_t *traffic, int rank)
{
    for (int i = 0; i < MESSAGES; ++i) {
        const request_t *receive = &traffic->receives[i];
        size_t wrong = 0;

        ck_assert_int_eq(traffic->sends[i].ends, 1);
        ck_assert_int_eq(traffic->sends[i].status, XM_OK);
        ck_assert_int_eq(receive->ends, 1);
        ck_assert_int_eq(receive->status, XM_OK);
        for (size_t byte = 0; byte < traffic->length[i]; ++byte) {
            wrong += receive->bytes[byte] != pattern(rank, i, byte);
        }
        ck_assert_msg(wrong == 0, "message %d of rank %d: %zu bytes are wrong", i, rank, wrong);
    }
}

static void release(traffic_t *traffic)
{
    for (int i = 0; i < MESSAGES; ++i) {
        free(traffic->sends[i].bytes);
        free(traffic->receives[i].bytes);
    }
}

/* One of the lanes dies, on one way or on both; what was on the wire is lost, or comes late. */
static void kill(int lane)
{
    uint64_t which = fake_any(3);

    for (int rank = 0; rank < RANKS; ++rank) {
        fake_way_t *way = &fake.ways[rank][lane];

        way->dead = which == 2 || (uint64_t)rank == which;
        way->lossy = way->dead && fake_any(2) == 0;
        if (way->lossy) {
            fake_lose(way);
        }
    }
}

/* What a connection has lost it does not carry on without. */
static void revive(int lane)
{
    for (int rank = 0; rank < RANKS; ++rank) {
        fake.ways[rank][lane].dead = fake.ways[rank][lane].lossy;
    }
}

/* Receives are posted before or after their messages come, or much later. */
static void maybe_post(multirail_peer_t *const *slots, traffic_t *traffic, int rank,
                       uint64_t laziness)
{
    if (traffic->sent < MESSAGES && fake_any(8) == 0) {
        post(slots, traffic, rank, true);
    }
    if (traffic->received < MESSAGES && fake_any(laziness) == 0) {
        post(slots, traffic, rank, false);
    }
}

START_TEST(messages_survive_lanes)
{
    static traffic_t traffic[RANKS];
    multirail_peer_t *slots[RANKS];
    uint64_t laziness;
    int step = 0, deaths[LANES - 1], dying;

    fake.chance = (uint64_t)_i * 977 + 1;
    fetching = _i % 2 == 1;
    clock_ns = 1;
    memset(fake.ways, 0, sizeof(fake.ways));
    memset(traffic, 0, sizeof(traffic));
    laziness = (uint64_t[]){4, 12, 400}[fake_any(3)];
    dying = (int)fake_any(LANES);
    for (int i = 0; i < LANES - 1; ++i) {
        deaths[i] = (int)fake_any(2000);
    }
    for (int rank = 0; rank < RANKS; ++rank) {
        slots[rank] = sit(rank);
        for (int i = 0; i < MESSAGES; ++i) {
            traffic[rank].length[i] = 1 + fake_any((uint64_t[]){100, XM_UCX_EAGER, 2 * XM_UCX_EAGER,
                                                                LONGEST}[fake_any(4)]);
        }
    }
    while (!(all_ended(&traffic[0]) && all_ended(&traffic[1]))) {
        ck_assert_msg(++step < MOST_STEPS, "seed %d: nothing moves any more", _i);
        clock_ns += STEP_NS;
        for (int i = 0; i < LANES - 1; ++i) {
            if (step == deaths[i]) {
                kill((dying + i) % LANES);
            } else if (step == deaths[i] + 6000) { /* given up since long */
                revive((dying + i) % LANES);
            }
        }
        for (int rank = 0; rank < RANKS; ++rank) {
            maybe_post(slots, &traffic[rank], rank, laziness);
            for (int i = 0; i < 8; ++i) {
                fake_move(&fake.ways[fake_any(RANKS)][fake_any(LANES)]);
            }
            if (fake_any(3) > 0) {
                progress(slots[rank]);
            }
        }
    }
    for (int rank = 0; rank < RANKS; ++rank) {
        const xm_rails_t *multirail = slots[rank]->peers[1 - rank].base.rails;

        check(&traffic[rank], rank);
        ck_assert_uint_eq(multirail->kept, 0);
        ck_assert_uint_le(multirail->slot_count, RING);
        ck_assert_ptr_eq(multirail->unclaimed.next, &multirail->unclaimed);
    }
    for (int rank = 0; rank < RANKS; ++rank) {
        for (int lane = 0; lane < LANES; ++lane) {
            fake_drop(&fake.ways[rank][lane]);
        }
        multirail_peer_close(slots[rank]);
        release(&traffic[rank]);
    }
}
END_TEST

/* Whether both ranks use a lane, and agree on how often it was lost. */
static bool is_used(multirail_peer_t *const *slots, int lane)
{
    const xm_rails_t *both[RANKS];

    for (int rank = 0; rank < RANKS; ++rank) {
        both[rank] = slots[rank]->peers[1 - rank].base.rails;
    }
    return both[0]->life[lane] % 2 == 0 && both[0]->life[lane] == both[1]->life[lane];
}

/* Posts all messages, the receives before or after the sends, and sees them end. */
static void play_round(multirail_peer_t *const *slots, traffic_t *traffic, bool late)
{
    int step = 0;

    for (int rank = 0; rank < RANKS; ++rank) {
        memset(&traffic[rank], 0, sizeof(traffic[rank]));
        for (int i = 0; i < MESSAGES; ++i) {
            traffic[rank].length[i] = (size_t[]){8, 700, 19000, 70001, LONGEST}[i % 5];
        }
    }
    for (int i = 0; i < 2 * RANKS * MESSAGES; ++i) {
        post(slots, &traffic[i % RANKS], i % RANKS, (i < RANKS * MESSAGES) == late);
    }
    while (!(all_ended(&traffic[0]) && all_ended(&traffic[1]))) {
        ck_assert_msg(++step < MOST_STEPS, "nothing moves any more");
        clock_ns += STEP_NS;
        for (int i = 0; i < 8; ++i) {
            fake_move(&fake.ways[fake_any(RANKS)][fake_any(LANES)]);
        }
        progress(slots[step % RANKS]);
    }
    for (int rank = 0; rank < RANKS; ++rank) {
        check(&traffic[rank], rank);
        release(&traffic[rank]);
    }
}

/* Once as much was in flight as will be. */
START_TEST(posting_allocates_nothing)
{
    enum { WARM = 4, ROUNDS = 10 };
    static traffic_t traffic[RANKS];
    multirail_peer_t *slots[RANKS];

    fake.chance = 4711;
    fetching = _i == 1;
    clock_ns = 1;
    memset(fake.ways, 0, sizeof(fake.ways));
    for (int rank = 0; rank < RANKS; ++rank) {
        slots[rank] = sit(rank);
    }
    fake.allocations = 0;
    for (int round = 0; round < ROUNDS; ++round) {
        fake.strict = round >= WARM;
        play_round(slots, traffic, round % 2 == 0);
    }
    fake.strict = false;
    ck_assert_int_eq(fake.allocations, 0);
    for (int rank = 0; rank < RANKS; ++rank) {
        for (int lane = 0; lane < LANES; ++lane) {
            fake_drop(&fake.ways[rank][lane]);
        }
        multirail_peer_close(slots[rank]);
    }
}
END_TEST

/* Until both ranks use the lane again; returns how long that took. */
static int64_t wait_for_lane(multirail_peer_t *const *slots, int lane)
{
    int64_t started = clock_ns;

    while (!is_used(slots, lane)) {
        ck_assert_int_lt(clock_ns - started, INT64_C(1000000000000));
        clock_ns += STEP_NS;
        for (int i = 0; i < 8; ++i) {
            fake_move(&fake.ways[fake_any(RANKS)][fake_any(LANES)]);
        }
        progress(slots[fake_any(RANKS)]);
    }
    return clock_ns - started;
}

static uint64_t carried(multirail_peer_t *const *slots, int lane)
{
    xm_nic_counts_t counts;

    xm_counters_nic(slots[0]->counters, lane, &counts);
    return counts.bytes[XM_SENT];
}

/* A lane that passes again is used again, as much as before and not more; what it held is no news.
 * Each further loss keeps it away for longer. */
START_TEST(a_lane_comes_back)
{
    enum { LANE = 1, LOSSES = 4 };
    static traffic_t traffic[RANKS];
    multirail_peer_t *slots[RANKS];
    int64_t away[LOSSES];
    uint64_t before[LANES], all = 0, most = 0;

    fake.chance = (uint64_t)_i * 31 + 5;
    fetching = _i > RANKS;
    clock_ns = 1;
    memset(fake.ways, 0, sizeof(fake.ways));
    for (int rank = 0; rank < RANKS; ++rank) {
        slots[rank] = sit(rank);
    }
    for (int loss = 0; loss < LOSSES; ++loss) {
        for (int rank = 0; rank < RANKS; ++rank) {
            fake.ways[rank][LANE].dead = _i % (RANKS + 1) == RANKS || rank == _i % (RANKS + 1);
        }
        while (is_used(slots, LANE)) {
            play_round(slots, traffic, false);
        }
        for (int rank = 0; rank < RANKS; ++rank) {
            fake.ways[rank][LANE].dead = false;
        }
        away[loss] = wait_for_lane(slots, LANE);
        /* Where lanes fetch it is the rank that found the loss who asks, and each waits longer
         * after its own. */
        ck_assert(loss < 1 + fetching || away[loss] > away[loss - 1 - fetching] * 5 / 4);
    }
    for (int lane = 0; lane < LANES; ++lane) {
        before[lane] = carried(slots, lane);
    }
    play_round(slots, traffic, true);
    for (int lane = 0; lane < LANES; ++lane) {
        uint64_t now = carried(slots, lane) - before[lane];

        all += now;
        most = now > most ? now : most;
    }
    ck_assert_uint_le(most, all * 2 / LANES);
    ck_assert_uint_ge(carried(slots, LANE) - before[LANE], all / LANES / 2);
    for (int rank = 0; rank < RANKS; ++rank) {
        for (int lane = 0; lane < LANES; ++lane) {
            fake_drop(&fake.ways[rank][lane]);
        }
        multirail_peer_close(slots[rank]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport_ucx_pair");
    TCase *tcase = tcase_create("chance");

    /* Lanes are lost all the time here, and that is said. */
    if (setenv("XM_LOG", "error", 1) != 0) {
        return EXIT_FAILURE;
    }
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, messages_survive_lanes, 0, SEEDS);
    tcase_add_loop_test(tcase, a_lane_comes_back, 0, 2 * (RANKS + 1));
    tcase_add_loop_test(tcase, posting_allocates_nothing, 0, 2);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
