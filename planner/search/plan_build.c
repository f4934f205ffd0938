/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a plan of stages that a search has found. The search works with prices only; here each
 * stage is solved once more for what its operators do, boundaries are planned for their bytes and
 * links, and layers that are sharded alike are written once.
 *
 * Everything that the plan's structures point at lives in an arena until the plan has copied it
 * into its document.
 */

#include "planner/search/plan_build.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/search/tied_weights.h"

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

/* Specs of tensors of these ranks as a text in the arena; NULL without memory. */
static const char *list_specs(xm_arena_t *arena, const ap_spec_t *specs, const int *ranks,
                              int count)
{
    size_t room = (size_t)count * (AP_SPEC_TEXT + 1) + 1;
    char *text = xm_arena_take(arena, room);

    if (text != NULL) {
        ap_spec_list(specs, ranks, count, text, room);
    }
    return text;
}

static xm_status_t build_ops(const ap_graph_t *graph, const ap_stage_solution_t *solution,
                             xm_arena_t *arena, ap_plan_stage_t *stage)
{
    int count = ap_stage_solution_choices(solution);
    ap_plan_op_t *ops = xm_arena_get(arena, (size_t)count, sizeof(*ops));
    ap_plan_layers_t *layers = xm_arena_get(arena, (size_t)count, sizeof(*layers));

    for (int i = 0; i < count && !arena->failed; ++i) {
        const ap_stage_choice_t *choice = ap_stage_solution_choice(solution, i);
        const ap_op_t *op = ap_graph_op(graph, choice->op);

        ops[i] = (ap_plan_op_t){
            .name = op->name,
            .rule = choice->rule,
            .operands = list_specs(arena, choice->specs, op->rule.rank, op->operand_count),
            .results = list_specs(arena, choice->specs + op->operand_count,
                                  op->rule.rank + op->operand_count, op->result_count),
            .sums = choice->sums};
    }
    XM_NEED_MEMORY(!arena->failed, "the %d operators of a stage", count);
    stage->layer_count = group_layers(graph, solution, ops, layers);
    stage->layers = layers;
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

        for (int t = 0; t < op->operand_count + op->result_count; ++t) {
            axes |= ap_spec_used_axes(choice->specs[t]);
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

static xm_status_t build_stage(const ap_plan_recipe_t *recipe, int index, xm_arena_t *arena,
                               ap_plan_stage_t *stage)
{
    const ap_plan_part_t *part = &recipe->parts[index];
    const ap_stage_query_t *query = &part->query;
    const ap_stage_cost_t *cost = ap_stage_solution_cost(part->solution);
    int left = recipe->part_count - index, count = query->hosts * query->devices;
    int *devices = xm_arena_take(arena, (size_t)count * sizeof(*devices));

    for (int i = 0; i < count && devices != NULL; ++i) {
        devices[i] = part->first_device + i;
    }
    *stage =
        (ap_plan_stage_t){.first_layer = query->first,
                          .last_layer = query->last,
                          .hosts = query->hosts,
                          .devices_per_host = query->devices,
                          .shape = {query->shape[0], query->shape[1]},
                          .devices = devices,
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
    return build_ops(recipe->graph, part->solution, arena, stage);
}

static ap_passing_stage_t passing_stage(const ap_plan_part_t *part)
{
    const ap_stage_cost_t *cost = ap_stage_solution_cost(part->solution);

    return (ap_passing_stage_t){part->query.first,
                                part->query.last,
                                {part->first_device, {part->query.shape[0], part->query.shape[1]}},
                                cost->input,
                                cost->output,
                                cost->batch_axes};
}

static const char *spec_text(xm_arena_t *arena, ap_spec_t spec, int rank)
{
    char *text = xm_arena_take(arena, AP_SPEC_TEXT);

    return text != NULL ? ap_spec_format(spec, rank, text, AP_SPEC_TEXT) : NULL;
}

static ap_plan_tensor_t describe(const ap_passing_t *passing, int index, xm_arena_t *arena)
{
    const ap_tensor_t *tensor = ap_graph_tensor(passing->graph, passing->ids[index]);
    const ap_cross_mesh_tensor_t *moved = &passing->tensors[index];
    ap_plan_tensor_t made = {.tensor = tensor->name,
                             .rank = tensor->shape.rank,
                             .dtype = ap_dtype_name(tensor->dtype),
                             .element_size = ap_dtype_bytes(tensor->dtype),
                             .bytes = ap_dtype_bytes(tensor->dtype),
                             .src = spec_text(arena, moved->src, tensor->shape.rank),
                             .dst = spec_text(arena, moved->dst, tensor->shape.rank)};

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

/* Plans the resharding of all tensors from a stage to a later one; a boundary without a tensor is
 * none. */
static xm_status_t build_boundary(const ap_plan_recipe_t *recipe, int from, int to,
                                  const ap_plan_stage_t *stages, ap_passing_t *passing,
                                  xm_arena_t *arena, ap_plan_boundary_t *boundary)
{
    const ap_passing_stage_t source = passing_stage(&recipe->parts[from]);
    const ap_passing_stage_t target = passing_stage(&recipe->parts[to]);
    const ap_plan_stage_t *src = &stages[from], *dst = &stages[to];
    const ap_link_load_t *links;
    ap_cross_mesh_cost_t cost;
    ap_plan_tensor_t *tensors;
    int count, link_count;

    ap_passing_between(passing, &source, &target, to == from + 1);
    count = passing->transfer.count;
    if (count == 0) {
        return XM_OK;
    }
    XM_TRY(ap_cross_mesh_cost(recipe->cross_mesh, &passing->transfer, &cost));
    XM_TRY(ap_cross_mesh_loads(recipe->cross_mesh, &passing->transfer, arena, &links, &link_count));
    tensors = xm_arena_take(arena, (size_t)count * sizeof(*tensors));
    for (int i = 0; i < count && !arena->failed; ++i) {
        tensors[i] = describe(passing, i, arena);
    }
    XM_NEED_MEMORY(!arena->failed, "%d tensors", count);
    *boundary = (ap_plan_boundary_t){.from = from,
                                     .to = to,
                                     .tensor = tensors->tensor,
                                     .rank = tensors->rank,
                                     .dtype = tensors->dtype,
                                     .element_size = tensors->element_size,
                                     .src = side_of(src, tensors->src),
                                     .dst = side_of(dst, tensors->dst),
                                     .bytes = tensors->bytes,
                                     .more = tensors + 1,
                                     .more_count = count - 1,
                                     .net_bytes = cost.net_bytes,
                                     .forward = cost.forward,
                                     .backward = cost.backward,
                                     .bound = cost.bound,
                                     .strategy = ap_cross_mesh_strategy(),
                                     .scheduler = ap_cross_mesh_scheduler(),
                                     .links = links,
                                     .link_count = link_count};
    memcpy(boundary->shape, tensors->shape, sizeof(tensors->shape));
    return XM_OK;
}

/* Neighbours first, then what passes over stages; there is room for every pair. */
static xm_status_t build_boundaries(const ap_plan_recipe_t *recipe, const ap_plan_stage_t *stages,
                                    xm_arena_t *arena, ap_plan_boundary_t *boundaries, int *skips)
{
    int count = recipe->part_count, next = count - 1;
    ap_passing_t passing;
    xm_status_t status = ap_passing_open(recipe->graph, arena, &passing);

    for (int i = 0; i + 1 < count && status == XM_OK; ++i) {
        status = build_boundary(recipe, i, i + 1, stages, &passing, arena, &boundaries[i]);
    }
    for (int from = 0; from < count; ++from) {
        for (int to = from + 2; to < count && status == XM_OK; ++to) {
            status = build_boundary(recipe, from, to, stages, &passing, arena, &boundaries[next]);
            next += boundaries[next].tensor != NULL;
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
    parts.info.send = ap_cross_mesh_runtime(recipe->cross_mesh)->send;
    parts.info.split = ap_cross_mesh_runtime(recipe->cross_mesh)->split;
    parts.info.weight = ap_cross_mesh_runtime(recipe->cross_mesh)->weight;
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
    xm_arena_t arena = {0};
    ap_plan_stage_t *stages = xm_arena_get(&arena, count, sizeof(*stages));
    ap_plan_boundary_t *boundaries = xm_arena_get(&arena, pairs, sizeof(*boundaries));
    xm_status_t status = XM_OK;
    int skips = 0;

    if (arena.failed) {
        status = XM_NO_MEMORY("a plan of %zu stages", count);
    }
    for (int i = 0; i < recipe->part_count && status == XM_OK; ++i) {
        status = build_stage(recipe, i, &arena, &stages[i]);
    }
    XM_THEN(status, ap_tied_weights_add(recipe, stages));
    XM_THEN(status, build_boundaries(recipe, stages, &arena, boundaries, &skips));
    XM_THEN(status, create_plan(recipe, info, stages, boundaries, skips, plan));
    xm_arena_clear(&arena);
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

    XM_NEED_MEMORY(parts, "a plan of %d stages", result->stage_count);
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
    XM_THEN(status, ap_plan_assemble(&recipe, info, plan));
    for (int i = 0; i < result->stage_count; ++i) {
        ap_stage_solution_destroy(parts[i].solution);
    }
    free(parts);
    return status;
}
