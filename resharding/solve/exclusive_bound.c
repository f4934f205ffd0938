/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lower bound of the exclusive-host model (docs/resharding.md, "Exclusive hosts"). A
 * set of senders must send by itself whatever is held only inside it. All sets would be
 * exponentially many and a flow does not apply, because a demand goes whole from one
 * holder; so the sets tried are those that occur: the distinct holder sets, unions of two
 * of them, and the union of all. Leaving sets out makes the bound weaker but never wrong,
 * which is what dfs needs to prune safely.
 */
#include "resharding/solve/exclusive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    CLOSED_SETS = 64,   /* unions of two are added up to this many sets */
    TEST_WORK = 1 << 24 /* words that the tests "held only inside" may look at, at most */
};

/* By number of holders, then by the holders, then by place: equal sets come together. */
static int by_holders(const void *left, const void *right)
{
    const xm_demand_t *a = *(const xm_demand_t *const *)left;
    const xm_demand_t *b = *(const xm_demand_t *const *)right;

    XM_ORDER_BY(a->holder_count, b->holder_count);
    for (int i = 0; i < a->holder_count; ++i) {
        XM_ORDER_BY(a->holders[i], b->holders[i]);
    }
    return a < b ? -1 : a > b;
}

/* Lists are ascending with each host once, so equal sets are equal arrays. */
static bool same_holders(const xm_demand_t *a, const xm_demand_t *b)
{
    return a->holder_count == b->holder_count &&
           memcmp(a->holders, b->holders, (size_t)a->holder_count * sizeof(int)) == 0;
}

/* Adds the set in place `count` unless an earlier one equals it. The search is linear
 * because it runs only for the few unions. */
static void keep_if_new(xm_sender_sets_t *sets)
{
    size_t words = (size_t)sets->words;
    const uint64_t *fresh = sets->members + (size_t)sets->count * words;
    int size = 0;

    for (int s = 0; s < sets->count; ++s) {
        if (memcmp(sets->members + (size_t)s * words, fresh, words * sizeof(uint64_t)) == 0) {
            return;
        }
    }
    for (int w = 0; w < sets->words; ++w) {
        size += __builtin_popcountll(fresh[w]);
    }
    sets->size[sets->count++] = size;
}

/*
 * Adds the unions of two holder sets while there is room, and always the union of all
 * senders, for which one place is kept. Two sets that share a sender can be a bottleneck
 * together when neither is one alone.
 */
static void add_unions(xm_sender_sets_t *sets, int distinct, int senders)
{
    size_t words = (size_t)sets->words;

    for (int a = 0; a < distinct; ++a) {
        for (int b = a + 1; b < distinct && sets->count < CLOSED_SETS - 1; ++b) {
            for (size_t w = 0; w < words; ++w) {
                sets->members[(size_t)sets->count * words + w] =
                    sets->members[(size_t)a * words + w] | sets->members[(size_t)b * words + w];
            }
            keep_if_new(sets);
        }
    }
    memset(sets->members + (size_t)sets->count * words, 0, words * sizeof(uint64_t));
    for (int s = 0; s < senders; ++s) {
        sets->members[(size_t)sets->count * words + (size_t)s / 64] |= UINT64_C(1) << (s % 64);
    }
    keep_if_new(sets);
}

/* The distinct holder sets, smallest first, as many as fit. Few senders with much to send
 * are the likelier bottleneck, so the small sets are those to keep. */
static void add_holder_sets(xm_sender_sets_t *sets, const xm_exclusive_t *x,
                            const xm_demand_t **sorted, int most)
{
    size_t words = (size_t)sets->words;

    for (int64_t i = 0; i < x->count && sets->count < most; ++i) {
        int64_t d = sorted[i] - x->problem->demands;
        uint64_t *set = sets->members + (size_t)sets->count * words;

        if (i > 0 && same_holders(sorted[i - 1], sorted[i])) {
            continue;
        }
        memset(set, 0, words * sizeof(uint64_t));
        for (int64_t k = x->first_holder[d]; k < x->first_holder[d + 1]; ++k) {
            set[x->holder[k] / 64] |= UINT64_C(1) << (x->holder[k] % 64);
        }
        sets->size[sets->count++] = (int)(x->first_holder[d + 1] - x->first_holder[d]);
    }
}

bool xm_sender_set_contains(const xm_sender_sets_t *sets, int set, const xm_exclusive_t *x,
                            int64_t demand)
{
    const uint64_t *members = sets->members + (size_t)set * (size_t)sets->words;
    int64_t first = x->first_holder[demand], end = x->first_holder[demand + 1];

    /* A larger set cannot be inside a smaller one; this answers most questions without
     * looking at bits. */
    if (end - first > sets->size[set]) {
        return false;
    }
    for (int64_t k = first; k < end; ++k) {
        if ((members[x->holder[k] / 64] >> (x->holder[k] % 64) & 1) == 0) {
            return false;
        }
    }
    return true;
}

/* Sums up what is held only inside each set. Demands with equal holder sets stand next to
 * each other and are tested once, so the cost is distinct holder sets times sets. */
