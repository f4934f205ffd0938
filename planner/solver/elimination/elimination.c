/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs an elimination that planner/solver/elimination/order.c has laid out. A run costs `work`
 * cells: for each step, the combinations of its scope times the values of its variable. The
 * backward pass over the same tables, which gives the marginals, costs about twice as much.
 *
 * The step's variable varies fastest in all tables that it adds up, so the inner loops are sums and
 * minima of vectors.
 */

#include "planner/solver/elimination/elimination.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One build runs everywhere, but uses wide vectors where it finds them. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

/* Values from which on wide vectors are used, and terms that are added at once. */
enum { WIDE_SIZE = 16, FUSED = 4 };

xm_status_t ap_elimination_create(const ap_cfn_core_t *core, ap_elimination_t **elimination)
{
    ap_elimination_t *made = calloc(1, sizeof(*made));

    if (made != NULL) {
        made->core = core;
        made->local = malloc(((size_t)core->variables + 1) * sizeof(*made->local));
    }
    if (made == NULL || made->local == NULL) {
        free(made);
        return XM_NO_MEMORY("the tables of %d variables", core->variables);
    }
    for (int v = 0; v < core->variables; ++v) {
        made->local[v] = -1;
    }
    *elimination = made;
    return XM_OK;
}

void ap_elimination_destroy(ap_elimination_t *elimination)
{
    if (elimination != NULL) {
        xm_arena_clear(&elimination->pool);
        free(elimination->local);
        free(elimination);
    }
}

static inline __attribute__((always_inline)) void first_row(const ap_elimination_step_t *step,
                                                            const double **rows, int terms)
{
    for (int j = 0; j < terms; ++j) {
        rows[j] = step->term[j].table;
    }
}

/* Moves on to the next row of a step's table, as an odometer: `index` counts the values of the
 * first `digits` of the scope, the last digit fastest. After the last row nothing moves. */
static inline __attribute__((always_inline)) void next_row(const ap_elimination_t *e,
                                                           const ap_elimination_step_t *step,
                                                           int digits, int *index,
                                                           const double **rows, int terms)
{
    for (int k = digits - 1; k >= 0; --k) {
        if (++index[k] < e->size[step->scope[k]]) {
            for (int j = 0; j < terms; ++j) {
                rows[j] += step->term[j].jump[k];
            }
            return;
        }
        index[k] = 0;
    }
}

/* The rows come in blocks: those that differ in the last variable of the scope alone; from one to
 * the next, a term's pointer moves by the same. */
static inline int block_of(const ap_elimination_t *e, const ap_elimination_step_t *step)
{
    return step->count > 0 ? e->size[step->scope[step->count - 1]] : 1;
}

static inline ptrdiff_t jump_in_block(const ap_elimination_step_t *step, int term)
{
    return step->count > 0 ? step->term[term].jump[step->count - 1] : 0;
}

/* into[x] = the lesser of into[x] and row[x] */
static inline void lower(double *restrict into, const double *restrict row, int size)
{
#pragma omp simd
    for (int x = 0; x < size; ++x) {
        into[x] = row[x] < into[x] ? row[x] : into[x];
    }
}

/* What value x costs in a row, with its terms added in their order, so equal problems give equal
 * sums. */
static inline __attribute__((always_inline)) double sum_at(const double *const *rows, int terms,
                                                           double base, int x)
{
    for (int j = 0; j < terms; ++j) {
        base += rows[j][x];
    }
    return base;
}

/* Adds terms to a base, as many at once as FUSED; returns how many are left, with which the caller
 * ends. */
static inline int add_terms(const double *const *rows, int terms, const double *base, int size,
                            double *sum)
{
    int done = 0;

    for (; terms - done > FUSED; done += FUSED) {
#pragma omp simd
        for (int x = 0; x < size; ++x) {
            sum[x] = sum_at(rows + done, FUSED, base[x], x);
        }
        base = sum;
    }
    return terms - done;
}

/* A vector's minimum may begin at the largest finite number instead of infinity: where it ends
 * there, all is forbidden. Costs that large do not occur, as forbidden means 10^18. */
static inline double or_forbidden(double least)
{
    return least < DBL_MAX ? least : HUGE_VAL;
}

