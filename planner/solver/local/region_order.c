/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elimination on a region's variables: the order, the tables, the minimum. The method is that of
 * planner/solver/bound/exact.c, but the constraints differ: thousands of regions are solved each
 * second, each only a few times, so laying out must be as cheap as solving, tables come from the
 * region's pool, and sets of neighbours are two words of bits.
 *
 * A region need not have small tables at all. Variables that would make a table too large are fixed
 * at their present values (cutset conditioning) until the rest can be eliminated, so every region
 * has an answer; it is the optimum for the variables that are left.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver/local/local_private.h"

static void put(uint64_t *set, int k)
{
    set[k / 64] |= UINT64_C(1) << (k % 64);
}

static void take_out(uint64_t *set, int k)
{
    set[k / 64] &= ~(UINT64_C(1) << (k % 64));
}

/* Lists a set's members in ascending order, by counting trailing zeros. */
static int members(const uint64_t *set, int *list)
{
    int count = 0;

    for (int word = 0; word < REGION_WORDS; ++word) {
        for (uint64_t bits = set[word]; bits != 0; bits &= bits - 1) {
            list[count++] = 64 * word + __builtin_ctzll(bits);
        }
    }
    return count;
}

/* Cells of the table that eliminating a variable makes; HUGE_VAL when it has more neighbours than a
 * table may have variables. */
static double price_of(const ap_cfn_region_t *self, int v, int *degree)
{
    int list[AP_CFN_REGION_MAX];
    double cells = 1.0;

    *degree = members(self->variable[v].neighbour, list);
    for (int k = 0; k < *degree; ++k) {
        cells *= self->variable[list[k]].size;
    }
    return *degree <= REGION_SCOPE ? cells : HUGE_VAL;
}

/* Takes a variable out of the graph. When it is eliminated, its neighbours become neighbours of
 * each other, as they share the new table; when it is fixed, it just goes. */
static void leave(ap_cfn_region_t *self, int v, bool fill)
{
    int list[AP_CFN_REGION_MAX], degree = members(self->variable[v].neighbour, list);

    for (int k = 0; k < degree; ++k) {
        uint64_t *set = self->variable[list[k]].neighbour;

        take_out(set, v);
        for (int j = 0; fill && j < degree; ++j) {
            if (j != k) {
                put(set, list[j]);
            }
        }
    }
}

/* Adds what a link costs with the value of its fixed end to the other end's costs. A forbidden cell
 * costs a large but finite number: regions may start from a state that breaks something, and must
 * be able to compare how much. */
static void condition(ap_cfn_region_t *self, const ap_cfn_state_t *state, int link, int v)
{
    const ap_cfn_link_t *l = &self->core->link[link];
    ap_region_variable_t *variable = &self->variable[v];
    int width = self->core->variable[l->b].size, other = ap_cfn_other(l, variable->id);
    const double *table = l->table;

    for (int x = 0; x < variable->size; ++x) {
        double cost = l->a == variable->id
                          ? table[(size_t)x * (size_t)width + (size_t)state->value[other]]
                          : table[(size_t)state->value[other] * (size_t)width + (size_t)x];

        variable->unary[x] += cost < HUGE_VAL ? cost : state->forbidden;
    }
}

/* Chooses the order by the smallest table. Where not even the smallest is allowed, the variable
 * with the most neighbours is fixed, since that removes most edges; so the loop takes one variable
 * away in every round. Of equal ones the lowest number wins. */
static void choose_order(ap_cfn_region_t *self, size_t cells)
{
    bool done[AP_CFN_REGION_MAX] = {false};

    self->steps = 0;
    /* Prices are computed anew in each round. With at most 128 variables that costs less than
     * keeping them up to date would. */
    for (int left = self->count; left > 0; --left) {
        double cheapest = HUGE_VAL;
        int next = -1, widest = -1, width = -1, degree;

        for (int v = 0; v < self->count; ++v) {
            if (!done[v]) {
                double price = price_of(self, v, &degree);

                if (price < cheapest) {
                    cheapest = price;
                    next = v;
                }
                if (degree > width) {
                    width = degree;
                    widest = v;
                }
            }
        }
        if (next >= 0 && cheapest <= (double)cells) {
            ap_region_step_t *step = &self->step[self->steps];

            done[next] = true;
            step->variable = next;
            step->count = members(self->variable[next].neighbour, step->scope);
            step->cells = (size_t)cheapest;
            self->variable[next].position = self->steps++;
            leave(self, next, true);
        } else {
            done[widest] = true;
            self->variable[widest].fixed = true;
            leave(self, widest, false);
        }
    }
}

/* Sorts a scope so that the variable that is eliminated first comes last. It belongs to the step
 * that reads the table, which then finds its own variable's values side by side. */
