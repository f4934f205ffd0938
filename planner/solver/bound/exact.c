/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exact minimisation of a core at given prices, by bucket elimination (Dechter, 1999) in min-size
 * greedy order. elimination.h offers the same method for general tables; this one exists because
 * the dual solves the same graph hundreds of times at other prices. Order, scopes and strides are
 * laid out once, a solve only runs through the tables, and a backward pass over the same tables
 * gives every value's marginal at about twice the cost of a forward pass.
 *
 * A pass costs `work` cells: for each step, the combinations of its scope times the values of its
 * variable.
 */

#include "planner/solver/bound/exact.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A table has up to 12 variables. The order is found in time quadratic in the variables, so larger
 * cores are left to message passing; their tables would hardly be small. */
enum { SCOPE = 12, VARIABLES_MAX = 4096 };

/* What a step adds up: a link's table, or what an earlier step left. */
typedef struct term {
    const double *table; /* the step's own variable varies fastest */
    int child;           /* the earlier step; -1: a link */
    ptrdiff_t stride[SCOPE];
    ptrdiff_t jump[SCOPE]; /* to the next row when that variable of the scope moves on */
} term_t;

typedef struct step {
    int variable;
    int count;
    int scope[SCOPE]; /* other variables of its table, those eliminated latest first */
    size_t rows;      /* combinations of the scope's values */
    double *least;    /* per row: over the step's variable and all that was eliminated into it */
    double *outside;  /* per row: of all else */
    uint16_t *best;   /* per row: the variable's value */
    int first_term, terms;
} step_t;

struct ap_cfn_exact {
    const ap_cfn_core_t *core;
    int steps, terms, term_capacity, widest;
    step_t *step;
    term_t *term;
    int *position;  /* per variable: its step */
    double *cells;  /* what `least` and `outside` point into */
    double *tables; /* links turned round */
    uint16_t *picks;
    double *sum;         /* of one row */
    const double **rows; /* per term of a step: its row */
    double total, work;
};

/* Neighbours of variables as sets of bits. */
typedef struct graph {
    int words;
    uint64_t *set;
    double *price; /* per variable: rows of the table that its elimination makes; < 0: gone */
} graph_t;

static xm_status_t no_memory(const ap_cfn_core_t *core)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the tables of %d variables",
                        core->variables);
}

static uint64_t *set_of(const graph_t *graph, int variable)
{
    return graph->set + (size_t)variable * (size_t)graph->words;
}

/* Lists a set's members, as many as may be in a scope, and returns how many there are. The list is
 * complete only when the returned count is at most SCOPE. */
static int members(const graph_t *graph, int variable, int *list)
{
    const uint64_t *set = set_of(graph, variable);
    int count = 0;

    for (int word = 0; word < graph->words; ++word) {
        for (uint64_t bits = set[word]; bits != 0; bits &= bits - 1, ++count) {
            if (count < SCOPE) {
                list[count] = 64 * word + __builtin_ctzll(bits);
            }
        }
    }
    return count;
}

/* The price of a variable is the number of rows that its elimination would make now; HUGE_VAL
 * forbids one that has too many neighbours. */
static void find_price(const ap_cfn_core_t *core, graph_t *graph, int variable)
{
    int list[SCOPE], count = members(graph, variable, list);

    graph->price[variable] = count > SCOPE ? HUGE_VAL : 1.0;
    for (int k = 0; k < count && k < SCOPE; ++k) {
        graph->price[variable] *= core->variable[list[k]].size;
    }
}

/* Makes the graph of the links as rows of bits: joining the neighbours of a variable is then a
 * bitwise or, and parallel links need no care. */
static bool make_graph(const ap_cfn_core_t *core, graph_t *graph)
{
    graph->words = core->variables / 64 + 1;
    graph->set = calloc((size_t)core->variables * (size_t)graph->words + 1, sizeof(uint64_t));
    graph->price = malloc(((size_t)core->variables + 1) * sizeof(double));
    if (graph->set == NULL || graph->price == NULL) {
        return false;
    }
    for (int k = 0; k < core->links; ++k) {
        int a = core->link[k].a, b = core->link[k].b;

        set_of(graph, a)[b / 64] |= UINT64_C(1) << (b % 64);
        set_of(graph, b)[a / 64] |= UINT64_C(1) << (a % 64);
    }
    for (int v = 0; v < core->variables; ++v) {
        find_price(core, graph, v);
    }
    return true;
}

