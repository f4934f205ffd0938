/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autopar plan: a model and a cluster profile go in, the parallel plan with the smallest predicted
 * step time comes out. The same question can be put to three planners: our own, a row of the table
 * of published planners (--like), or a command that somebody else has written (--planner);
 * all three answer with the same kind of plan, so that printing and saving do not care which it
 * was. Progress and warnings go to standard error, and standard output holds only the plan.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_support.h"
#include "comm/base.h"
#include "planner/cli/command.h"
#include "planner/cli/layers_option.h"
#include "planner/cli/plan/input.h"
#include "planner/cli/plan/pareto.h"
#include "planner/cli/plan/row.h"
#include "planner/published/like.h"
#include "planner/published/placement.h"
#include "planner/plan.h"
#include "planner/search.h"
#include "planner/plugin.h"

enum { MAX_MICRO_BATCHES = 64 };

static const char program[] = "autopar plan";
static const char summary[] =
    "Finds the pipeline stages, shardings and micro-batches with the smallest "
    "predicted step time and prints them.";

typedef struct plan_options {
    ap_command_search_t search;
    const char *output, *plot, *schedule, *like;
    const char *layers, *layer_pattern, *planner, *request;
    xm_cli_list_t dims;
    int devices, submeshes, seed, budget, objective, servers;
    uint64_t bandwidth;
    double overlap, time_limit, min_throughput, alpha;
    xm_cli_json_t json;
    ap_plan_row_t row; /* of --like */
    bool no_cross_mesh, keep_host_order, all_devices, pareto;
} plan_options_t;

/* Says what a model file was read as: a cut into layers that is uneven or crosses large tensors
 * explains a bad plan better than the plan itself does. */
static void print_model(const char *path, const ap_planner_model_t *model)
{
    const ap_layering_info_t *layering = &model->layering;
    char bytes[32];

    xm_text_print_wrapped(
        stdout, XM_TEXT_COLUMNS, "# ", "#   ",
        "%s: %d of %d operators are the forward pass; %d layers%s, %d of them different, "
        "at most %s between two, the largest %.2f times the mean",
        path, model->forward_ops, model->file_ops, layering->layers,
        model->own_layers ? " of its own" : "", layering->distinct,
        xm_text_format_bytes((uint64_t)layering->largest_bytes, bytes, sizeof(bytes)),
        layering->imbalance);
    if (model->fixed[0] != '\0') {
        (void)printf("# micro-batches of the file's own size only: %s\n", model->fixed);
    }
}

/* Says what becomes of activation checkpointing that the file's step has. A stage recomputes whole
 * layers or nothing, so a policy that keeps products has no counterpart. */
static void print_again(const plan_options_t *o, const ap_planner_model_t *model)
{
    if (model->step.again < 0.01) {
        return;
    }
    (void)printf(
        "# the file's step computes %.0f %% of its forward products again for the backward "
        "pass (activation checkpointing): %s\n",
        100.0 * model->step.again,
        o->search.recompute != AP_RECOMPUTE_AUTO ? "as --recompute says instead"
        : ap_planner_model_recomputes(model)
            ? "kept, layers keep their input only; --recompute off plans without it"
            : "replaced, each stage recomputes its layers or keeps all");
}

/* Says in what else the plan's step differs from the file's. */
static void print_step(const plan_options_t *o, const ap_planner_model_t *model)
{
    print_again(o, model);
    if (model->step.update > 0.01) {
        (void)printf("# the optimizer's own products, %.0f %% of the FLOPs of all products of the "
                     "file's step, are left out: it counts as Adam\n",
                     100.0 * model->step.update);
    }
    if (model->step.untrained > 0) {
        (void)printf("# %d weights that the file's step gives back as they were count as trained\n",
                     model->step.untrained);
    }
}

/* Says how far the search over the orders of hosts went, so that nobody takes the best of some
 * orders for the best of all. No order is left out but for an estimate, which is no proof, and the
 * claim is only "found". */
static void print_orders(const ap_planner_result_t *result)
{
    bool moved = ap_plan_info(result->plan)->host_order != NULL;

    if (result->host_orders > 1) {
        (void)printf("# hosts differ: %s is the best found of all %d orders\n",
                     moved ? "the order below" : "the profile's order", result->host_orders);
    } else if (result->host_orders == 0) {
        (void)printf("# hosts differ: %s is the best of those tried, which are not all\n",
                     moved ? "the order below" : "the profile's order");
    }
}

/* Prints first and saves afterwards: where a file cannot be written, the plan that may have taken
 * minutes is on the screen all the same. */
