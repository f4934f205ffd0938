/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan read from a JSON document with jansson's format strings, so that the keys stand in one
 * line. Reading is strict: a `!` in the format refuses keys that nobody knows, because a plan is
 * executed and an ignored key would be an ignored instruction.
 *
 * Strings are not copied: they stay those of the document, which the plan owns. Arrays lie in its
 * arena. The first failure sticks in the reader, and after it nothing is read.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/plan/plan_private.h"

enum { PLACE_TEXT = 64 };

/* The most layers, devices of a stage, or micro-batches in flight that a document may name;
 * products of two counts then still fit 64 bits. */
enum { MOST = 1 << 24 };

/* The place of what is not in a list. */
static const char whole_plan[] = "the plan";

typedef struct reader {
    ap_plan_t *plan;
    xm_status_t status;
} reader_t;

static void no_memory(reader_t *r)
{
    r->status = XM_NO_MEMORY("the plan");
}

static void unpack_failed(reader_t *r, const char *place, const json_error_t *error)
{
    XM_THEN(r->status, XM_MALFORMED("%s: %s", place, error->text));
}

/* Takes over a number that counts layers, devices or micro-batches. */
static void narrow(reader_t *r, const char *place, const char *key, json_int_t value, int *number)
{
    if (r->status == XM_OK && (value < 0 || value > MOST)) {
        r->status = XM_MALFORMED("%s: %s %" JSON_INTEGER_FORMAT " is not in 0 to %d", place, key,
                                 value, MOST);
    }
    *number = (int)value;
}

/* Reads the entries of a list into an array of the plan. The place of one is `inner`, its number
 * and `close`. */
typedef struct list {
    const char *place, *key, *inner, *close;
    size_t size;
    void (*read)(reader_t *r, const char *place, json_t *item, void *entry);
} list_t;

static void read_list(reader_t *r, const list_t *how, const json_t *list, void *entries, int *count)
{
    char *block;

    if (r->status != XM_OK) {
        return;
    }
    if (!json_is_array(list)) {
        r->status = XM_MALFORMED("%s: %s must be a list", how->place, how->key);
        return;
    }
    block = xm_arena_get(&r->plan->arena, json_array_size(list), how->size);
    if (block == NULL) {
        no_memory(r);
        return;
    }
    *count = (int)json_array_size(list);
    memcpy(entries, &(void *){block}, sizeof(void *));
    for (int i = 0; i < *count && r->status == XM_OK; ++i) {
        char place[PLACE_TEXT];

        (void)snprintf(place, sizeof(place), "%.40s%s%d%s",
                       how->place == whole_plan ? "" : how->place, how->inner, i, how->close);
        how->read(r, place, json_array_get(list, (size_t)i), block + (size_t)i * how->size);
    }
}

/* The trailing %n makes sure that nothing follows the mesh. */
static void read_mesh(reader_t *r, const char *place, const char *text, int *shape)
{
    int used = 0;

    /* Five digits at most, so nothing overflows. */
    if (r->status == XM_OK &&
        /* NOLINTNEXTLINE(cert-err34-c) */
        (sscanf(text, "%5dx%5d%n", &shape[0], &shape[1], &used) != 2 || text[used] != '\0' ||
         shape[0] < 1 || shape[1] < 1 || shape[0] > MOST / shape[1])) {
        r->status = XM_MALFORMED("%s: '%s' is not a mesh such as 2x4", place, text);
        shape[0] = shape[1] = 0; /* whose product callers make without a look at the status */
    }
}

/* Integers from 0 to `most`, as many as are expected; `unit` says of what, `one` what each is. */
typedef struct numbers {
    const char *place, *key, *unit, *one;
    int expected, most;
} numbers_t;

