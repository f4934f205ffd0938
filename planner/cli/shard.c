/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autopar shard: finds the sharding of one model over one device mesh, without a pipeline. This is
 * the inner problem of the planner laid open: the mesh, the cost model and the solver are all
 * chosen on the command line, so that a result can be held against that of Alpa's intra-operator
 * pass or against another solver. With a cluster profile costs are seconds; with the alpa model
 * they are in the unit of its alpha and beta.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_support.h"
#include "comm/base.h"
#include "planner/cli/command.h"
#include "planner/cli/shard_output.h"
#include "planner/cli/shard_print.h"
#include "planner/frontend.h"
#include "planner/intra_op.h"
#include "planner/passes.h"
#include "planner/published/like.h"

enum { MODEL_ALPA, MODEL_PROFILE };
enum { OPTIMIZER_SGD, OPTIMIZER_ADAM };
enum { PATIENT_SECONDS = 60 }; /* of the highest level of effort */

static const char program[] = "autopar shard";
static const char summary[] =
    "Shards the training step of a built-in model (autopar import --list-models), of "
    "an ONNX model or a JSON graph, or what a file of HLO text computes, over one mesh; "
    "prints the objective and the strategy of every operator.";

typedef struct shard_options {
    const char *mesh, *alpha, *beta, *cluster, *like;
    int cost_model, batch, hidden, hosts, micro_batches, optimizer, threads, seed, budget, form,
        level;
    double time_limit, overlap;
    uint64_t memory_limit;
    const char *memory_reserve;
    xm_cli_list_t dims;
    bool force_data_parallel, even, every_layer, no_recompute;
    xm_cli_json_t json;
    ap_shard_files_t files;
} shard_options_t;

/* A logical mesh as --mesh gives it. */
typedef struct shard_mesh {
    int rank;
    int shape[AP_MAX_MESH_RANK];
    int hosts, devices;
} shard_mesh_t;

/* Reads "1,0.1" into one number per mesh axis. There must be exactly as many as the mesh has axes,
 * so that nobody has to guess which axis a lone number is for. */
static xm_status_t parse_axes(const char *what, const char *text, int rank, double *values)
{
    for (int axis = 0; axis < rank; ++axis) {
        size_t length = strcspn(text, ",");
        char word[32];

        if ((text[length] == ',') != (axis + 1 < rank)) {
            return XM_MALFORMED("%s: one number for each of the %d mesh axes, e.g. 1,1", what,
                                rank);
        }
        (void)snprintf(word, sizeof(word), "%.*s", (int)(length < 31 ? length : 31), text);
        XM_TRY(xm_text_parse_double(what, word, 0.0, 1e12, &values[axis]));
        text += length + (axis + 1 < rank);
    }
    return XM_OK;
}

/* Reads a mesh such as 2x4. The product is limited by a division before the multiplication, so that
 * it cannot overflow. Without --hosts the first axis of a mesh with several is taken to run over
 * the hosts. */
static xm_status_t parse_mesh(const shard_options_t *o, shard_mesh_t *mesh)
{
    const char *text = o->mesh;
    int all = 1;

    if (text == NULL) {
        return XM_INVALID("--mesh is needed");
    }
    for (mesh->rank = 0;; ++text) {
        char *end;
        long size = strtol(text, &end, 10);

        if (*text < '0' || *text > '9' || size < 1 || size > 1 << 20 ||
            mesh->rank == AP_MAX_MESH_RANK || (*end != 'x' && *end != '\0')) {
            return XM_MALFORMED("--mesh: '%s' is not a mesh of 1 to %d axes such as 2x4", o->mesh,
                                AP_MAX_MESH_RANK);
        }
        mesh->shape[mesh->rank++] = (int)size;
        if (size > (1 << 20) / all) {
            return XM_INVALID("--mesh: %s has too many devices; the most is %d", o->mesh, 1 << 20);
        }
        all *= (int)size;
        text = end;
        if (*end == '\0') {
            break;
        }
    }
    mesh->hosts = o->hosts > 0 ? o->hosts : mesh->rank > 1 ? mesh->shape[0] : 1;
    mesh->devices = all / mesh->hosts;
    if (mesh->devices * mesh->hosts != all) {
        return XM_INVALID("--hosts: the %d devices of mesh %s do not spread evenly over %d hosts",
                          all, o->mesh, mesh->hosts);
    }
    return XM_OK;
}

