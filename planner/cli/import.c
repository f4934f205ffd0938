/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autopar import: reads a model of any of the kinds that the frontends know and writes it as our
 * JSON graph, with the training step derived if that is asked for. The command shows what the
 * planner will see: how many operators of which phase, and the operators for which no sharding rule
 * is known and which therefore stay whole.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli_support.h"
#include "comm/base.h"
#include "planner/cli/command.h"
#include "planner/frontend.h"
#include "planner/passes.h"
#include "planner/frontend/json.h"
#include "planner/frontend/zoo.h"
#include "planner/published/sailor.h"

static const char program[] = "autopar import";
static const char summary[] =
    "Reads a built-in model, HLO text, an ONNX model or a JSON graph, says what is "
    "in it, and writes it as a JSON graph. Or reads measured runs (sailor FOLDER) and writes a "
    "folder for autopar judge.";
enum { TRAINING_NONE, TRAINING_SGD, TRAINING_ADAM };

typedef struct import_options {
    const char *output;
    xm_cli_list_t dims;
    int batch, hidden, layers, sequence, training;
    xm_cli_json_t json;
    bool list;
} import_options_t;

/* Builds every model of the zoo to count its parameters, rather than keep a table of numbers that
 * could differ from what the builders do. */
static xm_status_t list_models(const xm_cli_json_t *json)
{
    json_t *models = json_array();
    const char *name;

    if (!json->print) {
        (void)printf("# %-18s %14s %7s\n", "model", "parameters", "layers");
    }
    for (size_t i = 0; (name = ap_zoo_name(i)) != NULL; ++i) {
        ap_zoo_params_t zoo = AP_ZOO_PARAMS_INIT;
        ap_graph_t *graph;
        xm_status_t status = ap_zoo_create(name, &zoo, &graph);

        if (status != XM_OK) {
            json_decref(models);
            return status;
        }
        (void)json_array_append_new(models, json_pack("{s:s, s:f, s:i}", "name", name, "parameters",
                                                      ap_graph_parameters(graph), "layers",
                                                      ap_graph_layers(graph)));
        if (!json->print) {
            (void)printf("  %-18s %14.0f %7d\n", name, ap_graph_parameters(graph),
                         ap_graph_layers(graph));
        }
        ap_graph_destroy(graph);
    }
    if (!json->print) {
        (void)printf("  %-18s (N square weights; see --hidden)\n", "mlpN");
    }
    return xm_cli_give_json(json, json_pack("{s:i, s:o}", "version", 1, "models", models));
}

static const char *const phase_names[] = {"forward", "backward", "update"};

/* What a graph holds, counted once for the table and for JSON. Arrays are indexed by the phase of
 * an operator. */
typedef struct contents {
    int ops[3], inputs, parameters;
    double flops[3];
} contents_t;

static contents_t count_contents(const ap_graph_t *graph)
{
    contents_t c = {.inputs = 0};

    for (int o = 0; o < ap_graph_ops(graph); ++o) {
        ++c.ops[ap_graph_op(graph, o)->phase];
        c.flops[ap_graph_op(graph, o)->phase] += ap_graph_op(graph, o)->flops;
    }
    for (int t = 0; t < ap_graph_tensors(graph); ++t) {
        c.inputs += ap_graph_tensor(graph, t)->kind == AP_TENSOR_INPUT;
        c.parameters += ap_graph_tensor(graph, t)->kind == AP_TENSOR_PARAMETER;
    }
    return c;
}

static xm_status_t give_graph(const ap_graph_t *graph, const ap_frontend_notes_t *notes,
                              const xm_cli_json_t *json)
{
    const contents_t c = count_contents(graph);
    json_t *phases = json_object(), *unknown = json_array();

    for (int p = 0; p < 3; ++p) {
        if (c.ops[p] > 0) {
            (void)json_object_set_new(
                phases, phase_names[p],
                json_pack("{s:i, s:f}", "operators", c.ops[p], "flops", c.flops[p]));
        }
    }
    for (int i = 0; i < ap_frontend_notes_count(notes); ++i) {
        int count;
        const char *name = ap_frontend_notes_get(notes, i, &count);

        (void)json_array_append_new(unknown, json_pack("{s:s, s:i}", "name", name, "count", count));
    }
    return xm_cli_give_json(
        json, json_pack("{s:i, s:s, s:i, s:i, s:f, s:i, s:o, s:o}", "version", 1, "name",
                        ap_graph_name(graph), "inputs", c.inputs, "parameters", c.parameters,
                        "parameter_elements", ap_graph_parameters(graph), "layers",
                        ap_graph_layers(graph), "phases", phases, "unknown_operators", unknown));
}

