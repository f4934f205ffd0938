/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exact minimisation of a sum of tables by bucket elimination; elimination.h names the sources.
 * This is the general form: tables of up to twelve variables, variables that are kept, and a trace
 * back. It builds its tables as it goes, because each problem is solved once;
 * planner/solver/bound/exact.c lays them out beforehand for hundreds of solves.
 *
 * The cost is the number of cells of all messages times the values of the variables that go.
 * planner/solver/elimination/row.c has the inner loop, which leaves out values that cannot win.
 */

#include "planner/solver/elimination/elimination.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/elimination/row.h"

/* A cost table. Scopes are ascending and the last variable varies fastest, so that two tables with
 * the same variables have the same layout. */
typedef struct table {
    int count;
    int scope[AP_ELIMINATION_SCOPE];
    double *values;
    bool used_up; /* went into an elimination */
} table_t;

/* What an eliminated variable does, given the variables of its message: its best value for each
 * cell. */
typedef struct decision {
    int variable;
    int message; /* table */
    uint16_t *best;
} decision_t;

typedef struct list {
    int *items;
    int count, capacity;
} list_t;

/* Tables are never removed, only marked as used up: their numbers stay valid, and the trace back
 * needs the messages' scopes. */
struct ap_elimination {
    int variables;
    int *domain;
    list_t *of;    /* per variable: tables that mention it */
    double *price; /* per variable: cells of the message if it went next; < 0 = stale */
    table_t *tables;
    int table_count, table_capacity;
    decision_t *decisions;
    int decision_count;
};

/* Every price begins as stale; ap_elimination_run() computes it when it first compares. */
xm_status_t ap_elimination_create(int variables, const int *domain, ap_elimination_t **elimination)
{
    ap_elimination_t *made = calloc(1, sizeof(*made));
    size_t count = variables > 0 ? (size_t)variables : 1;

    if (made == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for an elimination");
    }
    made->variables = variables;
    made->domain = calloc(count, sizeof(int));
    made->of = calloc(count, sizeof(list_t));
    made->price = calloc(count, sizeof(double));
    made->decisions = calloc(count, sizeof(decision_t));
    if (made->domain == NULL || made->of == NULL || made->price == NULL ||
        made->decisions == NULL) {
        ap_elimination_destroy(made);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d variables", variables);
    }
    for (int v = 0; v < variables; ++v) {
        /* Winners are stored in 16 bits. */
        if (domain[v] < 1 || domain[v] > UINT16_MAX) {
            ap_elimination_destroy(made);
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "variable %d has %d values (1 … 65535)", v,
                                domain[v]);
        }
        made->domain[v] = domain[v];
        made->price[v] = -1;
    }
    *elimination = made;
    return XM_OK;
}

/* Accepts an object that is only partly made, and NULL. */
void ap_elimination_destroy(ap_elimination_t *elimination)
{
    if (elimination == NULL) {
        return;
    }
    for (int t = 0; t < elimination->table_count; ++t) {
        free(elimination->tables[t].values);
    }
    for (int d = 0; d < elimination->decision_count; ++d) {
        free(elimination->decisions[d].best);
    }
    for (int v = 0; v < elimination->variables && elimination->of != NULL; ++v) {
        free(elimination->of[v].items);
    }
    free(elimination->tables);
    free(elimination->decisions);
    free(elimination->of);
    free(elimination->price);
    free(elimination->domain);
    free(elimination);
}

/* Lists of tables only grow: tables that are used up stay in them and are passed over. */
static xm_status_t list_add(list_t *list, int item)
{
    if (list->count == list->capacity) {
        int wanted = list->capacity == 0 ? 8 : 2 * list->capacity;
        int *grown = realloc(list->items, (size_t)wanted * sizeof(int));

        if (grown == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d tables", wanted);
        }
        list->items = grown;
        list->capacity = wanted;
    }
    list->items[list->count++] = item;
    return XM_OK;
}

/* Takes over `values` even on failure. The prices of all variables of the new table become stale,
 * because the messages that they would send have changed. */
static xm_status_t append_table(ap_elimination_t *e, const int *scope, int count, double *values)
{
    table_t *table;

    if (e->table_count == e->table_capacity) {
        int wanted = e->table_capacity == 0 ? 64 : 2 * e->table_capacity;
        table_t *grown = realloc(e->tables, (size_t)wanted * sizeof(*grown));

        if (grown == NULL) {
            free(values);
            return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d tables", wanted);
        }
        e->tables = grown;
        e->table_capacity = wanted;
    }
    /* The table counts as soon as it holds its values, so that destroy() frees them whatever
     * fails next. */
    table = &e->tables[e->table_count++];
    memset(table, 0, sizeof(*table));
    table->count = count;
    table->values = values;
    for (int i = 0; i < count; ++i) {
        xm_status_t status = list_add(&e->of[scope[i]], e->table_count - 1);

        if (status != XM_OK) {
            return status;
        }
        table->scope[i] = scope[i];
        e->price[scope[i]] = -1;
    }
    return XM_OK;
}

