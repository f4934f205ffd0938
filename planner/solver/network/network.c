/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks and evaluates cost function networks in the form of the ASPLOS'25 contest (IOPDDL). This
 * file works on the problem as it was given, in 64-bit integers with 128-bit totals, and shares no
 * code with the presolve and the solver. Whatever they claim about a choice is therefore confirmed
 * by independent arithmetic that cannot round: the reported cost and peak always come from
 * ap_cfn_evaluate().
 */

#include "planner/solver/network/network.h"

#include <stdlib.h>
#include <string.h>

xm_status_t ap_cfn_check(const ap_cfn_t *cfn)
{
    ap_cfn_fault_t fault;

    return ap_cfn_check_at(cfn, &fault);
}

/* The sentence that a check writes names nodes and edges by number, and *fault repeats the place in
 * a form that a reader of files turns into line and column. *fault is set before each test, so it
 * is right wherever the function returns. */
xm_status_t ap_cfn_check_at(const ap_cfn_t *cfn, ap_cfn_fault_t *fault)
{
    /* The rest of the solver numbers nodes and edges by int; half the range leaves room for the
     * nodes that the presolve adds, one for each edge of three nodes. */
    *fault = (ap_cfn_fault_t){.part = AP_CFN_WHOLE};
    if (cfn->nodes > INT32_MAX / 2 || cfn->edges > INT32_MAX / 2) {
        return XM_INVALID("%zu nodes and %zu edges are too many", cfn->nodes, cfn->edges);
    }
    if (cfn->limited && cfn->limit < 0) {
        return XM_INVALID("the usage limit %lld is negative", (long long)cfn->limit);
    }
    for (size_t node = 0; node < cfn->nodes; ++node) {
        size_t count = ap_cfn_strategies(cfn, node);

        *fault = (ap_cfn_fault_t){.part = AP_CFN_NODE, .index = node};
        /* The upper limit keeps the cells of an edge of three nodes at 2^45 or less. */
        if (count == 0 || count > AP_CFN_STRATEGIES) {
            return XM_INVALID("node %zu has %zu strategies (1 … %d)", node, count,
                              (int)AP_CFN_STRATEGIES);
        }
        for (size_t at = cfn->node_at[node]; at < cfn->node_at[node + 1]; ++at) {
            if (cfn->costs[at] < 0 || cfn->usages[at] < 0) {
                return XM_INVALID(
                    "node %zu, strategy %zu: cost %lld and usage %lld, neither may be negative",
                    node, at - cfn->node_at[node], (long long)cfn->costs[at],
                    (long long)cfn->usages[at]);
            }
        }
        /* An interval that ends before it begins is allowed: such a node is never live. */
        if (cfn->interval[2 * node] < 0 || cfn->interval[2 * node + 1] < 0) {
            return XM_INVALID("node %zu: its interval [%lld, %lld) begins before 0", node,
                              (long long)cfn->interval[2 * node],
                              (long long)cfn->interval[2 * node + 1]);
        }
    }
    for (size_t edge = 0; edge < cfn->edges; ++edge) {
        size_t arity = cfn->scope_at[edge + 1] - cfn->scope_at[edge];
        const int *scope = cfn->scope + cfn->scope_at[edge];
        size_t cells = 1;

        *fault = (ap_cfn_fault_t){.part = AP_CFN_SCOPE, .index = edge};
        if (arity < 1 || arity > AP_CFN_ARITY) {
            return XM_UNSUPPORTED("edge %zu joins %zu nodes (1 … %d)", edge, arity,
                                  (int)AP_CFN_ARITY);
        }
        for (size_t k = 0; k < arity; ++k) {
            if (scope[k] < 0 || (size_t)scope[k] >= cfn->nodes) {
                return XM_INVALID("edge %zu names node %d, but there are %zu nodes", edge, scope[k],
                                  cfn->nodes);
            }
            for (size_t other = 0; other < k; ++other) {
                if (scope[other] == scope[k]) {
                    return XM_INVALID("edge %zu names node %d twice", edge, scope[k]);
                }
            }
            /* At most 2^45 with three nodes of 2^15 strategies. */
            cells *= ap_cfn_strategies(cfn, (size_t)scope[k]);
        }
        fault->part = AP_CFN_CELLS;
        if (cells != cfn->cell_at[edge + 1] - cfn->cell_at[edge]) {
            return XM_INVALID("edge %zu has %zu costs, its nodes' strategies make %zu", edge,
                              cfn->cell_at[edge + 1] - cfn->cell_at[edge], cells);
        }
        for (size_t at = cfn->cell_at[edge]; at < cfn->cell_at[edge + 1]; ++at) {
            if (cfn->cells[at] < 0) {
                return XM_INVALID("edge %zu, cost %zu: %lld is negative", edge,
                                  at - cfn->cell_at[edge], (long long)cfn->cells[at]);
            }
        }
    }
    return XM_OK;
}

