/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Enumerates all down-sets of a graph, in the order of their sizes: from each set, every node whose
 * predecessors are in it gives a set with one node more. Sets are bit strings in a hash table, so a
 * set that is reached from several is found again, and each way to it is a link. Chains have few
 * down-sets and wide graphs exponentially many; the enumeration stops at a limit, and the caller
 * then cuts along one order instead.
 */

#include "planner/published/ideals.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { FIRST_ROOM = 256, WORD = 64 };

struct ap_ideals {
    xm_arena_t arena; /* the links */
    int nodes, words, count;
    uint64_t *sets;  /* [count][words] */
    int *first_link; /* [count + 1] */
    ap_ideal_link_t *links;
};

typedef struct found_link {
    ap_ideal_link_t link;
    int above; /* the set that it belongs to */
} found_link_t;

/* While the down-sets are found, links from a set upwards come in the order of the sets below. */
typedef struct builder {
    ap_ideals_t *ideals;
    xm_arena_t arena; /* the arrays that do not grow */
    uint64_t *before; /* [node][words]: predecessors */
    uint64_t *set;    /* [words]: the set looked at */
    xm_index_t index; /* of the sets */
    size_t room;      /* words of sets */
    int most;
    found_link_t *found;
    int64_t found_count;
    size_t found_room;
} builder_t;

static const uint64_t *set_at(const ap_ideals_t *ideals, int ideal)
{
    return ideals->sets + (size_t)ideal * (size_t)ideals->words;
}

static xm_status_t add_link(builder_t *builder, int above, int ideal, int node)
{
    XM_NEED_MEMORY(XM_ARRAY_ROOM(builder->found, builder->found_room, builder->found_count),
                   "the down-sets of a graph");
    builder->found[builder->found_count++] = (found_link_t){{ideal, node}, above};
    return XM_OK;
}

/* Adds the set in builder->set, which is @p below with @p node, unless it is there, and the link to
 * it. */
static xm_status_t add_set(builder_t *builder, int below, int node)
{
    ap_ideals_t *ideals = builder->ideals;
    size_t words = (size_t)ideals->words, bytes = words * sizeof(*builder->set), step = 0;
    uint64_t hash = XXH3_64bits(builder->set, bytes);
    int64_t at;

    do {
        at = xm_index_next(&builder->index, hash, &step);
    } while (at >= 0 && memcmp(set_at(ideals, (int)at), builder->set, bytes) != 0);
    if (at < 0) {
        if (ideals->count == builder->most) {
            return XM_NO_SOLUTION("the graph has more than %d contiguous beginnings",
                                  builder->most);
        }
        at = ideals->count;
        XM_NEED_MEMORY(xm_array_reserve(&ideals->sets, &builder->room, (size_t)(at + 1) * words,
                                        sizeof(*ideals->sets)) &&
                           xm_index_enter(&builder->index, hash, at),
                       "the down-sets of a graph");
        memcpy(ideals->sets + (size_t)at * words, builder->set, bytes);
        ++ideals->count;
    }
    return below < 0 ? XM_OK : add_link(builder, (int)at, below, node);
}

static bool can_add(const builder_t *builder, const uint64_t *set, int node)
{
    int words = builder->ideals->words;
    const uint64_t *before = builder->before + (size_t)node * (size_t)words;

    if ((set[node / WORD] >> (node % WORD) & 1U) != 0) {
        return false;
    }
    for (int i = 0; i < words; ++i) {
        if ((before[i] & ~set[i]) != 0) {
            return false;
        }
    }
    return true;
}

/* The list grows while it is gone through, and sets are added in the order of their sizes; the set
 * is copied first, because the array may move. */
static xm_status_t grow(builder_t *builder)
{
    ap_ideals_t *ideals = builder->ideals;
    size_t bytes = (size_t)ideals->words * sizeof(uint64_t);
    XM_TRY(add_set(builder, -1, -1));

    for (int ideal = 0; ideal < ideals->count; ++ideal) {
        for (int node = 0; node < ideals->nodes; ++node) {
            if (can_add(builder, set_at(ideals, ideal), node)) {
                memcpy(builder->set, set_at(ideals, ideal), bytes);
                builder->set[node / WORD] |= (uint64_t)1 << (node % WORD);
                XM_TRY(add_set(builder, ideal, node));
            }
        }
    }
    return XM_OK;
}

