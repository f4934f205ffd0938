/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The printed table: settings first, as comments, then a row for each result. Rows are
 * meant for people and for simple scripts, so columns stay in place and a missing number
 * is a dash.
 */
#include "bench/report/table.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/run.h"
#include "bench/cases.h"
#include "comm/base.h"
#include <crossmesh/version.h>

enum { CHOICE_TEXT = 32 };

const char *rb_job_transport(const rb_job_info_t *job)
{
    if (job->options->dry_run) {
        return "none";
    }
    return rb_transport_name(job->options->transport);
}

/* The command makes a stored table reproducible. */
static void print_command(FILE *file, const rb_options_t *options)
{
    (void)fprintf(file, "# command:");
    for (int i = 0; i < options->argc; ++i) {
        (void)fprintf(file, " %s", options->argv[i]);
    }
    (void)fputc('\n', file);
}

/* A prediction is worth what its rates are, so the head says where they come from. */
static void print_rates(FILE *file, const rb_rates_t *rates, int hosts)
{
    char rate[1024], nic[32], host[32], rails[64] = "";

    if (rates->rails > hosts) {
        (void)snprintf(rails, sizeof(rails), ", %d rails in all", rates->rails);
    }
    (void)fprintf(
        file, "# network: NIC %s GB/s a host and direction%s%s, %s; inside a host %.3f GB/s, %s\n",
        rb_rates_format_nic(rates, rate, sizeof(rate)), rails,
        rates->nic_rates > 1 ? ", hosts in turn" : "",
        xm_text_format_seconds(rates->nic_latency, nic, sizeof(nic)), rates->host_bandwidth * 1e-9,
        xm_text_format_seconds(rates->host_latency, host, sizeof(host)));
    if (rates->cores_per_host > 0 && rates->nic_cpu > 0) {
        (void)fprintf(
            file,
            "# processors: %g a host; at each end %.3f s a GB between hosts, %.3f s inside "
            "a host\n",
            rates->cores_per_host, rates->nic_cpu * 1e9, rates->host_cpu * 1e9);
    }
    if (rates->racks > 0) {
        (void)fprintf(file, "# uplinks: %.3f GB/s a rack and direction, %d racks\n",
                      rates->uplink_bandwidth * 1e-9, rates->racks);
    }
    (void)fprintf(file, "# rates: %s\n", rates->source);
}

/* Only settings that apply to this kind of run are printed. */
static void print_settings(FILE *file, const rb_job_info_t *job)
{
    const rb_options_t *o = job->options;

    (void)fprintf(file,
                  "# ranks %d, hosts %d, transport %s, partition %s, scale 1/%" PRId64
                  ", chunk %" PRIu64 " B, seed %d",
                  job->hosts->ranks, job->hosts->hosts, rb_job_transport(job),
                  xm_partition_name(o->partition), o->scale_divisor,
                  xm_config_bytes(XM_CONFIG_CHUNK_SIZE), o->seed);
    if (!o->dry_run) {
        if (job->window > 0) {
            (void)fprintf(file, ", window %d", job->window);
        }
        (void)fprintf(file, ", warm-up %d, runs %d%s, validate %s, verify %s", o->warmup,
                      o->iterations, o->paper ? " (the paper's protocol)" : "",
                      o->validate ? "yes" : "no", o->verify ? "yes" : "no");
    }
    if (o->memory == XM_MEMORY_CUDA) {
        (void)fprintf(file, ", memory cuda");
    }
    if (o->memory_limit > 0) {
        (void)fprintf(file, ", memory limit %" PRIu64 " B", o->memory_limit);
    }
    (void)fputc('\n', file);
}

/* A rank that is not in the mesh is shown as a dash. */
static void format_coordinates(const xm_mesh_t *mesh, int rank, char *buffer, size_t size)
{
    int position = xm_mesh_position(mesh, rank);
    size_t used = 0;

    if (position < 0) {
        (void)snprintf(buffer, size, "-");
        return;
    }
    for (int a = 0; a < xm_mesh_axes(mesh) && used < size; ++a) {
        used += (size_t)snprintf(buffer + used, size - used, "%s%d", a > 0 ? "," : "",
                                 xm_mesh_coordinate(mesh, position, a));
    }
}