static xm_status_t write_plan(const ap_plan_t *plan, const plan_options_t *o)
{
    xm_status_t status = XM_OK;

    if (xm_cli_wants_json(&o->json)) {
        status = xm_cli_give_text(&o->json, ap_plan_text(plan), "the text of the plan");
    }
    if (!o->json.print) {
        ap_plan_print(plan, stdout);
    }
    if (status == XM_OK && o->output != NULL) {
        status = ap_plan_save(plan, o->output);
    }
    if (status == XM_OK && o->plot != NULL) {
        status = ap_plan_plot(plan, o->plot);
    }
    return status == XM_OK ? xm_cli_flush() : status;
}

static xm_status_t fill_params(const plan_options_t *o, int64_t *micro_batches,
                               ap_planner_params_t *params)
{
    params->schedule = o->schedule;
    params->all_submeshes = o->submeshes == 1;
    params->keep_host_order = o->keep_host_order;
    params->all_devices = o->all_devices;
    params->free_boundaries = o->no_cross_mesh;
    params->time_limit = o->time_limit;
    params->dims = o->dims.items;
    params->dim_count = o->dims.count;
    return ap_command_search_params(&o->search, micro_batches, MAX_MICRO_BATCHES, params);
}

static xm_status_t plan_like(const plan_options_t *o, const ap_planner_params_t *params,
                             ap_plan_t **plan)
{
    ap_plan_row_t row = o->row;

    row.name = o->like;
    row.effort =
        (ap_like_effort_t){.seed = (uint64_t)o->seed, .budget = o->budget, .alpha = o->alpha};
    row.quiet = o->json.print;
    return ap_plan_row_run(&row, params, plan);
}

/* What another planner's command says besides its plan. */
static void print_word(void *arg, const char *line)
{
    (void)arg;
    (void)fprintf(stderr, "%s: the planner: %s\n", program, line);
}

/* What the plan costs, and which hosts it is for: the plan numbers them anew. */
static void print_rent(const plan_options_t *o, const ap_planner_rent_t *rent)
{
    char list[512] = "";

    for (int i = 0; i < rent->hosts; ++i) {
        xm_text_list_add(list, sizeof(list), ", ", "%d", rent->host[i]);
    }
    if (rent->hosts > 0 && !o->json.print) {
        xm_text_print_wrapped(stdout, XM_TEXT_COLUMNS, "# ", "#   ",
                              "a step costs %.6g: %.6g an hour for %d x %d devices, on hosts %s",
                              rent->cost, rent->price, rent->hosts, rent->devices, list);
    }
}

static xm_status_t plan_and_write(const plan_options_t *o, ap_planner_params_t *params)
{
    const ap_planner_goal_t goal = {o->objective == 1, o->min_throughput};
    ap_planner_result_t result = {0};
    ap_planner_rent_t rent = {0};
    xm_cli_progress_t *progress = xm_cli_progress_create(program);
    xm_status_t status;

    params->progress = xm_cli_progress_update;
    params->progress_arg = progress;
    status = o->planner != NULL
                 ? ap_planner_command_plan(o->planner, params, print_word, NULL, &result.plan)
             : o->like != NULL ? plan_like(o, params, &result.plan)
                               : ap_planner_run_goal(params, &goal, &result, &rent);
    xm_cli_progress_destroy(progress);
    if (status == XM_OK && result.stopped) {
        (void)fprintf(stderr,
                      "%s: stopped by --time-limit; the best plan is at most %.2f %% faster\n",
                      program, 100.0 * (1.0 - result.bound / result.objective));
    }
    if (status == XM_OK && result.read.graph != NULL && !o->json.print) {
        print_model(o->search.model, &result.read);
        print_step(o, &result.read);
    }
    if (status == XM_OK && o->planner == NULL && o->like == NULL && !o->json.print) {
        print_orders(&result);
        print_rent(o, &rent);
    }
    XM_THEN(status, write_plan(result.plan, o));
    free(rent.host);
    ap_planner_result_clear(&result);
    return status;
}

/* Replaces the profile by one whose gradients go to so many parameter servers. */
static xm_status_t set_servers(int servers, xm_cluster_profile_t **profile)
{
    xm_runtime_t runtime = *xm_cluster_profile_runtime(*profile);
    xm_cluster_profile_t *changed = NULL;
    char note[64];

    runtime.servers = servers;
    (void)snprintf(note, sizeof(note), "gradients go to %d parameter servers", servers);
    XM_TRY(xm_cluster_profile_set_runtime(*profile, &runtime, note, &changed));
    xm_cluster_profile_destroy(*profile);
    *profile = changed;
    return XM_OK;
}

