/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of reshard-bench: the table of options and the rules about what goes
 * together. Every contradiction is refused with a sentence that names both options,
 * before any rank does anything; the values that come out are consistent, so the code
 * behind needs no checks of its own.
 */
#include "bench/cases/options.h"

#include <stdio.h>
#include <string.h>

#include "bench/cases/case.h"
#include "comm/base.h"
#include <crossmesh/version.h>

/* The values of options as they are given, before they are checked together. */
typedef struct {
    const char *scale, *partition, *nic_gbps, *uneven, *strategies, *schedulers;
    bool validate, no_validate;
    int transport, protocol, memory, pattern;
} raw_t;

enum { MAX_RANKS = 65536, MAX_ITERATIONS = 1000000 };

/* The protocol of MLSys'23: 13 runs, of which the first 3 are dropped. */
enum { PAPER_WARMUP = 3, PAPER_ITERATIONS = 10 };

static const char summary[] =
    "Moves sharded tensors from one device mesh to another, checks every byte and compares the "
    "time with the lower bound. What is moved comes from a suite, from --src-mesh and the options "
    "that go with it, from --model-config, or from a parallel plan. Ranks are processes of this "
    "machine (-n), or those of a launcher such as torchrun, mpirun or srun. "
    "docs/reshard-bench.md describes the output.";

static const char example[] = "reshard-bench --case nm4 --scale 1/64 --transport sim";