/* A mesh lies on the cluster as it is: prices of more hosts, or of larger ones, would be those of
 * hardware that nobody has measured. */
static xm_status_t check_fits(const shard_options_t *o, const shard_mesh_t *mesh,
                              const xm_cluster_profile_t *profile)
{
    int hosts = xm_cluster_profile_hosts(profile);
    int devices = xm_cluster_profile_devices_per_host(profile);

    if (mesh->hosts <= hosts && mesh->devices <= devices) {
        return XM_OK;
    }
    return XM_INVALID(
        "--mesh: %s lies on %d host%s of %d device%s; cluster %s has %d of %d%s", o->mesh,
        mesh->hosts, mesh->hosts > 1 ? "s" : "", mesh->devices, mesh->devices > 1 ? "s" : "",
        xm_cluster_profile_name(profile), hosts, devices,
        mesh->hosts * mesh->devices <= hosts * devices ? " (--hosts says on how many it lies)"
                                                       : "");
}

/* Makes the cost model of the options. Options of the
 * other model are refused instead of ignored, since an objective under the wrong unit costs looks
 * as good as any. */
static xm_status_t make_cost_model(const shard_options_t *o, const shard_mesh_t *mesh,
                                   xm_cluster_profile_t **profile, ap_cost_model_t **model)
{
    ap_alpa_params_t alpa = AP_ALPA_PARAMS_INIT;
    xm_status_t status = XM_OK;

    if (o->cost_model == MODEL_PROFILE || o->cluster != NULL) {
        if (o->cluster == NULL) {
            return XM_INVALID("--cost-model profile needs --cluster");
        }
        if (o->force_data_parallel || o->alpha != NULL || o->beta != NULL) {
            return XM_INVALID(
                "--alpha, --beta and --force-data-parallel are for --cost-model alpa");
        }
        XM_TRY(ap_command_load_cluster(o->cluster, 0, 0, o->overlap, profile));
        XM_TRY(check_fits(o, mesh, *profile));
        return ap_cost_model_create_profile(*profile, model);
    }
    if (o->overlap >= 0) {
        return XM_INVALID("--overlap is for --cost-model profile; the alpa model knows none");
    }
    alpa.force_data_parallel = o->force_data_parallel;
    if (o->alpha != NULL) {
        status = parse_axes("--alpha", o->alpha, mesh->rank, alpa.alpha);
    }
    if (status == XM_OK && o->beta != NULL) {
        status = parse_axes("--beta", o->beta, mesh->rank, alpa.beta);
    }
    return status == XM_OK ? ap_cost_model_create_alpa(&alpa, model) : status;
}

/* Parts by speed are prices: nothing that executes a plan cuts like that. */
static xm_status_t print_parts(const shard_options_t *o, const ap_cost_mesh_t *mesh)
{
    const ap_shard_files_t *files = &o->files;

    if (!(ap_cost_mesh_first_part(mesh, 0) > 0)) {
        return XM_OK;
    }
    if (files->jax != NULL || files->hlo != NULL || files->torch != NULL) {
        return XM_UNSUPPORTED("parts by speed cannot be exported: JAX, XLA and PyTorch cut evenly");
    }
    for (int a = 0; a < ap_cost_mesh_rank(mesh) && !o->json.print; ++a) {
        (void)printf("%s axis %d %.4f", a == 0 ? "first position's part:" : ",", a,
                     ap_cost_mesh_first_part(mesh, a));
    }
    (void)printf(o->json.print ? "" : "\n");
    return XM_OK;
}

/* Gives out everything that is said about a plan. All of it is computed before the first line is
 * printed, so that a lack of memory leaves no half report; files come last. */
