/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maximises the minimum of a few linear functions over a box of prices: the master problem of
 * Kelley's cutting planes (1960), of at most 64 planes and 16 prices. That is a linear program of
 * 80 rows, solved here by a dense simplex of one page. A solver library would be a dependency for a
 * problem that takes microseconds; and the obvious alternative, subgradient steps, needs many more
 * of the expensive evaluations that make a plane.
 *
 * No first phase is needed: the value is counted from the smallest constant of all planes, so
 * prices of 0 are a feasible corner to begin with.
 */

#include "planner/solver/cut_model.h"

#include <math.h>
#include <stdbool.h>

/* After so many pivots the program is left where it is. Its corner is still a set of prices that
 * can be tried, so the caller only loses quality. */
enum { ROWS = AP_CUT_PLANES + AP_CUT_PRICES, COLUMNS = AP_CUT_PRICES + 1, PIVOTS_MAX = 1000 };
/* Smaller numbers, where the largest are about 1, are rounding. */
static const double tiny = 1e-11;

/* The linear program as a simplex tableau without its basic columns. The last row is the objective,
 * the last column has the right-hand sides. Variables are numbered prices first, then the value,
 * then the slacks of the rows; `basic` and `free` say which variable a row or column belongs to. */
typedef struct tableau {
    int rows, columns;
    double cell[ROWS + 1][COLUMNS + 1];
    int basic[ROWS], free[COLUMNS];
} tableau_t;

/* Exchanges a basic variable for a free one. The column of the leaving variable takes the place of
 * the entering one's, which saves storing the identity. */
static void pivot(tableau_t *t, int row, int column)
{
    double by = t->cell[row][column];
    int swapped = t->basic[row];

    for (int j = 0; j <= t->columns; ++j) {
        t->cell[row][j] = j == column ? 1.0 / by : t->cell[row][j] / by;
    }
    for (int i = 0; i <= t->rows; ++i) {
        double factor = t->cell[i][column];

        if (i == row || !(fabs(factor) > 0.0)) {
            continue;
        }
        for (int j = 0; j <= t->columns; ++j) {
            t->cell[i][j] = j == column ? -factor / by : t->cell[i][j] - factor * t->cell[row][j];
        }
    }
    t->basic[row] = t->free[column];
    t->free[column] = swapped;
}

/* Chooses the column that enters: the steepest, or after many steps the one of the lowest number.
 * The latter is Bland's rule, which cannot go round in circles. -1: the optimum is reached. */
static int entering(const tableau_t *t, int steps)
{
    int chosen = -1;

    for (int j = 0; j < t->columns; ++j) {
        double gain = -t->cell[t->rows][j];

        if (gain > tiny &&
            (chosen < 0 || (steps < PIVOTS_MAX / 2 ? gain > -t->cell[t->rows][chosen]
                                                   : t->free[j] < t->free[chosen]))) {
            chosen = j;
        }
    }
    return chosen;
}

/* Chooses the row that leaves, by the smallest ratio, so that no right-hand side becomes negative;
 * of equal ratios the lowest number, as Bland's rule asks. The prices are bounded and the value is
 * at most any plane, so there is always one. */
static int leaving(const tableau_t *t, int column)
{
    double least = HUGE_VAL;
    int chosen = -1;

    for (int i = 0; i < t->rows; ++i) {
        if (t->cell[i][column] > tiny) {
            double ratio = t->cell[i][t->columns] / t->cell[i][column];

            if (ratio < least || (ratio <= least && t->basic[i] < t->basic[chosen])) {
                least = ratio;
                chosen = i;
            }
        }
    }
    return chosen;
}

/* Fills the tableau with prices in parts of their ceilings, and the value above `least` in parts
 * of `unit`. Prices per byte and costs differ by many orders of magnitude, so without scaling
 * the fixed tolerance `tiny` would mean nothing. */
static void set_up(tableau_t *t, const ap_cut_model_t *model, const double *ceiling, double least,
                   double unit)
{
    int prices = model->prices;

    t->columns = prices + 1;
    t->rows = model->planes + prices;
    for (int j = 0; j < t->columns; ++j) {
        t->free[j] = j;
        t->cell[t->rows][j] = j == prices ? -1.0 : 0.0;
    }
    t->cell[t->rows][t->columns] = 0.0;
    /* Row i of a plane says: value - slope · prices <= constant. The rows after the planes say:
     * price <= ceiling. */
    for (int i = 0; i < t->rows; ++i) {
        bool plane = i < model->planes;

        t->basic[i] = t->columns + i;
        for (int j = 0; j < prices; ++j) {
            t->cell[i][j] = plane                    ? -model->slope[i][j] * ceiling[j] / unit
                            : i - model->planes == j ? 1.0
                                                     : 0.0;
        }
        t->cell[i][prices] = plane ? 1.0 : 0.0;
        t->cell[i][t->columns] = plane ? (model->constant[i] - least) / unit : 1.0;
    }
}

/* Scales, solves, and turns the corner back into prices. A price that is not basic is 0; rounding
 * must not make one negative, since a negative price would reward usage. */
double ap_cut_model_maximise(const ap_cut_model_t *model, const double *ceiling, double *price)
{
    double least = HUGE_VAL, unit = 1e-300;
    tableau_t t;

    /* The smallest constant is the model's value where all prices are 0. */
    for (int i = 0; i < model->planes; ++i) {
        least = fmin(least, model->constant[i]);
    }
    for (int i = 0; i < model->planes; ++i) {
        unit = fmax(unit, model->constant[i] - least);
        for (int j = 0; j < model->prices; ++j) {
            unit = fmax(unit, fabs(model->slope[i][j]) * ceiling[j]);
        }
    }
    set_up(&t, model, ceiling, least, unit);
    for (int step = 0; step < PIVOTS_MAX; ++step) {
        int column = entering(&t, step), row = column >= 0 ? leaving(&t, column) : -1;

        if (row < 0) {
            break;
        }
        pivot(&t, row, column);
    }
    for (int j = 0; j < model->prices; ++j) {
        price[j] = 0.0;
    }
    for (int i = 0; i < t.rows; ++i) {
        if (t.basic[i] < model->prices) {
            price[t.basic[i]] = fmax(0.0, t.cell[i][t.columns]) * ceiling[t.basic[i]];
        }
    }
    return least + unit * t.cell[t.rows][t.columns];
}
