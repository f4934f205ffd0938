/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lays an elimination out: the order, the scopes, the strides. All of that depends on the links
 * alone, so it is done once, and runs at other costs only go through the tables.
 *
 * Thousands of small problems are laid out each second (planner/solver/local/region.c), so laying
 * out must be as cheap as solving: sets of neighbours are bits, and all memory is from one pool.
 */

#include <math.h>
#include <string.h>

#include "planner/solver/elimination/elimination.h"

/* Neighbours of variables as sets of bits. Joining the neighbours of a variable is then a bitwise
 * or, and parallel links need no care. */
typedef struct graph {
    int words;
    uint64_t *set;
    double *price; /* per variable: rows of the table that its elimination makes; < 0: gone */
    const bool *keep;
    int leaves, *winner; /* a tournament: of all variables below a node the one that goes first */
} graph_t;

static xm_status_t no_memory(const ap_elimination_t *e)
{
    return XM_NO_MEMORY("the tables of %d variables", e->count);
}

static uint64_t *set_of(const graph_t *graph, int variable)
{
    return graph->set + (size_t)variable * (size_t)graph->words;
}

static void put(uint64_t *set, int k)
{
    set[k / 64] |= UINT64_C(1) << (k % 64);
}

static void take_out(uint64_t *set, int k)
{
    set[k / 64] &= ~(UINT64_C(1) << (k % 64));
}

/* Lists a set's first members, as many as may be in a scope, and returns how many there are in
 * all. */
static int members(const graph_t *graph, int variable, int *list)
{
    const uint64_t *set = set_of(graph, variable);
    int count = 0;

    for (int word = 0; word < graph->words; ++word) {
        for (uint64_t bits = set[word]; bits != 0; bits &= bits - 1, ++count) {
            if (count < AP_ELIMINATION_SCOPE) {
                list[count] = 64 * word + __builtin_ctzll(bits);
            }
        }
    }
    return count;
}

/* The price of a variable is the number of rows that its elimination would make now; HUGE_VAL
 * forbids one that has too many neighbours. */
static void find_price(const ap_elimination_t *e, graph_t *graph, int variable)
{
    int list[AP_ELIMINATION_SCOPE], count = members(graph, variable, list);

    graph->price[variable] = count > AP_ELIMINATION_SCOPE ? HUGE_VAL : 1.0;
    for (int k = 0; k < count && k < AP_ELIMINATION_SCOPE; ++k) {
        graph->price[variable] *= e->size[list[k]];
    }
}

/* Of these nothing but the order among themselves is asked: the caller goes on with them. */
static bool is_kept(const graph_t *graph, int variable)
{
    return graph->keep != NULL && graph->keep[variable];
}

/* Whether a variable goes before one with a larger number: the cheaper one first, and kept ones
 * after all others. */
static bool is_before(const graph_t *graph, int a, int b)
{
    if (graph->price[a] < 0.0 || graph->price[b] < 0.0) {
        return graph->price[b] < 0.0;
    }
    return is_kept(graph, a) == is_kept(graph, b) ? graph->price[a] <= graph->price[b]
                                                  : is_kept(graph, b);
}

/* The children of a node are 2 n and 2 n + 1, its leaves the variables; -1 fills the last round. */
static void play(graph_t *graph, int node)
{
    int a = graph->winner[2 * node], b = graph->winner[2 * node + 1];

    graph->winner[node] = b < 0 || is_before(graph, a, b) ? a : b;
}

/* After a variable's price has changed: so the cheapest of n is found with log n comparisons. */
static void play_again(graph_t *graph, int variable)
{
    for (int node = (graph->leaves + variable) / 2; node > 0; node /= 2) {
        play(graph, node);
    }
}

/* Numbers the variables. What the last plan listed is forgotten first, which costs as much as it
 * listed and not as much as the core has. */