static size_t cells_of(const ap_elimination_t *e, const int *scope, int count)
{
    size_t cells = 1;

    for (int i = 0; i < count; ++i) {
        cells *= (size_t)e->domain[scope[i]];
    }
    return cells;
}

/* The step in a table's values when `variable` goes up by one; 0 when it is not in the scope, so
 * that such a table stays where it is. */
static size_t stride_of(const ap_elimination_t *e, const int *scope, int count, int variable)
{
    size_t stride = 1;

    for (int i = count - 1; i >= 0; --i) {
        if (scope[i] == variable) {
            return stride;
        }
        stride *= (size_t)e->domain[scope[i]];
    }
    return 0;
}

/* Moves an odometer over `scope` on by one and keeps an offset in step with it: additions only, in
 * place of one product per variable and cell. */
static void advance(const ap_elimination_t *e, const int *scope, int count, int *value,
                    const size_t *strides, size_t *offset)
{
    for (int i = count - 1; i >= 0; --i) {
        *offset += strides[i];
        if (++value[i] < e->domain[scope[i]]) {
            return;
        }
        *offset -= strides[i] * (size_t)value[i];
        value[i] = 0;
    }
}

/* An insertion sort: scopes have at most twelve variables and mostly come sorted. */
static void sort_scope(int *scope, int count)
{
    for (int i = 1; i < count; ++i) {
        int variable = scope[i], j = i;

        for (; j > 0 && scope[j - 1] > variable; --j) {
            scope[j] = scope[j - 1];
        }
        scope[j] = variable;
    }
}

/* Copies a table into the ascending order of its variables. The caller may name them in any order;
 * the strides are those of the caller's layout, and the copy is written from front to back. */
xm_status_t ap_elimination_add(ap_elimination_t *elimination, const int *variables, int count,
                               const double *values)
{
    int scope[AP_ELIMINATION_SCOPE], value[AP_ELIMINATION_SCOPE] = {0};
    size_t strides[AP_ELIMINATION_SCOPE], cells, offset = 0;
    double *copy;

    if (count < 0 || count > AP_ELIMINATION_SCOPE) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "a table over %d variables (0 … %d)", count,
                            AP_ELIMINATION_SCOPE);
    }
    for (int i = 0; i < count; ++i) {
        if (variables[i] < 0 || variables[i] >= elimination->variables) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "a table over variable %d of %d",
                                variables[i], elimination->variables);
        }
        scope[i] = variables[i];
    }
    sort_scope(scope, count);
    for (int i = 0; i < count; ++i) {
        if (i > 0 && scope[i] == scope[i - 1]) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "a table names variable %d twice",
                                scope[i]);
        }
        strides[i] = stride_of(elimination, variables, count, scope[i]);
    }
    cells = cells_of(elimination, scope, count);
    copy = malloc(cells * sizeof(*copy));
    if (copy == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a table of %zu cells", cells);
    }
    if (memcmp(scope, variables, (size_t)count * sizeof(*scope)) == 0) { /* laid out so already */
        memcpy(copy, values, cells * sizeof(*copy));
        return append_table(elimination, scope, count, copy);
    }
    for (size_t c = 0; c < cells; ++c) {
        copy[c] = values[offset];
        advance(elimination, scope, count, value, strides, &offset);
    }
    return append_table(elimination, scope, count, copy);
}

/* The union of the scopes of the live tables that mention `variable`, without it; -1 when it has
 * too many variables for a table. */
static int message_scope(const ap_elimination_t *e, int variable, int *scope)
{
    int count = 0;

    for (int k = 0; k < e->of[variable].count; ++k) {
        const table_t *table = &e->tables[e->of[variable].items[k]];

        for (int i = 0; i < table->count && !table->used_up; ++i) {
            bool known = table->scope[i] == variable;

            for (int j = 0; j < count && !known; ++j) {
                known = scope[j] == table->scope[i];
            }
            if (!known && count == AP_ELIMINATION_SCOPE) {
                return -1;
            }
            if (!known) {
                scope[count++] = table->scope[i];
            }
        }
    }
    sort_scope(scope, count);
    return count;
}

/* The price of a variable is the size of the message that it would leave. One that has too many
 * variables costs more than any limit, so it is chosen only when nothing else is left, and then
 * refused. */
