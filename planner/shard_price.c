#include "planner/shard_price.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOMENTS = 16, ROUNDS = 40 };

/* First price, as a part of what would make the limit cost as much as the plan; its growth. */
static const double first_part = 0.05, growth = 4;
/* A plan that uses this part of the limit or more is not improved by lower prices. */
static const double filled = 0.995;

/* What a tensor's memory costs at most: more than any plan, and far from what is forbidden. */
static const double dearest = 1e14;

typedef struct moment {
    int op;
    double low, high, price; /* per byte: too low, enough (HUGE_VAL: not known), now */
} moment_t;

typedef struct pricing {
    const ap_shard_network_t *network;
    ap_cfn_t priced; /* the network without limit, with costs of its own */
    int moments;
    moment_t moment[MOMENTS];
    ap_shard_memory_t *memory;
    int *trial;
    double limit;
} pricing_t;

static double now(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* The network's costs, and what memory at the moments costs. */
static void set_prices(pricing_t *p)
{
    const ap_shard_network_t *n = p->network;

    memcpy(p->priced.costs, n->cfn->costs, n->cfn->node_at[n->cfn->nodes] * sizeof(int64_t));
    for (int u = 0; u < n->uses; ++u) {
        const ap_shard_use_t *use = &n->use[u];
        const ap_shard_row_t *row = &n->row[use->row];
        size_t at = n->cfn->node_at[row->variable];
        size_t options = ap_cfn_strategies(n->cfn, (size_t)row->variable);
        double price = 0;

        for (int m = 0; m < p->moments; ++m) {
            price += use->first <= p->moment[m].op && p->moment[m].op < use->end
                         ? p->moment[m].price
                         : 0;
        }
        for (size_t o = 0; o < options && price > 0; ++o) {
            if (p->priced.costs[at + o] < AP_CFN_INFINITE) {
                p->priced.costs[at + o] += (int64_t)fmin(price * row->bytes[o], dearest);
            }
        }
    }
}

/* What the limit pays at the prices. */
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

/* After a plan that did not fit: the prices were too low, above all at its peak. */
static bool raise_prices(pricing_t *p, int op, double first)
{
    int at = find_moment(p, op);

    if (at < 0 && p->moments == MOMENTS) {
        return false;
    }
    if (at < 0) {
        at = p->moments++;
        p->moment[at] = (moment_t){.op = op, .high = HUGE_VAL};
    }
    for (int m = 0; m < p->moments; ++m) {
        moment_t *of = &p->moment[m];

        of->low = of->price;
        of->price = of->high < HUGE_VAL ? (of->low + of->high) / 2 : of->price;
    }
    if (!(p->moment[at].high < HUGE_VAL)) {
        p->moment[at].price = fmax(growth * p->moment[at].low, first);
    } else if (p->moment[at].price <= p->moment[at].low * (1 + 1e-9)) {
        p->moment[at].high = HUGE_VAL; /* it was enough only together with others */
        p->moment[at].price = growth * p->moment[at].low;
    }
    return true;
}

/* After a plan that fits: the prices were enough. */
static void lower_prices(pricing_t *p)
{
    for (int m = 0; m < p->moments; ++m) {
        p->moment[m].high = p->moment[m].price;
        p->moment[m].price = (p->moment[m].low + p->moment[m].high) / 2;
    }
}

/* The operator with the most memory. */
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

static xm_status_t search(pricing_t *p, const ap_shard_options_t *options, double end, int *choice,
                          ap_cfn_result_t *result, double *bound)
{
    const ap_cfn_t *cfn = p->network->cfn;
    bool any = false;

    for (int round = 0; round < ROUNDS && now() < end; ++round) {
        ap_cfn_options_t cfn_options = AP_CFN_OPTIONS_INIT;
        ap_cfn_result_t found;
        ap_cfn_value_t value;
        double peak;
        int op;
        xm_status_t status;

        set_prices(p);
        cfn_options.seconds = fmax(0.02, (end - now()) / 3);
        cfn_options.threads = options->threads;
        cfn_options.seed = options->seed;
        status = ap_cfn_solve(&p->priced, &cfn_options, p->trial, &found);
        if (status == XM_OK) {
            status = ap_cfn_evaluate(cfn, p->trial, &value);
        }
        if (status != XM_OK) {
            return any ? XM_OK : status;
        }
        *bound = fmax(*bound, found.bound - paid(p));
        op = peak_of(p, &peak);
        if (peak > p->limit) {
            double first = first_part * (double)value.cost / p->limit;

            if (!raise_prices(p, op, first)) {
                break;
            }
            continue;
        }
        if (!any || value.cost < result->value.cost) {
            memcpy(choice, p->trial, cfn->nodes * sizeof(*choice));
            *result = found;
            result->value = value;
            any = true;
        }
        if (p->moments == 0 || peak >= filled * p->limit) {
            break;
        }
        lower_prices(p);
    }
    return any ? XM_OK : xm_error_set(XM_ERR_TIMEOUT, "no plan within the limit was found in time");
}

xm_status_t ap_shard_price_solve(const ap_shard_network_t *network,
                                 const ap_shard_options_t *options, double seconds, int *choice,
                                 ap_cfn_result_t *result, double *bound)
{
    const ap_cfn_t *cfn = network->cfn;
    pricing_t p = {.network = network, .priced = *cfn, .limit = options->memory_limit};
    double end = now() + seconds;
    xm_status_t status;

    p.priced.limited = false;
    p.priced.costs = malloc((cfn->node_at[cfn->nodes] + 1) * sizeof(int64_t));
    p.trial = malloc((cfn->nodes + 1) * sizeof(*p.trial));
    p.memory = calloc((size_t)ap_graph_ops(network->problem->params.graph) + 1, sizeof(*p.memory));
    status = p.priced.costs == NULL || p.trial == NULL || p.memory == NULL
                 ? xm_error_set(XM_ERR_NO_MEMORY, "no memory for prices")
                 : search(&p, options, end, choice, result, bound);
    if (status == XM_OK) {
        result->bound = *bound;
        result->optimal = false;
    }
    free(p.priced.costs);
    free(p.trial);
    free(p.memory);
    return status;
}