static xm_status_t search(const plan_options_t *o)
{
    ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
    int64_t micro_batches[MAX_MICRO_BATCHES];
    ap_layers_option_t layers = {0};
    xm_cluster_profile_t *profile = NULL;
    xm_status_t status = fill_params(o, micro_batches, &params);

    XM_THEN(status, ap_layers_option_read(o->layers, o->layer_pattern, &layers, &params.layering));
    XM_THEN(status, ap_command_load_cluster(o->search.cluster, o->search.hosts,
                                            o->search.devices_per_host, o->overlap, &profile));
    if (status == XM_OK && o->servers > 0) {
        status = set_servers(o->servers, &profile);
    }
    if (status == XM_OK) {
        params.profile = profile;
        status = o->pareto ? ap_pareto_run(&params, &o->json, o->output, o->plot)
                           : plan_and_write(o, &params);
    }
    ap_layers_option_clear(&layers);
    xm_cluster_profile_destroy(profile);
    return status;
}

static void print_progress(void *arg, double fraction, const char *what)
{
    (void)arg;
    (void)fprintf(stderr, "progress %.4f %s\n", fraction, what);
}

/* Our planner as a command that others ask. */
static xm_status_t answer(const plan_options_t *o)
{
    ap_planner_request_t request = {0};
    ap_planner_result_t result = {0};
    plan_options_t printed = *o;
    size_t length;
    char *text;
    xm_status_t status =
        xm_text_load(strcmp(o->request, "-") == 0 ? "/dev/stdin" : o->request, &text, &length);

    if (status != XM_OK) {
        return xm_error_prefix(status, "--request");
    }
    status = ap_planner_request_parse(text, length, &request);
    free(text);
    if (status == XM_OK) {
        request.params.time_limit = o->time_limit;
        request.params.progress = print_progress;
        status = ap_planner_run(&request.params, &result);
    }
    printed.json.print = true;
    XM_THEN(status, write_plan(result.plan, &printed));
    ap_planner_result_clear(&result);
    ap_planner_request_clear(&request);
    return status;
}

/* Options that mean nothing where another one holds the question: those that ask our planner, those
 * that say what else it should do, and those for inputs of other planners. */
static const char *const asking[] = {"model",
                                     "cluster",
                                     "hosts",
                                     "devices-per-host",
                                     "global-batch",
                                     "stages",
                                     "schedule",
                                     "recompute",
                                     "layers",
                                     "layer-pattern",
                                     "dim",
                                     "planner",
                                     "submeshes",
                                     "no-cross-mesh",
                                     "keep-host-order",
                                     "memory-reserve",
                                     "all-devices",
                                     "overlap",
                                     "servers",
                                     "objective",
                                     "min-throughput",
                                     "alpha",
                                     NULL};
static const char *const doing[] = {"plot", "time-limit", "pareto", NULL};
static const char *const inputs[] = {"like", "devices", "bandwidth",     "memory-limit",
                                     "seed", "budget",  "micro-batches", NULL};

static xm_status_t refuse(const xm_cli_t *cli, const char *const *names, const char *other)
{
    for (; *names != NULL; ++names) {
        if (xm_cli_given(cli, *names)) {
            return XM_INVALID("--%s has no meaning with --%s", *names, other);
        }
    }
    return XM_OK;
}

static xm_status_t run_like(const xm_cli_t *cli, const plan_options_t *o)
{
    ap_plan_input_t like = {.planner = o->like,
                            .input = ap_command_argument(cli, 0),
                            .devices = o->devices,
                            .seed = o->seed,
                            .budget =
                                o->budget > 0 ? (int64_t)o->budget * 1000 : AP_PLACEMENT_BUDGET,
                            .json = &o->json};
    int64_t micro_batches[1];
    size_t count;

    if (like.input == NULL) {
        return XM_INVALID("--like %s needs --model, or an input file of piper or dnn-partitioning",
                          o->like);
    }
    XM_TRY(refuse(cli, asking, "like"));
    XM_TRY(refuse(cli, doing, "like"));
    like.output = o->output;
    like.bandwidth = (double)o->bandwidth;
    like.memory =
        o->search.memory_limit == AP_COMMAND_NOT_GIVEN ? 0.0 : (double)o->search.memory_limit;
    if (o->search.micro_batches != NULL) {
        XM_TRY(ap_command_parse_list("--micro-batches", o->search.micro_batches, 1, micro_batches,
                                     1, &count));
        like.micro_batches = (int)micro_batches[0];
    }
    return ap_plan_input_run(&like);
}