static void read_numbers(reader_t *r, const numbers_t *how, const json_t *array,
                         const int **numbers)
{
    int *values;

    if (r->status != XM_OK) {
        return;
    }
    if (!json_is_array(array) || json_array_size(array) != (size_t)how->expected) {
        r->status = XM_MALFORMED("%s: %s must be a list of %s%d%s", how->place, how->key,
                                 how->unit[0] != '\0' ? "the " : "", how->expected, how->unit);
        return;
    }
    values = xm_arena_get(&r->plan->arena, (size_t)how->expected, sizeof(*values));
    if (values == NULL) {
        no_memory(r);
        return;
    }
    for (int i = 0; i < how->expected && r->status == XM_OK; ++i) {
        const json_t *item = json_array_get(array, (size_t)i);
        json_int_t value = json_is_integer(item) ? json_integer_value(item) : -1;

        if (value < 0 || value > how->most) {
            r->status =
                XM_MALFORMED("%s: entry %d of %s is not %s", how->place, i, how->key, how->one);
        }
        values[i] = (int)value;
    }
    *numbers = values;
}

static void read_ranks(reader_t *r, const char *place, const json_t *array, int expected,
                       const int **ranks)
{
    read_numbers(r, &(numbers_t){place, "ranks", "", "a rank", expected, MOST}, array, ranks);
}

static void read_op(reader_t *r, const char *place, json_t *item, void *entry)
{
    ap_plan_op_t *op = entry;
    json_error_t error;

    op->sums = "";
    if (json_unpack_ex(item, &error, 0, "{s:s, s:s, s:s, s:s, s?s !}", "name", &op->name, "rule",
                       &op->rule, "operands", &op->operands, "results", &op->results, "sums",
                       &op->sums) != 0) {
        unpack_failed(r, place, &error);
    }
}

static void read_layers(reader_t *r, const char *place, json_t *item, void *entry)
{
    const list_t ops = {place, "ops", ", operator ", "", sizeof(ap_plan_op_t), read_op};
    ap_plan_layers_t *layers = entry;
    json_error_t error;
    json_int_t first, last;
    json_t *list;

    if (json_unpack_ex(item, &error, 0, "{s:[I, I!], s:o !}", "layers", &first, &last, "ops",
                       &list) != 0) {
        unpack_failed(r, place, &error);
        return;
    }
    narrow(r, place, "layer", first, &layers->first_layer);
    narrow(r, place, "layer", last, &layers->last_layer);
    read_list(r, &ops, list, &layers->ops, &layers->op_count);
}

static void read_stage(reader_t *r, const char *place, json_t *item, void *entry)
{
    const list_t layers = {place,      "sharding", ".sharding[", "]", sizeof(ap_plan_layers_t),
                           read_layers};
    ap_plan_stage_t *stage = entry;
    json_error_t error;
    json_t *ranks, *sharding;
    const char *submesh_text, *shape_text;
    json_int_t first, last, state, activation, work, in_flight;
    /* A stage that says nothing does what all do. */
    int submesh[2] = {0}, recompute = r->plan->info.rematerialize;

    if (json_unpack_ex(item, &error, 0,
                       "{s:[I, I!], s:s, s:s, s:o, s:{s:F, s:F, s:F, s:F !}, "
                       "s:{s:I, s:I, s:I, s:I !}, s?b, s?[F, F!], s:o !}",
                       "layers", &first, &last, "submesh", &submesh_text, "mesh", &shape_text,
                       "ranks", &ranks, "seconds", "forward", &stage->forward, "backward",
                       &stage->backward, "sync", &stage->sync, "update", &stage->update, "memory",
                       "state_bytes", &state, "activation_bytes", &activation, "work_bytes", &work,
                       "in_flight", &in_flight, "recompute", &recompute, "repeated",
                       &stage->repeated[0], &stage->repeated[1], "sharding", &sharding) != 0) {
        unpack_failed(r, place, &error);
        return;
    }
    stage->recompute = recompute != 0;
    stage->state_bytes = (double)state;
    stage->activation_bytes = (double)activation;
    stage->work_bytes = (double)work;
    narrow(r, place, "layer", first, &stage->first_layer);
    narrow(r, place, "layer", last, &stage->last_layer);
    narrow(r, place, "in_flight", in_flight, &stage->in_flight);
    read_mesh(r, place, submesh_text, submesh);
    read_mesh(r, place, shape_text, stage->shape);
    stage->hosts = submesh[0];
    stage->devices_per_host = submesh[1];
    read_ranks(r, place, ranks, submesh[0] * submesh[1], &stage->devices);
    read_list(r, &layers, sharding, &stage->layers, &stage->layer_count);
}

