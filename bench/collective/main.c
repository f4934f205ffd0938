/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collective-bench: programs of a collective, checked, simulated and held against the bound; and
 * with ranks run, timed and their bytes checked. As in reshard-bench, one program is the parent
 * that starts ranks and each of them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/cases.h"
#include "bench/cluster.h"
#include "bench/collective/collective.h"
#include "bench/run.h"
#include "cli_support.h"
#include "comm/base.h"
#include "comm/job.h"
#include "comm/profile.h"
#include "comm/worker.h"
#include "resharding/collective.h"
#include <crossmesh/version.h>

static const char program_name[] = "collective-bench";

static const char summary[] =
    "Builds programs of a collective for a mesh of devices or a matrix of links, checks that each "
    "contribution is in each result exactly once, simulates them, and compares them with the least "
    "time that any program needs. With --run, ranks run them, hosts with NICs of the given rate "
    "are emulated, and every element is compared. docs/collective-bench.md explains the columns.";

#define NAMES                                                                                      \
    "ring|halving-doubling|direct|hierarchical|tree|double-tree|pairs|server|themis|switch|trees"

/* Bytes that wait at a port. Fabrics that collectives run on hold senders back and lose nothing. */
enum { PIECES_MOST = 64, DEVICES_MOST = 1024, DEEP_QUEUE = 32 << 20 };

/* Programs of more moves than these are not tried with more pieces. */
static const double moves_most = 4e6;

xm_status_t cb_read_list(const char *what, const char *text, char separator, double least,
                         int wanted, double *values, int *count)
{
    *count = 0;
    for (const char *at = text; at != NULL;) {
        char item[40];
        size_t length = xm_text_word(&at, separator, item, sizeof(item));

        if (*count == XM_INTERCONNECT_MOST || length >= sizeof(item)) {
            return XM_INVALID("%s has 1 to %d numbers, not '%s'", what, XM_INTERCONNECT_MOST, text);
        }
        XM_TRY(xm_text_parse_double(what, item, least, 1e12, &values[(*count)++]));
    }
    while (*count == 1 && *count < wanted) {
        for (; *count < wanted; ++*count) {
            values[*count] = values[0];
        }
    }
    return wanted == 0 || *count == wanted
               ? XM_OK
               : XM_INVALID("%s has %d numbers, the mesh has %d dimensions", what, *count, wanted);
}

static xm_status_t read_sizes(cb_options_t *o)
{
    xm_status_t status = XM_OK;

    for (const char *at = o->size_list; at != NULL && status == XM_OK;) {
        char item[40];
        size_t length = xm_text_word(&at, ',', item, sizeof(item));

        if (o->size_count == CB_SIZES_MOST || length >= sizeof(item)) {
            return XM_INVALID("--size has 1 to %d sizes, not '%s'", CB_SIZES_MOST, o->size_list);
        }
        status = xm_text_parse_bytes("--size", item, &o->sizes[o->size_count++]);
    }
    return status;
}

/* A file of n lines of n rates in Gbit/s; 0 where there is no link. */
static xm_status_t read_links(cb_options_t *o)
{
    FILE *file = fopen(o->links, "r");
    int n = o->net.devices, read = 0;
    char item[40];
    xm_status_t status = XM_OK;

    if (file == NULL) {
        return XM_NOT_FOUND("cannot read the links of '%s'", o->links);
    }
    o->net.link = calloc((size_t)n * (size_t)n, sizeof(double));
    if (o->net.link == NULL) {
        status = XM_NO_MEMORY("the links of %d devices", n);
    }
    while (status == XM_OK && read < n * n && fscanf(file, "%39s", item) == 1) {
        status = xm_text_parse_double(o->links, item, 0, 1e9, &o->net.link[read]);
        o->net.link[read++] *= 1e9 / 8;
    }
    if (status == XM_OK && fscanf(file, "%39s", item) == 1) {
        ++read; /* there is more */
    }
    (void)fclose(file);
    return status == XM_OK && read != n * n
               ? XM_INVALID("'%s' does not have %d x %d rates", o->links, n, n)
               : status;
}

