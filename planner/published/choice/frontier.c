/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The curve of time over memory (TensorOpt, Cai, TPDS'21): variable elimination over pairs of
 * seconds and bytes, of which each cell keeps those that no other pair of the cell beats. Sums of
 * such sets grow as products, so a cell is thinned to a fixed number of points, spread over its
 * seconds; `complete` says whether that ever happened.
 *
 * The variable whose table is smallest goes first. Points remember which points they are sums of,
 * so every assignment can be traced back.
 */

#include "planner/published/choice/frontier.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SCOPE = 12, PARENTS = 16, MAX_CELLS = 1 << 20 };

/* A pair of seconds and bytes, and where it comes from: the value of the variable that was
 * eliminated and a point of each table that was combined. */
typedef struct point {
    double seconds, bytes;
    int value;
    int from[PARENTS];
} point_t;

/* Pairs of which none beats another, by rising seconds. */
typedef struct list {
    point_t *points;
    int count, capacity;
} list_t;

typedef struct table {
    int scope_count;
    int scope[SCOPE];
    size_t cells;
    size_t *first; /* [cells + 1]: range of a cell's points */
    double *seconds, *bytes;
    int *value, *from; /* tables of eliminations; `from` is [points][parents] */
    int variable;      /* that was eliminated; -1: an original, or the last of all */
    int parents;
    int parent[PARENTS];
    bool alive;
    int pick; /* scratch of a trace */
} table_t;

typedef struct frontier_run {
    const ap_choice_network_t *network;
    int limit; /* points of a cell */
    table_t *tables;
    int table_count;
    double *size; /* per variable: cells of the table its elimination would make */
    bool *gone;
    list_t now, next, cell; /* scratch */
    bool complete;
} run_t;

static xm_status_t no_memory(void)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for a frontier");
}

static int domain_of(const run_t *run, int variable)
{
    return run->network->variables[variable].domain;
}

static void table_free(table_t *table)
{
    free(table->first);
    free(table->seconds);
    free(table->bytes);
    free(table->value);
    free(table->from);
}

static void run_close(run_t *run)
{
    for (int t = 0; t < run->table_count; ++t) {
        table_free(&run->tables[t]);
    }
    free(run->tables);
    free(run->size);
    free(run->gone);
    free(run->now.points);
    free(run->next.points);
    free(run->cell.points);
}

/* Makes room for a pair and removes those that it beats. NULL: one there is as good, or (`failed`
 * is set) there is no memory. `from` is where to look for its place, 0 or where a faster one went;
 * it is moved on, so that points inserted by rising seconds cost one pass in all. */
static point_t *insert(list_t *list, double seconds, double bytes, int *from, bool *failed)
{
    int at = *from, beaten;

    while (at < list->count && list->points[at].seconds <= seconds) {
        ++at;
    }
    *from = at;
    if (at > 0 && list->points[at - 1].bytes <= bytes) {
        return NULL;
    }
    at -= at > 0 && list->points[at - 1].seconds == seconds;
    for (beaten = at; beaten < list->count && list->points[beaten].bytes >= bytes; ++beaten) {
    }
    if (list->count == list->capacity) {
        int wanted = 2 * list->capacity + 16;
        point_t *grown = realloc(list->points, (size_t)wanted * sizeof(*grown));

        if (grown == NULL) {
            *failed = true;
            return NULL;
        }
        list->points = grown;
        list->capacity = wanted;
    }
    memmove(&list->points[at + 1], &list->points[beaten],
            (size_t)(list->count - beaten) * sizeof(point_t));
    list->count += 1 - (beaten - at);
    list->points[at].seconds = seconds;
    list->points[at].bytes = bytes;
    *from = at;
    return &list->points[at];
}

/* Keeps at most the limit, spread evenly; the two ends always stay. */
static void thin_out(run_t *run, list_t *list)
{
    if (list->count > run->limit) {
        for (int i = 0; i < run->limit; ++i) {
            list->points[i] = list->points[(int64_t)i * (list->count - 1) / (run->limit - 1)];
        }
        list->count = run->limit;
        run->complete = false;
    }
}

static size_t cell_of(const run_t *run, const table_t *table, const int *assignment)
{
    size_t cell = 0;

    for (int i = 0; i < table->scope_count; ++i) {
        cell = cell * (size_t)domain_of(run, table->scope[i]) + (size_t)assignment[table->scope[i]];
    }
    return cell;
}