/* Adds one to the count of every rank in a mesh. */
static void count_members(const xm_mesh_t *mesh, int *counts)
{
    for (int p = 0; p < xm_mesh_size(mesh); ++p) {
        ++counts[xm_mesh_rank(mesh, p)];
    }
}

/* Counts in how many cases each rank is a source and a destination: two numbers a rank,
 * or NULL. */
static int *count_parts(const rb_job_info_t *job)
{
    int ranks = job->hosts->ranks, *counts = calloc(2 * (size_t)ranks, sizeof(*counts));

    for (int i = 0; counts != NULL && i < job->selection->count; ++i) {
        xm_mesh_t *src, *dst;
        bool shared;

        if (job->selection->cases[i].variant == 0 &&
            rb_place(&job->selection->cases[i], job->hosts, &src, &dst, &shared) == XM_OK) {
            count_members(src, counts);
            count_members(dst, counts + ranks);
            xm_mesh_destroy(dst);
            xm_mesh_destroy(src);
        }
    }
    return counts;
}

/* The start of a line, which both kinds of tables continue. */
static void print_rank(FILE *file, const rb_job_info_t *job, int rank)
{
    (void)fprintf(file, "# rank %4d  host %-12s  pid %7" PRId64 "  ", rank, job->ranks[rank].host,
                  job->ranks[rank].pid);
}

/* Prints the ranks with the place of each in the meshes of the only case. */
static void print_ranks_of_case(FILE *file, const rb_job_info_t *job)
{
    char src_text[64], dst_text[64];
    xm_mesh_t *src, *dst;
    bool shared;

    if (rb_place(&job->selection->cases[0], job->hosts, &src, &dst, &shared) < 0) {
        return;
    }
    for (int r = 0; r < job->hosts->ranks; ++r) {
        format_coordinates(src, r, src_text, sizeof(src_text));
        format_coordinates(dst, r, dst_text, sizeof(dst_text));
        print_rank(file, job, r);
        (void)fprintf(file, "src[%s] dst[%s]\n", src_text, dst_text);
    }
    xm_mesh_destroy(dst);
    xm_mesh_destroy(src);
}

/* With several cases a rank has no single place, so its parts are counted. */
static void print_ranks(FILE *file, const rb_job_info_t *job)
{
    int *counts = count_parts(job);

    for (int r = 0; counts != NULL && r < job->hosts->ranks; ++r) {
        print_rank(file, job, r);
        (void)fprintf(file, "source in %d, destination in %d of %d cases\n", counts[r],
                      counts[job->hosts->ranks + r], rb_selection_cases(job->selection));
    }
    free(counts);
}

/* Two lines: names and units. Dry runs have their own columns. */
static void print_columns(FILE *file, bool dry_run)
{
    (void)fprintf(file, "#\n#%11s %13s %-16s %-16s %-16s %-10s %-14s %-13s %11s", "case", "size",
                  "src", "dst", "shape", "type", "strategy", "sched", "plan");
    if (dry_run) {
        (void)fprintf(file, " %13s %12s %12s %7s %7s\n", "net", "bound", "makespan", "%bound",
                      "gap");
    } else {
        (void)fprintf(file, " %11s %11s %7s %11s %11s %11s %11s %11s %8s %8s %7s %8s\n", "bound",
                      "predicted", "sim%", "min", "median", "max", "mean", "stddev", "algbw",
                      "netbw", "%bound", "#wrong");
    }
    (void)fprintf(file, "#%11s %13s %-16s %-16s %-16s %-10s %-14s %-13s %11s", "", "(B)", "", "",
                  "", "", "", "", "(us)");
    if (dry_run) {
        (void)fprintf(file, " %13s %12s %12s %7s %7s\n", "(B)", "(us)", "(us)", "", "(%)");
    } else {
        (void)fprintf(file, " %11s %11s %7s %11s %11s %11s %11s %11s %8s %8s %7s %8s\n", "(us)",
                      "(us)", "", "(us)", "(us)", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "",
                      "(B)");
    }
}