static xm_status_t set_interconnect(cb_options_t *o)
{
    double extent[4], rate[4], latency[4], overhead[4], ratio[4], coding[4];
    const struct {
        const char *what, *text;
        double least, *values;
    } lists[] = {{"--gbps", o->rates, 1e-6, rate},
                 {"--latency-us", o->latencies, 0, latency},
                 {"--ratio", o->ratios, 1e-6, ratio},
                 {"--overhead-us", o->overheads, 0, overhead},
                 {"--coding-gbps", o->codings, 0, coding}};
    int count, same, devices = 1;
    xm_status_t status = cb_read_list("--mesh", o->mesh, 'x', 1, 0, extent, &count);

    for (size_t i = 0; status == XM_OK && i < sizeof(lists) / sizeof(lists[0]); ++i) {
        status = cb_read_list(lists[i].what, lists[i].text, ',', lists[i].least, count,
                              lists[i].values, &same);
    }
    XM_TRY(status);
    for (int i = count - 1; i >= 0; --i) {
        bool nic = i == count - 2 && !o->rails; /* shared by the devices of a host */

        if (extent[i] > DEVICES_MOST || devices * extent[i] > DEVICES_MOST) {
            return XM_INVALID("--mesh has at most %d devices", DEVICES_MOST);
        }
        o->net.dimension[count - 1 - i] = (xm_dimension_t){.extent = (int)extent[i],
                                                           .share = nic ? devices : 1,
                                                           .rate = rate[i] * 1e9 / 8,
                                                           .latency = latency[i] * 1e-6,
                                                           .overhead = overhead[i] * 1e-6,
                                                           .ratio = ratio[i],
                                                           .coding = coding[i] * 1e9 / 8};
        devices *= (int)extent[i];
    }
    o->net.dimensions = count;
    o->net.devices = devices;
    if (devices < 2) {
        return XM_INVALID("--mesh needs two devices");
    }
    return o->links != NULL ? read_links(o) : XM_OK;
}

static bool fits(const cb_options_t *o, cb_name_t name)
{
    int n = o->net.devices;
    bool sums = o->collective == XM_ALL_REDUCE, links = o->net.link != NULL;

    if (o->adasum) { /* whole chunks, in order */
        return name == PAIRS && sums && !links && xm_elements[o->type].adasum != NULL;
    }
    if (o->collective == XM_ALL_TO_ALL) {
        return name == DIRECT;
    }
    switch (name) {
    case HALVING_DOUBLING:
        return (n & (n - 1)) == 0 && !links;
    case HIERARCHICAL:
    case THEMIS:
        return o->net.dimensions > 1 && !links;
    case TREE:
    case DOUBLE_TREE:
    case PAIRS:
    case SERVER:
        return sums && !links;
    case SWITCH:
        return sums && !links && !o->run;
    case TREES:
        return sums && links;
    default:
        return !links;
    }
}

/* The factors of a named program: what build.h says of them. */
static void set_build(const cb_options_t *o, cb_name_t name, int pieces, xm_build_t *build)
{
    const xm_interconnect_t *net = &o->net;

    *build = (xm_build_t){.kind = (xm_collective_t)o->collective,
                          .devices = net->devices,
                          .pieces = pieces,
                          .servers = o->servers,
                          .fallback = o->fallback,
                          .factors = 1,
                          .factor = {{1, net->devices, name == DIRECT}}};
    if (name == HALVING_DOUBLING) {
        for (build->factors = 0; 1 << build->factors < net->devices; ++build->factors) {
            build->factor[build->factors] = (xm_factor_t){1 << build->factors, 2, true};
        }
    }
    if (name == HIERARCHICAL || name == THEMIS || name == SWITCH) {
        build->factors = net->dimensions;
        for (int k = 0, stride = 1; k < net->dimensions; stride *= net->dimension[k++].extent) {
            build->factor[k] = (xm_factor_t){stride, net->dimension[k].extent, false};
        }
    }
    build->balance = name == THEMIS ? net : NULL;
    build->last = name == TREE          ? XM_LAST_TREE
                  : name == DOUBLE_TREE ? XM_LAST_DOUBLE_TREE
                  : name == PAIRS       ? XM_LAST_PAIRS
                  : name == SERVER      ? XM_LAST_SERVER
                  : name == SWITCH      ? XM_LAST_SWITCH
                                        : XM_LAST_SCATTER;
}

