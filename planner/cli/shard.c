/* autopar shard: one model on one device mesh, no pipeline; the intra-operator problem alone. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_support/options.h"
#include "comm/text.h"
#include "planner/cli/command.h"
#include "planner/cli/shard_output.h"
#include "planner/frontend_hlo.h"
#include "planner/frontend_zoo.h"
#include "planner/shard_problem.h"
#include "planner/training.h"

enum { STRATEGY_TEXT = 256, BYTES_TEXT = 32 };
enum { MODEL_ALPA, MODEL_PROFILE };

static const char program[] = "autopar shard";
static const uint64_t not_given = UINT64_MAX;

typedef struct shard_options {
    const char *mesh, *alpha, *beta, *cluster;
    int cost_model, batch, hidden;
    uint64_t memory_limit;
    bool force_data_parallel, json;
    ap_shard_files_t files;
} shard_options_t;

static xm_status_t parse_options(int argc, char *const *argv, shard_options_t *o, xm_cli_t **cli)
{
    const xm_cli_option_t options[] = {
        {.name = "mesh",
         .kind = XM_CLI_STRING,
         .target = &o->mesh,
         .argument = "SHAPE",
         .help = "Logical mesh, e.g. 4x1 or 2x4; axis 0 runs over hosts."},
        {.name = "cost-model",
         .kind = XM_CLI_CHOICE,
         .target = &o->cost_model,
         .argument = "alpa|profile",
         .help = "Alpa's alpha-beta constants (default), or seconds from --cluster."},
        {.name = "alpha",
         .kind = XM_CLI_STRING,
         .target = &o->alpha,
         .argument = "LIST",
         .help = "Alpa's latency per mesh axis (default 1,1)."},
        {.name = "beta",
         .kind = XM_CLI_STRING,
         .target = &o->beta,
         .argument = "LIST",
         .help = "Alpa's cost per byte and mesh axis (default 1,0.1)."},
        {.name = "cluster",
         .kind = XM_CLI_STRING,
         .target = &o->cluster,
         .argument = "FILE",
         .help = "Cluster profile; implies --cost-model profile."},
        {.name = "batch",
         .kind = XM_CLI_INT,
         .target = &o->batch,
         .argument = "SAMPLES",
         .minimum = 1,
         .maximum = 1 << 30,
         .help = "Samples of one step (default: 1 for gpt, 1024 for mlp)."},
        {.name = "hidden",
         .kind = XM_CLI_INT,
         .target = &o->hidden,
         .argument = "SIZE",
         .minimum = 1,
         .maximum = 1 << 24,
         .help = "Width of an mlp's layers (default 128)."},
        {.name = "memory-limit",
         .kind = XM_CLI_BYTES,
         .target = &o->memory_limit,
         .argument = "BYTES",
         .help = "Memory of one device, e.g. 16GiB (default: no limit)."},
        {.name = "force-data-parallel",
         .kind = XM_CLI_FLAG,
         .target = &o->force_data_parallel,
         .help = "Only data parallelism (alpa cost model)."},
        {.name = "plot",
         .kind = XM_CLI_STRING,
         .target = &o->files.plot,
         .argument = "FILE",
         .help = "Write the memory of a device over the operators as SVG."},
        {.name = "export-jax",
         .kind = XM_CLI_STRING,
         .target = &o->files.jax,
         .argument = "FILE",
         .help = "Write the shardings as a Python module for JAX."},
        {.name = "export-hlo",
         .kind = XM_CLI_STRING,
         .target = &o->files.hlo,
         .argument = "FILE",
         .help = "Write a copy of the HLO text with the shardings in it."},
        {.name = "export-torch",
         .kind = XM_CLI_STRING,
         .target = &o->files.torch,
         .argument = "FILE",
         .help = "Write the shardings as DTensor placements in JSON."},
        {.name = "json",
         .letter = 'J',
         .kind = XM_CLI_FLAG,
         .target = &o->json,
         .help = "Print JSON instead of a table."},
    };
    xm_cli_command_t command = XM_CLI_COMMAND_INIT;

    command.program = program;
    command.arguments = "MODEL|FILE";
    command.summary =
        "Shards the training step of a built-in model (gpt-125m ... gpt-76b, mlpN), or\n"
        "what a file of HLO text (*.hlo, *.txt) computes, over one mesh; prints the\n"
        "objective and the strategy of every operator.";
    command.options = options;
    command.option_count = sizeof(options) / sizeof(options[0]);
    command.min_arguments = 1;
    command.max_arguments = 1;
    return xm_cli_parse(&command, argc, argv, cli);
}

/* A file of HLO text rather than the name of a model. */
static bool is_file(const char *name)
{
    static const char *const endings[] = {".hlo", ".txt"};
    size_t length = strlen(name);

    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); ++i) {
        size_t ending = strlen(endings[i]);

        if (length > ending && strcmp(name + length - ending, endings[i]) == 0) {
            return true;
        }
    }
    return strchr(name, '/') != NULL;
}