static void update_price(ap_elimination_t *e, int variable)
{
    int scope[AP_ELIMINATION_SCOPE];
    int count = message_scope(e, variable, scope);

    e->price[variable] = 1;
    for (int i = 0; i < count; ++i) {
        e->price[variable] *= e->domain[scope[i]];
    }
    if (count < 0) {
        e->price[variable] = 1e300;
    }
}

/* Finds the least of every row of a source, whose values stand row by row: what no value can
 * undercut in a row. planner/solver/elimination/row.c leaves values out by these. */
static bool find_low(size_t cells, size_t width, ap_elimination_source_t *source)
{
    source->low = malloc(cells / width * sizeof(*source->low));
    for (size_t first = 0; source->low != NULL && first < cells; first += width) {
        double low = source->values[first];

        for (size_t i = 1; i < width; ++i) {
            low = source->values[first + i] < low ? source->values[first + i] : low;
        }
        source->low[first / width] = low;
    }
    return source->low != NULL;
}

/* Copies a table so that the values of one variable stand side by side. The copy costs one pass
 * over the table; the rows of the message are read as vectors by that, once for each value of the
 * variable that goes. */
static bool turn(const ap_elimination_t *e, const table_t *table, int variable,
                 ap_elimination_source_t *source)
{
    size_t cells = cells_of(e, table->scope, table->count);
    size_t size = (size_t)e->domain[variable];
    size_t step = stride_of(e, table->scope, table->count, variable), block = step * size;
    double *to = malloc(cells * sizeof(*to));

    if (to == NULL) {
        return false;
    }
    source->values = source->turned = to;
    /* A block has all values of the variable for one combination of the slower ones. */
    for (size_t first = 0; first < cells; first += block) {
        for (size_t rest = 0; rest < step; ++rest) {
            for (size_t i = 0; i < size; ++i) {
                *to++ = table->values[first + rest + i * step];
            }
        }
    }
    return true;
}

/* Opens a table as a source for a message over a scope. False: no memory. */
static bool open_source(const ap_elimination_t *e, const table_t *table, int variable,
                        const int *scope, int count, ap_elimination_source_t *source)
{
    size_t step = count > 0 ? stride_of(e, table->scope, table->count, scope[count - 1]) : 0;
    size_t width;

    source->values = table->values;
    /* A table that lacks a variable has stride 0 for it and so repeats its row. */
    source->stride = stride_of(e, table->scope, table->count, variable);
    for (int i = 0; i < count; ++i) {
        source->strides[i] = stride_of(e, table->scope, table->count, scope[i]);
    }
    /* A table without the last variable is the same all along a row. */
    if (step == 0) {
        return true;
    }
    /* The turned table has the last variable innermost; what varied faster before now goes on by
     * its whole size. Where it already varies fastest, nothing changes. */
    width = (size_t)e->domain[scope[count - 1]];
    source->stride *= source->stride < step ? width : 1;
    for (int i = 0; i < count - 1; ++i) {
        source->strides[i] *= source->strides[i] < step ? width : 1;
    }
    source->strides[count - 1] = 1;
    return (step == 1 || turn(e, table, scope[count - 1], source)) &&
           find_low(cells_of(e, table->scope, table->count), width, source);
}

/* Fills the message row by row: a row holds the cells that differ only in the last variable of the
 * scope. The winners of the row before are handed on, because neighbouring rows usually have the
 * same ones, and with good values first the bounds rule out most others. */
static void fill_message(ap_elimination_t *e, int variable, const int *scope, int count,
                         ap_elimination_source_t *sources, int source_count,
                         const ap_elimination_row_t *row, double *values, uint16_t *best)
{
    size_t cells = cells_of(e, scope, count), width = (size_t)row->width;
    int value[AP_ELIMINATION_SCOPE] = {0};

    for (size_t c = 0; c < cells; c += width) {
        ap_elimination_minimise(sources, source_count, e->domain[variable],
                                c > 0 ? &best[c - width] : NULL, row);
        for (size_t i = 0; i < width; ++i) {
            /* Winners are kept as doubles in the row and as numbers in the table. */
            values[c + i] = row->least[i];
            best[c + i] = (uint16_t)row->winner[i];
        }
        /* The odometer goes on with the last but one variable; each source's offset goes with
         * it. */
        for (int i = count - 2; i >= 0; --i) {
            bool carry = ++value[i] == e->domain[scope[i]];

            for (int s = 0; s < source_count; ++s) {
                sources[s].offset += sources[s].strides[i];
                sources[s].offset -= carry ? sources[s].strides[i] * (size_t)value[i] : 0;
            }
            if (!carry) {
                break;
            }
            value[i] = 0;
        }
    }
}

/* Eliminates one variable: all live tables that mention it become one message, over their other
 * variables. Its decisions are kept for the trace. When it fails, tables are used up already, so
 * the object is spent. */