static size_t fill_table(rb_options_t *o, raw_t *raw)
{
    const xm_cli_option_t options[] = {
        {"ranks", 'n', XM_CLI_INT, &o->ranks, "RANKS", 1, MAX_RANKS,
         "Start so many local ranks (default: join the launcher's job)."},
        {"hosts", 0, XM_CLI_INT, &o->hosts, "H", 1, MAX_RANKS,
         "Emulate so many hosts on this machine, with --nic-gbps in namespaces with such NICs."},
        {"ranks-per-host", 0, XM_CLI_INT, &o->ranks_per_host, "R", 1, MAX_RANKS,
         "Ranks of an emulated host (default: the rows of the meshes)."},
        {"suite", 0, XM_CLI_CHOICE, &o->suite, RB_SUITE_NAMES, 0, 0, "Run the cases of a suite."},
        {"case", 0, XM_CLI_LIST, &o->cases, "NAME", 0, 0,
         "Run this case of the suites; may be repeated."},
        {"scale", 0, XM_CLI_STRING, &raw->scale, "1/K", 0, 0,
         "Divide dimension 0 of every tensor, and all sizes of a model, by K (default 1)."},
        {"list", 0, XM_CLI_FLAG, &o->list, NULL, 0, 0, "List the cases and end."},
        {"src-mesh", 0, XM_CLI_STRING, &o->src_mesh, "2x4", 0, 0, "Shape of the source mesh."},
        {"dst-mesh", 0, XM_CLI_STRING, &o->dst_mesh, "2x4", 0, 0, "Shape of the destination mesh."},
        {"src-ranks", 0, XM_CLI_STRING, &o->src_ranks, "LIST", 0, 0,
         "Ranks of the source mesh, row-major, e.g. 0-3,8 (default: from 0 on)."},
        {"dst-ranks", 0, XM_CLI_STRING, &o->dst_ranks, "LIST", 0, 0,
         "Ranks of the destination mesh (default: those that follow the source mesh)."},
        {"src-spec", 0, XM_CLI_STRING, &o->src_spec, "S01RR", 0, 0, "Sharding spec of the source."},
        {"dst-spec", 0, XM_CLI_STRING, &o->dst_spec, "RS0R", 0, 0,
         "Sharding spec of the destination."},
        {"shape", 0, XM_CLI_STRING, &o->shape, "1024x1024x512", 0, 0,
         "Shape of the tensor. In a sweep its dimension 0 follows from the size, and without it "
         "the "
         "tensor has that dimension only."},
        XM_SWEEP_OPTIONS(&o->sweep),
        {"dtype", 0, XM_CLI_STRING, &o->dtype, "TYPE", 0, 0,
         "Element type, e.g. bf16, f16, fp8_e4m3 (default int32 in suites, else float32)."},
        {"partition", 0, XM_CLI_STRING, &raw->partition, "even|chunk|balanced", 0, 0,
         "How dimensions are cut: evenly, in torch's chunks, or balanced (default even)."},
        {"model-config", 0, XM_CLI_STRING, &o->model_config, "MODEL.json", 0, 0,
         "Move all tensors of a model, listed in this file."},
        {"system-config", 0, XM_CLI_STRING, &o->system_config, "SYSTEM.json", 0, 0,
         "Parallel configurations of a model's training and serving."},
        {"shard-table", 0, XM_CLI_STRING, &o->shard_table, "TABLE.json", 0, 0,
         "How a model's parameters are sharded, by name, before the built-in entries."},
        {"plan", 0, XM_CLI_STRING, &o->plan, "PLAN.json", 0, 0,
         "Take the resharding from a parallel plan of autopar."},
        {"boundary", 0, XM_CLI_INT, &o->boundary, "K", 0, MAX_RANKS,
         "Boundary of the parallel plan, between stages K and K + 1 (default 0)."},
        {"strategy", 0, XM_CLI_STRING, &raw->strategies, RB_STRATEGY_NAMES, 0, 0,
         "How a slice reaches its receivers (default: the case's own, else auto). Several "
         "with commas, or all: each in turn, run by run."},
        {"scheduler", 0, XM_CLI_STRING, &raw->schedulers, RB_SCHEDULER_NAMES, 0, 0,
         "Who sends, in which order (default: the case's own, else auto). Several likewise."},
        {"transport", 0, XM_CLI_CHOICE, &raw->transport, "ucx|verbs|sim", 0, 0,
         "Move bytes by UCX, by RDMA verbs, or in a simulated network with a virtual clock "
         "(default: XM_TRANSPORT, else ucx)."},
        {"memory", 0, XM_CLI_CHOICE, &raw->memory, "host|cuda", 0, 0,
         "Where the tiles are: in host memory, or on this machine's CUDA devices, to which the "
         "ranks "
         "of a host are dealt in turn (default host)."},
        {"nic-gbps", 0, XM_CLI_STRING, &raw->nic_gbps, "LIST", 0, 0,
         "Gbit/s of a host's NICs for plan, bound and simulated network; several: of the hosts in "
         "turn."},
        {"nics-per-host", 0, XM_CLI_INT, &o->nics_per_host, "N", 1, MAX_RANKS,
         "NICs of each host, each as fast as --nic-gbps says, dealt to its ranks in turn (default "
         "1)."},
        {"all-nics", 0, XM_CLI_FLAG, &o->all_nics, NULL, 0, 0,
         "Every rank uses all NICs of its host."},
        {"uneven", 0, XM_CLI_STRING, &raw->uneven, "LIST", 0, 0,
         "Gbit/s of a host's NICs in turn, instead of --nic-gbps."},
        {"racks", 0, XM_CLI_INT, &o->racks, "N", 1, MAX_RANKS,
         "Racks, of equally many neighbouring hosts; needs --uplink-gbps."},
        {"uplink-gbps", 0, XM_CLI_DOUBLE, &o->uplink_gbps, "G", 1e-3, 1e6,
         "Gbit/s of a rack's uplink, per direction; needs --racks."},
        {"core-share", 0, XM_CLI_DOUBLE, &o->core_share, "S", 0.01, 1,
         "Part of a core that each rank of an emulated cluster has (default: no limit)."},
        {"profile", 0, XM_CLI_STRING, &o->profile, "CLUSTER.json", 0, 0,
         "Take the network's rates from a cluster profile."},
        {"topology", 0, XM_CLI_STRING, &o->topology, "MACHINE.xml", 0, 0,
         "Describe every host by this hwloc XML file."},
        {"show-topology", 0, XM_CLI_FLAG, &o->show_topology, NULL, 0, 0,
         "Print what this host, or that of --topology, is made of and which NICs its ranks use, "
         "and end."},
        {"check", 0, XM_CLI_FLAG, &o->check, NULL, 0, 0,
         "Look for what would keep a job on this machine, or on those of the ranks, from running "
         "well, say what to do, and end."},
        {"warmup", 'w', XM_CLI_INT, &o->warmup, "W", 0, MAX_ITERATIONS,
         "Runs before those that are timed (default 1)."},
        {"iterations", 'i', XM_CLI_INT, &o->iterations, "I", 1, MAX_ITERATIONS,
         "Timed runs (default 5)."},
        {"protocol", 0, XM_CLI_CHOICE, &raw->protocol, "paper", 0, 0,
         "Runs as in the paper: 13, of which the first 3 are dropped. Not with -w and -i."},
        {"validate", 0, XM_CLI_FLAG, &raw->validate, NULL, 0, 0,
         "Check every byte of every run (the default)."},
        {"no-validate", 0, XM_CLI_FLAG, &raw->no_validate, NULL, 0, 0, "Check nothing."},
        {"verify", 0, XM_CLI_FLAG, &o->verify, NULL, 0, 0,
         "After every run compare checksums of all slices between holders and receivers."},
        {"density", 0, XM_CLI_DOUBLE, &o->density, "PERCENT", 1e-4, 100,
         "Change so many of the elements between runs, and move only those (crossmesh/update.h); "
         "the same is timed with everything moved, too."},
        {"pattern", 0, XM_CLI_CHOICE, &raw->pattern, "uniform|rows|blocks", 0, 0,
         "Which elements change: any, whole rows of the last dimension, or blocks of 128 by 128 "
         "(default uniform)."},
        {"memory-limit", 0, XM_CLI_BYTES, &o->memory_limit, "BYTES", 0, 0,
         "Most memory of a rank for packing, e.g. 4MiB (default: 8 MiB a peer and direction)."},
        {"dry-run", 0, XM_CLI_FLAG, &o->dry_run, NULL, 0, 0,
         "Plan, bound and simulate; start no rank."},
        {"seed", 0, XM_CLI_INT, &o->seed, "N", 0, 0,
         "Seed of the data and of randomised schedulers (default 1)."},
        {"wide", 0, XM_CLI_FLAG, &o->wide, NULL, 0, 0,
         "Print all columns of the table, not 132 characters of them."},
        {"csv", 0, XM_CLI_FLAG, &o->csv, NULL, 0, 0, "Print all columns as CSV, and nothing else."},
        XM_CLI_JSON_OPTIONS(XM_CLI_STRING, &o->json,
                            "Print one JSON document instead of the table."),
        {"trace", 0, XM_CLI_STRING, &o->trace_path, "OUT.json", 0, 0,
         "Write the last run's hops as a Chrome trace."},
        {"plot", 0, XM_CLI_STRING, &o->plot_path, "OUT.svg", 0, 0,
         "Draw the planned and the last run's transfers; one case only."},
        {"dump-plan", 0, XM_CLI_STRING, &o->dump_path, "OUT.json", 0, 0,
         "Write the reshard plan; one case only."},
    };
    /* The table lives in the options object, because the parser keeps pointers into it. */
    _Static_assert(sizeof(options) <= sizeof(o->table), "RB_OPTIONS_MAX is too small");

    memcpy(o->table, options, sizeof(options));
    return sizeof(options) / sizeof(options[0]);
}