/* "1,0.1" into one number per mesh axis. */
static xm_status_t parse_axes(const char *what, const char *text, double *values)
{
    for (int axis = 0; axis < 2; ++axis) {
        size_t length = strcspn(text, ",");
        char word[32];
        xm_status_t status;

        if ((text[length] == ',') != (axis == 0)) {
            return xm_error_set(XM_ERR_PARSE,
                                "%s: one number for each of the 2 mesh axes, e.g. 1,1", what);
        }
        (void)snprintf(word, sizeof(word), "%.*s", (int)(length < 31 ? length : 31), text);
        status = xm_text_parse_double(what, word, 0.0, 1e12, &values[axis]);
        if (status != XM_OK) {
            return status;
        }
        text += length + (axis == 0);
    }
    return XM_OK;
}

static xm_status_t parse_mesh(const char *text, int *shape)
{
    int used = 0;

    if (text == NULL) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "--mesh is needed");
    }
    /* Five digits at most, so nothing overflows. NOLINTNEXTLINE(cert-err34-c) */
    if (sscanf(text, "%5dx%5d%n", &shape[0], &shape[1], &used) != 2 || text[used] != '\0' ||
        shape[0] < 1 || shape[1] < 1) {
        return xm_error_set(XM_ERR_PARSE, "--mesh: '%s' is not a mesh such as 2x4", text);
    }
    return XM_OK;
}

/* Cost model of the options; a profile is loaded in the size of the mesh. */
static xm_status_t make_cost_model(const shard_options_t *o, const int *shape,
                                   xm_cluster_profile_t **profile, ap_cost_model_t **model)
{
    ap_alpa_params_t alpa = AP_ALPA_PARAMS_INIT;
    xm_status_t status = XM_OK;

    if (o->cost_model == MODEL_PROFILE || o->cluster != NULL) {
        if (o->cluster == NULL) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "--cost-model profile needs --cluster");
        }
        if (o->force_data_parallel || o->alpha != NULL || o->beta != NULL) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                "--alpha, --beta and --force-data-parallel are for --cost-model "
                                "alpa");
        }
        status = ap_command_load_cluster(o->cluster, shape[0], shape[1], profile);
        return status == XM_OK ? ap_cost_model_create_profile(*profile, model) : status;
    }
    alpa.force_data_parallel = o->force_data_parallel;
    if (o->alpha != NULL) {
        status = parse_axes("--alpha", o->alpha, alpa.alpha);
    }
    if (status == XM_OK && o->beta != NULL) {
        status = parse_axes("--beta", o->beta, alpa.beta);
    }
    return status == XM_OK ? ap_cost_model_create_alpa(&alpa, model) : status;
}

/* How far above the best possible the objective may be. */
static double gap_of(const ap_intra_op_result_t *result)
{
    return result->objective > 0 ? (result->objective - result->bound) / result->objective : 0;
}

