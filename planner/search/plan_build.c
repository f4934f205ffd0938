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

#include "planner/search/tied_weights.h"

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

/* How both sides cut a tensor that passes a boundary. */
typedef struct cut_text {
    char src[AP_SPEC_TEXT], dst[AP_SPEC_TEXT];
} cut_text_t;

typedef struct boundary_parts {
    ap_passing_t passing;
    cut_text_t *texts;      /* of its tensors */
    ap_plan_tensor_t *more; /* its tensors without the first */
    ap_link_load_t *links;
    int link_count;
} boundary_parts_t;

static bool ops_alike(const ap_plan_op_t *a, const ap_plan_op_t *b)
{
    return strcmp(a->rule, b->rule) == 0 && strcmp(a->operands, b->operands) == 0 &&
           strcmp(a->sums, b->sums) == 0 && strcmp(a->results, b->results) == 0;
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

        ap_spec_list(choice->operands, op->rule.rank, op->operand_count, parts->texts[i].operands,
                     SPEC_LIST_TEXT);
        ap_spec_list(choice->results, op->rule.rank + op->operand_count, op->result_count,
                     parts->texts[i].results, SPEC_LIST_TEXT);
        parts->ops[i] = (ap_plan_op_t){.name = op->name,
                                       .rule = choice->rule,
                                       .operands = parts->texts[i].operands,
                                       .results = parts->texts[i].results,
                                       .sums = choice->sums};
    }
    stage->layer_count = group_layers(graph, solution, parts->ops, parts->layers);
    stage->layers = parts->layers;
    return XM_OK;
}

/* The share of a device's FLOPs that the devices of an axis all perform alike: of operators that
 * the axis does not cut, whose backward operators are cut as they are. */
static void find_repeated(const ap_graph_t *graph, const ap_stage_solution_t *solution,
                          ap_plan_stage_t *stage)
{
    double all = 0, alike[2] = {0};

    for (int i = 0; i < ap_stage_solution_choices(solution); ++i) {
        const ap_stage_choice_t *choice = ap_stage_solution_choice(solution, i);
        const ap_op_t *op = ap_graph_op(graph, choice->op);
        double flops = op->flops;
        unsigned axes = 0;

        for (int o = 0; o < op->operand_count; ++o) {
            axes |= ap_spec_used_axes(choice->operands[o]);
        }
        for (int r = 0; r < op->result_count; ++r) {
            axes |= ap_spec_used_axes(choice->results[r]);
        }
        for (int a = 0; a < 2; ++a) {
            flops /= (axes >> a & 1U) != 0 ? stage->shape[a] : 1;
        }
        all += flops;
        for (int a = 0; a < 2; ++a) {
            alike[a] += (axes >> a & 1U) != 0 || stage->shape[a] == 1 ? 0 : flops;
        }
    }
    for (int a = 0; a < 2 && all > 0; ++a) {
        stage->repeated[a] = alike[a] / all;
    }
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
    find_repeated(recipe->graph, part->solution, stage);
    return build_ops(recipe->graph, part->solution, parts, stage);
}

static ap_passing_stage_t passing_stage(const ap_plan_part_t *part)
{
    const ap_stage_cost_t *cost = ap_stage_solution_cost(part->solution);

    return (ap_passing_stage_t){
        part->query.first,
        part->query.last,
        {part->first_device, {part->query.shape[0], part->query.shape[1]}},
        cost->input,
        cost->output};
}