/* A table of the network: one point in every cell. */
static xm_status_t add_original(run_t *run, int scope_count, int a, int b, const double *seconds,
                                const double *bytes)
{
    table_t *table = &run->tables[run->table_count++];

    *table = (table_t){.scope_count = scope_count, .variable = -1, .alive = true, .cells = 1};
    table->scope[0] = a;
    table->scope[1] = b;
    for (int i = 0; i < scope_count; ++i) {
        table->cells *= (size_t)domain_of(run, table->scope[i]);
    }
    table->first = malloc((table->cells + 1) * sizeof(*table->first));
    table->seconds = malloc(table->cells * sizeof(double));
    table->bytes = calloc(table->cells, sizeof(double));
    if (table->first == NULL || table->seconds == NULL || table->bytes == NULL) {
        return no_memory();
    }
    memcpy(table->seconds, seconds, table->cells * sizeof(double));
    if (bytes != NULL) {
        memcpy(table->bytes, bytes, table->cells * sizeof(double));
    }
    for (size_t c = 0; c <= table->cells; ++c) {
        table->first[c] = c;
    }
    return XM_OK;
}

static bool has_variable(const table_t *table, int variable)
{
    for (int i = 0; i < table->scope_count; ++i) {
        if (table->scope[i] == variable) {
            return true;
        }
    }
    return false;
}

/* Plans the table that eliminating a variable (-1: joining what is left) would make: its parents
 * and scope. Returns its cells, INFINITY when it cannot be made. */
static double plan_elimination(const run_t *run, int variable, table_t *table)
{
    double cells = 1.0;

    *table = (table_t){.variable = variable, .alive = true};
    for (int t = 0; t < run->table_count; ++t) {
        const table_t *parent = &run->tables[t];

        if (!parent->alive || (variable >= 0 && !has_variable(parent, variable))) {
            continue;
        }
        if (table->parents == PARENTS) {
            return INFINITY;
        }
        table->parent[table->parents++] = t;
        for (int i = 0; i < parent->scope_count; ++i) {
            int v = parent->scope[i];

            if (v == variable || has_variable(table, v)) {
                continue;
            }
            if (table->scope_count == SCOPE) {
                return INFINITY;
            }
            table->scope[table->scope_count++] = v;
            cells *= domain_of(run, v);
        }
    }
    return cells;
}

/* Sums of one point of each parent, for one assignment of all their variables, in run->now. The two
 * lists are exchanged after each parent, so neither is allocated anew. */
static bool combine(run_t *run, const table_t *table, const int *assignment)
{
    bool failed = false;
    int begin = 0;
    point_t *start;

    run->now.count = 0;
    start = insert(&run->now, 0.0, 0.0, &begin, &failed);
    if (failed) {
        return false;
    }
    start->value = table->variable >= 0 ? assignment[table->variable] : 0;
    memset(start->from, 0, sizeof(start->from));
    for (int p = 0; p < table->parents; ++p) {
        const table_t *parent = &run->tables[table->parent[p]];
        size_t cell = cell_of(run, parent, assignment);
        size_t first = parent->first[cell], end = parent->first[cell + 1];
        list_t swap = run->now;

        if (end == first + 1) { /* all are shifted alike */
            for (int i = 0; i < run->now.count; ++i) {
                run->now.points[i].seconds += parent->seconds[first];
                run->now.points[i].bytes += parent->bytes[first];
            }
            continue;
        }
        run->next.count = 0;
        for (int i = 0; i < run->now.count; ++i) {
            int place = 0;

            for (size_t q = first; q < end && !failed; ++q) {
                const point_t *with = &run->now.points[i];
                point_t *sum = insert(&run->next, with->seconds + parent->seconds[q],
                                      with->bytes + parent->bytes[q], &place, &failed);

                if (sum != NULL) {
                    sum->value = with->value;
                    memcpy(sum->from, with->from, sizeof(sum->from));
                    sum->from[p] = (int)(q - first);
                }
            }
        }
        thin_out(run, &run->next);
        run->now = run->next;
        run->next = swap;
    }
    return !failed;
}

