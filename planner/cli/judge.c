/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autopar judge: predictions beside what was measured, row by row. What a runtime adds to prices is
 * fitted, for each row, to all others: no row has a part in its own prediction. autopar fit: the
 * same numbers from all rows, written into a cluster profile.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli_support.h"
#include "comm/base.h"
#include "planner/cli/command.h"
#include "planner/judge.h"

typedef struct judge_options {
    bool as_priced, wide, csv;
    xm_cli_json_t json;
    const char *cluster, *output; /* of fit */
} judge_options_t;

/* NaN: not measured, or not predicted. */
typedef struct verdict {
    double step, memory;           /* predicted */
    double off, memory_off, other; /* from what was measured, as a part of it */
    xm_runtime_t runtime;
} verdict_t;

static double part_off(double predicted, double measured)
{
    return predicted > 0 && measured > 0 ? predicted / measured - 1 : NAN;
}

static xm_status_t judge_row(const ap_measured_t *measured, int index, bool as_priced,
                             verdict_t *verdict)
{
    const ap_measured_row_t *row = &measured->rows[index];
    xm_status_t status = XM_OK;

    *verdict = (verdict_t){.runtime.blocking = measured->blocking};
    if (!as_priced) {
        status = ap_runtime_fit(measured, index, &verdict->runtime);
    }
    XM_THEN(status, ap_plan_runtime_step(row->plan, &verdict->runtime, &verdict->step));
    XM_TRY(status);
    verdict->memory = ap_plan_runtime_memory(row->plan, &verdict->runtime);
    verdict->off = part_off(verdict->step, row->step);
    verdict->memory_off = part_off(verdict->memory, row->memory);
    verdict->other = part_off(row->other_step, row->step);
    return XM_OK;
}

/* The median and the largest distance of a column; *count: of how many rows. */
static void summarise(const verdict_t *verdicts, int rows, size_t column, double *distances,
                      double *median, double *worst, int *count)
{
    *count = 0;
    *worst = 0;
    for (int i = 0; i < rows; ++i) {
        double off = *(const double *)((const char *)&verdicts[i] + column);

        if (!isnan(off)) {
            distances[(*count)++] = fabs(off);
            *worst = fmax(*worst, fabs(off));
        }
    }
    *median = *count > 0 ? xm_array_median(distances, *count) : NAN;
}

static const struct {
    const char *key, *what;
    size_t column;
} summaries[] = {{"step", "step", offsetof(verdict_t, off)},
                 {"memory", "memory", offsetof(verdict_t, memory_off)},
                 {"other", "step, the other's", offsetof(verdict_t, other)}};

enum { SUMMARIES = sizeof(summaries) / sizeof(summaries[0]) };

static void print_table(const judge_options_t *o, const ap_measured_t *measured,
                        const verdict_t *verdicts, double *distances)
{
    const char *other = measured->other != NULL ? measured->other : "other";
    const xm_table_column_t columns[] = {
        {"plan", "", -16, false},     {"predicted", "s", 10, false}, {"+-", "%", 6, false},
        {"measured", "s", 10, false}, {"error", "%", 7, false},      {other, "%", 10, false},
        {"memory", "GB", 9, false},   {"+-", "%", 6, false},         {"measured", "GB", 9, false},
        {"error", "%", 7, false}};
    xm_table_t table = {stdout, columns, 10, .wide = o->wide, .csv = o->csv};

    if (!o->csv) {
        (void)printf("# %s\n", measured->source);
    }
    xm_table_head(&table);
    for (int i = 0; i < measured->count; ++i) {
        const ap_measured_row_t *row = &measured->rows[i];
        const verdict_t *verdict = &verdicts[i];
        double spread = verdict->runtime.spread, bytes = verdict->runtime.memory_spread;

        xm_table_text(&table, "%s", row->name);
        xm_table_number(&table, 4, verdict->step);
        xm_table_number(&table, 1, spread > 0 ? 100 * spread : NAN);
        xm_table_number(&table, 4, row->step);
        xm_table_number(&table, 1, 100 * verdict->off);
        xm_table_number(&table, 1, 100 * verdict->other);
        xm_table_number(&table, 3, 1e-9 * verdict->memory);
        xm_table_number(&table, 1, bytes > 0 ? 100 * bytes : NAN);
        xm_table_number(&table, 3, row->memory > 0 ? 1e-9 * row->memory : NAN);
        xm_table_number(&table, 1, 100 * verdict->memory_off);
    }
    for (int s = 0; s < SUMMARIES && !o->csv; ++s) {
        double median, worst;
        int count;

        summarise(verdicts, measured->count, summaries[s].column, distances, &median, &worst,
                  &count);
        if (count > 0) {
            (void)printf("%s: median error %.1f %%, worst %.1f %%, of %d rows\n", summaries[s].what,
                         100 * median, 100 * worst, count);
        }
    }
}

