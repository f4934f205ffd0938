/* SPDX-License-Identifier: Apache-2.0 */
/* Messages with the table of their hashes and the answer to it, whatever becomes of these, and in
 * whatever order they are posted and come: each message ends exactly once at each end; who says
 * that the bytes are right has the right ones, unless a table was forged; and nobody has a sender
 * send more often than the receiver may ask. */
#include <stdlib.h>
#include <string.h>

#include "comm/transport/proven.h"
#include "tests/fuzz/pair/tampered_pair.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Tags: the messages', in their order, then the table's and the answer's. */
enum { MOST = 200, MESSAGES = 16, TABLE = MESSAGES, ANSWER, TAGS, MOST_SENDS = 11 };

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

typedef struct {
    xm_proven_t proven;
    xm_op_t whole;
    char *buffer; /* exactly as long as the message */
    bool posted, ended;
    xm_status_t status;
    int moved;
} end_t;

typedef struct {
    tampered_pair_t pair;
    xm_prover_t provers[2]; /* rank 0 sends */
    end_t ends[2][MESSAGES];
    int count, sends[MESSAGES];
    size_t length;
    bool touched[TAGS], disturbed;
} lab_t;

static lab_t *lab;
static xm_transport_ops_t counting;
static const xm_transport_ops_t *plain;

/* How often rank 0 is made to send the same. */
static xm_status_t send(xm_transport_t *transport, int peer, uint64_t tag, const void *buffer,
                        size_t length, xm_memory_t *memory, xm_op_t *op)
{
    expect(tag >= TABLE || ++lab->sends[tag] <= MOST_SENDS);
    return plain->send(transport, peer, tag, buffer, length, memory, op);
}

static void done(xm_op_t *op, xm_status_t status)
{
    end_t *end = op->arg;

    expect(end->posted && !end->ended && status != XM_IN_PROGRESS);
    end->ended = true;
    end->status = status;
}

static void moved(xm_op_t *op)
{
    end_t *end = op->arg;

    expect(end->posted && !end->ended && ++end->moved == 1);
}

static void post(int rank, int message)
{
    end_t *end = &lab->ends[rank][message];

    if (message < lab->count && !end->posted) {
        end->posted = true;
        xm_proven_post(&end->proven, (uint64_t)message, end->buffer, lab->length, NULL);
    }
}

static void inject(input_t *input)
{
    unsigned what = input_take(input), tag = what % TAGS;
    size_t bytes = tag == TABLE    ? sizeof(lab->provers[0].table)
                   : tag == ANSWER ? sizeof(lab->provers[0].answer)
                                   : lab->length;

    lab->touched[tag] = lab->disturbed = true;
    tampered_pair_inject(&lab->pair, tag == ANSWER ? 0 : 1, tag,
                         (what & 64) != 0 ? bytes + 1 : bytes, input);
}

/* Some of what may happen. */
static void happen(input_t *input)
{
    unsigned what = input_take(input), choice = what >> 4;
    uint64_t tag;

    switch (what & 15) {
    case 0:
        inject(input);
        break;
    case 1:
        if (choice < 2) {
            lab->disturbed = true;
            xm_prover_cancel(&lab->provers[choice]);
        }
        break;
    case 2:
    case 3:
        if (tampered_pair_spoil(&lab->pair, choice, input, SIZE_MAX, &tag)) {
            lab->touched[tag] = lab->disturbed = true;
        }
        break;
    case 4:
    case 5:
    case 6:
    case 7:
        post((int)(what & 1), (int)choice);
        break;
    default:
        (void)tampered_pair_deliver(&lab->pair, choice);
    }
}

static char byte_of(int message, size_t i)
{
    return (char)(message + 1 + (int)(i * i));
}

/* Both ends of a message, and what they have come to. */
static void check(int message)
{
    const end_t *sender = &lab->ends[0][message], *receiver = &lab->ends[1][message];

    expect(sender->ended && receiver->ended);
    for (size_t i = 0; i < lab->length; ++i) {
        expect(sender->buffer[i] == byte_of(message, i));
    }
    /* A receiver that was cancelled may have accepted before. */
    if (!lab->touched[TABLE] &&
        (receiver->status == XM_OK || (sender->status == XM_OK && !lab->touched[ANSWER]))) {
        expect(memcmp(receiver->buffer, sender->buffer, lab->length) == 0);
    }
    expect(lab->disturbed || (sender->status == XM_OK && receiver->status == XM_OK));
}

static void begin(unsigned flags)
{
    tampered_pair_begin(&lab->pair, flags);
    for (int rank = 0; rank < 2; ++rank) {
        plain = lab->pair.ends[rank].base.ops;
        counting = *plain;
        counting.send = send;
        lab->pair.ends[rank].base.ops = &counting;
        xm_prover_begin(&lab->provers[rank], &lab->pair.ends[rank].base, 1 - rank, rank == 0, TABLE,
                        ANSWER, (flags & 8) != 0 ? moved : NULL);
        for (int m = 0; m < lab->count; ++m) {
            end_t *end = &lab->ends[rank][m];

            end->whole.done = done;
            end->whole.arg = end;
            end->buffer = malloc(lab->length);
            expect(end->buffer != NULL);
            for (size_t i = 0; i < lab->length; ++i) {
                end->buffer[i] = rank == 0 ? byte_of(m, i) : 0;
            }
            xm_prover_add(&lab->provers[rank], &end->proven, &end->whole);
        }
    }
}

static void play(input_t *input)
{
    unsigned flags = input_take(input);

    lab->count = 1 + (int)(input_take(input) % MESSAGES);
    lab->length = 1 + input_take(input) % MOST;
    begin(flags);
    while (input->left > 0) {
        happen(input);
    }
    for (int m = 0; m < lab->count; ++m) {
        post(0, m);
        post(1, m);
    }
    while (tampered_pair_deliver(&lab->pair, 0)) {
    }
    for (int rank = 0; rank < 2; ++rank) {
        xm_prover_cancel(&lab->provers[rank]);
    }
    for (int rank = 0; rank < 2; ++rank) {
        xm_transport_peer_failed(&lab->pair.ends[rank].base, 1 - rank);
        expect(lab->provers[rank].busy == 0);
    }
    for (int m = 0; m < lab->count; ++m) {
        check(m);
        free(lab->ends[0][m].buffer);
        free(lab->ends[1][m].buffer);
    }
    tampered_pair_end(&lab->pair);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t input = {data, size};

    lab = calloc(1, sizeof(*lab));
    expect(lab != NULL);
    play(&input);
    free(lab);
    return 0;
}