static xm_status_t try_pieces(const cb_options_t *o, cb_name_t name, const xm_build_t *given,
                              int pieces, cb_candidate_t *candidate)
{
    double packed = 0;
    xm_build_t build;
    xm_status_t status;

    *candidate = (cb_candidate_t){.name = name, .pieces = pieces};
    if (o->collective == XM_ALL_TO_ALL) {
        status = xm_build_all_to_all(o->net.devices, &candidate->program);
    } else if (name == TREES) {
        status = xm_build_packed_trees(&o->net, pieces, &packed, &candidate->program);
    } else {
        set_build(o, name, pieces, &build);
        if (given != NULL) {
            build = *given;
            build.pieces = pieces;
        }
        status = xm_build_factored(&build, &candidate->program);
    }
    XM_THEN(status, xm_program_check(candidate->program));
    XM_THEN(status, (o->run ? xm_program_simulate_queues : xm_program_simulate)(
                        candidate->program, &o->priced,
                        cb_elements(o) * (int64_t)xm_elements[o->type].size, &candidate->seconds));
    return status == XM_OK
               ? xm_collective_bound(&o->net, (xm_collective_t)o->collective, name == SWITCH,
                                     (double)o->size, packed, &candidate->bound)
               : status;
}

xm_status_t cb_make_candidate(const cb_options_t *o, cb_name_t name, const xm_build_t *given,
                              cb_candidate_t *best)
{
    int first = o->pieces > 0 ? o->pieces : name == DOUBLE_TREE ? 2 : 1;
    xm_status_t status = try_pieces(o, name, given, first, best);

    for (int pieces = 2 * first;
         status == XM_OK && o->pieces == 0 && !o->adasum && pieces <= PIECES_MOST &&
         2.0 * (double)best->program->count < moves_most && o->collective != XM_ALL_TO_ALL;
         pieces *= 2) {
        cb_candidate_t next;
        bool better;

        status = try_pieces(o, name, given, pieces, &next);
        better = status == XM_OK && next.seconds < best->seconds * 0.999;
        xm_program_destroy(better ? best->program : next.program);
        if (better) {
            *best = next;
        } else if (!o->run) { /* with queues more may help where twice as many do not */
            break;
        }
    }
    return status;
}

/* Its part of NAMES. */
static const char *name_of(cb_name_t name, char text[24])
{
    const char *at = NAMES;

    for (int i = 0; i < (int)name; ++i) {
        at += strcspn(at, "|") + 1;
    }
    (void)snprintf(text, 24, "%.*s", (int)strcspn(at, "|"), at);
    return text;
}

static void print_row(xm_table_t *table, uint64_t size, const cb_candidate_t *c, double measured,
                      double wrong)
{
    char name[24];

    xm_table_number(table, 0, (double)size);
    xm_table_text(table, "%s", name_of(c->name, name));
    xm_table_number(table, 0, c->pieces);
    xm_table_number(table, 0, (double)c->program->count);
    xm_table_number(table, 4, c->bound * 1e3);
    xm_table_number(table, 4, c->seconds * 1e3);
    xm_table_number(table, 1, 100 * c->bound / (measured > 0 ? measured : c->seconds));
    xm_table_number(table, 4, measured * 1e3);
    xm_table_number(table, 2, measured / c->seconds);
    xm_table_number(table, 0, wrong);
}

/* The fastest of a size, and how far predictions of all rows were off. */
typedef struct {
    cb_name_t predicted, measured;
    double predicted_seconds, measured_seconds;
    double of_predicted; /* what the predicted one was measured to take */
    double error[CB_SIZES_MOST * PROGRAMS];
    int errors;
} summary_t;

static void take_row(summary_t *all, const cb_candidate_t *c, double measured)
{
    if (!(all->predicted_seconds <= c->seconds)) {
        all->predicted = c->name;
        all->predicted_seconds = c->seconds;
        all->of_predicted = measured;
    }
    if (!(all->measured_seconds <= measured)) {
        all->measured = c->name;
        all->measured_seconds = measured;
    }
    if (measured > 0) {
        all->error[all->errors++] = fabs(c->seconds / measured - 1);
    }
}