static json_t *number(double value)
{
    return isnan(value) ? json_null() : json_real(value);
}

static xm_status_t give_document(const judge_options_t *o, const ap_measured_t *measured,
                                 const verdict_t *verdicts, double *distances)
{
    json_t *rows = json_array(), *errors = json_object();

    for (int i = 0; i < measured->count; ++i) {
        const ap_measured_row_t *row = &measured->rows[i];
        const verdict_t *v = &verdicts[i];

        (void)json_array_append_new(
            rows, json_pack("{s:s,s:f,s:f,s:o,s:o,s:f,s:f,s:o,s:o}", "name", row->name, "step_s",
                            v->step, "measured_step_s", row->step, "step_error", number(v->off),
                            "other_step_error", number(v->other), "memory_bytes", v->memory,
                            "measured_memory_bytes", row->memory, "memory_error",
                            number(v->memory_off), "runtime", xm_runtime_to_json(&v->runtime)));
    }
    for (int s = 0; s < SUMMARIES; ++s) {
        double median, worst;
        int count;

        summarise(verdicts, measured->count, summaries[s].column, distances, &median, &worst,
                  &count);
        (void)json_object_set_new(
            errors, summaries[s].key,
            json_pack("{s:i,s:o,s:f}", "rows", count, "median", number(median), "worst", worst));
    }
    return xm_cli_give_json(&o->json, json_pack("{s:i,s:s,s:o,s:o}", "version", 1, "source",
                                                measured->source, "errors", errors, "rows", rows));
}

static xm_status_t judge(const xm_cli_t *cli, void *options)
{
    judge_options_t *o = options;
    ap_measured_t measured;
    verdict_t *verdicts;
    double *distances;
    xm_status_t status = XM_OK;

    XM_TRY(ap_measured_load(ap_command_argument(cli, 0), &measured));
    verdicts = calloc((size_t)measured.count, sizeof(*verdicts));
    distances = calloc((size_t)measured.count, sizeof(*distances));
    if (verdicts == NULL || distances == NULL) {
        status = XM_NO_MEMORY("%d rows", measured.count);
    }
    for (int i = 0; i < measured.count && status == XM_OK; ++i) {
        status = judge_row(&measured, i, o->as_priced, &verdicts[i]);
    }
    if (status == XM_OK && !o->json.print) {
        print_table(o, &measured, verdicts, distances);
        status = xm_cli_flush();
    }
    if (status == XM_OK && xm_cli_wants_json(&o->json)) {
        status = give_document(o, &measured, verdicts, distances);
    }
    free(distances);
    free(verdicts);
    ap_measured_clear(&measured);
    return status;
}

int ap_command_judge(int argc, char *const *argv)
{
    judge_options_t o = {.cluster = NULL};
    const xm_cli_option_t table[] = {
        {"as-priced", 0, XM_CLI_FLAG, &o.as_priced, NULL, 0, 0,
         "Fit nothing: predictions are the plans' prices alone."},
        {"wide", 0, XM_CLI_FLAG, &o.wide, NULL, 0, 0, "All columns, however wide."},
        {"csv", 0, XM_CLI_FLAG, &o.csv, NULL, 0, 0, "The table as CSV."},
        XM_CLI_JSON_OPTIONS(XM_CLI_OUTPUT, &o.json, "Print JSON instead of a table."),
    };
    const xm_cli_command_t command = XM_CLI_COMMAND(
        "autopar judge", "MEASURED.json",
        "Prints predicted and measured step and memory of every row and the error, each row "
        "predicted with what a runtime adds as fitted to all other rows.",
        "autopar judge sailor/measured.json", table, 1, 1);

    return xm_cli_main(&command, argc, argv, judge, &o);
}