static xm_status_t list_variables(ap_elimination_t *e, const ap_elimination_params_t *params)
{
    size_t count;

    for (int v = 0; v < e->count; ++v) {
        e->local[e->id[v]] = -1;
    }
    xm_arena_reset(&e->pool);
    e->count = 0;
    count = (size_t)(params->variables != NULL ? params->count : e->core->variables);
    e->id = xm_arena_take(&e->pool, count * sizeof(*e->id));
    e->size = xm_arena_take(&e->pool, count * sizeof(*e->size));
    e->at = xm_arena_take(&e->pool, (count + 1) * sizeof(*e->at));
    e->position = xm_arena_take(&e->pool, count * sizeof(*e->position));
    e->step = xm_arena_take(&e->pool, count * sizeof(*e->step));
    if (e->pool.failed) {
        return no_memory(e);
    }
    e->at[0] = 0;
    for (int v = 0; v < (int)count; ++v) {
        e->id[v] = params->variables != NULL ? params->variables[v] : v;
        e->size[v] = e->core->variable[e->id[v]].size;
        e->at[v + 1] = e->at[v] + (size_t)e->size[v];
        e->local[e->id[v]] = v;
        ++e->count;
        if (e->size[v] > UINT16_MAX) { /* a table has values in 16 bits */
            return XM_UNSUPPORTED("variable %d has %d values (1 … 65535)", v, e->size[v]);
        }
    }
    return XM_OK;
}

static xm_status_t make_graph(ap_elimination_t *e, graph_t *graph)
{
    size_t bytes;

    graph->leaves = 1;
    while (graph->leaves < e->count) {
        graph->leaves *= 2;
    }
    graph->winner = xm_arena_take(&e->pool, 2 * (size_t)graph->leaves * sizeof(int));
    graph->words = e->count / 64 + 1;
    bytes = (size_t)e->count * (size_t)graph->words * sizeof(uint64_t);
    graph->set = xm_arena_get(&e->pool, 1, bytes);
    graph->price = xm_arena_take(&e->pool, (size_t)e->count * sizeof(double));
    if (e->pool.failed) {
        return no_memory(e);
    }
    for (int v = 0; v < e->count; ++v) {
        const ap_cfn_variable_t *variable = &e->core->variable[e->id[v]];

        for (int k = 0; k < variable->degree; ++k) {
            int other = e->local[ap_cfn_other(&e->core->link[variable->link[k]], e->id[v])];

            if (other >= 0) {
                put(set_of(graph, v), other);
            }
        }
    }
    for (int v = 0; v < graph->leaves; ++v) {
        graph->winner[graph->leaves + v] = v < e->count ? v : -1;
        if (v < e->count) {
            find_price(e, graph, v);
        }
    }
    for (int node = graph->leaves - 1; node > 0; --node) {
        play(graph, node);
    }
    return XM_OK;
}

/* Takes a variable out. When it is eliminated, its neighbours become neighbours of each other, as
 * they share the new table; when it is fixed, it just goes. Only their prices can have changed. */
static void leave(const ap_elimination_t *e, graph_t *graph, int v, bool eliminated)
{
    const uint64_t *own = set_of(graph, v);

    graph->price[v] = -1.0;
    play_again(graph, v);
    for (int word = 0; word < graph->words; ++word) {
        for (uint64_t bits = own[word]; bits != 0; bits &= bits - 1) {
            int other = 64 * word + __builtin_ctzll(bits);
            uint64_t *set = set_of(graph, other);

            for (int k = 0; k < graph->words && eliminated; ++k) {
                set[k] |= own[k];
            }
            take_out(set, v);
            if (eliminated) {
                take_out(set, other);
            }
            find_price(e, graph, other);
            play_again(graph, other);
        }
    }
}

/* The variable with the most neighbours: fixing it removes most links. */
static int find_widest(const ap_elimination_t *e, const graph_t *graph)
{
    int widest = -1, most = -1, list[AP_ELIMINATION_SCOPE];

    for (int v = 0; v < e->count; ++v) {
        int degree = graph->price[v] >= 0.0 ? members(graph, v, list) : -1;

        if (degree > most) {
            most = degree;
            widest = v;
        }
    }
    return widest;
}

static void add_step(ap_elimination_t *e, const graph_t *graph, int v, bool kept)
{
    ap_elimination_step_t *step = &e->step[e->steps + e->kept];

    step->variable = v;
    step->count = members(graph, v, step->scope);
    step->rows = kept ? 0 : (size_t)graph->price[v];
    step->least = step->outside = NULL;
    e->position[v] = e->steps + e->kept;
    e->kept += kept;
    e->steps += !kept;
}

