/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lower bound: the dual of the local linear relaxation, with Lagrangian prices on usage. The
 * sources are in planner/solver/bound.h. A simplex solver on the same relaxation would give a
 * bound at least as good, but these problems have millions of cells, and a sweep here is one pass
 * over them without any memory besides a message per value and link.
 *
 * Why every state is a valid bound: messages move cost between a link and its ends, so every
 * assignment costs what it did; after a sweep no cell of a link is negative, so the sum of the
 * variables' minima is below every assignment's cost. Prices are never negative, so what they add
 * for an assignment that fits, price times load less price times capacity, is never positive.
 */

#include "planner/solver/bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The weight of the newest subgradient in their average. The average damps the zigzag of plain
 * subgradients, as in the volume algorithm. */
static const double newest = 0.1;
/* After so many steps without a better bound, the step length is halved, down to its smallest
 * factor. */
enum { TIMEOUT = 10 };
/* The order of an elimination is found in time quadratic in the variables, so larger cores are left
 * to message passing; their tables would hardly be small. */
enum { ELIMINATED_MAX = 4096 };
/* Good solutions are hardly farther above a bound than this part of it. */
static const double plausible_gap = 0.05;
static const double least_factor = 1e-4;
static const double first_factor = 0.3;
/* Steps grow as long as the bound does: an aim that is near lets them become too short. */
static const double growth = 1.04, largest_factor = 1.0;
/* Nanoseconds of a usual core for a sweep and a step, by cells of links (twice), values, and times;
 * on 25 problems 0.4 to 1.5 times what was measured. */
static const double cell_time = 0.2, value_time = 30.0, time_time = 45.0;
/* The same for an elimination, by its cells and rows, by values and times, and in any case; the
 * backward pass takes as much for cells and rows again. Nine of ten passes of nine problems took
 * 0.8 to 1.6 times that. */
static const double exact_cell = 0.4, exact_row = 7.0, exact_value = 10.0, exact_least = 1500.0;

/* The message of a link to one of its ends: what the link has paid to each of its values. */
static double *message_to(const ap_cfn_dual_t *self, int link, int variable)
{
    return self->core->link[link].a == variable ? self->to_a[link] : self->to_b[link];
}

/* Allocates messages of 0, which is a valid start: the dual then is the problem itself, without
 * prices. One array holds all messages, in the order of the links. */
xm_status_t ap_cfn_dual_create(const ap_cfn_core_t *core, ap_cfn_dual_t **dual)
{
    ap_cfn_dual_t *made = calloc(1, sizeof(*made));
    size_t values = 0, messages = 0, variables = (size_t)core->variables;
    size_t times = (size_t)core->times + 1, links = (size_t)core->links;
    xm_arena_t *pool;
    int largest = 1;

    if (made == NULL) {
        return XM_NO_MEMORY("a bound");
    }
    made->core = core;
    pool = &made->pool;
    made->at = xm_arena_take(pool, variables * sizeof(size_t));
    for (int v = 0; v < core->variables && !pool->failed; ++v) {
        made->at[v] = values;
        values += (size_t)core->variable[v].size;
        messages += (size_t)core->variable[v].size * (size_t)core->variable[v].degree;
        largest = core->variable[v].size > largest ? core->variable[v].size : largest;
    }
    made->priced = xm_arena_take(pool, values * sizeof(double));
    made->share = xm_arena_get(pool, values, sizeof(double));
    made->messages = xm_arena_get(pool, messages, sizeof(double));
    made->to_a = xm_arena_take(pool, links * sizeof(double *));
    made->to_b = xm_arena_take(pool, links * sizeof(double *));
    made->choice = xm_arena_get(pool, variables, sizeof(int));
    made->decoded = xm_arena_get(pool, variables, sizeof(int));
    made->margin = xm_arena_get(pool, variables, sizeof(double));
    made->price = xm_arena_get(pool, times, sizeof(double));
    made->best_price = xm_arena_get(pool, times, sizeof(double));
    made->slope = xm_arena_get(pool, times, sizeof(double));
    made->load = xm_arena_get(pool, times, sizeof(double));
    made->sums = xm_arena_get(pool, times, sizeof(double));
    made->scratch = xm_arena_take(pool, (size_t)largest * sizeof(double));
    if (pool->failed) {
        ap_cfn_dual_destroy(made);
        return XM_NO_MEMORY("a bound of %d variables", core->variables);
    }
    messages = 0;
    for (int k = 0; k < core->links; ++k) {
        made->to_a[k] = made->messages + messages;
        messages += (size_t)core->variable[core->link[k].a].size;
        made->to_b[k] = made->messages + messages;
        messages += (size_t)core->variable[core->link[k].b].size;
        made->work +=
            2.0 * core->variable[core->link[k].a].size * core->variable[core->link[k].b].size;
    }
    made->nanoseconds =
        cell_time * made->work + value_time * (double)values + time_time * core->times;
    made->work += 4.0 * (double)values + core->times;
    made->factor = first_factor;
    made->bound = made->best = -HUGE_VAL;
    ap_cfn_dual_prices_changed(made);
    *dual = made;
    return XM_OK;
}