/* Takes a variable out: its neighbours become neighbours of each other, since the table that it
 * leaves joins them. Only their prices can have changed. */
static void leave(const ap_cfn_core_t *core, graph_t *graph, const step_t *step)
{
    int v = step->variable;

    graph->price[v] = -1.0;
    for (int k = 0; k < step->count; ++k) {
        uint64_t *set = set_of(graph, step->scope[k]);

        for (int word = 0; word < graph->words; ++word) {
            set[word] |= set_of(graph, v)[word];
        }
        set[v / 64] &= ~(UINT64_C(1) << (v % 64));
        set[step->scope[k] / 64] &= ~(UINT64_C(1) << (step->scope[k] % 64));
    }
    for (int k = 0; k < step->count; ++k) {
        find_price(core, graph, step->scope[k]);
    }
}

/* Chooses the order greedily: always the variable with the fewest rows, of equal ones the lowest
 * number. Finding the best order is NP-hard. Returns false as soon as the order takes more than
 * `work` cells, so wide problems are refused early. */
static bool choose_order(ap_cfn_exact_t *self, graph_t *graph, double work)
{
    const ap_cfn_core_t *core = self->core;

    for (self->steps = 0; self->steps < core->variables; ++self->steps) {
        step_t *step = &self->step[self->steps];
        int next = -1;

        for (int v = 0; v < core->variables; ++v) {
            if (graph->price[v] >= 0.0 && (next < 0 || graph->price[v] < graph->price[next])) {
                next = v;
            }
        }
        self->work += graph->price[next] * core->variable[next].size;
        if (!(self->work <= work)) {
            return false;
        }
        step->variable = next;
        step->count = members(graph, next, step->scope);
        step->rows = (size_t)graph->price[next];
        self->position[next] = self->steps;
        leave(core, graph, step);
    }
    return true;
}

/* Sorts a scope so that the variable that is eliminated first comes last and so varies fastest. It
 * is the variable of the step that will read this table: its values then lie side by side, and a
 * row is added with vector instructions. */
static void sort_scope(const ap_cfn_exact_t *self, step_t *step)
{
    for (int k = 1; k < step->count; ++k) {
        int v = step->scope[k], j = k;

        for (; j > 0 && self->position[step->scope[j - 1]] < self->position[v]; --j) {
            step->scope[j] = step->scope[j - 1];
        }
        step->scope[j] = v;
    }
}

static int size_of(const ap_cfn_exact_t *self, int variable)
{
    return self->core->variable[variable].size;
}

/* Finds a term's strides; `scope` (with the step's own variable last) are the table's variables. A
 * variable of the step's scope that the table lacks has stride 0. The jumps say by how much the
 * table's pointer moves when variable j of the scope advances and all later ones return to 0; so
 * going to the next row is one addition per term and needs no multiplication. */
static xm_status_t add_term(ap_cfn_exact_t *self, const step_t *step, const double *table,
                            int child, const int *scope, int count)
{
    ptrdiff_t stride = 1, moved = 0;
    term_t *term;

    if (self->terms == self->term_capacity) {
        int wanted = self->term_capacity > 0 ? 2 * self->term_capacity : 256;
        term_t *grown = realloc(self->term, (size_t)wanted * sizeof(*grown));

        if (grown == NULL) {
            return no_memory(self->core);
        }
        self->term = grown;
        self->term_capacity = wanted;
    }
    term = &self->term[self->terms++];
    *term = (term_t){.table = table, .child = child};
    for (int k = count - 1; k >= 0; --k) {
        for (int j = 0; j < step->count; ++j) {
            term->stride[j] = step->scope[j] == scope[k] ? stride : term->stride[j];
        }
        stride *= size_of(self, scope[k]);
    }
    /* `moved` is how far the later variables have led away from where their first values are; a
     * jump takes that back. */
    for (int j = step->count - 1; j >= 0; --j) {
        term->jump[j] = term->stride[j] - moved;
        moved += term->stride[j] * (size_of(self, step->scope[j]) - 1);
    }
    return XM_OK;
}