/* What the plan was allowed to use, where anything says so. */
static void print_budget(const ap_shard_problem_t *problem, const ap_memory_budget_t *budget)
{
    double has = ap_cost_mesh_memory(ap_shard_problem_params(problem)->mesh);
    char text[AP_MEMORY_BUDGET_TEXT];

    if (has > 0 || budget->limit > 0) {
        (void)printf("memory: %s\n", ap_memory_budget_format(ap_memory_budget_usable(budget, has),
                                                             ap_memory_budget_reserve(budget, has),
                                                             text, sizeof(text)));
    }
}

static xm_status_t put_out(const shard_options_t *o, const char *name, const ap_graph_t *graph,
                           const ap_shard_problem_t *problem, const ap_shard_plan_t *plan,
                           const ap_frontend_notes_t *notes, const ap_memory_budget_t *budget,
                           bool seconds)
{
    ap_shard_solution_t *solution = NULL;
    ap_shard_report_t *report = NULL;
    ap_memory_curve_t *curve = NULL;
    json_t *more = json_object();
    xm_status_t status =
        ap_shard_solution_create(problem, ap_shard_plan_strategies(plan), &solution);

    XM_THEN(status, print_parts(o, ap_shard_problem_params(problem)->mesh));
    XM_THEN(status, ap_shard_report_create(solution, &report));
    XM_THEN(status, ap_shard_memory_curve(plan, graph, &curve));
    if (status == XM_OK && xm_cli_wants_json(&o->json)) {
        status = ap_shard_report_json(report, solution, more);
        XM_THEN(status, ap_memory_curve_json(curve, graph, more));
        XM_THEN(status, ap_shard_give_json(graph, problem, plan, notes, more, &o->json));
    }
    if (status == XM_OK && !o->json.print) {
        ap_shard_print(graph, problem, plan, notes, seconds);
        print_budget(problem, budget);
        ap_shard_report_print(report, seconds);
    }
    XM_THEN(status, ap_shard_files_write(&o->files, name, solution, curve, notes));
    json_decref(more);
    ap_memory_curve_destroy(curve);
    ap_shard_report_destroy(report);
    ap_shard_solution_destroy(solution);
    return status;
}

/* Writes what the solver would be given. */
static xm_status_t dump(const ap_shard_problem_t *problem, const ap_shard_options_t *options,
                        const char *path)
{
    ap_cfn_t *cfn = NULL;
    xm_status_t status = ap_shard_problem_network(problem, options, &cfn);

    XM_THEN(status, ap_shard_problem_write(cfn, path));
    ap_cfn_destroy(cfn);
    return status;
}

/* Builds the problem and solves it, or writes it. */
static xm_status_t solve(const shard_options_t *o, const char *name, const ap_graph_t *graph,
                         double state_bytes, const ap_frontend_notes_t *notes,
                         const ap_cost_mesh_t *mesh, bool seconds)
{
    ap_shard_params_t params = AP_SHARD_PARAMS_INIT;
    ap_shard_options_t options = AP_SHARD_OPTIONS_INIT;
    ap_shard_problem_t *problem;
    ap_like_template_filter_t form;
    ap_like_shard_t like = {.effort = {.seed = (uint64_t)o->seed, .budget = o->budget}};
    ap_shard_plan_t *plan = NULL;
    xm_cli_progress_t *progress;
    xm_status_t status;

    params.graph = graph;
    params.mesh = mesh;
    params.micro_batches = o->micro_batches;
    params.state_bytes = state_bytes;
    options.memory.limit = o->memory_limit == AP_COMMAND_NOT_GIVEN ? 0.0 : (double)o->memory_limit;
    options.seconds = o->time_limit;
    options.threads = o->threads;
    options.seed = (uint64_t)o->seed;
    options.recompute = !o->no_recompute;
    options.every_layer = o->every_layer;
    status = ap_command_parse_reserve(o->memory_reserve, &options.memory.reserve);
    if (status == XM_OK && o->like != NULL) {
        options.search = ap_like_shard_search;
        options.search_arg = &like;
        status = ap_planner_preset_find(o->like, &like.row);
    }
    if (status == XM_OK && o->form >= 0) {
        params.filter = &form.filter;
        status = ap_like_template_open((ap_like_template_t)o->form, mesh, &form);
    }
    XM_THEN(status, ap_shard_problem_create(&params, &problem));
    XM_TRY(status);
    if (o->files.problem != NULL) {
        status = dump(problem, &options, o->files.problem);
        ap_shard_problem_destroy(problem);
        return status;
    }
    progress = xm_cli_progress_create(program);
    options.progress = xm_cli_progress_update;
    options.progress_arg = progress;
    status = ap_shard_solve(problem, &options, &plan);
    xm_cli_progress_destroy(progress);
    XM_THEN(status, put_out(o, name, graph, problem, plan, notes, &options.memory, seconds));
    XM_THEN(status, xm_cli_flush());
    ap_shard_plan_destroy(plan);
    ap_shard_problem_destroy(problem);
    return status;
}