/* A divisor is written as a fraction, as that is what it does to the tensors. */
static xm_status_t parse_scale(const char *text, int64_t *divisor)
{
    if (text == NULL || strcmp(text, "1") == 0) {
        *divisor = 1;
        return XM_OK;
    }
    if (strncmp(text, "1/", 2) != 0) {
        return XM_MALFORMED("--scale: '%s' is not 1 or of the form 1/64", text);
    }
    return xm_text_parse_int("--scale", text + 2, 1, INT64_C(1) << 40, divisor);
}

/* Parses "10" or "10,25". */
static xm_status_t parse_gbps(const char *option, const char *text, double *rates, int capacity,
                              int *count)
{
    while (text != NULL) {
        char item[32];

        if (*count == capacity) {
            return XM_INVALID("%s has more than %d rates", option, capacity);
        }
        (void)xm_text_word(&text, ',', item, sizeof(item));
        XM_TRY(xm_text_parse_double(option, item, 1e-3, 1e6, &rates[*count]));
        ++*count;
    }
    return XM_OK;
}

/* Computes what all NICs of a host do together, from equal ones or from NICs that each
 * have their own rate. Afterwards nic_gbps is per host, whatever was given. */
static xm_status_t parse_nics(const raw_t *raw, rb_options_t *o)
{
    XM_TRY(parse_gbps("--nic-gbps", raw->nic_gbps, o->nic_gbps, RB_NIC_RATES, &o->nic_rates));
    XM_TRY(parse_gbps("--uneven", raw->uneven, o->uneven_gbps, RB_UNEVEN_NICS, &o->uneven_rates));
    if (o->uneven_rates > 0 && o->nic_rates > 0) {
        return XM_INVALID("--nic-gbps and --uneven both say how fast the NICs are; give one");
    }
    if (o->uneven_rates > 0 && o->nics_per_host > 0 && o->nics_per_host != o->uneven_rates) {
        return XM_INVALID("--uneven has the rates of %d NICs, but --nics-per-host says %d",
                          o->uneven_rates, o->nics_per_host);
    }
    if (o->nics_per_host > 0 && o->uneven_rates == 0 && o->nic_rates == 0) {
        return XM_INVALID("--nics-per-host is given but --nic-gbps is not");
    }
    if (o->all_nics && o->uneven_rates == 0 && o->nics_per_host == 0) {
        return XM_INVALID("--all-nics is given but neither --nics-per-host nor --uneven is");
    }
    if (o->uneven_rates > 0) {
        o->nics_per_host = o->uneven_rates;
        o->nic_rates = 1;
        for (int i = 0; i < o->uneven_rates; ++i) {
            o->nic_gbps[0] += o->uneven_gbps[i];
        }
    } else if (o->nic_rates > 0) {
        o->nics_per_host = o->nics_per_host > 0 ? o->nics_per_host : 1;
        for (int i = 0; i < o->nic_rates; ++i) {
            o->nic_gbps[i] *= o->nics_per_host;
        }
    }
    return XM_OK;
}

