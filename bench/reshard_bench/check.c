/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --check: runs the doctor (comm/doctor/job.h) on all ranks and prints its findings, as a
 * table or as JSON. It works with a malformed configuration and without a launcher, since
 * it is what users run when nothing else works.
 */
#include "bench/reshard_bench/check.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/doctor.h"
#include "comm/job.h"
#include <crossmesh/version.h>

enum { RANKS_SIZE = 64, JSON_FLAGS = JSON_INDENT(1) };

/* Ranks as "0-3,5"; what does not fit ends in dots. */
static void format_ranks(const xm_report_row_t *row, char text[RANKS_SIZE])
{
    size_t used = 0;

    for (int i = 0; i < row->count;) {
        char range[32];
        int last = i, length;

        while (last + 1 < row->count && row->ranks[last + 1] == row->ranks[last] + 1) {
            ++last;
        }
        length = last > i ? snprintf(range, sizeof(range), "%d-%d", row->ranks[i], row->ranks[last])
                          : snprintf(range, sizeof(range), "%d", row->ranks[i]);
        if (used + (size_t)length + 5 >= RANKS_SIZE) {
            (void)snprintf(text + used, RANKS_SIZE - used, ",...");
            return;
        }
        used += (size_t)snprintf(text + used, RANKS_SIZE - used, "%s%s", i > 0 ? "," : "", range);
        i = last + 1;
    }
}

/* Counts different names; quadratic, but only printed once. */
static int count_hosts(const xm_report_t *report)
{
    int hosts = 0;

    for (int rank = 0; rank < xm_report_ranks(report); ++rank) {
        bool first = true;

        for (int before = 0; before < rank && first; ++before) {
            first = strcmp(xm_report_host(report, before), xm_report_host(report, rank)) != 0;
        }
        hosts += first;
    }
    return hosts;
}

/* Columns are as wide as their longest entry, found before anything is printed. */
static void measure(const xm_report_t *report, int *ranks, int *subject)
{
    *ranks = (int)strlen("ranks");
    *subject = (int)strlen("subject");
    for (int i = 0; i < xm_report_rows(report); ++i) {
        const xm_report_row_t *row = xm_report_row(report, i);
        char text[RANKS_SIZE] = "";
        int length;

        format_ranks(row, text);
        length = (int)strlen(text);
        *ranks = length > *ranks ? length : *ranks;
        length = (int)strlen(row->finding.subject);
        *subject = length > *subject ? length : *subject;
    }
}

/* The versions of the libraries stand in the first line, as they explain many findings. */
static void print_table(const xm_report_t *report, FILE *file)
{
    xm_versions_t versions;
    char under[192];
    int ranks_width, subject_width;

    xm_versions_read("", &versions);
    measure(report, &ranks_width, &subject_width);
    (void)fprintf(file, "# reshard-bench %s --check: ranks %d, hosts %d; %s\n", XM_VERSION_STRING,
                  xm_report_ranks(report), count_hosts(report),
                  xm_versions_format(&versions, under, sizeof(under)));
    for (int rank = 0; rank < xm_report_ranks(report); ++rank) {
        (void)fprintf(file, "# rank %4d  host %s\n", rank, xm_report_host(report, rank));
    }
    (void)fprintf(file, "#%-8s %-*s  %-*s  %s\n", "verdict", ranks_width, "ranks", subject_width,
                  "subject", "finding");
    for (int i = 0; i < xm_report_rows(report); ++i) {
        const xm_report_row_t *row = xm_report_row(report, i);
        char ranks[RANKS_SIZE] = "";

        format_ranks(row, ranks);
        (void)fprintf(file, "%-9s %-*s  %-*s  %s\n", xm_severity_name(row->finding.severity),
                      ranks_width, ranks, subject_width, row->finding.subject, row->finding.text);
        /* Advice stands below its finding, in the same column. */
        if (row->finding.advice[0] != '\0') {
            (void)fprintf(file, "%*s-> %s\n", 10 + ranks_width + 2 + subject_width + 2, "",
                          row->finding.advice);
        }
    }
    (void)fprintf(file, "# ");
    for (int v = 0; v < XM_SEVERITY_COUNT; ++v) {
        (void)fprintf(file, "%s%s %d", v > 0 ? ", " : "", xm_severity_name((xm_severity_t)v),
                      xm_report_count(report, (xm_severity_t)v));
    }
    (void)fprintf(file, "\n");
}

