/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The curve of time over memory (TensorOpt, Cai, TPDS'21): variable elimination over pairs of
 * seconds and bytes, of which each cell keeps those that no other pair of the cell beats. Sums of
 * such sets grow as products, so a cell is thinned to a fixed number of points, spread over its
 * seconds; `complete` says whether that ever happened.
 *
 * Order and tables are those of planner/solver/elimination/elimination.h; only what a cell holds is
 * different. Points remember which points they are sums of, so every assignment can be traced back.
 */

#include "planner/published/choice/frontier.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/elimination.h"

enum { PARENTS = 16, MAX_CELLS = 1 << 20 };

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
    int count;
    size_t capacity;
} list_t;

/* A point as it is kept. */
typedef struct kept {
    double seconds, bytes;
    int value;
} kept_t;

/* The points of a step's cells, one cell after the other. */
typedef struct table {
    size_t *first; /* [rows + 1]: range of a cell's points */
    kept_t *kept;
    int *from; /* [points][parents] */
    size_t capacity, from_capacity;
    int parents;
    int parent[PARENTS]; /* steps */
} table_t;

typedef struct frontier_run {
    const ap_cfn_core_t *network;
    ap_elimination_t *elimination;
    xm_arena_t *pool;       /* of the elimination */
    int limit;              /* points of a cell */
    table_t *tables;        /* per step, then the one that joins all components */
    int *pick;              /* per step: scratch of a trace */
    list_t now, next, cell; /* scratch */
    bool complete;
} run_t;

static xm_status_t no_memory(void)
{
    return XM_NO_MEMORY("a frontier");
}

