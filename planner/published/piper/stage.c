/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a stage takes on t * d devices within a memory: a knapsack over its layers, of which each
 * may run a slower way that holds less. Models repeat one block, so layers that are alike in all
 * numbers form a kind, and the choice is how many of each kind run the slower way. That is small
 * enough for branch and bound to be exact in practice; a limit on its steps is told by `exact`.
 *
 * The authors' program chooses greedily; the difference is in the plans where memory binds.
 */

#include "planner/published/piper/stage.h"

#include <math.h>
#include <string.h>

/* Nodes of the branch and bound for one knapsack. */
enum { MOST_BRANCHES = 20000 };

/* A distributed reduction sends and receives all bytes twice; what crosses a border does so
 * forwards and backwards. */
static const double REDUCTION_PASSES = 4.0, EDGE_PASSES = 2.0;

xm_status_t ap_piper_pricing_create(const ap_piper_problem_t *problem, ap_piper_pricing_t *pricing)
{
    size_t count = (size_t)problem->node_count;

    xm_arena_t *arena = &pricing->arena;

    *pricing = (ap_piper_pricing_t){.problem = problem, .exact = true};
    pricing->inside = xm_arena_get(arena, count, sizeof(bool));
    pricing->nodes = xm_arena_get(arena, count, sizeof(int));
    pricing->kind_of = xm_arena_get(arena, count, sizeof(int));
    pricing->kinds = xm_arena_get(arena, count, sizeof(*pricing->kinds));
    pricing->order = xm_arena_get(arena, count, sizeof(int));
    pricing->chains = xm_arena_get(arena, count, sizeof(*pricing->chains));
    pricing->trial = xm_arena_get(arena, count, sizeof(int));
    pricing->best = xm_arena_get(arena, count, sizeof(int));
    return arena->failed ? XM_NO_MEMORY("%d layers", problem->node_count) : XM_OK;
}

void ap_piper_pricing_clear(ap_piper_pricing_t *pricing)
{
    xm_arena_clear(&pricing->arena);
}

static const ap_piper_degree_t *find_degree(const ap_piper_node_t *node, int tensor)
{
    for (int i = 0; i < node->degree_count; ++i) {
        if (node->degrees[i].tensor == tensor && node->degrees[i].variant_count > 0) {
            return &node->degrees[i];
        }
    }
    return NULL;
}

static double border_bytes(const ap_piper_pricing_t *pricing, const ap_piper_node_t *node,
                           const ap_piper_variant_t *variant)
{
    const ap_piper_problem_t *problem = pricing->problem;
    double bytes = 0.0;

    for (int i = 0; i < node->in_count; ++i) {
        if (!pricing->inside[problem->edges[node->in[i]].before]) {
            bytes += EDGE_PASSES * (problem->bytes[node->in[i]] + variant->in_bytes[i]);
        }
    }
    for (int i = 0; i < node->out_count; ++i) {
        if (!pricing->inside[problem->edges[node->out[i]].after]) {
            bytes += EDGE_PASSES * (problem->bytes[node->out[i]] + variant->out_bytes[i]);
        }
    }
    return bytes;
}

/* Equal to the bit: the numbers come from the input, unchanged. */
static bool same_kind(const ap_piper_kind_t *a, const ap_piper_kind_t *b)
{
    bool same = a->variants == b->variants;

    for (int l = 0; same && l < a->variants; ++l) {
        same = a->time[l] == b->time[l] && a->parameters[l] == b->parameters[l] &&
               a->border[l] == b->border[l] && a->each[l] == b->each[l] &&
               a->fixed[l] == b->fixed[l];
    }
    return same;
}