/* Partitions are not a choice of the table: `explicit` is a partition too, and its
 * refusal says what it lacks. */
static xm_status_t parse_partition(const char *text, xm_partition_t *partition)
{
    xm_status_t status = xm_partition_parse(text, partition);

    return status < 0 ? xm_error_prefix(status, "--partition") : status;
}

/* The first option of a list of names that is given, or NULL. */
static const char *first_given(const xm_cli_t *cli, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; ++i) {
        if (xm_cli_given(cli, names[i])) {
            return names[i];
        }
    }
    return NULL;
}

/* A sweep alone is moved from half of the ranks to the other half, as those who come from
 * nccl-tests expect of a first line. */
static void halve_ranks(rb_options_t *o)
{
    static const char *const said[] = {"src-mesh",  "dst-mesh", "src-ranks",
                                       "dst-ranks", "src-spec", "dst-spec"};

    if (xm_sweep_given(&o->sweep) && o->ranks > 1 && o->ranks % 2 == 0 &&
        first_given(o->cli, said, sizeof(said) / sizeof(said[0])) == NULL) {
        (void)snprintf(o->half, sizeof(o->half), "%d", o->ranks / 2);
        o->src_mesh = o->dst_mesh = o->half;
        o->src_spec = o->dst_spec = "S0";
    }
}

/* Checks where cases come from: the suites, a description, a model, or a parallel plan,
 * and from one of them only. */
static xm_status_t check_origin(const rb_options_t *o)
{
    static const char *const suite[] = {"suite", "case"};
    static const char *const own[] = {"src-mesh",  "dst-mesh",   "src-ranks", "dst-ranks",
                                      "src-spec",  "dst-spec",   "shape",     "min-bytes",
                                      "max-bytes", "step-factor"};
    static const char *const model[] = {"model-config"};
    static const char *const plan[] = {"plan", "boundary"};
    static const char *const needed[] = {"src-mesh", "dst-mesh", "src-spec", "dst-spec", "shape"};
    const char *origin[] = {first_given(o->cli, suite, 2), first_given(o->cli, own, 10),
                            first_given(o->cli, model, 1), first_given(o->cli, plan, 2)};
    enum { ORIGINS = sizeof(origin) / sizeof(origin[0]) };
    bool any = false;

    for (int i = 0; i < ORIGINS; ++i) {
        any = any || origin[i] != NULL;
        for (int j = i + 1; j < ORIGINS; ++j) {
            if (origin[i] != NULL && origin[j] != NULL) {
                return XM_INVALID("--%s and --%s name different things to move; give one of them",
                                  origin[i], origin[j]);
            }
        }
    }
    for (size_t i = 0; origin[1] != NULL && i < sizeof(needed) / sizeof(needed[0]); ++i) {
        bool from_sweep = xm_sweep_given(&o->sweep) && strcmp(needed[i], "shape") == 0;

        if (!from_sweep && o->half[0] == '\0' && !xm_cli_given(o->cli, needed[i])) {
            return XM_INVALID("--%s is given but --%s is not", origin[1], needed[i]);
        }
    }
    if (o->model_config != NULL && o->system_config == NULL) {
        return XM_INVALID("--model-config is given but --system-config is not");
    }
    if (origin[3] != NULL && o->plan == NULL) {
        return XM_INVALID("--boundary is given but --plan is not");
    }
    for (int i = 0; o->check && i < ORIGINS; ++i) {
        if (origin[i] != NULL) {
            return XM_INVALID("--check moves nothing; leave --%s out", origin[i]);
        }
    }
    if (o->show_topology && o->json.print) {
        return XM_INVALID("--show-topology prints tables; there is no JSON document of them");
    }
    if (o->csv && o->json.print) {
        return XM_INVALID("--csv and --json both say what is printed; give one");
    }
    if (!any && !o->list && !o->show_topology && !o->check) {
        return XM_INVALID("nothing to move: give --suite, --case, --src-mesh …, --model-config or "
                          "--plan (--list shows the cases)");
    }
    return XM_OK;
}