static void print_runtime(const xm_runtime_t *runtime)
{
    char pass[32], context[32];

    (void)printf("pass %s beside its operators; collectives %.3g times their price; steps +- "
                 "%.1f %%\n%s of context; temporaries %.3g times their price; memory +- %.1f %%\n",
                 xm_text_format_seconds(runtime->pass, pass, sizeof(pass)),
                 runtime->collective > 0 ? runtime->collective : 1, 100 * runtime->spread,
                 xm_text_format_bytes((uint64_t)runtime->context, context, sizeof(context)),
                 runtime->working > 0 ? runtime->working : 1, 100 * runtime->memory_spread);
}

static xm_status_t write_profile(const judge_options_t *o, const ap_measured_t *measured,
                                 const xm_runtime_t *fitted)
{
    xm_cluster_profile_t *profile, *changed = NULL;
    xm_runtime_t runtime = *fitted;
    const xm_runtime_t *own;
    char note[160];
    xm_status_t status;

    XM_TRY(xm_cluster_profile_load(o->cluster, &profile));
    (void)snprintf(note, sizeof(note), "runtime fitted to %d rows of %.100s", measured->count,
                   measured->source);
    own = xm_cluster_profile_runtime(profile);
    runtime.bucket = own->bucket; /* these the runtime has measured itself */
    runtime.send = own->send;
    runtime.split = own->split;
    runtime.weight = own->weight;
    status = xm_cluster_profile_set_runtime(profile, &runtime, note, &changed);
    XM_THEN(status, xm_cluster_profile_save(changed, o->output));
    xm_cluster_profile_destroy(changed);
    xm_cluster_profile_destroy(profile);
    return status;
}

static xm_status_t fit(const xm_cli_t *cli, void *options)
{
    judge_options_t *o = options;
    ap_measured_t measured;
    xm_runtime_t runtime;
    xm_status_t status;

    if ((o->cluster == NULL) != (o->output == NULL)) {
        return XM_INVALID("--cluster and --output go together: the profile to read, and to write");
    }
    XM_TRY(ap_measured_load(ap_command_argument(cli, 0), &measured));
    status = ap_runtime_fit(&measured, -1, &runtime);
    if (status == XM_OK && o->output != NULL) {
        status = write_profile(o, &measured, &runtime);
    }
    if (status == XM_OK && !o->json.print) {
        print_runtime(&runtime);
        status = xm_cli_flush();
    }
    if (status == XM_OK && xm_cli_wants_json(&o->json)) {
        status = xm_cli_give_json(&o->json, xm_runtime_to_json(&runtime));
    }
    ap_measured_clear(&measured);
    return status;
}

int ap_command_fit(int argc, char *const *argv)
{
    judge_options_t o = {.cluster = NULL};
    const xm_cli_option_t table[] = {
        {"cluster", 0, XM_CLI_STRING, &o.cluster, "FILE", 0, 0, "Cluster profile to read."},
        {"output", 'o', XM_CLI_OUTPUT, &o.output, "FILE", 0, 0,
         "Write the profile with the runtime in it."},
        XM_CLI_JSON_OPTIONS(XM_CLI_OUTPUT, &o.json, "Print the runtime as JSON."),
    };
    const xm_cli_command_t command = XM_CLI_COMMAND(
        "autopar fit", "MEASURED.json",
        "Fits what a runtime adds to prices (time of passes, collectives, context, temporaries) to "
        "measured steps.",
        "autopar fit sailor/measured.json --cluster sailor/cluster.json -o fitted.json", table, 1,
        1);

    return xm_cli_main(&command, argc, argv, fit, &o);
}
