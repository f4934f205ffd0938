/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tree that is made to be checked. Branch and bound (planner/solver/tree/branch.c) drops values
 * under many prices at every node and reasons about sums of usages; all of that would have to be
 * written down. Here a node has one set of prices and messages, and whatever follows must follow
 * from them: its bound reaches the goal (a leaf), or values go whose bound does, or it branches.
 * The records come in the order of the visits, so a reader needs a stack and nothing else.
 */

#include "planner/solver/tree/proof.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/tree/sums.h"
#include "planner/solver/tree/tree.h"

enum {
    ROUNDS_ROOT = 400,
    ROUNDS_NODE = 40,
    ROUNDS_LOOK = 5,
    ROUNDS_LAST = 4,
    DOUBLINGS = 60,
    MANY = 10, /* one value in so many goes: the node begins anew without them */
    SUMS_WORK = 200000
};
/* A node goes on while so many rounds have closed this part of the gap. */
static const double worthwhile = 0.05;
/* Larger messages come from forbidden cells; they are cut, which is as valid as any message. */
static const double message_most = 0x1p56;

typedef struct proof {
    ap_cfn_tree_t tree;
    FILE *file;
    double goal, unit; /* 2^scale */
    int64_t nodes, most;
    double first; /* bound of the first record */
    bool by_usage, closed;
} proof_t;

/* What rounding may take off the bound of a node, in all. */
static double margin(const proof_t *p, const ap_cfn_core_t *core)
{
    return (3.0 * core->links + 2.0 * core->variables + 4.0) / p->unit;
}

static double written(const proof_t *p, double message)
{
    double units = nearbyint(message * p->unit);

    return fmax(-message_most, fmin(message_most, units)) / p->unit;
}

/* Adds a link's messages to the costs of its ends' values, and to `above` what the least cell of a
 * value is above the link's least cell, which is returned. */
static double add_link(const proof_t *p, const ap_cfn_dual_t *dual, int k, double *cost,
                       double *above)
{
    const ap_cfn_core_t *core = dual->core;
    const ap_cfn_link_t *link = &core->link[k];
    size_t a = dual->at[link->a], b = dual->at[link->b];
    size_t rows = (size_t)core->variable[link->a].size, columns;
    double least = HUGE_VAL;

    columns = (size_t)core->variable[link->b].size;
    for (size_t x = 0; x < rows; ++x) {
        double there = written(p, dual->to_a[k][x]);

        cost[a + x] += there;
        for (size_t y = 0; y < columns; ++y) {
            least =
                fmin(least, link->table[x * columns + y] - there - written(p, dual->to_b[k][y]));
        }
    }
    for (size_t y = 0; y < columns; ++y) {
        double there = written(p, dual->to_b[k][y]), lowest = HUGE_VAL;

        cost[b + y] += there;
        for (size_t x = 0; x < rows; ++x) {
            lowest =
                fmin(lowest, link->table[x * columns + y] - there - written(p, dual->to_a[k][x]));
        }
        above[b + y] += lowest - least;
    }
    for (size_t x = 0; x < rows; ++x) {
        double there = written(p, dual->to_a[k][x]), lowest = HUGE_VAL;

        for (size_t y = 0; y < columns; ++y) {
            lowest =
                fmin(lowest, link->table[x * columns + y] - there - written(p, dual->to_b[k][y]));
        }
        above[a + x] += lowest - least;
    }
    return least;
}

/* The bound that a reader will find at the dual's prices and messages, the sum of all least costs
 * of values and cells; `above` (two per value) gets what solutions with a value cost above that. */
