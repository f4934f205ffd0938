#include "planner/cut_model.h"

#include <math.h>
#include <stdbool.h>

enum { ROWS = AP_CUT_PLANES + AP_CUT_PRICES, COLUMNS = AP_CUT_PRICES + 1, PIVOTS_MAX = 1000 };
/* Smaller numbers, where the largest are about 1, are rounding. */
static const double tiny = 1e-11;

/*
 * The linear program as a simplex tableau without its basic columns. The last row is the objective,
 * the last column the right-hand sides; variables are numbered prices first, then the value, then
 * the slacks of the rows.
 */
typedef struct tableau {
    int rows, columns;
    double cell[ROWS + 1][COLUMNS + 1];
    int basic[ROWS], free[COLUMNS];
} tableau_t;

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

/* The column that enters: the steepest, or after many steps the one of least number, which cannot
 * go round in circles. -1: the optimum is reached. */
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

/* Prices in parts of their ceilings, and the value above `least` in parts of `unit`. */
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

double ap_cut_model_maximise(const ap_cut_model_t *model, const double *ceiling, double *price)
{
    double least = HUGE_VAL, unit = 1e-300;
    tableau_t t;

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