/* Refuses options that only an input file of another planner gives a meaning to: ignored, they
 * would let the user believe that the cluster had been changed. */
static xm_status_t run_own(const xm_cli_t *cli, const plan_options_t *o)
{
    static const char *const of_inputs[] = {
        "devices",         "bandwidth",       "seed",   "budget", "alpha", "substitution-json",
        "import-strategy", "export-strategy", "lattice"};
    const char *unexpected = ap_command_argument(cli, 0);

    if (unexpected != NULL) {
        return XM_INVALID("unexpected argument '%s'", unexpected);
    }
    for (size_t i = 0; i < sizeof(of_inputs) / sizeof(of_inputs[0]); ++i) {
        if (xm_cli_given(cli, of_inputs[i]) && (i < 2 || o->like == NULL)) {
            return i < 2 ? XM_INVALID("--%s is for an input of --like; a cluster has its own",
                                      of_inputs[i])
                         : XM_INVALID("--%s is for --like", of_inputs[i]);
        }
    }
    if (o->like != NULL && o->planner != NULL) {
        return XM_INVALID("--planner has no meaning with --like");
    }
    if ((o->objective != 0 || o->min_throughput > 0) &&
        (o->pareto || o->like != NULL || o->planner != NULL)) {
        return XM_INVALID("--%s has no meaning with --%s",
                          o->objective != 0 ? "objective" : "min-throughput",
                          o->pareto         ? "pareto"
                          : o->like != NULL ? "like"
                                            : "planner");
    }
    if (o->pareto && (o->like != NULL || o->planner != NULL)) {
        return XM_INVALID("--pareto has no meaning with --%s",
                          o->like != NULL ? "like" : "planner");
    }
    return search(o);
}

static xm_status_t run(const xm_cli_t *cli, void *options)
{
    static const char *const efforts[] = {"seed", "budget", "alpha"};
    plan_options_t *o = options;
    bool input = ap_command_argument(cli, 0) != NULL || o->search.model == NULL;

    for (size_t i = 0; i < sizeof(efforts) / sizeof(efforts[0]); ++i) {
        o->row.given = xm_cli_given(cli, efforts[i]) ? efforts[i] : o->row.given;
    }
    if (o->request != NULL) {
        XM_TRY(refuse(cli, asking, "request"));
        XM_TRY(refuse(cli, inputs, "request"));
        return answer(o);
    }
    return o->like != NULL && input ? run_like(cli, o) : run_own(cli, o);
}

