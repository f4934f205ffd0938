/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bounded memory of search states for branch and bound. A state is dominated when one
 * with the same things left and no later time anywhere was seen: whatever completes the
 * new state completes the old one no later. The memory is a cache of sets of ways, not a
 * growing table: forgetting a state costs search time but never a wrong answer, and a
 * search of millions of nodes stays within 16 MiB.
 */
#include "resharding/solve/dominance.h"

#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

enum {
    WAYS = 8, /* states that a bucket holds */
    MAX_BUCKET_BITS = 14,
    MAX_BYTES = 1 << 24
};

struct xm_dominance {
    int length;
    int bucket_bits;
    uint64_t *left;  /* buckets × WAYS; 0: no state (nothing left needs no state) */
    int64_t *times;  /* buckets × WAYS × length */
    uint8_t *oldest; /* by bucket: the next way to give up */
};

/*
 * Chooses the number of buckets: no more than there are sets of things, and no more than
 * the memory limit allows for vectors of this length. Times need no initial value because
 * a way without a state is never compared.
 */
xm_status_t xm_dominance_create(int things, int length, xm_dominance_t **dominance)
{
    xm_dominance_t *made = calloc(1, sizeof(*made));
    size_t state = sizeof(uint64_t) + (size_t)length * sizeof(int64_t), states;

    XM_NEED_MEMORY(made, "the states of a search");
    made->length = length;
    made->bucket_bits = things < MAX_BUCKET_BITS ? things : MAX_BUCKET_BITS;
    while (made->bucket_bits > 0 && ((size_t)WAYS << made->bucket_bits) * state > MAX_BYTES) {
        --made->bucket_bits;
    }
    states = (size_t)WAYS << made->bucket_bits;
    made->left = calloc(states, sizeof(uint64_t));
    made->times = malloc(states * (size_t)length * sizeof(int64_t));
    made->oldest = calloc(states / WAYS, 1);
    if (made->left == NULL || made->times == NULL || made->oldest == NULL) {
        xm_dominance_destroy(made);
        return XM_NO_MEMORY("%zu states of a search", states);
    }
    *dominance = made;
    return XM_OK;
}

void xm_dominance_destroy(xm_dominance_t *dominance)
{
    if (dominance == NULL) {
        return;
    }
    free(dominance->oldest);
    free(dominance->times);
    free(dominance->left);
    free(dominance);
}

/* Compares component by component. One larger time is enough to make states incomparable,
 * and then both are worth a search. */
static bool no_later(const int64_t *a, const int64_t *b, int length)
{
    for (int i = 0; i < length; ++i) {
        if (a[i] > b[i]) {
            return false;
        }
    }
    return true;
}

/* Looks the state up and, when nothing dominates it, stores it. Each bucket replaces its
 * ways in turn, oldest first, which needs no clock and keeps the outcome deterministic. */
bool xm_dominance_seen(xm_dominance_t *dominance, uint64_t left, const int64_t *times)
{
    size_t length = (size_t)dominance->length;
    uint64_t hash = xm_hash_spread(left ^ (left >> 31));
    size_t bucket =
        dominance->bucket_bits > 0 ? (size_t)(hash >> (64 - dominance->bucket_bits)) : 0;
    size_t way;

    for (way = bucket * WAYS; way < (bucket + 1) * WAYS; ++way) {
        if (dominance->left[way] == left &&
            no_later(dominance->times + way * length, times, dominance->length)) {
            return true;
        }
    }
    /* The new state may dominate stored ones; they are left to be replaced in their turn,
     * since removing them would cost more than the ways they take. */
    way = bucket * WAYS + dominance->oldest[bucket];
    dominance->oldest[bucket] = (uint8_t)((dominance->oldest[bucket] + 1) % WAYS);
    dominance->left[way] = left;
    memcpy(dominance->times + way * length, times, length * sizeof(int64_t));
    return false;
}