static void sort_scope(const ap_cfn_region_t *self, int *scope, int count)
{
    for (int k = 1; k < count; ++k) {
        int v = scope[k], j = k;

        for (; j > 0 && self->variable[scope[j - 1]].position < self->variable[v].position; --j) {
            scope[j] = scope[j - 1];
        }
        scope[j] = v;
    }
}

/* Terms are not in the pool, because their number is not known beforehand. The array keeps its
 * size from region to region. */
static ap_region_term_t *add_term(ap_cfn_region_t *self)
{
    if (self->terms == self->term_capacity) {
        int capacity = self->term_capacity > 0 ? 2 * self->term_capacity : 256;
        ap_region_term_t *grown = realloc(self->term, (size_t)capacity * sizeof(*grown));

        if (grown == NULL) {
            return NULL;
        }
        self->term = grown;
        self->term_capacity = capacity;
    }
    self->term[self->terms] = (ap_region_term_t){.count = 0};
    return &self->term[self->terms++];
}

static int slot_of(const ap_region_step_t *step, int variable)
{
    for (int k = 0; k < step->count; ++k) {
        if (step->scope[k] == variable) {
            return k;
        }
    }
    return -1;
}

/* Copies a link's table with the step's own variable last and large numbers where it forbids. A
 * copy is worth it: the table is read once per cell of the step and per step of the region's
 * prices. */
static bool add_link(ap_cfn_region_t *self, const ap_cfn_state_t *state, ap_region_step_t *step,
                     int link, int other)
{
    const ap_cfn_link_t *l = &self->core->link[link];
    int v = step->variable, rows = self->variable[other].size, columns = self->variable[v].size;
    double *table = ap_region_take(self, (size_t)rows * (size_t)columns * sizeof(double));
    ap_region_term_t *term = add_term(self);
    bool last = l->b == self->variable[v].id;

    if (table == NULL || term == NULL) {
        return false;
    }
    for (int y = 0; y < rows; ++y) {
        for (int x = 0; x < columns; ++x) {
            double cost = last ? l->table[(size_t)y * (size_t)columns + (size_t)x]
                               : l->table[(size_t)x * (size_t)rows + (size_t)y];

            table[(size_t)y * (size_t)columns + (size_t)x] =
                cost < HUGE_VAL ? cost : state->forbidden;
        }
    }
    term->table = table;
    term->count = 1;
    term->slot[0] = slot_of(step, other);
    term->stride[0] = (size_t)columns;
    return true;
}

/* The table that an earlier step left for this one is used in place; its last variable is the
 * step's own. */
static bool add_message(ap_cfn_region_t *self, ap_region_step_t *step, const ap_region_step_t *from)
{
    ap_region_term_t *term = add_term(self);
    size_t stride = (size_t)self->variable[step->variable].size;

    if (term == NULL) {
        return false;
    }
    term->table = from->least;
    /* The last variable of the table is this step's own and varies fastest, hence the first
     * stride. */
    term->count = from->count - 1;
    for (int k = from->count - 2; k >= 0; --k) {
        term->slot[k] = slot_of(step, from->scope[k]);
        term->stride[k] = stride;
        stride *= (size_t)self->variable[from->scope[k]].size;
    }
    return true;
}

/* Lays out one step. It adds up the links to variables that are eliminated later and the tables of
 * the earlier steps that end here; every link and every table is in exactly one step by that. */
static bool make_step(ap_cfn_region_t *self, const ap_cfn_state_t *state, int k)
{
    ap_region_step_t *step = &self->step[k];
    const ap_cfn_variable_t *variable = &self->core->variable[self->variable[step->variable].id];

    sort_scope(self, step->scope, step->count);
    step->least = ap_region_take(self, step->cells * sizeof(double));
    step->best = ap_region_take(self, step->cells * sizeof(uint16_t));
    step->first_term = self->terms;
    if (step->least == NULL || step->best == NULL) {
        return false;
    }
    for (int j = 0; j < variable->degree; ++j) {
        int other = self->local[ap_cfn_other(&self->core->link[variable->link[j]],
                                             self->variable[step->variable].id)];

        /* Links to fixed variables and to those outside are among the unary costs already. */
        if (other >= 0 && !self->variable[other].fixed && self->variable[other].position > k &&
            !add_link(self, state, step, variable->link[j], other)) {
            return false;
        }
    }
    /* An earlier step leaves its table to the variable of its scope that goes next, the last
     * one. */
    for (int j = 0; j < k; ++j) {
        const ap_region_step_t *from = &self->step[j];

        if (from->count > 0 && from->scope[from->count - 1] == step->variable &&
            !add_message(self, step, from)) {
            return false;
        }
    }
    step->terms = self->terms - step->first_term;
    return true;
}