int ap_command_plan(int argc, char *const *argv)
{
    plan_options_t o = {
        .search.memory_limit = AP_COMMAND_NOT_GIVEN, .overlap = AP_COMMAND_NO_OVERLAP, .seed = 1};
    const xm_cli_option_t table[] = {
        {"model", 0, XM_CLI_STRING, &o.search.model, "NAME|FILE", 0, 0,
         "Built-in model (autopar import lists them), HLO text, ONNX model or JSON graph of "
         "one micro-batch."},
        {"layers", 0, XM_CLI_STRING, &o.layers, "auto|COUNT|FILE", 0, 0,
         "Layers of a model file that stages are made of: automatic, so many, or beginning "
         "with the operators that FILE lists (default: the file's own, else auto)."},
        {"layer-pattern", 0, XM_CLI_STRING, &o.layer_pattern, "REGEX", 0, 0,
         "Layers of a model file by the names of its operators: one for each text that the "
         "expression's first group matches, e.g. 'layers/([0-9]+)'."},
        {"dim", 0, XM_CLI_LIST, &o.dims, "NAME=SIZE", 0, 0,
         "Size of a symbolic dimension of an ONNX model; once for each."},
        AP_COMMAND_SEARCH_OPTIONS(&o.search),
        {"overlap", 0, XM_CLI_DOUBLE, &o.overlap, "PART", 0, 1,
         "Part of the gradients' collectives that hides behind the backward pass, 0 to 1 "
         "(default: the profile's)."},
        {"servers", 0, XM_CLI_INT, &o.servers, "COUNT", 1, 1 << 20,
         "Gradients are summed up by so many parameter servers, of a NIC each (default: the "
         "profile's, or none)."},
        {"schedule", 0, XM_CLI_STRING, &o.schedule, "NAME", 0, 0,
         "Pipeline schedule: 1f1b (default), auto, gpipe, eager-1f1b, eager-1f1b-w, zb-h1, "
         "zb-h2, pipedream-2bw, pipedream, pipemare, hetpipe or varuna."},
        {"submeshes", 0, XM_CLI_CHOICE, &o.submeshes, "regular|all", 0, 0,
         "Hosts and devices a stage may take: powers of two and divisors of the "
         "cluster's (default), or any number."},
        {"keep-host-order", 0, XM_CLI_FLAG, &o.keep_host_order, NULL, 0, 0,
         "Let stages take the hosts in the profile's order, also where hosts differ and "
         "another would be faster."},
        {"all-devices", 0, XM_CLI_FLAG, &o.all_devices, NULL, 0, 0,
         "Use all hosts, also where leaving some out is faster."},
        {"no-cross-mesh", 0, XM_CLI_FLAG, &o.no_cross_mesh, NULL, 0, 0,
         "Choose stages as if transfers between them took no time, as Alpa does."},
        {"time-limit", 0, XM_CLI_DOUBLE, &o.time_limit, "SECONDS", 0, 1000000,
         "Stop after this time with the best plan so far and say how good it is. A "
         "--planner is ended then (default 600)."},
        {"objective", 0, XM_CLI_CHOICE, &o.objective, "time|cost", 0, 0,
         "What to make least: the time of a step (default), or what its devices cost by the "
         "profile's prices; then only the hosts that pay are planned for."},
        {"min-throughput", 0, XM_CLI_DOUBLE, &o.min_throughput, "SAMPLES", 0, 1e15,
         "Samples per second that a plan must have."},
        {"pareto", 0, XM_CLI_FLAG, &o.pareto, NULL, 0, 0,
         "Find every plan that no other beats in both step time and memory of a device; "
         "--output writes them all, --plot draws the curve."},
        {"planner", 0, XM_CLI_STRING, &o.planner, "COMMAND", 0, 0,
         "Let another planner plan: a command that reads the question on standard input and "
         "writes a plan on standard output. The plan is verified."},
        {"request", 0, XM_CLI_STRING, &o.request, "FILE", 0, 0,
         "Answer the question in a file (-: standard input) as such a command does."},
        {"like", 0, XM_CLI_STRING, &o.like, "NAME", 0, 0,
         "Plan the model as another planner would (autopar compare --list), or an "
         "INPUT.json of piper or dnn-partitioning as they pose the problem."},
        {"seed", 0, XM_CLI_INT, &o.seed, "NUMBER", 0, 1 << 30,
         "With --like: seed of the search (default 1)."},
        {"budget", 0, XM_CLI_INT, &o.budget, "COUNT", 1, 1 << 30,
         "With --like: what the search may try: proposals of flexflow's random walk (default 1000 "
         "an operator), completions of automap's tree (200), states of unity (10); with INPUT.json "
         "thousands of moves of "
         "an operator (4000)."},
        {"alpha", 0, XM_CLI_DOUBLE, &o.alpha, "NUMBER", 0, 1e9,
         "With --like, flexflow: a proposal that is worse by a part d of the best is taken with "
         "probability exp(-alpha d) (default 1000); unity: states of at most alpha times the best "
         "are "
         "gone on with (1.05)."},
        {"substitution-json", 0, XM_CLI_STRING, &o.row.substitutions, "FILE", 0, 0,
         "With --like unity: FlexFlow's rules, instead of any cut of any operator."},
        {"import-strategy", 0, XM_CLI_STRING, &o.row.strategies, "FILE", 0, 0,
         "With --like flexflow or galvatron: price the strategies of such a file, instead of "
         "searching."},
        {"export-strategy", 0, XM_CLI_OUTPUT, &o.row.export, "FILE", 0, 0,
         "With --like galvatron: write the plan as Galvatron has it."},
        {"lattice", 0, XM_CLI_FLAG, &o.row.lattice, NULL, 0, 0,
         "With --like megatron and other grids: list every point, (data, tensor, stages, "
         "micro-batches), with its step and memory."},
        {"devices", 0, XM_CLI_INT, &o.devices, "COUNT", 1, 10000,
         "With --like: devices, instead of the input's."},
        {"bandwidth", 0, XM_CLI_BYTES, &o.bandwidth, "BYTES", 0, 0,
         "With --like piper: bytes per second between devices, instead of the input's."},
        {"plot", 0, XM_CLI_OUTPUT, &o.plot, "FILE", 0, 0, "Write a figure of the plan as SVG."},
        AP_COMMAND_PLAN_OUTPUT(&o.output, &o.json),
    };
    const xm_cli_command_t command = XM_CLI_COMMAND(
        program, "[INPUT.json]", summary,
        "autopar plan --model gpt-1.3b --cluster cluster.json -o plan.json", table, 0, 1);

    return xm_cli_main(&command, argc, argv, run, &o);
}
