/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks on verbs over three rails without devices, whose place the test takes: packets arrive
 * when chance says so, in order on each connection; rails die, or only their answers do, so that
 * what has come counts as lost for its sender; and come back. Whatever happens, every message
 * arrives once, whole, and in the order of its tag, and nothing is written into memory that is its
 * owner's again. */
#include <stdlib.h>
#include <string.h>

#include "tests/comm/transport/verbs/fake_verbs.h"
#include "xm_test.h"

#include "comm/base/random.h"

enum { RANKS = FAKE_RANKS, RAILS = 3, MESSAGES = 100, TAGS = 5, LONGEST = 300000, SEEDS = 24 };
enum { MOST_STEPS = 400000, MOVES = 600, STEP_NS = 1000000 };

typedef struct {
    xm_op_t op;
    uint8_t *bytes;
    int ends;
    xm_status_t status;
} request_t;

typedef struct {
    size_t length[MESSAGES];
    request_t sends[MESSAGES], receives[MESSAGES];
    int sent, received; /* posted */
} traffic_t;

static uint8_t pattern(int rank, int message, size_t i)
{
    return (uint8_t)((xm_hash_spread(i + 1) + (uint64_t)(RANKS * message + rank) * 0xbf58476d) >>
                     56);
}

/* Whose operation has ended does what it likes with its memory. */
static void on_done(xm_op_t *op, xm_status_t status)
{
    request_t *request = op->arg;

    ++request->ends;
    request->status = status;
}