static void run_close(run_t *run)
{
    for (int t = 0; run->tables != NULL && t <= run->elimination->steps; ++t) {
        free(run->tables[t].kept);
        free(run->tables[t].from);
    }
    free(run->now.points);
    free(run->next.points);
    free(run->cell.points);
    ap_elimination_destroy(run->elimination);
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
    if (!XM_ARRAY_ROOM(list->points, list->capacity, list->count)) {
        *failed = true;
        return NULL;
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

/* Adds every point of a cell of an earlier table to every point of run->now. The two lists are
 * exchanged, so neither is allocated anew. */
static bool combine(run_t *run, const table_t *with, size_t cell, int parent)
{
    size_t first = with->first[cell], end = with->first[cell + 1];
    list_t swap = run->now;
    bool failed = false;

    if (end == first + 1) { /* all are shifted alike */
        for (int i = 0; i < run->now.count; ++i) {
            run->now.points[i].seconds += with->kept[first].seconds;
            run->now.points[i].bytes += with->kept[first].bytes;
        }
        return true;
    }
    run->next.count = 0;
    for (int i = 0; i < run->now.count; ++i) {
        int place = 0;

        for (size_t q = first; q < end && !failed; ++q) {
            const point_t *one = &run->now.points[i];
            point_t *sum = insert(&run->next, one->seconds + with->kept[q].seconds,
                                  one->bytes + with->kept[q].bytes, &place, &failed);

            if (sum != NULL) {
                sum->value = one->value;
                memcpy(sum->from, one->from, sizeof(sum->from));
                sum->from[parent] = (int)(q - first);
            }
        }
    }
    thin_out(run, &run->next);
    run->now = run->next;
    run->next = swap;
    return !failed;
}

/* Begins run->now with one point. */
static bool begin(run_t *run, double seconds, double bytes, int value)
{
    bool failed = false;
    int place = 0;
    point_t *start;

    run->now.count = 0;
    start = insert(&run->now, seconds, bytes, &place, &failed);
    if (failed) {
        return false;
    }
    start->value = value;
    memset(start->from, 0, sizeof(start->from));
    return true;
}

/* Makes room for one more cell of up to run->limit points. */
static xm_status_t reserve(const run_t *run, table_t *table, size_t used)
{
    size_t wanted = used + (size_t)run->limit;

    return xm_array_reserve(&table->kept, &table->capacity, wanted, sizeof(*table->kept)) &&
                   xm_array_reserve(&table->from, &table->from_capacity,
                                    wanted * (size_t)table->parents + 1, sizeof(*table->from))
               ? XM_OK
               : no_memory();
}

/* Stores a list as the next cell of a table. */
static xm_status_t store_cell(run_t *run, table_t *table, size_t cell, list_t *list)
{
    size_t at = table->first[cell];
    xm_status_t status;

    thin_out(run, list);
    status = reserve(run, table, at);
    for (int i = 0; i < list->count && status == XM_OK; ++i, ++at) {
        const point_t *point = &list->points[i];

        table->kept[at] = (kept_t){point->seconds, point->bytes, point->value};
        memcpy(&table->from[at * (size_t)table->parents], point->from,
               (size_t)table->parents * sizeof(int));
    }
    table->first[cell + 1] = at;
    return status;
}

/* The sums for one value of the step's variable, in run->now. */
static bool add_up(run_t *run, const ap_elimination_step_t *step, const double *const *rows, int x)
{
    double seconds = run->network->variable[step->variable].cost[x];
    bool filled;

    for (int j = 0; j < step->terms; ++j) {
        seconds += step->term[j].child < 0 ? rows[j][x] : 0.0;
    }
    filled = begin(run, seconds, ap_choice_bytes(run->network, step->variable, x), x);
    for (int j = 0, parent = 0; j < step->terms && filled; ++j) {
        if (step->term[j].child >= 0) {
            size_t cell = (size_t)(rows[j] + x - step->term[j].table);

            filled = combine(run, &run->tables[step->term[j].child], cell, parent++);
        }
    }
    return filled;
}

/* The points of one cell, over all values of the variable that goes. */
static xm_status_t fill_cell(void *context, const ap_elimination_step_t *step, size_t row,
                             const double *const *rows)
{
    run_t *run = context;
    bool failed = false;

    run->cell.count = 0;
    for (int x = 0; x < run->network->variable[step->variable].size; ++x) {
        int place = 0;

        failed = failed || !add_up(run, step, rows, x);
        for (int i = 0; i < run->now.count && !failed; ++i) {
            const point_t *from = &run->now.points[i];
            point_t *point = insert(&run->cell, from->seconds, from->bytes, &place, &failed);

            if (point != NULL) {
                *point = *from;
            }
        }
    }
    return failed ? no_memory()
                  : store_cell(run, &run->tables[step - run->elimination->step], row, &run->cell);
}

static xm_status_t add_parent(table_t *table, int step)
{
    if (table->parents == PARENTS) {
        return XM_UNSUPPORTED("the graph is too entangled for a frontier: more than %d tables meet",
                              PARENTS);
    }
    table->parent[table->parents++] = step;
    return XM_OK;
}

static xm_status_t make_table(run_t *run, int k)
{
    const ap_elimination_step_t *step = &run->elimination->step[k];
    table_t *table = &run->tables[k];
    xm_status_t status = XM_OK;

    for (int j = 0; j < step->terms && status == XM_OK; ++j) {
        if (step->term[j].child >= 0) {
            status = add_parent(table, step->term[j].child);
        }
    }
    table->first = xm_arena_get(run->pool, step->rows + 1, sizeof(*table->first));
    if (status == XM_OK && table->first == NULL) {
        status = no_memory();
    }
    return status == XM_OK ? ap_elimination_walk(run->elimination, step, fill_cell, run) : status;
}

/* Joins the components, of each of which one cell is left. */
static xm_status_t join(run_t *run)
{
    table_t *last = &run->tables[run->elimination->steps];
    xm_status_t status = XM_OK;

    last->first = xm_arena_get(run->pool, 2, sizeof(*last->first));
    if (last->first == NULL || !begin(run, 0.0, 0.0, 0)) {
        return no_memory();
    }
    for (int k = 0; k < run->elimination->steps && status == XM_OK; ++k) {
        if (run->elimination->step[k].count == 0) {
            status = add_parent(last, k);
            if (status == XM_OK && !combine(run, &run->tables[k], 0, last->parents - 1)) {
                status = no_memory();
            }
        }
    }
    return status == XM_OK ? store_cell(run, last, 0, &run->now) : status;
}

static xm_status_t run_open(run_t *run, const ap_cfn_core_t *network, int limit)
{
    const ap_elimination_params_t params = {.cells = MAX_CELLS};
    size_t count;
    xm_status_t status;

    *run = (run_t){.network = network, .limit = limit, .complete = true};
    status = ap_elimination_create(network, &run->elimination);
    XM_THEN(status, ap_elimination_plan(run->elimination, &params));
    if (status == XM_ERR_UNSUPPORTED) {
        status = xm_error_prefix(status, "the graph is too entangled for a frontier");
    }
    if (status == XM_OK) {
        count = (size_t)network->variables + 1;
        run->pool = &run->elimination->pool;
        run->tables = xm_arena_get(run->pool, count, sizeof(*run->tables));
        run->pick = xm_arena_take(run->pool, count * sizeof(*run->pick));
        status = run->pool->failed ? no_memory() : XM_OK;
    }
    return status;
}

/* Hands the parts of a point on to the tables that they are of. */
static void pick_parents(run_t *run, const table_t *table, size_t at)
{
    for (int p = 0; p < table->parents; ++p) {
        run->pick[table->parent[p]] = table->from[at * (size_t)table->parents + (size_t)p];
    }
}

/* Goes back from a point of the last table to the value of every variable. Tables refer to earlier
 * ones only, so one pass backwards is enough. */
static void trace(run_t *run, size_t point, int *assignment)
{
    const ap_elimination_t *e = run->elimination;

    pick_parents(run, &run->tables[e->steps], point);
    for (int k = e->steps - 1; k >= 0; --k) {
        const ap_elimination_step_t *step = &e->step[k];
        const table_t *table = &run->tables[k];
        size_t at = table->first[ap_elimination_row(e, step, assignment)] + (size_t)run->pick[k];

        assignment[step->variable] = table->kept[at].value;
        pick_parents(run, table, at);
    }
}

static xm_status_t read_points(run_t *run, ap_frontier_t *frontier)
{
    const table_t *table = &run->tables[run->elimination->steps];

    frontier->points = calloc(table->first[1], sizeof(*frontier->points));
    if (frontier->points == NULL) {
        return no_memory();
    }
    frontier->complete = run->complete;
    for (size_t i = 0; i < table->first[1]; ++i) {
        ap_frontier_point_t *point = &frontier->points[frontier->count];

        point->assignment = calloc((size_t)run->network->variables + 1, sizeof(int));
        if (point->assignment == NULL) {
            return no_memory();
        }
        ++frontier->count;
        trace(run, i, point->assignment);
        point->seconds = table->kept[i].seconds;
        point->bytes = table->kept[i].bytes;
    }
    return XM_OK;
}

xm_status_t ap_search_frontier(const ap_cfn_core_t *network, int points, ap_frontier_t *frontier)
{
    ap_frontier_t made = {0};
    run_t run;
    xm_status_t status;

    if (points < 2 || points > 256) {
        return XM_INVALID("%d points of a frontier: from 2 to 256 are possible", points);
    }
    status = run_open(&run, network, points);
    for (int k = 0; status == XM_OK && k < run.elimination->steps; ++k) {
        status = make_table(&run, k);
    }
    XM_THEN(status, join(&run));
    XM_THEN(status, read_points(&run, &made));
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