/* Fills a step's table: for every row the minimum over the step's own variable. This is the
 * innermost loop of all exact searches; it is compiled for every small number of terms, and for the
 * shortest rows, as loops over either would cost more than what they sum up. Which value attains
 * the minimum is only asked of one row in each table, so ap_elimination_trace() finds it there. */
static inline __attribute__((always_inline)) void fill_rows(const ap_elimination_t *e,
                                                            const ap_elimination_step_t *step,
                                                            const double *cost, int size, int terms)
{
    int index[AP_ELIMINATION_SCOPE] = {0}, block = block_of(e, step);
    const double *rows[FUSED + 1];

    first_row(step, rows, terms);
    for (size_t row = 0; row < step->rows; row += (size_t)block) {
        for (int k = 0; k < block; ++k) {
            double least = HUGE_VAL;

#pragma omp simd reduction(min : least)
            for (int x = 0; x < size; ++x) {
                double sum = sum_at(rows, terms, cost[x], x);

                least = sum < least ? sum : least;
            }
            step->least[row + (size_t)k] = or_forbidden(least);
            for (int j = 0; j < terms && k + 1 < block; ++j) {
                rows[j] += jump_in_block(step, j);
            }
        }
        next_row(e, step, step->count - 1, index, rows, terms);
    }
}

/* The same for any number of terms, which are added up in a row of their own until few are left.
 * Rows with so many terms are rare, and long enough for that not to matter. */
static inline __attribute__((always_inline)) void fill_many(const ap_elimination_t *e,
                                                            const ap_elimination_step_t *step,
                                                            const double *cost, int size)
{
    int index[AP_ELIMINATION_SCOPE] = {0};
    const double **rows = e->rows;

    first_row(step, rows, step->terms);
    for (size_t row = 0; row < step->rows; ++row) {
        int left = add_terms(rows, step->terms, cost, size, e->sum);
        double least = HUGE_VAL;

#pragma omp simd reduction(min : least)
        for (int x = 0; x < size; ++x) {
            double sum = sum_at(rows + step->terms - left, left, e->sum[x], x);

            least = sum < least ? sum : least;
        }
        step->least[row] = or_forbidden(least);
        next_row(e, step, step->count, index, rows, step->terms);
    }
}

/* One copy of the loop for each small number of terms. */
static inline __attribute__((always_inline)) void fill_step(const ap_elimination_t *e,
                                                            const ap_elimination_step_t *step,
                                                            const double *cost, int size)
{
    switch (step->terms) {
    case 0:
        fill_rows(e, step, cost, size, 0);
        break;
    case 1:
        fill_rows(e, step, cost, size, 1);
        break;
    case 2:
        fill_rows(e, step, cost, size, 2);
        break;
    case 3:
        fill_rows(e, step, cost, size, 3);
        break;
    case 4:
        fill_rows(e, step, cost, size, 4);
        break;
    default:
        fill_many(e, step, cost, size);
        break;
    }
}

WIDE static void fill_wide(const ap_elimination_t *e, const ap_elimination_step_t *step,
                           const double *cost)
{
    fill_step(e, step, cost, e->size[step->variable]);
}

/* Wide vectors only cost time where a variable has few values; two to four are so common below a
 * node that loops over them are unrolled. */
static void run_step(const ap_elimination_t *e, const ap_elimination_step_t *step,
                     const double *cost)
{
    switch (e->size[step->variable]) {
    case 2:
        fill_step(e, step, cost, 2);
        break;
    case 3:
        fill_step(e, step, cost, 3);
        break;
    case 4:
        fill_step(e, step, cost, 4);
        break;
    default:
        if (e->size[step->variable] >= WIDE_SIZE) {
            fill_wide(e, step, cost);
        } else {
            fill_step(e, step, cost, e->size[step->variable]);
        }
    }
}

/* A step with an empty scope ends a connected component; its table is one number. */
void ap_elimination_run(ap_elimination_t *elimination, const double *cost)
{
    elimination->total = 0.0;
    for (int k = 0; k < elimination->steps; ++k) {
        const ap_elimination_step_t *step = &elimination->step[k];

        run_step(elimination, step, cost + elimination->at[step->variable]);
        elimination->total += step->count == 0 ? step->least[0] : 0.0;
    }
}