/* Gives the bytes of optimizer state per parameter element. One number serves the whole graph, and
 * the type of the first parameter stands for those of all. */
static double state_bytes_of(const ap_graph_t *graph, ap_optimizer_t optimizer)
{
    for (int t = 0; t < ap_graph_tensors(graph); ++t) {
        if (ap_graph_tensor(graph, t)->kind == AP_TENSOR_PARAMETER) {
            return ap_training_state_bytes(optimizer, ap_graph_tensor(graph, t)->dtype);
        }
    }
    return 0;
}

/* Makes the graph of a training step, as the file has it or derived from a forward graph. Options
 * that only a derived step gives a meaning to are refused where the file has its own. */
static xm_status_t make_training_graph(const char *name, const shard_options_t *o,
                                       ap_graph_t **graph, double *state_bytes,
                                       ap_frontend_notes_t **notes)
{
    ap_optimizer_t optimizer =
        o->optimizer == OPTIMIZER_ADAM ? AP_OPTIMIZER_ADAM : AP_OPTIMIZER_SGD;
    ap_frontend_params_t params = AP_FRONTEND_PARAMS_INIT;
    const char *untrainable;
    xm_status_t status = XM_OK;

    params.batch = o->batch;
    params.hidden = o->hidden;
    params.dims = o->dims.items;
    params.dim_count = o->dims.count;
    XM_TRY(ap_frontend_load(name, &params, graph, notes));
    untrainable = ap_frontend_untrainable(*graph);
    if (untrainable == NULL) {
        status = ap_frontend_train(optimizer, graph);
        if (status == XM_OK) {
            *state_bytes = state_bytes_of(*graph, optimizer);
        }
    } else if (o->micro_batches != 0 || o->optimizer != OPTIMIZER_SGD) {
        status = XM_INVALID("--micro-batches and --optimizer are for models of which the training "
                            "step is derived; %s %s",
                            name, untrainable);
    }
    return status;
}

/* How the mesh cuts: evenly, with what does not divide padded, or by the speed of its devices. */
static xm_status_t set_cuts(const shard_options_t *o, bool profile, ap_cost_mesh_t *mesh)
{
    const ap_planner_preset_t *row = NULL;
    XM_TRY(o->like != NULL ? ap_planner_preset_find(o->like, &row) : XM_OK);

    if (row != NULL) {
        XM_TRY(ap_like_shard_check(row));
    }
    if (profile && !o->even) {
        ap_cost_mesh_allow_uneven(mesh);
    }
    return row != NULL && row->by_speed ? ap_cost_mesh_allow_ratio(mesh) : XM_OK;
}

/* Levels of effort, as Rhino has them: from one completion of no annotation over greedy halving
 * and a tree of decisions to like layers alike and every layer by itself. */
