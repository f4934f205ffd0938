/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tampered_pair.h
 * The transports of two ranks in this process. The input of a fuzzer decides when a message
 * arrives, what has become of its bytes, and which messages come that nobody has sent.
 */
#pragma once

#include "comm/transport/transport.h"

/* What is left of an input: zeros when nothing is. */
typedef struct {
    const uint8_t *bytes;
    size_t left;
} input_t;

unsigned input_take(input_t *input);

typedef struct tampered_pair tampered_pair_t;

typedef struct {
    xm_transport_t base;
    tampered_pair_t *pair;
    xm_list_t receives; /* in the order of their posts */
    xm_list_t messages; /* on their way to this rank */
    bool gone;          /* the other rank has been given up */
} tampered_end_t;

struct tampered_pair {
    tampered_end_t ends[2];
    bool eager;   /* short messages leave at once, and who posts later finds them there */
    bool lingers; /* sends cannot be cancelled */
};

void tampered_pair_begin(tampered_pair_t *pair, unsigned flags);
/* Nothing may be in flight but messages that nobody takes. */
void tampered_pair_end(tampered_pair_t *pair);

/* Brings a message to the receive that waits for it, the @p choice-th of those there are; false:
 * there is none. */
bool tampered_pair_deliver(tampered_pair_t *pair, unsigned choice);
/* Which that would be. */
bool tampered_pair_next(tampered_pair_t *pair, unsigned choice, uint64_t *tag);
/* The same as the first, with some of its bytes changed: false, and it stays where it is, when it
 * is longer than
 * @p most. */
bool tampered_pair_spoil(tampered_pair_t *pair, unsigned choice, input_t *input, size_t most,
                         uint64_t *tag);
/* A message to a rank that nobody has sent. */
void tampered_pair_inject(tampered_pair_t *pair, int to, uint64_t tag, size_t length,
                          input_t *input);
