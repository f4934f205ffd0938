/**
 * @file execute_direct.h
 * What execute_direct.c (which hops may go directly, and their ends) and execute_pact.c (which of
 * them do) know together. Not installed.
 */
#ifndef XM_RESHARDING_EXECUTE_DIRECT_H
#define XM_RESHARDING_EXECUTE_DIRECT_H

#include <stdatomic.h>

#include "resharding/execute_private.h"

/*
 * An offer: u64 number of tiles offered, the key of the notice; then for each tile a u64 offset in
 * its shared memory and the key of that, all zero where the tile is not shared. Little-endian. An
 * answer: a byte for each tile, 1 where it will be copied from.
 */
enum {
    OFFER_HEADER = 8 + XM_SHARED_MEMORY_KEY_SIZE,
    OFFER_TILE = 8 + XM_SHARED_MEMORY_KEY_SIZE,
};

/* Numbers of messages under XM_DIRECT_BIT, for each direction of a pair of ranks. */
enum { NUMBER_OFFER, NUMBER_ANSWER, NUMBER_COPIED };

/* What a rank writes for those who copy from it. */
typedef struct {
    _Atomic uint64_t given_up; /* number of the last run that failed here */
} notice_t;

/* A tile of the sender's that hops of the lane read. */
struct direct_tile {
    int tensor;
    bool is_dst;
    const char *from; /* incoming: where it is mapped … */
    int64_t view;     /* … by which of the pact's views */
};

struct pact {
    lane_t *lane;
    xm_op_t offer_op, answer_op;
    direct_t *directs;
    int64_t direct_count;
    direct_tile_t *tiles;
    int64_t tile_count;
    unsigned char *offer, *answer;
    unsigned char *known;    /* incoming: the offer that views and answer belong to */
    xm_shared_view_t *views; /* incoming: the notice, then those of tiles */
    int64_t view_count;
    bool offers; /* outgoing: some tile is shared */
    bool offer_busy, answer_busy;
    bool settled; /* in this run */
};

static inline size_t offer_bytes(const pact_t *pact)
{
    return OFFER_HEADER + OFFER_TILE * (size_t)pact->tile_count;
}

/* Writes what this rank offers, which never changes, and makes its notice (execute_pact.c). */
void xm_executor_write_offers(xm_executor_t *executor);

/* Starts sending or receiving a message about direct hops. The op's `done` has been called when
 * this returns, or will be. */
void xm_direct_post(const lane_t *lane, bool send, uint32_t number, void *buffer, size_t length,
                    xm_op_t *op);

#endif
