/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file resharding/execute/carrier/direct.h
 * What resharding/execute/carrier/direct.c (which hops may go directly, and their chunks) and
 * resharding/execute/carrier/direct_offer.c (which of them do, in a run) know together. Not
 * installed.
 */
#pragma once

#include <stdatomic.h>

#include "resharding/execute/carrier.h"

/*
 * An offer: u64 number of tiles offered, the key of the notice; then for each tile a u64 offset in
 * its shared memory and the key of that, all zero where the tile is not shared. Little-endian. An
 * answer: a byte for each tile, 1 where it will be copied from.
 */
enum {
    OFFER_HEADER = 8 + XM_SHARED_MEMORY_KEY_SIZE,
    OFFER_TILE = 8 + XM_SHARED_MEMORY_KEY_SIZE,
};

/* Numbers of signals under XM_DIRECT_BIT, for each direction of a pair of ranks. */
enum { NUMBER_OFFER, NUMBER_ANSWER, NUMBER_COPIED };

/* What a rank writes for those who copy from it. */
typedef struct {
    _Atomic uint64_t given_up; /* number of the last run that failed here */
} notice_t;

/* A tile of the sender's that hops of the lane read. */
typedef struct {
    int tensor;
    bool is_dst;
    const char *from; /* incoming: where it is mapped … */
    int64_t view;     /* … by which of the pact's views */
} direct_tile_t;

typedef struct pact pact_t;

/* A hop inside a host that may go directly. */
struct direct {
    signal_t copied; /* "all of it has been copied", from the receiver */
    hop_t *hop;
    pact_t *pact;
    uint32_t number; /* of that signal, in its lane */
    int64_t tile;    /* which tile of the sender's it reads: index in the pact */
    char byte;
};

/* What the ends of a lane agree on in each run. */
struct pact {
    lane_t *lane;
    signal_t offering, answering;
    direct_t *directs;
    int64_t direct_count;
    direct_tile_t *tiles;
    int64_t tile_count;
    unsigned char *offer, *answer;
    unsigned char *known;    /* incoming: the offer that views and answer belong to */
    xm_shared_view_t *views; /* incoming: the notice, then those of tiles */
    int64_t view_count;
    bool offers; /* outgoing: some tile is shared */
    bool copies; /* incoming: in the list of those whose lane has a chunk to copy */
    pact_t *next_copier;
};

struct directs {
    direct_t *directs; /* of all pacts */
    int64_t count;
    pact_t *pacts; /* of all lanes that have such hops */
    int pact_count;
    direct_tile_t *tiles;       /* of all pacts */
    unsigned char *bytes;       /* their messages */
    xm_shared_view_t *views;    /* their views of others' memory */
    xm_shared_memory_t *notice; /* the last run this rank gave up, for those who copy from it */
    pact_t *copiers;            /* list */
};

static inline size_t offer_bytes(const pact_t *pact)
{
    return OFFER_HEADER + OFFER_TILE * (size_t)pact->tile_count;
}

/* Writes what this rank offers, which never changes, and makes its notice
 * (resharding/execute/carrier/direct_offer.c).
 */
void xm_direct_write_offers(xm_executor_t *executor);

/* A run begins: the ends of every such lane agree which hops go directly. */
void xm_direct_offer(xm_executor_t *executor);