static void print_fastest(const summary_t *all)
{
    char name[24];

    (void)printf("# fastest: %s", name_of(all->predicted, name));
    if (all->errors > 0) {
        (void)printf(" as predicted, %s as measured, in %.1f %% less time",
                     name_of(all->measured, name),
                     100 * (1 - all->measured_seconds / all->of_predicted));
    }
    (void)printf("\n");
}

/* All programs that are asked for, of one size; with a worker each is run. */
static xm_status_t go_size(const cb_options_t *o, xm_worker_t *worker, xm_table_t *table,
                           summary_t *all, uint64_t *all_wrong)
{
    xm_status_t status = XM_OK;

    all->predicted_seconds = all->measured_seconds = NAN;
    for (int name = 0; name < PROGRAMS && status == XM_OK; ++name) {
        double measured = NAN;
        uint64_t wrong = 0;
        cb_candidate_t c = {0};

        if (!fits(o, (cb_name_t)name) || (o->name >= 0 && o->name != name)) {
            continue;
        }
        status = cb_make_candidate(o, (cb_name_t)name, NULL, &c);
        if (status == XM_OK && worker != NULL) {
            status = cb_measure(o, worker, c.program, &measured, &wrong);
        }
        if (status == XM_OK && table != NULL) {
            print_row(table, o->size, &c, measured, worker != NULL ? (double)wrong : NAN);
            take_row(all, &c, measured);
        }
        *all_wrong += wrong;
        xm_program_destroy(c.program);
    }
    return status;
}

/* Of each size the fastest is named at the end. */
static xm_status_t go(const cb_options_t *options, xm_worker_t *worker, uint64_t *all_wrong)
{
    static const xm_table_column_t columns[] = {
        {"size", "B", 9, false},  {"program", "", -17, false},   {"pieces", "", 7, false},
        {"moves", "", 9, false},  {"bound", "ms", 12, false},    {"predicted", "ms", 12, false},
        {"%bound", "", 7, false}, {"measured", "ms", 12, false}, {"ratio", "", 6, false},
        {"#wrong", "", 7, false}};
    xm_table_t table = {stdout, columns, sizeof(columns) / sizeof(columns[0]), .csv = options->csv};
    bool speaks = worker == NULL || xm_worker_rank(worker) == 0;
    cb_options_t o = *options;
    summary_t all = {0};
    xm_status_t status = worker != NULL ? cb_price(&o, worker, speaks && !o.csv) : XM_OK;

    if (status == XM_OK && o.axes != NULL) {
        o.size = o.sizes[0];
        return cb_list_mappings(&o, worker, all_wrong);
    }
    if (status == XM_OK && speaks) {
        xm_table_head(&table);
    }
    for (int i = 0; i < o.size_count && status == XM_OK; ++i) {
        o.size = o.sizes[i];
        status = go_size(&o, worker, speaks ? &table : NULL, &all, all_wrong);
        if (status == XM_OK && speaks && o.name < 0 && !o.csv) {
            print_fastest(&all);
        }
    }
    if (status == XM_OK && speaks && all.errors > 1 && !o.csv) {
        (void)printf("# error of the prediction, in the middle: %.1f %%\n",
                     100 * xm_array_median(all.error, all.errors));
    }
    return status;
}

/* LIBRA: at the same price as the given rates, each dimension gets what the hierarchical all-reduce
 * moves there, so that all are busy equally long: T = sum of price times bytes, over the budget. */
static xm_status_t allocate(cb_options_t *o)
{
    double price[4], bytes[4], budget = 0, weight = 0, part = 1;
    int count, n = o->net.dimensions;
    xm_status_t status = cb_read_list("--prices", o->prices, ',', 1e-9, n, price, &count);

    for (int k = 0; k < n && status == XM_OK; ++k) {
        const xm_dimension_t *d = &o->net.dimension[k];

        bytes[k] = part * (1 - 1.0 / d->extent) * d->share * d->ratio;
        part /= d->extent;
        budget += price[n - 1 - k] * d->rate / d->share;
        weight += price[n - 1 - k] * bytes[k] / d->share;
    }
    for (int k = n - 1; k >= 0 && status == XM_OK; --k) {
        o->net.dimension[k].rate = budget * bytes[k] / weight;
        printf("# dimension of %d: %.3f Gbit/s\n", o->net.dimension[k].extent,
               o->net.dimension[k].rate * 8e-9);
    }
    return status;
}

