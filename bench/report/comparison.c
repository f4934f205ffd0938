/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collects the outcomes of all variants and compares them: each with the variant that
 * leaves most to `auto`, and the simulation's prediction with what was measured.
 */
#include "bench/report/comparison.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/report/refit.h"

/* Copies what the comparison needs, because results are cleared after their report. */
xm_status_t rb_comparison_add(rb_comparison_t *comparison, const rb_result_t *result)
{
    const rb_case_t *one = result->prepared->one;
    const xm_plan_t *plan = result->prepared->plan;
    rb_outcome_t outcome = {.variant = one->variant,
                            .variants = one->variants,
                            .strategy = xm_plan_strategy(plan),
                            .scheduler = xm_plan_scheduler(plan),
                            .runs = result->runs,
                            .time_s = rb_result_time(result),
                            .plan_s = result->prepared->plan_s,
                            .setup_s = result->setup_s,
                            .cpu_s = result->cpu_s,
                            .bound_fraction = rb_result_bound_fraction(result),
                            .sim_error = rb_result_sim_error(result)};

    XM_TRY(rb_load_of(plan, &outcome.load));
    memcpy(outcome.name, one->name, sizeof(outcome.name));
    (void)rb_result_obstacle(result, outcome.obstacle);
    XM_NEED_MEMORY(XM_ARRAY_ROOM(comparison->outcomes, comparison->capacity, comparison->count),
                   "comparing %zu results", comparison->count + 1);
    comparison->outcomes[comparison->count++] = outcome;
    return XM_OK;
}

/* How many decisions the variant leaves to the library. */
static int autos(const rb_outcome_t *outcome)
{
    return (outcome->strategy == XM_STRATEGY_AUTO) + (outcome->scheduler == XM_SCHEDULER_AUTO);
}

/* The reference of an outcome: of the variants of its case the one with the most `auto`,
 * the first of equals. */
size_t rb_comparison_reference(const rb_comparison_t *comparison, size_t index)
{
    size_t first = index - (size_t)comparison->outcomes[index].variant, reference = first;
    size_t end = first + (size_t)comparison->outcomes[index].variants;

    for (size_t i = first; i < end && i < comparison->count; ++i) {
        if (autos(&comparison->outcomes[i]) > autos(&comparison->outcomes[reference])) {
            reference = i;
        }
    }
    return reference;
}

/* NAN where there is no time to compare with; the tables print a dash then. */
double rb_comparison_ratio(const rb_comparison_t *comparison, size_t index)
{
    size_t reference = rb_comparison_reference(comparison, index);
    double time = comparison->outcomes[reference].time_s;

    return time > 0 ? comparison->outcomes[index].time_s / time : NAN;
}

/* The median of the absolute errors and the worst of them; false when nothing was
 * measured. */
bool rb_comparison_prediction(const rb_comparison_t *comparison, double *median, size_t *worst)
{
    double *errors = malloc((comparison->count + 1) * sizeof(*errors)), largest = -1;
    size_t count = 0;

    if (errors == NULL) {
        return false;
    }
    for (size_t i = 0; i < comparison->count; ++i) {
        double error = fabs(comparison->outcomes[i].sim_error);

        if (isnan(error)) {
            continue;
        }
        if (error > largest) {
            largest = error;
            *worst = i;
        }
        errors[count++] = error;
    }
    if (count > 0) {
        *median = xm_array_median(errors, (int)count);
    }
    free(errors);
    return count > 0;
}

static void print_ratio(xm_table_t *table, const rb_comparison_t *comparison, size_t index)
{
    const rb_outcome_t *outcome = &comparison->outcomes[index];

    xm_table_text(table, "%s", outcome->name);
    xm_table_text(table, "%s", xm_strategy_name(outcome->strategy));
    xm_table_text(table, "%s", xm_scheduler_name(outcome->scheduler));
    xm_table_number(table, 1, outcome->time_s * 1e6);
    xm_table_number(table, 1, outcome->cpu_s > 0 ? outcome->cpu_s * 1e6 : NAN);
    xm_table_number(table, 3, rb_comparison_ratio(comparison, index));
    xm_table_number(table, 1, outcome->bound_fraction * 100);
    xm_table_text(table, "%s",
                  rb_comparison_reference(comparison, index) == index ? " reference" : "");
}

/* Cases with a single variant are left out, and the title with them when nothing is left. */
void rb_comparison_print_ratios(FILE *file, const rb_comparison_t *comparison)
{
    static const xm_table_column_t columns[] = {
        {"case", "", 10, false},      {"strategy", "", -15, false}, {"sched", "", -9, false},
        {"time (us)", "", 13, false}, {"cpu (us)", "", 13, false},  {"ratio", "", 8, false},
        {"%bound", "", 7, false},     {"", "", -10, false}};
    xm_table_t table = {file, columns, sizeof(columns) / sizeof(columns[0]), .start = '#'};
    bool titled = false;

    for (size_t i = 0; i < comparison->count; ++i) {
        if (comparison->outcomes[i].variants < 2) {
            continue;
        }
        if (!titled) {
            (void)fprintf(file, "#\n# Variants side by side: time over that of the reference\n");
            xm_table_head(&table);
            titled = true;
        }
        print_ratio(&table, comparison, i);
    }
    if (titled) {
        (void)fprintf(file, "#\n");
    }
}

/* The first outcome that cannot be compared, and how many there are. */
static const char *find_obstacle(const rb_comparison_t *comparison, size_t *count)
{
    const char *first = NULL;

    *count = 0;
    for (size_t i = 0; i < comparison->count; ++i) {
        if (comparison->outcomes[i].obstacle[0] != '\0') {
            first = (*count)++ == 0 ? comparison->outcomes[i].obstacle : first;
        }
    }
    return first;
}

/* The sign of the worst error is kept, as it says which way the prediction was wrong. */
void rb_comparison_print_prediction(FILE *file, const rb_comparison_t *comparison)
{
    const rb_outcome_t *outcome;
    size_t worst, obstacles;
    const char *obstacle = find_obstacle(comparison, &obstacles);
    double median;

    if (!rb_comparison_prediction(comparison, &median, &worst)) {
        if (obstacle != NULL) {
            (void)fprintf(file, "# Prediction error     : not comparable: %s\n", obstacle);
        }
        return;
    }
    outcome = &comparison->outcomes[worst];
    (void)fprintf(file, "# Prediction error     : ");
    if (comparison->count > 1) {
        (void)fprintf(file, "median %.1f %%, worst ", median * 100);
    }
    (void)fprintf(file, "%+.1f %% (%s, %s, %s)", outcome->sim_error * 100, outcome->name,
                  xm_strategy_name(outcome->strategy), xm_scheduler_name(outcome->scheduler));
    if (obstacle != NULL) {
        (void)fprintf(file, "; %zu not comparable: %s", obstacles, obstacle);
    }
    (void)fputc('\n', file);
}

void rb_comparison_clear(rb_comparison_t *comparison)
{
    free(comparison->outcomes);
    *comparison = (rb_comparison_t){0};
}