/* Chooses the order greedily, since finding the best one is NP-hard. Where no table is small enough
 * the widest variable is fixed (cutset conditioning), or the problem is refused before any table is
 * allocated. */
static xm_status_t choose_order(ap_elimination_t *e, graph_t *graph,
                                const ap_elimination_params_t *params)
{
    double cells = params->cells > 0.0 ? params->cells : HUGE_VAL;

    e->steps = e->kept = 0;
    e->work = e->row_count = 0.0;
    for (int left = e->count; left > 0; --left) {
        int v = graph->winner[1];
        bool kept = is_kept(graph, v);
        double price = graph->price[v];

        if (!(price < HUGE_VAL) || (price > cells && !kept)) {
            if (!params->fix) {
                return XM_UNSUPPORTED(
                    "eliminating variable %d needs a table of %g cells, allowed are %g", v, price,
                    cells);
            }
            v = find_widest(e, graph);
            e->position[v] = -1;
            leave(e, graph, v, false);
            continue;
        }
        e->work += kept ? 0.0 : price * e->size[v];
        e->row_count += kept ? 0.0 : price;
        if (params->work > 0.0 && e->work > params->work) {
            return XM_UNSUPPORTED("an elimination looks at more than %g cells", params->work);
        }
        add_step(e, graph, v, kept);
        leave(e, graph, v, true);
    }
    return XM_OK;
}

/* Sorts a scope so that the variable that is eliminated first comes last and so varies fastest. It
 * is the variable of the step that will read this table: its values then lie side by side, and a
 * row is added with vector instructions. */
static void sort_scope(const ap_elimination_t *e, ap_elimination_step_t *step)
{
    for (int k = 1; k < step->count; ++k) {
        int v = step->scope[k], j = k;

        for (; j > 0 && e->position[step->scope[j - 1]] < e->position[v]; --j) {
            step->scope[j] = step->scope[j - 1];
        }
        step->scope[j] = v;
    }
}

/* Finds a term's strides; `scope`, whose last one is the step's own variable, are the table's
 * variables. The jumps say by how much the table's pointer moves when variable j of the step's
 * scope advances and all later ones return to 0; so going to the next row is one addition per term
 * and needs no multiplication. */
static void add_term(const ap_elimination_t *e, ap_elimination_step_t *step, const double *table,
                     int child, const int *scope, int count)
{
    ap_elimination_term_t *term = &step->term[step->terms++];
    ptrdiff_t stride = 1, moved = 0;

    term->table = table;
    term->child = child;
    for (int j = 0; j < step->count; ++j) {
        term->stride[j] = 0;
    }
    for (int k = count - 1; k >= 0; --k) {
        for (int j = 0; j < step->count; ++j) {
            term->stride[j] = step->scope[j] == scope[k] ? stride : term->stride[j];
        }
        stride *= e->size[scope[k]];
    }
    /* `moved` is how far the later variables have led away from where their first values are; a
     * jump takes that back. */
    for (int j = step->count - 1; j >= 0; --j) {
        term->jump[j] = term->stride[j] - moved;
        moved += term->stride[j] * (e->size[step->scope[j]] - 1);
    }
}

/* Adds a link's table with the step's variable varying fastest. It is copied when it has to be
 * turned round for that, or when forbidden cells are to be numbers. */
static bool add_link(ap_elimination_t *e, ap_elimination_step_t *step, const ap_cfn_link_t *link,
                     double forbidden)
{
    bool last = link->b == e->id[step->variable];
    int scope[2] = {e->local[last ? link->a : link->b], step->variable};
    size_t rows = (size_t)e->size[scope[0]], columns = (size_t)e->size[step->variable];
    size_t over = last ? columns : 1, along = last ? 1 : rows;
    double *table;

    if (last && !(forbidden > 0.0)) {
        add_term(e, step, link->table, -1, scope, 2);
        return true;
    }
    table = xm_arena_take(&e->pool, rows * columns * sizeof(*table));
    if (table == NULL) {
        return false;
    }
    for (size_t y = 0; y < rows; ++y) {
        for (size_t x = 0; x < columns; ++x) {
            double cost = link->table[y * over + x * along];

            table[y * columns + x] = cost < HUGE_VAL || !(forbidden > 0.0) ? cost : forbidden;
        }
    }
    add_term(e, step, table, -1, scope, 2);
    return true;
}