static int run_rank(const cb_options_t *o, xm_status_t parsed, const xm_job_env_t *env)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker = NULL;
    xm_error_t failure;
    uint64_t wrong = 0;
    xm_status_t status = parsed;

    params.listen_fd = xm_launch_listen_fd();
    XM_THEN(status, xm_worker_create(env, &params, &worker));
    XM_THEN(status, go(o, worker, &wrong));
    xm_error_save(&failure, status);
    if (status < 0) {
        (void)xm_cli_fail_rank(env->rank == 0, program_name, status);
    }
    xm_worker_destroy(worker, status < 0 ? failure.sentence : NULL);
    return status < 0 || wrong > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int launch(const cb_options_t *o)
{
    const xm_dimension_t *nic = &o->net.dimension[1];
    rb_options_t cluster = {
        .ranks = o->net.devices,
        .hosts = nic->extent,
        .ranks_per_host = o->net.dimension[0].extent,
        .transport = RB_TRANSPORT_UCX,
        .nics_per_host = 1,
        .nic_rates = 1,
        .nic_gbps = {nic->rate * 8e-9 / rb_nic_rate_payload(1, RB_EMULATION_MTU)},
        .congestion = "reno",
        .queue = DEEP_QUEUE};

    return rb_launch(program_name, &cluster, cluster.ranks_per_host, o->argv);
}

