/* SPDX-License-Identifier: Apache-2.0 */
/* Multirail of the UCX transport without UCX: frames are put in by hand, and what would be sent
 * stays on its lists, where it is looked at. */
#include <stdlib.h>
#include <string.h>

#include "tests/comm/transport/ucx/multirail_peer.h"
#include "xm_test.h"

#include "comm/base/random.h"

enum { RANKS = 3, PEER = 1, LANES = 2, SHORT = 16 * 1024, CHUNK = 32 * 1024, RING = 4096 };
static const int64_t rail_timeout_ns = 1600000000;

typedef multirail_peer_t slot_t;

/* Rank 0. Nothing is given to UCX. */
static slot_t *sit(void)
{
    slot_t *slot = multirail_peer_open(0, RANKS, LANES);

    slot->transport.base.rail_timeout = rail_timeout_ns;
    for (int rank = 1; rank < RANKS; ++rank) {
        slot->peers[rank].base.rails->broken_at = 1;
    }
    return slot;
}

static uint8_t pattern(uint64_t number, size_t i)
{
    return (uint8_t)((xm_hash_spread(i + 1) + number * 0xbf58476d) >> 56);
}

typedef struct {
    xm_op_t op;
    bool ended;
    xm_status_t status;
    uint8_t bytes[4 * CHUNK];
} request_t;

static void on_done(xm_op_t *op, xm_status_t status)
{
    request_t *request = op->arg;

    request->ended = true;
    request->status = status;
}

static void post_receive(slot_t *slot, uint64_t tag, size_t length, request_t *request)
{
    memset(request, 0, sizeof(*request));
    request->op.done = on_done;
    request->op.arg = request;
    ck_assert_int_eq(xm_ucx_receive(&slot->transport.base.base, PEER, tag, request->bytes, length,
                                    NULL, &request->op),
                     XM_IN_PROGRESS);
}

static void expect_received(slot_t *slot, const request_t *request, uint64_t number, size_t length)
{
    size_t wrong = 0;

    (void)xm_rails_deliver(&slot->transport.base);
    ck_assert(request->ended);
    ck_assert_int_eq(request->status, XM_OK);
    for (size_t i = 0; i < length; ++i) {
        wrong += request->bytes[i] != pattern(number, i);
    }
    ck_assert_uint_eq(wrong, 0);
}

/* Frames from PEER, over lane 0. */
static void come(slot_t *slot, xm_rails_frame_kind_t kind, uint64_t number, uint64_t tag,
                 size_t length, size_t offset)
{
    uint8_t bytes[CHUNK];
    size_t size = kind == XM_RAILS_FRAME_EAGER ? length : kind == XM_RAILS_FRAME_CHUNK ? CHUNK : 0;
    xm_rails_frame_t frame = {.kind = kind,
                              .message = number,
                              .tag = tag,
                              .length = length,
                              .offset = offset,
                              .chunk = kind == XM_RAILS_FRAME_START ? CHUNK : 0};

    for (size_t i = 0; i < size; ++i) {
        bytes[i] = pattern(number, offset + i);
    }
    xm_rails_rx_on_frame(slot->peers[PEER].base.rails, 0, &frame, bytes, size);
}

/* How many messages the answers say are finished, with those that were still to be given. */
static uint64_t answered(const slot_t *slot)
{
    const xm_list_t *answers = &slot->peers[PEER].base.rails->answers;
    uint64_t count = 0;

    xm_rails_rx_catch_up(slot->peers[PEER].base.rails);
    for (xm_list_t *at = xm_list_first(answers); at != NULL; at = xm_list_next(answers, at)) {
        const xm_rails_frame_t *frame = &xm_list_entry(at, xm_rails_packet_t, link)->frame;

        if (frame->kind == XM_RAILS_FRAME_GRANT && frame->offset == XM_RAILS_FRAME_ALL) {
            count += frame->length;
        }
    }
    return count;
}

