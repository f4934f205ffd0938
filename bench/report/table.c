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

#define COUNT_OF(array) ((int)(sizeof(array) / sizeof((array)[0])))

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
    xm_text_print_wrapped(file, XM_TEXT_COLUMNS, "# rates: ", "#   ", "%s", rates->source);
}

/* Only settings that apply to this kind of run are printed. */
static void print_settings(FILE *file, const rb_job_info_t *job)
{
    const rb_options_t *o = job->options;
    char line[512] = "";

    xm_text_list_add(line, sizeof(line), ", ",
                     "ranks %d, hosts %d, transport %s, partition %s, scale 1/%" PRId64
                     ", chunk %" PRIu64 " B, seed %d",
                     job->hosts->ranks, job->hosts->hosts, rb_job_transport(job),
                     xm_partition_name(o->partition), o->scale_divisor,
                     xm_config_bytes(XM_CONFIG_CHUNK_SIZE), o->seed);
    if (!o->dry_run && job->window > 0) {
        xm_text_list_add(line, sizeof(line), ", ", "window %d", job->window);
    }
    if (!o->dry_run) {
        xm_text_list_add(line, sizeof(line), ", ", "warm-up %d, runs %d%s, validate %s, verify %s",
                         o->warmup, o->iterations, o->paper ? " (the paper's protocol)" : "",
                         o->validate ? "yes" : "no", o->verify ? "yes" : "no");
    }
    if (o->memory == XM_MEMORY_CUDA) {
        xm_text_list_add(line, sizeof(line), ", ", "memory cuda");
    }
    if (o->memory_limit > 0) {
        xm_text_list_add(line, sizeof(line), ", ", "memory limit %" PRIu64 " B", o->memory_limit);
    }
    xm_text_print_wrapped(file, XM_TEXT_COLUMNS, "# ", "#   ", "%s", line);
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

/* Bytes of a time in seconds; a run that took none has no rate. */
static double rate(uint64_t bytes, double seconds)
{
    return seconds > 0 ? (double)bytes / seconds * 1e-9 : NAN;
}

/* The columns of rb_table_row(): what was moved and how, then what was measured or planned. */
#define CASE_COLUMNS                                                                               \
    {"case", "", 10, false}, {"size", "B", 13, false}, {"src", "", -12, false},                    \
        {"dst", "", -12, false}, {"shape", "", -16, true}, {"type", "", -10, true},                \
        {"strategy", "", -14, false}, {"sched", "", -13, false},                                   \
    {                                                                                              \
        "plan", "us", 11, true                                                                     \
    }
static const xm_table_column_t measured[] = {
    CASE_COLUMNS,
    {"bound", "us", 11, true},
    {"predicted", "us", 11, true},
    {"sim%", "", 6, false},
    {"min", "us", 11, true},
    {"median", "us", 10, false},
    {"max", "us", 11, true},
    {"mean", "us", 11, true},
    {"stddev", "us", 11, true},
    {"algbw", "GB/s", 7, false},
    {"busbw", "GB/s", 7, false},
    {"netbw", "GB/s", 8, true},
    {"%bound", "", 6, false},
    {"#wrong", "B", 6, false},
};
static const xm_table_column_t planned[] = {
    CASE_COLUMNS,
    {"net", "B", 13, true},
    {"bound", "us", 12, false},
    {"makespan", "us", 12, false},
    {"%bound", "", 6, false},
    {"gap", "%", 7, false},
};

/* The head is flushed, so it is there even when a rank crashes later. */
static void print_header(FILE *file, const rb_job_info_t *job)
{
    const rb_options_t *o = job->options;

    (void)fprintf(file, "# reshard-bench %s  (us = 1e-6 s, GB = 1e9 B)\n", XM_VERSION_STRING);
    print_command(file, o);
    if (job->start != NULL) {
        xm_text_print_wrapped(file, XM_TEXT_COLUMNS, "# start: ", "#   ", "%s", job->start);
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
    (void)fprintf(file, "#%s\n", o->wide ? "" : " --wide shows all columns");
}

/* CSV is for programs: nothing but the columns. */
void rb_table_begin(xm_table_t *table, const rb_job_info_t *job)
{
    const rb_options_t *o = job->options;

    *table = (xm_table_t){stdout, measured, COUNT_OF(measured), .wide = o->wide, .csv = o->csv};
    if (o->dry_run) {
        table->columns = planned;
        table->count = COUNT_OF(planned);
    }
    if (!o->csv) {
        print_header(table->file, job);
    }
    xm_table_head(table);
}

static void print_measured(xm_table_t *table, const rb_result_t *result)
{
    const xm_plan_t *plan = result->prepared->plan;
    rb_times_t times = rb_result_times(result);
    char obstacle[RB_OBSTACLE_TEXT];

    xm_table_number(table, 1, (double)xm_plan_bound_ns(plan) * 1e-3);
    xm_table_number(table, 1, (double)xm_plan_makespan_ns(plan) * 1e-3);
    xm_table_number(table, 1, rb_result_sim_error(result) * 100);
    xm_table_number(table, 1, times.min * 1e6);
    xm_table_number(table, 1, times.median * 1e6);
    xm_table_number(table, 1, times.max * 1e6);
    xm_table_number(table, 1, times.mean * 1e6);
    xm_table_number(table, 1, sqrt(times.variance) * 1e6);
    xm_table_number(table, 3, rate(xm_plan_bytes(plan), times.median));
    xm_table_number(table, 3, rb_result_busbw(result) * 1e-9);
    xm_table_number(table, 3, rate(xm_plan_net_bytes(plan), times.median));
    xm_table_number(table, 1, rb_result_bound_fraction(result) * 100);
    xm_table_number(table, 0, result->validated ? (double)result->wrong : NAN);
    if (result->sent_share > 0 && !table->csv) {
        (void)fprintf(
            table->file,
            "# %s: the update below sends %.3g %% of the bytes of everything, and is %.3g "
            "times as fast as that, which takes %.1f us; predicted: %.3g %%, %.1f us (%+.1f %%)\n",
            result->prepared->one->name, result->sent_share * 100,
            rb_result_everything(result) / times.median, rb_result_everything(result) * 1e6,
            result->update.share * 100, result->update.seconds * 1e6,
            (result->update.seconds / times.median - 1) * 100);
    }
    if (rb_result_obstacle(result, obstacle) != NULL && !table->csv) {
        (void)fprintf(table->file, "# %s: not comparable: %s\n", result->prepared->one->name,
                      obstacle);
    }
}

/* Without a run there is only the plan to print. */
static void print_planned(xm_table_t *table, const rb_result_t *result)
{
    const xm_plan_t *plan = result->prepared->plan;

    xm_table_number(table, 0, (double)xm_plan_net_bytes(plan));
    xm_table_number(table, 1, (double)xm_plan_bound_ns(plan) * 1e-3);
    xm_table_number(table, 1, (double)xm_plan_makespan_ns(plan) * 1e-3);
    xm_table_number(table, 1, rb_result_bound_fraction(result) * 100);
    xm_table_number(table, 2, rb_result_gap(result) * 100);
}

/* Writes "openshop", or "auto:openshop" where the plan chose or fell back. The names are
 * constants, so equal ones are one. */
static char *format_choice(const char *asked, const char *chosen, char *buffer, size_t size)
{
    (void)snprintf(buffer, size, "%s%s%s", asked, asked != chosen ? ":" : "",
                   asked != chosen ? chosen : "");
    return buffer;
}

/* The cells in which a listed case and a result begin alike. */
static void print_sides(xm_table_t *table, const rb_case_t *one)
{
    char text[RB_SIDE_TEXT], shape[RB_SHAPE_TEXT];

    xm_table_text(table, "%s", rb_side_format(&one->src, text, sizeof(text)));
    xm_table_text(table, "%s", rb_side_format(&one->dst, text, sizeof(text)));
    xm_table_text(table, "%s", rb_case_format_shape(one, shape, sizeof(shape)));
    xm_table_text(table, "%s", one->dtype);
}

void rb_table_row(xm_table_t *table, const rb_result_t *result)
{
    const rb_prepared_t *prepared = result->prepared;
    const rb_case_t *one = prepared->one;
    const xm_plan_t *plan = prepared->plan;
    char choice[CHOICE_TEXT];

    /* A warning above the row, once for each case. */
    if (prepared->shared && one->variant == 0 && !table->csv) {
        (void)fprintf(table->file,
                      "# %s: the meshes share hosts; %d ranks (%d a host) would keep them apart\n",
                      one->name, rb_place_needs(one, one->ranks_per_host), one->ranks_per_host);
    }
    xm_table_text(table, "%s", one->name);
    xm_table_text(table, "%" PRIu64, xm_plan_bytes(plan));
    print_sides(table, one);
    xm_table_text(table, "%s",
                  format_choice(xm_strategy_name(xm_plan_strategy(plan)),
                                xm_strategy_name(xm_plan_chosen_strategy(plan)), choice,
                                sizeof(choice)));
    xm_table_text(table, "%s",
                  format_choice(xm_scheduler_name(xm_plan_scheduler(plan)),
                                xm_scheduler_name(xm_plan_chosen_scheduler(plan)), choice,
                                sizeof(choice)));
    xm_table_number(table, 1, prepared->plan_s * 1e6);
    if (result->runs > 0) {
        print_measured(table, result);
    } else {
        print_planned(table, result);
    }
    (void)fflush(table->file);
}

/* Averages are over results that have a bound; others would count as perfect or as
 * nothing. */
void rb_totals_add(rb_totals_t *totals, const rb_result_t *result)
{
    double fraction = rb_result_bound_fraction(result), busbw = rb_result_busbw(result);

    ++totals->cases;
    totals->with_busbw += !isnan(busbw);
    totals->busbw_sum += isnan(busbw) ? 0 : busbw;
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
    if (totals->with_busbw > 0) {
        (void)fprintf(file, "# Avg bus bandwidth    : %.4g GB/s\n",
                      totals->busbw_sum / totals->with_busbw * 1e-9);
    }
    if (totals->bounded > 0) {
        (void)fprintf(file, "# Avg %%bound            : %.1f\n",
                      totals->bound_fraction_sum / totals->bounded * 100);
    }
}

/* Lists what would be run, with the ranks that each case needs. */
xm_status_t rb_table_list(FILE *file, const rb_options_t *options, const rb_selection_t *selection)
{
    static const xm_table_column_t columns[] = {
        {"case", "", 10, false},   {"src", "", -16, false},         {"dst", "", -16, false},
        {"shape", "", -16, false}, {"type", "", -10, false},        {"strategy", "", -9, false},
        {"sched", "", -9, false},  {"ranks needed", "", -12, false}};
    xm_table_t table = {file, columns, COUNT_OF(columns), .wide = options->wide,
                        .csv = options->csv};

    xm_table_head(&table);
    for (int i = 0; i < selection->count; ++i) {
        const rb_case_t *one = &selection->cases[i];

        xm_table_text(&table, "%s", one->name);
        print_sides(&table, one);
        xm_table_text(&table, "%s", xm_strategy_name((xm_strategy_t)one->strategy));
        xm_table_text(&table, "%s", xm_scheduler_name((xm_scheduler_t)one->scheduler));
        xm_table_text(&table, "%d", rb_place_needs(one, one->ranks_per_host));
    }
    return xm_cli_flush();
}