/* Replaces message passing by elimination. Where the tables are small enough, that gives the best
 * bound that these prices allow, and an assignment that attains it, at the cost of a few sweeps;
 * messages only converge towards a bound that can stay below. */
xm_status_t ap_cfn_dual_eliminate(ap_cfn_dual_t *self, double work)
{
    const ap_cfn_core_t *core = self->core;
    const ap_elimination_params_t params = {.work = work, .marginals = true};
    xm_status_t status;

    if (core->variables > ELIMINATED_MAX) {
        return XM_OK;
    }
    status = ap_elimination_create(core, &self->exact);
    if (status == XM_OK) {
        status = ap_elimination_plan(self->exact, &params);
    }
    if (status == XM_OK) {
        self->work = self->exact->work;
        self->fixing = exact_cell * self->exact->work + exact_row * self->exact->row_count;
        self->nanoseconds = self->fixing + exact_least +
                            exact_value * ((double)ap_cfn_core_values(core) + core->times);
        self->marginal =
            xm_arena_take(&self->pool, self->exact->at[core->variables] * sizeof(double));
        return self->marginal != NULL ? XM_OK
                                      : XM_NO_MEMORY("a bound of %d variables", core->variables);
    }
    ap_elimination_destroy(self->exact);
    self->exact = NULL;
    return status == XM_ERR_UNSUPPORTED ? XM_OK : status;
}

/* Prices enter as costs of values: a segment costs its usage times the sum of the prices of its
 * times. The prefix sums make that independent of the segment's length. */
void ap_cfn_dual_prices_changed(ap_cfn_dual_t *self)
{
    const ap_cfn_core_t *core = self->core;
    double sum = 0.0;

    for (int t = 0; t < core->times; ++t) { /* sums[t]: prices of the times before t */
        self->sums[t] = sum;
        sum += self->price[t];
    }
    self->sums[core->times] = sum;
    for (int v = 0; v < core->variables; ++v) {
        const ap_cfn_variable_t *variable = &core->variable[v];
        double *priced = self->priced + self->at[v];

        memcpy(priced, variable->cost, (size_t)variable->size * sizeof(double));
        for (int k = 0; k < variable->segments; ++k) {
            const ap_cfn_segment_t *segment = &variable->segment[k];

            ap_cfn_charge(segment, variable->size,
                          self->sums[segment->to] - self->sums[segment->from], priced);
        }
    }
}

/* One build runs everywhere, but uses wide vectors where it finds them: the loader picks a clone
 * for the processor. Most of the time of a sweep is spent in the next two functions. They need no
 * -ffast-math: a minimum does not depend on the order of its terms. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

/* to[x] = the minimum over y of table[x][y] - from[y]. This is the largest message to x that leaves
 * no negative cell in the link. */
WIDE static void collect_rows(const double *table, int rows, int columns, const double *from,
                              double *to)
{
    for (int x = 0; x < rows; ++x, table += columns) {
        double least = HUGE_VAL;

#pragma omp simd reduction(min : least)
        for (int y = 0; y < columns; ++y) {
            double cost = table[y] - from[y];

            least = cost < least ? cost : least;
        }
        to[x] = least;
    }
}

/* to[y] = the minimum over x of table[x][y] - from[x]. It goes through the table by rows as well,
 * so that memory is read in order. */