/* The head is flushed, so it is there even when a rank crashes later. */
void rb_table_header(FILE *file, const rb_job_info_t *job)
{
    const rb_options_t *o = job->options;

    (void)fprintf(file, "# reshard-bench %s  (us = 1e-6 s, GB = 1e9 B)\n", XM_VERSION_STRING);
    print_command(file, o);
    if (job->start != NULL) {
        (void)fprintf(file, "# start: %s\n", job->start);
    }
    print_settings(file, job);
    if (job->rates->emulated) {
        char text[512];

        (void)fprintf(file, "# emulated cluster: %s\n",
                      rb_emulation_describe(o, text, sizeof(text)));
    }
    print_rates(file, job->rates, job->hosts->hosts);
    if (!o->dry_run && o->transport == RB_TRANSPORT_SIM) {
        (void)fprintf(file, "# times are virtual: the simulated network's clock\n");
    }
    if (job->ranks != NULL && rb_selection_cases(job->selection) == 1) {
        print_ranks_of_case(file, job);
    } else if (job->ranks != NULL) {
        print_ranks(file, job);
    }
    print_columns(file, o->dry_run);
    (void)fflush(file);
}

/* NAN stands for "does not apply". */
static void print_percent(FILE *file, double fraction)
{
    if (isnan(fraction)) {
        (void)fprintf(file, " %7s", "-");
    } else {
        (void)fprintf(file, " %7.1f", fraction * 100);
    }
}

/* The columns follow print_columns(). */
static void print_measured(FILE *file, const rb_result_t *result)
{
    const xm_plan_t *plan = result->prepared->plan;
    rb_times_t times = rb_result_times(result);
    char obstacle[RB_OBSTACLE_TEXT];

    (void)fprintf(file, " %11.1f %11.1f", (double)xm_plan_bound_ns(plan) * 1e-3,
                  (double)xm_plan_makespan_ns(plan) * 1e-3);
    print_percent(file, rb_result_sim_error(result));
    (void)fprintf(file, " %11.1f %11.1f %11.1f %11.1f %11.1f", times.min * 1e6, times.median * 1e6,
                  times.max * 1e6, times.mean * 1e6, sqrt(times.variance) * 1e6);
    if (times.median > 0) {
        (void)fprintf(file, " %8.3f %8.3f", (double)xm_plan_bytes(plan) / times.median * 1e-9,
                      (double)xm_plan_net_bytes(plan) / times.median * 1e-9);
    } else {
        (void)fprintf(file, " %8s %8s", "-", "-");
    }
    print_percent(file, rb_result_bound_fraction(result));
    if (result->validated) {
        (void)fprintf(file, " %8" PRIu64 "\n", result->wrong);
    } else {
        (void)fprintf(file, " %8s\n", "-");
    }
    if (rb_result_obstacle(result, obstacle) != NULL) {
        (void)fprintf(file, "# %s: not comparable: %s\n", result->prepared->one->name, obstacle);
    }
}

/* Without a run there is only the plan to print. */
static void print_planned(FILE *file, const rb_result_t *result)
{
    const xm_plan_t *plan = result->prepared->plan;
    double gap = rb_result_gap(result);

    (void)fprintf(file, " %13" PRIu64 " %12.1f %12.1f", xm_plan_net_bytes(plan),
                  (double)xm_plan_bound_ns(plan) * 1e-3, (double)xm_plan_makespan_ns(plan) * 1e-3);
    print_percent(file, rb_result_bound_fraction(result));
    if (isnan(gap)) {
        (void)fprintf(file, " %7s\n", "-");
    } else {
        (void)fprintf(file, " %7.2f\n", gap * 100);
    }
}

/* Writes "openshop", or "auto:openshop" where the plan chose or fell back. The names are
 * constants, so equal ones are one. */
static char *format_choice(const char *asked, const char *chosen, char *buffer, size_t size)
{
    (void)snprintf(buffer, size, "%s%s%s", asked, asked != chosen ? ":" : "",
                   asked != chosen ? chosen : "");
    return buffer;
}

