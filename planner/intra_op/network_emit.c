/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From variables, edges and uses to the arrays of a cost function network. Costs become integers,
 * edges between the same terms of the same classes become one table, an edge from a class to itself
 * becomes a cost of the class, and copies become variables of their own.
 *
 * A copy is a variable because memory depends on both ends of an edge, while a network has usage on
 * nodes only: the copy's value says in which spec it is and whether it exists. The presolve
 * contracts it again where it follows from its reader.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/intra_op/emit.h"

/* Costs become integers of at most this sum: fine enough for ties to be broken as the costs do, and
 * coarse enough for the rounding of a bound in doubles to stay far below 1. */
static const double largest_sum = 3e11;

enum { HASH_SIZE = 1 << 16 };

static const ap_shard_variable_t *variable(const ap_shard_emission_t *e, int node)
{
    return &e->n->variable[ap_shard_class_of(e, node)];
}

/* Hashes what same_wire() compares; a graph of tens of thousands of edges would otherwise be
 * compared pair by pair. */
static unsigned hash_wire(const ap_shard_emission_t *e, const ap_shard_wire_t *wire)
{
    uint64_t hash =
        (uint64_t)ap_shard_class_of(e, wire->from) << 32 | (unsigned)ap_shard_class_of(e, wire->to);

    hash = xm_hash_spread(hash ^ (uint64_t)(wire->from_term * 16 + wire->to_term));
    return (unsigned)(hash >> 48) % HASH_SIZE;
}

/* Edges are the same if they join the same terms of the same classes equally often and in the same
 * way. Whether both ends are in one segment matters too, since it decides what may be computed
 * again. */
static bool same_wire(const ap_shard_emission_t *e, const ap_shard_wire_t *a,
                      const ap_shard_wire_t *b)
{
    return ap_shard_class_of(e, a->from) == ap_shard_class_of(e, b->from) &&
           a->from_term == b->from_term &&
           ap_shard_class_of(e, a->to) == ap_shard_class_of(e, b->to) && a->to_term == b->to_term &&
           a->alias == b->alias &&
           e->n->sharing.group_of[a - e->n->problem->wire] ==
               e->n->sharing.group_of[b - e->n->problem->wire] &&
           a->weight <= b->weight && a->weight >= b->weight &&
           ap_shard_same_segment(e->n, a) == ap_shard_same_segment(e->n, b);
}

/* The first of equal edges makes the table of resharding costs; others are only counted. What is
 * shared has its costs elsewhere. */
static xm_status_t add_edge(ap_shard_emission_t *e, int w, unsigned hash)
{
    const ap_shard_problem_t *p = e->n->problem;
    const ap_shard_wire_t *wire = &p->wire[w];
    ap_shard_edge_t *edge = &e->edge[e->edges];
    size_t cells = (size_t)ap_strategy_table_of(p, wire->from)->count *
                   (size_t)ap_strategy_table_of(p, wire->to)->count;

    *edge = (ap_shard_edge_t){.wire = w, .count = 1, .copy = -1};
    edge->costs = xm_arena_get(&e->arena, cells, sizeof(*edge->costs));
    XM_NEED_MEMORY(edge->costs, "the network of a sharding problem");
    e->next[e->edges] = e->head[hash];
    e->head[hash] = e->edges++;
    return e->n->sharing.group_of[w] >= 0 ? XM_OK : ap_shard_wire_costs(p, wire, edge->costs);
}

/* Each edge is looked up by its hash; new ones get a table. */
static xm_status_t gather_edges(ap_shard_emission_t *e)
{
    const ap_shard_problem_t *p = e->n->problem;
    xm_status_t status = XM_OK;

    e->edge = xm_arena_get(&e->arena, (size_t)p->wires, sizeof(*e->edge));
    e->next = xm_arena_take(&e->arena, (size_t)p->wires * sizeof(int));
    e->head = xm_arena_take(&e->arena, HASH_SIZE * sizeof(int));
    XM_NEED_MEMORY(!e->arena.failed, "the network of a sharding problem");
    memset(e->head, -1, HASH_SIZE * sizeof(int));
    for (int w = 0; w < p->wires && status == XM_OK; ++w) {
        unsigned hash = hash_wire(e, &p->wire[w]);
        int k = e->head[hash];

        if (e->n->sharing.group_of[w] >= 0 &&
            (!e->limited || !ap_shard_has_copies(e->n, &p->wire[w])) &&
            !variable(e, p->wire[w].to)->modes) {
            continue;
        }
        while (k >= 0 && !same_wire(e, &p->wire[w], &p->wire[e->edge[k].wire])) {
            k = e->next[k];
        }
        if (k >= 0) {
            ++e->edge[k].count;
        } else {
            status = add_edge(e, w, hash);
        }
    }
    return status;
}