/* --check has its own table and document, and it needs real ranks. */
static xm_status_t check_doctor(const rb_options_t *o)
{
    static const char *const others[] = {"list",  "show-topology", "dry-run",  "json-file",
                                         "trace", "plot",          "dump-plan"};
    const char *given = first_given(o->cli, others, sizeof(others) / sizeof(others[0]));

    if (o->check && given != NULL) {
        return XM_INVALID("--check and --%s do different things", given);
    }
    if (o->check && o->transport == RB_TRANSPORT_SIM) {
        return XM_INVALID("--check looks at real machines, and --transport sim needs none");
    }
    return XM_OK;
}

/* From any two of hosts, ranks and ranks per host the third follows; where all are given
 * they must fit. */
static xm_status_t check_hosts(rb_options_t *o)
{
    if (o->hosts > 0 && o->ranks_per_host > 0) {
        int64_t product = (int64_t)o->hosts * o->ranks_per_host;

        if (product > MAX_RANKS) {
            return XM_INVALID("--hosts %d with --ranks-per-host %d makes more than %d ranks",
                              o->hosts, o->ranks_per_host, MAX_RANKS);
        }
        if (o->ranks > 0 && o->ranks != product) {
            return XM_INVALID("--hosts %d with --ranks-per-host %d makes %d ranks, but -n says %d",
                              o->hosts, o->ranks_per_host, (int)product, o->ranks);
        }
        o->ranks = (int)product;
    } else if (o->hosts > 0) {
        if (o->ranks == 0) {
            return XM_INVALID("--hosts %d needs -n or --ranks-per-host with it", o->hosts);
        }
        if (o->ranks % o->hosts != 0) {
            return XM_INVALID("%d ranks do not fill %d hosts evenly; give --ranks-per-host",
                              o->ranks, o->hosts);
        }
        o->ranks_per_host = o->ranks / o->hosts;
    }
    return XM_OK;
}

/* The two options for racks need each other, and two sources of rates would contradict. */
static xm_status_t check_rates(const rb_options_t *o)
{
    if (o->profile != NULL && o->nic_rates > 0) {
        return XM_INVALID("--profile and --%s both say how fast the NICs are; give one",
                          o->uneven_rates > 0 ? "uneven" : "nic-gbps");
    }
    if (o->core_share > 0 && (o->hosts == 0 || o->nic_rates == 0)) {
        return XM_INVALID("--core-share needs an emulated cluster: --hosts and --nic-gbps");
    }
    if ((o->racks > 0) != (o->uplink_gbps > 0)) {
        return XM_INVALID("--%s is given but --%s is not", o->racks > 0 ? "racks" : "uplink-gbps",
                          o->racks > 0 ? "uplink-gbps" : "racks");
    }
    return XM_OK;
}

