/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The built-in models and those from files: their tensors, how training and serving shard
 * them, and one layout each for both sides. This is the setting of weight transfer
 * between training and inference (docs/model-suite.md). The built-in cases are sized like
 * public models, from a dense one of 7B to one of 256 experts; those from dsv3 on have the
 * meshes of a published weight refit (bench/cases/published.c).
 */
#include "bench/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/model/family.h"
#include "bench/model/file.h"
#include "bench/model/layout.h"
#include "bench/model/pack.h"
#include "comm/base.h"

typedef struct {
    const char *name;
    rb_family_t family;
    rb_parallel_t train, generation;
} case_t;

static const case_t cases[] = {
    {"dense-7b",
     RB_FAMILY_7B,
     {.num_gpus = 16, .tp = 2, .pp = 2, .dp = 4},
     {.num_gpus = 16, .tp = 4, .dp = 4}},
    {"dense-32b",
     RB_FAMILY_32B,
     {.num_gpus = 32, .tp = 4, .pp = 4, .dp = 2},
     {.num_gpus = 32, .tp = 4, .dp = 8}},
    {"dense-70b",
     RB_FAMILY_70B,
     {.num_gpus = 128, .tp = 8, .pp = 8, .dp = 2},
     {.num_gpus = 128, .tp = 8, .dp = 16}},
    {"moe-256e",
     RB_FAMILY_256E,
     {.num_gpus = 128, .tp = 2, .pp = 4, .dp = 16, .ep = 8},
     {.num_gpus = 64, .dp = 64, .ep = 64}},
    {"dsv3",
     RB_FAMILY_256E,
     {.num_gpus = 256, .pp = 16, .ep = 16},
     {.num_gpus = 256, .tp = 32, .dp = 8}},
    {"q4b-dp8", RB_FAMILY_4B, {.num_gpus = 8, .dp = 8}, {.num_gpus = 8, .tp = 8}},
    {"q4b-tp2", RB_FAMILY_4B, {.num_gpus = 8, .tp = 2, .dp = 4}, {.num_gpus = 8, .tp = 4, .dp = 2}},
    {"q30b-pp2",
     RB_FAMILY_30B,
     {.num_gpus = 16, .pp = 2, .ep = 8},
     {.num_gpus = 16, .tp = 8, .dp = 2}},
    {"q30b-tp2",
     RB_FAMILY_30B,
     {.num_gpus = 16, .tp = 2, .ep = 4, .etp = 1},
     {.num_gpus = 16, .tp = 4, .dp = 4}},
    {"q30b-fsdp", RB_FAMILY_30B, {.num_gpus = 2, .fsdp = 2}, {.num_gpus = 30, .dp = 30}},
    {"q235b",
     RB_FAMILY_235B,
     {.num_gpus = 128, .tp = 4, .pp = 8, .ep = 16, .etp = 1},
     {.num_gpus = 128, .tp = 8, .dp = 16}},
};

enum { CASES = sizeof(cases) / sizeof(cases[0]) };

int rb_model_cases(void)
{
    return CASES;
}

const char *rb_model_case_name(int index)
{
    return cases[index].name;
}

/* A wrong name is answered with the nearest one. */
static xm_status_t find_case(const char *name, const case_t **found)
{
    const char *names[CASES];
    int index;

    for (int i = 0; i < CASES; ++i) {
        names[i] = cases[i].name;
    }
    XM_TRY(xm_text_choose("model", name, names, CASES, &index));
    *found = &cases[index];
    return XM_OK;
}

/* A request comes from options or from other programs, so what contradicts itself is
 * refused here. */
static xm_status_t check_request(const rb_model_request_t *request)
{
    if ((request->name == NULL) == (request->model_config == NULL)) {
        return XM_INVALID("a model is a built-in one or a file of tensors, %s",
                          request->name == NULL ? "and neither is given" : "not both");
    }
    if ((request->train == NULL) != (request->generation == NULL) ||
        (request->train != NULL && request->system_config != NULL)) {
        return XM_INVALID("the meshes come from a file, or training and generation are given");
    }
    if (request->name == NULL && request->system_config == NULL && request->train == NULL) {
        return XM_INVALID("a file of tensors needs --system-config with the meshes");
    }
    if (request->scale < 0) {
        return XM_INVALID("scale is %" PRId64 "; it must be at least 1", request->scale);
    }
    return XM_OK;
}

/* The meshes come from the file, from the request, or from the built-in case, in this
 * order. */
static xm_status_t load_meshes(const rb_model_request_t *request, const case_t *built_in,
                               rb_model_t *model)
{
    xm_status_t status;

    if (request->system_config != NULL) {
        return rb_parallel_read(request->system_config, &model->train, &model->generation);
    }
    model->train = request->train != NULL ? *request->train : built_in->train;
    model->generation = request->train != NULL ? *request->generation : built_in->generation;
    status = rb_parallel_resolve(&model->train);
    if (status < 0) {
        return xm_error_prefix(status, "train");
    }
    status = rb_parallel_resolve(&model->generation);
    return status < 0 ? xm_error_prefix(status, "generation") : status;
}

