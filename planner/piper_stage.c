#include "planner/piper_stage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Nodes of the branch and bound for one knapsack. */
enum { MOST_BRANCHES = 20000 };

/* Bytes: a distributed reduction sends and receives twice, forwards and backwards count alike. */
static const double REDUCTION_PASSES = 4.0, EDGE_PASSES = 2.0;

xm_status_t ap_piper_pricing_create(const ap_piper_problem_t *problem, ap_piper_pricing_t *pricing)
{
    size_t count = (size_t)problem->node_count + 1;

    *pricing = (ap_piper_pricing_t){.problem = problem, .exact = true};
    pricing->inside = calloc(count, sizeof(bool));
    pricing->nodes = calloc(count, sizeof(int));
    pricing->items = calloc(count, sizeof(*pricing->items));
    pricing->order = calloc(count, sizeof(int));
    pricing->saving = calloc(count, sizeof(double));
    pricing->cost = calloc(count, sizeof(double));
    pricing->best = calloc(count, sizeof(bool));
    pricing->trial = calloc(count, sizeof(bool));
    if (pricing->inside == NULL || pricing->nodes == NULL || pricing->items == NULL ||
        pricing->order == NULL || pricing->saving == NULL || pricing->cost == NULL ||
        pricing->best == NULL || pricing->trial == NULL) {
        ap_piper_pricing_clear(pricing);
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d layers", problem->node_count);
    }
    return XM_OK;
}