/* Makes the graph of the region, the order, the unary costs and the steps. The order must come
 * first, since only it says which variables are fixed, and links to those are costs of their other
 * ends. */
bool ap_region_plan(ap_cfn_region_t *self, const ap_cfn_state_t *state, size_t cells)
{
    /* The array of terms is used again from its start. */
    self->terms = 0;
    for (int v = 0; v < self->count; ++v) {
        const ap_cfn_variable_t *variable = &self->core->variable[self->variable[v].id];

        memset(self->variable[v].neighbour, 0, sizeof(self->variable[v].neighbour));
        self->variable[v].fixed = false;
        for (int k = 0; k < variable->degree; ++k) {
            int other = self->local[ap_cfn_other(&self->core->link[variable->link[k]],
                                                 self->variable[v].id)];

            /* Only links inside the region make neighbours. */
            if (other >= 0) {
                /* Several links between two variables make one neighbour. */
                put(self->variable[v].neighbour, other);
            }
        }
    }
    choose_order(self, cells);
    for (int v = 0; v < self->count; ++v) {
        const ap_cfn_variable_t *variable = &self->core->variable[self->variable[v].id];

        memcpy(self->variable[v].unary, variable->cost, (size_t)variable->size * sizeof(double));
        for (int k = 0; k < variable->degree; ++k) {
            int other = self->local[ap_cfn_other(&self->core->link[variable->link[k]],
                                                 self->variable[v].id)];

            if (other < 0 || self->variable[other].fixed) {
                condition(self, state, variable->link[k], v);
            }
        }
    }
    for (int k = 0; k < self->steps; ++k) {
        if (!make_step(self, state, k)) {
            return false;
        }
    }
    return true;
}

/* Fills a step's table: for every combination of its scope, the minimum over its own variable. The
 * first of equal values wins. This is the innermost loop of the whole search. */
static void run_step(ap_cfn_region_t *self, ap_region_step_t *step)
{
    const ap_region_variable_t *variable = &self->variable[step->variable];
    const double *rows[AP_CFN_REGION_MAX + REGION_SCOPE];
    int index[REGION_SCOPE] = {0};
    int size = variable->size;

    for (int k = 0; k < step->terms; ++k) {
        rows[k] = self->term[step->first_term + k].table;
    }
    for (size_t cell = 0; cell < step->cells; ++cell) {
        double *sum = self->sum, least = HUGE_VAL;
        int best = 0;

        /* A row begins with the variable's own costs at the prices; each term adds its row. */
        memcpy(sum, variable->priced, (size_t)size * sizeof(double));
        for (int k = 0; k < step->terms; ++k) {
            const double *row = rows[k];

#pragma omp simd
            for (int x = 0; x < size; ++x) {
                sum[x] += row[x];
            }
        }
        for (int x = 0; x < size; ++x) {
            if (sum[x] < least) {
                least = sum[x];
                best = x;
            }
        }
        step->least[cell] = least;
        step->best[cell] = (uint16_t)best;
        for (int k = step->count - 1; k >= 0; --k) { /* the next cell */
            int moved = ++index[k] < self->variable[step->scope[k]].size ? 1 : 1 - index[k];

            for (int j = 0; j < step->terms; ++j) {
                const ap_region_term_t *term = &self->term[step->first_term + j];

                for (int i = 0; i < term->count; ++i) {
                    if (term->slot[i] == k) {
                        rows[j] += (ptrdiff_t)moved * (ptrdiff_t)term->stride[i];
                    }
                }
            }
            if (moved == 1) {
                break;
            }
            index[k] = 0;
        }
    }
}

/* Runs all steps and traces the values back. A step without a scope ends a connected part, so its
 * one number belongs to the sum. Fixed variables are not in the sum. */
double ap_region_solve(ap_cfn_region_t *self)
{
    double sum = 0.0;

    for (int v = 0; v < self->count; ++v) {
        /* Fixed variables keep their values; all others are overwritten. */
        self->value[v] = self->current[v];
    }
    for (int k = 0; k < self->steps; ++k) {
        run_step(self, &self->step[k]);
        if (self->step[k].count == 0) {
            sum += self->step[k].least[0];
        }
    }
    /* In reverse order, the variables of a scope have their values before the step's own variable
     * is looked up. */
    for (int k = self->steps - 1; k >= 0; --k) {
        const ap_region_step_t *step = &self->step[k];
        size_t cell = 0;

        for (int j = 0; j < step->count; ++j) {
            cell = cell * (size_t)self->variable[step->scope[j]].size +
                   (size_t)self->value[step->scope[j]];
        }
        self->value[step->variable] = step->best[cell];
    }
    return sum;
}