static void read_side(reader_t *r, const char *place, json_t *item, ap_plan_side_t *side)
{
    json_error_t error;
    const char *mesh;
    json_t *ranks;

    if (json_unpack_ex(item, &error, 0, "{s:s, s:o, s:s !}", "mesh", &mesh, "ranks", &ranks, "spec",
                       &side->spec) != 0) {
        unpack_failed(r, place, &error);
        return;
    }
    read_mesh(r, place, mesh, side->shape);
    side->device_count = side->shape[0] * side->shape[1];
    read_ranks(r, place, ranks, side->device_count, &side->devices);
}

static void read_shape(reader_t *r, const char *place, const json_t *array, int *of_rank,
                       int64_t *dims)
{
    size_t rank = json_array_size(array);

    if (r->status == XM_OK && (!json_is_array(array) || rank < 1 || rank > AP_MAX_RANK)) {
        r->status =
            XM_MALFORMED("%s: shape must be a list of 1 to %d dimensions", place, AP_MAX_RANK);
    }
    *of_rank = (int)rank;
    for (size_t d = 0; d < rank && r->status == XM_OK; ++d) {
        dims[d] = json_integer_value(json_array_get(array, d));
        if (dims[d] < 1) {
            r->status =
                XM_MALFORMED("%s: dimension %zu of shape is not a positive integer", place, d);
        }
    }
}

static void read_link(reader_t *r, const char *place, json_t *item, void *entry)
{
    ap_link_load_t *link = entry;
    json_error_t error;
    json_int_t host = -1, rack = -1;

    if (json_unpack_ex(item, &error, 0, "{s?I, s?I, s:[F, F!], s:[F, F!] !}", "host", &host, "rack",
                       &rack, "forward_s", &link->forward[AP_LINK_OUT], &link->forward[AP_LINK_IN],
                       "backward_s", &link->backward[AP_LINK_OUT],
                       &link->backward[AP_LINK_IN]) != 0) {
        unpack_failed(r, place, &error);
        return;
    }
    if ((host < 0) == (rack < 0)) {
        r->status = XM_MALFORMED("%s: neither a host nor a rack, or both", place);
    }
    link->rack = rack >= 0;
    narrow(r, place, link->rack ? "rack" : "host", link->rack ? rack : host, &link->index);
}

static void read_tensor(reader_t *r, const char *place, json_t *item, void *entry)
{
    ap_plan_tensor_t *tensor = entry;
    json_int_t element_size, bytes;
    json_error_t error;
    json_t *shape;

    if (json_unpack_ex(item, &error, 0, "{s:s, s:o, s:s, s:I, s:I, s:s, s:s !}", "tensor",
                       &tensor->tensor, "shape", &shape, "dtype", &tensor->dtype, "element_size",
                       &element_size, "bytes", &bytes, "src", &tensor->src, "dst",
                       &tensor->dst) != 0) {
        unpack_failed(r, place, &error);
        return;
    }
    tensor->element_size = element_size;
    tensor->bytes = bytes;
    read_shape(r, place, shape, &tensor->rank, tensor->shape);
}

