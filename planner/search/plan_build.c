/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a plan of stages that a search has found. The search works with prices only; here each
 * stage is solved once more for what its operators do, boundaries are planned for their bytes and
 * links, and layers that are sharded alike are written once.
 *
 * Everything that the plan's structures point at lives in arrays of this file until the plan has
 * copied it into its document.
 */

#include "planner/search/plan_build.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPEC_LIST_TEXT = AP_MAX_OPERANDS * (AP_SPEC_TEXT + 1) };

/* The texts of one operator's specs, which its ap_plan_op_t points at. */
typedef struct op_text {
    char operands[SPEC_LIST_TEXT];
    char results[SPEC_LIST_TEXT];
} op_text_t;

/* What one stage's part of the plan points at. */
typedef struct stage_parts {
    op_text_t *texts;
    ap_plan_op_t *ops;
    ap_plan_layers_t *layers;
    int *devices;
} stage_parts_t;

typedef struct boundary_parts {
    char src_spec[AP_SPEC_TEXT], dst_spec[AP_SPEC_TEXT];
    ap_link_load_t *links;
    int link_count;
} boundary_parts_t;

static void list_specs(const ap_graph_t *graph, const int *tensors, const ap_spec_t *specs,
                       int count, char *text)
{
    size_t length = 0;

    text[0] = '\0';
    for (int i = 0; i < count; ++i) {
        char spec[AP_SPEC_TEXT];

        (void)ap_spec_format(specs[i], ap_graph_tensor(graph, tensors[i])->shape.rank, spec,
                             sizeof(spec));
        length += (size_t)snprintf(text + length, SPEC_LIST_TEXT - length, "%s%s", i > 0 ? "," : "",
                                   spec);
    }
}

static bool ops_alike(const ap_plan_op_t *a, const ap_plan_op_t *b)
{
    return strcmp(a->rule, b->rule) == 0 && strcmp(a->operands, b->operands) == 0 &&
           strcmp(a->results, b->results) == 0;
}

/* Whether the last group has the same operators as the @p count operators from @p ops on. Names are
 * not compared: they carry the number of the block. */
static bool continues_group(const ap_plan_layers_t *group, const ap_plan_op_t *ops, int count)
{
    bool alike = group->op_count == count;

    for (int i = 0; alike && i < count; ++i) {
        alike = ops_alike(&group->ops[i], &ops[i]);
    }
    return alike;
}

/* Groups the stage's operators, which stand in layer order, into runs of layers that are alike. */
static int group_layers(const ap_graph_t *graph, const ap_stage_solution_t *solution,
                        const ap_plan_op_t *ops, ap_plan_layers_t *groups)
{
    int choices = ap_stage_solution_choices(solution), group_count = 0, begin = 0;

    while (begin < choices) {
        int layer = ap_graph_op(graph, ap_stage_solution_choice(solution, begin)->op)->layer;
        int end = begin;

        while (end < choices &&
               ap_graph_op(graph, ap_stage_solution_choice(solution, end)->op)->layer == layer) {
            ++end;
        }
        if (group_count > 0 &&
            continues_group(&groups[group_count - 1], ops + begin, end - begin)) {
            groups[group_count - 1].last_layer = layer;
        } else {
            groups[group_count++] = (ap_plan_layers_t){.first_layer = layer,
                                                       .last_layer = layer,
                                                       .op_count = end - begin,
                                                       .ops = ops + begin};
        }
        begin = end;
    }
    return group_count;
}

static xm_status_t build_ops(const ap_graph_t *graph, const ap_stage_solution_t *solution,
                             stage_parts_t *parts, ap_plan_stage_t *stage)
{
    int count = ap_stage_solution_choices(solution);

    parts->texts = calloc((size_t)count + 1, sizeof(*parts->texts));
    parts->ops = calloc((size_t)count + 1, sizeof(*parts->ops));
    parts->layers = calloc((size_t)count + 1, sizeof(*parts->layers));
    if (parts->texts == NULL || parts->ops == NULL || parts->layers == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for the %d operators of a stage",
                            count);
    }
    for (int i = 0; i < count; ++i) {
        const ap_stage_choice_t *choice = ap_stage_solution_choice(solution, i);
        const ap_op_t *op = ap_graph_op(graph, choice->op);

        list_specs(graph, op->operands, choice->operands, op->operand_count,
                   parts->texts[i].operands);
        list_specs(graph, op->results, choice->results, op->result_count, parts->texts[i].results);
        parts->ops[i] = (ap_plan_op_t){.name = op->name,
                                       .rule = choice->rule,
                                       .operands = parts->texts[i].operands,
                                       .results = parts->texts[i].results};
    }
    stage->layer_count = group_layers(graph, solution, parts->ops, parts->layers);
    stage->layers = parts->layers;
    return XM_OK;
}

