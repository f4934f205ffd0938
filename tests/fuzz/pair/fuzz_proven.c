/* SPDX-License-Identifier: Apache-2.0 */
/* A message with its hash and its answer, whatever becomes of these, and in whatever order they
 * come: each end ends exactly once; who says that the bytes are right has the right ones, unless
 * the hash itself was forged; and nobody has a sender send more often than the receiver may ask. */
#include <stdlib.h>
#include <string.h>

#include "comm/transport/proven.h"
#include "tests/fuzz/pair/tampered_pair.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 200, MESSAGES = 3, MOST_SENDS = 11 };

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
    bool ended;
    xm_status_t status;
} side_t;

typedef struct {
    tampered_pair_t pair;
    side_t sides[2]; /* rank 0 sends */
    bool touched[XM_PROVEN_PARTS], disturbed;
    int sends;
} lab_t;

static lab_t *lab;
static xm_transport_ops_t counting;
static const xm_transport_ops_t *plain;

/* How often rank 0 is made to send the same. */
static xm_status_t send(xm_transport_t *transport, int peer, uint64_t tag, const void *buffer,
                        size_t length, xm_memory_t *memory, xm_op_t *op)
{
    lab->sends += tag % XM_PROVEN_PARTS == XM_PROVEN_DATA;
    expect(lab->sends <= MOST_SENDS);
    return plain->send(transport, peer, tag, buffer, length, memory, op);
}

static void done(xm_op_t *op, xm_status_t status)
{
    side_t *side = op->arg;

    expect(!side->ended && status != XM_IN_PROGRESS);
    side->ended = true;
    side->status = status;
}

static void post(int rank, uint64_t first_tag, size_t length)
{
    const uint64_t tags[XM_PROVEN_PARTS] = {first_tag, first_tag + 1, first_tag + 2};
    side_t *side = &lab->sides[rank];

    side->whole.done = done;
    side->whole.arg = side;
    side->ended = false;
    xm_proven_post(&side->proven, &lab->pair.ends[rank].base, 1 - rank, rank == 0, tags,
                   side->buffer, length, NULL, &side->whole);
}

static void inject(uint64_t first_tag, size_t length, input_t *input)
{
    unsigned what = input_take(input), part = what % XM_PROVEN_PARTS;
    size_t bytes = part == XM_PROVEN_DATA ? length : sizeof(uint64_t);

    lab->touched[part] = lab->disturbed = true;
    tampered_pair_inject(&lab->pair, part == XM_PROVEN_ANSWER ? 0 : 1, first_tag + part,
                         (what & 64) != 0 ? bytes + 1 : bytes, input);
}

/* Some of what may happen to the message that goes by the tags from @p first_tag on. */
static void happen(uint64_t first_tag, size_t length, input_t *input)
{
    unsigned what = input_take(input), choice = what >> 4;
    uint64_t tag;

    switch (what & 7) {
    case 0:
        inject(first_tag, length, input);
        break;
    case 1:
        if (choice < 2) {
            lab->disturbed = true;
            xm_proven_cancel(&lab->sides[choice].proven);
        }
        break;
    case 2:
    case 3:
        if (tampered_pair_spoil(&lab->pair, choice, input, SIZE_MAX, &tag)) {
            lab->touched[tag % XM_PROVEN_PARTS] = lab->disturbed = true;
        }
        break;
    default:
        (void)tampered_pair_deliver(&lab->pair, choice);
    }
}

/* Both ends, and what they have come to. */
static void check(const char *sent, size_t length)
{
    const side_t *sender = &lab->sides[0], *receiver = &lab->sides[1];

    for (int rank = 0; rank < 2; ++rank) {
        xm_proven_cancel(&lab->sides[rank].proven);
    }
    for (int rank = 0; rank < 2; ++rank) {
        xm_transport_peer_failed(&lab->pair.ends[rank].base, 1 - rank);
        expect(lab->sides[rank].ended && lab->sides[rank].proven.busy == 0);
    }
    expect(memcmp(sender->buffer, sent, length) == 0);
    if (receiver->status == XM_OK && !lab->touched[XM_PROVEN_HASH]) {
        expect(memcmp(receiver->buffer, sent, length) == 0);
    }
    if (sender->status == XM_OK && !lab->touched[XM_PROVEN_ANSWER]) {
        expect(receiver->proven.accepted);
    }
    expect(lab->disturbed || (sender->status == XM_OK && receiver->status == XM_OK));
}

static void play(input_t *input, uint64_t first_tag)
{
    size_t length = 1 + input_take(input) % MOST, steps = 1 + input_take(input);
    unsigned flags = input_take(input);
    char sent[MOST];

    for (size_t i = 0; i < length; ++i) {
        sent[i] = (char)(first_tag + i * i);
    }
    tampered_pair_begin(&lab->pair, flags);
    memset(lab->touched, 0, sizeof(lab->touched));
    lab->disturbed = false;
    lab->sends = 0;
    for (int rank = 0; rank < 2; ++rank) {
        side_t *side = &lab->sides[rank];

        plain = lab->pair.ends[rank].base.ops;
        counting = *plain;
        counting.send = send;
        lab->pair.ends[rank].base.ops = &counting;
        side->buffer = calloc(1, length);
        expect(side->buffer != NULL);
        if (rank == 0) {
            memcpy(side->buffer, sent, length);
        }
    }
    while ((flags & 4) != 0 && input->left > 0 && steps-- > 240) {
        inject(first_tag, length, input); /* before anyone expects anything */
    }
    post(flags >> 3 & 1, first_tag, length);
    post((flags >> 3 & 1) ^ 1, first_tag, length);
    while (input->left > 0 && steps-- > 0) {
        happen(first_tag, length, input);
    }
    while (tampered_pair_deliver(&lab->pair, 0)) {
    }
    check(sent, length);
    tampered_pair_end(&lab->pair);
    free(lab->sides[0].buffer);
    free(lab->sides[1].buffer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t input = {data, size};

    lab = calloc(1, sizeof(*lab));
    expect(lab != NULL);
    for (int i = 0; i < MESSAGES && input.left > 0; ++i) {
        play(&input, (uint64_t)(XM_PROVEN_PARTS * (i + 1)));
    }
    free(lab);
    return 0;
}
