/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report of a job: table, JSON document, trace, figure and plan file, of which only
 * some are wanted. Results are added one by one and shown as they come, since a suite can
 * take hours.
 */
#include "bench/report/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/report/comparison.h"
#include "bench/report/document.h"
#include "bench/report/refit.h"
#include "bench/report/table.h"
#include "bench/report/timeline.h"
#include "bench/report/trace.h"

struct rb_report {
    const rb_job_info_t *job;
    rb_document_t *document;
    rb_trace_t *trace;
    xm_table_t table;
    rb_totals_t totals;
    rb_comparison_t comparison;
};

/* Called before anything runs, so that a wrong path does not cost the measurement. */
xm_status_t rb_report_check(const rb_options_t *options)
{
    const char *const paths[][2] = {{"--json-file", options->json.file},
                                    {"--trace", options->trace_path},
                                    {"--plot", options->plot_path},
                                    {"--dump-plan", options->dump_path}};

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); ++i) {
        XM_TRY(xm_file_check_output(paths[i][0], paths[i][1]));
    }
    return XM_OK;
}

/* The head is printed before the first case, so users see the settings while it runs. */
xm_status_t rb_report_create(const rb_job_info_t *job, rb_report_t **report)
{
    rb_report_t *created = calloc(1, sizeof(*created));
    xm_status_t status;

    XM_NEED_MEMORY(created, "the report");
    created->job = job;
    status = rb_document_create(job, &created->document);
    if (status == XM_OK && job->options->trace_path != NULL) {
        status = rb_trace_create(&created->trace);
    }
    if (status < 0) {
        rb_report_destroy(created);
        return status;
    }
    if (!job->options->json.print) {
        rb_table_begin(&created->table, job);
    }
    *report = created;
    return XM_OK;
}

/* The plan is written as it is used, with the network of this job in its makespan. */
static xm_status_t dump_plan(const char *path, const xm_plan_t *plan)
{
    FILE *file;
    XM_TRY(xm_file_create(path, &file));

    return xm_file_close(file, path, xm_plan_write_json(plan, file));
}

/* Errors of the outputs do not keep the row from being printed. */
xm_status_t rb_report_add(rb_report_t *report, const rb_result_t *result)
{
    const rb_options_t *options = report->job->options;
    xm_status_t status = rb_document_add(report->document, result);

    rb_totals_add(&report->totals, result);
    XM_THEN(status, rb_comparison_add(&report->comparison, result));
    if (!options->json.print) {
        rb_table_row(&report->table, result);
    }
    if (status == XM_OK && report->trace != NULL) {
        status = rb_trace_add(report->trace, result);
    }
    if (status == XM_OK && options->plot_path != NULL) {
        status = rb_timeline_write(options->plot_path, result);
    }
    if (status == XM_OK && options->dump_path != NULL) {
        status = dump_plan(options->dump_path, result->prepared->plan);
    }
    return status;
}

/* The document is written last, so that it is complete. */
xm_status_t rb_report_finish(rb_report_t *report)
{
    xm_status_t status = XM_OK;

    if (!report->job->options->json.print && !report->job->options->csv) {
        rb_comparison_print_ratios(stdout, &report->comparison);
        rb_refit_print(stdout, &report->comparison);
        rb_table_summary(stdout, report->job, &report->totals);
        rb_comparison_print_prediction(stdout, &report->comparison);
    }
    if (report->trace != NULL) {
        status = rb_trace_write(report->trace, report->job->options->trace_path);
    }
    XM_THEN(status, rb_document_write(report->document));
    return status == XM_OK ? xm_cli_flush() : status;
}

uint64_t rb_report_wrong(const rb_report_t *report)
{
    return report->totals.wrong;
}

void rb_report_destroy(rb_report_t *report)
{
    if (report != NULL) {
        rb_trace_destroy(report->trace);
        rb_document_destroy(report->document);
        rb_comparison_clear(&report->comparison);
        free(report);
    }
}
