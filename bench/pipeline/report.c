/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report of pipeline-bench: a row and a JSON entry for each plan, with the predicted
 * step beside the measured ones. The error has the sign of the prediction: positive when
 * it was too long.
 */
#include "bench/pipeline/report.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/run.h"
#include <crossmesh/version.h>

struct rb_pipeline_report {
    const rb_pipeline_job_info_t *job;
    json_t *root;
    json_t *results; /* borrowed from root */
    xm_table_t table;
    int plans;
    double error_sum; /* of the errors' sizes */
    uint64_t wrong;
};

/* The file's name without its folders, to keep rows short. */
static const char *program_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

/* The head says how ranks compute, because times mean different things with and without
 * real work. */
static void print_header(const rb_pipeline_job_info_t *job)
{
    const rb_pipeline_options_t *o = job->options;

    (void)printf("# pipeline-bench %s  (ms = 1e-3 s, MB = 1e6 B)\n# command:", XM_VERSION_STRING);
    for (int i = 0; i < o->argc; ++i) {
        (void)printf(" %s", o->argv[i]);
    }
    (void)fputc('\n', stdout);
    xm_text_print_wrapped(stdout, XM_TEXT_COLUMNS, "# start: ", "#   ", "%s", job->start);
    (void)printf("# ranks %d, hosts %d, checked runs %d, warm-up %d, runs %d\n", job->hosts->ranks,
                 job->hosts->hosts, o->checked, o->warmup, o->iterations);
    if (o->compute == RB_COMPUTE_WAIT) {
        (void)printf("# compute wait: ranks wait for as long as a pass takes; the device is "
                     "elsewhere, as a GPU would be\n");
    } else {
        (void)printf("# compute %s: ranks do calibrated work for as long as a pass takes\n",
                     rb_compute_name((rb_compute_kind_t)o->compute));
    }
    (void)printf("# reshardings predicted: %s\n", job->source);
    (void)printf("#\n");
}

static const xm_table_column_t columns[] = {
    {"plan", "", -22, false},    {"model", "", -14, false},      {"schedule", "", -13, false},
    {"stages", "", 6, false},    {"micro", "", 5, false},        {"net", "MB", 9, true},
    {"transfers", "%", 9, true}, {"predicted", "ms", 10, false}, {"min", "ms", 10, false},
    {"median", "ms", 10, false}, {"max", "ms", 10, false},       {"error", "%", 6, false},
    {"#wrong", "B", 6, false}};

/* The settings that results depend on, under the names of the options. */
static json_t *config_json(const rb_pipeline_job_info_t *job)
{
    const rb_pipeline_options_t *o = job->options;
    json_t *config =
        json_pack("{s:i, s:i, s:s, s:i, s:i, s:i, s:s, s:s}", "ranks", job->hosts->ranks, "hosts",
                  job->hosts->hosts, "compute", rb_compute_name((rb_compute_kind_t)o->compute),
                  "checked", o->checked, "warmup", o->warmup, "iterations", o->iterations, "start",
                  job->start, "reshardings", job->source);

    if (config != NULL && o->nic_gbps > 0) {
        (void)json_object_set_new(config, "nic_gbps", json_real(o->nic_gbps));
    }
    return config;
}

xm_status_t rb_pipeline_report_create(const rb_pipeline_job_info_t *job,
                                      rb_pipeline_report_t **result)
{
    rb_pipeline_report_t *report = calloc(1, sizeof(*report));

    if (report != NULL) {
        report->job = job;
        report->results = json_array();
        report->root = json_pack("{s:s, s:o, s:o, s:O}", "version", XM_VERSION_STRING, "args",
                                 rb_json_arguments(job->options->argc, job->options->argv),
                                 "config", config_json(job), "results", report->results);
        /* The document holds the results now, and the pointer borrows them. */
        json_decref(report->results);
    }
    if (report == NULL || report->root == NULL) {
        free(report);
        return XM_NO_MEMORY("the report");
    }
    report->table = (xm_table_t){stdout, columns, sizeof(columns) / sizeof(columns[0]),
                                 .wide = job->options->wide, .csv = job->options->csv};
    if (!job->options->json.print && !job->options->csv) {
        print_header(job);
    }
    if (!job->options->json.print) {
        xm_table_head(&report->table);
    }
    *result = report;
    return XM_OK;
}

/* The part of the predicted step that would not be there if transfers were free. */
static double transfer_share(const rb_pipeline_t *pipeline)
{
    double step = (double)pipeline->predicted->step_ns;

    return step > 0 ? 1 - (double)pipeline->free_ns / step : 0;
}

