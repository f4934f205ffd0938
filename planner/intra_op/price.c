/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans within a memory limit by Lagrangian prices on memory. The limit couples all tensors that
 * are live at a time, and makes the network hard; prices at a few moments take its place, and the
 * network without limit is solved in a fraction of a second. The best prices maximise a concave
 * function of up to 16 variables, each of whose values costs one such solve, so cutting planes
 * (cut_model.h) are used: they need far fewer values than subgradient steps.
 *
 * Prices alone cannot reach plans in the gap between two priced plans. combine() then searches
 * among the choices that the priced plans made, under the true limit.
 */

#include "planner/intra_op/price.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/solver.h"

enum { ROUNDS = AP_CUT_PLANES };
_Static_assert((int)AP_SHARD_MOMENTS <= (int)AP_CUT_PRICES, "the model has a price per moment");

/* The first price of a moment, as a part of what would make the limit cost as much as the plan; the
 * growth of ceilings. */
static const double first_part = 0.05, growth = 4;
/* Where the next prices are: between those of the best bound (0) and those that maximise the model
 * (1). The latter jump about while there are few planes, which is the known instability of cutting
 * planes. */
static const double boldness = 0.7;
/* The prices count as the best ones when the model lets the bound rise by no more than this
 * part. */
static const double settled = 1e-4;
/* They are then raised by this part, and by ever more, until a plan fits. */
static const double first_raise = 0.03;

/* The part of the time for priced plans; the rest is for combining them. */
static const double priced_part = 0.75;

/* The most that a tensor's memory may cost: more than any plan, and far from what is forbidden, so
 * that sums of prices never forbid anything. */
static const double dearest = 1e14;

/* A plan whose memory is within this part of the least one is as good as that. */
static const double near = 0.02;

typedef struct pricing {
    xm_arena_t arena; /* all arrays */
    const ap_shard_network_t *network;
    ap_cfn_t priced; /* the network without limit, with costs of its own */
    int moments;
    ap_shard_moment_t moment[AP_SHARD_MOMENTS];
    ap_cut_model_t model; /* what the plans so far cost at other prices */
    int ops;
    bool *met;    /* per value: some plan has it */
    float *curve; /* [plan][operator]: memory in parts of the limit */
    ap_shard_memory_t *memory;
    int *trial;
    double limit;
    double least;  /* bytes that every plan takes */
    double factor; /* that all prices are multiplied by, once they are the best ones */
} pricing_t;

/* The price of a byte of a buffer, by when it is used. */
typedef double price_fn(const pricing_t *p, const ap_shard_use_t *use);

/* Writes the network's costs, with the price of each use of a buffer added to its variable. */
static void set_prices(pricing_t *p, price_fn *price_of)
{
    const ap_shard_network_t *n = p->network;

    memcpy(p->priced.costs, n->cfn->costs, n->cfn->node_at[n->cfn->nodes] * sizeof(int64_t));
    for (int u = 0; u < n->uses; ++u) {
        const ap_shard_buffer_t *row = &n->row[n->use[u].row];
        size_t at = n->cfn->node_at[row->variable];
        size_t options = ap_cfn_strategies(n->cfn, (size_t)row->variable);
        double price = price_of(p, &n->use[u]);

        for (size_t o = 0; o < options && price > 0; ++o) {
            if (p->priced.costs[at + o] < AP_CFN_INFINITE) {
                p->priced.costs[at + o] += (int64_t)fmin(price * row->bytes[o], dearest);
            }
        }
    }
}

/* Moments are few, so each use looks at all of them. */
static double price_at_moments(const pricing_t *p, const ap_shard_use_t *use)
{
    double price = 0;

    for (int m = 0; m < p->moments; ++m) {
        price +=
            use->first <= p->moment[m].op && p->moment[m].op < use->end ? p->moment[m].price : 0;
    }
    return price;
}

/* What the limit itself would pay at the prices; by weak duality a priced bound less this is a
 * bound for all plans within the limit. */
static double paid(const pricing_t *p)
{
    double sum = 0;

    for (int m = 0; m < p->moments; ++m) {
        sum += p->moment[m].price * p->limit;
    }
    return sum;
}

static int find_moment(const pricing_t *p, int op)
{
    for (int m = 0; m < p->moments; ++m) {
        if (p->moment[m].op == op) {
            return m;
        }
    }
    return -1;
}

/* What a plan uses above the limit at a moment, negative where it is below: the slope of the plan's
 * plane in that moment's price. */