/* A link's table with the step's variable varying fastest; turned round if need be. */
static xm_status_t add_link(ap_cfn_exact_t *self, const step_t *step, int link, size_t *turned)
{
    const ap_cfn_link_t *l = &self->core->link[link];
    int rows = size_of(self, l->a), columns = size_of(self, l->b);
    int scope[2] = {ap_cfn_other(l, step->variable), step->variable};
    double *table = self->tables + *turned;

    if (l->b == step->variable) {
        return add_term(self, step, l->table, -1, scope, 2);
    }
    for (int x = 0; x < rows; ++x) {
        for (int y = 0; y < columns; ++y) {
            table[(size_t)y * (size_t)rows + (size_t)x] =
                l->table[(size_t)x * (size_t)columns + (size_t)y];
        }
    }
    *turned += (size_t)rows * (size_t)columns;
    return add_term(self, step, table, -1, scope, 2);
}

/* Lists, for each step, the earlier steps that leave it a table. A table goes to the variable of
 * its scope that is eliminated next, which is the last one of the sorted scope; each table so has
 * one reader and the steps form a forest. */
static void list_children(const ap_cfn_exact_t *self, int *first, int *next)
{
    for (int k = 0; k < self->steps; ++k) {
        first[k] = -1;
    }
    for (int k = self->steps - 1; k >= 0; --k) {
        const step_t *step = &self->step[k];

        if (step->count > 0) {
            int parent = self->position[step->scope[step->count - 1]];

            next[k] = first[parent];
            first[parent] = k;
        }
    }
}

/* A link belongs to whichever of its ends is eliminated first. The other end sees it only through
 * the table that is left. */
static xm_status_t make_terms(ap_cfn_exact_t *self)
{
    const ap_cfn_core_t *core = self->core;
    int *first = malloc(2 * ((size_t)self->steps + 1) * sizeof(int)), most = 0;
    int *next = first != NULL ? first + self->steps + 1 : NULL;
    size_t turned = 0;
    xm_status_t status = first == NULL ? no_memory(core) : XM_OK;

    if (status == XM_OK) {
        list_children(self, first, next);
    }
    for (int k = 0; k < self->steps && status == XM_OK; ++k) {
        step_t *step = &self->step[k];
        const ap_cfn_variable_t *variable = &core->variable[step->variable];

        step->first_term = self->terms;
        for (int j = 0; j < variable->degree && status == XM_OK; ++j) {
            int link = variable->link[j];

            if (self->position[ap_cfn_other(&core->link[link], step->variable)] > k) {
                status = add_link(self, step, link, &turned);
            }
        }
        for (int child = first[k]; child >= 0 && status == XM_OK; child = next[child]) {
            const step_t *from = &self->step[child];

            /* A child's table has this step's variable last in its scope, so it is read by rows
             * as it is. */
            status = add_term(self, step, from->least, child, from->scope, from->count);
        }
        step->terms = self->terms - step->first_term;
        most = step->terms > most ? step->terms : most;
        self->widest = variable->size > self->widest ? variable->size : self->widest;
    }
    free(first);
    /* Scratch for a row, and for as many terms as the largest step has. */
    self->sum = malloc(((size_t)self->widest + 1) * sizeof(double));
    self->rows = malloc(((size_t)most + 1) * sizeof(*self->rows));
    return status == XM_OK && (self->sum == NULL || self->rows == NULL) ? no_memory(core) : status;
}

/* Counts all rows first, so that everything is in three allocations. `least` and `outside` of a
 * step lie side by side: the backward pass reads both. */