static void add_layer(ap_piper_pricing_t *pricing, int index, const ap_piper_degree_t *degree)
{
    const ap_piper_node_t *node = &pricing->problem->nodes[pricing->nodes[index]];
    ap_piper_kind_t kind = {.count = 1, .variants = degree->variant_count};
    int at = 0;

    for (int l = 0; l < kind.variants; ++l) {
        const ap_piper_variant_t *variant = &degree->variants[l];

        kind.time[l] = variant->time;
        kind.parameters[l] = variant->parameters;
        kind.border[l] = border_bytes(pricing, node, variant);
        kind.each[l] = variant->memory_each;
        kind.fixed[l] = variant->memory;
    }
    while (at < pricing->kind_count && !same_kind(&pricing->kinds[at], &kind)) {
        ++at;
    }
    if (at == pricing->kind_count) {
        pricing->kinds[pricing->kind_count++] = kind;
    } else {
        ++pricing->kinds[at].count;
    }
    pricing->kind_of[index] = at;
}

bool ap_piper_pricing_set_tensor(ap_piper_pricing_t *pricing, int tensor)
{
    pricing->kind_count = 0;
    for (int i = 0; i < pricing->node_count; ++i) {
        const ap_piper_degree_t *degree =
            find_degree(&pricing->problem->nodes[pricing->nodes[i]], tensor);

        if (degree == NULL) {
            return false;
        }
        add_layer(pricing, i, degree);
    }
    return true;
}

void ap_piper_pricing_set_data(ap_piper_pricing_t *pricing, int data)
{
    const ap_piper_problem_t *problem = pricing->problem;

    for (int i = 0; i < pricing->kind_count; ++i) {
        ap_piper_kind_t *kind = &pricing->kinds[i];

        for (int l = 0; l < kind->variants; ++l) {
            double reduction =
                REDUCTION_PASSES * (data - 1) * kind->parameters[l] / data / problem->micro_batches;

            kind->seconds[l] =
                (kind->border[l] / data + reduction) / problem->bandwidth + kind->time[l] / data;
        }
    }
}

static double memory_of(const ap_piper_kind_t *kind, int variant, int in_flight)
{
    return kind->each[variant] * in_flight + kind->fixed[variant];
}

/* Chooses the faster variant of every kind, and of equally fast ones that which holds less. */
static void choose_fastest(ap_piper_pricing_t *pricing, int in_flight)
{
    for (int i = 0; i < pricing->kind_count; ++i) {
        ap_piper_kind_t *kind = &pricing->kinds[i];

        kind->switched = 0;
        kind->fast =
            kind->variants > 1 && (kind->seconds[1] < kind->seconds[0] ||
                                   (kind->seconds[1] == kind->seconds[0] &&
                                    memory_of(kind, 1, in_flight) < memory_of(kind, 0, in_flight)));
    }
}

/* Kinds that save the most come first, and of those that save the same the cheapest. */
static bool comes_before(const ap_piper_kind_t *a, const ap_piper_kind_t *b)
{
    return a->saving != b->saving ? a->saving > b->saving : a->cost < b->cost;
}

/* Lists the kinds that can save memory, sorted by insertion: there are few. */
static int rank_kinds(ap_piper_pricing_t *pricing, int in_flight)
{
    int count = 0;

    for (int i = 0; i < pricing->kind_count; ++i) {
        ap_piper_kind_t *kind = &pricing->kinds[i];
        int at = count;

        if (kind->variants < 2) {
            continue;
        }
        kind->saving =
            memory_of(kind, kind->fast, in_flight) - memory_of(kind, 1 - kind->fast, in_flight);
        kind->cost = kind->seconds[1 - kind->fast] - kind->seconds[kind->fast];
        if (!(kind->saving > 0.0)) {
            continue;
        }
        for (; at > 0 && comes_before(kind, &pricing->kinds[pricing->order[at - 1]]); --at) {
            pricing->order[at] = pricing->order[at - 1];
        }
        pricing->order[at] = i;
        ++count;
    }
    return count;
}

static bool is_cheaper(const ap_piper_chain_t *a, const ap_piper_chain_t *b)
{
    return a->cost * b->saving < b->cost * a->saving;
}

/* Layers that save the same form a chain: a dearer one is never switched before a cheaper one, so
 * only how many are switched is open. The chain with the cheapest bytes comes first, but the
 * longest last: how many of that are needed is then plain, so the longest loop is none. */