typedef struct event {
    int64_t time;
    int64_t change; /* of the usage, when the time comes */
} event_t;

/* Orders events by time. Intervals are half open, so at one time the usage that ends is taken off
 * before the usage that begins is added: negative changes come first. */
static int compare_events(const void *left, const void *right)
{
    const event_t *a = left, *b = right;

    return a->time != b->time ? xm_order(a->time, b->time) : xm_order(a->change, b->change);
}

/* The peak of the usage over time, by a sweep over the ends of the intervals. Usage grows only
 * where an interval begins, so a sweep in O(n log n) sees every maximum, however long the intervals
 * are; stepping through all times would cost as much as the largest time. */
static xm_status_t find_peak(const ap_cfn_t *cfn, const int *choice, ap_cfn_total_t *peak)
{
    event_t *events = malloc(2 * (cfn->nodes + 1) * sizeof(*events));
    ap_cfn_total_t load = 0;
    size_t count = 0;

    if (events == NULL) {
        return XM_NO_MEMORY("the usage of %zu nodes", cfn->nodes);
    }
    for (size_t node = 0; node < cfn->nodes; ++node) {
        int64_t usage = cfn->usages[cfn->node_at[node] + (size_t)choice[node]];

        /* A node that is never live, or uses nothing, cannot change the peak. */
        if (cfn->interval[2 * node] < cfn->interval[2 * node + 1] && usage > 0) {
            events[count++] = (event_t){cfn->interval[2 * node], usage};
            events[count++] = (event_t){cfn->interval[2 * node + 1], -usage};
        }
    }
    qsort(events, count, sizeof(*events), compare_events);
    *peak = 0;
    for (size_t k = 0; k < count; ++k) {
        load += events[k].change;
        *peak = load > *peak ? load : *peak;
    }
    free(events);
    return XM_OK;
}

/* A forbidden choice is evaluated like any other: `infinite` counts its forbidden costs, so a
 * caller tells a choice that is forbidden from one that is only expensive. *value is written only
 * when everything succeeded. */
xm_status_t ap_cfn_evaluate(const ap_cfn_t *cfn, const int *choice, ap_cfn_value_t *value)
{
    ap_cfn_value_t made = {.cost = 0};
    xm_status_t status;

    for (size_t node = 0; node < cfn->nodes; ++node) {
        int64_t cost;

        if (choice[node] < 0 || (size_t)choice[node] >= ap_cfn_strategies(cfn, node)) {
            return XM_INVALID("node %zu has no strategy %d", node, choice[node]);
        }
        cost = cfn->costs[cfn->node_at[node] + (size_t)choice[node]];
        made.cost += cost;
        made.infinite += cost >= AP_CFN_INFINITE;
    }
    for (size_t edge = 0; edge < cfn->edges; ++edge) {
        size_t cell = 0;
        int64_t cost;

        /* Cells are row-major with the first node slowest, so this is Horner's rule over the
         * scope. */
        for (size_t k = cfn->scope_at[edge]; k < cfn->scope_at[edge + 1]; ++k) {
            cell = cell * ap_cfn_strategies(cfn, (size_t)cfn->scope[k]) +
                   (size_t)choice[cfn->scope[k]];
        }
        cost = cfn->cells[cfn->cell_at[edge] + cell];
        made.cost += cost;
        made.infinite += cost >= AP_CFN_INFINITE;
    }
    status = find_peak(cfn, choice, &made.peak);
    if (status == XM_OK) {
        made.feasible = !cfn->limited || made.peak <= cfn->limit;
        *value = made;
    }
    return status;
}

/* The C library prints no integers of 128 bits. Each digit is negated by itself, because the
 * negation of the smallest total would overflow. */
char *ap_cfn_format(ap_cfn_total_t total, char *buffer)
{
    char digits[AP_CFN_TOTAL_TEXT];
    bool negative = total < 0;
    int count = 0, at = 0;

    do {
        int digit = (int)(total % 10);

        digits[count++] = (char)('0' + (digit < 0 ? -digit : digit));
        total /= 10;
    } while (total != 0);
    if (negative) {
        buffer[at++] = '-';
    }
    while (count > 0) {
        buffer[at++] = digits[--count];
    }
    buffer[at] = '\0';
    return buffer;
}

/* Objects that a reader could not finish have NULL arrays, which free() accepts. */
void ap_cfn_destroy(ap_cfn_t *cfn)
{
    if (cfn == NULL) {
        return;
    }
    free(cfn->node_at);
    free(cfn->costs);
    free(cfn->usages);
    free(cfn->interval);
    free(cfn->scope_at);
    free(cfn->scope);
    free(cfn->cell_at);
    free(cfn->cells);
    free(cfn);
}