static xm_status_t build_stage(const ap_plan_recipe_t *recipe, int index, stage_parts_t *parts,
                               ap_plan_stage_t *stage)
{
    const ap_plan_part_t *part = &recipe->parts[index];
    const ap_stage_query_t *query = &part->query;
    const ap_stage_cost_t *cost = ap_stage_solution_cost(part->solution);
    int left = recipe->part_count - index, devices = query->hosts * query->devices;

    parts->devices = malloc((size_t)devices * sizeof(*parts->devices));
    if (parts->devices == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d devices", devices);
    }
    for (int i = 0; i < devices; ++i) {
        parts->devices[i] = part->first_device + i;
    }
    *stage =
        (ap_plan_stage_t){.first_layer = query->first,
                          .last_layer = query->last,
                          .hosts = query->hosts,
                          .devices_per_host = query->devices,
                          .shape = {query->shape[0], query->shape[1]},
                          .devices = parts->devices,
                          .forward = cost->forward,
                          .backward = cost->backward,
                          .sync = cost->sync,
                          .update = cost->update,
                          .state_bytes = cost->mem_stage,
                          .activation_bytes = cost->mem_act,
                          .work_bytes = cost->mem_work,
                          .recompute = cost->recompute,
                          .in_flight = left < recipe->micro_batches ? left : recipe->micro_batches};
    return build_ops(recipe->graph, part->solution, parts, stage);
}

static xm_status_t build_boundary(const ap_plan_recipe_t *recipe, int index,
                                  const ap_plan_stage_t *stages, boundary_parts_t *parts,
                                  ap_plan_boundary_t *boundary)
{
    const ap_plan_stage_t *from = &stages[index], *to = &stages[index + 1];
    const ap_tensor_t *tensor =
        ap_graph_tensor(recipe->graph, ap_graph_boundary(recipe->graph, from->last_layer));
    const ap_cross_mesh_tensor_t passing = {
        .shape = tensor->shape,
        .element_size = ap_dtype_bytes(tensor->dtype),
        .src = ap_stage_solution_cost(recipe->parts[index].solution)->output,
        .dst = ap_stage_solution_cost(recipe->parts[index + 1].solution)->input};
    const ap_cross_mesh_transfer_t transfer = {
        .src = {from->devices[0], {from->shape[0], from->shape[1]}},
        .dst = {to->devices[0], {to->shape[0], to->shape[1]}},
        .tensors = &passing,
        .count = 1};
    int devices = from->shape[0] * from->shape[1], dst_devices = to->shape[0] * to->shape[1];
    ap_cross_mesh_cost_t cost;
    xm_status_t status = ap_cross_mesh_cost(recipe->cross_mesh, &transfer, &cost);

    if (status == XM_OK) {
        status =
            ap_cross_mesh_loads(recipe->cross_mesh, &transfer, &parts->links, &parts->link_count);
    }
    if (status != XM_OK) {
        return status;
    }
    (void)ap_spec_format(passing.src, tensor->shape.rank, parts->src_spec, sizeof(parts->src_spec));
    (void)ap_spec_format(passing.dst, tensor->shape.rank, parts->dst_spec, sizeof(parts->dst_spec));
    *boundary = (ap_plan_boundary_t){
        .tensor = tensor->name,
        .rank = tensor->shape.rank,
        .dtype = ap_dtype_name(tensor->dtype),
        .element_size = ap_dtype_bytes(tensor->dtype),
        .src = {{from->shape[0], from->shape[1]}, devices, from->devices, parts->src_spec},
        .dst = {{to->shape[0], to->shape[1]}, dst_devices, to->devices, parts->dst_spec},
        .bytes = ap_dtype_bytes(tensor->dtype),
        .net_bytes = cost.net_bytes,
        .forward = cost.forward,
        .backward = cost.backward,
        .bound = cost.bound,
        .strategy = ap_cross_mesh_strategy(),
        .scheduler = ap_cross_mesh_scheduler(),
        .links = parts->links,
        .link_count = parts->link_count};
    for (int d = 0; d < tensor->shape.rank; ++d) {
        boundary->shape[d] = tensor->shape.dims[d];
        boundary->bytes *= tensor->shape.dims[d];
    }
    return XM_OK;
}

/* Adds up what stages and boundaries take. What a step takes is for the simulation to say
 * (planner/plan/schedule.h). */
static void add_up(const ap_plan_recipe_t *recipe, const ap_plan_boundary_t *boundaries,
                   ap_plan_info_t *info)
{
    info->sum = 0.0;
    info->bottleneck = 0.0;
    for (int i = 0; i < recipe->part_count; ++i) {
        double stage = ap_stage_objective(ap_stage_solution_cost(recipe->parts[i].solution),
                                          recipe->micro_batches);
        double transfer = i > 0 ? boundaries[i - 1].forward + boundaries[i - 1].backward : 0.0;

        info->sum += stage + transfer;
        info->bottleneck = fmax(info->bottleneck, fmax(stage, transfer));
    }
    info->step = 0.0;
}

