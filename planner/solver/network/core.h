/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The problem that is left after the presolve of a cost function network
 * (planner/solver/reduce.h): variables with costs, links between two of them, and usage over
 * a short list of times. Private to the solver.
 *
 * Costs are doubles that hold integers (exact below 2^53); HUGE_VAL forbids a cell. Every variable
 * has at least one value, all of finite cost. A variable's usage is given by segments: ranges of
 * times during which value x uses usage[x]; they do not overlap and ascend.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "comm/base.h"

typedef struct ap_cfn_segment {
    int from, to; /* times [from, to) */
    const double *usage;
} ap_cfn_segment_t;

typedef struct ap_cfn_variable {
    int size;
    int degree;
    int segments;
    const double *cost;
    const int *link; /* of its links */
    const ap_cfn_segment_t *segment;
} ap_cfn_variable_t;

typedef struct ap_cfn_link {
    int a, b;            /* a < b after the presolve */
    const double *table; /* [a][b] */
} ap_cfn_link_t;

typedef struct ap_cfn_core {
    int variables, links, times;
    double constant;        /* cost of every assignment */
    const double *capacity; /* per time: what the variables may use together; may be negative */
    const int64_t *when;    /* per time: the problem's */
    ap_cfn_variable_t *variable;
    ap_cfn_link_t *link;
    void *storage; /* what the pointers point into */
} ap_cfn_core_t;

/* Numbers of a core to be made; segments, values of usage and cells in all. */
typedef struct ap_cfn_core_size {
    int variables, links, times;
    size_t values, segments, usages, cells;
} ap_cfn_core_size_t;

/* Where a maker of a core writes; the tables are to be filled in order. */
typedef struct ap_cfn_core_maker {
    ap_cfn_core_t *core;
    double *capacity;
    int64_t *when;
    double *value, *usage, *cell; /* next free ones */
    ap_cfn_segment_t *segment;
} ap_cfn_core_maker_t;

/* The costs of all variables lie one after the other. */
static inline const double *ap_cfn_core_costs(const ap_cfn_core_t *core)
{
    return core->variable[0].cost;
}

/* Values of all variables. */
static inline size_t ap_cfn_core_values(const ap_cfn_core_t *core)
{
    const ap_cfn_variable_t *last = &core->variable[core->variables - 1];

    return core->variables > 0 ? (size_t)(last->cost - core->variable[0].cost + last->size) : 0;
}

/* The cell of a link's table for values of its ends. */
static inline double ap_cfn_cell(const ap_cfn_core_t *core, const ap_cfn_link_t *link, int a, int b)
{
    return link->table[(size_t)a * (size_t)core->variable[link->b].size + (size_t)b];
}

/* Allocates a core. The maker then calls add_variable() and add_segment() for each variable,
 * add_link() for each link, and finish(), which lists the links of every variable. */
xm_status_t ap_cfn_core_begin(const ap_cfn_core_size_t *size, ap_cfn_core_maker_t *maker);
double *ap_cfn_core_add_variable(ap_cfn_core_maker_t *maker, int size);
double *ap_cfn_core_add_segment(ap_cfn_core_maker_t *maker, int from, int to);
double *ap_cfn_core_add_link(ap_cfn_core_maker_t *maker, int a, int b);
/* A link whose table stays the caller's, for many that share one. */
void ap_cfn_core_borrow_link(ap_cfn_core_maker_t *maker, int a, int b, const double *table);
ap_cfn_core_t *ap_cfn_core_finish(ap_cfn_core_maker_t *maker);

/* The capacities of a core that nobody else looks at yet. */
double *ap_cfn_core_capacity(ap_cfn_core_t *core);

/* The other end of a link, and the cell of its table for values of that end and of `variable`. */
static inline int ap_cfn_other(const ap_cfn_link_t *link, int variable)
{
    return link->a == variable ? link->b : link->a;
}

/* Cost of an assignment without the constant; HUGE_VAL when it is forbidden. */
double ap_cfn_core_cost(const ap_cfn_core_t *core, const int *value);

/* What `variable` costs with `x`, with the links to the others as they are. */
double ap_cfn_core_cost_of(const ap_cfn_core_t *core, int variable, int x, const int *value);

/* Copies the kept entries of a vector by value; returns where the next ones go. */
static inline double *ap_cfn_copy_kept(const bool *keep, const double *from, int size, double *to)
{
    for (int x = 0; x < size; ++x) {
        if (keep[x]) {
            *to++ = from[x];
        }
    }
    return to;
}

/* Copies the kept cells of a link's table; for the values of its ends. */
void ap_cfn_copy_table(const ap_cfn_core_t *core, const ap_cfn_link_t *link, const bool *rows,
                       const bool *columns, double *to);

/* The load of every time; `load` has one entry more. */
void ap_cfn_core_loads(const ap_cfn_core_t *core, const int *value, double *load);

/* Adds what values use in a segment, times a price, to their costs. */
static inline void ap_cfn_charge(const ap_cfn_segment_t *segment, int size, double price,
                                 double *cost)
{
    if (price > 0.0) {
        for (int x = 0; x < size; ++x) {
            cost[x] += price * segment->usage[x];
        }
    }
}

/* Whether an assignment uses no more than the capacities; `load` (times + 1) is scratch. */
bool ap_cfn_core_fits(const ap_cfn_core_t *core, const int *value, double *load);

void ap_cfn_core_destroy(ap_cfn_core_t *core);