static double evaluate(const proof_t *p, const ap_cfn_dual_t *dual, double *above)
{
    const ap_cfn_core_t *core = dual->core;
    size_t values = ap_cfn_core_values(core);
    double bound = core->constant, *cost = above + values;

    memset(above, 0, values * sizeof(*above));
    memcpy(cost, dual->priced, values * sizeof(*cost));
    for (int k = 0; k < core->links; ++k) {
        bound += add_link(p, dual, k, cost, above);
    }
    for (int v = 0; v < core->variables; ++v) {
        double least = HUGE_VAL;

        for (int x = 0; x < core->variable[v].size; ++x) {
            least = fmin(least, cost[dual->at[v] + (size_t)x]);
        }
        bound += least;
        for (int x = 0; x < core->variable[v].size; ++x) {
            above[dual->at[v] + (size_t)x] += cost[dual->at[v] + (size_t)x] - least;
        }
    }
    for (int t = 0; t < core->times; ++t) {
        bound -= dual->price[t] * core->capacity[t];
    }
    return bound;
}

/* Prices as a reader will see them. */
static void round_prices(ap_cfn_dual_t *dual)
{
    for (int t = 0; t < dual->core->times; ++t) {
        dual->price[t] =
            ldexp(nearbyint(ldexp(dual->price[t], AP_CFN_PRICE_BITS)), -AP_CFN_PRICE_BITS);
    }
    ap_cfn_dual_prices_changed(dual);
}

/* A time at which even the least usages are too much, or -1. */
static int overfull_time(const ap_cfn_dual_t *dual)
{
    const ap_cfn_core_t *core = dual->core;
    double *least = dual->load, sum = 0.0;

    memset(least, 0, ((size_t)core->times + 1) * sizeof(*least));
    for (int v = 0; v < core->variables; ++v) {
        for (int k = 0; k < core->variable[v].segments; ++k) {
            const ap_cfn_segment_t *segment = &core->variable[v].segment[k];
            double usage = segment->usage[0];

            for (int x = 1; x < core->variable[v].size; ++x) {
                usage = fmin(usage, segment->usage[x]);
            }
            least[segment->from] += usage;
            least[segment->to] -= usage;
        }
    }
    for (int t = 0; t < core->times; ++t) {
        sum += least[t];
        if (sum > core->capacity[t]) {
            return t;
        }
    }
    return -1;
}

/* A state of a dual that a record may be made of. Messages follow the prices, so going back to
 * prices alone would not bring a bound back. */
typedef struct state {
    double *messages, *price;
    size_t messages_bytes, price_bytes;
} state_t;

static void save_state(state_t *state, const ap_cfn_dual_t *dual)
{
    memcpy(state->messages, dual->messages, state->messages_bytes);
    memcpy(state->price, dual->price, state->price_bytes);
}

/* Steps of prices. What a reader gains from a record that does not end a branch is the values that
 * go with it, and no single state makes as many of them go as all together: so the steps end where
 * many would go, and what is left begins anew, smaller. At the end the dual has the state of the
 * best bound, or of the most values where that bound is not enough. `keep` is scratch, one per
 * value. */
static xm_status_t move_prices(ap_cfn_node_t *node, double enough, bool values_matter, bool *keep)
{
    ap_cfn_dual_t *dual = node->dual;
    const ap_cfn_core_t *core = dual->core;
    size_t values = ap_cfn_core_values(core);
    int rounds = node->depth == 0 ? ROUNDS_ROOT : ROUNDS_NODE, most = 0;
    double last = -HUGE_VAL;
    state_t best = {.price_bytes = (size_t)core->times * sizeof(double)}, dropping;
    xm_arena_t pool = {0};

    for (int k = 0; k < core->links; ++k) {
        best.messages_bytes += (size_t)core->variable[core->link[k].a].size * sizeof(double);
        best.messages_bytes += (size_t)core->variable[core->link[k].b].size * sizeof(double);
    }
    dropping = best;
    best.messages = xm_arena_take(&pool, best.messages_bytes + 1);
    best.price = xm_arena_take(&pool, best.price_bytes + 1);
    dropping.messages = xm_arena_take(&pool, best.messages_bytes + 1);
    dropping.price = xm_arena_take(&pool, best.price_bytes + 1);
    if (pool.failed) {
        xm_arena_clear(&pool);
        return XM_NO_MEMORY("a proof");
    }
    dual->best = -HUGE_VAL;
    dual->factor = 0.5;
    for (int k = 0; k < rounds && dual->best < enough; ++k) {
        double before = dual->best;
        int dropped;

        memset(keep, true, values);
        dropped = ap_cfn_dual_fix(dual, enough, keep);
        if (dual->best > before) {
            save_state(&best, dual);
        }
        if (dropped > most) {
            most = dropped;
            save_state(&dropping, dual);
        }
        if (values_matter && (size_t)most * MANY > values) {
            break;
        }
        if (k % ROUNDS_LOOK == 0 && node->depth > 0) {
            if (dual->best - last < worthwhile * (enough - dual->best)) {
                break;
            }
            last = dual->best;
        }
        ap_cfn_dual_move_prices(dual, enough);
    }
    if (values_matter && most > 0 && dual->best < enough) {
        best = dropping;
    }
    memcpy(dual->price, best.price, best.price_bytes);
    memcpy(dual->messages, best.messages, best.messages_bytes);
    xm_arena_clear(&pool);
    return XM_OK;
}