static xm_status_t create_plan(const ap_plan_recipe_t *recipe, const ap_plan_info_t *info,
                               const ap_plan_stage_t *stages, const ap_plan_boundary_t *boundaries,
                               ap_plan_t **plan)
{
    ap_plan_params_t parts = AP_PLAN_PARAMS_INIT;

    parts.info = *info;
    parts.info.layers = ap_graph_layers(recipe->graph);
    parts.info.parameters = ap_graph_parameters(recipe->graph);
    parts.info.micro_batches = recipe->micro_batches;
    parts.info.schedule = "1f1b";
    parts.info.hosts = recipe->hosts;
    parts.info.devices_per_host = recipe->devices_per_host;
    parts.info.memory_limit = recipe->memory_limit;
    parts.info.optimiser = recipe->optimiser;
    add_up(recipe, boundaries, &parts.info);
    parts.stages = stages;
    parts.stage_count = recipe->part_count;
    parts.boundaries = boundaries;
    return ap_plan_create(&parts, plan);
}

xm_status_t ap_plan_assemble(const ap_plan_recipe_t *recipe, const ap_plan_info_t *info,
                             ap_plan_t **plan)
{
    size_t count = (size_t)recipe->part_count;
    ap_plan_stage_t *stages = calloc(count, sizeof(*stages));
    ap_plan_boundary_t *boundaries = calloc(count, sizeof(*boundaries));
    stage_parts_t *stage_parts = calloc(count, sizeof(*stage_parts));
    boundary_parts_t *boundary_parts = calloc(count, sizeof(*boundary_parts));
    xm_status_t status = XM_OK;

    if (stages == NULL || boundaries == NULL || stage_parts == NULL || boundary_parts == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "out of memory for a plan of %zu stages", count);
        goto free_arrays;
    }
    for (int i = 0; i < recipe->part_count && status == XM_OK; ++i) {
        status = build_stage(recipe, i, &stage_parts[i], &stages[i]);
    }
    for (int i = 0; i + 1 < recipe->part_count && status == XM_OK; ++i) {
        status = build_boundary(recipe, i, stages, &boundary_parts[i], &boundaries[i]);
    }
    if (status == XM_OK) {
        status = create_plan(recipe, info, stages, boundaries, plan);
    }
    for (size_t i = 0; i < count; ++i) {
        free(boundary_parts[i].links);
        free(stage_parts[i].texts);
        free(stage_parts[i].ops);
        free(stage_parts[i].layers);
        free(stage_parts[i].devices);
    }

free_arrays:
    free(boundary_parts);
    free(stage_parts);
    free(boundaries);
    free(stages);
    return status;
}

/* A run without a limit of its own is limited by the device with the most memory; the others'
 * limits are those of their classes. */
xm_status_t ap_plan_build(ap_stage_table_t *table, const ap_inter_op_result_t *result,
                          const ap_plan_info_t *info, ap_plan_t **plan)
{
    const ap_stage_table_params_t *params = ap_stage_table_params(table);
    ap_plan_recipe_t recipe = {.graph = params->graph,
                               .cross_mesh = params->cross_mesh,
                               .hosts = params->hosts,
                               .devices_per_host = params->devices_per_host,
                               .micro_batches = params->micro_batches,
                               .memory_limit = params->memory_limit,
                               .part_count = result->stage_count};
    ap_plan_part_t *parts = calloc((size_t)result->stage_count, sizeof(*parts));
    char optimiser[160];
    xm_status_t status = XM_OK;

    if (parts == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for a plan of %d stages",
                            result->stage_count);
    }
    (void)snprintf(optimiser, sizeof(optimiser),
                   "stage slicing, exact over %lld intra-operator plans (%lld points of the front)",
                   (long long)ap_stage_table_evaluated(table), (long long)result->limits_tried);
    recipe.optimiser = optimiser;
    recipe.parts = parts;
    for (int c = 0; params->memory_limit <= 0.0 && c < params->classes->count; ++c) {
        recipe.memory_limit =
            fmax(recipe.memory_limit, params->classes->classes[c].device.memory_bytes);
    }
    for (int i = 0; i < result->stage_count && status == XM_OK; ++i) {
        int first_host = result->stages[i].first_device / params->devices_per_host;
        ap_stage_config_t config;

        ap_stage_table_config(table, &result->stages[i], &config);
        ap_stage_table_query(table, &result->stages[i], &parts[i].query);
        parts[i].first_device = result->stages[i].first_device;
        /* The same question that the search priced, so the answer costs the same. */
        status = ap_stage_solve(
            ap_stage_table_context(table, first_host, parts[i].query.hosts, config.recompute),
            &parts[i].query, &parts[i].solution);
    }
    if (status == XM_OK) {
        status = ap_plan_assemble(&recipe, info, plan);
    }
    for (int i = 0; i < result->stage_count; ++i) {
        ap_stage_solution_destroy(parts[i].solution);
    }
    free(parts);
    return status;
}