/* Sorts the links by the set above, by counting: their number per set is known. */
static xm_status_t sort_links(builder_t *builder)
{
    ap_ideals_t *ideals = builder->ideals;
    int *next = xm_arena_get(&builder->arena, (size_t)ideals->count, sizeof(*next));

    ideals->first_link =
        xm_arena_get(&ideals->arena, (size_t)ideals->count + 1, sizeof(*ideals->first_link));
    ideals->links =
        xm_arena_take(&ideals->arena, (size_t)builder->found_count * sizeof(*ideals->links));
    if (next == NULL || ideals->arena.failed || builder->found_count > INT32_MAX) {
        return XM_NO_MEMORY("the down-sets of a graph");
    }
    for (int64_t i = 0; i < builder->found_count; ++i) {
        ++ideals->first_link[builder->found[i].above + 1];
    }
    for (int i = 0; i < ideals->count; ++i) {
        ideals->first_link[i + 1] += ideals->first_link[i];
        next[i] = ideals->first_link[i];
    }
    for (int64_t i = 0; i < builder->found_count; ++i) {
        ideals->links[next[builder->found[i].above]++] = builder->found[i].link;
    }
    return XM_OK;
}

/* A graph with a cycle has nodes that no down-set reaches, so its last set does not hold all. */
static xm_status_t build(builder_t *builder, const ap_precedence_t *edges, int edge_count)
{
    ap_ideals_t *ideals = builder->ideals;
    const uint64_t *all;

    for (int i = 0; i < edge_count; ++i) {
        builder->before[(size_t)edges[i].after * (size_t)ideals->words +
                        (size_t)(edges[i].before / WORD)] |= (uint64_t)1
                                                             << (edges[i].before % WORD);
    }
    XM_TRY(grow(builder));
    all = set_at(ideals, ideals->count - 1);
    for (int node = 0; node < ideals->nodes; ++node) {
        if ((all[node / WORD] >> (node % WORD) & 1U) == 0) {
            return XM_INVALID("the graph has a cycle, node %d is on it or behind it", node);
        }
    }
    return sort_links(builder);
}

xm_status_t ap_ideals_create(int nodes, const ap_precedence_t *edges, int edge_count, int most,
                             ap_ideals_t **result)
{
    ap_ideals_t *ideals = calloc(1, sizeof(*ideals));
    builder_t builder = {.ideals = ideals, .most = most};
    xm_status_t status;

    XM_NEED_MEMORY(ideals, "the down-sets of a graph");
    ideals->nodes = nodes;
    ideals->words = (nodes + WORD - 1) / WORD;
    ideals->words = ideals->words > 0 ? ideals->words : 1;
    builder.before =
        xm_arena_get(&builder.arena, (size_t)nodes, (size_t)ideals->words * sizeof(uint64_t));
    builder.set = xm_arena_get(&builder.arena, (size_t)ideals->words, sizeof(uint64_t));
    status = builder.arena.failed ? XM_NO_MEMORY("the down-sets of a graph")
                                  : build(&builder, edges, edge_count);
    free(builder.found);
    xm_index_clear(&builder.index);
    xm_arena_clear(&builder.arena);
    if (status != XM_OK) {
        ap_ideals_destroy(ideals);
        return status;
    }
    *result = ideals;
    return XM_OK;
}

int ap_ideals_nodes(const ap_ideals_t *ideals)
{
    return ideals->nodes;
}

int ap_ideals_count(const ap_ideals_t *ideals)
{
    return ideals->count;
}

bool ap_ideals_has(const ap_ideals_t *ideals, int ideal, int node)
{
    return (set_at(ideals, ideal)[node / WORD] >> (node % WORD) & 1U) != 0;
}

const ap_ideal_link_t *ap_ideals_below(const ap_ideals_t *ideals, int ideal, int *count)
{
    *count = ideals->first_link[ideal + 1] - ideals->first_link[ideal];
    return ideals->links + ideals->first_link[ideal];
}

void ap_ideals_destroy(ap_ideals_t *ideals)
{
    if (ideals != NULL) {
        free(ideals->sets);
        xm_arena_clear(&ideals->arena);
        free(ideals);
    }
}
