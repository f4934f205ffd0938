/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the variables of a network use over time, and the nodes of the network that do so. A node of
 * a cost function network has one usage by value over one interval, but a variable has several: its
 * buffers are used at different times, and at several layers. The longest stretch stays on the
 * variable's own node; every other one gets a node that follows it, by a table of zeroes and
 * forbidden cells. The presolve contracts those, so the solver again sees one variable with
 * segments. The least that all buffers use together is told here, too.
 *
 * Only times that can have the largest sum are kept (planner/intra_op/times.h); there are few where
 * layers repeat.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/intra_op/emit.h"

/* Per time, the first and the last operator of its class. Usage rises or falls over equal layers,
 * so one of the two likely has as much of every buffer, and comparing with these finds it. */
static xm_status_t find_like(ap_shard_emission_t *e, int **like)
{
    const ap_shard_problem_t *p = e->n->problem;
    int ops = ap_graph_ops(p->params.graph), classes = e->n->alike.classes;
    int *ends = xm_arena_take(&e->arena, 2 * (size_t)classes * sizeof(int));

    *like = xm_arena_take(&e->arena, 2 * (size_t)ops * sizeof(int));
    XM_NEED_MEMORY(!e->arena.failed, "the usage of a sharding problem");
    for (int o = ops - 1; o >= 0; --o) {
        ends[2 * ap_shard_class_of(e, p->op_node[o])] = o;
    }
    for (int o = 0; o < ops; ++o) {
        ends[2 * ap_shard_class_of(e, p->op_node[o]) + 1] = o;
    }
    for (int o = 0; o < ops; ++o) {
        (*like)[2 * o] = ends[2 * ap_shard_class_of(e, p->op_node[o])];
        (*like)[2 * o + 1] = ends[2 * ap_shard_class_of(e, p->op_node[o]) + 1];
    }
    return XM_OK;
}

/* Orders loads by variable and time; planner/intra_op/times.h has put the largest of a variable
 * first, and the sort only brings equal ones together. */
static int compare_loads(const void *left, const void *right)
{
    const ap_shard_load_t *a = left, *b = right;

    return a->variable != b->variable ? xm_order(a->variable, b->variable)
           : a->first != b->first     ? xm_order(a->first, b->first)
                                      : xm_order(a->end, b->end);
}

/* Sorts amounts and removes repetitions; returns how many are left. A following node needs a value
 * for each different amount only. */
static int distinct(int64_t *amounts, int count)
{
    int kept = 0;

    qsort(amounts, (size_t)count, sizeof(*amounts), xm_order_int64s);
    for (int k = 0; k < count; ++k) {
        if (kept == 0 || amounts[k] != amounts[kept - 1]) {
            amounts[kept++] = amounts[k];
        }
    }
    return kept;
}

/* Loads of one variable over the same times become one; the first of each variable is its own. */
static xm_status_t merge_loads(ap_shard_emission_t *e)
{
    int kept = 0, widest = 1;

    for (int l = 0; l < e->loads; ++l) {
        int options = ap_shard_options_of(e, e->load[l].variable);

        widest = options > widest ? options : widest;
        if (kept > 0 && compare_loads(&e->load[l], &e->load[kept - 1]) == 0) {
            for (int o = 0; o < options; ++o) {
                e->amount[e->load[kept - 1].amount + (size_t)o] +=
                    e->amount[e->load[l].amount + (size_t)o];
            }
            continue;
        }
        e->load[kept++] = e->load[l];
    }
    e->loads = kept;
    e->scratch = xm_arena_take(&e->arena, (size_t)widest * sizeof(*e->scratch));
    XM_NEED_MEMORY(e->scratch, "the usage of a sharding problem");
    for (int l = 0; l < e->loads; ++l) {
        int options = ap_shard_options_of(e, e->load[l].variable);

        memcpy(e->scratch, e->amount + e->load[l].amount, (size_t)options * sizeof(*e->scratch));
        e->load[l].levels = distinct(e->scratch, options);
        e->load[l].own = l == 0 || e->load[l].variable != e->load[l - 1].variable;
    }
    return XM_OK;
}

/* Amounts are rounded up, so what fits in integers fits in bytes, and are multiplied by the number
 * of uses at once. Buffers that are empty under every option make no load. */
static xm_status_t make_loads(ap_shard_emission_t *e)
{
    size_t amounts = 0;

    for (int k = 0; k < e->spans; ++k) {
        amounts += (size_t)ap_shard_options_of(e, e->n->row[e->span[k].row].variable);
    }
    e->load = xm_arena_take(&e->arena, (size_t)e->spans * sizeof(*e->load));
    e->amount = xm_arena_take(&e->arena, amounts * sizeof(*e->amount));
    XM_NEED_MEMORY(!e->arena.failed, "the usage of a sharding problem");
    for (int k = 0; k < e->spans; ++k) {
        const ap_shard_span_t *span = &e->span[k];
        const ap_shard_buffer_t *row = &e->n->row[span->row];
        int options = ap_shard_options_of(e, row->variable);
        int64_t any = 0;

        for (int o = 0; o < options; ++o) {
            int64_t bytes = (int64_t)ceil(row->bytes[o]);

            e->amount[e->amounts + (size_t)o] = span->weight * bytes;
            any |= bytes;
        }
        if (any != 0) {
            e->load[e->loads++] = (ap_shard_load_t){.variable = row->variable,
                                                    .first = span->first,
                                                    .end = span->end,
                                                    .amount = e->amounts};
            e->amounts += (size_t)options;
        }
    }
    if (e->loads > 0) {
        qsort(e->load, (size_t)e->loads, sizeof(*e->load), compare_loads);
    }
    return merge_loads(e);
}