static void print_choice(const ap_shard_problem_t *problem, const int *choice,
                         const ap_intra_op_result_t *result, bool seconds)
{
    int nodes = ap_shard_problem_get(problem)->nodes;
    char bytes[BYTES_TEXT];

    (void)printf("# %-28s %s\n", "node", "strategy: operands -> results {factor: axes}");
    for (int node = 0; node < nodes; ++node) {
        char strategy[STRATEGY_TEXT];

        (void)printf(
            "  %-28s %s\n", ap_shard_problem_node_name(problem, node),
            ap_shard_problem_strategy(problem, node, choice[node], strategy, sizeof(strategy)));
    }
    (void)printf("objective %.8g%s, bound %.8g, gap %.2f %%, memory %s\n", result->objective,
                 seconds ? " s" : "", result->bound, 100 * gap_of(result),
                 xm_text_format_bytes((uint64_t)result->memory, bytes, sizeof(bytes)));
}

/* Operators of a file that have no rule of their own. */
static void print_unknown(const ap_hlo_notes_t *notes)
{
    for (int i = 0; notes != NULL && i < ap_hlo_notes_count(notes); ++i) {
        int count;
        const char *name = ap_hlo_notes_get(notes, i, &count);

        (void)printf("%s%s x%d%s", i == 0 ? "without a rule, kept whole: " : ", ", name, count,
                     i + 1 == ap_hlo_notes_count(notes) ? "\n" : "");
    }
}

static json_t *unknown_json(const ap_hlo_notes_t *notes)
{
    json_t *list = json_array();

    for (int i = 0; notes != NULL && i < ap_hlo_notes_count(notes); ++i) {
        int count;
        const char *name = ap_hlo_notes_get(notes, i, &count);

        (void)json_array_append_new(list, json_pack("{s:s, s:i}", "name", name, "count", count));
    }
    return list;
}

static xm_status_t print_json(const ap_shard_problem_t *problem, const int *choice,
                              const ap_intra_op_result_t *result, const ap_hlo_notes_t *notes,
                              const ap_shard_report_t *report, const ap_memory_curve_t *curve,
                              const ap_shard_solution_t *solution)
{
    int nodes = ap_shard_problem_get(problem)->nodes;
    json_t *list = json_array(), *document;
    char *text;

    for (int node = 0; node < nodes; ++node) {
        char strategy[STRATEGY_TEXT];

        (void)json_array_append_new(
            list,
            json_pack("{s:s, s:s}", "node", ap_shard_problem_node_name(problem, node), "strategy",
                      ap_shard_problem_strategy(problem, node, choice[node], strategy,
                                                sizeof(strategy))));
    }
    document =
        json_pack("{s:i, s:f, s:f, s:f, s:f, s:o, s:o}", "version", 1, "objective",
                  result->objective, "bound", result->bound, "gap", gap_of(result), "memory_bytes",
                  result->memory, "unknown_operators", unknown_json(notes), "nodes", list);
    text = document != NULL && ap_shard_report_json(report, solution, document) == XM_OK &&
                   ap_memory_curve_json(curve, solution->graph, document) == XM_OK
               ? json_dumps(document, JSON_INDENT(1))
               : NULL;
    json_decref(document);
    if (text == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d strategies", nodes);
    }
    (void)puts(text);
    free(text);
    return XM_OK;
}

/* Everything that is said about a solution. */
static xm_status_t put_out(const shard_options_t *o, const char *name,
                           const ap_shard_problem_t *problem, const int *choice,
                           const ap_intra_op_result_t *result, const ap_hlo_notes_t *notes,
                           bool seconds)
{
    ap_shard_solution_t *solution;
    ap_shard_report_t *report = NULL;
    ap_memory_curve_t *curve = NULL;
    xm_status_t status = ap_shard_solution_create(problem, choice, &solution);

    if (status != XM_OK) {
        return status;
    }
    status = ap_shard_report_create(solution, &report);
    if (status == XM_OK) {
        status = ap_memory_curve_create(solution, report, &curve);
    }
    if (status == XM_OK && o->json) {
        status = print_json(problem, choice, result, notes, report, curve, solution);
    } else if (status == XM_OK) {
        print_choice(problem, choice, result, seconds);
        ap_shard_report_print(report, solution, seconds);
        ap_memory_curve_print(curve, solution->graph);
        print_unknown(notes);
    }
    if (status == XM_OK) {
        status = ap_shard_files_write(&o->files, name, solution, curve, notes);
    }
    ap_memory_curve_destroy(curve);
    ap_shard_report_destroy(report);
    ap_shard_solution_destroy(solution);
    return status;
}