/* A run that measures nothing refuses the options that need a measurement. */
static xm_status_t check_runs(const rb_options_t *o, const raw_t *raw)
{
    if (raw->validate && raw->no_validate) {
        return XM_INVALID("--validate and --no-validate contradict each other");
    }
    for (int i = 0; o->paper && i < 2; ++i) {
        static const char *const runs[] = {"warmup", "iterations"};

        if (xm_cli_given(o->cli, runs[i])) {
            return XM_INVALID("--protocol paper is %d runs before %d timed ones; leave --%s out",
                              PAPER_WARMUP, PAPER_ITERATIONS, runs[i]);
        }
    }
    if (o->dry_run && o->verify) {
        return XM_INVALID("--verify compares what was moved, and --dry-run moves nothing");
    }
    if (xm_cli_given(o->cli, "pattern") && o->density <= 0) {
        return XM_INVALID("--pattern is given but --density is not");
    }
    if (o->density > 0 && (o->dry_run || raw->transport == RB_TRANSPORT_SIM)) {
        return XM_INVALID("--density needs real ranks: what changes is found in their tiles");
    }
    if (o->density > 0 && o->warmup == 0) {
        return XM_INVALID("--density needs --warmup 1 or more: the first update moves everything");
    }
    if (o->density > 0 && raw->memory == XM_MEMORY_CUDA) {
        return XM_INVALID("--density and --memory cuda: updates are found in host memory");
    }
    if (o->density > 0 && (o->trace_path != NULL || o->plot_path != NULL)) {
        return XM_INVALID("--density has no transfers to draw: an update's sizes are not the "
                          "plan's; leave --trace and --plot out");
    }
    if (o->dry_run && o->trace_path != NULL) {
        return XM_INVALID("--trace shows measured transfers, and --dry-run measures nothing");
    }
    return XM_OK;
}

/* The checks go from single values to combinations, so the first sentence is about the
 * simplest mistake. */
static xm_status_t check(rb_options_t *o, const raw_t *raw)
{
    XM_TRY(parse_scale(raw->scale, &o->scale_divisor));
    XM_TRY(parse_partition(raw->partition, &o->partition));
    XM_TRY(parse_nics(raw, o));
    XM_TRY(check_hosts(o));
    halve_ranks(o);
    XM_TRY(check_origin(o));
    XM_TRY(check_rates(o));
    o->paper = xm_cli_given(o->cli, "protocol");
    XM_TRY(check_runs(o, raw));
    XM_TRY(rb_choices_parse("--strategy", RB_STRATEGY_NAMES, raw->strategies, &o->strategies));
    XM_TRY(rb_choices_parse("--scheduler", RB_SCHEDULER_NAMES, raw->schedulers, &o->schedulers));
    if (o->paper) {
        o->warmup = PAPER_WARMUP;
        o->iterations = PAPER_ITERATIONS;
    }
    o->validate = !raw->no_validate;
    o->transport = (rb_transport_t)raw->transport;
    o->memory = (xm_memory_kind_t)raw->memory;
    o->pattern = (rb_changes_t)raw->pattern;
    if (o->memory == XM_MEMORY_CUDA && o->transport == RB_TRANSPORT_SIM) {
        return XM_INVALID("--memory cuda needs real ranks, and --transport sim has none");
    }
    return check_doctor(o);
}

/* On failure the options are cleared, so the caller has nothing to free. */
xm_status_t rb_options_parse(int argc, char *const *argv, rb_options_t *options)
{
    raw_t raw = {.partition = xm_partition_name(XM_PARTITION_EVEN),
                 .transport = xm_config_choice(XM_CONFIG_TRANSPORT)};
    xm_cli_command_t *command = &options->command;
    xm_status_t status;

    *options = (rb_options_t){.command = XM_CLI_COMMAND_INIT,
                              .argc = argc,
                              .argv = argv,
                              .suite = RB_ANY,
                              .warmup = 1,
                              .iterations = 5,
                              .seed = 1};
    command->program = "reshard-bench";
    command->summary = summary;
    command->example = example;
    command->version = "reshard-bench " XM_VERSION_STRING;
    command->options = options->table;
    command->option_count = fill_table(options, &raw);
    status = xm_cli_parse(command, argc, argv, &options->cli);
    if (status == XM_OK && !xm_cli_finished(options->cli)) {
        status = check(options, &raw);
    }
    if (status < 0) {
        rb_options_clear(options);
    }
    return status;
}

const char *rb_transport_name(rb_transport_t transport)
{
    static const char *const names[] = {"ucx", "verbs", "sim"};

    return names[transport];
}

/* Hosts are emulated only for real ranks with known NIC rates; the other runs count hosts
 * and no more. */
bool rb_options_emulate(const rb_options_t *options)
{
    return options->hosts > 0 && options->nic_rates > 0 && !options->dry_run && !options->list &&
           !options->show_topology && options->transport == RB_TRANSPORT_UCX;
}

void rb_options_clear(rb_options_t *options)
{
    xm_cli_destroy(options->cli);
    *options = (rb_options_t){0};
}