static xm_status_t set_level(const xm_cli_t *cli, shard_options_t *o)
{
    static const char *const rows[] = {"automap", "double-recursive", "automap", NULL, NULL};
    static const char *const others[] = {"like", "budget", "every-layer", NULL};

    for (int i = 0; o->level >= 0 && others[i] != NULL; ++i) {
        if (xm_cli_given(cli, others[i])) {
            return XM_INVALID("--%s has no meaning with --opt-level", others[i]);
        }
    }
    if (o->level >= 0) {
        o->like = rows[o->level];
        o->budget = o->level == 0;
        o->every_layer = o->level == 4;
        o->time_limit = o->level == 4 && !(o->time_limit > 0) ? PATIENT_SECONDS : o->time_limit;
    }
    return o->budget > 0 && o->like == NULL ? XM_INVALID("--budget is for --like") : XM_OK;
}

static xm_status_t run(const xm_cli_t *cli, void *options)
{
    const char *name = ap_command_argument(cli, 0);
    shard_options_t *o = options;
    xm_cluster_profile_t *profile = NULL;
    ap_cost_model_t *model = NULL;
    ap_cost_mesh_t *mesh = NULL;
    ap_graph_t *graph = NULL;
    ap_frontend_notes_t *notes = NULL;
    shard_mesh_t on;
    double state_bytes = 0;
    xm_status_t status = set_level(cli, o);

    XM_THEN(status, parse_mesh(o, &on));
    XM_THEN(status, make_cost_model(o, &on, &profile, &model));
    XM_THEN(status, ap_cost_mesh_create(model, on.hosts, on.devices, on.shape, on.rank, &mesh));
    XM_THEN(status, set_cuts(o, profile != NULL, mesh));
    XM_THEN(status, make_training_graph(name, o, &graph, &state_bytes, &notes));
    XM_THEN(status, ap_shard_files_check(&o->files, ap_frontend_notes_source(notes) != NULL, name));
    XM_THEN(status, solve(o, name, graph, state_bytes, notes, mesh, profile != NULL));
    ap_frontend_notes_destroy(notes);
    ap_graph_destroy(graph);
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
    xm_cluster_profile_destroy(profile);
    return status;
}