/* The next message from `rank`, or its receive. */
static void post(xm_transport_t *const *transports, traffic_t *traffic, int rank, bool send)
{
    int i = send ? traffic->sent++ : traffic->received++, at = send ? rank : 1 - rank;
    request_t *request = send ? &traffic->sends[i] : &traffic->receives[i];
    size_t length = traffic->length[i];
    uint64_t tag = (uint64_t)i % TAGS;
    xm_status_t status;

    request->op.done = on_done;
    request->op.arg = request;
    request->bytes = calloc(1, length);
    ck_assert_ptr_nonnull(request->bytes);
    for (size_t byte = 0; byte < length && send; ++byte) {
        request->bytes[byte] = pattern(rank, i, byte);
    }
    status = send ? xm_transport_send(transports[at], 1 - at, tag, request->bytes, length, NULL,
                                      &request->op)
                  : xm_transport_receive(transports[at], 1 - at, tag, request->bytes, length, NULL,
                                         &request->op);
    if (status != XM_IN_PROGRESS) {
        on_done(&request->op, status);
    }
    if (status == XM_OK && send) {
        memset(request->bytes, 0, length);
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

static void prepare(traffic_t *traffic)
{
    memset(traffic, 0, RANKS * sizeof(*traffic));
    for (int rank = 0; rank < RANKS; ++rank) {
        for (int i = 0; i < MESSAGES; ++i) {
            traffic[rank].length[i] =
                1 + fake_verbs_any((uint64_t[]){100, 9000, 70000, LONGEST}[fake_verbs_any(4)]);
        }
    }
}

static void release(traffic_t *traffic)
{
    for (int rank = 0; rank < RANKS; ++rank) {
        for (int i = 0; i < MESSAGES; ++i) {
            free(traffic[rank].sends[i].bytes);
            free(traffic[rank].receives[i].bytes);
        }
    }
}

/* A rail dies: one way, the other, or both; or its answers do not come. */
static void kill(int rail)
{
    uint64_t which = fake_verbs_any(3);

    for (int rank = 0; rank < RANKS; ++rank) {
        if (which == 2 || (uint64_t)rank == which) {
            fake_verbs_set(rank, rail, fake_verbs_any(2) == 0 ? FAKE_DEAD : FAKE_NO_ANSWERS);
        }
    }
}

static bool is_used(xm_transport_t *const *transports, int rail)
{
    bool used = true;

    for (int rank = 0; rank < RANKS; ++rank) {
        const xm_verbs_transport_t *self = (const xm_verbs_transport_t *)transports[rank];

        used = used && xm_rails_uses(self->peers[1 - rank].base.rails, rail);
    }
    return used;
}

static void progress(xm_transport_t *transport, int64_t passed_ns)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;

    fake_verbs_pass(passed_ns);
    self->slept = fake_verbs_any(10) == 0;
    (void)xm_transport_progress(transport);
}

/* One rail dies that is used, if another one is left, or one that died works again. */
static void strike(xm_transport_t *const *transports, bool *dead)
{
    int rail = (int)fake_verbs_any(RAILS), left = 0;

    for (int other = 0; other < RAILS; ++other) {
        left += other != rail && !dead[other] && is_used(transports, other);
    }
    if (dead[rail]) {
        dead[rail] = false;
        for (int rank = 0; rank < RANKS; ++rank) {
            fake_verbs_set(rank, rail, FAKE_WELL);
        }
    } else if (left > 0) {
        dead[rail] = true;
        kill(rail);
    }
}

/* Plays all messages; rail r dies at step deaths[r], which is never when negative. Without deaths
 * rails come and go all the time. */
static void play(xm_transport_t *const *transports, traffic_t *traffic, const int *deaths,
                 uint64_t laziness)
{
    bool dead[RAILS] = {false};
    int step = 0;

    while (!(all_ended(&traffic[0]) && all_ended(&traffic[1]))) {
        ck_assert_msg(++step < MOST_STEPS, "nothing moves any more");
        for (int rail = 0; rail < RAILS && deaths != NULL; ++rail) {
            if (step == deaths[rail]) {
                kill(rail);
            }
        }
        if (deaths == NULL && fake_verbs_any(60) == 0) {
            strike(transports, dead);
        }
        for (int rank = 0; rank < RANKS; ++rank) {
            if (traffic[rank].sent < MESSAGES && fake_verbs_any(4) == 0) {
                post(transports, &traffic[rank], rank, true);
            }
            if (traffic[rank].received < MESSAGES && fake_verbs_any(laziness) == 0) {
                post(transports, &traffic[rank], rank, false);
            }
            if (fake_verbs_any(3) > 0) {
                progress(transports[rank], deaths == NULL ? 20 * STEP_NS : STEP_NS);
            }
        }
        for (int i = 0; i < MOVES; ++i) {
            fake_verbs_move();
        }
    }
    for (int rank = 0; rank < RANKS; ++rank) {
        check(&traffic[rank], rank);
    }
}

START_TEST(messages_survive_rails)
{
    static traffic_t traffic[RANKS];
    xm_transport_t *transports[RANKS];
    int deaths[RAILS];

    fake_verbs_open(transports, RAILS, (uint64_t)_i * 977 + 1);
    prepare(traffic);
    for (int rail = 0; rail < RAILS; ++rail) {
        deaths[rail] = _i % RAILS == rail ? -1 : 1 + (int)fake_verbs_any(600);
    }
    play(transports, traffic, deaths, (uint64_t[]){3, 8, 40}[fake_verbs_any(3)]);
    fake_verbs_close(transports);
    release(traffic);
}
END_TEST

/* Rails come and go while messages are on their way, so that what one has taken over from another
 * goes on to a third, or back. */
START_TEST(messages_survive_flaps)
{
    static traffic_t traffic[RANKS];
    xm_transport_t *transports[RANKS];

    fake_verbs_open(transports, RAILS, (uint64_t)_i * 1013 + 3);
    for (int round = 0; round < 4; ++round) {
        prepare(traffic);
        play(transports, traffic, NULL, 8);
        for (int rail = 0; rail < RAILS; ++rail) {
            for (int rank = 0; rank < RANKS; ++rank) {
                fake_verbs_set(rank, rail, FAKE_WELL);
            }
        }
        release(traffic);
    }
    fake_verbs_close(transports);
}
END_TEST

/* A rail that was lost carries its part again, and all when it must; each loss keeps it away for
 * longer. */
START_TEST(a_rail_comes_back)
{
    enum { RAIL = 1, LOSSES = 4 };
    static traffic_t traffic[RANKS];
    xm_transport_t *transports[RANKS];
    int never[RAILS] = {-1, -1, -1}, away[LOSSES] = {0};
    uint64_t before;

    fake_verbs_open(transports, RAILS, (uint64_t)_i * 31 + 5);
    for (int loss = 0; loss < LOSSES; ++loss) {
        fake_verbs_set(_i, RAIL, FAKE_DEAD);
        while (is_used(transports, RAIL)) {
            prepare(traffic);
            play(transports, traffic, never, 8);
            release(traffic);
        }
        fake_verbs_set(_i, RAIL, FAKE_WELL);
        for (; !is_used(transports, RAIL); ++away[loss]) {
            ck_assert_int_lt(away[loss], MOST_STEPS);
            for (int i = 0; i < MOVES; ++i) {
                fake_verbs_move();
            }
            progress(transports[away[loss] % RANKS], 10 * STEP_NS);
        }
        ck_assert(loss == 0 || away[loss] > away[loss - 1] * 5 / 4);
    }
    before = fake_verbs_carried(RAIL);
    prepare(traffic);
    play(transports, traffic, never, 8);
    release(traffic);
    ck_assert_uint_gt(fake_verbs_carried(RAIL), before + 1000000);
    prepare(traffic);
    play(transports, traffic, (int[RAILS]){100, -1, 300}, 8);
    release(traffic);
    fake_verbs_close(transports);
}
END_TEST

/* A sender that may keep no more copies waits for answers, and gets them from a receiver that never
 * sleeps, at once. */
START_TEST(who_waits_is_answered)
{
    enum { LENGTH = 8000, COUNT = XM_RAILS_COPIES / LENGTH + 50 };
    static request_t sends[COUNT], receives[COUNT];
    static uint8_t bytes[COUNT][LENGTH];
    xm_transport_t *transports[RANKS];
    int ends = 0;

    memset(sends, 0, sizeof(sends));
    memset(receives, 0, sizeof(receives));
    fake_verbs_open(transports, RAILS, (uint64_t)_i * 57 + 7);
    for (int i = 0; i < COUNT; ++i) {
        sends[i].op = (xm_op_t){.done = on_done, .arg = &sends[i]};
        sends[i].status =
            xm_transport_send(transports[0], 1, 1, bytes[i], LENGTH, NULL, &sends[i].op);
        ends += sends[i].status == XM_OK;
        receives[i].op = (xm_op_t){.done = on_done, .arg = &receives[i]};
    }
    ck_assert_int_lt(ends, COUNT);
    for (int step = 0, posted = 0; ends < COUNT; ++step) {
        ck_assert_int_lt(step, MOST_STEPS);
        if (posted < COUNT) {
            (void)xm_transport_receive(transports[1], 0, 1, bytes[posted], LENGTH, NULL,
                                       &receives[posted].op);
            ++posted;
        }
        for (int i = 0; i < MOVES; ++i) {
            fake_verbs_move();
        }
        progress(transports[step % RANKS], 0);
        ends = 0;
        for (int i = 0; i < COUNT; ++i) {
            ends += sends[i].status == XM_OK;
        }
    }
    fake_verbs_close(transports);
}
END_TEST

/* ---- in the allocator's place ---- */

static bool strict;
static int allocations;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);