/* Lists what passes from a stage to a later one, with its texts. */
static xm_status_t list_passing(const ap_plan_recipe_t *recipe, int from, int to,
                                boundary_parts_t *parts)
{
    const ap_passing_stage_t src = passing_stage(&recipe->parts[from]);
    const ap_passing_stage_t dst = passing_stage(&recipe->parts[to]);
    xm_status_t status = ap_passing_open(recipe->graph, &parts->passing);
    size_t count;

    if (status != XM_OK) {
        return status;
    }
    ap_passing_between(&parts->passing, &src, &dst, to == from + 1);
    count = (size_t)parts->passing.transfer.count;
    parts->texts = calloc(count + 1, sizeof(*parts->texts));
    parts->more = calloc(count + 1, sizeof(*parts->more));
    if (parts->texts == NULL || parts->more == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %zu tensors", count);
    }
    for (size_t i = 0; i < count; ++i) {
        const ap_cross_mesh_tensor_t *tensor = &parts->passing.tensors[i];

        (void)ap_spec_format(tensor->src, tensor->shape.rank, parts->texts[i].src, AP_SPEC_TEXT);
        (void)ap_spec_format(tensor->dst, tensor->shape.rank, parts->texts[i].dst, AP_SPEC_TEXT);
    }
    return XM_OK;
}

static ap_plan_tensor_t describe(const boundary_parts_t *parts, int index)
{
    const ap_tensor_t *tensor =
        ap_graph_tensor(parts->passing.graph, parts->passing.ids[index]);
    ap_plan_tensor_t made = {.tensor = tensor->name,
                             .rank = tensor->shape.rank,
                             .dtype = ap_dtype_name(tensor->dtype),
                             .element_size = ap_dtype_bytes(tensor->dtype),
                             .bytes = ap_dtype_bytes(tensor->dtype),
                             .src = parts->texts[index].src,
                             .dst = parts->texts[index].dst};

    for (int d = 0; d < tensor->shape.rank; ++d) {
        made.shape[d] = tensor->shape.dims[d];
        made.bytes *= tensor->shape.dims[d];
    }
    return made;
}

static ap_plan_side_t side_of(const ap_plan_stage_t *stage, const char *spec)
{
    return (ap_plan_side_t){{stage->shape[0], stage->shape[1]},
                            stage->shape[0] * stage->shape[1],
                            stage->devices,
                            spec};
}

/* Plans the resharding of all tensors from a stage to a later one, if there are any. */
static xm_status_t build_boundary(const ap_plan_recipe_t *recipe, int from, int to,
                                  const ap_plan_stage_t *stages, boundary_parts_t *parts,
                                  ap_plan_boundary_t *boundary)
{
    const ap_plan_stage_t *src = &stages[from], *dst = &stages[to];
    const ap_cross_mesh_transfer_t *transfer = &parts->passing.transfer;
    ap_cross_mesh_cost_t cost;
    ap_plan_tensor_t first;
    xm_status_t status = list_passing(recipe, from, to, parts);

    if (status != XM_OK || transfer->count == 0) {
        return status;
    }
    status = ap_cross_mesh_cost(recipe->cross_mesh, transfer, &cost);
    if (status == XM_OK) {
        status =
            ap_cross_mesh_loads(recipe->cross_mesh, transfer, &parts->links, &parts->link_count);
    }
    if (status != XM_OK) {
        return status;
    }
    first = describe(parts, 0);
    for (int i = 1; i < transfer->count; ++i) {
        parts->more[i - 1] = describe(parts, i);
    }
    *boundary = (ap_plan_boundary_t){.from = from,
                                     .to = to,
                                     .tensor = first.tensor,
                                     .rank = first.rank,
                                     .dtype = first.dtype,
                                     .element_size = first.element_size,
                                     .src = side_of(src, first.src),
                                     .dst = side_of(dst, first.dst),
                                     .bytes = first.bytes,
                                     .more = parts->more,
                                     .more_count = transfer->count - 1,
                                     .net_bytes = cost.net_bytes,
                                     .forward = cost.forward,
                                     .backward = cost.backward,
                                     .bound = cost.bound,
                                     .strategy = ap_cross_mesh_strategy(),
                                     .scheduler = ap_cross_mesh_scheduler(),
                                     .links = parts->links,
                                     .link_count = parts->link_count};
    memcpy(boundary->shape, first.shape, sizeof(first.shape));
    return XM_OK;
}

static void free_boundary(boundary_parts_t *parts)
{
    ap_passing_close(&parts->passing);
    free(parts->texts);
    free(parts->more);
    free(parts->links);
}