WIDE static void collect_columns(const double *table, int rows, int columns, const double *from,
                                 double *to)
{
    for (int y = 0; y < columns; ++y) {
        to[y] = HUGE_VAL;
    }
    for (int x = 0; x < rows; ++x, table += columns) {
        double shift = from[x];

#pragma omp simd
        for (int y = 0; y < columns; ++y) {
            double cost = table[y] - shift;

            to[y] = cost < to[y] ? cost : to[y];
        }
    }
}

/* Takes everything out of a link for one of its ends. The old message to that end need not be taken
 * back first, because the new one is computed from the table and the other end's message alone. */
static void collect(const ap_cfn_dual_t *self, int link, int variable)
{
    const ap_cfn_link_t *l = &self->core->link[link];
    int rows = self->core->variable[l->a].size, columns = self->core->variable[l->b].size;

    if (l->a == variable) {
        collect_rows(l->table, rows, columns, self->to_b[link], self->to_a[link]);
    } else {
        collect_columns(l->table, rows, columns, self->to_a[link], self->to_b[link]);
    }
}

/* Visits a variable: takes all that the links from variables visited before can give, and gives
 * what it then has above its minimum to the links to later ones. Returns the minimum; the sum of
 * all in a pass is the bound. Leaves the variable's costs in `scratch`.
 *
 * The share is 1 / max(later, earlier) of sequential tree-reweighted message passing. The variable
 * gives away at most all of its excess, so its minimum stays; later visits change only messages to
 * the variables visited then, so it stays until the pass ends. This is why the sum of minima taken
 * at different times is a bound. */
static double visit(ap_cfn_dual_t *self, int v, int direction)
{
    const ap_cfn_variable_t *variable = &self->core->variable[v];
    double *cost = self->scratch, least = HUGE_VAL, second = HUGE_VAL, share;
    int earlier = 0, later, best = 0;

    memcpy(cost, self->priced + self->at[v], (size_t)variable->size * sizeof(double));
    for (int k = 0; k < variable->degree; ++k) {
        int link = variable->link[k], other = ap_cfn_other(&self->core->link[link], v);
        const double *message = message_to(self, link, v);

        if ((other < v) == (direction > 0)) {
            collect(self, link, v);
            ++earlier;
        }
        /* Costs at the present messages, those from later variables included. */
        for (int x = 0; x < variable->size; ++x) {
            cost[x] += message[x];
        }
    }
    /* Of equal costs the first value wins, so the same core always gives the same choice. */
    for (int x = 0; x < variable->size; ++x) {
        if (cost[x] < least) {
            second = least;
            least = cost[x];
            best = x;
        } else if (cost[x] < second) {
            second = cost[x];
        }
    }
    /* The margin says how sure this choice is: dives settle the variables with the largest ones
     * first. */
    self->choice[v] = best;
    self->margin[v] = second - least;
    /* Nothing is allowed here. HUGE_VAL as the bound says so, and giving messages away would make
     * NaN of infinity less infinity. */
    if (!(least < HUGE_VAL)) {
        return least; /* nothing is allowed: the bound says so */
    }
    /* What is above the minimum is shared among the links to later variables. Where fewer links
     * lead on than came in, the larger of both numbers is the divisor, so a part of the excess
     * stays here. */
    later = variable->degree - earlier;
    share = later > 0 ? 1.0 / (later > earlier ? later : earlier) : 0.0;
    for (int k = 0; k < variable->degree && later > 0; ++k) {
        int link = variable->link[k], other = ap_cfn_other(&self->core->link[link], v);
        double *message = message_to(self, link, v);

        if ((other < v) != (direction > 0)) {
            for (int x = 0; x < variable->size; ++x) {
                message[x] -= share * (cost[x] - least);
            }
        }
    }
    return least;
}

/* The constant, less what the prices would pay for the capacities. The sum of the minima plus this
 * is the bound. */
static double offset(const ap_cfn_dual_t *self)
{
    double sum = self->core->constant;

    for (int t = 0; t < self->core->times; ++t) {
        sum -= self->price[t] * self->core->capacity[t];
    }
    return sum;
}

/* Remembers the prices of the best bound: subgradient steps are not monotonic, and
 * ap_cfn_dual_move_prices() returns to these when it makes no progress. */
