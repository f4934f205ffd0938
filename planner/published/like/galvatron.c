/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Galvatron's files, whose lists are numbers in a text with commas between them. Every list is held
 * against the number of layers, since a list that is too short would shard the rest by chance.
 */

#include "planner/published/like/galvatron.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LAYERS = 1 << 16 };

xm_status_t ap_galvatron_create(int stages, int layers, ap_galvatron_t **config)
{
    ap_galvatron_t *made = calloc(1, sizeof(*made));

    if (made != NULL) {
        made->division = calloc((size_t)stages, sizeof(*made->division));
        made->layer = calloc((size_t)layers + 2, sizeof(*made->layer));
    }
    if (made == NULL || made->division == NULL || made->layer == NULL) {
        ap_galvatron_destroy(made);
        return XM_NO_MEMORY("%d layers", layers);
    }
    made->stages = stages;
    made->layers = layers;
    for (int l = 0; l < layers + 2; ++l) {
        made->layer[l] = (ap_galvatron_layer_t){.tensor = 1, .consecutive = true};
    }
    *config = made;
    return XM_OK;
}

void ap_galvatron_destroy(ap_galvatron_t *config)
{
    if (config != NULL) {
        free(config->division);
        free(config->layer);
        free(config);
    }
}

/* Reads as many numbers as there are, at most `most`; -1: it is no such list. */
static int read_list(const char *text, int *values, int most)
{
    int count = 0;

    for (;; ++text) {
        char *end;
        long value = strtol(text, &end, 10);

        if (*text < '0' || *text > '9' || value > 1 << 20 || count == most ||
            (*end != ',' && *end != '\0')) {
            return -1;
        }
        values[count++] = (int)value;
        if (*end == '\0') {
            return count;
        }
        text = end;
    }
}

/* A list of the file; one that may be missing leaves the values. */
static xm_status_t get_list(const char *name, json_t *file, const char *key, bool needed,
                            int *values, int count)
{
    const char *text = json_string_value(json_object_get(file, key));

    if (json_object_get(file, key) == NULL && !needed) {
        return XM_OK;
    }
    return text != NULL && read_list(text, values, count) == count
               ? XM_OK
               : XM_MALFORMED("%s: '%s' is no list of %d numbers with commas", name, key, count);
}

static bool all_are(const int *values, int count, int value)
{
    int i = 0;

    while (i < count && values[i] == value) {
        ++i;
    }
    return i == count;
}

/* What of each layer is told, one list after the other in the same room. */
static xm_status_t read_layers(const char *name, json_t *file, bool zero3, int *values,
                               ap_galvatron_t *config)
{
    int count = config->layers, vocabulary = 1, embedding = 0;
    xm_status_t status = get_list(name, file, "tp_sizes_enc", true, values, count);

    for (int l = 0; l < count && status == XM_OK; ++l) {
        config->layer[l + 1].tensor = values[l];
        values[l] = 1;
    }
    XM_THEN(status, get_list(name, file, "tp_consecutive_flags", false, values, count));
    for (int l = 0; l < count && status == XM_OK; ++l) {
        config->layer[l + 1].consecutive = values[l] != 0;
    }
    XM_THEN(status, get_list(name, file, "dp_types_enc", true, values, count));
    for (int l = 0; l < count && status == XM_OK; ++l) {
        config->layer[l + 1].sharded = values[l] != 0 || zero3;
        values[l] = 0;
    }
    XM_THEN(status, get_list(name, file, "checkpoint", false, values, count));
    if (status == XM_OK) {
        config->recompute = count > 0 && values[0] != 0;
        if (!all_are(values, count, config->recompute)) {
            return XM_UNSUPPORTED("%s: 'checkpoint' of some layers only; a plan recomputes whole "
                                  "stages",
                                  name);
        }
        memset(values, 0, (size_t)count * sizeof(*values));
        status = get_list(name, file, "use_sp", false, values, count);
    }
    if (status == XM_OK && !all_are(values, count, 0)) {
        return XM_UNSUPPORTED("%s: sequence parallelism ('use_sp') has no counterpart", name);
    }
    for (int l = 0; l < count; ++l) {
        values[l] = 1;
    }
    XM_THEN(status, get_list(name, file, "cp_sizes_enc", false, values, count));
    if (status == XM_OK && !all_are(values, count, 1)) {
        return XM_UNSUPPORTED("%s: context parallelism ('cp_sizes_enc') has no counterpart", name);
    }
    (void)json_unpack(file, "{s?i, s?i}", "vtp", &vocabulary, "embed_sdp", &embedding);
    config->layer[0].tensor = config->layer[count + 1].tensor = vocabulary;
    config->layer[0].sharded = config->layer[count + 1].sharded = embedding != 0 || zero3;
    return status;
}

static xm_status_t read_stages(const char *name, json_t *file, ap_galvatron_t *config)
{
    int sum = 0;
    xm_status_t status =
        get_list(name, file, "pp_division", true, config->division, config->stages);

    for (int s = 0; s < config->stages && status == XM_OK; ++s) {
        sum += config->division[s];
    }
    return status != XM_OK || sum == config->layers
               ? status
               : XM_MALFORMED("%s: 'pp_division' has %d layers, 'tp_sizes_enc' %d", name, sum,
                              config->layers);
}

