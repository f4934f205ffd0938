/* Mail of the UCX transport without UCX: frames are put in by hand, and what would be sent stays on
 * its lists, where it is looked at. */
#include <stdlib.h>
#include <string.h>

#include "tests/comm/transport/ucx/mail_seat.h"
#include "xm_test.h"

#include "comm/base/random.h"

enum { RANKS = 3, PEER = 1, LANES = 2, SHORT = 16 * 1024, CHUNK = 32 * 1024, RING = 4096 };
static const int64_t patience_ns = 1600000000;

typedef mail_seat_t seat_t;

/* Rank 0. Nothing is given to UCX. */
static seat_t *sit(void)
{
    seat_t *seat = mail_seat_open(0, RANKS, LANES);

    seat->transport.patience = patience_ns;
    for (int rank = 1; rank < RANKS; ++rank) {
        seat->peers[rank].mail->broken_at = 1;
    }
    return seat;
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

static void post_receive(seat_t *seat, uint64_t tag, size_t length, request_t *request)
{
    memset(request, 0, sizeof(*request));
    request->op.done = on_done;
    request->op.arg = request;
    ck_assert_int_eq(xm_ucx_receive(&seat->transport.base, PEER, tag, request->bytes, length, NULL,
                                    &request->op),
                     XM_IN_PROGRESS);
}

static void expect_received(seat_t *seat, const request_t *request, uint64_t number, size_t length)
{
    size_t wrong = 0;

    (void)xm_ucx_deliver(&seat->transport);
    ck_assert(request->ended);
    ck_assert_int_eq(request->status, XM_OK);
    for (size_t i = 0; i < length; ++i) {
        wrong += request->bytes[i] != pattern(number, i);
    }
    ck_assert_uint_eq(wrong, 0);
}

/* Frames from PEER, over lane 0. */
static void come(seat_t *seat, xm_ucx_frame_kind_t kind, uint64_t number, uint64_t tag,
                 size_t length, size_t offset)
{
    uint8_t bytes[CHUNK];
    size_t size = kind == XM_UCX_FRAME_EAGER ? length : kind == XM_UCX_FRAME_CHUNK ? CHUNK : 0;
    xm_ucx_frame_t frame = {.kind = kind,
                            .message = number,
                            .tag = tag,
                            .length = length,
                            .offset = offset,
                            .chunk = kind == XM_UCX_FRAME_START ? CHUNK : 0};

    for (size_t i = 0; i < size; ++i) {
        bytes[i] = pattern(number, offset + i);
    }
    xm_ucx_inbox_on_frame(seat->peers[PEER].mail, 0, &frame, bytes, size);
}

/* How many messages the answers say are finished. */
static uint64_t answered(const seat_t *seat)
{
    const xm_list_t *answers = &seat->peers[PEER].mail->answers;
    uint64_t count = 0;

    for (xm_list_t *at = xm_list_first(answers); at != NULL; at = xm_list_next(answers, at)) {
        const xm_ucx_frame_t *frame = &xm_list_entry(at, xm_ucx_parcel_t, link)->frame;

        if (frame->kind == XM_UCX_FRAME_GRANT && frame->offset == XM_UCX_FRAME_ALL) {
            count += frame->length;
        }
    }
    return count;
}

static bool has_answer(const seat_t *seat, int lane, xm_ucx_frame_kind_t kind, uint64_t message,
                       uint64_t length)
{
    const xm_list_t *answers = &seat->peers[PEER].mail->answers;

    for (xm_list_t *at = xm_list_first(answers); at != NULL; at = xm_list_next(answers, at)) {
        const xm_ucx_parcel_t *parcel = xm_list_entry(at, xm_ucx_parcel_t, link);

        if (parcel->lane == lane && parcel->frame.kind == kind &&
            parcel->frame.message == message && parcel->frame.length == length) {
            return true;
        }
    }
    return false;
}

/* A long message that nobody receives for a while keeps nothing of the later ones. */
START_TEST(one_message_may_wait_for_ever)
{
    enum { LATER = 20000, OLD_TAG = 99 };
    static request_t request;
    seat_t *seat = sit();
    const xm_ucx_mail_t *mail = seat->peers[PEER].mail;

    come(seat, XM_UCX_FRAME_START, 0, OLD_TAG, 4 * CHUNK, 0);
    for (uint64_t number = 1; number <= LATER; ++number) {
        post_receive(seat, 5, 8, &request);
        come(seat, XM_UCX_FRAME_EAGER, number, 5, 8, 0);
        expect_received(seat, &request, number, 8);
    }
    ck_assert_uint_le(mail->slot_count, RING);
    ck_assert_uint_eq(answered(seat), LATER);

    /* It is still known, is received when somebody wants it, and is finished once only. */
    come(seat, XM_UCX_FRAME_START, 0, OLD_TAG, 4 * CHUNK, 0);
    post_receive(seat, OLD_TAG, 4 * CHUNK, &request);
    ck_assert(has_answer(seat, 0, XM_UCX_FRAME_GRANT, 0, 1));
    for (size_t offset = 0; offset < 4 * CHUNK; offset += CHUNK) {
        ck_assert(!request.ended);
        come(seat, XM_UCX_FRAME_CHUNK, 0, 0, 0, offset);
    }
    expect_received(seat, &request, 0, 4 * CHUNK);
    ck_assert_uint_eq(answered(seat), LATER + 1);
    come(seat, XM_UCX_FRAME_START, 0, OLD_TAG, 4 * CHUNK, 0);
    come(seat, XM_UCX_FRAME_EAGER, LATER / 2, 5, 8, 0);
    ck_assert_uint_eq(answered(seat), LATER + 3);
    ck_assert_ptr_eq(mail->unclaimed.next, &mail->unclaimed);
    mail_seat_close(seat);
}
END_TEST

/* Short messages that nobody receives are stored up to a limit; beyond it their sender gets no
 * answer before they are received, in order and whole. */
START_TEST(unreceived_short_messages_are_owed_an_answer)
{
    enum { COUNT = XM_UCX_MAIL_KEPT / SHORT * 3 / 2 };
    static request_t request;
    seat_t *seat = sit();
    const xm_ucx_mail_t *mail = seat->peers[PEER].mail;
    size_t kept;

    for (uint64_t number = 0; number < COUNT; ++number) {
        come(seat, XM_UCX_FRAME_EAGER, number, 5, SHORT, 0);
    }
    ck_assert_uint_le(answered(seat), XM_UCX_MAIL_KEPT / SHORT);
    ck_assert_uint_ge(answered(seat), XM_UCX_MAIL_KEPT / SHORT * 9 / 10);
    kept = mail->kept;
    come(seat, XM_UCX_FRAME_EAGER, COUNT - 1, 5, SHORT, 0);
    ck_assert_uint_eq(mail->kept, kept);
    for (uint64_t number = 0; number < COUNT; ++number) {
        post_receive(seat, 5, SHORT, &request);
        expect_received(seat, &request, number, SHORT);
    }
    ck_assert_uint_eq(answered(seat), COUNT);
    ck_assert_uint_eq(mail->kept, 0);

    /* What waits at the end is thrown away. */
    for (uint64_t number = COUNT; number < 2 * COUNT + RING; ++number) {
        come(seat, XM_UCX_FRAME_EAGER, number, 5, number < 2 * COUNT ? SHORT : 8, 0);
    }
    ck_assert_uint_le(mail->slot_count, RING);
    mail_seat_close(seat);
}
END_TEST

/* The sender of short messages that are not answered announces the next ones. */
START_TEST(a_sender_without_answers_announces)
{
    enum { COUNT = 2 * XM_UCX_MAIL_UNHEARD / SHORT };
    static const uint8_t bytes[SHORT];
    seat_t *seat = sit();
    xm_ucx_mail_t *mail = seat->peers[PEER].mail;
    request_t *requests = calloc(COUNT + 1, sizeof(*requests));
    xm_ucx_frame_t all = {
        .kind = XM_UCX_FRAME_GRANT, .offset = XM_UCX_FRAME_ALL, .length = COUNT / 4};
    int copied = 0, whole = 0;

    ck_assert_ptr_nonnull(requests);
    for (int i = 0; i <= COUNT; ++i) {
        const xm_ucx_outgoing_t *message;
        xm_status_t status;

        if (i == COUNT) {
            xm_ucx_outbox_on_grant(mail, &all);
        }
        requests[i].op.done = on_done;
        requests[i].op.arg = &requests[i];
        status = xm_ucx_send(&seat->transport.base, PEER, 5, bytes, SHORT, NULL, &requests[i].op);
        ck_assert_int_eq(status < 0, false);
        message = xm_list_entry(mail->unfinished.previous, xm_ucx_outgoing_t, all);
        copied += i < COUNT && status == XM_OK;
        whole += i < COUNT && message->chunk == 0;
        ck_assert(i < COUNT || message->chunk == 0); /* after answers they go as they are again */
    }
    ck_assert_int_ge(copied, XM_UCX_MAIL_COPIES / SHORT * 9 / 10);
    ck_assert_int_le(copied, XM_UCX_MAIL_COPIES / SHORT);
    ck_assert_int_ge(whole, XM_UCX_MAIL_UNHEARD / SHORT * 9 / 10);
    ck_assert_int_le(whole, XM_UCX_MAIL_UNHEARD / SHORT);
    mail_seat_close(seat);
    free(requests);
}
END_TEST

/* Who leaves says by every lane what has come, and nothing to who has left before. */
START_TEST(a_farewell_repeats_all_answers)
{
    static request_t request;
    seat_t *seat = sit();

    come(seat, XM_UCX_FRAME_EAGER, 0, 1, 8, 0);
    come(seat, XM_UCX_FRAME_EAGER, 1, 1, 8, 0);
    come(seat, XM_UCX_FRAME_START, 2, 2, 4 * CHUNK, 0);
    come(seat, XM_UCX_FRAME_EAGER, 3, 1, 8, 0);
    for (uint64_t number = 0; number <= 3; number += 1 + number % 2) {
        post_receive(seat, 1, 8, &request);
        expect_received(seat, &request, number, 8);
    }
    xm_ucx_inbox_farewell(seat->peers[PEER].mail);
    for (int lane = 0; lane < LANES; ++lane) {
        ck_assert(has_answer(seat, lane, XM_UCX_FRAME_GRANT, 0, 2));
        ck_assert(has_answer(seat, lane, XM_UCX_FRAME_GRANT, 3, 1));
        ck_assert(has_answer(seat, lane, XM_UCX_FRAME_BYE, 0, 0));
    }
    ck_assert_uint_eq(answered(seat), 3 + 3 * LANES);
    seat->peers[PEER].mail->left = true;
    xm_ucx_inbox_farewell(seat->peers[PEER].mail);
    ck_assert_uint_eq(answered(seat), 3 + 3 * LANES);
    mail_seat_close(seat);
}
END_TEST

/* A NIC leads to all peers, and is lost once. */
START_TEST(a_lost_nic_is_counted_once)
{
    seat_t *seat = sit();
    xm_nic_counts_t counts;

    for (int rank = 1; rank < RANKS; ++rank) {
        xm_ucx_failover_learn(seat->peers[rank].mail, 1u << 1);
        ck_assert_uint_eq(seat->peers[rank].mail->dead, 1u << 1);
    }
    xm_counters_nic(seat->counters, 0, &counts);
    ck_assert_uint_eq(counts.failovers, 0);
    xm_counters_nic(seat->counters, 1, &counts);
    ck_assert_uint_eq(counts.failovers, 1);
    mail_seat_close(seat);
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
    seat_t *seat = sit();
    xm_ucx_transport_t *self = &seat->transport;
    xm_ucx_mail_t *mail = seat->peers[PEER].mail;
    int looks = 0;

    request.op.done = on_done;
    request.op.arg = &request;
    ck_assert_xm_ok(
        xm_ucx_send(&self->base, PEER, 5, &byte, 1, NULL, &request.op)); /* is never answered */
    while (looks < 200 && mail->dead == 0) {
        self->clock += watches[_i].every_ms * 1000000;
        for (int lane = 0; lane < LANES; ++lane) {
            if ((watches[_i].answer >> lane & 1) != 0 && mail->lanes[lane].asked_at != 0) {
                xm_ucx_failover_heard(mail, lane, 0);
            }
        }
        mail->broken_at = 0; /* no error was reported */
        xm_ucx_failover_look(self);
        mail->broken_at = 1;
        ++looks;
    }
    if (watches[_i].most_looks == 0) {
        ck_assert_int_eq(looks, 200);
    } else {
        ck_assert_uint_eq(mail->dead, 1u << 1);
        ck_assert_int_le(looks, watches[_i].most_looks);
    }
    mail_seat_close(seat);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport_ucx_mail");
    TCase *tcase = tcase_create("mail");

    tcase_set_timeout(tcase, 30);
    tcase_add_test(tcase, one_message_may_wait_for_ever);
    tcase_add_test(tcase, unreceived_short_messages_are_owed_an_answer);
    tcase_add_test(tcase, a_sender_without_answers_announces);
    tcase_add_test(tcase, a_farewell_repeats_all_answers);
    tcase_add_test(tcase, a_lost_nic_is_counted_once);
    tcase_add_loop_test(tcase, silence_is_found_by_a_busy_rank, 0,
                        (int)(sizeof(watches) / sizeof(watches[0])));
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