/* Edges from a class to itself, as between equal layers: both ends take one choice, so only the
 * diagonal counts. It becomes a cost of that choice, and the edge goes. */
static xm_status_t fold_loops(ap_shard_emission_t *e)
{
    const ap_shard_problem_t *p = e->n->problem;

    e->unary_at = xm_arena_get(&e->arena, (size_t)e->n->alike.classes + 1, sizeof(*e->unary_at));
    XM_NEED_MEMORY(e->unary_at, "the network of a sharding problem");
    for (int c = 0; c < e->n->alike.classes; ++c) {
        e->unary_at[c + 1] =
            e->unary_at[c] + (size_t)ap_strategy_table_of(p, e->n->variable[c].node)->count;
    }
    e->unary = xm_arena_get(&e->arena, e->unary_at[e->n->alike.classes], sizeof(*e->unary));
    XM_NEED_MEMORY(e->unary, "the network of a sharding problem");
    for (int k = 0; k < e->edges; ++k) {
        const ap_shard_wire_t *wire = &p->wire[e->edge[k].wire];
        int from = ap_shard_class_of(e, wire->from),
            count = ap_strategy_table_of(p, wire->from)->count;

        for (int s = 0; s < count && from == ap_shard_class_of(e, wire->to); ++s) {
            /* A class' diagonal, once for each edge it stands for. */
            e->unary[e->unary_at[from] + (size_t)s] +=
                e->edge[k].count * e->edge[k].costs[(size_t)s * (size_t)count + (size_t)s];
        }
        if (from == ap_shard_class_of(e, wire->to)) {
            e->edge[k].costs = NULL;
        }
    }
    return XM_OK;
}

/* Adds a copy to an edge: a value for each spec that the reader may want, each with and without
 * existing, and each again if the reader may be computed again. The sample is some strategy that
 * wants the spec, by which the edge's table is read. */
static xm_status_t add_copy(ap_shard_emission_t *e, int k)
{
    const ap_shard_problem_t *p = e->n->problem;
    const ap_shard_wire_t *wire = &p->wire[e->edge[k].wire];
    const ap_strategy_table_t *to = ap_strategy_table_of(p, wire->to);
    ap_shard_copy_t made = {.edge = k, .twice = variable(e, wire->to)->modes};

    XM_NEED_MEMORY(XM_ARRAY_ROOM(e->copy, e->copy_capacity, e->copies),
                   "the network of a sharding problem");
    made.spec = xm_arena_take(&e->arena, (size_t)to->count * sizeof(*made.spec));
    made.sample = xm_arena_take(&e->arena, (size_t)to->count * sizeof(*made.sample));
    XM_NEED_MEMORY(!e->arena.failed, "the network of a sharding problem");
    for (int t = 0; t < to->count; ++t) {
        ap_spec_t spec = ap_shard_spec_at(to, t, wire->to_term);
        int at = 0;

        while (at < made.specs && made.spec[at] != spec) {
            ++at;
        }
        if (at == made.specs) {
            made.spec[made.specs] = spec;
            made.sample[made.specs++] = t;
        }
    }
    e->edge[k].copy = e->n->alike.classes + e->copies;
    e->copy[e->copies++] = made;
    return XM_OK;
}

/* The three parts of a copy's value: the spec, whether it exists, whether it serves a reader that
 * is computed again. */
static int copy_spec(int option, const ap_shard_copy_t *copy)
{
    return option % copy->specs;
}

static bool copy_is_made(int option, const ap_shard_copy_t *copy)
{
    return option / copy->specs % 2 == 1;
}

static bool copy_is_again(int option, const ap_shard_copy_t *copy)
{
    return option / copy->specs / 2 == 1;
}

/* Makes copies where the limit counts them. Their memory is used by each of the edges that the
 * first one stands for, at the time of that edge's reader. */
