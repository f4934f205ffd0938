/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report of reshard-peer-mpi, in the columns and fields of reshard-bench's, so that
 * results can be put side by side. The peer is named after library and method.
 */
#include "bench/peers/peer_report.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/peers/slot.h"
#include "bench/run.h"
#include <crossmesh/version.h>

struct rb_peer_report {
    const rb_peer_job_t *job;
    json_t *root;
    json_t *results;                              /* borrowed from root */
    char version[MPI_MAX_LIBRARY_VERSION_STRING]; /* of the MPI library */
    xm_table_t table;
    uint64_t wrong;
};

enum { PEER_TEXT = 48 };

/* The name of the MPI library, which is the first part of a peer's. */
static const char *library(void)
{
#if defined(OPEN_MPI)
    return "openmpi";
#elif defined(MPICH_VERSION)
    return "mpich";
#else
    return "mpi";
#endif
}

/* Reads "Open MPI v4.1.4" out of a text that goes on after a comma or a new line. */
static void read_version(char *version)
{
    int length;

    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n")] = '\0';
}

/* The library's version belongs to every result. */
static json_t *config_json(const rb_peer_report_t *report)
{
    const rb_options_t *o = report->job->options;

    return json_pack(
        "{s:i, s:i, s:s, s:s, s:s, s:I, s:i, s:i, s:i, s:b}", "ranks", report->job->hosts->ranks,
        "hosts", report->job->hosts->hosts, "transport", "mpi", "library", report->version,
        "partition", xm_partition_name(o->partition), "scale_divisor", (json_int_t)o->scale_divisor,
        "seed", o->seed, "warmup", o->warmup, "iterations", o->iterations, "validate", o->validate);
}

static json_t *ranks_json(const rb_peer_job_t *job)
{
    json_t *ranks = json_array();

    for (int r = 0; r < job->hosts->ranks; ++r) {
        (void)json_array_append_new(ranks, json_pack("{s:i, s:i, s:o, s:I}", "rank", r, "host",
                                                     job->hosts->host_of[r], "name",
                                                     rb_json_text(job->ranks[r].host), "pid",
                                                     (json_int_t)job->ranks[r].pid));
    }
    return ranks;
}

/* The columns are reshard-bench's as far as they apply. */
static const xm_table_column_t columns[] = {{"case", "", 10, false},     {"size", "B", 13, false},
                                            {"peer", "", -18, false},    {"min", "us", 11, false},
                                            {"median", "us", 11, false}, {"max", "us", 11, false},
                                            {"algbw", "GB/s", 8, false}, {"#wrong", "B", 8, false}};

static void print_header(const rb_peer_report_t *report)
{
    const rb_options_t *o = report->job->options;

    printf("# reshard-peer-mpi %s, %s  (us = 1e-6 s, GB = 1e9 B)\n", XM_VERSION_STRING,
           report->version);
    printf("# ranks %d, hosts %d, scale 1/%" PRId64 ", seed %d, warm-up %d, runs %d, validate %s\n",
           report->job->hosts->ranks, report->job->hosts->hosts, o->scale_divisor, o->seed,
           o->warmup, o->iterations, o->validate ? "yes" : "no");
}

xm_status_t rb_peer_report_create(const rb_peer_job_t *job, rb_peer_report_t **report)
{
    rb_peer_report_t *created = calloc(1, sizeof(*created));

    XM_NEED_MEMORY(created, "the report");
    created->job = job;
    read_version(created->version);
    created->results = json_array();
    created->root =
        json_pack("{s:s, s:o, s:o, s:o, s:o}", "version", XM_VERSION_STRING, "args",
                  rb_json_arguments(job->options->argc, job->options->argv), "config",
                  config_json(created), "ranks", ranks_json(job), "results", created->results);
    if (created->root == NULL) {
        free(created);
        return XM_NO_MEMORY("the report");
    }
    created->table = (xm_table_t){stdout, columns, sizeof(columns) / sizeof(columns[0]),
                                  .wide = job->options->wide, .csv = job->options->csv};
    if (!job->options->json.print && !job->options->csv) {
        print_header(created);
    }
    if (!job->options->json.print) {
        xm_table_head(&created->table);
    }
    *report = created;
    return XM_OK;
}

static json_t *result_json(const rb_case_t *one, const char *peer, uint64_t bytes,
                           const rb_peer_result_t *result, const rb_result_t *runs, double median)
{
    return json_pack("{s:s, s:s, s:o, s:s, s:s, s:I, s:o, s:f, s:o*, s:o*}", "case", one->name,
                     "peer", peer, "shape", rb_json_shape(one), "dtype", one->dtype, "transport",
                     "mpi", "bytes", (json_int_t)bytes, "time_s", rb_json_times(runs), "cpu_s",
                     result->cpu_s, "algbw_GBps",
                     median > 0 ? json_real((double)bytes / median * 1e-9) : NULL, "wrong",
                     result->validated ? json_integer((json_int_t)result->wrong) : NULL);
}

/* The row is flushed at once, since the next case may end the job. */
static void print_row(xm_table_t *table, const char *name, const char *peer, uint64_t bytes,
                      const rb_times_t *times, double wrong)
{
    xm_table_text(table, "%s", name);
    xm_table_number(table, 0, (double)bytes);
    xm_table_text(table, "%s", peer);
    xm_table_number(table, 1, times->min * 1e6);
    xm_table_number(table, 1, times->median * 1e6);
    xm_table_number(table, 1, times->max * 1e6);
    xm_table_number(table, 3, times->median > 0 ? (double)bytes / times->median * 1e-9 : NAN);
    xm_table_number(table, 0, wrong);
    (void)fflush(table->file);
}

xm_status_t rb_peer_report_add(rb_peer_report_t *report, const rb_case_t *one,
                               const rb_peer_method_t *method, const rb_peer_result_t *result)
{
    uint64_t bytes = rb_peer_case_bytes(one);
    rb_result_t runs = {.runs = result->runs, .seconds = result->seconds};
    rb_times_t times = rb_result_times(&runs);
    char peer[PEER_TEXT];

    (void)snprintf(peer, sizeof(peer), "%s-%s", library(), method->name);
    if (json_array_append_new(report->results,
                              result_json(one, peer, bytes, result, &runs, times.median)) != 0) {
        return XM_NO_MEMORY("the report");
    }
    report->wrong += result->wrong;
    if (!report->job->options->json.print) {
        print_row(&report->table, one->name, peer, bytes, &times,
                  result->validated ? (double)result->wrong : NAN);
    }
    return XM_OK;
}

xm_status_t rb_peer_report_finish(rb_peer_report_t *report)
{
    const rb_options_t *o = report->job->options;

    if (!o->json.print && !o->csv) {
        printf("# Out of bounds values : %" PRIu64 " %s\n", report->wrong,
               report->wrong == 0 ? "OK" : "FAILED");
    }
    return xm_cli_give_json(&o->json, json_incref(report->root));
}

void rb_peer_report_destroy(rb_peer_report_t *report)
{
    if (report != NULL) {
        json_decref(report->root);
        free(report);
    }
}
