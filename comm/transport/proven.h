/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file proven.h
 * Messages that prove themselves: the receiver compares what has come with the sender's hash of it
 * (XXH3, 64 bits), and has it sent again when they differ.
 *
 * Hashes travel beside the messages, and the receiver's answers on their way back, each for several
 * messages at once: while one table of hashes waits for its answer, messages go on, and the next
 * table has all that were posted meanwhile. Whoever sends without waiting therefore pays two short
 * messages for several long ones. A message ends at the sender when the receiver has accepted it,
 * so its buffer must not change before. One that is still wrong when it has been sent eleven times
 * ends all with XM_ERR_CORRUPT at the receiver; the sender, which may wait for an answer for ever
 * if that was what got lost, is told by whoever has the group. It sends none more than eleven times
 * either, whatever it is asked.
 *
 * Both ends add the same messages in the same order, and post each when they can; a message that
 * waits to be posted at either end holds back the proof of those behind it, and nothing else.
 * Buffers are in host memory. Nothing is allocated.
 */
#pragma once

#include "comm/transport/transport.h"

enum { XM_PROOF_MESSAGES = 8 /* in one table */ };

typedef struct xm_prover xm_prover_t;

/** One message at one end. Zero it once; it can be added again after it has ended. */
typedef struct xm_proven {
    xm_op_t op;
    xm_list_t link;
    xm_prover_t *prover;
    xm_op_t *whole; /* whose `done` hears of the end */
    uint64_t tag;
    void *buffer;
    size_t length;
    xm_memory_t *memory;
    uint64_t number; /* among those of the prover */
    uint64_t hash;   /* of what was sent, or has come */
    bool posted, busy, moved;
    int wrong; /* times that it has come so, or was asked for again */
} xm_proven_t;

/** One end of all messages that go one way between two ranks. It may not be moved. */
struct xm_prover {
    xm_transport_t *transport;
    int peer;
    bool sends;
    uint64_t table_tag, answer_tag;
    void (*moved)(xm_op_t *whole);
    xm_list_t messages; /* that have not ended */
    uint64_t added;     /* so far */
    xm_op_t table_op, answer_op;
    uint64_t table[1 + XM_PROOF_MESSAGES + 1]; /* how many, their hashes, the hash of all this */
    uint64_t answer[XM_PROOF_MESSAGES + 1];    /* to each, and to the table itself */
    int count;                                 /* messages of the table; 0: there is none */
    bool table_busy, answer_busy;
    bool expects, answered; /* at the receiver: a table, and what it has said is on its way */
    int wrong;              /* tables in a row */
    int busy;               /* operations in flight */
    int held;               /* nothing may end, or begin, meanwhile */
    xm_error_t failure;
};

/** Before the first message, and again when all have ended. @p moved is told, with `whole`, when a
 * message has left or come for the first time, whatever its proof says later; NULL: nobody is. */
void xm_prover_begin(xm_prover_t *prover, xm_transport_t *transport, int peer, bool sends,
                     uint64_t table_tag, uint64_t answer_tag, void (*moved)(xm_op_t *whole));

/** The next message. @p whole is used for its `done` and `arg` only. */
void xm_prover_add(xm_prover_t *prover, xm_proven_t *proven, xm_op_t *whole);

/** Sends or receives @p length bytes of @p buffer as the message that was added. `done` is called
 * once, possibly before this returns. */
void xm_proven_post(xm_proven_t *proven, uint64_t tag, const void *buffer, size_t length,
                    xm_memory_t *memory);

/** Ends all messages with XM_ERR_CANCELED, as xm_transport_cancel() does; those that were added and
 * not posted end when they are, or never. */
void xm_prover_cancel(xm_prover_t *prover);