static double excess_of(const pricing_t *p, int plan, int moment)
{
    return p->limit *
           ((double)p->curve[(size_t)plan * (size_t)p->ops + (size_t)p->moment[moment].op] - 1.0);
}

/* Adds a moment. Planes of earlier plans get a slope for it from their stored curves, so nothing is
 * solved again. When there is no room for more moments, prices work with those that there are. */
static void add_moment(pricing_t *p, int op, double ceiling)
{
    int m = p->moments;

    if (m == AP_SHARD_MOMENTS) {
        return;
    }
    p->moments = p->model.prices = m + 1;
    p->moment[m] = (ap_shard_moment_t){.op = op, .ceiling = ceiling};
    for (int plan = 0; plan < p->model.planes; ++plan) {
        p->model.slope[plan][m] = excess_of(p, plan, m);
    }
}

/* Adds the plan just made as a plane: its cost, and its excess at every moment. It also marks the
 * choices that the plan has made. Curves are kept as floats in parts of the limit, since every plan
 * keeps one for all operators. */
static void add_plan(pricing_t *p, double cost)
{
    int plan = p->model.planes++;

    for (int o = 0; o < p->ops; ++o) {
        p->curve[(size_t)plan * (size_t)p->ops + (size_t)o] =
            (float)(ap_shard_memory_sum(&p->memory[o]) / p->limit);
    }
    for (size_t n = 0; n < p->priced.nodes; ++n) {
        p->met[p->priced.node_at[n] + (size_t)p->trial[n]] = true;
    }
    p->model.constant[plan] = cost;
    for (int m = 0; m < p->moments; ++m) {
        p->model.slope[plan][m] = excess_of(p, plan, m);
    }
}

/* Lets prices rise further that are near their ceilings and did not keep the last plan within the
 * limit. Ceilings keep the first models, which know little, from trying absurd prices. */
static void raise_ceilings(pricing_t *p)
{
    for (int m = 0; m < p->moments; ++m) {
        ap_shard_moment_t *of = &p->moment[m];

        if (of->price > of->ceiling / 2 && excess_of(p, p->model.planes - 1, m) > 0) {
            of->ceiling *= growth;
        }
    }
}

/* Moves to the next prices. False when the bound cannot rise by much: the model's maximum, an upper
 * bound on what any prices can give as long as no ceiling is in the way, is hardly above it. */
static bool move_prices(pricing_t *p, double bound)
{
    double ceiling[AP_CUT_PRICES], price[AP_CUT_PRICES], most;
    bool free = true, moved = false;

    for (int m = 0; m < p->moments; ++m) {
        ceiling[m] = p->moment[m].ceiling;
    }
    most = ap_cut_model_maximise(&p->model, ceiling, price);
    for (int m = 0; m < p->moments; ++m) {
        ap_shard_moment_t *of = &p->moment[m];

        free = free && price[m] < 0.99 * ceiling[m];
        price[m] = of->best + boldness * (price[m] - of->best);
        moved = moved || fabs(price[m] - of->price) > 1e-6 * of->ceiling;
        of->price = price[m];
    }
    return moved && (!free || most - bound > settled * fabs(most));
}

/* The operator with the most memory; plans exceed the limit most there, so it becomes the next
 * moment. */
static int peak_of(const pricing_t *p, double *peak)
{
    int ops = ap_graph_ops(p->network->problem->params.graph), at = 0;

    *peak = 0;
    ap_shard_network_memory(p->network, p->trial, p->memory);
    for (int o = 0; o < ops; ++o) {
        double sum = ap_shard_memory_sum(&p->memory[o]);

        if (sum > *peak) {
            *peak = sum;
            at = o;
        }
    }
    return at;
}

/* Makes one plan at the present prices, and raises the bound. Any optimum will do, so the solver is
 * spared the search for a repeatable one. */
static xm_status_t make_plan(pricing_t *p, const ap_shard_options_t *options, double seconds,
                             ap_cfn_result_t *found, double *bound)
{
    ap_cfn_options_t cfn_options = AP_CFN_OPTIONS_INIT;
    xm_status_t status;

    set_prices(p, price_at_moments);
    cfn_options.seconds = seconds;
    cfn_options.any = true;
    cfn_options.threads = options->threads;
    cfn_options.seed = options->seed;
    status = ap_cfn_solve(&p->priced, &cfn_options, p->trial, found);
    if (status == XM_OK) {
        double dual = found->bound - paid(p);

        if (dual > *bound) {
            *bound = dual;
            for (int m = 0; m < p->moments; ++m) {
                p->moment[m].best = p->moment[m].price;
            }
        }
        status = ap_cfn_evaluate(p->network->cfn, p->trial, &found->value);
    }
    return status;
}

