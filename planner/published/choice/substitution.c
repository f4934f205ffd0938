/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kept assignments lie in one array that is searched for the cheapest: there are at most some
 * thousands, and trying the moves on one costs far more. The same assignment is told by its hash,
 * so it is taken up once, whatever moves led to it.
 */

#include "planner/published/choice/substitution.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/published/choice/completion.h"

enum { MOST_KEPT = 1 << 12 };

typedef struct kept {
    double seconds;
    uint64_t hash;
    bool taken;
    int *value;
} kept_t;

typedef struct search {
    const ap_cfn_core_t *network;
    const uint8_t *const *part;
    const ap_choice_moves_t *moves;
    const ap_substitution_params_t *params;
    ap_choice_completion_t *completion;
    kept_t *kept;
    int count;
    int *trial, *best;
    double least;
} search_t;

/* The value that does `part` with the axis and the same as now with the others; -1: there is none.
 */
static int moved(const search_t *s, int variable, int value, const ap_choice_move_t *move)
{
    const uint8_t *part = s->part[variable], *now = part + value * AP_CHOICE_LEVELS;
    const ap_cfn_variable_t *of = &s->network->variable[variable];
    int best = -1;

    for (int x = 0; x < of->size; ++x) {
        bool fits = part[x * AP_CHOICE_LEVELS + move->axis] == move->part;

        for (int a = 0; a < AP_CHOICE_LEVELS; ++a) {
            fits = fits && (a == move->axis || part[x * AP_CHOICE_LEVELS + a] == now[a]);
        }
        best = fits && (best < 0 || of->cost[x] < of->cost[best]) ? x : best;
    }
    return best;
}

static void keep(search_t *s, double seconds)
{
    size_t bytes = (size_t)s->network->variables * sizeof(int);
    uint64_t hash = 0;
    kept_t *at;

    for (int v = 0; v < s->network->variables; ++v) {
        hash = xm_hash_mix(hash, (uint64_t)s->trial[v]);
    }
    for (int i = 0; i < s->count; ++i) {
        if (s->kept[i].hash == hash) {
            return;
        }
    }
    if (seconds < s->least) {
        s->least = seconds;
        memcpy(s->best, s->trial, bytes);
    }
    if (s->count == MOST_KEPT || seconds > s->params->alpha * s->least) {
        return;
    }
    at = &s->kept[s->count];
    at->value = malloc(bytes);
    if (at->value != NULL) { /* else this way is not gone on with */
        memcpy(at->value, s->trial, bytes);
        at->seconds = seconds;
        at->hash = hash;
        ++s->count;
    }
}

/* Tries a move; false where it changes nothing or a variable cannot do it. */
static bool apply(search_t *s, const int *from, const ap_choice_move_t *move)
{
    bool changed = false;

    for (int v = 0; v < s->network->variables; ++v) {
        s->trial[v] = s->moves->fixed[v] ? from[v] : -1;
    }
    for (int i = 0; i < move->count; ++i) {
        int v = s->moves->variable[move->first + i], x = moved(s, v, from[v], move);

        if (x < 0) {
            return false;
        }
        changed = changed || x != from[v];
        s->trial[v] = x;
    }
    return changed;
}

static int cheapest(const search_t *s)
{
    int best = -1;

    for (int i = 0; i < s->count; ++i) {
        if (!s->kept[i].taken && (best < 0 || s->kept[i].seconds < s->kept[best].seconds)) {
            best = i;
        }
    }
    return best;
}

static void run(search_t *s)
{
    for (int64_t round = 0; round < s->params->budget; ++round) {
        int at = cheapest(s);

        if (at < 0 || s->kept[at].seconds > s->params->alpha * s->least) {
            return;
        }
        s->kept[at].taken = true;
        for (int m = 0; m < s->moves->count; ++m) {
            if (apply(s, s->kept[at].value, &s->moves->move[m])) {
                ap_choice_complete(s->completion, true, s->trial);
                keep(s, ap_cfn_core_cost(s->network, s->trial));
            }
        }
    }
}

xm_status_t ap_search_substitution(const ap_cfn_core_t *network, const uint8_t *const *part,
                                   const ap_choice_moves_t *moves,
                                   const ap_substitution_params_t *params, int *assignment)
{
    size_t bytes = ((size_t)network->variables + 1) * sizeof(int);
    xm_arena_t arena = {0};
    search_t s = {.network = network, .part = part, .moves = moves, .params = params};
    xm_status_t status;

    if (params->budget < 1 || !(params->alpha >= 1)) {
        return XM_INVALID("a search over substitutions needs a budget and an alpha of 1 or more");
    }
    s.kept = xm_arena_get(&arena, MOST_KEPT, sizeof(*s.kept));
    s.trial = xm_arena_take(&arena, bytes);
    s.best = xm_arena_take(&arena, bytes);
    status = arena.failed ? XM_NO_MEMORY("a search over substitutions")
                          : ap_choice_completion_create(network, &s.completion);
    if (status == XM_OK) {
        memcpy(s.trial, assignment, (size_t)network->variables * sizeof(int));
        s.least = HUGE_VAL;
        memcpy(s.best, assignment, (size_t)network->variables * sizeof(int));
        keep(&s, ap_cfn_core_cost(network, assignment));
        run(&s);
        memcpy(assignment, s.best, (size_t)network->variables * sizeof(int));
    }
    for (int i = 0; i < s.count; ++i) {
        free(s.kept[i].value);
    }
    ap_choice_completion_destroy(s.completion);
    xm_arena_clear(&arena);
    return status;
}