static void add_work(xm_sender_sets_t *sets, const xm_exclusive_t *x, const xm_demand_t **sorted)
{
    for (int64_t i = 0, next; i < x->count; i = next) {
        int64_t work = 0;
        double bytes = 0;

        for (next = i; next < x->count && same_holders(sorted[i], sorted[next]); ++next) {
            work += x->shortest[sorted[next] - x->problem->demands];
            bytes += (double)sorted[next]->bytes;
        }
        for (int s = 0; s < sets->count; ++s) {
            if (xm_sender_set_contains(sets, s, x, sorted[i] - x->problem->demands)) {
                sets->work[s] += work;
                sets->bytes[s] += bytes;
            }
        }
    }
}

/* The room includes one set more than is ever kept, in which a candidate is built before
 * it is known to be new. */
static xm_status_t allocate(xm_sender_sets_t *sets, int64_t count)
{
    sets->members =
        xm_arena_take(&sets->arena, (size_t)count * (size_t)(sets->words + 1) * sizeof(uint64_t));
    sets->size = xm_arena_take(&sets->arena, (size_t)count * sizeof(int));
    sets->work = xm_arena_get(&sets->arena, (size_t)count, sizeof(int64_t));
    sets->bytes = xm_arena_get(&sets->arena, (size_t)count, sizeof(double));
    XM_NEED_MEMORY(!sets->arena.failed, "%lld sets of senders", (long long)count);
    return XM_OK;
}

/*
 * Makes the sets of a problem and what is held only inside each. The number of sets is
 * limited by the work of testing them, so that problems of thousands of different holder
 * sets stay quick.
 */
xm_status_t xm_sender_sets_create(const xm_exclusive_t *x, xm_sender_sets_t **sets)
{
    xm_sender_sets_t *made = calloc(1, sizeof(*made));
    const xm_demand_t **sorted = malloc(((size_t)x->count + 1) * sizeof(*sorted));
    int64_t distinct = 0, most;
    xm_status_t status;

    if (made == NULL || sorted == NULL) {
        status = XM_NO_MEMORY("the holder sets of %lld demands", (long long)x->count);
        goto free_all;
    }
    for (int64_t d = 0; d < x->count; ++d) {
        sorted[d] = &x->problem->demands[d];
    }
    qsort(sorted, (size_t)x->count, sizeof(*sorted), by_holders);
    for (int64_t i = 0; i < x->count; ++i) {
        distinct += i == 0 || !same_holders(sorted[i - 1], sorted[i]);
    }
    made->words = (x->senders + 63) / 64;
    /* Every set is tested against every holder set. */
    most = TEST_WORK / ((distinct + 1) * (made->words + 1)) + 1;
    most = most < distinct ? most : distinct;
    status = allocate(made, most + CLOSED_SETS + 1);
    if (status < 0) {
        goto free_all;
    }
    if (x->count > 0) {
        add_holder_sets(made, x, sorted, (int)most);
        add_unions(made, made->count, x->senders);
        add_work(made, x, sorted);
    }
    free(sorted);
    *sets = made;
    return XM_OK;

free_all:
    free(sorted);
    xm_sender_sets_destroy(made);
    return status;
}

void xm_sender_sets_destroy(xm_sender_sets_t *sets)
{
    if (sets == NULL) {
        return;
    }
    xm_arena_clear(&sets->arena);
    free(sets);
}

/*
 * Two bounds for what is held only inside a set. Some member works at least the average
 * of the durations, rounded up because times are whole; this sees slow receivers but
 * takes every demand at its fastest holder. And the bytes cannot leave faster than all
 * the members' NICs together allow; this sees unequal senders.
 */
static int64_t set_bound(const xm_exclusive_t *x, const xm_sender_sets_t *sets, int set)
{
    const uint64_t *members = sets->members + (size_t)set * (size_t)sets->words;
    int64_t average = (sets->work[set] + sets->size[set] - 1) / sets->size[set], together;
    double rate = 0;

    for (int s = 0; s < x->senders; ++s) {
        if (members[s / 64] >> (s % 64) & 1) {
            rate += xm_network_egress(x->problem->network, x->host_of_sender[s]);
        }
    }
    /* Rounded up because makespans are whole, from a hair less because doubles are not exact. */
    together = (int64_t)ceil(sets->bytes[set] / rate * 1e9 * (1 - 1e-12));
    return average > together ? average : together;
}

/*
 * The larger of two kinds of conditions: every receiver takes in one demand at a time,
 * each for its shortest duration at least, and every set of senders sends what only it
 * holds.
 */
xm_status_t xm_exclusive_bound(const xm_exclusive_t *x, int64_t *bound_ns)
{
    xm_sender_sets_t *sets = NULL;
    int64_t *load = calloc((size_t)x->receivers + 1, sizeof(*load));
    int64_t bound = 0;
    xm_status_t status;

    XM_NEED_MEMORY(load, "the loads of %d hosts", x->receivers);
    status = xm_sender_sets_create(x, &sets);
    if (status < 0) {
        goto free_load;
    }
    for (int64_t d = 0; d < x->count; ++d) {
        for (int64_t k = x->first_receiver[d]; k < x->first_receiver[d + 1]; ++k) {
            load[x->receiver[k]] += x->shortest[d];
            bound = load[x->receiver[k]] > bound ? load[x->receiver[k]] : bound;
        }
    }
    for (int s = 0; s < sets->count; ++s) {
        int64_t ns = set_bound(x, sets, s);

        bound = ns > bound ? ns : bound;
    }
    *bound_ns = bound;
    xm_sender_sets_destroy(sets);
free_load:
    free(load);
    return status;
}