/* A finding as JSON; advice is left out where there is none, rather than being empty. */
static json_t *finding_json(const xm_report_row_t *row)
{
    json_t *ranks = json_array();
    json_t *finding;

    for (int i = 0; i < row->count; ++i) {
        (void)json_array_append_new(ranks, json_integer(row->ranks[i]));
    }
    finding = json_pack("{s:s, s:s, s:s, s:o}", "subject", row->finding.subject, "verdict",
                        xm_severity_name(row->finding.severity), "finding", row->finding.text,
                        "ranks", ranks);
    if (row->finding.advice[0] != '\0') {
        (void)json_object_set_new(finding, "advice", json_string(row->finding.advice));
    }
    return finding;
}

static xm_status_t print_json(const xm_report_t *report, FILE *file)
{
    json_t *hosts = json_array(), *findings = json_array(), *counts = json_object(), *root;
    xm_versions_t versions;
    char under[192];
    xm_status_t status = XM_OK;

    xm_versions_read("", &versions);
    for (int rank = 0; rank < xm_report_ranks(report); ++rank) {
        (void)json_array_append_new(hosts, json_string(xm_report_host(report, rank)));
    }
    for (int i = 0; i < xm_report_rows(report); ++i) {
        (void)json_array_append_new(findings, finding_json(xm_report_row(report, i)));
    }
    for (int v = 0; v < XM_SEVERITY_COUNT; ++v) {
        (void)json_object_set_new(counts, xm_severity_name((xm_severity_t)v),
                                  json_integer(xm_report_count(report, (xm_severity_t)v)));
    }
    root = json_pack("{s:s, s:s, s:o, s:o, s:o}", "version", XM_VERSION_STRING, "software",
                     xm_versions_format(&versions, under, sizeof(under)), "hosts", hosts,
                     "findings", findings, "counts", counts);
    if (root == NULL || json_dumpf(root, file, JSON_FLAGS) != 0) {
        status = XM_NO_MEMORY("the JSON report");
    }
    (void)fputc('\n', file);
    json_decref(root);
    return status;
}

/* A machine that hwloc cannot describe is examined without its devices: that is one
 * finding less, not a reason to stop. */
static xm_status_t examine(const rb_options_t *options, xm_bootstrap_t *bootstrap, double timeout,
                           xm_report_t **report)
{
    xm_doctor_params_t params = XM_DOCTOR_PARAMS_INIT;
    xm_topology_t *topology = NULL;
    xm_doctor_facts_t facts;
    xm_status_t status;

    xm_doctor_facts_read(&facts);
    if (xm_topology_create(NULL, 0, &topology) < 0) {
        topology = NULL;
    }
    params.facts = &facts;
    params.topology = topology;
    params.verbs = options->transport == RB_TRANSPORT_VERBS;
    params.spin = strcmp(xm_config_string(XM_CONFIG_PROGRESS), "spin") == 0;
    status = xm_report_create(bootstrap, timeout, &params, report);
    xm_topology_destroy(topology);
    return status;
}

/* Rank 0 prints for all. A failed finding makes the exit status 1, so scripts can use it
 * as a test. */
int rb_check_run(const rb_options_t *options, const xm_job_env_t *env)
{
    double timeout = xm_config_seconds(XM_CONFIG_TIMEOUT);
    xm_bootstrap_t *bootstrap = NULL;
    xm_report_t *report = NULL;
    xm_status_t status = XM_OK;
    int rank = 0, exit_status = EXIT_SUCCESS;

    if (env != NULL) {
        status = xm_bootstrap_create(env, xm_launch_listen_fd(), timeout, &bootstrap);
    }
    if (status == XM_OK) {
        rank = bootstrap != NULL ? xm_bootstrap_rank(bootstrap) : 0;
        status = examine(options, bootstrap, timeout, &report);
    }
    if (status == XM_OK && rank == 0) {
        if (options->json.print) {
            status = print_json(report, stdout);
        } else {
            print_table(report, stdout);
        }
        XM_THEN(status, xm_cli_flush());
        exit_status = xm_report_count(report, XM_SEVERITY_FAIL) > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
    }
    if (status < 0) {
        exit_status = xm_cli_fail("reshard-bench", status);
    }
    if (status == XM_OK && bootstrap != NULL) {
        /* Nobody leaves while another rank still needs it; a rank whose meeting fails
         * says so itself. */
        (void)xm_bootstrap_barrier(bootstrap, timeout);
    }
    xm_report_destroy(report);
    xm_bootstrap_destroy(bootstrap);
    return exit_status;
}