/* Neighbours first, then what passes over stages; there is room for every pair. */
static xm_status_t build_boundaries(const ap_plan_recipe_t *recipe, const ap_plan_stage_t *stages,
                                    boundary_parts_t *parts, ap_plan_boundary_t *boundaries,
                                    int *skips)
{
    int count = recipe->part_count, next = count - 1;
    xm_status_t status = XM_OK;

    for (int i = 0; i + 1 < count && status == XM_OK; ++i) {
        status = build_boundary(recipe, i, i + 1, stages, &parts[i], &boundaries[i]);
    }
    for (int from = 0; from < count; ++from) {
        for (int to = from + 2; to < count && status == XM_OK; ++to) {
            status = build_boundary(recipe, from, to, stages, &parts[next], &boundaries[next]);
            if (parts[next].passing.transfer.count > 0) {
                ++next;
            } else {
                free_boundary(&parts[next]);
                parts[next] = (boundary_parts_t){0};
            }
        }
    }
    *skips = next - (count - 1);
    return status;
}

/* Adds up what stages and boundaries take. What a step takes is for the simulation to say
 * (planner/plan/schedule.h). */
static void add_up(const ap_plan_recipe_t *recipe, const ap_plan_stage_t *stages,
                   const ap_plan_boundary_t *boundaries, ap_plan_info_t *info)
{
    info->sum = 0.0;
    info->bottleneck = 0.0;
    for (int i = 0; i < recipe->part_count; ++i) {
        double stage = stages[i].forward + stages[i].backward +
                       (stages[i].sync + stages[i].update) / recipe->micro_batches;
        double transfer = i > 0 ? boundaries[i - 1].forward + boundaries[i - 1].backward : 0.0;

        info->sum += stage + transfer;
        info->bottleneck = fmax(info->bottleneck, fmax(stage, transfer));
    }
    info->step = 0.0;
}

static xm_status_t create_plan(const ap_plan_recipe_t *recipe, const ap_plan_info_t *info,
                               const ap_plan_stage_t *stages, const ap_plan_boundary_t *boundaries,
                               int skips, ap_plan_t **plan)
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
    add_up(recipe, stages, boundaries, &parts.info);
    parts.stages = stages;
    parts.stage_count = recipe->part_count;
    parts.boundaries = boundaries;
    parts.skip_count = skips;
    return ap_plan_create(&parts, plan);
}

xm_status_t ap_plan_assemble(const ap_plan_recipe_t *recipe, const ap_plan_info_t *info,
                             ap_plan_t **plan)
{
    size_t count = (size_t)recipe->part_count, pairs = count * (count + 1) / 2;
    ap_plan_stage_t *stages = calloc(count, sizeof(*stages));
    ap_plan_boundary_t *boundaries = calloc(pairs, sizeof(*boundaries));
    stage_parts_t *stage_parts = calloc(count, sizeof(*stage_parts));
    boundary_parts_t *boundary_parts = calloc(pairs, sizeof(*boundary_parts));
    xm_status_t status = XM_OK;
    int skips = 0;

    if (stages == NULL || boundaries == NULL || stage_parts == NULL || boundary_parts == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "out of memory for a plan of %zu stages", count);
        goto free_arrays;
    }
    for (int i = 0; i < recipe->part_count && status == XM_OK; ++i) {
        status = build_stage(recipe, i, &stage_parts[i], &stages[i]);
    }
    if (status == XM_OK) {
        status = ap_tied_weights_add(recipe, stages);
    }
    if (status == XM_OK) {
        status = build_boundaries(recipe, stages, boundary_parts, boundaries, &skips);
    }
    if (status == XM_OK) {
        status = create_plan(recipe, info, stages, boundaries, skips, plan);
    }
    for (size_t i = 0; i < pairs; ++i) {
        free_boundary(&boundary_parts[i]);
    }
    for (size_t i = 0; i < count; ++i) {
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