/* The points of one cell, over all values of the eliminated variable, in run->cell. */
static xm_status_t fill_cell(run_t *run, const table_t *table, int *assignment)
{
    int values = table->variable >= 0 ? domain_of(run, table->variable) : 1;
    bool failed = false;

    run->cell.count = 0;
    for (int x = 0; x < values; ++x) {
        int place = 0;

        if (table->variable >= 0) {
            assignment[table->variable] = x;
        }
        failed = failed || !combine(run, table, assignment);
        for (int i = 0; i < run->now.count && !failed; ++i) {
            const point_t *from = &run->now.points[i];
            point_t *point = insert(&run->cell, from->seconds, from->bytes, &place, &failed);

            if (point != NULL) {
                *point = *from;
            }
        }
    }
    thin_out(run, &run->cell);
    return failed ? no_memory() : XM_OK;
}

static void store_cell(const run_t *run, table_t *table, size_t cell)
{
    size_t at = table->first[cell];

    for (int i = 0; i < run->cell.count; ++i, ++at) {
        table->seconds[at] = run->cell.points[i].seconds;
        table->bytes[at] = run->cell.points[i].bytes;
        table->value[at] = run->cell.points[i].value;
        memcpy(&table->from[at * (size_t)table->parents], run->cell.points[i].from,
               (size_t)table->parents * sizeof(int));
    }
    table->first[cell + 1] = at;
}

/* Makes room for one more cell of up to run->limit points. */
static xm_status_t reserve(const run_t *run, table_t *table, size_t used, size_t *capacity)
{
    size_t wanted = used + (size_t)run->limit, room = wanted > *capacity ? 2 * wanted : *capacity;
    double *seconds, *bytes;
    int *value, *from;

    if (room == *capacity) {
        return XM_OK;
    }
    seconds = realloc(table->seconds, room * sizeof(*seconds));
    table->seconds = seconds != NULL ? seconds : table->seconds;
    bytes = realloc(table->bytes, room * sizeof(*bytes));
    table->bytes = bytes != NULL ? bytes : table->bytes;
    value = realloc(table->value, room * sizeof(*value));
    table->value = value != NULL ? value : table->value;
    from = realloc(table->from, (room * (size_t)table->parents + 1) * sizeof(*from));
    table->from = from != NULL ? from : table->from;
    if (seconds == NULL || bytes == NULL || value == NULL || from == NULL) {
        return no_memory();
    }
    *capacity = room;
    return XM_OK;
}

/* The next assignment of a scope in the order of cell_of(). */
static void count_up(const run_t *run, const table_t *table, int *assignment)
{
    for (int i = table->scope_count - 1; i >= 0; --i) {
        int v = table->scope[i];

        if (++assignment[v] < domain_of(run, v)) {
            return;
        }
        assignment[v] = 0;
    }
}

static xm_status_t make_table(run_t *run, int variable)
{
    table_t *table = &run->tables[run->table_count];
    double cells = plan_elimination(run, variable, table);
    int *assignment = calloc((size_t)run->network->variable_count + 1, sizeof(*assignment));
    size_t capacity = 0;
    xm_status_t status = XM_OK;

    if (!(cells <= MAX_CELLS)) {
        free(assignment);
        return xm_error_set(XM_ERR_UNSUPPORTED,
                            "the graph is too entangled for a frontier: a table of %g cells",
                            cells);
    }
    ++run->table_count;
    table->cells = (size_t)cells;
    table->first = calloc(table->cells + 1, sizeof(*table->first));
    if (assignment == NULL || table->first == NULL) {
        status = no_memory();
    }
    for (size_t c = 0; c < table->cells && status == XM_OK; ++c) {
        status = fill_cell(run, table, assignment);
        if (status == XM_OK) {
            status = reserve(run, table, table->first[c], &capacity);
        }
        if (status == XM_OK) {
            store_cell(run, table, c);
            count_up(run, table, assignment);
        }
    }
    for (int p = 0; p < table->parents; ++p) {
        run->tables[table->parent[p]].alive = false;
    }
    free(assignment);
    return status;
}

static void measure(run_t *run, int variable)
{
    table_t scratch;

    run->size[variable] = plan_elimination(run, variable, &scratch);
}

/* The variable whose table is smallest, or -1. Of equal ones the first. */
static int next_variable(const run_t *run)
{
    int best = -1;

    for (int v = 0; v < run->network->variable_count; ++v) {
        if (!run->gone[v] && (best < 0 || run->size[v] < run->size[best])) {
            best = v;
        }
    }
    return best;
}