static int make_chains(ap_piper_pricing_t *pricing, int ranked)
{
    ap_piper_chain_t *chains = pricing->chains, longest;
    int count = 0, at = 0;

    for (int i = 0; i < ranked; ++i) {
        const ap_piper_kind_t *kind = &pricing->kinds[pricing->order[i]];

        if (i == 0 || kind->saving != pricing->kinds[pricing->order[i - 1]].saving) {
            chains[count++] = (ap_piper_chain_t){
                .first = i, .end = i, .saving = kind->saving, .cost = kind->cost};
        }
        chains[count - 1].end = i + 1;
        chains[count - 1].count += kind->count;
    }
    for (int i = 1; i < count; ++i) {
        ap_piper_chain_t chain = chains[i];

        for (at = i; at > 0 && is_cheaper(&chain, &chains[at - 1]); --at) {
            chains[at] = chains[at - 1];
        }
        chains[at] = chain;
    }
    at = 0;
    for (int i = 1; i < count; ++i) {
        at = chains[i].count > chains[at].count ? i : at;
    }
    if (count > 0) {
        longest = chains[at];
        memmove(chains + at, chains + at + 1, (size_t)(count - 1 - at) * sizeof(*chains));
        chains[count - 1] = longest;
    }
    return count;
}

/* What the first layers of a chain cost. */
static double chain_cost(const ap_piper_pricing_t *pricing, const ap_piper_chain_t *chain,
                         int count)
{
    double cost = 0.0;

    for (int i = chain->first; count > 0 && i < chain->end; ++i) {
        const ap_piper_kind_t *kind = &pricing->kinds[pricing->order[i]];
        int some = kind->count < count ? kind->count : count;

        cost += some * kind->cost;
        count -= some;
    }
    return cost;
}

static void switch_layers(ap_piper_pricing_t *pricing, const ap_piper_chain_t *chain, int count)
{
    for (int i = chain->first; i < chain->end; ++i) {
        ap_piper_kind_t *kind = &pricing->kinds[pricing->order[i]];

        kind->switched = kind->count < count ? kind->count : count;
        count -= kind->switched;
    }
}

typedef struct knapsack {
    ap_piper_pricing_t *pricing;
    int count, branches; /* chains, steps so far */
    double least;
} knapsack_t;

static void keep(knapsack_t *knapsack, int used, double cost)
{
    ap_piper_pricing_t *pricing = knapsack->pricing;

    if (cost < knapsack->least) {
        knapsack->least = cost;
        for (int i = 0; i < knapsack->count; ++i) {
            pricing->best[i] = i < used ? pricing->trial[i] : 0;
        }
    }
}

/* As many of the last chain as the rest needs. The division may be off by one in floating point, so
 * the count is corrected both ways. */
static void finish(knapsack_t *knapsack, int at, double need, double cost)
{
    const ap_piper_chain_t *chain = &knapsack->pricing->chains[at];
    double many = ceil(need / chain->saving);
    int count;

    if (!(many <= chain->count + 1)) {
        return;
    }
    count = (int)many;
    count += count * chain->saving < need;
    count -= count > 0 && (count - 1) * chain->saving >= need;
    if (count <= chain->count) {
        knapsack->pricing->trial[at] = count;
        keep(knapsack, at + 1, cost + chain_cost(knapsack->pricing, chain, count));
    }
}

/* A lower bound on the rest: all of it at the price of the cheapest bytes left. The last chain is
 * out of order, so it is looked at as well. */
static double rest_bound(const knapsack_t *knapsack, int at, double need)
{
    const ap_piper_chain_t *chains = knapsack->pricing->chains, *cheapest = &chains[at];

    if (is_cheaper(&chains[knapsack->count - 1], cheapest)) {
        cheapest = &chains[knapsack->count - 1];
    }
    return cheapest->cost * need / cheapest->saving;
}