static xm_status_t make_tables(ap_cfn_exact_t *self)
{
    const ap_cfn_core_t *core = self->core;
    size_t rows = 0, turned = 0;

    for (int k = 0; k < self->steps; ++k) {
        sort_scope(self, &self->step[k]);
        rows += self->step[k].rows;
    }
    for (int k = 0; k < core->links; ++k) {
        const ap_cfn_link_t *link = &core->link[k];

        /* Links whose first variable is eliminated first are the ones to be turned: its values
         * must lie side by side. */
        if (self->position[link->a] < self->position[link->b]) {
            turned += (size_t)size_of(self, link->a) * (size_t)size_of(self, link->b);
        }
    }
    self->cells = malloc((2 * rows + 1) * sizeof(double));
    self->picks = malloc((rows + 1) * sizeof(*self->picks));
    self->tables = malloc((turned + 1) * sizeof(double));
    if (self->cells == NULL || self->picks == NULL || self->tables == NULL) {
        return no_memory(core);
    }
    rows = 0;
    for (int k = 0; k < self->steps; ++k) {
        step_t *step = &self->step[k];

        step->least = self->cells + 2 * rows;
        step->outside = step->least + step->rows;
        step->best = self->picks + rows;
        rows += step->rows;
    }
    return make_terms(self);
}

/* Creates nothing (and succeeds) where the tables would be too large: that is no error, as the dual
 * then passes messages. */
xm_status_t ap_cfn_exact_create(const ap_cfn_core_t *core, double work, ap_cfn_exact_t **exact)
{
    ap_cfn_exact_t *made;
    graph_t graph = {0};
    xm_status_t status = XM_OK;
    bool small;

    *exact = NULL;
    if (core->variables > VARIABLES_MAX) {
        return XM_OK;
    }
    made = calloc(1, sizeof(*made));
    if (made == NULL) {
        return no_memory(core);
    }
    made->core = core;
    made->step = calloc((size_t)core->variables + 1, sizeof(*made->step));
    made->position = malloc(((size_t)core->variables + 1) * sizeof(int));
    if (made->step == NULL || made->position == NULL || !make_graph(core, &graph)) {
        status = no_memory(core);
    }
    /* Refusing happens here, before any table is allocated; the graph is not needed any more
     * either way. */
    small = status == XM_OK && choose_order(made, &graph, work);
    free(graph.set);
    free(graph.price);
    if (small) {
        status = make_tables(made);
    }
    if (!small || status != XM_OK) {
        ap_cfn_exact_destroy(made);
        return status;
    }
    *exact = made;
    return XM_OK;
}

double ap_cfn_exact_work(const ap_cfn_exact_t *exact)
{
    return exact->work;
}

/* One build runs everywhere, but uses wide vectors where it finds them. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

/* sum[x] += row[x] */
WIDE static void add_row(double *sum, const double *row, int size)
{
#pragma omp simd
    for (int x = 0; x < size; ++x) {
        sum[x] += row[x];
    }
}

/* into[x] = the lesser of into[x] and row[x] */
WIDE static void lower_row(double *into, const double *row, int size)
{
#pragma omp simd
    for (int x = 0; x < size; ++x) {
        into[x] = row[x] < into[x] ? row[x] : into[x];
    }
}

/* Moves on to the next row of a step's table, as an odometer: `index` counts the scope's values,
 * the last digit fastest. After the last row nothing moves. */
static void next_row(const ap_cfn_exact_t *self, const step_t *step, int *index)
{
    for (int k = step->count - 1; k >= 0; --k) {
        if (++index[k] < size_of(self, step->scope[k])) {
            for (int j = 0; j < step->terms; ++j) {
                self->rows[j] += self->term[step->first_term + j].jump[k];
            }
            return;
        }
        index[k] = 0;
    }
}

static void first_row(const ap_cfn_exact_t *self, const step_t *step)
{
    for (int j = 0; j < step->terms; ++j) {
        self->rows[j] = self->term[step->first_term + j].table;
    }
}

/* Fills a step's table: for every row the minimum over the step's own variable, and the value that
 * attains it. Of equal sums the lowest value wins, so equal costs give equal assignments. */
static void go_forward(ap_cfn_exact_t *self, step_t *step, const double *cost)
{
    int index[SCOPE] = {0}, size = size_of(self, step->variable);
    double *sum = self->sum;

    first_row(self, step);
    for (size_t row = 0; row < step->rows; ++row) {
        int best = 0;

        memcpy(sum, cost, (size_t)size * sizeof(double));
        for (int j = 0; j < step->terms; ++j) {
            add_row(sum, self->rows[j], size);
        }
        for (int x = 1; x < size; ++x) {
            best = sum[x] < sum[best] ? x : best;
        }
        step->least[row] = sum[best];
        step->best[row] = (uint16_t)best;
        next_row(self, step, index);
    }
}