static xm_status_t make_copies(ap_shard_emission_t *e)
{
    const ap_shard_problem_t *p = e->n->problem;
    int *row_of = xm_arena_take(&e->arena, (size_t)e->edges * sizeof(int));
    xm_status_t status = row_of == NULL ? XM_NO_MEMORY("the network of a sharding problem") : XM_OK;

    for (int k = 0; k < e->edges && status == XM_OK; ++k) {
        const ap_shard_wire_t *wire = &p->wire[e->edge[k].wire];
        const ap_shard_copy_t *copy;

        if (e->edge[k].costs == NULL || !e->limited || !ap_shard_has_copies(e->n, wire)) {
            continue;
        }
        status = add_copy(e, k);
        if (status != XM_OK) {
            break;
        }
        copy = &e->copy[e->copies - 1];
        status = ap_shard_buffer_add(e->n, e->edge[k].copy, ap_shard_copy_options(copy),
                                     AP_SHARD_TEMPORARIES, &row_of[k]);
        for (int o = 0; o < ap_shard_copy_options(copy) && status == XM_OK; ++o) {
            if (copy_is_made(o, copy)) {
                e->n->row[row_of[k]].bytes[o] =
                    ap_shard_local_bytes(p, wire->tensor, copy->spec[copy_spec(o, copy)]);
            }
        }
    }
    /* Every edge finds the one that stands for it, by hash again. */
    for (int w = 0; w < p->wires && status == XM_OK && e->copies > 0; ++w) {
        const ap_shard_wire_t *wire = &p->wire[w];

        for (int k = e->head[hash_wire(e, wire)]; k >= 0 && status == XM_OK; k = e->next[k]) {
            if (e->edge[k].copy >= 0 && same_wire(e, wire, &p->wire[e->edge[k].wire])) {
                int op = p->node[wire->to].op;

                status = ap_shard_use_add(e->n, row_of[k], op, op + 1);
            }
        }
    }
    return status;
}

/* A copy that is shared waits between its readers; while one runs, its own copy counts. */
static xm_status_t make_waits(ap_shard_emission_t *e)
{
    const ap_shard_problem_t *p = e->n->problem;
    xm_status_t status = XM_OK;

    e->n->copies = e->copies;
    for (int g = 0; g < e->n->sharing.groups && e->limited && status == XM_OK; ++g) {
        const ap_shard_shared_t *of = &e->n->sharing.group[g];
        int row;

        if (of->sums || !ap_shard_has_copies(e->n, &p->wire[of->end[1].wire])) {
            continue;
        }
        status = ap_shard_buffer_add(e->n, e->n->alike.classes + e->copies + g, of->options,
                                     AP_SHARD_TEMPORARIES, &row);
        if (status == XM_OK) {
            memcpy(e->n->row[row].bytes, of->copy, (size_t)of->options * sizeof(double));
        }
        for (int w = 0; w < p->wires && status == XM_OK; ++w) {
            int next =
                e->n->sharing.group_of[w] == g ? ap_shard_next_reader(&e->n->sharing, w) : -1;

            if (next >= 0) {
                status = ap_shard_use_add(e->n, row, p->node[p->wire[w].to].op + 1,
                                          p->node[p->wire[next].to].op);
            }
        }
    }
    return status;
}

/* Chooses a unit that lets all costs together fit: the largest cost of each class and each edge,
 * with everything computed twice, bounds the objective of any choice. */
static void choose_scale(ap_shard_emission_t *e)
{
    double sum = 0;

    for (int c = 0; c < e->n->alike.classes; ++c) {
        const ap_shard_variable_t *v = &e->n->variable[c];
        double largest = 0;

        for (int o = 0; o < v->options; ++o) {
            double cost =
                v->option[o].cost + 2 * e->unary[e->unary_at[c] + (size_t)v->option[o].strategy];

            largest = cost < AP_COST_INFINITE ? fmax(largest, cost) : largest;
        }
        sum += largest;
    }
    for (int k = 0; k < e->edges; ++k) {
        const ap_shard_wire_t *wire = &e->n->problem->wire[e->edge[k].wire];
        int cells = ap_strategy_table_of(e->n->problem, wire->from)->count *
                    ap_strategy_table_of(e->n->problem, wire->to)->count;
        double largest = 0;

        for (int c = 0; c < cells && e->edge[k].costs != NULL; ++c) {
            double cost = e->edge[k].costs[c];

            largest = cost < AP_COST_INFINITE ? fmax(largest, cost) : largest;
        }
        sum += 2 * e->edge[k].count * largest;
    }
    for (int g = 0; g < e->n->sharing.groups; ++g) {
        sum += ap_shard_shared_largest(e, g);
    }
    e->n->scale = sum > 0 ? largest_sum / sum : 1;
}

/* Counts what will be written, then allocates once. An edge with a copy is two tables, over the
 * copy; a second stretch of usage of a variable is a node and a table. */