/* Chooses how many layers of each chain run the other way, from the chain at @p at on. */
static void branch(knapsack_t *knapsack, int at, double need, double cost)
{
    ap_piper_pricing_t *pricing = knapsack->pricing;
    const ap_piper_chain_t *chain;

    if (need <= 0.0) {
        keep(knapsack, at, cost);
        return;
    }
    if (at == knapsack->count || ++knapsack->branches > MOST_BRANCHES ||
        cost + rest_bound(knapsack, at, need) >= knapsack->least) {
        return;
    }
    if (at == knapsack->count - 1) {
        finish(knapsack, at, need, cost);
        return;
    }
    chain = &pricing->chains[at];
    for (int count = 0; count <= chain->count; ++count) {
        double spent = cost + chain_cost(pricing, chain, count);

        if (spent >= knapsack->least) {
            break;
        }
        pricing->trial[at] = count;
        branch(knapsack, at + 1, need - count * chain->saving, spent);
        if (count * chain->saving >= need) {
            break;
        }
    }
}

/* Sums over all layers as chosen. */
typedef struct sums {
    double each, fixed, seconds;
} sums_t;

static sums_t sum_up(const ap_piper_pricing_t *pricing)
{
    sums_t sums = {0};

    for (int i = 0; i < pricing->kind_count; ++i) {
        const ap_piper_kind_t *kind = &pricing->kinds[i];
        int fast = kind->fast, slow = 1 - fast, many = kind->count - kind->switched;

        sums.each += many * kind->each[fast];
        sums.fixed += many * kind->fixed[fast];
        sums.seconds += many * kind->seconds[fast];
        if (kind->switched > 0) {
            sums.each += kind->switched * kind->each[slow];
            sums.fixed += kind->switched * kind->fixed[slow];
            sums.seconds += kind->switched * kind->seconds[slow];
        }
    }
    return sums;
}

/* How many micro-batches the choice leaves room for. The division gives a start; the two loops make
 * up for its rounding. */
static int room_for(const sums_t *sums, double limit, int most)
{
    double each = sums->each, fixed = sums->fixed;
    int room;

    if (each * most + fixed <= limit) {
        return most;
    }
    room = fixed <= limit && each > 0.0 ? (int)fmin((limit - fixed) / each, most) : 0;
    while (room < most && each * (room + 1) + fixed <= limit) {
        ++room;
    }
    while (room > 0 && each * room + fixed > limit) {
        --room;
    }
    return room;
}

/* Where the fastest ways fit, there is nothing to choose. Otherwise the same answer holds up to the
 * number that its memory has room for, which saves solving the knapsack for each. */
double ap_piper_pricing_best(ap_piper_pricing_t *pricing, int in_flight, int most, int *up_to)
{
    knapsack_t knapsack = {.pricing = pricing, .least = INFINITY};
    double limit = pricing->problem->memory;
    sums_t sums;

    choose_fastest(pricing, in_flight);
    sums = sum_up(pricing);
    *up_to = room_for(&sums, limit, most);
    if (*up_to >= in_flight) {
        return sums.seconds;
    }
    knapsack.count = make_chains(pricing, rank_kinds(pricing, in_flight));
    branch(&knapsack, 0, sums.each * in_flight + sums.fixed - limit, 0.0);
    pricing->exact = pricing->exact && knapsack.branches <= MOST_BRANCHES;
    if (isinf(knapsack.least)) {
        return INFINITY;
    }
    for (int i = 0; i < knapsack.count; ++i) {
        switch_layers(pricing, &pricing->chains[i], pricing->best[i]);
    }
    sums = sum_up(pricing);
    *up_to = room_for(&sums, limit, most);
    *up_to = *up_to > in_flight ? *up_to : in_flight;
    return sums.seconds;
}

double ap_piper_pricing_memory(const ap_piper_pricing_t *pricing, int in_flight)
{
    sums_t sums = sum_up(pricing);

    return sums.each * in_flight + sums.fixed;
}

void ap_piper_pricing_variants(const ap_piper_pricing_t *pricing, int *variants)
{
    for (int i = 0; i < pricing->node_count; ++i) {
        const ap_piper_kind_t *kind = &pricing->kinds[pricing->kind_of[i]];
        int earlier = 0;

        for (int j = 0; j < i; ++j) {
            earlier += pricing->kind_of[j] == pricing->kind_of[i];
        }
        variants[i] = earlier < kind->switched ? 1 - kind->fast : kind->fast;
    }
}