/* Only variables in the scope of the new table have other tables than before, so only they are
 * measured again. */
static xm_status_t eliminate_all(run_t *run)
{
    xm_status_t status = XM_OK;
    int v;

    for (v = 0; v < run->network->variable_count; ++v) {
        measure(run, v);
    }
    while (status == XM_OK && (v = next_variable(run)) >= 0) {
        const table_t *made = &run->tables[run->table_count];

        run->gone[v] = true;
        status = make_table(run, v);
        for (int i = 0; status == XM_OK && i < made->scope_count; ++i) {
            measure(run, made->scope[i]);
        }
    }
    return status;
}

static xm_status_t run_open(run_t *run, const ap_choice_network_t *network, int limit)
{
    size_t variables = (size_t)network->variable_count, edges = (size_t)network->edge_count;
    xm_status_t status = XM_OK;

    *run = (run_t){.network = network, .limit = limit, .complete = true};
    run->tables = calloc(2 * variables + edges + 2, sizeof(*run->tables));
    run->size = calloc(variables + 1, sizeof(*run->size));
    run->gone = calloc(variables + 1, sizeof(*run->gone));
    if (run->tables == NULL || run->size == NULL || run->gone == NULL) {
        return no_memory();
    }
    for (int v = 0; v < network->variable_count && status == XM_OK; ++v) {
        status =
            add_original(run, 1, v, -1, network->variables[v].seconds, network->variables[v].bytes);
    }
    for (int e = 0; e < network->edge_count && status == XM_OK; ++e) {
        const ap_choice_edge_t *edge = &network->edges[e];

        status = add_original(run, 2, edge->a, edge->b, edge->seconds, NULL);
    }
    return status;
}

/* Goes back from a point of the last table to the value of every variable. Tables refer to earlier
 * ones only, so one pass backwards is enough. */
static void trace(run_t *run, int last, int point, int *assignment)
{
    run->tables[last].pick = point;
    for (int t = last; t >= 0; --t) {
        const table_t *table = &run->tables[t];
        size_t at;

        if (table->parents == 0) {
            continue;
        }
        at = table->first[cell_of(run, table, assignment)] + (size_t)table->pick;
        if (table->variable >= 0) {
            assignment[table->variable] = table->value[at];
        }
        for (int p = 0; p < table->parents; ++p) {
            run->tables[table->parent[p]].pick =
                table->from[at * (size_t)table->parents + (size_t)p];
        }
    }
}

static xm_status_t read_points(run_t *run, ap_frontier_t *frontier)
{
    int last = run->table_count - 1;
    const table_t *table = &run->tables[last];

    frontier->points = calloc(table->first[1], sizeof(*frontier->points));
    if (frontier->points == NULL) {
        return no_memory();
    }
    frontier->complete = run->complete;
    for (int i = 0; i < (int)table->first[1]; ++i) {
        ap_frontier_point_t *point = &frontier->points[frontier->count];

        point->assignment = calloc((size_t)run->network->variable_count + 1, sizeof(int));
        if (point->assignment == NULL) {
            return no_memory();
        }
        ++frontier->count;
        trace(run, last, i, point->assignment);
        point->seconds = table->seconds[i];
        point->bytes = table->bytes[i];
    }
    return XM_OK;
}

xm_status_t ap_search_frontier(const ap_choice_network_t *network, int points,
                               ap_frontier_t *frontier)
{
    ap_frontier_t made = {0};
    run_t run;
    xm_status_t status;

    if (points < 2 || points > 256) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "%d points of a frontier: from 2 to 256 are possible", points);
    }
    status = run_open(&run, network, points);
    if (status == XM_OK) {
        status = eliminate_all(&run);
    }
    if (status == XM_OK) {
        status = make_table(&run, -1);
    }
    if (status == XM_OK) {
        status = read_points(&run, &made);
    }
    run_close(&run);
    if (status != XM_OK) {
        ap_frontier_clear(&made);
        return status;
    }
    *frontier = made;
    return XM_OK;
}

void ap_frontier_clear(ap_frontier_t *frontier)
{
    if (frontier != NULL) {
        for (int i = 0; i < frontier->count; ++i) {
            free(frontier->points[i].assignment);
        }
        free(frontier->points);
        *frontier = (ap_frontier_t){0};
    }
}