/* The column of wrong bytes is a dash when no run was checked. */
static void print_row(rb_pipeline_report_t *report, const rb_pipeline_result_t *result,
                      const rb_times_t *times, double predicted)
{
    const rb_pipeline_t *pipeline = result->pipeline;
    xm_table_t *table = &report->table;

    xm_table_text(table, "%s", program_name(result->path));
    xm_table_text(table, "%s", ap_plan_info(pipeline->plan)->model);
    xm_table_text(table, "%s", ap_schedule_name(pipeline->schedule->kind));
    xm_table_number(table, 0, pipeline->schedule->stages);
    xm_table_number(table, 0, pipeline->schedule->micro_batches);
    xm_table_number(table, 3, (double)rb_pipeline_net_bytes(pipeline) * 1e-6);
    xm_table_number(table, 1, 100 * transfer_share(pipeline));
    xm_table_number(table, 3, predicted * 1e3);
    xm_table_number(table, 3, times->min * 1e3);
    xm_table_number(table, 3, times->median * 1e3);
    xm_table_number(table, 3, times->max * 1e3);
    xm_table_number(table, 1, 100 * (predicted / times->median - 1));
    xm_table_number(table, 0, report->job->options->checked > 0 ? (double)result->wrong : NAN);
    (void)fflush(stdout);
}

/* All times are kept, so that readers can choose their own statistics. */
static json_t *result_json(const rb_pipeline_result_t *result, const rb_times_t *times,
                           double predicted)
{
    const rb_pipeline_t *pipeline = result->pipeline;
    json_t *meshes = json_array();

    for (int s = 0; s < ap_plan_stages(pipeline->plan); ++s) {
        const ap_plan_stage_t *stage = ap_plan_stage(pipeline->plan, s);

        (void)json_array_append_new(meshes,
                                    json_sprintf("%dx%d", stage->hosts, stage->devices_per_host));
    }
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:o, s:I, s:i, s:f, s:f, s:f, s:{s:f, s:f, s:f, "
        "s:o}}",
        "plan", result->path, "digest", ap_plan_digest(pipeline->plan), "model",
        ap_plan_info(pipeline->plan)->model, "schedule", ap_schedule_name(pipeline->schedule->kind),
        "stages", pipeline->schedule->stages, "submeshes", meshes, "net_bytes",
        (json_int_t)rb_pipeline_net_bytes(pipeline), "micro_batches",
        pipeline->schedule->micro_batches, "predicted_s", predicted, "predicted_free_s",
        1e-9 * (double)pipeline->free_ns, "error", predicted / times->median - 1, "step_s", "min",
        times->min, "median", times->median, "max", times->max, "all",
        rb_json_numbers(result->seconds, result->runs));
}

xm_status_t rb_pipeline_report_add(rb_pipeline_report_t *report, const rb_pipeline_result_t *result)
{
    const rb_result_t runs = {.runs = result->runs, .seconds = result->seconds};
    rb_times_t times = rb_result_times(&runs);
    double predicted = 1e-9 * (double)result->pipeline->predicted->step_ns;
    json_t *entry = result_json(result, &times, predicted);

    /* The results take a reference of their own, so the entry is released in any case. */
    if (entry == NULL || json_array_append(report->results, entry) != 0) {
        json_decref(entry);
        return xm_error_set(XM_ERR_NO_MEMORY,
                            "the report cannot take %s: no memory, or its name is not UTF-8",
                            result->path);
    }
    if (report->job->options->checked > 0) {
        (void)json_object_set_new(entry, "wrong", json_integer((json_int_t)result->wrong));
    }
    json_decref(entry);
    if (!report->job->options->json.print) {
        print_row(report, result, &times, predicted);
    }
    ++report->plans;
    report->wrong += result->wrong;
    report->error_sum += fabs(predicted / times.median - 1);
    return XM_OK;
}

/* The average is over the sizes of the errors, so errors of both signs do not cancel. */
xm_status_t rb_pipeline_report_finish(rb_pipeline_report_t *report)
{
    const rb_pipeline_options_t *o = report->job->options;

    if (!o->json.print && !o->csv) {
        if (o->checked > 0) {
            (void)printf("# Out of bounds values : %" PRIu64 " %s\n", report->wrong,
                         report->wrong == 0 ? "OK" : "FAILED");
        } else {
            (void)printf("# Out of bounds values : not checked\n");
        }
        (void)printf("# Avg size of error    : %.1f %%\n",
                     100 * report->error_sum / (report->plans > 0 ? report->plans : 1));
    }
    return xm_cli_give_json(&o->json, json_incref(report->root));
}

void rb_pipeline_report_destroy(rb_pipeline_report_t *report)
{
    if (report != NULL) {
        json_decref(report->root);
        free(report);
    }
}