/* Lies between neighbours, unless the entry says otherwise. */
static void read_boundary(reader_t *r, const char *place, json_t *item, void *entry)
{
    const list_t tensors = {place, "more", ".more[", "]", sizeof(ap_plan_tensor_t), read_tensor};
    const list_t loads = {place,    "links", ".predicted.links[", "]", sizeof(ap_link_load_t),
                          read_link};
    ap_plan_boundary_t *boundary = entry;
    json_error_t error;
    json_t *shape, *src, *dst, *links = NULL, *more = NULL;
    json_int_t element_size, bytes, net_bytes;
    char inner[PLACE_TEXT];

    boundary->from = (int)(boundary - r->plan->boundaries);
    boundary->to = boundary->from + 1;
    if (json_unpack_ex(item, &error, 0,
                       "{s:s, s:o, s:s, s:I, s:I, s:o, s:o, "
                       "s:{s:F, s:F, s:F, s:I, s:s, s:s, s?o !}, s?o, s?[i, i!] !}",
                       "tensor", &boundary->tensor, "shape", &shape, "dtype", &boundary->dtype,
                       "element_size", &element_size, "bytes", &bytes, "src", &src, "dst", &dst,
                       "predicted", "forward_s", &boundary->forward, "backward_s",
                       &boundary->backward, "bound_s", &boundary->bound, "net_bytes", &net_bytes,
                       "strategy", &boundary->strategy, "scheduler", &boundary->scheduler, "links",
                       &links, "more", &more, "stages", &boundary->from, &boundary->to) != 0) {
        unpack_failed(r, place, &error);
        return;
    }
    boundary->element_size = element_size;
    boundary->bytes = bytes;
    boundary->net_bytes = net_bytes;
    read_shape(r, place, shape, &boundary->rank, boundary->shape);
    if (more != NULL) {
        read_list(r, &tensors, more, &boundary->more, &boundary->more_count);
    }
    if (links != NULL) {
        read_list(r, &loads, links, &boundary->links, &boundary->link_count);
    }
    (void)snprintf(inner, sizeof(inner), "%.40s.src", place);
    read_side(r, inner, src, &boundary->src);
    (void)snprintf(inner, sizeof(inner), "%.40s.dst", place);
    read_side(r, inner, dst, &boundary->dst);
}

static void read_names(reader_t *r, const char *key, const json_t *list, const char *const **names,
                       size_t *count)
{
    const char **made;

    if (list == NULL || r->status != XM_OK) {
        return;
    }
    made = xm_arena_get(&r->plan->arena, json_array_size(list), sizeof(*made));
    if (made == NULL) {
        no_memory(r);
        return;
    }
    for (size_t i = 0; i < json_array_size(list) && r->status == XM_OK; ++i) {
        made[i] = json_string_value(json_array_get(list, i));
        if (made[i] == NULL) {
            r->status = XM_MALFORMED("model.reading: entry %zu of %s is not a text", i, key);
        }
    }
    if (json_array_size(list) == 0) {
        r->status = XM_MALFORMED("model.reading: %s must be a list of texts", key);
    }
    *names = made;
    *count = json_array_size(list);
}

/* Absent in plans of built-in models. */
static void read_reading(reader_t *r, json_t *object)
{
    ap_plan_reading_t *reading = &r->plan->info.reading;
    json_t *marks = NULL, *dims = NULL;
    json_int_t layers = 0;
    json_error_t error;

    if (object == NULL || r->status != XM_OK) {
        return;
    }
    if (json_unpack_ex(object, &error, 0, "{s?I, s?s, s?o, s?o !}", "layers", &layers, "pattern",
                       &reading->pattern, "marks", &marks, "dims", &dims) != 0) {
        unpack_failed(r, "model.reading", &error);
    } else if (layers < -1 || layers > MOST) {
        r->status =
            XM_MALFORMED("model.reading: %" JSON_INTEGER_FORMAT " layers; -1 is automatic", layers);
    }
    reading->layers = (int)layers;
    read_names(r, "marks", marks, &reading->marks, &reading->mark_count);
    read_names(r, "dims", dims, &reading->dims, &reading->dim_count);
}

static void read_host_order(reader_t *r, const json_t *list)
{
    int hosts = r->plan->info.hosts;
    char one[PLACE_TEXT];

    /* A number of hosts that was refused is any number. */
    if (list != NULL && r->status == XM_OK) {
        (void)snprintf(one, sizeof(one), "one of the hosts 0 to %d", hosts - 1);
        read_numbers(r, &(numbers_t){"cluster", "host_order", " hosts", one, hosts, hosts - 1},
                     list, &r->plan->info.host_order);
    }
}

