/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as a JSON document, written with jansson's format strings, so that the keys stand in one
 * line. A part that cannot be written, for want of memory or because a text or a number is none in
 * JSON, is NULL, and so is then what it is a part of. */

#include <math.h>

#include "planner/plan/plan_private.h"

/* Counts are whole bytes in the document. */
static json_int_t whole(double bytes)
{
    return (json_int_t)llround(bytes);
}

/* A list of what is made of each entry of an array. */
static json_t *list_to_json(const void *entries, size_t count, size_t size,
                            json_t *(*to_json)(const void *entry))
{
    json_t *list = json_array();

    for (size_t i = 0; i < count; ++i) {
        if (json_array_append_new(list, to_json((const char *)entries + i * size)) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

#define LIST_TO_JSON(entries, count, to_json)                                                      \
    list_to_json(entries, (size_t)(count), sizeof(*(entries)), to_json)

static json_t *int_to_json(const void *value)
{
    return json_integer(*(const int *)value);
}

static json_t *dim_to_json(const void *value)
{
    return json_integer(*(const int64_t *)value);
}

static json_t *name_to_json(const void *name)
{
    return json_string(*(const char *const *)name);
}

static json_t *mesh_to_json(const int *shape)
{
    return json_sprintf("%dx%d", shape[0], shape[1]);
}

static json_t *op_to_json(const void *entry)
{
    const ap_plan_op_t *op = entry;

    return json_pack("{s:s, s:s, s:s, s:s, s:s*}", "name", op->name, "rule", op->rule, "operands",
                     op->operands, "results", op->results, "sums",
                     op->sums != NULL && op->sums[0] != '\0' ? op->sums : NULL);
}

static json_t *layers_to_json(const void *entry)
{
    const ap_plan_layers_t *layers = entry;

    return json_pack("{s:[i, i], s:o}", "layers", layers->first_layer, layers->last_layer, "ops",
                     LIST_TO_JSON(layers->ops, layers->op_count, op_to_json));
}

/* That devices repeat work is said only where they do. */
static json_t *stage_to_json(const void *entry)
{
    const ap_plan_stage_t *stage = entry;
    bool repeats = stage->repeated[0] > 0 || stage->repeated[1] > 0;

    return json_pack(
        "{s:[i, i], s:o, s:o, s:o, s:{s:f, s:f, s:f, s:f}, s:{s:I, s:I, s:I, s:i}, s:o, s:o*, s:b}",
        "layers", stage->first_layer, stage->last_layer, "submesh",
        mesh_to_json((const int[]){stage->hosts, stage->devices_per_host}), "mesh",
        mesh_to_json(stage->shape), "ranks",
        LIST_TO_JSON(stage->devices, stage->hosts * stage->devices_per_host, int_to_json),
        "seconds", "forward", stage->forward, "backward", stage->backward, "sync", stage->sync,
        "update", stage->update, "memory", "state_bytes", whole(stage->state_bytes),
        "activation_bytes", whole(stage->activation_bytes), "work_bytes", whole(stage->work_bytes),
        "in_flight", stage->in_flight, "sharding",
        LIST_TO_JSON(stage->layers, stage->layer_count, layers_to_json), "repeated",
        repeats ? json_pack("[f, f]", stage->repeated[0], stage->repeated[1]) : NULL, "recompute",
        (int)stage->recompute);
}

static json_t *side_to_json(const ap_plan_side_t *side)
{
    return json_pack("{s:o, s:o, s:s}", "mesh", mesh_to_json(side->shape), "ranks",
                     LIST_TO_JSON(side->devices, side->device_count, int_to_json), "spec",
                     side->spec);
}

static json_t *link_to_json(const void *entry)
{
    const ap_link_load_t *link = entry;

    return json_pack("{s:i, s:[f, f], s:[f, f]}", link->rack ? "rack" : "host", link->index,
                     "forward_s", link->forward[AP_LINK_OUT], link->forward[AP_LINK_IN],
                     "backward_s", link->backward[AP_LINK_OUT], link->backward[AP_LINK_IN]);
}

static json_t *tensor_to_json(const void *entry)
{
    const ap_plan_tensor_t *tensor = entry;

    return json_pack("{s:s, s:o, s:s, s:I, s:I, s:s, s:s}", "tensor", tensor->tensor, "shape",
                     LIST_TO_JSON(tensor->shape, tensor->rank, dim_to_json), "dtype", tensor->dtype,
                     "element_size", (json_int_t)tensor->element_size, "bytes",
                     (json_int_t)tensor->bytes, "src", tensor->src, "dst", tensor->dst);
}

/* That several tensors pass is said only where they do. */
static json_t *boundary_to_json(const void *entry)
{
    const ap_plan_boundary_t *boundary = entry;

    return json_pack("{s:s, s:o, s:s, s:I, s:I, s:o, s:o, s:{s:f, s:f, s:f, s:I, s:s, s:s, s:o}, "
                     "s:o*, s:[i, i]}",
                     "tensor", boundary->tensor, "shape",
                     LIST_TO_JSON(boundary->shape, boundary->rank, dim_to_json), "dtype",
                     boundary->dtype, "element_size", (json_int_t)boundary->element_size, "bytes",
                     (json_int_t)boundary->bytes, "src", side_to_json(&boundary->src), "dst",
                     side_to_json(&boundary->dst), "predicted", "forward_s", boundary->forward,
                     "backward_s", boundary->backward, "bound_s", boundary->bound, "net_bytes",
                     (json_int_t)boundary->net_bytes, "strategy", boundary->strategy, "scheduler",
                     boundary->scheduler, "links",
                     LIST_TO_JSON(boundary->links, boundary->link_count, link_to_json), "more",
                     boundary->more_count > 0
                         ? LIST_TO_JSON(boundary->more, boundary->more_count, tensor_to_json)
                         : NULL,
                     "stages", boundary->from, boundary->to);
}

/* How the model file was read; NULL where nothing was told. */
static json_t *reading_to_json(const ap_plan_reading_t *reading)
{
    if (reading->layers == 0 && reading->pattern == NULL && reading->mark_count == 0 &&
        reading->dim_count == 0) {
        return NULL;
    }
    return json_pack(
        "{s:o*, s:s*, s:o*, s:o*}", "layers",
        reading->layers != 0 ? json_integer(reading->layers) : NULL, "pattern", reading->pattern,
        "marks",
        reading->mark_count > 0 ? LIST_TO_JSON(reading->marks, reading->mark_count, name_to_json)
                                : NULL,
        "dims",
        reading->dim_count > 0 ? LIST_TO_JSON(reading->dims, reading->dim_count, name_to_json)
                               : NULL);
}

/* A stage says whether it recomputes only where not all do the same, and a boundary which stages it
 * is between only where it skips some: plans without such are written as they always were. */
static void drop_defaults(json_t *stages, bool mixed, json_t *boundaries)
{
    for (size_t i = 0; i < json_array_size(stages) && !mixed; ++i) {
        (void)json_object_del(json_array_get(stages, i), "recompute");
    }
    for (size_t i = 0; i + 1 < json_array_size(stages); ++i) {
        (void)json_object_del(json_array_get(boundaries, i), "stages");
    }
}

json_t *ap_plan_to_json(const ap_plan_params_t *params)
{
    const ap_plan_info_t *info = &params->info;
    json_t *stages = LIST_TO_JSON(params->stages, params->stage_count, stage_to_json);
    json_t *boundaries = LIST_TO_JSON(
        params->boundaries, params->stage_count - 1 + params->skip_count, boundary_to_json);
    int recomputing = 0;

    for (int i = 0; i < params->stage_count; ++i) {
        recomputing += params->stages[i].recompute;
    }
    drop_defaults(stages, recomputing > 0 && recomputing < params->stage_count, boundaries);
    return json_pack(
        "{s:s, s:i, s:{s:s, s:i, s:I, s:o*, s:o*}, s:{s:s, s:s, s:i, s:i, s:o*, s:I, s:o*}, "
        "s:{s:s, s:I, s:I, s:b}, s:{s:f, s:o*, s:f, s:f, s:o*, s:o*, s:o*}, s:s, s:o, s:o}",
        "format", AP_PLAN_FORMAT, "version", AP_PLAN_VERSION, "model", "name", info->model,
        "layers", info->layers, "parameters", whole(info->parameters), "reading",
        reading_to_json(&info->reading), "frozen",
        info->frozen > 0 ? json_integer(info->frozen) : NULL, "cluster", "name", info->cluster,
        "provenance", info->cluster_provenance, "hosts", info->hosts, "devices_per_host",
        info->devices_per_host, "host_order",
        info->host_order != NULL ? LIST_TO_JSON(info->host_order, info->hosts, int_to_json) : NULL,
        "memory_limit_bytes", whole(info->memory_limit), "memory_reserve_bytes",
        info->memory_reserve > 0.0 ? json_integer(whole(info->memory_reserve)) : NULL, "schedule",
        "kind", info->schedule, "global_batch", (json_int_t)info->global_batch, "micro_batches",
        (json_int_t)info->micro_batches, "rematerialize", recomputing == params->stage_count,
        "predicted", "step_s", info->step, "bound_s",
        info->bound > 0.0 ? json_real(info->bound) : NULL, "sum_s", info->sum, "bottleneck_s",
        info->bottleneck, "send_s", info->send > 0.0 ? json_real(info->send) : NULL, "split_factor",
        info->split > 1.0 ? json_real(info->split) : NULL, "weight_share",
        info->weight > 0.0 ? json_real(info->weight) : NULL, "optimiser", info->optimiser, "stages",
        stages, "reshardings", boundaries);
}