/* The scale applies after reading, so heads and layers are known. */
static xm_status_t load_tensors(const rb_model_request_t *request, const case_t *built_in,
                                const rb_shard_table_t *table, int stages, rb_tensor_list_t *list)
{
    XM_TRY(built_in != NULL ? rb_model_family(built_in->family, list)
                            : rb_model_file_read(request->model_config, list));

    if (table->head_size > 0) {
        list->head_size = table->head_size;
    }
    if (request->scale > 1) {
        XM_TRY(rb_tensor_list_scale(list, request->scale, stages));
    }
    return XM_OK;
}

/* The serving side's ranks follow the training side's: two disjoint sets. */
static xm_status_t lay_tensor(rb_model_t *model, const rb_model_frame_t *frame,
                              const rb_tensor_t *tensor, const rb_shard_rule_t *rule,
                              rb_model_tensor_t *made)
{
    xm_status_t status;

    (void)snprintf(made->name, sizeof(made->name), "%s", tensor->name);
    made->element_bits = tensor->bits;
    made->group = -1;
    status = rb_model_layout(model->layouts, &model->train, 0, frame, tensor, rule, &made->src);
    if (status < 0) {
        return xm_error_prefix(status, "train");
    }
    status = rb_model_layout(model->layouts, &model->generation, model->src_ranks, frame, tensor,
                             rule, &made->dst);
    return status < 0 ? xm_error_prefix(status, "generation") : status;
}

/* Finds the rule of each tensor and makes its two layouts; the rules are kept until
 * packing is done. */
static xm_status_t lay_tensors(rb_model_t *model, const rb_tensor_list_t *list,
                               const rb_shard_table_t *table, bool packed)
{
    rb_model_frame_t frame = {.layers = rb_tensor_list_layers(list),
                              .experts = rb_tensor_list_experts(list),
                              .head_size = list->head_size};
    const rb_shard_rule_t **rules = calloc((size_t)list->count, sizeof(const rb_shard_rule_t *));
    xm_status_t status = XM_OK;

    model->tensors = calloc((size_t)list->count, sizeof(*model->tensors));
    if (rules == NULL || model->tensors == NULL) {
        free(rules);
        return XM_NO_MEMORY("%d tensors", list->count);
    }
    for (int i = 0; status == XM_OK && i < list->count; ++i) {
        status = rb_shard_table_find(table, &list->tensors[i], &rules[i]);
        XM_THEN(status, lay_tensor(model, &frame, &list->tensors[i], rules[i], &model->tensors[i]));
        ++model->count;
    }
    if (status == XM_OK && packed) {
        status = rb_model_pack(model, rules);
    }
    free(rules);
    return status;
}

/* Everything is filled into the model step by step; the caller destroys it when a step
 * fails. */
static xm_status_t fill(const rb_model_request_t *request, const case_t *built_in,
                        const rb_shard_table_t *table, rb_model_t *model)
{
    rb_tensor_list_t list = {0};
    xm_status_t status = load_meshes(request, built_in, model);
    /* As many layers are kept as the longer pipeline has stages, so that no stage is
     * empty. */
    int stages = model->train.pp > model->generation.pp ? model->train.pp : model->generation.pp;

    XM_TRY(status);
    model->source = built_in != NULL ? request->name : request->model_config;
    model->src_ranks = model->train.num_gpus;
    model->dst_ranks = model->generation.num_gpus;
    status = load_tensors(request, built_in, table, stages, &list);
    XM_THEN(status, rb_tensor_list_totals(&list, &model->elements, &model->bytes));
    XM_THEN(status, rb_layout_pool_create(&model->layouts));
    XM_THEN(status, lay_tensors(model, &list, table, request->packed));
    rb_tensor_list_clear(&list);
    return status;
}

/* The table of rules is needed only while the model is made. */
xm_status_t rb_model_load(const rb_model_request_t *request, rb_model_t **model)
{
    const case_t *built_in = NULL;
    rb_shard_table_t table;
    rb_model_t *made;
    xm_status_t status = XM_OK;

    XM_TRY(check_request(request));
    if (request->name != NULL) {
        XM_TRY(find_case(request->name, &built_in));
    }
    XM_TRY(rb_shard_table_read(request->shard_table, &table));
    made = calloc(1, sizeof(*made));
    if (made == NULL) {
        status = XM_NO_MEMORY("a model");
        goto clear_table;
    }
    status = fill(request, built_in, &table, made);
    if (status < 0) {
        rb_model_destroy(made);
        goto clear_table;
    }
    *model = made;

clear_table:
    rb_shard_table_clear(&table);
    return status;
}

void rb_model_destroy(rb_model_t *model)
{
    if (model != NULL) {
        rb_layout_pool_destroy(model->layouts);
        free(model->groups);
        free(model->tensors);
        free(model);
    }
}