/* A forward pass, then the values from the last step to the first: a step's scope holds only
 * variables that are eliminated later, so their values are known when the step is reached. A step
 * with an empty scope ends a connected component; its table is one number. */
double ap_cfn_exact_solve(ap_cfn_exact_t *self, const double *cost, const size_t *at, int *value)
{
    self->total = 0.0;
    for (int k = 0; k < self->steps; ++k) {
        step_t *step = &self->step[k];

        go_forward(self, step, cost + at[step->variable]);
        /* The total of all components; marginals need it to know what is outside of each. */
        self->total += step->count == 0 ? step->least[0] : 0.0;
    }
    for (int k = self->steps - 1; k >= 0; --k) {
        const step_t *step = &self->step[k];
        size_t row = 0;

        for (int j = 0; j < step->count; ++j) {
            row = row * (size_t)size_of(self, step->scope[j]) + (size_t)value[step->scope[j]];
        }
        value[step->variable] = step->best[row];
    }
    return self->total;
}

/* Finds the marginals of a step's variable, and `outside` of the steps below it. `outside` of a row
 * is the minimum of all costs that are not in the row's own table, given the row's values. So cost
 * plus terms plus outside is the minimum over everything else, and a minimum over rows is the
 * marginal. */
static void go_back(ap_cfn_exact_t *self, const step_t *step, const double *cost, double *marginal)
{
    const term_t *term = step->terms > 0 ? &self->term[step->first_term] : NULL;
    int index[SCOPE] = {0}, size = size_of(self, step->variable);
    double *sum = self->sum;

    for (int x = 0; x < size; ++x) {
        marginal[x] = HUGE_VAL;
    }
    for (int j = 0; j < step->terms; ++j) {
        for (size_t c = 0; term[j].child >= 0 && c < self->step[term[j].child].rows; ++c) {
            self->step[term[j].child].outside[c] = HUGE_VAL;
        }
    }
    first_row(self, step);
    for (size_t row = 0; row < step->rows; ++row) {
        for (int x = 0; x < size; ++x) {
            sum[x] = cost[x] + step->outside[row];
        }
        for (int j = 0; j < step->terms; ++j) {
            add_row(sum, self->rows[j], size);
        }
        lower_row(marginal, sum, size);
        /* The sums also hold the child's own table. Its minimum over all rows that agree with a row
         * of the child is collected here, and the child's part is taken off at the end. */
        for (int j = 0; j < step->terms; ++j) {
            if (term[j].child >= 0) {
                step_t *child = &self->step[term[j].child];

                lower_row(child->outside + (self->rows[j] - child->least), sum, size);
            }
        }
        next_row(self, step, index);
    }
    for (int j = 0; j < step->terms; ++j) {
        step_t *child = term[j].child >= 0 ? &self->step[term[j].child] : NULL;

        for (size_t c = 0; child != NULL && c < child->rows; ++c) {
            /* What is forbidden below stays so whatever is outside; infinity less infinity would be
             * NaN. */
            child->outside[c] =
                child->least[c] < HUGE_VAL ? child->outside[c] - child->least[c] : 0.0;
        }
    }
}

/* Goes from the last step to the first, so that `outside` of a step is complete before the step is
 * visited. For the root of a component it is the total of all other components. */
void ap_cfn_exact_marginals(ap_cfn_exact_t *self, const double *cost, const size_t *at,
                            double *marginal)
{
    for (int k = self->steps - 1; k >= 0; --k) {
        step_t *step = &self->step[k];

        if (step->count == 0) {
            step->outside[0] = step->least[0] < HUGE_VAL ? self->total - step->least[0] : 0.0;
        }
        go_back(self, step, cost + at[step->variable], marginal + at[step->variable]);
    }
}

void ap_cfn_exact_destroy(ap_cfn_exact_t *exact)
{
    if (exact == NULL) {
        return;
    }
    free(exact->step);
    free(exact->term);
    free(exact->position);
    free(exact->cells);
    free(exact->tables);
    free(exact->picks);
    free(exact->sum);
    free(exact->rows);
    free(exact);
}