static xm_status_t allocate(ap_shard_emission_t *e)
{
    int variables = e->n->alike.classes + e->copies;
    size_t nodes = (size_t)variables, edges = 0, values = 0, cells = 0;
    ap_cfn_t *cfn = e->n->cfn = calloc(1, sizeof(*cfn));

    XM_NEED_MEMORY(cfn, "the network of a sharding problem");
    for (int v = 0; v < variables; ++v) {
        values += (size_t)ap_shard_options_of(e, v);
    }
    for (int k = 0; k < e->edges; ++k) {
        const ap_shard_wire_t *wire = &e->n->problem->wire[e->edge[k].wire];
        size_t from = (size_t)variable(e, wire->from)->options;
        size_t to = (size_t)variable(e, wire->to)->options;

        if (e->edge[k].costs != NULL && e->edge[k].copy < 0) {
            ++edges;
            cells += from * to;
        } else if (e->edge[k].costs != NULL) {
            edges += 2;
            cells += (from + to) * (size_t)ap_shard_options_of(e, e->edge[k].copy);
        }
    }
    for (int g = 0; g < e->n->sharing.groups; ++g) {
        const ap_shard_shared_t *group = &e->n->sharing.group[g];

        for (int end = 0; end < group->ends; ++end) {
            cells += (size_t)group->options * (size_t)variable(e, group->end[end].node)->options;
        }
        ++nodes;
        edges += (size_t)group->ends;
        values += (size_t)group->options;
    }
    for (int l = 0; l < e->loads; ++l) {
        if (!e->load[l].own) {
            ++nodes;
            ++edges;
            values += (size_t)e->load[l].levels;
            cells +=
                (size_t)e->load[l].levels * (size_t)ap_shard_options_of(e, e->load[l].variable);
        }
    }
    cfn->node_at = calloc(nodes + 2, sizeof(*cfn->node_at));
    cfn->costs = calloc(values + 1, sizeof(*cfn->costs));
    cfn->usages = calloc(values + 1, sizeof(*cfn->usages));
    cfn->interval = calloc(2 * nodes + 1, sizeof(*cfn->interval));
    cfn->scope_at = calloc(edges + 2, sizeof(*cfn->scope_at));
    cfn->scope = calloc(2 * edges + 1, sizeof(*cfn->scope));
    cfn->cell_at = calloc(edges + 2, sizeof(*cfn->cell_at));
    cfn->cells = malloc((cells + 1) * sizeof(*cfn->cells));
    if (cfn->node_at == NULL || cfn->costs == NULL || cfn->usages == NULL ||
        cfn->interval == NULL || cfn->scope_at == NULL || cfn->scope == NULL ||
        cfn->cell_at == NULL || cfn->cells == NULL) {
        return XM_NO_MEMORY("the network of a sharding problem");
    }
    return XM_OK;
}

/* Nodes of classes come first and those of copies after them, so a choice begins with the
 * classes. */
static void emit_variables(ap_shard_emission_t *e)
{
    ap_cfn_t *cfn = e->n->cfn;

    for (int c = 0; c < e->n->alike.classes; ++c) {
        const ap_shard_variable_t *v = &e->n->variable[c];
        size_t at = ap_shard_emit_node(cfn, v->options);

        for (int o = 0; o < v->options; ++o) {
            double loop = e->unary[e->unary_at[c] + (size_t)v->option[o].strategy];

            cfn->costs[at + (size_t)o] = ap_shard_emit_cost(
                e,
                v->option[o].cost + (v->option[o].keep == AP_SHARD_REMATERIALISED ? 2 : 1) * loop);
        }
    }
    for (int k = 0; k < e->copies; ++k) {
        (void)ap_shard_emit_node(cfn, ap_shard_copy_options(&e->copy[k]));
    }
}

/* What the two ends of an edge cost together. A reader that is computed again reads its operand
 * again, so that one must be there: kept, or computed again with the same segment. Anything else is
 * forbidden. */
static int64_t pair_cost(const ap_shard_emission_t *e, const ap_shard_edge_t *edge,
                         const ap_shard_option_t *from, int strategy, bool again, int to_count)
{
    const ap_shard_wire_t *wire = &e->n->problem->wire[edge->wire];
    double cost = edge->costs[(size_t)from->strategy * (size_t)to_count + (size_t)strategy];
    bool there = from->keep == AP_SHARD_KEPT ||
                 (from->keep == AP_SHARD_REMATERIALISED && ap_shard_same_segment(e->n, wire));

    if (cost >= AP_COST_INFINITE || (again && !there)) {
        return AP_CFN_INFINITE;
    }
    return ap_shard_emit_cost(e, (again ? 2 : 1) * edge->count * cost);
}

/* An edge without a copy is one table over the options of both ends. An update takes its old value
 * over once, whatever is computed again. */