void rb_table_row(FILE *file, const rb_result_t *result)
{
    const rb_prepared_t *prepared = result->prepared;
    const rb_case_t *one = prepared->one;
    const xm_plan_t *plan = prepared->plan;
    char src[RB_SIDE_TEXT], dst[RB_SIDE_TEXT], shape[RB_SHAPE_TEXT], scheduler[CHOICE_TEXT],
        strategy[CHOICE_TEXT];

    /* A warning above the row, once for each case. */
    if (prepared->shared && one->variant == 0) {
        (void)fprintf(file,
                      "# %s: the meshes share hosts; %d ranks (%d a host) would keep them apart\n",
                      one->name, rb_place_needs(one, one->ranks_per_host), one->ranks_per_host);
    }
    (void)fprintf(file, "%12s %13" PRIu64 " %-16s %-16s %-16s %-10s %-14s %-13s %11.1f", one->name,
                  xm_plan_bytes(plan), rb_side_format(&one->src, src, sizeof(src)),
                  rb_side_format(&one->dst, dst, sizeof(dst)),
                  rb_case_format_shape(one, shape, sizeof(shape)), one->dtype,
                  format_choice(xm_strategy_name(xm_plan_strategy(plan)),
                                xm_strategy_name(xm_plan_chosen_strategy(plan)), strategy,
                                sizeof(strategy)),
                  format_choice(xm_scheduler_name(xm_plan_scheduler(plan)),
                                xm_scheduler_name(xm_plan_chosen_scheduler(plan)), scheduler,
                                sizeof(scheduler)),
                  prepared->plan_s * 1e6);
    if (result->runs > 0) {
        print_measured(file, result);
    } else {
        print_planned(file, result);
    }
    (void)fflush(file);
}

/* Averages are over results that have a bound; others would count as perfect or as
 * nothing. */
void rb_totals_add(rb_totals_t *totals, const rb_result_t *result)
{
    double fraction = rb_result_bound_fraction(result);

    ++totals->cases;
    totals->wrong += result->wrong;
    totals->resends += result->resends;
    totals->cpu_s += result->cpu_s;
    totals->bytes += (double)xm_plan_bytes(result->prepared->plan);
    totals->validated = result->validated;
    totals->verified = result->verified;
    if (!isnan(fraction)) {
        totals->bound_fraction_sum += fraction;
        ++totals->bounded;
    }
}

/* The checks come first: times of wrong data are worth nothing. */
void rb_table_summary(FILE *file, const rb_job_info_t *job, const rb_totals_t *totals)
{
    if (!job->options->dry_run) {
        if (totals->validated) {
            (void)fprintf(file, "# Out of bounds values : %" PRIu64 " %s\n", totals->wrong,
                          totals->wrong == 0 ? "OK" : "FAILED");
        } else {
            (void)fprintf(file, "# Out of bounds values : not checked\n");
        }
        if (totals->verified) {
            (void)fprintf(file, "# Checksums            : all equal\n");
        }
        if (totals->resends > 0 || strcmp(xm_config_string(XM_CONFIG_VERIFY), "chunk") == 0) {
            (void)fprintf(file, "# Sent again           : %" PRIu64 " chunks that came wrong\n",
                          totals->resends);
        }
    }
    if (totals->cpu_s > 0) {
        (void)fprintf(file, "# CPU of all ranks     : %.6f s a run on average, %.3f s a GB\n",
                      totals->cpu_s / totals->cases, totals->cpu_s / totals->bytes * 1e9);
    }
    if (totals->bounded > 0) {
        (void)fprintf(file, "# Avg %%bound            : %.1f\n",
                      totals->bound_fraction_sum / totals->bounded * 100);
    }
}

/* Lists what would be run, with the ranks that each case needs. */
xm_status_t rb_table_list(FILE *file, const rb_selection_t *selection)
{
    (void)fprintf(file, "#%9s %-16s %-16s %-16s %-10s %-9s %-9s %s\n", "case", "src", "dst",
                  "shape", "type", "strategy", "sched", "ranks needed");
    for (int i = 0; i < selection->count; ++i) {
        const rb_case_t *one = &selection->cases[i];
        char src[RB_SIDE_TEXT], dst[RB_SIDE_TEXT], shape[RB_SHAPE_TEXT];

        (void)fprintf(file, "%10s %-16s %-16s %-16s %-10s %-9s %-9s %d\n", one->name,
                      rb_side_format(&one->src, src, sizeof(src)),
                      rb_side_format(&one->dst, dst, sizeof(dst)),
                      rb_case_format_shape(one, shape, sizeof(shape)), one->dtype,
                      xm_strategy_name((xm_strategy_t)one->strategy),
                      xm_scheduler_name((xm_scheduler_t)one->scheduler),
                      rb_place_needs(one, one->ranks_per_host));
    }
    return xm_cli_flush();
}