static void note_bound(ap_cfn_dual_t *self, double bound)
{
    self->bound = bound;
    if (bound > self->best) {
        self->best = bound;
        self->since_best = 0;
        self->factor = fmin(growth * self->factor, largest_factor);
        memcpy(self->best_price, self->price, (size_t)self->core->times * sizeof(double));
    }
}

/* Only the second pass is added up: it starts from what the first has collected, so its sum is the
 * larger one. */
double ap_cfn_dual_sweep(ap_cfn_dual_t *self)
{
    double bound = offset(self);

    if (self->exact != NULL) {
        /* Elimination gives the exact minimum at these prices: no bound from messages could be
         * better, and `choice` attains it. */
        bound += ap_elimination_solve(self->exact, self->priced, self->choice);
        note_bound(self, bound);
        return bound;
    }
    for (int v = 0; v < self->core->variables; ++v) {
        (void)visit(self, v, 1);
    }
    for (int v = self->core->variables - 1; v >= 0; --v) {
        bound += visit(self, v, -1);
    }
    note_bound(self, bound);
    return bound;
}

/* As ap_cfn_dual_fix(), by elimination. The marginals are the exact minimum at these prices of
 * every value, so no other test at these prices could drop more values. Without `bound < upper` all
 * values would go; then the bound itself tells the caller that nothing better is there. */
static int fix_exactly(ap_cfn_dual_t *self, double upper, bool *keep)
{
    const ap_cfn_core_t *core = self->core;
    double start = offset(self), bound = ap_cfn_dual_sweep(self);
    int dropped = 0;

    if (!(bound < HUGE_VAL)) {
        return 0; /* nothing is allowed: the bound says so */
    }
    ap_elimination_marginals(self->exact, self->priced, self->marginal);
    for (int v = 0; v < core->variables; ++v) {
        const double *marginal = self->marginal + self->at[v];
        double second = HUGE_VAL;

        for (int x = 0; x < core->variable[v].size; ++x) {
            bool *kept = &keep[self->at[v] + (size_t)x];

            if (x != self->choice[v]) {
                second = marginal[x] < second ? marginal[x] : second;
            }
            if (*kept && start + marginal[x] >= upper && bound < upper) {
                *kept = false;
                ++dropped;
            }
        }
        /* The margin here is the difference of exact marginals. Branching and dives use it as they
         * do that of messages. */
        self->margin[v] = second - marginal[self->choice[v]];
    }
    return dropped;
}

/* A value goes when a lower bound on every solution that has it reaches `upper`. Only values go
 * that no better solution has, so the best one stays whatever the messages are. */
int ap_cfn_dual_fix(ap_cfn_dual_t *self, double upper, bool *keep)
{
    double before = offset(self), bound = before;
    int dropped = 0;

    if (self->exact != NULL) {
        return fix_exactly(self, upper, keep);
    }
    for (int v = 0; v < self->core->variables; ++v) {
        before += visit(self, v, 1);
    }
    /* Visits never lower the bound, so at each one a value costs at least `before` and what it has
     * above the minimum. */
    for (int v = self->core->variables - 1; v >= 0; --v) {
        double least = visit(self, v, -1);

        bound += least;
        for (int x = 0; x < self->core->variable[v].size; ++x) {
            if (keep[self->at[v] + (size_t)x] && before + (self->scratch[x] - least) >= upper) {
                keep[self->at[v] + (size_t)x] = false;
                ++dropped;
            }
        }
    }
    note_bound(self, bound);
    return dropped;
}

bool ap_cfn_dual_choice_fits(ap_cfn_dual_t *self)
{
    return ap_cfn_core_fits(self->core, self->choice, self->load);
}

double ap_cfn_dual_aim(const ap_cfn_dual_t *self, double cost)
{
    return fmin(cost, self->best + plausible_gap * fabs(self->best) + 1.0);
}

/* The average of the assignments goes with that of their subgradients: it is the mixture that the
 * bound at the best prices is that of. */
static void note_choice(ap_cfn_dual_t *self)
{
    double weight = self->steps == 0 ? 1.0 : newest;

    for (int v = 0; v < self->core->variables; ++v) {
        double *share = self->share + self->at[v];

        for (int x = 0; x < self->core->variable[v].size; ++x) {
            share[x] *= 1.0 - weight;
        }
        share[self->choice[v]] += weight;
    }
}