static bool has_answer(const slot_t *slot, int lane, xm_rails_frame_kind_t kind, uint64_t message,
                       uint64_t length)
{
    const xm_list_t *answers = &slot->peers[PEER].base.rails->answers;

    for (xm_list_t *at = xm_list_first(answers); at != NULL; at = xm_list_next(answers, at)) {
        const xm_rails_packet_t *packet = xm_list_entry(at, xm_rails_packet_t, link);

        if (packet->lane == lane && packet->frame.kind == kind &&
            packet->frame.message == message && packet->frame.length == length) {
            return true;
        }
    }
    return false;
}

/* Short messages whose sends have ended are answered together, XM_RAILS_LATE at a time; one whose
 * sender waits is answered at once. */
START_TEST(nobody_waits_for_the_answer_to_a_short_message)
{
    enum { COUNT = 3 * XM_RAILS_LATE };
    slot_t *slot = sit();
    xm_rails_t *multirail = slot->peers[PEER].base.rails;
    xm_rails_frame_t waits = {
        .kind = XM_RAILS_FRAME_EAGER, .message = COUNT + 1, .tag = 5, .length = 1, .chunk = 1};

    for (uint64_t number = 0; number <= COUNT; ++number) {
        come(slot, XM_RAILS_FRAME_EAGER, number, 5, 8, 0);
        ck_assert_int_eq(xm_list_is_empty(&multirail->answers), number + 1 < XM_RAILS_LATE);
    }
    ck_assert(has_answer(slot, 0, XM_RAILS_FRAME_GRANT, 0, COUNT));
    xm_rails_rx_on_frame(multirail, 0, &waits, (const uint8_t *)"x", 1);
    ck_assert(has_answer(slot, 0, XM_RAILS_FRAME_GRANT, COUNT + 1, 1));
    ck_assert_uint_eq(answered(slot), COUNT + 2);
    multirail_peer_close(slot);
}
END_TEST

/* A long message that nobody receives for a while keeps nothing of the later ones. */
START_TEST(one_message_may_wait_for_ever)
{
    enum { LATER = 20000, OLD_TAG = 99 };
    static request_t request;
    slot_t *slot = sit();
    const xm_rails_t *multirail = slot->peers[PEER].base.rails;

    come(slot, XM_RAILS_FRAME_START, 0, OLD_TAG, 4 * CHUNK, 0);
    for (uint64_t number = 1; number <= LATER; ++number) {
        post_receive(slot, 5, 8, &request);
        come(slot, XM_RAILS_FRAME_EAGER, number, 5, 8, 0);
        expect_received(slot, &request, number, 8);
    }
    ck_assert_uint_le(multirail->slot_count, RING);
    ck_assert_uint_eq(answered(slot), LATER);

    /* It is still known, is received when somebody wants it, and is finished once only. */
    come(slot, XM_RAILS_FRAME_START, 0, OLD_TAG, 4 * CHUNK, 0);
    post_receive(slot, OLD_TAG, 4 * CHUNK, &request);
    ck_assert(has_answer(slot, 0, XM_RAILS_FRAME_GRANT, 0, 1));
    for (size_t offset = 0; offset < 4 * CHUNK; offset += CHUNK) {
        ck_assert(!request.ended);
        come(slot, XM_RAILS_FRAME_CHUNK, 0, 0, 0, offset);
    }
    expect_received(slot, &request, 0, 4 * CHUNK);
    ck_assert_uint_eq(answered(slot), LATER + 1);
    come(slot, XM_RAILS_FRAME_START, 0, OLD_TAG, 4 * CHUNK, 0);
    come(slot, XM_RAILS_FRAME_EAGER, LATER / 2, 5, 8, 0);
    ck_assert_uint_eq(answered(slot), LATER + 3);
    ck_assert_ptr_eq(multirail->unclaimed.next, &multirail->unclaimed);
    multirail_peer_close(slot);
}
END_TEST

/* Short messages that nobody receives are stored up to a limit; beyond it their sender gets no
 * answer before they are received, in order and whole. */