/* Takes over prices of another network of the same problem, per unit of the model's cost, since
 * networks scale costs differently. */
static void take_prices(pricing_t *p, const ap_shard_prices_t *prices)
{
    for (int m = 0; m < prices->moments; ++m) {
        ap_shard_moment_t *of = &p->moment[m];

        *of = prices->moment[m];
        of->best *= p->network->scale;
        of->price = of->best;
        of->ceiling *= p->network->scale;
    }
    p->moments = p->model.prices = prices->moments;
}

/* Hands out the prices of the best bound in the same units. */
static void give_prices(const pricing_t *p, ap_shard_prices_t *prices)
{
    for (int m = 0; m < p->moments; ++m) {
        prices->moment[m] = p->moment[m];
        prices->moment[m].best /= p->network->scale;
        prices->moment[m].ceiling /= p->network->scale;
    }
    prices->moments = p->moments;
}

/* Makes plans until `end`, or until `last` while none fits. Each round adds a plane and, if the
 * plan's peak is at a new place, a moment. When the prices have settled and no plan fits, all are
 * raised together until one does: there is a gap, and the plans above it are the ones wanted. */
static xm_status_t search(pricing_t *p, const ap_shard_options_t *options, double end, double last,
                          int *choice, ap_cfn_result_t *result, double *bound)
{
    const ap_cfn_t *cfn = p->network->cfn;
    bool any = false;

    for (int round = 0; round < ROUNDS && xm_clock_seconds() < (any ? end : last); ++round) {
        ap_cfn_result_t found;
        double peak, cost;
        int op;
        /* No single plan may take more than a third of what is left. */
        xm_status_t status =
            make_plan(p, options, fmax(0.001, (last - xm_clock_seconds()) / 3), &found, bound);

        if (status != XM_OK) {
            return any ? XM_OK : status;
        }
        op = peak_of(p, &peak);
        cost = (double)found.value.cost;
        if (peak <= p->limit && (!any || found.value.cost < result->value.cost)) {
            memcpy(choice, p->trial, cfn->nodes * sizeof(*choice));
            *result = found;
            any = true;
        }
        add_plan(p, cost);
        if (peak > p->limit && find_moment(p, op) < 0) {
            add_moment(p, op, first_part * cost / p->limit);
            p->factor = 1;
        }
        /* Without moments the plan fits and is the best; after a raise, the first plan that fits
         * ends it. */
        if (p->moments == 0 || (p->factor > 1 && any)) {
            break;
        }
        raise_ceilings(p);
        if (p->factor > 1 || !move_prices(p, *bound)) {
            if (any) {
                break;
            }
            p->factor = 1 + 2 * (p->factor - 1) + first_raise;
            for (int m = 0; m < p->moments; ++m) {
                p->moment[m].price = p->factor * p->moment[m].best;
            }
        }
    }
    return any ? XM_OK : xm_error_set(XM_ERR_TIMEOUT, "no plan within the limit was found in time");
}

/* Finds the best plan within the limit that takes every choice as one of the plans so far did. They
 * are good plans for more and for less memory, so what they agree on is probably right, and what
 * they differ in is what the limit is about. So few choices are left that this network is small
 * even with its limit. */
static xm_status_t combine(pricing_t *p, const ap_shard_options_t *options, double seconds,
                           bool any, int *choice, ap_cfn_result_t *result)
{
    const ap_cfn_t *cfn = p->network->cfn;
    ap_cfn_options_t cfn_options = AP_CFN_OPTIONS_INIT;
    ap_cfn_result_t found;
    xm_status_t status;

    for (size_t k = 0; k < cfn->node_at[cfn->nodes]; ++k) {
        p->priced.costs[k] = p->met[k] ? cfn->costs[k] : AP_CFN_INFINITE;
    }
    p->priced.limited = true;
    cfn_options.seconds = seconds;
    cfn_options.any = true;
    cfn_options.start = any ? choice : NULL;
    cfn_options.threads = options->threads;
    cfn_options.seed = options->seed;
    status = ap_cfn_solve(&p->priced, &cfn_options, p->trial, &found);
    p->priced.limited = false;
    if (status == XM_OK && (!any || found.value.cost < result->value.cost)) {
        memcpy(choice, p->trial, cfn->nodes * sizeof(*choice));
        *result = found;
    }
    return any ? XM_OK : status;
}