size_t ap_elimination_row(const ap_elimination_t *elimination, const ap_elimination_step_t *step,
                          const int *value)
{
    size_t row = 0;

    for (int j = 0; j < step->count; ++j) {
        row = row * (size_t)elimination->size[step->scope[j]] + (size_t)value[step->scope[j]];
    }
    return row;
}

/* A term's row for the values of the step's scope. */
static const double *row_at(const ap_elimination_step_t *step, int term, const int *value)
{
    const double *row = step->term[term].table;

    for (int k = 0; k < step->count; ++k) {
        row += step->term[term].stride[k] * value[step->scope[k]];
    }
    return row;
}

/* The first value that attains a row's minimum; 0 where all are forbidden. The sums are those of
 * fill_rows(), bit by bit, so the value's cost is exactly what the table has. */
static int first_best(const ap_elimination_t *e, const ap_elimination_step_t *step,
                      const double *cost, const int *value)
{
    double least = HUGE_VAL;
    int best = 0;

    for (int j = 0; j < step->terms; ++j) {
        e->rows[j] = row_at(step, j, value);
    }
    for (int x = 0; x < e->size[step->variable]; ++x) {
        double sum = sum_at(e->rows, step->terms, cost[x], x);

        if (sum < least) {
            least = sum;
            best = x;
        }
    }
    return best;
}

/* From the last step to the first: a step's scope holds only variables that are eliminated later or
 * kept, so their values are known when the step is reached. */
void ap_elimination_trace(const ap_elimination_t *elimination, const double *cost, int *value)
{
    for (int k = elimination->steps - 1; k >= 0; --k) {
        const ap_elimination_step_t *step = &elimination->step[k];

        value[step->variable] =
            first_best(elimination, step, cost + elimination->at[step->variable], value);
    }
}

double ap_elimination_solve(ap_elimination_t *elimination, const double *cost, int *value)
{
    ap_elimination_run(elimination, cost);
    ap_elimination_trace(elimination, cost, value);
    return elimination->total;
}

/* What is left is the total of components without kept variables, and the tables that the steps of
 * kept variables would add up. */
double ap_elimination_minimum(const ap_elimination_t *elimination, const double *cost,
                              const int *value)
{
    const ap_elimination_t *e = elimination;
    double sum = e->total;

    for (int k = e->steps; k < e->steps + e->kept; ++k) {
        const ap_elimination_step_t *step = &e->step[k];

        sum += cost[e->at[step->variable] + (size_t)value[step->variable]];
        for (int j = 0; j < step->terms; ++j) {
            sum += row_at(step, j, value)[value[step->variable]];
        }
    }
    return sum;
}

xm_status_t ap_elimination_walk(const ap_elimination_t *elimination,
                                const ap_elimination_step_t *step, ap_elimination_visit_fn *visit,
                                void *context)
{
    int index[AP_ELIMINATION_SCOPE] = {0};
    xm_status_t status = XM_OK;

    first_row(step, elimination->rows, step->terms);
    for (size_t row = 0; row < step->rows && status == XM_OK; ++row) {
        status = visit(context, step, row, elimination->rows);
        next_row(elimination, step, step->count, index, elimination->rows, step->terms);
    }
    return status;
}

static void fill(double *values, size_t count)
{
    for (size_t k = 0; k < count; ++k) {
        values[k] = HUGE_VAL;
    }
}

/* The sums of a step hold each child's own table as well. Its minimum over all rows that agree with
 * a row of the child was collected in `outside`; here the child's part is taken off. */
static void take_off(const ap_elimination_step_t *child)
{
    for (size_t c = 0; c < child->rows; ++c) {
        /* What is forbidden below stays so whatever is outside; infinity less infinity would be
         * NaN. */
        child->outside[c] = child->least[c] < HUGE_VAL ? child->outside[c] - child->least[c] : 0.0;
    }
}

/* Finds the marginals of a step's variable, and `outside` of the steps below it: the minimum of all
 * costs that are not in a row's own table, given the row's values. So cost plus terms plus outside
 * is the minimum over everything else, and a minimum over rows is the marginal. */