/* One step of the subgradient method with Polyak's length, factor * (upper - bound) /
 * |direction|^2. The load of the present choice less the capacity is a subgradient of the bound.
 * Neighbouring times have nearly the same load, so only local peaks get a new price; raising all
 * times of a slope together would make a single step many times too long. */
void ap_cfn_dual_move_prices(ap_cfn_dual_t *self, double upper)
{
    int times = self->core->times;
    double length = 0.0, step;

    if (times == 0) {
        return;
    }
    ap_cfn_core_loads(self->core, self->choice, self->load);
    /* The average replaces the last subgradient, except in the very first step. */
    for (int t = 0; t < times; ++t) {
        double slope = self->load[t] - self->core->capacity[t];

        self->slope[t] =
            self->steps == 0 ? slope : (1.0 - newest) * self->slope[t] + newest * slope;
    }
    note_choice(self);
    /* On a plateau the last of its times counts as the peak, so a plateau gets one price. */
    for (int t = 0; t < times; ++t) {
        double slope = self->slope[t];
        bool peak = slope > 0.0 && (t == 0 || slope >= self->slope[t - 1]) &&
                    (t + 1 == times || slope > self->slope[t + 1]);

        self->load[t] = self->price[t] > 0.0 || peak ? slope : 0.0; /* the step's direction */
        length += self->load[t] * self->load[t];
    }
    /* No progress for a while, or a bound as far below the best one as the aim is above it: the
     * steps are too long. It goes back to the best prices and halves them. */
    if (self->since_best++ >= TIMEOUT || self->bound < 2.0 * self->best - upper) {
        self->factor = self->factor > 2.0 * least_factor ? self->factor / 2.0 : least_factor;
        self->since_best = 0;
        memcpy(self->price, self->best_price, (size_t)times * sizeof(double));
    }
    step =
        length > 0.0 && upper > self->bound ? self->factor * (upper - self->bound) / length : 0.0;
    /* Prices stay at 0 or above; a negative price would reward usage and the bound would be
     * invalid. */
    for (int t = 0; t < times; ++t) {
        double price = self->price[t] + step * self->load[t];

        self->price[t] = price > 0.0 ? price : 0.0;
    }
    ++self->steps;
    ap_cfn_dual_prices_changed(self);
}

/* Each variable in its order takes the cheapest value, given the values of the earlier ones and the
 * messages of the later ones. This is the usual primal heuristic of sequential message passing; an
 * exact sweep already has an assignment that attains the bound, so that one is used. */
void ap_cfn_dual_decode(ap_cfn_dual_t *self)
{
    const ap_cfn_core_t *core = self->core;
    int *value = self->decoded;

    if (self->exact != NULL) {
        memcpy(value, self->choice, (size_t)core->variables * sizeof(*value));
        return;
    }
    for (int v = 0; v < core->variables; ++v) {
        const ap_cfn_variable_t *variable = &core->variable[v];
        double *cost = self->scratch;

        memcpy(cost, self->priced + self->at[v], (size_t)variable->size * sizeof(double));
        for (int k = 0; k < variable->degree; ++k) {
            const ap_cfn_link_t *link = &core->link[variable->link[k]];
            const double *message = message_to(self, variable->link[k], v);
            int size = core->variable[link->b].size;

            /* A link to a variable that has its value costs its cell; for the others the message is
             * the best guess. */
            for (int x = 0; x < variable->size; ++x) {
                if (link->b == v && link->a < v) {
                    cost[x] += link->table[(size_t)value[link->a] * (size_t)size + (size_t)x];
                } else {
                    cost[x] += message[x];
                }
            }
        }
        value[v] = 0;
        for (int x = 1; x < variable->size; ++x) {
            value[v] = cost[x] < cost[value[v]] ? x : value[v];
        }
    }
}

void ap_cfn_dual_destroy(ap_cfn_dual_t *dual)
{
    if (dual == NULL) {
        return;
    }
    xm_arena_clear(&dual->pool);
    ap_elimination_destroy(dual->exact);
    free(dual);
}