static void release(pricing_t *p)
{
    xm_arena_clear(&p->arena);
}

static xm_status_t open_pricing(const ap_shard_network_t *network,
                                const ap_shard_options_t *options, pricing_t *p)
{
    const ap_cfn_t *cfn = network->cfn;
    int ops = ap_graph_ops(network->problem->params.graph);

    *p = (pricing_t){.network = network,
                     .priced = *cfn,
                     .ops = ops,
                     .limit = options->memory_limit,
                     .factor = 1};
    p->priced.limited = false;
    p->priced.costs = xm_arena_take(&p->arena, cfn->node_at[cfn->nodes] * sizeof(int64_t));
    p->trial = xm_arena_take(&p->arena, cfn->nodes * sizeof(*p->trial));
    p->memory = xm_arena_get(&p->arena, (size_t)ops + 1, sizeof(*p->memory));
    p->met = xm_arena_get(&p->arena, cfn->node_at[cfn->nodes], sizeof(*p->met));
    p->curve = xm_arena_take(&p->arena, (size_t)ops * ROUNDS * sizeof(*p->curve));
    return p->arena.failed ? XM_NO_MEMORY("prices") : XM_OK;
}

/* Lets memory cost so much that the plan's own cost hardly counts: a buffer pays by how long it
 * lives, and half of the price is that of the moments, which are the peaks so far. */
static double least_price(const pricing_t *p, const ap_shard_use_t *use)
{
    double weight = (double)(use->end - use->first) / p->ops;

    return dearest / p->least * weight + price_at_moments(p, use);
}

/* One thread, and as much time as one plan takes, so that the same plans come out in every run. */
xm_status_t ap_shard_price_least(const ap_shard_network_t *network,
                                 const ap_shard_options_t *options, double end, int *choice,
                                 ap_cfn_result_t *result)
{
    enum { PEAKS = 12 };
    ap_cfn_options_t cfn_options = AP_CFN_OPTIONS_INIT;
    double peak = HUGE_VAL;
    pricing_t p;
    xm_status_t status = open_pricing(network, options, &p);

    if (status == XM_OK) {
        status = ap_shard_network_lower_bound(network, &p.least, &p.moment[0].op);
        p.least = fmax(p.least, 1);
    }
    cfn_options.any = true;
    cfn_options.gap = near;
    cfn_options.threads = 1;
    cfn_options.seed = 1;
    for (int count = 1; status == XM_OK && peak > p.limit; ++count) {
        if (count == PEAKS || (count > 1 && xm_clock_seconds() > end)) {
            status = xm_error_set(XM_ERR_TIMEOUT, "no plan within the limit was found in time");
            break;
        }
        for (p.moments = 0; p.moments < count; ++p.moments) {
            p.moment[p.moments].price = dearest / p.least / count;
        }
        set_prices(&p, least_price);
        status = ap_cfn_solve(&p.priced, &cfn_options, p.trial, result);
        if (status == XM_OK) {
            p.moment[count].op = peak_of(&p, &peak);
        }
    }
    if (status == XM_OK) {
        memcpy(choice, p.trial, network->cfn->nodes * sizeof(*choice));
        result->bound = 0;
        result->optimal = result->repeatable = false;
        status = ap_cfn_evaluate(network->cfn, choice, &result->value);
    }
    release(&p);
    return status;
}

/* The bound is raised whether or not a plan fits. Plans by prices are never called optimal here;
 * whoever compares their cost with the bound may do so. */
xm_status_t ap_shard_price_solve(const ap_shard_network_t *network,
                                 const ap_shard_options_t *options, double seconds,
                                 ap_shard_prices_t *prices, int *choice, ap_cfn_result_t *result,
                                 double *bound)
{
    double begin = xm_clock_seconds();
    pricing_t p;
    xm_status_t status = open_pricing(network, options, &p);

    if (status == XM_OK) {
        take_prices(&p, prices);
        status = search(&p, options, begin + priced_part * seconds, begin + seconds, choice, result,
                        bound);
    }
    if (p.model.planes > 0 && (status == XM_OK || status == XM_ERR_TIMEOUT)) {
        status = combine(&p, options, fmax(0.001, begin + seconds - xm_clock_seconds()),
                         status == XM_OK, choice, result);
    }
    give_prices(&p, prices);
    if (status == XM_OK) {
        result->bound = *bound;
        result->optimal = result->repeatable = false;
    }
    release(&p);
    return status;
}
