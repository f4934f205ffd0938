/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A question to a planner as one JSON document. It holds the whole model and the whole cluster
 * profile, so that a plug-in needs no file of the asker's and an answer can be repeated from the
 * document alone. Reading is strict, as for all our formats.
 */

#include "planner/plugin/request.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/frontend/json.h"
#include "planner/search.h"

static const char format_name[] = "autopar-request";
static const char source_name[] = "the request";
static const char *const recompute_names[] = {"auto", "off", "on", "uniform"};

enum { MOST_COUNTS = 64, RECOMPUTE_NAMES = 4 };

/* Takes text that is JSON and frees it; gives it back as a value of a larger document. */
static json_t *parsed(char *text)
{
    json_t *value = text != NULL ? json_loads(text, 0, NULL) : NULL;

    free(text);
    return value;
}

/* The numbers of micro-batches to choose from. */
static json_t *counts_json(const ap_planner_setup_t *setup)
{
    int64_t values[AP_PLANNER_MICRO_BATCHES];
    json_t *counts = json_array();
    int count;

    (void)ap_planner_micro_batches(setup, values, &count); /* whoever asks has checked them */
    for (int i = 0; i < count; ++i) {
        (void)json_array_append_new(counts, json_integer(values[i]));
    }
    return counts;
}

static json_t *options_json(const ap_planner_setup_t *setup)
{
    const ap_planner_params_t *params = setup->params;

    return json_pack("{s:I, s:o, s:[i,i], s:I, s:I, s:s, s:s, s:o*}", "global_batch",
                     (json_int_t)setup->global_batch, "micro_batches", counts_json(setup), "stages",
                     params->min_stages, params->max_stages, "memory_limit_bytes",
                     (json_int_t)llround(setup->memory_limit), "memory_reserve_bytes",
                     (json_int_t)llround(setup->memory_reserve), "recompute",
                     recompute_names[ap_planner_recompute(setup)], "schedule",
                     params->schedule != NULL ? params->schedule : "1f1b", "keep_host_order",
                     params->keep_host_order ? json_true() : NULL);
}

/* The model in the first of the numbers of micro-batches; a built-in model is named as such, and
 * can be made in any other size. */
static xm_status_t model_json(const ap_planner_setup_t *setup, json_t **model)
{
    const ap_planner_params_t *params = setup->params;
    int64_t count = setup->micro_batches != 0       ? setup->micro_batches
                    : params->micro_batch_count > 0 ? params->micro_batches[0]
                                                    : 1;
    const ap_graph_t *graph;
    ap_graph_t *made;

    XM_TRY(ap_planner_graph_open(setup, count, &graph, &made));
    *model = json_pack("{s:s, s:b, s:I, s:o}", "name", params->model, "built_in",
                       setup->graph == NULL, "samples", (json_int_t)(setup->global_batch / count),
                       "graph", parsed(ap_json_text(graph)));
    ap_graph_destroy(made);
    return *model != NULL ? XM_OK : XM_NO_MEMORY("a request to a planner");
}

xm_status_t ap_planner_request_text(const ap_planner_params_t *params, char **text)
{
    ap_planner_setup_t setup;
    json_t *model = NULL, *document;
    char *profile = NULL;
    xm_status_t status = ap_planner_setup_open(params, 0.0, &setup);

    XM_THEN(status, ap_planner_check_counts(&setup));
    XM_THEN(status, xm_cluster_profile_to_text(params->profile, &profile));
    XM_THEN(status, model_json(&setup, &model));
    if (status == XM_OK) {
        document = json_pack("{s:s, s:i, s:o, s:o, s:o}", "format", format_name, "version",
                             AP_REQUEST_VERSION, "model", model, "cluster", parsed(profile),
                             "options", options_json(&setup));
        profile = NULL;
        *text = document != NULL ? json_dumps(document, JSON_COMPACT) : NULL;
        status = *text != NULL ? XM_OK : XM_NO_MEMORY("a request to a planner");
        json_decref(document);
    }
    free(profile);
    ap_planner_setup_close(&setup);
    return status;
}

/* NULL without memory. */
static const char *keep_text(ap_planner_request_t *request, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = xm_arena_take(&request->arena, size);

    return copy != NULL ? memcpy(copy, text, size) : NULL;
}

/* A built-in model is made again from its name, in whatever size is needed; any other is the graph
 * of the request. */
static xm_status_t read_model(const json_t *model, ap_planner_request_t *request)
{
    json_error_t error;
    json_int_t samples;
    const char *name;
    json_t *graph;
    int built_in;
    char *text;
    xm_status_t status = XM_OK;

    if (json_unpack_ex((json_t *)model, &error, JSON_STRICT, "{s:s, s:b, s:I, s:o}", "name", &name,
                       "built_in", &built_in, "samples", &samples, "graph", &graph) != 0) {
        return XM_MALFORMED("%s: model: %s", source_name, error.text);
    }
    request->params.model = keep_text(request, name);
    XM_NEED_MEMORY(request->params.model, "a request to a planner");
    if (built_in != 0) {
        return XM_OK;
    }
    text = json_dumps(graph, JSON_COMPACT | JSON_ENCODE_ANY);
    XM_NEED_MEMORY(text, "a request to a planner");
    status = ap_json_from_text(text, strlen(text), "the request's model", &request->graph);
    request->params.graph = request->graph;
    free(text);
    if (status == XM_OK && ap_planner_model_samples(request->graph) != samples) {
        status =
            XM_MALFORMED("%s: model: %" PRId64 " samples, of which the graph holds %" PRId64,
                         source_name, (int64_t)samples, ap_planner_model_samples(request->graph));
    }
    return status;
}

