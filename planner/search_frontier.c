#include "planner/search_frontier.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SCOPE = 12, PARENTS = 32, MAX_CELLS = 1 << 20 };

/* A pair of seconds and bytes, and where it comes from: the value of the variable that was
 * eliminated and a point of each table that was combined. */
typedef struct point {
    double seconds, bytes;
    int value;
    int from[PARENTS];
} point_t;

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
    point_t *now, *next, *cell; /* scratch lists */
    size_t cell_capacity;
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
    free(run->now);
    free(run->next);
    free(run->cell);
}

static int by_seconds(const void *a, const void *b)
{
    const point_t *x = a, *y = b;

    if (x->seconds != y->seconds) {
        return x->seconds < y->seconds ? -1 : 1;
    }
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Keeps what nothing beats, and of that at most the limit. Returns how many. */
static int prune(run_t *run, point_t *points, size_t count)
{
    int kept = 0;

    if (count > 1) {
        qsort(points, count, sizeof(*points), by_seconds);
    }
    for (size_t i = 0; i < count; ++i) {
        if (kept == 0 || points[i].bytes < points[kept - 1].bytes) {
            points[kept++] = points[i];
        }
    }
    if (kept > run->limit) {
        for (int i = 0; i < run->limit; ++i) {
            points[i] = points[(int64_t)i * (kept - 1) / (run->limit - 1)];
        }
        kept = run->limit;
        run->complete = false;
    }
    return kept;
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

/* The table that eliminating a variable (-1: joining what is left) would make: its parents and
 * scope. Returns its cells, INFINITY when it cannot be made. */
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

/* Sums of one point of each parent, for one assignment of all their variables. In run->now. */
static int combine(run_t *run, const table_t *table, const int *assignment)
{
    int count = 1;

    run->now[0] = (point_t){.value = table->variable >= 0 ? assignment[table->variable] : 0};
    for (int p = 0; p < table->parents; ++p) {
        const table_t *parent = &run->tables[table->parent[p]];
        size_t cell = cell_of(run, parent, assignment), sums = 0;
        point_t *swap = run->now;

        for (int i = 0; i < count; ++i) {
            for (size_t q = parent->first[cell]; q < parent->first[cell + 1]; ++q) {
                point_t *sum = &run->next[sums++];

                *sum = run->now[i];
                sum->seconds += parent->seconds[q];
                sum->bytes += parent->bytes[q];
                sum->from[p] = (int)(q - parent->first[cell]);
            }
        }
        count = prune(run, run->next, sums);
        run->now = run->next;
        run->next = swap;
    }
    return count;
}

/* The points of one cell, over all values of the eliminated variable. In run->cell. */
static xm_status_t fill_cell(run_t *run, const table_t *table, int *assignment, int *count)
{
    int values = table->variable >= 0 ? domain_of(run, table->variable) : 1;
    size_t found = 0;

    for (int x = 0; x < values; ++x) {
        int more;

        if (table->variable >= 0) {
            assignment[table->variable] = x;
        }
        more = combine(run, table, assignment);
        if (found + (size_t)more > run->cell_capacity) {
            size_t wanted = 2 * (found + (size_t)more);
            point_t *grown = realloc(run->cell, wanted * sizeof(*grown));

            if (grown == NULL) {
                return no_memory();
            }
            run->cell = grown;
            run->cell_capacity = wanted;
        }
        memcpy(&run->cell[found], run->now, (size_t)more * sizeof(point_t));
        found += (size_t)more;
    }
    *count = prune(run, run->cell, found);
    return XM_OK;
}

static void store_cell(const run_t *run, table_t *table, size_t cell, int count)
{
    size_t at = table->first[cell];

    for (int i = 0; i < count; ++i, ++at) {
        table->seconds[at] = run->cell[i].seconds;
        table->bytes[at] = run->cell[i].bytes;
        table->value[at] = run->cell[i].value;
        memcpy(&table->from[at * (size_t)table->parents], run->cell[i].from,
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

/* Next assignment of a scope in the order of cell_of(). */
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
        int count = 0;

        status = fill_cell(run, table, assignment, &count);
        if (status == XM_OK) {
            status = reserve(run, table, table->first[c], &capacity);
        }
        if (status == XM_OK) {
            store_cell(run, table, c, count);
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

/* The variable whose table is smallest, or -1. */
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
    size_t sums = (size_t)limit * (size_t)limit;
    xm_status_t status = XM_OK;

    *run = (run_t){.network = network, .limit = limit, .complete = true};
    run->tables = calloc(2 * variables + edges + 2, sizeof(*run->tables));
    run->size = calloc(variables + 1, sizeof(*run->size));
    run->gone = calloc(variables + 1, sizeof(*run->gone));
    run->now = malloc(sums * sizeof(*run->now));
    run->next = malloc(sums * sizeof(*run->next));
    if (run->tables == NULL || run->size == NULL || run->gone == NULL || run->now == NULL ||
        run->next == NULL) {
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

/* Goes back from a point of the last table to the value of every variable. */
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