static xm_status_t print_graph(const ap_graph_t *graph, const ap_frontend_notes_t *notes)
{
    const contents_t c = count_contents(graph);
    char shown[1024];

    (void)printf("graph %s: %d inputs, %d parameters (%.0f numbers), %d layers\n",
                 xm_text_printable(ap_graph_name(graph), shown, sizeof(shown)), c.inputs,
                 c.parameters, ap_graph_parameters(graph), ap_graph_layers(graph));
    for (int p = 0; p < 3; ++p) {
        if (c.ops[p] > 0) {
            (void)printf("  %-9s %7d operators %12.6g FLOP\n", phase_names[p], c.ops[p],
                         c.flops[p]);
        }
    }
    for (int i = 0; i < ap_frontend_notes_count(notes); ++i) {
        int count;
        const char *name = ap_frontend_notes_get(notes, i, &count);

        (void)printf("  without a rule, kept whole: %s x%d\n",
                     xm_text_printable(name, shown, sizeof(shown)), count);
    }
    return xm_cli_flush();
}

/* Measured runs of others, instead of a model. */
static xm_status_t import_runs(const char *whose, const char *folder, const char *output)
{
    if (strcmp(whose, "sailor") != 0) {
        return XM_INVALID("'%s' has no folder of runs to read: sailor", whose);
    }
    return output != NULL ? ap_sailor_import(folder, output)
                          : XM_INVALID("a folder to write is needed (--output)");
}

static xm_status_t run(const xm_cli_t *cli, void *options)
{
    const char *model = ap_command_argument(cli, 0);
    const import_options_t *o = options;
    ap_frontend_params_t params = AP_FRONTEND_PARAMS_INIT;
    ap_frontend_notes_t *notes = NULL;
    ap_graph_t *graph = NULL;
    xm_status_t status;

    if (o->list) {
        return list_models(&o->json);
    }
    if (ap_command_argument(cli, 1) != NULL) {
        return import_runs(model, ap_command_argument(cli, 1), o->output);
    }
    if (model == NULL) {
        return XM_INVALID("a model or file is needed (--list-models names the models)");
    }
    if (o->output != NULL && (status = xm_file_check_output("--output", o->output)) != XM_OK) {
        return status;
    }
    params.batch = o->batch;
    params.hidden = o->hidden;
    params.layers = o->layers;
    params.sequence = o->sequence;
    params.dims = o->dims.items;
    params.dim_count = o->dims.count;
    status = ap_frontend_load(model, &params, &graph, &notes);
    if (status == XM_OK && o->training != TRAINING_NONE && ap_frontend_untrainable(graph) != NULL) {
        status = XM_INVALID("--training: %s %s", model, ap_frontend_untrainable(graph));
    } else if (status == XM_OK && o->training != TRAINING_NONE) {
        status = ap_frontend_train(
            o->training == TRAINING_ADAM ? AP_OPTIMIZER_ADAM : AP_OPTIMIZER_SGD, &graph);
    }
    if (status == XM_OK && o->output != NULL) {
        status = ap_json_save(graph, o->output);
    }
    XM_THEN(status, o->json.print ? XM_OK : print_graph(graph, notes));
    if (status == XM_OK && xm_cli_wants_json(&o->json)) {
        status = give_graph(graph, notes, &o->json);
    }
    ap_frontend_notes_destroy(notes);
    ap_graph_destroy(graph);
    return status;
}

int ap_command_import(int argc, char *const *argv)
{
    import_options_t o = {.training = TRAINING_NONE};
    const xm_cli_option_t table[] = {
        {"output", 'o', XM_CLI_STRING, &o.output, "FILE", 0, 0,
         "Write the graph as JSON (docs/graph.md); of runs, the folder to write."},
        {"dim", 0, XM_CLI_LIST, &o.dims, "NAME=SIZE", 0, 0,
         "Size of a symbolic dimension of an ONNX model; once for each."},
        {"training", 0, XM_CLI_CHOICE, &o.training, "none|sgd|adam", 0, 0,
         "Derive the training step of a forward graph (default none)."},
        {"batch", 0, XM_CLI_INT, &o.batch, "SAMPLES", 1, 1 << 30,
         "Samples of a built-in model (default: 1, mlp 1024)."},
        {"hidden", 0, XM_CLI_INT, &o.hidden, "SIZE", 1, 1 << 24,
         "Width of an mlp's layers (default 128)."},
        {"layers", 0, XM_CLI_INT, &o.layers, "BLOCKS", 1, 1 << 16,
         "Blocks of a built-in language model (default: its own)."},
        {"sequence", 0, XM_CLI_INT, &o.sequence, "TOKENS", 1, 1 << 24,
         "Tokens a sample of a built-in language model (default: its own)."},
        {"list-models", 0, XM_CLI_FLAG, &o.list, NULL, 0, 0,
         "List the built-in models with their parameters."},
        XM_CLI_JSON_OPTIONS(XM_CLI_OUTPUT, &o.json, "Print JSON instead of text."),
    };
    const xm_cli_command_t command =
        XM_CLI_COMMAND(program, "MODEL|FILE|sailor FOLDER", summary,
                       "autopar import gpt-1.3b -o graph.json", table, 0, 2);

    return xm_cli_main(&command, argc, argv, run, &o);
}