int ap_command_shard(int argc, char *const *argv)
{
    shard_options_t o = {.cost_model = MODEL_ALPA,
                         .memory_limit = AP_COMMAND_NOT_GIVEN,
                         .seed = 1,
                         .form = -1,
                         .level = -1,
                         .overlap = AP_COMMAND_NO_OVERLAP};
    const xm_cli_option_t table[] = {
        {"mesh", 0, XM_CLI_STRING, &o.mesh, "SHAPE", 0, 0,
         "Logical mesh of 1 to 4 axes, e.g. 8, 2x4 or 2x2x2."},
        {"hosts", 0, XM_CLI_INT, &o.hosts, "COUNT", 1, 1 << 20,
         "Hosts that the mesh lies on, row by row (default: axis 0 of a mesh of several "
         "axes, else 1)."},
        {"cost-model", 0, XM_CLI_CHOICE, &o.cost_model, "alpa|profile", 0, 0,
         "Alpa's alpha-beta constants (default), or seconds from --cluster."},
        {"alpha", 0, XM_CLI_STRING, &o.alpha, "LIST", 0, 0,
         "Alpa's latency per mesh axis (default 1,1)."},
        {"beta", 0, XM_CLI_STRING, &o.beta, "LIST", 0, 0,
         "Alpa's cost per byte and mesh axis (default 1,0.1)."},
        {"cluster", 0, XM_CLI_STRING, &o.cluster, "FILE", 0, 0,
         "Cluster profile; implies --cost-model profile."},
        {"overlap", 0, XM_CLI_DOUBLE, &o.overlap, "PART", 0, 1,
         "Part of the gradients' collectives that hides behind the backward pass, 0 to 1 "
         "(default: the profile's)."},
        {"batch", 0, XM_CLI_INT, &o.batch, "SAMPLES", 1, 1 << 30,
         "Samples of one step (default: 1 for gpt, 1024 for mlp)."},
        {"hidden", 0, XM_CLI_INT, &o.hidden, "SIZE", 1, 1 << 24,
         "Width of an mlp's layers (default 128)."},
        {"dim", 0, XM_CLI_LIST, &o.dims, "NAME=SIZE", 0, 0,
         "Size of a symbolic dimension of an ONNX model; once for each."},
        {"memory-limit", 0, XM_CLI_BYTES, &o.memory_limit, "BYTES", 0, 0,
         "Memory of one device that a plan may use at any time, e.g. 16GiB (default: the "
         "profile's; none without a profile)."},
        AP_COMMAND_MEMORY_RESERVE(&o.memory_reserve),
        {"no-recompute", 0, XM_CLI_FLAG, &o.no_recompute, NULL, 0, 0,
         "Under a limit, keep what the backward pass needs; never compute it twice."},
        {"micro-batches", 0, XM_CLI_INT, &o.micro_batches, "COUNT", 1, 1 << 20,
         "Micro-batches that gradients are summed over, built-in models (default 1)."},
        {"optimizer", 0, XM_CLI_CHOICE, &o.optimizer, "sgd|adam", 0, 0,
         "Optimizer of a built-in model (default sgd)."},
        {"time-limit", 0, XM_CLI_DOUBLE, &o.time_limit, "SECONDS", 0.01, 1e6,
         "Time for the solver (default 1, more while there is no plan); proving ends it."},
        {"even", 0, XM_CLI_FLAG, &o.even, NULL, 0, 0,
         "Cut only what divides by the devices; otherwise (profile) the rest is padded."},
        {"every-layer", 0, XM_CLI_FLAG, &o.every_layer, NULL, 0, 0,
         "Let layers of one structure be sharded differently."},
        {"threads", 0, XM_CLI_INT, &o.threads, "COUNT", 1, 64,
         "Threads of the solver (default: one per core)."},
        {"seed", 0, XM_CLI_INT, &o.seed, "NUMBER", 0, 1 << 30, "Seed of the solver (default 1)."},
        {"like", 0, XM_CLI_STRING, &o.like, "NAME", 0, 0,
         "Search as another planner does (autopar compare --list), without looking at memory."},
        {"budget", 0, XM_CLI_INT, &o.budget, "COUNT", 1, 1 << 30,
         "With --like: proposals of a random walk, completions of a tree search."},
        {"template", 0, XM_CLI_CHOICE, &o.form, "1d|2d|2.5d|3d", 0, 0,
         "Tensor parallelism of that many dimensions, on a mesh of 1, 2, 3 or 3 axes: products "
         "with "
         "weights are cut so and in no other way."},
        {"opt-level", 0, XM_CLI_INT, &o.level, "LEVEL", 0, 4,
         "Effort: 0 completes what nothing says, 1 halves the devices greedily, 2 searches a tree, "
         "3 is the solver (default), 4 lets every layer differ, for up to 60 s."},
        {"force-data-parallel", 0, XM_CLI_FLAG, &o.force_data_parallel, NULL, 0, 0,
         "Only data parallelism (alpa cost model)."},
        {"plot", 0, XM_CLI_OUTPUT, &o.files.plot, "FILE", 0, 0,
         "Write the memory of a device over the operators as SVG."},
        {"export-jax", 0, XM_CLI_OUTPUT, &o.files.jax, "FILE", 0, 0,
         "Write the shardings as tables for JAX, in JSON."},
        {"export-hlo", 0, XM_CLI_OUTPUT, &o.files.hlo, "FILE", 0, 0,
         "Write a copy of the HLO text with the shardings in it."},
        {"export-torch", 0, XM_CLI_OUTPUT, &o.files.torch, "FILE", 0, 0,
         "Write the shardings as DTensor placements in JSON."},
        {"dump-problem", 0, XM_CLI_OUTPUT, &o.files.problem, "FILE", 0, 0,
         "Do not solve: write the problem in the format of autopar solve."},
        XM_CLI_JSON_OPTIONS(XM_CLI_OUTPUT, &o.json, "Print JSON instead of a table."),
    };
    const xm_cli_command_t command =
        XM_CLI_COMMAND(program, "MODEL|FILE", summary,
                       "autopar shard mlp2 --mesh 2x4 --cluster cluster.json", table, 1, 1);

    return xm_cli_main(&command, argc, argv, run, &o);
}