xm_status_t ap_plan_from_json(ap_plan_t *plan)
{
    static const list_t all_stages = {whole_plan, "stages", "stages[", "]", sizeof(ap_plan_stage_t),
                                      read_stage};
    static const list_t all_boundaries = {
        whole_plan, "reshardings", "reshardings[", "]", sizeof(ap_plan_boundary_t), read_boundary};
    reader_t r = {.plan = plan, .status = XM_OK};
    ap_plan_info_t *info = &plan->info;
    json_int_t layers, parameters, hosts, devices, memory_limit, memory_reserve = 0, frozen = 0,
                                                                 global_batch, micro_batches;
    const char *format = "", *digest = NULL;
    json_t *stages, *boundaries, *reading = NULL, *host_order = NULL;
    json_error_t error;
    int version = 0, rematerialize;

    /* A file of another kind is told as such and not by its first unknown key. */
    if (xm_json_check_kind(plan->document, "a parallel plan") != XM_OK) {
        return XM_ERR_PARSE;
    }
    (void)json_unpack(plan->document, "{s?s, s?i}", "format", &format, "version", &version);
    if (strcmp(format, AP_PLAN_FORMAT) != 0 || version != AP_PLAN_VERSION) {
        return XM_MALFORMED("this is not a plan: format is '%s' version %d, not '%s' version %d",
                            format, version, AP_PLAN_FORMAT, AP_PLAN_VERSION);
    }
    if (json_unpack_ex(
            plan->document, &error, 0,
            "{s:s, s:i, s?s, s:{s:s, s:I, s:I, s?o, s?I !}, s:{s:s, s:s, s:I, s:I, s?o, "
            "s:I, s?I !}, "
            "s:{s:s, s:I, s:I, s:b !}, s:{s:F, s?F, s:F, s:F, s?F, s?F, s?F !}, s:s, s:o, s:o !}",
            "format", &format, "version", &version, "digest", &digest, "model", "name",
            &info->model, "layers", &layers, "parameters", &parameters, "reading", &reading,
            "frozen", &frozen, "cluster", "name", &info->cluster, "provenance",
            &info->cluster_provenance, "hosts", &hosts, "devices_per_host", &devices, "host_order",
            &host_order, "memory_limit_bytes", &memory_limit, "memory_reserve_bytes",
            &memory_reserve, "schedule", "kind", &info->schedule, "global_batch", &global_batch,
            "micro_batches", &micro_batches, "rematerialize", &rematerialize, "predicted", "step_s",
            &info->step, "bound_s", &info->bound, "sum_s", &info->sum, "bottleneck_s",
            &info->bottleneck, "send_s", &info->send, "split_factor", &info->split, "weight_share",
            &info->weight, "optimiser", &info->optimiser, "stages", &stages, "reshardings",
            &boundaries) != 0) {
        unpack_failed(&r, whole_plan, &error);
        return r.status;
    }
    info->parameters = (double)parameters;
    info->memory_limit = (double)memory_limit;
    info->memory_reserve = (double)memory_reserve;
    info->global_batch = global_batch;
    info->micro_batches = micro_batches;
    info->rematerialize = rematerialize != 0;
    if (digest != NULL && strcmp(digest, plan->digest) != 0) {
        return XM_MALFORMED("the digest %.40s does not match the contents (%s): the file was "
                            "changed after it was planned; remove the key to accept that",
                            digest, plan->digest);
    }
    narrow(&r, "model", "layers", layers, &info->layers);
    narrow(&r, "cluster", "hosts", hosts, &info->hosts);
    narrow(&r, "cluster", "devices_per_host", devices, &info->devices_per_host);
    narrow(&r, "model", "frozen", frozen, &info->frozen);
    if (r.status == XM_OK && info->frozen >= info->layers) {
        r.status = XM_MALFORMED("model: %d of %d layers are frozen", info->frozen, info->layers);
    }
    read_reading(&r, reading);
    read_host_order(&r, host_order);
    read_list(&r, &all_stages, stages, &plan->stages, &plan->stage_count);
    read_list(&r, &all_boundaries, boundaries, &plan->boundaries, &plan->boundary_count);
    return r.status;
}