static xm_status_t eliminate(ap_elimination_t *e, int variable, const int *scope, int count)
{
    size_t cells = cells_of(e, scope, count);
    int width = count > 0 ? e->domain[scope[count - 1]] : 1, source_count = 0;
    double *values = malloc(cells * sizeof(*values));
    double *rows = malloc(3 * (size_t)width * sizeof(*rows));
    uint16_t *best = malloc(cells * sizeof(*best));
    bool *taken = malloc((size_t)e->domain[variable] * sizeof(*taken));
    ap_elimination_source_t *sources = calloc((size_t)e->of[variable].count + 1, sizeof(*sources));
    bool opened = sources != NULL;
    ap_elimination_row_t row;
    xm_status_t status;

    for (int k = 0; opened && k < e->of[variable].count; ++k) {
        table_t *table = &e->tables[e->of[variable].items[k]];

        if (!table->used_up) {
            table->used_up = true;
            opened = open_source(e, table, variable, scope, count, &sources[source_count++]);
        }
    }
    if (values == NULL || rows == NULL || best == NULL || taken == NULL || !opened) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for a table of %zu cells", cells);
        free(values);
        free(best);
        goto release;
    }
    /* The message counts as a table from here on; a variable without neighbours leaves one with a
     * single cell. */
    row = (ap_elimination_row_t){width, count - 1, rows, rows + width, rows + 2 * width, taken};
    fill_message(e, variable, scope, count, sources, source_count, &row, values, best);
    /* The trace back looks a variable's best value up in its message. */
    e->decisions[e->decision_count++] =
        (decision_t){.variable = variable, .message = e->table_count, .best = best};
    status = append_table(e, scope, count, values);

release:
    for (int s = 0; s < source_count; ++s) {
        free(sources[s].turned);
        free(sources[s].low);
    }
    free(taken);
    free(rows);
    free(sources);
    return status;
}

/* Eliminates variables until only the kept ones are left. Always the cheapest goes next, of equal
 * ones the one with the lowest number, so the order depends on nothing but the tables. Only stale
 * prices are computed; a search through all variables per step is quadratic, which is little beside
 * the tables. */
xm_status_t ap_elimination_run(ap_elimination_t *elimination, const bool *keep, size_t max_cells)
{
    ap_elimination_t *e = elimination;
    bool *gone = calloc((size_t)e->variables + 1, sizeof(bool));
    xm_status_t status = XM_OK;

    if (gone == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d variables", e->variables);
    }
    for (;;) {
        int scope[AP_ELIMINATION_SCOPE], next = -1;

        for (int v = 0; v < e->variables; ++v) {
            if (gone[v] || (keep != NULL && keep[v])) {
                continue;
            }
            /* Few prices are stale: those of the neighbours of what went last. */
            if (e->price[v] < 0) {
                update_price(e, v);
            }
            if (next < 0 || e->price[v] < e->price[next]) {
                next = v;
            }
        }
        if (next < 0) {
            break;
        }
        /* The cheapest message is too large, so every order that goes on from here is. */
        if (e->price[next] > (double)max_cells) {
            status = xm_error_set(XM_ERR_UNSUPPORTED,
                                  "eliminating variable %d needs a table of %g cells, allowed are "
                                  "%zu",
                                  next, e->price[next], max_cells);
            break;
        }
        gone[next] = true;
        status = eliminate(e, next, scope, message_scope(e, next, scope));
        if (status != XM_OK) {
            break;
        }
    }
    free(gone);
    return status;
}

static size_t cell_of(const ap_elimination_t *e, const table_t *table, const int *assignment)
{
    size_t cell = 0;

    for (int i = 0; i < table->count; ++i) {
        cell = cell * (size_t)e->domain[table->scope[i]] + (size_t)assignment[table->scope[i]];
    }
    return cell;
}

/* The live tables mention kept variables only, so their sum is the minimum of everything given
 * those. */
double ap_elimination_minimum(const ap_elimination_t *elimination, const int *assignment)
{
    double sum = 0;

    for (int t = 0; t < elimination->table_count; ++t) {
        const table_t *table = &elimination->tables[t];

        if (!table->used_up) {
            sum += table->values[cell_of(elimination, table, assignment)];
        }
    }
    return sum;
}

/* Goes back through the decisions. A message's variables were eliminated later than its own
 * variable, or were kept, so they have their values when it is their turn. */
void ap_elimination_trace(const ap_elimination_t *elimination, int *assignment)
{
    for (int d = elimination->decision_count - 1; d >= 0; --d) {
        const decision_t *decision = &elimination->decisions[d];
        const table_t *message = &elimination->tables[decision->message];

        assignment[decision->variable] = decision->best[cell_of(elimination, message, assignment)];
    }
}