void *__wrap_malloc(size_t size)
{
    allocations += fake_verbs_counting;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    allocations += fake_verbs_counting;
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
    allocations += fake_verbs_counting;
    return __real_realloc(memory, size);
}

/* What a rank sends or receives, from and to registered memory. */
enum { FEW = 20 };
typedef struct {
    xm_memory_t *memory;
    uint8_t bytes[FEW][LONGEST];
    request_t requests[FEW];
} end_t;

static void post_from(xm_transport_t *transport, bool send, int message, end_t *end)
{
    static const size_t lengths[] = {8, 700, 9000, 70001, LONGEST};
    request_t *request = &end->requests[message];
    uint64_t tag = (uint64_t)message % TAGS;
    size_t length = lengths[message % 5];
    int peer = 1 - transport->rank;

    *request = (request_t){.op = {.done = on_done, .arg = request}};
    fake_verbs_counting = strict;
    request->ends = (send ? xm_transport_send(transport, peer, tag, end->bytes[message], length,
                                              end->memory, &request->op)
                          : xm_transport_receive(transport, peer, tag, end->bytes[message], length,
                                                 end->memory, &request->op)) == XM_OK;
    fake_verbs_counting = false;
}

static int count_ended(end_t (*ends)[2])
{
    int count = 0;

    for (int i = 0; i < 2 * RANKS * FEW; ++i) {
        count += ends[i / FEW / 2][i / FEW % 2].requests[i % FEW].ends;
    }
    return count;
}

/* Once as much was in flight as will be. Registering memory is the caller's here. */
START_TEST(posting_allocates_nothing)
{
    enum { WARM = 20, ROUNDS = 26 };
    static end_t ends[RANKS][2];
    xm_transport_t *transports[RANKS];

    fake_verbs_open(transports, RAILS, 4711);
    for (int i = 0; i < 2 * RANKS; ++i) {
        ck_assert_xm_ok(xm_transport_memory_register(transports[i / 2], ends[i / 2][i % 2].bytes,
                                                     sizeof(ends[0][0].bytes),
                                                     &ends[i / 2][i % 2].memory));
    }
    allocations = 0;
    for (int round = 0; round < ROUNDS; ++round) {
        strict = round >= WARM;
        for (int i = 0; i < 2 * RANKS * FEW; ++i) {
            bool send = (i < RANKS * FEW) == (round % 2 == 0);

            post_from(transports[i % RANKS], send, i / RANKS % FEW, &ends[i % RANKS][send]);
        }
        for (int step = 0; count_ended(ends) < 2 * RANKS * FEW; ++step) {
            ck_assert_int_lt(step, MOST_STEPS);
            for (int i = 0; i < MOVES; ++i) {
                fake_verbs_move();
            }
            fake_verbs_counting = strict;
            progress(transports[step % RANKS], STEP_NS);
            fake_verbs_counting = false;
        }
    }
    ck_assert_int_eq(allocations, 0);
    fake_verbs_close(transports);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport_verbs_pair");
    TCase *tcase = tcase_create("chance");

    /* Rails are lost all the time here, and that is said. */
    if (setenv("XM_LOG", "error", 1) != 0) {
        return EXIT_FAILURE;
    }
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, messages_survive_rails, 0, SEEDS);
    tcase_add_loop_test(tcase, messages_survive_flaps, 0, SEEDS);
    tcase_add_loop_test(tcase, a_rail_comes_back, 0, RANKS);
    tcase_add_loop_test(tcase, who_waits_is_answered, 0, 2);
    tcase_add_test(tcase, posting_allocates_nothing);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