/* Raises the bound of a node, at prices that can be written down. Where nothing fits, a price that
 * is large enough says so. */
static xm_status_t raise_bound(ap_cfn_node_t *node, double enough, bool values_matter, bool *keep)
{
    ap_cfn_dual_t *dual = node->dual;
    int full = overfull_time(dual);
    xm_status_t status = full < 0 ? move_prices(node, enough, values_matter, keep) : XM_OK;

    for (int k = 0; k < (full < 0 ? ROUNDS_LAST : DOUBLINGS) && status == XM_OK; ++k) {
        if (full >= 0) {
            dual->price[full] = 2.0 * dual->price[full] + 1.0;
        }
        round_prices(dual);
        if (ap_cfn_dual_sweep(dual) >= 2.0 * fabs(enough) && full >= 0) {
            break;
        }
    }
    return status;
}

static void write_vector(proof_t *p, const double *message, int size)
{
    for (int x = 0; x < size; ++x) {
        (void)fprintf(p->file, "%s%.0f", x > 0 ? "," : "[", written(p, message[x]) * p->unit);
    }
    (void)fprintf(p->file, "]");
}

/* Opens a record with the dual of a node, in numbers of the root. `capacity` is what the capacities
 * were before they were lowered. */
static void write_dual(proof_t *p, const ap_cfn_node_t *node, const double *capacity)
{
    const ap_cfn_core_t *core = node->dual->core;
    const char *comma = "";

    (void)fprintf(p->file, ",\n{\"prices\":[");
    for (int t = 0; t < core->times; ++t) {
        if (node->dual->price[t] > 0.0) {
            (void)fprintf(p->file, "%s[%" PRId64 ",%.0f,%.0f]", comma, core->when[t],
                          ldexp(node->dual->price[t], AP_CFN_PRICE_BITS),
                          capacity[t] - core->capacity[t]);
            comma = ",";
        }
    }
    (void)fprintf(p->file, "],\"messages\":[");
    for (int k = 0; k < core->links; ++k) {
        const ap_cfn_link_t *link = &core->link[k];

        (void)fprintf(p->file, "%s[%d,%d,", k > 0 ? "," : "", node->root[link->a],
                      node->root[link->b]);
        write_vector(p, node->dual->to_a[k], core->variable[link->a].size);
        (void)fprintf(p->file, ",");
        write_vector(p, node->dual->to_b[k], core->variable[link->b].size);
        (void)fprintf(p->file, "]");
    }
    (void)fprintf(p->file, "]");
}

/* Notes one value that goes; the first one begins the list. */
static void write_drop(proof_t *p, ap_cfn_node_t *node, int v, int x, size_t *dropped)
{
    size_t k = node->dual->at[v] + (size_t)x;

    (void)fprintf(p->file, "%s[%d,%d]", *dropped > 0 ? "," : "", node->root[v],
                  node->root_value[k]);
    node->keep[k] = false;
    ++*dropped;
}

/* Whether every cell of a link is forbidden that has this value of one end and a kept one of the
 * other. */
