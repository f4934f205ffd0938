/* SPDX-License-Identifier: Apache-2.0 */
/* The largest set of ranks that can reach each other is what remains when the smallest set that
 * touches every cut pair is taken away: a vertex cover. That is hard in general, and easy here,
 * because whole hosts are cut off: taking one rank of a pair settles it for all of its pairs at
 * once. The search branches on the rank with the most cuts: either it goes, or all that it is cut
 * off from do. */
#include "comm/fault/quorum.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 200000 };

typedef struct {
    int ranks;
    const uint8_t *const *rows;
    bool *in;   /* the set at this point of the search */
    bool *best; /* the largest so far */
    int best_count;
    int steps;
} search_t;

/* A rank that says something has not ended, so who takes it for ended is cut off from it. */
static bool says_cut(const uint8_t *row, int other)
{
    return row != NULL && (row[other] == XM_STANDING_CUT || row[other] == XM_STANDING_CLOSED);
}

static bool are_cut(const search_t *search, int a, int b)
{
    return says_cut(search->rows[a], b) || says_cut(search->rows[b], a);
}

static int count_cuts(const search_t *search, int rank)
{
    int count = 0;

    for (int other = 0; other < search->ranks; ++other) {
        count += other != rank && search->in[other] && are_cut(search, rank, other);
    }
    return count;
}

/* The member with the most cuts, of several the highest; -1: no two members are cut off. */
static int most_cut(const search_t *search, int *members)
{
    int found = -1, most = 0;

    *members = 0;
    for (int rank = 0; rank < search->ranks; ++rank) {
        int cuts = search->in[rank] ? count_cuts(search, rank) : 0;

        *members += search->in[rank];
        if (cuts > 0 && cuts >= most) {
            most = cuts;
            found = rank;
        }
    }
    return found;
}

/* Takes the cut ones away in both ways, and keeps the larger set. `keep`: a rank that stays, or
 * -1. Each level has at least one member less, so it ends. */
static void search_from(search_t *search, int keep)
{
    int members, rank = most_cut(search, &members);
    bool *taken;

    if (members <= search->best_count || ++search->steps > MOST_STEPS) {
        return;
    }
    if (rank < 0) {
        search->best_count = members;
        memcpy(search->best, search->in, (size_t)search->ranks * sizeof(*search->best));
        return;
    }
    taken = malloc((size_t)search->ranks * sizeof(*taken));
    if (taken == NULL) {
        return;
    }
    memcpy(taken, search->in, (size_t)search->ranks * sizeof(*taken));
    if (rank != keep) {
        search->in[rank] = false;
        search_from(search, keep);
        search->in[rank] = true;
    }
    if (keep < 0 || rank == keep || !are_cut(search, rank, keep)) {
        for (int other = 0; other < search->ranks; ++other) {
            search->in[other] =
                search->in[other] && (other == rank || !are_cut(search, rank, other));
        }
        search_from(search, keep);
    }
    memcpy(search->in, taken, (size_t)search->ranks * sizeof(*taken));
    free(taken);
}

/* A rank is a candidate unless rank `self` knows that it is out, or somebody that its process has
 * ended and it has not said otherwise. */
static void find_candidates(search_t *search, int self)
{
    for (int rank = 0; rank < search->ranks; ++rank) {
        search->in[rank] = search->rows[self][rank] != XM_STANDING_OUT;
        for (int other = 0; other < search->ranks && search->in[rank]; ++other) {
            search->in[rank] = search->rows[other] == NULL || search->rows[rank] != NULL ||
                               search->rows[other][rank] != XM_STANDING_CLOSED;
        }
    }
}

static bool somebody_speaks(const search_t *search)
{
    for (int rank = 0; rank < search->ranks; ++rank) {
        if (search->best[rank] && search->rows[rank] != NULL) {
            return true;
        }
    }
    return false;
}

xm_status_t xm_quorum_choose(int ranks, int self, const uint8_t *const *rows, bool *chosen)
{
    bool *in = calloc((size_t)ranks, sizeof(*in)), *first = calloc((size_t)ranks, sizeof(*first));
    search_t search = {.ranks = ranks, .rows = rows, .in = in, .best = first};

    if (in == NULL || first == NULL) {
        free(first);
        free(in);
        return XM_NO_MEMORY("choosing among %d ranks", ranks);
    }
    find_candidates(&search, self);
    search_from(&search, self);
    memcpy(chosen, first, (size_t)ranks * sizeof(*chosen));
    search.steps = 0;
    search_from(&search, -1);
    if (!first[self] && somebody_speaks(&search)) {
        memcpy(chosen, first, (size_t)ranks * sizeof(*chosen));
    }
    free(first);
    free(in);
    return XM_OK;
}

int xm_quorum_others(int ranks, const uint8_t *standing, const int *host, const bool *chosen)
{
    int count = 0;

    for (int rank = 0; rank < ranks; ++rank) {
        bool apart = !chosen[rank] && standing[rank] != XM_STANDING_CLOSED &&
                     standing[rank] != XM_STANDING_OUT;

        for (int member = 0; member < ranks && apart; ++member) {
            apart = !chosen[member] || host[member] != host[rank];
        }
        count += apart;
    }
    return count;
}