static xm_status_t parse(int argc, char *const *argv, cb_options_t *o)
{
    const xm_cli_option_t table[] = {
        {"collective", 0, XM_CLI_CHOICE, &o->collective,
         "all-gather|all-reduce|reduce-scatter|all-to-all", 0, 0, "What to do (all-reduce)."},
        {"program", 0, XM_CLI_CHOICE, &o->name, NAMES, 0, 0,
         "One program (default: all that fit)."},
        {"mesh", 0, XM_CLI_STRING, &o->mesh, "HxD", 0, 0,
         "Devices as up to four dimensions; the last is inside a host (default 4x4)."},
        {"gbps", 0, XM_CLI_STRING, &o->rates, "LIST", 0, 0,
         "Gbit/s of data of a port in each dimension, in the mesh's order (default 10)."},
        {"latency-us", 0, XM_CLI_STRING, &o->latencies, "LIST", 0, 0, "Latencies (default 0)."},
        {"overhead-us", 0, XM_CLI_STRING, &o->overheads, "LIST", 0, 0,
         "Time that a move occupies its ports besides its bytes, by dimension (default 0)."},
        {"rails", 0, XM_CLI_FLAG, &o->rails, NULL, 0, 0,
         "Every device has a port in the last dimension but one; else those of a host share it."},
        {"links", 0, XM_CLI_STRING, &o->links, "FILE", 0, 0,
         "Links instead of ports: a matrix of Gbit/s from device to device."},
        {"size", 's', XM_CLI_STRING, &o->size_list, "LIST", 0, 0,
         "Bytes of a device, or several such sizes with commas between them (default 64 MiB)."},
        {"dtype", 0, XM_CLI_CHOICE, &o->type, "float32|bfloat16|float16|int32", 0, 0,
         "Type of the elements (float32)."},
        {"reduction", 0, XM_CLI_CHOICE, &o->adasum, "sum|adasum", 0, 0,
         "What all-reduce makes of contributions; adasum goes by the program 'pairs' (sum)."},
        {"result", 0, XM_CLI_OUTPUT, &o->result, "FILE", 0, 0,
         "With --run and adasum: write what rank 0 has in the end."},
        {"pieces", 0, XM_CLI_INT, &o->pieces, "P", 1, 100000,
         "Pieces that follow each other (default: as many as help)."},
        {"servers", 0, XM_CLI_INT, &o->servers, "S", 1, DEVICES_MOST,
         "Devices that are parameter servers (default: all)."},
        {"fallback", 0, XM_CLI_DOUBLE, &o->fallback, "SHARE", 0, 1,
         "Share of the pieces that a switch leaves to servers (default 0)."},
        {"ratio", 0, XM_CLI_STRING, &o->ratios, "LIST", 0, 0,
         "Bytes on the wire for a byte of data, by dimension (default 1)."},
        {"coding-gbps", 0, XM_CLI_STRING, &o->codings, "LIST", 0, 0,
         "Gbit/s of encoding and of decoding, by dimension (default 0: no time)."},
        {"prices", 0, XM_CLI_STRING, &o->prices, "LIST", 0, 0,
         "Prices of a Gbit/s for a device, by dimension: shares the price of --gbps out anew."},
        {"axes", 0, XM_CLI_STRING, &o->axes, "AxB", 0, 0,
         "Sizes of axes of parallelism: lists all ways to lay them on the mesh, and all programs "
         "of "
         "each."},
        {"over", 0, XM_CLI_INT, &o->over, "AXIS", 0, XM_INTERCONNECT_MOST - 1,
         "With --axes: the axis to go along, the first being 0 (default 0)."},
        {"run", 0, XM_CLI_FLAG, &o->run, NULL, 0, 0, "Run the programs on ranks of HxD."},
        {"csv", 0, XM_CLI_FLAG, &o->csv, NULL, 0, 0, "Print the table as CSV."},
    };
    xm_cli_command_t command = XM_CLI_COMMAND(
        program_name, NULL, summary, "collective-bench --mesh 4x4 --gbps 1,50", table, 0, 0);
    xm_status_t status;

    command.version = "collective-bench " XM_VERSION_STRING;
    status = xm_cli_parse(&command, argc, argv, &o->cli);
    if (status < 0 || xm_cli_finished(o->cli)) {
        return status;
    }
    status = read_sizes(o);
    XM_THEN(status, set_interconnect(o));
    o->servers = o->servers > 0 && o->servers < o->net.devices ? o->servers : o->net.devices;
    if (status == XM_OK && o->name >= 0 && !fits(o, (cb_name_t)o->name)) {
        status = XM_INVALID("--program does not fit this collective, these devices, or --run");
    }
    if (status == XM_OK && o->adasum && !fits(o, PAIRS)) {
        status = XM_INVALID("--reduction adasum is for all-reduce of floating-point numbers");
    }
    if (status == XM_OK && o->axes != NULL &&
        (o->collective != XM_ALL_REDUCE || o->adasum || o->links != NULL || o->name >= 0)) {
        status = XM_INVALID("--axes is for all-reduce, sums and meshes, and names no program");
    }
    if (status == XM_OK && o->run && (o->net.dimensions != 2 || o->links != NULL || o->rails)) {
        status = XM_INVALID("--run takes a mesh of hosts and devices that share their NICs");
    }
    status = status == XM_OK && o->prices != NULL ? allocate(o) : status;
    o->priced = o->net;
    return status;
}

int main(int argc, char **argv)
{
    cb_options_t o = {.mesh = "4x4",
                      .rates = "10",
                      .latencies = "0",
                      .overheads = "0",
                      .ratios = "1",
                      .codings = "0",
                      .size_list = "64MiB",
                      .name = -1,
                      .collective = XM_ALL_REDUCE,
                      .argv = argv};
    xm_job_env_t env;
    uint64_t wrong = 0;
    int exit_status = EXIT_SUCCESS;
    xm_status_t status = xm_job_env_read(&env);

    XM_THEN(status, parse(argc, argv, &o));
    if (status == XM_OK && xm_cli_finished(o.cli)) {
        exit_status = EXIT_SUCCESS;
    } else if (status == XM_OK && o.run && env.rank < 0) {
        exit_status = launch(&o);
    } else if (o.run && env.rank >= 0) {
        exit_status = run_rank(&o, status, &env);
    } else {
        XM_THEN(status, go(&o, NULL, &wrong));
        XM_THEN(status, xm_cli_flush());
        exit_status = status < 0 ? xm_cli_fail(program_name, status) : EXIT_SUCCESS;
    }
    free(o.net.link);
    xm_cli_destroy(o.cli);
    return exit_status;
}