START_TEST(unreceived_short_messages_are_owed_an_answer)
{
    enum { COUNT = XM_RAILS_KEPT / SHORT * 3 / 2 };
    static request_t request;
    slot_t *slot = sit();
    const xm_rails_t *multirail = slot->peers[PEER].base.rails;
    size_t kept;

    for (uint64_t number = 0; number < COUNT; ++number) {
        come(slot, XM_RAILS_FRAME_EAGER, number, 5, SHORT, 0);
    }
    ck_assert_uint_le(answered(slot), XM_RAILS_KEPT / SHORT);
    ck_assert_uint_ge(answered(slot), XM_RAILS_KEPT / SHORT * 9 / 10);
    kept = multirail->kept;
    come(slot, XM_RAILS_FRAME_EAGER, COUNT - 1, 5, SHORT, 0);
    ck_assert_uint_eq(multirail->kept, kept);
    for (uint64_t number = 0; number < COUNT; ++number) {
        post_receive(slot, 5, SHORT, &request);
        expect_received(slot, &request, number, SHORT);
    }
    ck_assert_uint_eq(answered(slot), COUNT);
    ck_assert_uint_eq(multirail->kept, 0);

    /* What waits at the end is thrown away. */
    for (uint64_t number = COUNT; number < 2 * COUNT + RING; ++number) {
        come(slot, XM_RAILS_FRAME_EAGER, number, 5, number < 2 * COUNT ? SHORT : 8, 0);
    }
    ck_assert_uint_le(multirail->slot_count, RING);
    multirail_peer_close(slot);
}
END_TEST

/* The sender of short messages that are not answered announces the next ones. */
START_TEST(a_sender_without_answers_announces)
{
    enum { COUNT = 2 * XM_RAILS_UNHEARD / SHORT };
    static const uint8_t bytes[SHORT];
    slot_t *slot = sit();
    xm_rails_t *multirail = slot->peers[PEER].base.rails;
    request_t *requests = calloc(COUNT + 1, sizeof(*requests));
    xm_rails_frame_t all = {
        .kind = XM_RAILS_FRAME_GRANT, .offset = XM_RAILS_FRAME_ALL, .length = COUNT / 4};
    int copied = 0, whole = 0;

    ck_assert_ptr_nonnull(requests);
    for (int i = 0; i <= COUNT; ++i) {
        const xm_rails_outgoing_t *message;
        xm_status_t status;

        if (i == COUNT) {
            xm_rails_tx_on_grant(multirail, &all, NULL, 0);
        }
        requests[i].op.done = on_done;
        requests[i].op.arg = &requests[i];
        status =
            xm_ucx_send(&slot->transport.base.base, PEER, 5, bytes, SHORT, NULL, &requests[i].op);
        ck_assert_int_eq(status < 0, false);
        message = xm_list_entry(multirail->unfinished.previous, xm_rails_outgoing_t, all);
        copied += i < COUNT && status == XM_OK;
        whole += i < COUNT && message->chunk == 0;
        ck_assert(i < COUNT || message->chunk == 0); /* after answers they go as they are again */
    }
    ck_assert_int_ge(copied, XM_RAILS_COPIES / SHORT * 9 / 10);
    ck_assert_int_le(copied, XM_RAILS_COPIES / SHORT);
    ck_assert_int_ge(whole, XM_RAILS_UNHEARD / SHORT * 9 / 10);
    ck_assert_int_le(whole, XM_RAILS_UNHEARD / SHORT);
    multirail_peer_close(slot);
    free(requests);
}
END_TEST

/* Who leaves says by every lane what has come, and nothing to who has left before. */
START_TEST(a_fin_repeats_all_answers)
{
    static request_t request;
    slot_t *slot = sit();

    come(slot, XM_RAILS_FRAME_EAGER, 0, 1, 8, 0);
    come(slot, XM_RAILS_FRAME_EAGER, 1, 1, 8, 0);
    come(slot, XM_RAILS_FRAME_START, 2, 2, 4 * CHUNK, 0);
    come(slot, XM_RAILS_FRAME_EAGER, 3, 1, 8, 0);
    for (uint64_t number = 0; number <= 3; number += 1 + number % 2) {
        post_receive(slot, 1, 8, &request);
        expect_received(slot, &request, number, 8);
    }
    xm_rails_rx_fin(slot->peers[PEER].base.rails);
    for (int lane = 0; lane < LANES; ++lane) {
        ck_assert(has_answer(slot, lane, XM_RAILS_FRAME_GRANT, 0, 2));
        ck_assert(has_answer(slot, lane, XM_RAILS_FRAME_GRANT, 3, 1));
        ck_assert(has_answer(slot, lane, XM_RAILS_FRAME_FIN, 0, 0));
    }
    ck_assert_uint_eq(answered(slot), 3 + 3 * LANES);
    slot->peers[PEER].base.rails->left = true;
    xm_rails_rx_fin(slot->peers[PEER].base.rails);
    ck_assert_uint_eq(answered(slot), 3 + 3 * LANES);
    multirail_peer_close(slot);
}
END_TEST

