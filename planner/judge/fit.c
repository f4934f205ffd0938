/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fits a runtime. Steps rise with the seconds of a pass, so each row has one number that makes it
 * exact, and the best for all is looked for among these. The sum of distances in memory is convex
 * in both of its numbers as long as the same stages are the fullest, so it is searched by golden
 * sections, one within the other.
 */

#include "planner/judge/fit.h"

#include <math.h>
#include <stdlib.h>

#include "comm/base.h"

enum { FEWEST = 3, HALVINGS = 40, SECTIONS = 60 };

typedef struct fit {
    const ap_measured_t *measured;
    int left_out;
    xm_runtime_t runtime;
} fit_t;

static const ap_measured_row_t *row_of(const fit_t *fit, int index)
{
    return index == fit->left_out ? NULL : &fit->measured->rows[index];
}

static double priced_sync(const ap_plan_t *plan)
{
    double most = 0;

    for (int i = 0; i < ap_plan_stages(plan); ++i) {
        most = fmax(most, ap_plan_stage(plan, i)->sync);
    }
    return most;
}

/* A plan without replicas synchronises nothing, and says nothing. */
static void fit_collectives(fit_t *fit, double *ratios)
{
    int count = 0;

    for (int i = 0; i < fit->measured->count; ++i) {
        const ap_measured_row_t *row = row_of(fit, i);

        if (row != NULL && row->sync > 0 && priced_sync(row->plan) > 0) {
            ratios[count++] = row->sync / priced_sync(row->plan);
        }
    }
    fit->runtime.collective = count >= FEWEST ? xm_array_median(ratios, count) : 1;
}

/* The seconds of a pass with which a row's step is as measured; 0 where it is too long already. */
static xm_status_t exact_pass(const fit_t *fit, const ap_measured_row_t *row, double *pass)
{
    xm_runtime_t runtime = fit->runtime;
    double low = 0, high = row->step / (double)ap_plan_info(row->plan)->micro_batches, step;
    xm_status_t status = XM_OK;

    for (int i = 0; i < HALVINGS && status == XM_OK; ++i) {
        runtime.pass = 0.5 * (low + high);
        status = ap_plan_runtime_step(row->plan, &runtime, &step);
        if (status == XM_OK && step < row->step) {
            low = runtime.pass;
        } else {
            high = runtime.pass;
        }
    }
    *pass = low;
    return status;
}

/* The sum of relative distances of all rows' steps; *square: that of their squares. */
static xm_status_t step_distance(const fit_t *fit, const xm_runtime_t *runtime, double *sum,
                                 double *square, int *count)
{
    *sum = *square = 0;
    *count = 0;
    for (int i = 0; i < fit->measured->count; ++i) {
        const ap_measured_row_t *row = row_of(fit, i);
        double step, off;

        if (row == NULL) {
            continue;
        }
        XM_TRY(ap_plan_runtime_step(row->plan, runtime, &step));
        off = log(step / row->step);
        *sum += fabs(off);
        *square += off * off;
        ++*count;
    }
    return XM_OK;
}

static xm_status_t fit_passes(fit_t *fit)
{
    xm_runtime_t tried = fit->runtime;
    double best, sum, square;
    int count;
    XM_TRY(step_distance(fit, &tried, &best, &square, &count));

    for (int i = 0; i < fit->measured->count && count >= FEWEST; ++i) {
        const ap_measured_row_t *row = row_of(fit, i);

        XM_TRY(row != NULL ? exact_pass(fit, row, &tried.pass) : XM_OK);
        if (row != NULL) {
            XM_TRY(step_distance(fit, &tried, &sum, &square, &count));
        }
        if (row != NULL && sum < best) {
            best = sum;
            fit->runtime.pass = tried.pass;
        }
    }
    XM_TRY(step_distance(fit, &fit->runtime, &sum, &square, &count));
    if (count > 0) {
        fit->runtime.spread = sqrt(square / count);
    }
    return XM_OK;
}

/* The same of memory. */
static double memory_distance(const fit_t *fit, double *square, int *count)
{
    double sum = *square = 0;

    *count = 0;
    for (int i = 0; i < fit->measured->count; ++i) {
        const ap_measured_row_t *row = row_of(fit, i);

        if (row != NULL && row->memory > 0) {
            double off = log(ap_plan_runtime_memory(row->plan, &fit->runtime) / row->memory);

            sum += fabs(off);
            *square += off * off;
            ++*count;
        }
    }
    return sum;
}

/* Moves a number to where @p distance is least between 0 and @p high. */
static double least(fit_t *fit, double *number, double high, double (*distance)(fit_t *fit))
{
    const double golden = 0.5 * (sqrt(5) - 1);
    double low = 0, at[2], far[2];

    for (int i = 0; i < SECTIONS; ++i) {
        at[0] = high - golden * (high - low);
        at[1] = low + golden * (high - low);
        for (int side = 0; side < 2; ++side) {
            *number = at[side];
            far[side] = distance(fit);
        }
        if (far[0] <= far[1]) {
            high = at[1];
        } else {
            low = at[0];
        }
    }
    *number = 0.5 * (low + high);
    return distance(fit);
}

static double distance_of_working(fit_t *fit)
{
    double square;
    int count;

    return memory_distance(fit, &square, &count);
}

static double distance_of_context(fit_t *fit)
{
    const double most_times = 16;

    return least(fit, &fit->runtime.working, most_times, distance_of_working);
}

static void fit_memory(fit_t *fit)
{
    double smallest = INFINITY, square;
    int count;

    (void)memory_distance(fit, &square, &count);
    if (count < FEWEST) {
        return;
    }
    for (int i = 0; i < fit->measured->count; ++i) {
        const ap_measured_row_t *row = row_of(fit, i);

        smallest = row != NULL && row->memory > 0 ? fmin(smallest, row->memory) : smallest;
    }
    (void)least(fit, &fit->runtime.context, smallest, distance_of_context);
    (void)memory_distance(fit, &square, &count);
    fit->runtime.memory_spread = sqrt(square / count);
}

xm_status_t ap_runtime_fit(const ap_measured_t *measured, int left_out, xm_runtime_t *runtime)
{
    fit_t fit = {measured, left_out, {.blocking = measured->blocking}};
    double *ratios = calloc((size_t)measured->count, sizeof(*ratios));

    XM_NEED_MEMORY(ratios, "%d rows", measured->count);
    fit_collectives(&fit, ratios);
    free(ratios);
    XM_TRY(fit_passes(&fit));
    fit_memory(&fit);
    *runtime = fit.runtime;
    return XM_OK;
}