static xm_status_t solve(const shard_options_t *o, const char *name, const ap_graph_t *graph,
                         const ap_hlo_notes_t *notes, const ap_cost_mesh_t *mesh, bool seconds)
{
    ap_shard_params_t params = AP_SHARD_PARAMS_INIT;
    ap_intra_op_options_t options = AP_INTRA_OP_OPTIONS_INIT;
    ap_intra_op_result_t result;
    ap_shard_problem_t *problem;
    int *choice;
    xm_status_t status;

    params.graph = graph;
    params.mesh = mesh;
    if (o->memory_limit == 0) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "--memory-limit: a device needs some memory");
    }
    params.memory_limit = o->memory_limit == not_given ? 0.0 : (double)o->memory_limit;
    status = ap_shard_problem_create(&params, &problem);
    if (status != XM_OK) {
        return status;
    }
    choice = calloc((size_t)ap_shard_problem_get(problem)->nodes + 1, sizeof(*choice));
    if (choice == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "out of memory for the strategies");
    } else {
        status = ap_intra_op_solve(ap_shard_problem_get(problem), &options, choice, &result);
    }
    if (status == XM_OK) {
        status = put_out(o, name, problem, choice, &result, notes, seconds);
    }
    if (status == XM_OK) {
        status = xm_cli_flush();
    }
    free(choice);
    ap_shard_problem_destroy(problem);
    return status;
}

static xm_status_t make_training_graph(const char *name, const shard_options_t *o,
                                       ap_graph_t **graph, ap_hlo_notes_t **notes)
{
    ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
    ap_graph_t *forward;
    xm_status_t status;

    if (is_file(name)) {
        if (o->batch != 0 || o->hidden != 0) {
            return xm_error_set(
                XM_ERR_INVALID_ARGUMENT,
                "--batch and --hidden are for built-in models; %s has its own sizes", name);
        }
        return ap_hlo_from_file(name, graph, notes);
    }
    zoo.batch = o->batch;
    zoo.hidden = o->hidden;
    status = ap_zoo_create(name, &zoo, &forward);
    if (status == XM_OK) {
        status = ap_training_expand(forward, AP_OPTIMIZER_SGD, graph);
        ap_graph_destroy(forward);
    }
    return status;
}

static xm_status_t run(const char *name, const shard_options_t *o)
{
    xm_cluster_profile_t *profile = NULL;
    ap_cost_model_t *model = NULL;
    ap_cost_mesh_t *mesh = NULL;
    ap_graph_t *graph = NULL;
    ap_hlo_notes_t *notes = NULL;
    int shape[2];
    xm_status_t status = parse_mesh(o->mesh, shape);

    if (status == XM_OK) {
        status = ap_shard_files_check(&o->files, is_file(name), name);
    }
    if (status == XM_OK) {
        status = make_cost_model(o, shape, &profile, &model);
    }
    if (status == XM_OK) {
        status = ap_cost_mesh_create(model, shape[0], shape[1], shape, 2, &mesh);
    }
    if (status == XM_OK) {
        status = make_training_graph(name, o, &graph, &notes);
    }
    if (status == XM_OK) {
        status = solve(o, name, graph, notes, mesh, profile != NULL);
    }
    ap_hlo_notes_destroy(notes);
    ap_graph_destroy(graph);
    ap_cost_mesh_destroy(mesh);
    ap_cost_model_destroy(model);
    xm_cluster_profile_destroy(profile);
    return status;
}

int ap_command_shard(int argc, char *const *argv)
{
    shard_options_t options = {.cost_model = MODEL_ALPA, .memory_limit = not_given};
    xm_cli_t *cli = NULL;
    xm_status_t status = parse_options(argc, argv, &options, &cli);

    if (status == XM_OK && !xm_cli_finished(cli)) {
        size_t count;

        status = run(xm_cli_arguments(cli, &count)[0], &options);
    }
    xm_cli_destroy(cli);
    return status == XM_OK ? 0 : xm_cli_fail(program, status);
}