static xm_status_t read_file(const char *name, json_t *file, ap_galvatron_t **config)
{
    const char *pipeline = "pipedream_flush", *kind = "ddp", *sizes;
    int stages, chunks, batch, layers;
    int *values;
    json_error_t error;
    xm_status_t status;

    if (json_unpack_ex(file, &error, 0, "{s:i, s:i, s:i, s:s, s?s, s?s}", "pp_deg", &stages,
                       "chunks", &chunks, "global_bsz", &batch, "tp_sizes_enc", &sizes,
                       "pipeline_type", &pipeline, "default_dp_type", &kind) != 0) {
        return XM_MALFORMED("%s: %s", name, error.text);
    }
    if (stages < 1 || stages > MOST_LAYERS || chunks < 1 || batch < 1) {
        return XM_MALFORMED("%s: 'pp_deg', 'chunks' and 'global_bsz' are 1 or more", name);
    }
    if (stages > 1 && strcmp(pipeline, "pipedream_flush") != 0) {
        return XM_UNSUPPORTED("%s: pipeline_type '%s'; the row's schedule is pipedream_flush", name,
                              pipeline);
    }
    values = malloc(MOST_LAYERS * sizeof(*values));
    XM_NEED_MEMORY(values, "%d layers", MOST_LAYERS);
    layers = read_list(sizes, values, MOST_LAYERS);
    status = layers < 1 ? XM_MALFORMED("%s: 'tp_sizes_enc' is no list of numbers with commas", name)
                        : ap_galvatron_create(stages, layers, config);
    if (status == XM_OK) {
        (*config)->batch = batch;
        (*config)->chunks = chunks;
        (*config)->state_sharded = strcmp(kind, "zero2") == 0;
        status = read_layers(name, file, strcmp(kind, "zero3") == 0, values, *config);
        XM_THEN(status, read_stages(name, file, *config));
        if (status != XM_OK) {
            ap_galvatron_destroy(*config);
            *config = NULL;
        }
    }
    free(values);
    return status;
}

xm_status_t ap_galvatron_read(const char *name, const char *text, size_t length,
                              ap_galvatron_t **config)
{
    json_error_t error;
    json_t *file = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    xm_status_t status =
        file == NULL ? XM_MALFORMED("%s:%d:%d: %s", name, error.line, error.column, error.text)
                     : read_file(name, file, config);

    json_decref(file);
    return status;
}

/* A list of what `of` says of each. */
static json_t *list_text(const ap_galvatron_t *config, int count,
                         int (*of)(const ap_galvatron_t *config, int index))
{
    enum { DIGITS = 12 };
    char *text = calloc((size_t)count + 1, DIGITS);
    size_t length = 0;
    json_t *made;

    for (int i = 0; i < count && text != NULL; ++i) {
        length += (size_t)snprintf(text + length, DIGITS, "%s%d", i > 0 ? "," : "", of(config, i));
    }
    made = text != NULL ? json_string(text) : NULL;
    free(text);
    return made;
}

static int tensor_of(const ap_galvatron_t *config, int layer)
{
    return config->layer[layer + 1].tensor;
}

static int consecutive_of(const ap_galvatron_t *config, int layer)
{
    return config->layer[layer + 1].consecutive;
}

static int sharded_of(const ap_galvatron_t *config, int layer)
{
    return config->layer[layer + 1].sharded;
}

static int recompute_of(const ap_galvatron_t *config, int layer)
{
    (void)layer;
    return config->recompute;
}

static int nothing_of(const ap_galvatron_t *config, int layer)
{
    (void)config;
    (void)layer;
    return 0;
}

static int division_of(const ap_galvatron_t *config, int stage)
{
    return config->division[stage];
}

char *ap_galvatron_text(const ap_galvatron_t *config)
{
    const ap_galvatron_layer_t *head = &config->layer[config->layers + 1];
    int n = config->layers;
    json_t *file =
        json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:s, s:s, s:i, s:i, s:i}",
                  "pp_deg", config->stages, "tp_sizes_enc", list_text(config, n, tensor_of),
                  "tp_consecutive_flags", list_text(config, n, consecutive_of), "dp_types_enc",
                  list_text(config, n, sharded_of), "use_sp", list_text(config, n, nothing_of),
                  "checkpoint", list_text(config, n, recompute_of), "global_bsz",
                  (json_int_t)config->batch, "chunks", (json_int_t)config->chunks, "pp_division",
                  list_text(config, config->stages, division_of), "pipeline_type",
                  "pipedream_flush", "default_dp_type", config->state_sharded ? "zero2" : "ddp",
                  "vtp", head->tensor, "vsp", 0, "embed_sdp", (int)head->sharded);
    char *text = file != NULL ? json_dumps(file, JSON_INDENT(4)) : NULL;

    json_decref(file);
    return text;
}