/* Without a limit no usage matters. */
xm_status_t ap_shard_gather_loads(ap_shard_emission_t *e)
{
    int *like = NULL;
    xm_status_t status = XM_OK;

    if (!e->limited) {
        return XM_OK;
    }
    if (e->n->alike.repeats > 0) {
        status = find_like(e, &like);
    }
    XM_THEN(status, ap_shard_spans_find(e->n->use, e->n->uses, e->n->rows,
                                        ap_graph_ops(e->n->problem->params.graph), like, &e->span,
                                        &e->spans));
    return status == XM_OK ? make_loads(e) : status;
}

/* Writes the loads. A following node's table allows, for each option, exactly the amount that the
 * option has. */
void ap_shard_emit_loads(ap_shard_emission_t *e)
{
    ap_cfn_t *cfn = e->n->cfn;

    for (int l = 0; l < e->loads; ++l) {
        const ap_shard_load_t *load = &e->load[l];
        const int64_t *amount = e->amount + load->amount;
        size_t options = (size_t)ap_shard_options_of(e, load->variable),
               levels = (size_t)load->levels;
        size_t node = load->own ? (size_t)load->variable : cfn->nodes;

        if (load->own) {
            memcpy(cfn->usages + cfn->node_at[node], amount, options * sizeof(*amount));
        } else {
            size_t at = ap_shard_emit_node(cfn, load->levels);
            int64_t *cell = ap_shard_emit_table(cfn, load->variable, (int)node);

            memcpy(e->scratch, amount, options * sizeof(*amount));
            (void)distinct(e->scratch, (int)options);
            memcpy(cfn->usages + at, e->scratch, levels * sizeof(*amount));
            for (size_t c = 0; c < options * levels; ++c) {
                cell[c] = amount[c / levels] == e->scratch[c % levels] ? 0 : AP_CFN_INFINITE;
            }
        }
        cfn->interval[2 * node] = load->first;
        cfn->interval[2 * node + 1] = load->end;
    }
}

/* The smallest option of every buffer, added up over time, bounds the peak of every choice. It is
 * quick, and it tells a user which operator makes a limit impossible. */
xm_status_t ap_shard_network_lower_bound(const ap_shard_network_t *n, double *least, int *op)
{
    int ops = ap_graph_ops(n->problem->params.graph);
    double *change = calloc((size_t)ops + 1, sizeof(*change)), sum = 0;

    XM_NEED_MEMORY(change, "the network of a sharding problem");
    for (int u = 0; u < n->uses; ++u) {
        const ap_shard_buffer_t *row = &n->row[n->use[u].row];
        double bytes = row->variable < n->alike.classes ? HUGE_VAL : 0;

        for (int o = 0; row->variable < n->alike.classes && o < n->variable[row->variable].options;
             ++o) {
            bytes = fmin(bytes, row->bytes[o]);
        }
        change[n->use[u].first] += bytes;
        change[n->use[u].end] -= bytes;
    }
    *least = 0;
    *op = 0;
    for (int o = 0; o < ops; ++o) {
        sum += change[o];
        if (sum > *least) {
            *least = sum;
            *op = o;
        }
    }
    free(change);
    return XM_OK;
}

/* Checks whether what every plan needs is within the limit. The operator in the sentence is where
 * the user has to look. */
xm_status_t ap_shard_network_check_least(const ap_shard_network_t *network, double limit)
{
    char wanted[32], given[32];
    double least;
    int op;
    xm_status_t status = ap_shard_network_lower_bound(network, &least, &op);

    if (status != XM_OK || least <= limit) {
        return status;
    }
    (void)xm_text_format_bytes((uint64_t)limit, given, sizeof(given));
    (void)xm_text_format_bytes((uint64_t)least, wanted, sizeof(wanted));
    return XM_NO_SOLUTION("no plan fits %s of memory per device: %s are live when '%s' runs, "
                          "however they are sharded",
                          given, wanted, ap_graph_op(network->problem->params.graph, op)->name);
}

/* Says why nothing was found under a limit, in a sentence about memory and not about networks. */
xm_status_t ap_shard_network_explain(const ap_shard_network_t *network, double limit,
                                     xm_status_t status)
{
    char wanted[32], given[32];
    double least;
    int op;

    if ((status != XM_ERR_NO_SOLUTION && status != XM_ERR_TIMEOUT) || !(limit > 0) ||
        ap_shard_network_lower_bound(network, &least, &op) != XM_OK) {
        return status;
    }
    (void)xm_text_format_bytes((uint64_t)limit, given, sizeof(given));
    (void)xm_text_format_bytes((uint64_t)least, wanted, sizeof(wanted));
    return status == XM_ERR_TIMEOUT
               ? xm_error_set(status,
                              "no plan within %s of memory per device was found in time; every "
                              "plan needs %s at least",
                              given, wanted)
               : xm_error_set(status, "no plan fits %s of memory per device", given);
}