static inline __attribute__((always_inline)) void go_back_rows(const ap_elimination_t *e,
                                                               const ap_elimination_step_t *step,
                                                               const double *cost, double *marginal,
                                                               int size, int terms)
{
    const ap_elimination_term_t *term = step->term;
    int index[AP_ELIMINATION_SCOPE] = {0};
    const double **rows = e->rows;
    double *sum = e->sum;

    first_row(step, rows, terms);
    for (size_t row = 0; row < step->rows; ++row) {
        double outside = step->outside[row];
        int left = terms;

        if (terms <= FUSED) {
#pragma omp simd
            for (int x = 0; x < size; ++x) {
                sum[x] = sum_at(rows, terms, cost[x] + outside, x);
                marginal[x] = sum[x] < marginal[x] ? sum[x] : marginal[x];
            }
        } else {
#pragma omp simd
            for (int x = 0; x < size; ++x) {
                sum[x] = cost[x] + outside;
            }
            left = add_terms(rows, terms, sum, size, sum);
#pragma omp simd
            for (int x = 0; x < size; ++x) {
                sum[x] = sum_at(rows + terms - left, left, sum[x], x);
                marginal[x] = sum[x] < marginal[x] ? sum[x] : marginal[x];
            }
        }
        for (int j = 0; j < terms; ++j) {
            if (term[j].child >= 0) {
                const ap_elimination_step_t *child = &e->step[term[j].child];

                lower(child->outside + (rows[j] - child->least), sum, size);
            }
        }
        next_row(e, step, step->count, index, rows, terms);
    }
}

/* One copy of the loop for each small number of terms, as in fill_step(). */
static inline __attribute__((always_inline)) void go_back_step(const ap_elimination_t *e,
                                                               const ap_elimination_step_t *step,
                                                               const double *cost, double *marginal,
                                                               int size)
{
    switch (step->terms) {
    case 0:
        go_back_rows(e, step, cost, marginal, size, 0);
        break;
    case 1:
        go_back_rows(e, step, cost, marginal, size, 1);
        break;
    case 2:
        go_back_rows(e, step, cost, marginal, size, 2);
        break;
    case 3:
        go_back_rows(e, step, cost, marginal, size, 3);
        break;
    case 4:
        go_back_rows(e, step, cost, marginal, size, 4);
        break;
    default:
        go_back_rows(e, step, cost, marginal, size, step->terms);
        break;
    }
}

WIDE static void go_back_wide(const ap_elimination_t *e, const ap_elimination_step_t *step,
                              const double *cost, double *marginal)
{
    go_back_step(e, step, cost, marginal, e->size[step->variable]);
}

/* Wide vectors cost more than they bring where a row is shorter than one of them. */
static void go_back(const ap_elimination_t *e, const ap_elimination_step_t *step,
                    const double *cost, double *marginal)
{
    const ap_elimination_term_t *term = step->term;
    int size = e->size[step->variable];

    fill(marginal, (size_t)size);
    for (int j = 0; j < step->terms; ++j) {
        if (term[j].child >= 0) {
            fill(e->step[term[j].child].outside, e->step[term[j].child].rows);
        }
    }
    switch (size) {
    case 2:
        go_back_step(e, step, cost, marginal, 2);
        break;
    case 3:
        go_back_step(e, step, cost, marginal, 3);
        break;
    case 4:
        go_back_step(e, step, cost, marginal, 4);
        break;
    default:
        if (size >= WIDE_SIZE) {
            go_back_wide(e, step, cost, marginal);
        } else {
            go_back_step(e, step, cost, marginal, size);
        }
    }
    for (int j = 0; j < step->terms; ++j) {
        if (term[j].child >= 0) {
            take_off(&e->step[term[j].child]);
        }
    }
}

/* Goes from the last step to the first, so that `outside` of a step is complete before the step is
 * visited. For the root of a component it is the total of all other components. */
void ap_elimination_marginals(ap_elimination_t *elimination, const double *cost, double *marginal)
{
    for (int k = elimination->steps - 1; k >= 0; --k) {
        const ap_elimination_step_t *step = &elimination->step[k];
        size_t at = elimination->at[step->variable];

        if (step->count == 0) {
            step->outside[0] =
                step->least[0] < HUGE_VAL ? elimination->total - step->least[0] : 0.0;
        }
        go_back(elimination, step, cost + at, marginal + at);
    }
}