void ap_piper_pricing_clear(ap_piper_pricing_t *pricing)
{
    free(pricing->inside);
    free(pricing->nodes);
    free(pricing->items);
    free(pricing->order);
    free(pricing->saving);
    free(pricing->cost);
    free(pricing->best);
    free(pricing->trial);
    *pricing = (ap_piper_pricing_t){0};
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

/* Bytes that pass the stage's border at this layer, for each sample. */
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

bool ap_piper_pricing_set(ap_piper_pricing_t *pricing, int tensor, int data)
{
    const ap_piper_problem_t *problem = pricing->problem;

    for (int i = 0; i < pricing->node_count; ++i) {
        const ap_piper_node_t *node = &problem->nodes[pricing->nodes[i]];
        const ap_piper_degree_t *degree = find_degree(node, tensor);
        ap_piper_item_t *item = &pricing->items[i];

        if (degree == NULL) {
            return false;
        }
        item->count = degree->variant_count;
        for (int l = 0; l < item->count; ++l) {
            const ap_piper_variant_t *variant = &degree->variants[l];
            double reduction = REDUCTION_PASSES * (data - 1) * variant->parameters / data /
                               problem->micro_batches;

            item->seconds[l] =
                (border_bytes(pricing, node, variant) / data + reduction) / problem->bandwidth +
                variant->time / data;
            item->each[l] = variant->memory_each;
            item->fixed[l] = variant->memory;
        }
    }
    return true;
}

static double memory_of(const ap_piper_item_t *item, int variant, int in_flight)
{
    return item->each[variant] * in_flight + item->fixed[variant];
}

/* Items that save memory, the cheapest bytes first. */
static int compare_ranks(const ap_piper_pricing_t *pricing, int a, int b)
{
    double left = pricing->cost[a] * pricing->saving[b];
    double right = pricing->cost[b] * pricing->saving[a];

    if (left != right) {
        return left < right ? -1 : 1;
    }
    if (pricing->saving[a] != pricing->saving[b]) {
        return pricing->saving[a] > pricing->saving[b] ? -1 : 1;
    }
    return (a > b) - (a < b);
}

/* Few items: insertion. */
static int rank_items(ap_piper_pricing_t *pricing, int in_flight)
{
    int count = 0;

    for (int i = 0; i < pricing->node_count; ++i) {
        const ap_piper_item_t *item = &pricing->items[i];
        int fast = item->chosen, other = 1 - fast, at;

        if (item->count < 2) {
            continue;
        }
        pricing->saving[i] = memory_of(item, fast, in_flight) - memory_of(item, other, in_flight);
        pricing->cost[i] = item->seconds[other] - item->seconds[fast];
        if (!(pricing->saving[i] > 0.0)) {
            continue;
        }
        for (at = count++; at > 0 && compare_ranks(pricing, i, pricing->order[at - 1]) < 0; --at) {
            pricing->order[at] = pricing->order[at - 1];
        }
        pricing->order[at] = i;
    }
    return count;
}

typedef struct knapsack {
    ap_piper_pricing_t *pricing;
    int count, branches;
    double least;
} knapsack_t;

/* The least that the rest can cost when items may be taken in part. */
static double rest_bound(const knapsack_t *knapsack, int from, double need)
{
    const ap_piper_pricing_t *pricing = knapsack->pricing;
    double cost = 0.0;

    for (int i = from; i < knapsack->count && need > 0.0; ++i) {
        int item = pricing->order[i];

        if (pricing->saving[item] >= need) {
            return cost + pricing->cost[item] * need / pricing->saving[item];
        }
        cost += pricing->cost[item];
        need -= pricing->saving[item];
    }
    return need > 0.0 ? INFINITY : cost;
}

static bool alike(const ap_piper_pricing_t *pricing, int a, int b)
{
    return pricing->cost[a] == pricing->cost[b] && pricing->saving[a] == pricing->saving[b];
}

/* Chooses among the items from @p from on; of items that are alike the first ones are taken. */
static void branch(knapsack_t *knapsack, int from, double need, double cost)
{
    ap_piper_pricing_t *pricing = knapsack->pricing;
    int item, next = from + 1;

    if (need <= 0.0) {
        if (cost < knapsack->least) {
            knapsack->least = cost;
            memcpy(pricing->best, pricing->trial, (size_t)pricing->node_count * sizeof(bool));
        }
        return;
    }
    if (from == knapsack->count || ++knapsack->branches > MOST_BRANCHES ||
        cost + rest_bound(knapsack, from, need) >= knapsack->least) {
        return;
    }
    item = pricing->order[from];
    pricing->trial[item] = true;
    branch(knapsack, next, need - pricing->saving[item], cost + pricing->cost[item]);
    pricing->trial[item] = false;
    while (next < knapsack->count && alike(pricing, item, pricing->order[next])) {
        ++next;
    }
    branch(knapsack, next, need, cost);
}

/* How many micro-batches the chosen variants leave room for. */
static int room_for(const ap_piper_pricing_t *pricing, int most)
{
    double each = 0.0, fixed = 0.0, limit = pricing->problem->memory;
    int room;

    for (int i = 0; i < pricing->node_count; ++i) {
        const ap_piper_item_t *item = &pricing->items[i];

        each += item->each[item->chosen];
        fixed += item->fixed[item->chosen];
    }
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

static double chosen_seconds(const ap_piper_pricing_t *pricing)
{
    double seconds = 0.0;

    for (int i = 0; i < pricing->node_count; ++i) {
        seconds += pricing->items[i].seconds[pricing->items[i].chosen];
    }
    return seconds;
}

/* The fastest variant of every layer, and of equally fast ones that which holds less. */
static void choose_fastest(ap_piper_pricing_t *pricing, int in_flight)
{
    for (int i = 0; i < pricing->node_count; ++i) {
        ap_piper_item_t *item = &pricing->items[i];

        item->chosen = 0;
        if (item->count > 1 &&
            (item->seconds[1] < item->seconds[0] ||
             (item->seconds[1] == item->seconds[0] &&
              memory_of(item, 1, in_flight) < memory_of(item, 0, in_flight)))) {
            item->chosen = 1;
        }
    }
}

double ap_piper_pricing_best(ap_piper_pricing_t *pricing, int in_flight, int most, int *up_to)
{
    knapsack_t knapsack = {.pricing = pricing, .least = INFINITY};
    double need = -pricing->problem->memory;

    choose_fastest(pricing, in_flight);
    *up_to = room_for(pricing, most);
    if (*up_to >= in_flight) {
        return chosen_seconds(pricing);
    }
    for (int i = 0; i < pricing->node_count; ++i) {
        need += memory_of(&pricing->items[i], pricing->items[i].chosen, in_flight);
        pricing->trial[i] = false;
    }
    knapsack.count = rank_items(pricing, in_flight);
    branch(&knapsack, 0, need, 0.0);
    pricing->exact = pricing->exact && knapsack.branches <= MOST_BRANCHES;
    if (isinf(knapsack.least)) {
        return INFINITY;
    }
    for (int i = 0; i < pricing->node_count; ++i) {
        if (pricing->best[i]) {
            pricing->items[i].chosen = 1 - pricing->items[i].chosen;
        }
    }
    *up_to = room_for(pricing, most);
    *up_to = *up_to > in_flight ? *up_to : in_flight;
    return chosen_seconds(pricing);
}
