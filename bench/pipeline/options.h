/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bench/pipeline/options.h
 * The command line of pipeline-bench.
 */
#pragma once

#include "bench/cases.h"
#include "bench/pipeline/compute.h"

/** Everything the command line says. Texts belong to `cli`; absent ones are NULL. */
typedef struct rb_pipeline_options {
    xm_cli_t *cli;
    int argc;
    char *const *argv;
    const char *const *plans; /**< paths */
    size_t plan_count;
    const char *profile, *schedule;
    int micro_batches; /**< 0: the plan's */
    int compute;       /**< rb_compute_kind_t */
    double nic_gbps;   /**< of a host's NIC in an emulated cluster; 0: none is emulated */
    int checked, warmup, iterations;
    const char *trace_path, *plot_path;
    bool wide, csv;
    xm_cli_json_t json;
} rb_pipeline_options_t;

/** Parses. After success xm_cli_finished() of options->cli tells whether --help or --version was
 * all that was wanted; after a failure the object holds nothing. */
xm_status_t rb_pipeline_options_parse(int argc, char *const *argv, rb_pipeline_options_t *options);

/** Refuses outputs that could not be written; only the process that will write them asks. */
xm_status_t rb_pipeline_options_check_outputs(const rb_pipeline_options_t *options);

/** The cluster that is asked for, of @p hosts hosts with @p per_host ranks, in the words of
 * reshard-bench. */
void rb_pipeline_options_cluster(const rb_pipeline_options_t *options, int hosts, int per_host,
                                 rb_options_t *cluster);

void rb_pipeline_options_clear(rb_pipeline_options_t *options);