static void emit_plain_edge(ap_shard_emission_t *e, const ap_shard_edge_t *edge)
{
    const ap_shard_problem_t *p = e->n->problem;
    const ap_shard_wire_t *wire = &p->wire[edge->wire];
    const ap_shard_variable_t *from = variable(e, wire->from), *to = variable(e, wire->to);
    int to_count = ap_strategy_table_of(p, wire->to)->count;
    int64_t *cell = ap_shard_emit_table(e->n->cfn, ap_shard_class_of(e, wire->from),
                                        ap_shard_class_of(e, wire->to));

    for (int f = 0; f < from->options; ++f) {
        for (int t = 0; t < to->options; ++t) {
            *cell++ =
                pair_cost(e, edge, &from->option[f], to->option[t].strategy,
                          to->option[t].keep == AP_SHARD_REMATERIALISED && !wire->alias, to_count);
        }
    }
}

/* The way to a copy costs; the way from it is free, and only for the spec that it has. A copy that
 * does not exist stands for the tensor itself, so its spec must be the one that the tensor is made
 * in. */
static void emit_copied_edge(ap_shard_emission_t *e, const ap_shard_edge_t *edge)
{
    const ap_shard_problem_t *p = e->n->problem;
    const ap_shard_wire_t *wire = &p->wire[edge->wire];
    const ap_shard_variable_t *from = variable(e, wire->from), *to = variable(e, wire->to);
    const ap_strategy_table_t *makes = ap_strategy_table_of(p, wire->from),
                              *uses = ap_strategy_table_of(p, wire->to);
    const ap_shard_copy_t *copy = &e->copy[edge->copy - e->n->alike.classes];
    int options = ap_shard_copy_options(copy);
    int64_t *cell = ap_shard_emit_table(e->n->cfn, ap_shard_class_of(e, wire->from), edge->copy);

    for (int f = 0; f < from->options; ++f) {
        ap_spec_t made = ap_shard_spec_at(makes, from->option[f].strategy, wire->from_term);

        for (int o = 0; o < options; ++o) {
            int spec = copy_spec(o, copy);

            *cell++ = !copy_is_made(o, copy) && made != copy->spec[spec]
                          ? AP_CFN_INFINITE
                          : pair_cost(e, edge, &from->option[f], copy->sample[spec],
                                      copy_is_again(o, copy), uses->count);
        }
    }
    cell = ap_shard_emit_table(e->n->cfn, edge->copy, ap_shard_class_of(e, wire->to));
    for (int o = 0; o < options; ++o) {
        for (int t = 0; t < to->options; ++t) {
            const ap_shard_option_t *option = &to->option[t];
            bool fits = ap_shard_spec_at(uses, option->strategy, wire->to_term) ==
                            copy->spec[copy_spec(o, copy)] &&
                        (!copy->twice ||
                         (option->keep == AP_SHARD_REMATERIALISED) == copy_is_again(o, copy));

            *cell++ = fits ? 0 : AP_CFN_INFINITE;
        }
    }
}

/* Everything but the arrays of the network was scratch. */
static void release(ap_shard_emission_t *e)
{
    free(e->copy);
    free(e->span);
    xm_arena_clear(&e->arena);
}

/* The order matters: loops are folded before copies are made, copies have buffers before loads are
 * gathered, and the unit is known before anything is written. The check at the end would find any
 * inconsistency of the arrays. */
xm_status_t ap_shard_network_emit(ap_shard_network_t *network, double memory_limit)
{
    ap_shard_emission_t e = {.n = network, .limited = memory_limit > 0};
    xm_status_t status = gather_edges(&e);

    XM_THEN(status, fold_loops(&e));
    XM_THEN(status, make_copies(&e));
    XM_THEN(status, make_waits(&e));
    XM_THEN(status, ap_shard_gather_loads(&e));
    if (status == XM_OK) {
        choose_scale(&e);
        status = allocate(&e);
    }
    if (status == XM_OK) {
        emit_variables(&e);
        for (int k = 0; k < e.edges; ++k) {
            if (e.edge[k].costs != NULL && e.edge[k].copy < 0) {
                emit_plain_edge(&e, &e.edge[k]);
            } else if (e.edge[k].costs != NULL) {
                emit_copied_edge(&e, &e.edge[k]);
            }
        }
        for (int g = 0; g < network->sharing.groups; ++g) {
            ap_shard_emit_shared(&e, g);
        }
        ap_shard_emit_loads(&e);
        network->cfn->limited = e.limited;
        network->cfn->limit = (int64_t)fmin(memory_limit, 9e18);
        status = ap_cfn_check(network->cfn);
    }
    release(&e);
    return status;
}