/* A NIC leads to all peers, and is lost once. */
START_TEST(a_lost_nic_is_counted_once)
{
    slot_t *slot = sit();
    xm_nic_counts_t counts;

    for (int rank = 1; rank < RANKS; ++rank) {
        static const uint8_t life[XM_NICS_MAX] = {0, 1};

        xm_rails_failover_learn(slot->peers[rank].base.rails, life);
        ck_assert_mem_eq(slot->peers[rank].base.rails->life, life, sizeof(life));
    }
    xm_counters_nic(slot->counters, 0, &counts);
    ck_assert_uint_eq(counts.failovers, 0);
    xm_counters_nic(slot->counters, 1, &counts);
    ck_assert_uint_eq(counts.failovers, 1);
    multirail_peer_close(slot);
}
END_TEST

/* How a rank looks after its lanes: how often, and which of them answer. */
static const struct {
    int64_t every_ms;
    unsigned answer;
    int most_looks; /* until lane 1 is given up; 0: never, in 200 looks */
} watches[] = {
    {100, 1, 40}, {100, 3, 0}, {700, 1, 20}, {700, 3, 0}, {5000, 1, 20}, {5000, 3, 0}, {700, 0, 0},
};

/* A rank that looks rarely, because it computes, finds a silent lane as well, if later; and takes
 * no lane for silent because it did not look itself. */
START_TEST(silence_is_found_by_a_busy_rank)
{
    static const uint8_t byte;
    static request_t request;
    slot_t *slot = sit();
    xm_ucx_transport_t *self = &slot->transport;
    xm_rails_t *multirail = slot->peers[PEER].base.rails;
    int looks = 0;

    request.op.done = on_done;
    request.op.arg = &request;
    ck_assert_xm_ok(xm_ucx_send(&self->base.base, PEER, 5, &byte, 1, NULL,
                                &request.op)); /* is never answered */
    while (looks < 200 && (multirail->life[0] | multirail->life[1]) == 0) {
        self->base.clock += watches[_i].every_ms * 1000000;
        for (int lane = 0; lane < LANES; ++lane) {
            if ((watches[_i].answer >> lane & 1) != 0 && multirail->lanes[lane].asked_at != 0) {
                xm_rails_failover_heard(multirail, lane, (uint8_t[XM_NICS_MAX]){0});
            }
        }
        multirail->broken_at = 0; /* no error was reported */
        xm_rails_failover_look(&self->base);
        multirail->broken_at = 1;
        ++looks;
    }
    if (watches[_i].most_looks == 0) {
        ck_assert_int_eq(looks, 200);
    } else {
        ck_assert_uint_eq(multirail->life[0], 0);
        ck_assert_uint_eq(multirail->life[1], 1);
        ck_assert_int_le(looks, watches[_i].most_looks);
    }
    multirail_peer_close(slot);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport_ucx_multirail");
    TCase *tcase = tcase_create("multirail");

    tcase_set_timeout(tcase, 30);
    tcase_add_test(tcase, nobody_waits_for_the_answer_to_a_short_message);
    tcase_add_test(tcase, one_message_may_wait_for_ever);
    tcase_add_test(tcase, unreceived_short_messages_are_owed_an_answer);
    tcase_add_test(tcase, a_sender_without_answers_announces);
    tcase_add_test(tcase, a_fin_repeats_all_answers);
    tcase_add_test(tcase, a_lost_nic_is_counted_once);
    tcase_add_loop_test(tcase, silence_is_found_by_a_busy_rank, 0,
                        (int)(sizeof(watches) / sizeof(watches[0])));
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
