/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan as a JSON document, written and read with jansson's format strings, so that the keys stand
 * in one line each way. Reading is strict: a `!` in the format refuses keys that nobody knows,
 * because a plan is executed and an ignored key would be an ignored instruction.
 *
 * Strings are not copied: they stay those of the document, which the plan owns. Arrays are blocks
 * that the plan frees together.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/plan/plan_private.h"

static const char format_name[] = "crossmesh-plan";
enum { FORMAT_VERSION = 1, MESH_TEXT = 32, PLACE_TEXT = 64 };

/* The most layers, devices of a stage, or micro-batches in flight that a document may name;
 * products of two counts then still fit 64 bits. */
enum { MOST = 1 << 24 };

static char *mesh_text(const int *shape, char *text)
{
    (void)snprintf(text, MESH_TEXT, "%dx%d", shape[0], shape[1]);
    return text;
}

/* Counts are whole bytes in the document. */
static json_int_t whole(double bytes)
{
    return (json_int_t)llround(bytes);
}

static json_t *ints_to_json(const int *values, int count)
{
    json_t *array = json_array();

    for (int i = 0; array != NULL && i < count; ++i) {
        if (json_array_append_new(array, json_integer(values[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

/* Appends a value that may be NULL for want of memory; false then. */
static bool append(json_t *array, json_t *value)
{
    return array != NULL && value != NULL && json_array_append_new(array, value) == 0;
}

static json_t *layers_to_json(const ap_plan_layers_t *layers)
{
    json_t *ops = json_array();

    for (int i = 0; i < layers->op_count; ++i) {
        const ap_plan_op_t *op = &layers->ops[i];

        json_t *made = json_pack("{s:s, s:s, s:s, s:s}", "name", op->name, "rule", op->rule,
                                 "operands", op->operands, "results", op->results);

        if (made != NULL && op->sums != NULL && op->sums[0] != '\0') {
            (void)json_object_set_new(made, "sums", json_string(op->sums));
        }
        if (!append(ops, made)) {
            json_decref(ops);
            return NULL;
        }
    }
    return json_pack("{s:[i, i], s:o}", "layers", layers->first_layer, layers->last_layer, "ops",
                     ops);
}

/* The key is there only where not all stages do the same, so that plans without such stages are
 * written as they always were. */
static bool add_recompute(json_t *stage, bool recompute, bool mixed)
{
    return stage != NULL &&
           (!mixed || json_object_set_new(stage, "recompute", json_boolean(recompute)) == 0);
}

/* The key is there only where devices repeat work. */
static bool add_repeated(json_t *stage, const double *repeated)
{
    return stage != NULL &&
           ((repeated[0] <= 0 && repeated[1] <= 0) ||
            json_object_set_new(stage, "repeated", json_pack("[f, f]", repeated[0], repeated[1])) ==
                0);
}

static json_t *stage_to_json(const ap_plan_stage_t *stage)
{
    const int submesh[2] = {stage->hosts, stage->devices_per_host};
    char submesh_text[MESH_TEXT], shape_text[MESH_TEXT];
    json_t *sharding = json_array();

    for (int i = 0; i < stage->layer_count; ++i) {
        if (!append(sharding, layers_to_json(&stage->layers[i]))) {
            json_decref(sharding);
            return NULL;
        }
    }
    return json_pack(
        "{s:[i, i], s:s, s:s, s:o, s:{s:f, s:f, s:f, s:f}, s:{s:I, s:I, s:I, s:i}, s:o}", "layers",
        stage->first_layer, stage->last_layer, "submesh", mesh_text(submesh, submesh_text), "mesh",
        mesh_text(stage->shape, shape_text), "ranks",
        ints_to_json(stage->devices, stage->hosts * stage->devices_per_host), "seconds", "forward",
        stage->forward, "backward", stage->backward, "sync", stage->sync, "update", stage->update,
        "memory", "state_bytes", whole(stage->state_bytes), "activation_bytes",
        whole(stage->activation_bytes), "work_bytes", whole(stage->work_bytes), "in_flight",
        stage->in_flight, "sharding", sharding);
}

static json_t *side_to_json(const ap_plan_side_t *side)
{
    char text[MESH_TEXT];

    return json_pack("{s:s, s:o, s:s}", "mesh", mesh_text(side->shape, text), "ranks",
                     ints_to_json(side->devices, side->device_count), "spec", side->spec);
}

static json_t *link_to_json(const ap_link_load_t *link)
{
    return json_pack("{s:i, s:[f, f], s:[f, f]}", link->rack ? "rack" : "host", link->index,
                     "forward_s", link->forward[AP_LINK_OUT], link->forward[AP_LINK_IN],
                     "backward_s", link->backward[AP_LINK_OUT], link->backward[AP_LINK_IN]);
}

static json_t *shape_to_json(const int64_t *dims, int rank)
{
    json_t *shape = json_array();

    for (int d = 0; d < rank; ++d) {
        if (!append(shape, json_integer(dims[d]))) {
            json_decref(shape);
            return NULL;
        }
    }
    return shape;
}

static json_t *tensor_to_json(const ap_plan_tensor_t *tensor)
{
    return json_pack("{s:s, s:o, s:s, s:I, s:I, s:s, s:s}", "tensor", tensor->tensor, "shape",
                     shape_to_json(tensor->shape, tensor->rank), "dtype", tensor->dtype,
                     "element_size", (json_int_t)tensor->element_size, "bytes",
                     (json_int_t)tensor->bytes, "src", tensor->src, "dst", tensor->dst);
}

/* What only some boundaries have: a way over stages, more tensors. Plans without are written as
 * they always were. */
static bool add_rest(json_t *entry, const ap_plan_boundary_t *boundary, bool skips)
{
    json_t *more = boundary->more_count > 0 ? json_array() : NULL;

    for (int i = 0; i < boundary->more_count; ++i) {
        if (!append(more, tensor_to_json(&boundary->more[i]))) {
            json_decref(more);
            return false;
        }
    }
    return entry != NULL && (more == NULL || json_object_set_new(entry, "more", more) == 0) &&
           (!skips || json_object_set_new(entry, "stages",
                                          json_pack("[i, i]", boundary->from, boundary->to)) == 0);
}

static json_t *boundary_to_json(const ap_plan_boundary_t *boundary, bool skips)
{
    json_t *links = json_array(), *entry;

    for (int i = 0; i < boundary->link_count; ++i) {
        if (!append(links, link_to_json(&boundary->links[i]))) {
            json_decref(links);
            return NULL;
        }
    }
    entry = json_pack("{s:s, s:o, s:s, s:I, s:I, s:o, s:o, s:{s:f, s:f, s:f, s:I, s:s, s:s, s:o}}",
                      "tensor", boundary->tensor, "shape",
                      shape_to_json(boundary->shape, boundary->rank), "dtype", boundary->dtype,
                      "element_size", (json_int_t)boundary->element_size, "bytes",
                      (json_int_t)boundary->bytes, "src", side_to_json(&boundary->src), "dst",
                      side_to_json(&boundary->dst), "predicted", "forward_s", boundary->forward,
                      "backward_s", boundary->backward, "bound_s", boundary->bound, "net_bytes",
                      (json_int_t)boundary->net_bytes, "strategy", boundary->strategy, "scheduler",
                      boundary->scheduler, "links", links);
    if (!add_rest(entry, boundary, skips)) {
        json_decref(entry);
        return NULL;
    }
    return entry;
}

/* Names in a list; NULL also for none, whose key is then left out. */
static json_t *names_to_json(const char *const *names, size_t count)
{
    json_t *list = count > 0 ? json_array() : NULL;

    for (size_t i = 0; i < count; ++i) {
        if (!append(list, json_string(names[i]))) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* How the model file was read; NULL where nothing was told. */
static json_t *reading_to_json(const ap_plan_reading_t *reading)
{
    if (reading->layers == 0 && reading->pattern == NULL && reading->mark_count == 0 &&
        reading->dim_count == 0) {
        return NULL;
    }
    return json_pack("{s:o*, s:s*, s:o*, s:o*}", "layers",
                     reading->layers != 0 ? json_integer(reading->layers) : NULL, "pattern",
                     reading->pattern, "marks", names_to_json(reading->marks, reading->mark_count),
                     "dims", names_to_json(reading->dims, reading->dim_count));
}

/* NULL where hosts stand in the profile's order. */
static json_t *order_to_json(const ap_plan_info_t *info)
{
    return info->host_order != NULL ? ints_to_json(info->host_order, info->hosts) : NULL;
}

json_t *ap_plan_to_json(const ap_plan_params_t *params)
{
    const ap_plan_info_t *info = &params->info;
    json_t *stages = json_array(), *boundaries = json_array();
    int recomputing = 0;
    bool mixed;

    for (int i = 0; i < params->stage_count; ++i) {
        recomputing += params->stages[i].recompute;
    }
    mixed = recomputing > 0 && recomputing < params->stage_count;
    for (int i = 0; i < params->stage_count; ++i) {
        json_t *stage = stage_to_json(&params->stages[i]);

        if (!add_repeated(stage, params->stages[i].repeated) ||
            !add_recompute(stage, params->stages[i].recompute, mixed) || !append(stages, stage) ||
            (i > 0 && !append(boundaries, boundary_to_json(&params->boundaries[i - 1], false)))) {
            goto release;
        }
    }
    for (int i = 0; i < params->skip_count; ++i) {
        if (!append(boundaries,
                    boundary_to_json(&params->boundaries[params->stage_count - 1 + i], true))) {
            goto release;
        }
    }
    return json_pack("{s:s, s:i, s:{s:s, s:i, s:I, s:o*}, s:{s:s, s:s, s:i, s:i, s:o*, s:I, s:o*}, "
                     "s:{s:s, s:I, s:I, s:b}, s:{s:f, s:o*, s:f, s:f}, s:s, s:o, s:o}",
                     "format", format_name, "version", FORMAT_VERSION, "model", "name", info->model,
                     "layers", info->layers, "parameters", whole(info->parameters), "reading",
                     reading_to_json(&info->reading), "cluster", "name", info->cluster,
                     "provenance", info->cluster_provenance, "hosts", info->hosts,
                     "devices_per_host", info->devices_per_host, "host_order", order_to_json(info),
                     "memory_limit_bytes", whole(info->memory_limit), "memory_reserve_bytes",
                     info->memory_reserve > 0.0 ? json_integer(whole(info->memory_reserve)) : NULL,
                     "schedule", "kind", info->schedule, "global_batch",
                     (json_int_t)info->global_batch, "micro_batches",
                     (json_int_t)info->micro_batches, "rematerialize",
                     recomputing == params->stage_count, "predicted", "step_s", info->step,
                     "bound_s", info->bound > 0.0 ? json_real(info->bound) : NULL, "sum_s",
                     info->sum, "bottleneck_s", info->bottleneck, "optimiser", info->optimiser,
                     "stages", stages, "reshardings", boundaries);

release:
    json_decref(stages);
    json_decref(boundaries);
    return NULL;
}

/* The block is entered in the list before anything is read into it, so a failure halfway leaks
 * nothing. One entry more than asked for, so that an empty array is no NULL. */
static void *allocate(ap_plan_t *plan, size_t count, size_t size)
{
    void **grown = realloc(plan->blocks, (plan->block_count + 1) * sizeof(*grown));
    void *block;

    if (grown == NULL) {
        return NULL;
    }
    plan->blocks = grown;
    block = calloc(count + 1, size);
    if (block != NULL) {
        plan->blocks[plan->block_count++] = block;
    }
    return block;
}

static xm_status_t no_memory(void)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for the plan");
}

static xm_status_t unpack_failed(const char *place, const json_error_t *error)
{
    return xm_error_set(XM_ERR_PARSE, "%s: %s", place, error->text);
}

/* Takes over a number that counts layers, devices or micro-batches. */
static xm_status_t narrow(const char *place, const char *key, json_int_t value, int *number)
{
    if (value < 0 || value > MOST) {
        return xm_error_set(XM_ERR_PARSE, "%s: %s %" JSON_INTEGER_FORMAT " is not in 0 to %d",
                            place, key, value, MOST);
    }
    *number = (int)value;
    return XM_OK;
}

static xm_status_t narrow_layers(const char *place, json_int_t first, json_int_t last,
                                 int *first_layer, int *last_layer)
{
    xm_status_t status = narrow(place, "layer", first, first_layer);

    return status == XM_OK ? narrow(place, "layer", last, last_layer) : status;
}

static xm_status_t check_list(const char *place, const char *key, const json_t *list)
{
    return json_is_array(list) ? XM_OK
                               : xm_error_set(XM_ERR_PARSE, "%s: %s must be a list", place, key);
}

/* The trailing %n makes sure that nothing follows the mesh. */
static xm_status_t read_mesh(const char *place, const char *text, int *shape)
{
    int used = 0;

    /* Five digits at most, so nothing overflows. NOLINTNEXTLINE(cert-err34-c) */
    if (sscanf(text, "%5dx%5d%n", &shape[0], &shape[1], &used) != 2 || text[used] != '\0' ||
        shape[0] < 1 || shape[1] < 1 || shape[0] > MOST / shape[1]) {
        return xm_error_set(XM_ERR_PARSE, "%s: '%s' is not a mesh such as 2x4", place, text);
    }
    return XM_OK;
}

static xm_status_t read_ranks(ap_plan_t *plan, const char *place, const json_t *array, int expected,
                              const int **ranks)
{
    int *values;

    if (!json_is_array(array) || json_array_size(array) != (size_t)expected) {
        return xm_error_set(XM_ERR_PARSE, "%s: ranks must be a list of %d", place, expected);
    }
    values = allocate(plan, (size_t)expected, sizeof(*values));
    if (values == NULL) {
        return no_memory();
    }
    for (int i = 0; i < expected; ++i) {
        const json_t *item = json_array_get(array, (size_t)i);
        json_int_t value = json_is_integer(item) ? json_integer_value(item) : -1;

        if (value < 0 || value > MOST) {
            return xm_error_set(XM_ERR_PARSE, "%s: entry %d of ranks is not a rank", place, i);
        }
        values[i] = (int)value;
    }
    *ranks = values;
    return XM_OK;
}

static xm_status_t read_layers(ap_plan_t *plan, const char *place, json_t *item,
                               ap_plan_layers_t *layers)
{
    json_error_t error;
    ap_plan_op_t *ops;
    json_int_t first, last;
    json_t *list;
    xm_status_t status;

    if (json_unpack_ex(item, &error, 0, "{s:[I, I!], s:o !}", "layers", &first, &last, "ops",
                       &list) != 0) {
        return unpack_failed(place, &error);
    }
    status = narrow_layers(place, first, last, &layers->first_layer, &layers->last_layer);
    if (status == XM_OK) {
        status = check_list(place, "ops", list);
    }
    if (status != XM_OK) {
        return status;
    }
    layers->op_count = (int)json_array_size(list);
    ops = allocate(plan, (size_t)layers->op_count, sizeof(*ops));
    if (ops == NULL) {
        return no_memory();
    }
    layers->ops = ops;
    for (int i = 0; i < layers->op_count; ++i) {
        ops[i].sums = "";
        if (json_unpack_ex(json_array_get(list, (size_t)i), &error, 0,
                           "{s:s, s:s, s:s, s:s, s?s !}", "name", &ops[i].name, "rule",
                           &ops[i].rule, "operands", &ops[i].operands, "results", &ops[i].results,
                           "sums", &ops[i].sums) != 0) {
            return xm_error_set(XM_ERR_PARSE, "%s, operator %d: %s", place, i, error.text);
        }
    }
    return XM_OK;
}

static xm_status_t read_sharding(ap_plan_t *plan, const char *place, const json_t *list,
                                 ap_plan_stage_t *stage)
{
    ap_plan_layers_t *layers;
    xm_status_t status = check_list(place, "sharding", list);

    if (status != XM_OK) {
        return status;
    }
    stage->layer_count = (int)json_array_size(list);
    layers = allocate(plan, (size_t)stage->layer_count, sizeof(*layers));
    if (layers == NULL) {
        return no_memory();
    }
    stage->layers = layers;
    for (int i = 0; i < stage->layer_count; ++i) {
        char inner[PLACE_TEXT];

        (void)snprintf(inner, sizeof(inner), "%.40s.sharding[%d]", place, i);
        status = read_layers(plan, inner, json_array_get(list, (size_t)i), &layers[i]);
        if (status != XM_OK) {
            return status;
        }
    }
    return XM_OK;
}

static xm_status_t read_stage(ap_plan_t *plan, const char *place, json_t *item,
                              ap_plan_stage_t *stage)
{
    json_error_t error;
    json_t *ranks, *sharding;
    const char *submesh_text, *shape_text;
    json_int_t first, last, state, activation, work, in_flight;
    /* A stage that says nothing does what all do. */
    int submesh[2], recompute = plan->info.rematerialize;
    xm_status_t status;

    if (json_unpack_ex(item, &error, 0,
                       "{s:[I, I!], s:s, s:s, s:o, s:{s:F, s:F, s:F, s:F !}, "
                       "s:{s:I, s:I, s:I, s:I !}, s?b, s?[F, F!], s:o !}",
                       "layers", &first, &last, "submesh", &submesh_text, "mesh", &shape_text,
                       "ranks", &ranks, "seconds", "forward", &stage->forward, "backward",
                       &stage->backward, "sync", &stage->sync, "update", &stage->update, "memory",
                       "state_bytes", &state, "activation_bytes", &activation, "work_bytes", &work,
                       "in_flight", &in_flight, "recompute", &recompute, "repeated",
                       &stage->repeated[0], &stage->repeated[1], "sharding", &sharding) != 0) {
        return unpack_failed(place, &error);
    }
    stage->recompute = recompute != 0;
    stage->state_bytes = (double)state;
    stage->activation_bytes = (double)activation;
    stage->work_bytes = (double)work;
    status = narrow_layers(place, first, last, &stage->first_layer, &stage->last_layer);
    if (status == XM_OK) {
        status = narrow(place, "in_flight", in_flight, &stage->in_flight);
    }
    if (status == XM_OK) {
        status = read_mesh(place, submesh_text, submesh);
    }
    if (status == XM_OK) {
        status = read_mesh(place, shape_text, stage->shape);
    }
    if (status != XM_OK) {
        return status;
    }
    stage->hosts = submesh[0];
    stage->devices_per_host = submesh[1];
    status = read_ranks(plan, place, ranks, submesh[0] * submesh[1], &stage->devices);
    return status == XM_OK ? read_sharding(plan, place, sharding, stage) : status;
}

static xm_status_t read_side(ap_plan_t *plan, const char *place, json_t *item, ap_plan_side_t *side)
{
    json_error_t error;
    const char *mesh;
    json_t *ranks;
    xm_status_t status;

    if (json_unpack_ex(item, &error, 0, "{s:s, s:o, s:s !}", "mesh", &mesh, "ranks", &ranks, "spec",
                       &side->spec) != 0) {
        return unpack_failed(place, &error);
    }
    status = read_mesh(place, mesh, side->shape);
    if (status != XM_OK) {
        return status;
    }
    side->device_count = side->shape[0] * side->shape[1];
    return read_ranks(plan, place, ranks, side->device_count, &side->devices);
}

static xm_status_t read_shape(const char *place, const json_t *array, int *of_rank, int64_t *dims)
{
    size_t rank = json_array_size(array);

    if (!json_is_array(array) || rank < 1 || rank > AP_MAX_RANK) {
        return xm_error_set(XM_ERR_PARSE, "%s: shape must be a list of 1 to %d dimensions", place,
                            AP_MAX_RANK);
    }
    *of_rank = (int)rank;
    for (size_t d = 0; d < rank; ++d) {
        dims[d] = json_integer_value(json_array_get(array, d));
        if (dims[d] < 1) {
            return xm_error_set(XM_ERR_PARSE,
                                "%s: dimension %zu of shape is not a positive integer", place, d);
        }
    }
    return XM_OK;
}

static xm_status_t read_link(const char *place, json_t *item, ap_link_load_t *link)
{
    json_error_t error;
    json_int_t host = -1, rack = -1;

    if (json_unpack_ex(item, &error, 0, "{s?I, s?I, s:[F, F!], s:[F, F!] !}", "host", &host, "rack",
                       &rack, "forward_s", &link->forward[AP_LINK_OUT], &link->forward[AP_LINK_IN],
                       "backward_s", &link->backward[AP_LINK_OUT],
                       &link->backward[AP_LINK_IN]) != 0) {
        return unpack_failed(place, &error);
    }
    if ((host < 0) == (rack < 0)) {
        return xm_error_set(XM_ERR_PARSE, "%s: neither a host nor a rack, or both", place);
    }
    link->rack = rack >= 0;
    return narrow(place, link->rack ? "rack" : "host", link->rack ? rack : host, &link->index);
}

static xm_status_t read_links(ap_plan_t *plan, const char *place, const json_t *list,
                              ap_plan_boundary_t *boundary)
{
    ap_link_load_t *links;
    xm_status_t status = check_list(place, "links", list);

    if (status != XM_OK) {
        return status;
    }
    boundary->link_count = (int)json_array_size(list);
    links = allocate(plan, (size_t)boundary->link_count, sizeof(*links));
    if (links == NULL) {
        return no_memory();
    }
    boundary->links = links;
    for (int i = 0; i < boundary->link_count && status == XM_OK; ++i) {
        char inner[PLACE_TEXT];

        (void)snprintf(inner, sizeof(inner), "%.40s.predicted.links[%d]", place, i);
        status = read_link(inner, json_array_get(list, (size_t)i), &links[i]);
    }
    return status;
}

static xm_status_t read_tensor(const char *place, json_t *item, ap_plan_tensor_t *tensor)
{
    json_int_t element_size, bytes;
    json_error_t error;
    json_t *shape;

    if (json_unpack_ex(item, &error, 0, "{s:s, s:o, s:s, s:I, s:I, s:s, s:s !}", "tensor",
                       &tensor->tensor, "shape", &shape, "dtype", &tensor->dtype, "element_size",
                       &element_size, "bytes", &bytes, "src", &tensor->src, "dst",
                       &tensor->dst) != 0) {
        return unpack_failed(place, &error);
    }
    tensor->element_size = element_size;
    tensor->bytes = bytes;
    return read_shape(place, shape, &tensor->rank, tensor->shape);
}

static xm_status_t read_more(ap_plan_t *plan, const char *place, const json_t *list,
                             ap_plan_boundary_t *boundary)
{
    ap_plan_tensor_t *more;
    xm_status_t status = list != NULL ? check_list(place, "more", list) : XM_OK;

    if (list == NULL || status != XM_OK) {
        return status;
    }
    boundary->more_count = (int)json_array_size(list);
    more = allocate(plan, (size_t)boundary->more_count, sizeof(*more));
    if (more == NULL) {
        return no_memory();
    }
    boundary->more = more;
    for (int i = 0; i < boundary->more_count && status == XM_OK; ++i) {
        char inner[PLACE_TEXT];

        (void)snprintf(inner, sizeof(inner), "%.40s.more[%d]", place, i);
        status = read_tensor(inner, json_array_get(list, (size_t)i), &more[i]);
    }
    return status;
}

static xm_status_t read_boundary(ap_plan_t *plan, const char *place, json_t *item,
                                 ap_plan_boundary_t *boundary)
{
    json_error_t error;
    json_t *shape, *src, *dst, *links = NULL, *more = NULL;
    json_int_t element_size, bytes, net_bytes;
    char inner[PLACE_TEXT];
    xm_status_t status;

    if (json_unpack_ex(item, &error, 0,
                       "{s:s, s:o, s:s, s:I, s:I, s:o, s:o, "
                       "s:{s:F, s:F, s:F, s:I, s:s, s:s, s?o !}, s?o, s?[i, i!] !}",
                       "tensor", &boundary->tensor, "shape", &shape, "dtype", &boundary->dtype,
                       "element_size", &element_size, "bytes", &bytes, "src", &src, "dst", &dst,
                       "predicted", "forward_s", &boundary->forward, "backward_s",
                       &boundary->backward, "bound_s", &boundary->bound, "net_bytes", &net_bytes,
                       "strategy", &boundary->strategy, "scheduler", &boundary->scheduler, "links",
                       &links, "more", &more, "stages", &boundary->from, &boundary->to) != 0) {
        return unpack_failed(place, &error);
    }
    boundary->element_size = element_size;
    boundary->bytes = bytes;
    boundary->net_bytes = net_bytes;
    status = read_shape(place, shape, &boundary->rank, boundary->shape);
    if (status == XM_OK) {
        status = read_more(plan, place, more, boundary);
    }
    if (status == XM_OK && links != NULL) {
        status = read_links(plan, place, links, boundary);
    }
    if (status != XM_OK) {
        return status;
    }
    (void)snprintf(inner, sizeof(inner), "%.40s.src", place);
    status = read_side(plan, inner, src, &boundary->src);
    if (status != XM_OK) {
        return status;
    }
    (void)snprintf(inner, sizeof(inner), "%.40s.dst", place);
    return read_side(plan, inner, dst, &boundary->dst);
}

static xm_status_t read_lists(ap_plan_t *plan, const json_t *stages, const json_t *boundaries)
{
    xm_status_t status = check_list("the plan", "stages", stages);
    char place[PLACE_TEXT];

    if (status == XM_OK) {
        status = check_list("the plan", "reshardings", boundaries);
    }
    if (status != XM_OK) {
        return status;
    }
    plan->stage_count = (int)json_array_size(stages);
    plan->boundary_count = (int)json_array_size(boundaries);
    plan->stages = allocate(plan, (size_t)plan->stage_count, sizeof(*plan->stages));
    plan->boundaries = allocate(plan, (size_t)plan->boundary_count, sizeof(*plan->boundaries));
    if (plan->stages == NULL || plan->boundaries == NULL) {
        return no_memory();
    }
    for (int i = 0; i < plan->stage_count && status == XM_OK; ++i) {
        (void)snprintf(place, sizeof(place), "stages[%d]", i);
        status = read_stage(plan, place, json_array_get(stages, (size_t)i), &plan->stages[i]);
    }
    for (int i = 0; i < plan->boundary_count && status == XM_OK; ++i) {
        (void)snprintf(place, sizeof(place), "reshardings[%d]", i);
        /* Between neighbours, unless the entry says otherwise. */
        plan->boundaries[i].from = i;
        plan->boundaries[i].to = i + 1;
        status =
            read_boundary(plan, place, json_array_get(boundaries, (size_t)i), &plan->boundaries[i]);
    }
    return status;
}

static xm_status_t read_names(ap_plan_t *plan, const char *key, const json_t *list,
                              const char *const **names, size_t *count)
{
    const char **made;

    if (list == NULL) {
        return XM_OK;
    }
    made = allocate(plan, json_array_size(list), sizeof(*made));
    if (made == NULL) {
        return no_memory();
    }
    for (size_t i = 0; i < json_array_size(list); ++i) {
        made[i] = json_string_value(json_array_get(list, i));
        if (made[i] == NULL) {
            return xm_error_set(XM_ERR_PARSE, "model.reading: entry %zu of %s is not a text", i,
                                key);
        }
    }
    if (json_array_size(list) == 0) {
        return xm_error_set(XM_ERR_PARSE, "model.reading: %s must be a list of texts", key);
    }
    *names = made;
    *count = json_array_size(list);
    return XM_OK;
}

/* Absent in plans of built-in models. */
static xm_status_t read_reading(ap_plan_t *plan, json_t *object)
{
    ap_plan_reading_t *reading = &plan->info.reading;
    json_t *marks = NULL, *dims = NULL;
    json_int_t layers = 0;
    json_error_t error;
    xm_status_t status;

    if (object == NULL) {
        return XM_OK;
    }
    if (json_unpack_ex(object, &error, 0, "{s?I, s?s, s?o, s?o !}", "layers", &layers, "pattern",
                       &reading->pattern, "marks", &marks, "dims", &dims) != 0) {
        return unpack_failed("model.reading", &error);
    }
    if (layers < -1 || layers > MOST) {
        return xm_error_set(XM_ERR_PARSE,
                            "model.reading: %" JSON_INTEGER_FORMAT " layers; -1 is automatic",
                            layers);
    }
    reading->layers = (int)layers;
    status = read_names(plan, "marks", marks, &reading->marks, &reading->mark_count);
    return status == XM_OK ? read_names(plan, "dims", dims, &reading->dims, &reading->dim_count)
                           : status;
}

static xm_status_t read_host_order(ap_plan_t *plan, const json_t *list)
{
    ap_plan_info_t *info = &plan->info;
    int *order;

    if (list == NULL) {
        return XM_OK;
    }
    if (!json_is_array(list) || json_array_size(list) != (size_t)info->hosts) {
        return xm_error_set(XM_ERR_PARSE, "cluster: host_order must be a list of the %d hosts",
                            info->hosts);
    }
    order = allocate(plan, (size_t)info->hosts, sizeof(*order));
    if (order == NULL) {
        return no_memory();
    }
    for (int i = 0; i < info->hosts; ++i) {
        const json_t *item = json_array_get(list, (size_t)i);
        json_int_t host = json_is_integer(item) ? json_integer_value(item) : -1;

        if (host < 0 || host >= info->hosts) {
            return xm_error_set(XM_ERR_PARSE,
                                "cluster: entry %d of host_order is not one of the hosts 0 to %d",
                                i, info->hosts - 1);
        }
        order[i] = (int)host;
    }
    info->host_order = order;
    return XM_OK;
}

xm_status_t ap_plan_from_json(ap_plan_t *plan)
{
    ap_plan_info_t *info = &plan->info;
    json_int_t layers, parameters, hosts, devices, memory_limit, memory_reserve = 0, global_batch,
                                                                 micro_batches;
    const char *format = "", *digest = NULL;
    json_t *stages, *boundaries, *reading = NULL, *host_order = NULL;
    json_error_t error;
    int version = 0, rematerialize;
    xm_status_t status;

    /* Format and version come first, so that a file of another kind is told as such and not by its
     * first unknown key. */
    (void)json_unpack(plan->document, "{s?s, s?i}", "format", &format, "version", &version);
    if (strcmp(format, format_name) != 0 || version != FORMAT_VERSION) {
        return xm_error_set(XM_ERR_PARSE,
                            "this is not a plan: format is '%.40s' version %d, not '%s' version %d",
                            format, version, format_name, FORMAT_VERSION);
    }
    if (json_unpack_ex(
            plan->document, &error, 0,
            "{s:s, s:i, s?s, s:{s:s, s:I, s:I, s?o !}, s:{s:s, s:s, s:I, s:I, s?o, s:I, s?I !}, "
            "s:{s:s, s:I, s:I, s:b !}, s:{s:F, s?F, s:F, s:F !}, s:s, s:o, s:o !}",
            "format", &format, "version", &version, "digest", &digest, "model", "name",
            &info->model, "layers", &layers, "parameters", &parameters, "reading", &reading,
            "cluster", "name", &info->cluster, "provenance", &info->cluster_provenance, "hosts",
            &hosts, "devices_per_host", &devices, "host_order", &host_order, "memory_limit_bytes",
            &memory_limit, "memory_reserve_bytes", &memory_reserve, "schedule", "kind",
            &info->schedule, "global_batch", &global_batch, "micro_batches", &micro_batches,
            "rematerialize", &rematerialize, "predicted", "step_s", &info->step, "bound_s",
            &info->bound, "sum_s", &info->sum, "bottleneck_s", &info->bottleneck, "optimiser",
            &info->optimiser, "stages", &stages, "reshardings", &boundaries) != 0) {
        return unpack_failed("the plan", &error);
    }
    info->parameters = (double)parameters;
    info->memory_limit = (double)memory_limit;
    info->memory_reserve = (double)memory_reserve;
    info->global_batch = global_batch;
    info->micro_batches = micro_batches;
    info->rematerialize = rematerialize != 0;
    if (digest != NULL && strcmp(digest, plan->digest) != 0) {
        return xm_error_set(XM_ERR_PARSE,
                            "the digest %.40s does not match the contents (%s): the file was "
                            "changed after it was planned; remove the key to accept that",
                            digest, plan->digest);
    }
    status = narrow("model", "layers", layers, &info->layers);
    if (status == XM_OK) {
        status = narrow("cluster", "hosts", hosts, &info->hosts);
    }
    if (status == XM_OK) {
        status = narrow("cluster", "devices_per_host", devices, &info->devices_per_host);
    }
    if (status == XM_OK) {
        status = read_reading(plan, reading);
    }
    if (status == XM_OK) {
        status = read_host_order(plan, host_order);
    }
    return status == XM_OK ? read_lists(plan, stages, boundaries) : status;
}