static xm_status_t read_counts(const json_t *counts, ap_planner_request_t *request)
{
    size_t count = json_array_size(counts);
    int64_t *values;

    if (count < 1 || count > MOST_COUNTS) {
        return XM_MALFORMED("%s: options: micro_batches must be a list of 1 to %d numbers",
                            source_name, MOST_COUNTS);
    }
    values = xm_arena_take(&request->arena, count * sizeof(*values));
    XM_NEED_MEMORY(values, "a request to a planner");
    for (size_t i = 0; i < count; ++i) {
        values[i] = json_integer_value(json_array_get(counts, i));
    }
    request->params.micro_batches = values;
    request->params.micro_batch_count = count;
    return XM_OK;
}

/* What the request points at is owned by it, so its parameters are good as long as it is. */
static xm_status_t read_options(const json_t *options, ap_planner_request_t *request)
{
    ap_planner_params_t *params = &request->params;
    json_int_t batch, memory, reserve = 0;
    const char *recompute, *schedule;
    json_error_t error;
    json_t *counts;
    int choice = 0, keep = 0;

    if (json_unpack_ex((json_t *)options, &error, JSON_STRICT,
                       "{s:I, s:o, s:[i,i!], s:I, s?I, s:s, s:s, s?b}", "global_batch", &batch,
                       "micro_batches", &counts, "stages", &params->min_stages, &params->max_stages,
                       "memory_limit_bytes", &memory, "memory_reserve_bytes", &reserve, "recompute",
                       &recompute, "schedule", &schedule, "keep_host_order", &keep) != 0) {
        return XM_MALFORMED("%s: options: %s", source_name, error.text);
    }
    while (choice < RECOMPUTE_NAMES && strcmp(recompute_names[choice], recompute) != 0) {
        ++choice;
    }
    if (choice == RECOMPUTE_NAMES || batch < 1 || memory < 1 || reserve < 0) {
        return XM_MALFORMED("%s: options: recompute '%s', a batch of %" PRId64 " and %" PRId64
                            " bytes: auto, off, on or uniform, and positive numbers",
                            source_name, recompute, (int64_t)batch, (int64_t)memory);
    }
    params->schedule = keep_text(request, schedule);
    XM_NEED_MEMORY(params->schedule, "a request to a planner");
    params->recompute = (ap_recompute_t)choice;
    params->keep_host_order = keep != 0;
    params->global_batch = batch;
    params->memory_limit = (double)(memory + reserve);
    params->memory_reserve = (double)reserve;
    return read_counts(counts, request);
}

static xm_status_t read_document(json_t *document, ap_planner_request_t *request)
{
    json_t *model, *cluster, *options;
    const char *format;
    json_error_t error;
    int version;
    char *text;
    xm_status_t status;

    if (json_unpack_ex(document, &error, JSON_STRICT, "{s:s, s:i, s:o, s:o, s:o}", "format",
                       &format, "version", &version, "model", &model, "cluster", &cluster,
                       "options", &options) != 0) {
        return XM_MALFORMED("%s: %s", source_name, error.text);
    }
    if (strcmp(format, format_name) != 0 || version != AP_REQUEST_VERSION) {
        return XM_MALFORMED("%s is '%s' of version %d, not '%s' of version %d", source_name, format,
                            version, format_name, AP_REQUEST_VERSION);
    }
    XM_TRY(read_model(model, request));
    XM_TRY(read_options(options, request));
    text = json_dumps(cluster, JSON_COMPACT | JSON_ENCODE_ANY);
    XM_NEED_MEMORY(text, "a request to a planner");
    status = xm_cluster_profile_from_text(text, strlen(text), "the request's cluster",
                                          &request->profile);
    request->params.profile = request->profile;
    free(text);
    return status;
}

xm_status_t ap_planner_request_parse(const char *text, size_t length, ap_planner_request_t *request)
{
    const ap_planner_params_t start = AP_PLANNER_PARAMS_INIT;
    json_t *document;
    xm_status_t status = xm_json_parse(source_name, text, length, &document);

    *request = (ap_planner_request_t){.params = start};
    XM_TRY(status);
    status = read_document(document, request);
    json_decref(document);
    if (status != XM_OK) {
        ap_planner_request_clear(request);
    }
    return status;
}

void ap_planner_request_clear(ap_planner_request_t *request)
{
    if (request != NULL) {
        xm_cluster_profile_destroy(request->profile);
        ap_graph_destroy(request->graph);
        xm_arena_clear(&request->arena);
        *request = (ap_planner_request_t){0};
    }
}