static bool is_alone(const ap_cfn_node_t *node, const ap_cfn_link_t *link, int v, int x)
{
    const ap_cfn_core_t *core = node->dual->core;
    int other = ap_cfn_other(link, v);
    const bool *keep = node->keep + node->dual->at[other];

    for (int y = 0; y < core->variable[other].size; ++y) {
        if (keep[y] && (link->a == v ? ap_cfn_cell(core, link, x, y)
                                     : ap_cfn_cell(core, link, y, x)) < HUGE_VAL) {
            return false;
        }
    }
    return true;
}

/* Drops values that have no partner over some link, in a record without prices: messages of them
 * would be infinite. Returns how many. */
static size_t drop_alone(proof_t *p, ap_cfn_node_t *node)
{
    const ap_cfn_core_t *core = node->dual->core;
    size_t dropped = 0, before = 1;

    (void)fprintf(p->file, "%s{\"drops\":[", p->nodes > 1 ? ",\n" : "");
    while (dropped != before) {
        before = dropped;
        for (int v = 0; v < core->variables; ++v) {
            for (int x = 0; x < core->variable[v].size; ++x) {
                bool gone = !(core->variable[v].cost[x] < HUGE_VAL);

                for (int k = 0; k < core->variable[v].degree && !gone; ++k) {
                    gone = is_alone(node, &core->link[core->variable[v].link[k]], v, x);
                }
                if (gone && node->keep[node->dual->at[v] + (size_t)x]) {
                    write_drop(p, node, v, x, &dropped);
                }
            }
        }
    }
    (void)fprintf(p->file, "]}");
    return dropped;
}

/* Whether every variable has a value left; where one has none, a reader knows that nothing cheaper
 * is here. */
static bool is_possible(const ap_cfn_node_t *node)
{
    const ap_cfn_core_t *core = node->dual->core;
    bool possible = true;

    for (int v = 0; v < core->variables && possible; ++v) {
        possible = memchr(node->keep + node->dual->at[v], true, (size_t)core->variable[v].size);
    }
    return possible;
}

/* Drops the values whose bound reaches the goal, and ends the record with them. */
static size_t drop(proof_t *p, ap_cfn_node_t *node, double bound, double enough, const double *cost)
{
    const ap_cfn_core_t *core = node->dual->core;
    size_t dropped = 0;

    (void)fprintf(p->file, ",\"drops\":[");
    for (int v = 0; v < core->variables; ++v) {
        for (int x = 0; x < core->variable[v].size; ++x) {
            size_t k = node->dual->at[v] + (size_t)x;

            if (bound + cost[k] >= enough) {
                write_drop(p, node, v, x, &dropped);
            }
        }
    }
    (void)fprintf(p->file, "]}");
    return dropped;
}

static xm_status_t prove(proof_t *p, ap_cfn_node_t *node);

static xm_status_t descend(proof_t *p, const ap_cfn_node_t *from)
{
    ap_cfn_node_t node;
    xm_status_t status = ap_cfn_node_narrow(&p->tree, from, &node);

    if (status == XM_OK) {
        ++node.depth;
        status = prove(p, &node);
        ap_cfn_node_destroy(&node);
    }
    return status;
}

/* Takes the cheapest value of a variable, then all its others. */
static xm_status_t branch(proof_t *p, ap_cfn_node_t *node)
{
    double mean;
    int v =
        ap_cfn_node_choose(node, NULL, p->by_usage, fmax(1.0, p->goal - node->dual->best), &mean);
    int best = node->dual->choice[v], others = 0;
    int size = node->dual->core->variable[v].size;
    bool *keep = node->keep + node->dual->at[v], *saved;
    xm_status_t status = XM_OK;

    for (int x = 0; x < size; ++x) {
        best = keep[best] ? best : x;
    }
    for (int x = 0; x < size; ++x) {
        others += keep[x] && x != best;
    }
    if (others == 0) { /* values went, and there is nothing to choose here */
        return descend(p, node);
    }
    saved = malloc((size_t)size * sizeof(*saved));
    if (saved == NULL) {
        return XM_NO_MEMORY("a proof");
    }
    memcpy(saved, keep, (size_t)size * sizeof(*saved));
    (void)fprintf(p->file, ",\n{\"branch\":[%d,%d]}", node->root[v],
                  node->root_value[node->dual->at[v] + (size_t)best]);
    for (int side = 0; side < 2 && status == XM_OK && p->closed; ++side) {
        for (int x = 0; x < size; ++x) {
            keep[x] = side == 0 ? x == best : saved[x] && x != best;
        }
        status = descend(p, node);
    }
    free(saved);
    return status;
}