/* Lists, for each step, the earlier steps that leave it a table. A table goes to the variable of
 * its scope that is eliminated next, which is the last one of the sorted scope; each table so has
 * one reader and the steps form a forest. */
static void list_children(const ap_elimination_t *e, int *first, int *next)
{
    for (int k = 0; k < e->steps + e->kept; ++k) {
        first[k] = -1;
    }
    for (int k = e->steps - 1; k >= 0; --k) {
        const ap_elimination_step_t *step = &e->step[k];

        if (step->count > 0) {
            int parent = e->position[step->scope[step->count - 1]];

            next[k] = first[parent];
            first[parent] = k;
        }
    }
}

/* Lays out one step. A link belongs to whichever of its ends goes first; the other one sees it only
 * through the table that is left. */
static bool make_terms(ap_elimination_t *e, int k, int child, const int *next, double forbidden)
{
    ap_elimination_step_t *step = &e->step[k];
    const ap_cfn_variable_t *variable = &e->core->variable[e->id[step->variable]];
    int most = variable->degree;

    for (int c = child; c >= 0; c = next[c]) {
        ++most;
    }
    step->terms = 0;
    step->term = xm_arena_take(&e->pool, (size_t)most * sizeof(*step->term));
    for (int j = 0; j < variable->degree && step->term != NULL; ++j) {
        const ap_cfn_link_t *link = &e->core->link[variable->link[j]];
        int other = e->local[ap_cfn_other(link, e->id[step->variable])];

        if (other >= 0 && e->position[other] > k && !add_link(e, step, link, forbidden)) {
            return false;
        }
    }
    for (; child >= 0 && step->term != NULL; child = next[child]) {
        const ap_elimination_step_t *from = &e->step[child];

        /* The child's table has this step's variable last, so it is read by rows as it is. */
        add_term(e, step, from->least, child, from->scope, from->count);
    }
    return step->term != NULL;
}

static xm_status_t lay_out(ap_elimination_t *e, const ap_elimination_params_t *params)
{
    size_t steps = (size_t)e->steps + (size_t)e->kept;
    int *first = xm_arena_take(&e->pool, steps * sizeof(int)), largest = 1, most = 0;
    int *next = xm_arena_take(&e->pool, steps * sizeof(int));

    for (int k = 0; k < (int)steps; ++k) {
        ap_elimination_step_t *step = &e->step[k];

        sort_scope(e, step);
        if (k < e->steps) {
            step->least = xm_arena_take(&e->pool, step->rows * sizeof(*step->least));
            step->outside = params->marginals
                                ? xm_arena_take(&e->pool, step->rows * sizeof(*step->outside))
                                : NULL;
        }
        largest = e->size[step->variable] > largest ? e->size[step->variable] : largest;
    }
    if (e->pool.failed) {
        return no_memory(e);
    }
    list_children(e, first, next);
    for (int k = 0; k < (int)steps; ++k) {
        if (!make_terms(e, k, first[k], next, params->forbidden)) {
            return no_memory(e);
        }
        most = e->step[k].terms > most ? e->step[k].terms : most;
    }
    e->sum = xm_arena_take(&e->pool, (size_t)largest * sizeof(*e->sum));
    e->rows = xm_arena_take(&e->pool, (size_t)most * sizeof(*e->rows));
    return e->pool.failed ? no_memory(e) : XM_OK;
}

xm_status_t ap_elimination_plan(ap_elimination_t *elimination,
                                const ap_elimination_params_t *params)
{
    graph_t graph = {.keep = params->keep};
    xm_status_t status = list_variables(elimination, params);

    if (status == XM_OK) {
        status = make_graph(elimination, &graph);
    }
    if (status == XM_OK) {
        status = choose_order(elimination, &graph, params);
    }
    return status == XM_OK ? lay_out(elimination, params) : status;
}