/* The record of a node's dual. *bound is what it proves; below `enough`, values may go. Capacities
 * are lowered to sums that can occur, which a reader can find out as well, and are as before
 * afterwards. */
static xm_status_t make_record(proof_t *p, ap_cfn_node_t *node, double enough, double *bound,
                               size_t *dropped)
{
    ap_cfn_core_t *core = node->core;
    size_t bytes = (size_t)core->times * sizeof(double);
    double *cost = malloc((2 * ap_cfn_core_values(core) + 1) * sizeof(*cost));
    double *capacity = malloc(bytes + 1);
    bool *keep = malloc(ap_cfn_core_values(core) + 1);
    xm_status_t status =
        cost == NULL || capacity == NULL || keep == NULL ? XM_NO_MEMORY("a proof") : XM_OK;

    if (status == XM_OK) {
        memcpy(capacity, core->capacity, bytes);
        status = ap_cfn_lower_capacities(core, node->dual->at, node->keep, node->dual->price,
                                         SUMS_WORK, ap_cfn_core_capacity(core));
    }
    if (status == XM_OK) {
        status = raise_bound(node, enough, p->most > 1, keep);
    }
    if (status == XM_OK) {
        write_dual(p, node, capacity);
        *bound = evaluate(p, node->dual, cost);
        if (*bound < enough && p->nodes < p->most) {
            *dropped = drop(p, node, *bound, enough, cost);
        } else {
            (void)fprintf(p->file, "}");
        }
        memcpy(ap_cfn_core_capacity(core), capacity, bytes);
    }
    free(cost);
    free(capacity);
    free(keep);
    return status;
}

static xm_status_t prove(proof_t *p, ap_cfn_node_t *node)
{
    const ap_cfn_core_t *core = node->dual->core;
    double enough = p->goal - 1.0 + margin(p, core), bound = 0.0;
    size_t dropped;
    xm_status_t status;

    ++p->nodes;
    dropped = drop_alone(p, node);
    if (!is_possible(node)) {
        return XM_OK;
    }
    if (dropped > 0) {
        return descend(p, node);
    }
    status = make_record(p, node, enough, &bound, &dropped);
    p->first = p->first > -HUGE_VAL ? p->first : bound - margin(p, core);
    if (status != XM_OK || bound >= enough || !is_possible(node)) {
        return status;
    }
    if (core->variables == 0 || p->nodes >= p->most || ap_cfn_shared_is_over(p->tree.shared)) {
        p->closed = false;
        return XM_OK;
    }
    return MANY * dropped > ap_cfn_core_values(core) ? descend(p, node) : branch(p, node);
}

xm_status_t ap_cfn_prove(const ap_cfn_dual_t *root, ap_cfn_shared_t *shared, double goal, int scale,
                         int64_t most, bool by_usage, FILE *file, bool *closed, double *bound)
{
    proof_t p = {.file = file,
                 .goal = goal,
                 .unit = ldexp(1.0, scale),
                 .most = most,
                 .by_usage = by_usage,
                 .closed = true,
                 .first = -HUGE_VAL};
    ap_cfn_node_t node;
    xm_status_t status = ap_cfn_tree_create(root, shared, true, &p.tree, &node);

    if (status == XM_OK) {
        status = prove(&p, &node);
        ap_cfn_node_destroy(&node);
        ap_cfn_tree_destroy(&p.tree);
    }
    *closed = p.closed;
    *bound = p.first;
    return status;
}
