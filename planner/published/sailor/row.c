/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan of the artifact at our prices. Times of layers are the artifact's; what passes between
 * stages and what synchronises gradients is priced by planner/boundary and planner/cost on the
 * cluster profile, as for any plan.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/published/sailor/sailor_private.h"

/* Weights, gradients and Adam's two moments, all of the type of the weights. */
static const double states = 4;

static xm_status_t read_layers(const char *path, json_t *stages, ap_sailor_row_t *row)
{
    int next = 0;

    for (int s = 0; s < row->stages; ++s) {
        json_t *layers = json_array_get(stages, (size_t)s);

        row->first[s] = next;
        for (size_t i = 0; i < json_array_size(layers); ++i, ++next) {
            if (json_integer_value(json_array_get(layers, i)) != next) {
                return XM_MALFORMED("%s: layers_per_stage[%d][%zu] is not layer %d", path, s, i,
                                    next);
            }
        }
        row->last[s] = next - 1;
        if (row->last[s] < row->first[s]) {
            return XM_MALFORMED("%s: layers_per_stage[%d] is empty", path, s);
        }
    }
    return XM_OK;
}

/* Each replica is [[[GPU, count, zone]], tensor parallelism]; all must be alike. */
static xm_status_t read_replicas(const char *path, json_t *stages, ap_sailor_row_t *row)
{
    for (int s = 0; s < row->stages; ++s) {
        json_t *replicas = json_array_get(stages, (size_t)s);

        row->replicas = s == 0 ? (int)json_array_size(replicas) : row->replicas;
        for (int r = 0; r < row->replicas; ++r) {
            const char *gpu, *zone;
            int count, degree;

            if (json_unpack(json_array_get(replicas, (size_t)r), "[[[s,i,s!]!],i!]", &gpu, &count,
                            &zone, &degree) != 0 ||
                (row->degree != 0 && degree != row->degree) || degree < 1 || count != degree ||
                (row->gpu != NULL && strcmp(gpu, row->gpu) != 0)) {
                return XM_UNSUPPORTED("%s: tmp_per_stage[%d][%d]: replicas of one kind of GPU and "
                                      "one tensor parallelism are read",
                                      path, s, r);
            }
            row->gpu = gpu;
            row->degree = degree;
        }
        if (row->replicas < 1 || (int)json_array_size(replicas) != row->replicas) {
            return XM_UNSUPPORTED("%s: tmp_per_stage[%d] has %zu replicas, not %d", path, s,
                                  json_array_size(replicas), row->replicas);
        }
    }
    return XM_OK;
}

xm_status_t ap_sailor_row_read(const char *path, const json_t *document, ap_sailor_row_t *row)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    json_t *layers, *replicas;
    json_error_t error;

    *row = (ap_sailor_row_t){.sync = 0};
    (void)snprintf(row->name, sizeof(row->name), "%.*s", (int)strcspn(name, "."), name);
    if (json_unpack_ex((json_t *)document, &error, 0, "{s:[{s:i,s:o,s:o}],s:i,s:i,s:F,s?F,s:F}",
                       "pipeline_list", "num_stages", &row->stages, "layers_per_stage", &layers,
                       "tmp_per_stage", &replicas, "mbs", &row->samples, "gbs", &row->batch, "real",
                       &row->step, "red_grads", &row->sync, "max_mem", &row->memory) != 0) {
        return XM_MALFORMED("%s: %s", path, error.text);
    }
    if (row->stages < 1 || row->stages > AP_SAILOR_STAGES) {
        return XM_MALFORMED("%s: num_stages is %d; it must be 1 to %d", path, row->stages,
                            AP_SAILOR_STAGES);
    }
    XM_TRY(read_layers(path, layers, row));
    XM_TRY(read_replicas(path, replicas, row));
    if (row->samples < 1 || row->batch < 1 || !(row->step > 0) ||
        row->batch % (row->samples * row->replicas) != 0) {
        return XM_MALFORMED("%s: a step of %g s, and %d samples of %d replicas of %d", path,
                            row->step, row->batch, row->replicas, row->samples);
    }
    return XM_OK;
}

/* A number of one layer of the model. */
static double number_of(const ap_sailor_t *sailor, int degree, int layer, const char *key)
{
    char text[2][16];

    (void)snprintf(text[0], sizeof(text[0]), "%d", degree);
    (void)snprintf(text[1], sizeof(text[1]), "%d", layer);
    return json_number_value(
        json_object_get(json_object_get(json_object_get(sailor->layers, text[0]), text[1]), key));
}

enum { FORWARD, BACKWARD, UPDATE };

/*
 * Seconds of a layer. Fewer samples, or the same in more parts, never take longer: where a profile
 * has it otherwise, its clock saw something else, as the first calls of a library, and the least of
 * what does at least as much counts. INFINITY: the profile has none.
 */
static double layer_seconds(const ap_sailor_t *sailor, const ap_sailor_row_t *row, int layer,
                            size_t what)
{
    double least = INFINITY;
    const char *samples, *degree;
    json_t *degrees, *layers;
    char text[16];

    (void)snprintf(text, sizeof(text), "%d", layer);
    json_object_foreach(sailor->profile, samples, degrees)
    {
        json_object_foreach(degrees, degree, layers)
        {
            json_t *value = json_array_get(json_object_get(layers, text), what);

            if (json_is_number(value) && strtol(samples, NULL, 10) >= row->samples &&
                strtol(degree, NULL, 10) <= row->degree) {
                least = fmin(least, json_number_value(value));
            }
        }
    }
    return least;
}

/* The update's number is the same for all layers, large and small: that of a whole GPU, which
 * counts once, as Sailor's own simulator has it. */
static xm_status_t price_layers(const ap_sailor_t *sailor, const ap_sailor_row_t *row, int stage,
                                ap_plan_stage_t *of)
{
    for (int layer = row->first[stage]; layer <= row->last[stage]; ++layer) {
        double kept = row->samples * number_of(sailor, row->degree, layer, "act_mem_bytes");

        of->forward += layer_seconds(sailor, row, layer, FORWARD);
        of->backward += layer_seconds(sailor, row, layer, BACKWARD);
        of->update = fmax(of->update, layer_seconds(sailor, row, layer, UPDATE));
        of->state_bytes += states * number_of(sailor, row->degree, layer, "params_bytes");
        of->activation_bytes += kept;
        /* While a layer's backward pass runs, what it kept has gradients beside it. */
        of->work_bytes = fmax(of->work_bytes, kept);
        if (!(of->state_bytes > 0) || isinf(of->forward + of->backward + of->update)) {
            return XM_MALFORMED("%s: layer %d with %d samples in %d parts is neither in the model "
                                "nor, for as many samples or more, in the profile",
                                row->name, layer, row->samples, row->degree);
        }
    }
    return XM_OK;
}

/* Stages take consecutive GPUs, replica after replica. */
static xm_status_t price_stage(const ap_sailor_t *sailor, const ap_sailor_row_t *row, int stage,
                               xm_arena_t *arena, ap_plan_stage_t *of)
{
    int count = row->replicas * row->degree, *devices;
    int hosts = (count + sailor->per_host - 1) / sailor->per_host;
    ap_cost_mesh_t *mesh;

    *of = (ap_plan_stage_t){.first_layer = row->first[stage],
                            .last_layer = row->last[stage],
                            .hosts = hosts,
                            .devices_per_host = count / hosts,
                            .shape = {row->replicas, row->degree},
                            .in_flight = 1};
    if (count % hosts != 0 || (hosts > 1 && count % sailor->per_host != 0)) {
        return XM_UNSUPPORTED("%s: %d GPUs of a stage on hosts of %d", row->name, count,
                              sailor->per_host);
    }
    devices = xm_arena_get(arena, (size_t)count, sizeof(*devices));
    XM_NEED_MEMORY(devices, "%d GPUs", count);
    for (int i = 0; i < count; ++i) {
        devices[i] = stage * count + i;
    }
    of->devices = devices;
    XM_TRY(price_layers(sailor, row, stage, of));
    XM_TRY(ap_cost_mesh_create(sailor->cost, hosts, of->devices_per_host, of->shape, 2, &mesh));
    of->sync = ap_cost_collective(mesh, AP_ALL_REDUCE, 0, of->state_bytes / states);
    ap_cost_mesh_destroy(mesh);
    return XM_OK;
}

static ap_plan_side_t side_of(const ap_plan_stage_t *stage, const char *spec)
{
    return (ap_plan_side_t){{stage->shape[0], stage->shape[1]},
                            stage->shape[0] * stage->shape[1],
                            stage->devices,
                            spec};
}

/* Megatron's tensor-parallel ranks all have the whole activations and each sends its own, to the
 * rank of the same number: as many copies as there are parts, each on a device of its own. */
static xm_status_t price_boundary(const ap_sailor_t *sailor, const ap_sailor_row_t *row, int from,
                                  const ap_plan_stage_t *stages, xm_arena_t *arena,
                                  ap_plan_boundary_t *boundary)
{
    static const char spec[] = "S1S0R";
    int layer = row->last[from];
    double each = number_of(sailor, row->degree, layer, "act_output_floats");
    double bytes = number_of(sailor, row->degree, layer, "act_output_bytes");
    ap_cross_mesh_transfer_t transfer;
    ap_cross_mesh_cost_t cost;

    *boundary = (ap_plan_boundary_t){
        .from = from,
        .to = from + 1,
        .tensor = "copies of activations",
        .rank = 3,
        .shape = {row->degree, (int64_t)row->replicas * row->samples, (int64_t)each},
        .dtype = "float32",
        .element_size = each > 0 ? (int64_t)(bytes / each) : 0,
        .src = side_of(&stages[from], spec),
        .dst = side_of(&stages[from + 1], spec),
        .strategy = ap_cross_mesh_strategy(),
        .scheduler = ap_cross_mesh_scheduler()};
    boundary->bytes =
        boundary->shape[0] * boundary->shape[1] * boundary->shape[2] * boundary->element_size;
    XM_TRY(ap_plan_transfer(boundary, &boundary->src, &boundary->dst, arena, &transfer));
    XM_TRY(ap_cross_mesh_cost(sailor->cross_mesh, &transfer, &cost));
    XM_TRY(ap_cross_mesh_loads(sailor->cross_mesh, &transfer, arena, &boundary->links,
                               &boundary->link_count));
    boundary->forward = cost.forward;
    boundary->backward = cost.backward;
    boundary->bound = cost.bound;
    boundary->net_bytes = cost.net_bytes;
    return XM_OK;
}

/* Parameters of the whole model, which are cut nowhere. */
static double parameters(const ap_sailor_t *sailor, int layers)
{
    double sum = 0;

    for (int layer = 0; layer < layers; ++layer) {
        sum += number_of(sailor, 1, layer, "params_floats");
    }
    return sum;
}

static xm_status_t make_plan(const ap_sailor_t *sailor, const ap_sailor_row_t *row,
                             const ap_plan_stage_t *stages, const ap_plan_boundary_t *boundaries,
                             ap_plan_t **plan)
{
    ap_plan_evaluation_t evaluation = AP_PLAN_EVALUATION_INIT;
    ap_plan_params_t params = {
        .info = {.model = sailor->model,
                 .layers = row->last[row->stages - 1] + 1,
                 .parameters = parameters(sailor, row->last[row->stages - 1] + 1),
                 .global_batch = row->batch,
                 .micro_batches = row->batch / (row->samples * row->replicas),
                 .schedule = "1f1b",
                 .cluster = xm_cluster_profile_name(sailor->cluster),
                 .cluster_provenance = xm_cluster_profile_provenance(sailor->cluster),
                 .hosts = xm_cluster_profile_hosts(sailor->cluster),
                 .devices_per_host = sailor->per_host,
                 .memory_limit = xm_cluster_profile_device_memory_bytes(sailor->cluster),
                 .optimiser = "given: a plan of Sailor's artifact"},
        .stages = stages,
        .stage_count = row->stages,
        .boundaries = boundaries};
    ap_plan_t *made;
    xm_status_t status = ap_plan_create(&params, &made);

    evaluation.memory_limit = params.info.memory_limit;
    if (status == XM_OK) {
        status = ap_plan_evaluate(made, &evaluation, plan);
        ap_plan_destroy(made);
    }
    return status;
}

xm_status_t ap_sailor_row_plan(const ap_sailor_t *sailor, const ap_sailor_row_t *row,
                               ap_plan_t **plan)
{
    ap_plan_stage_t stages[AP_SAILOR_STAGES];
    ap_plan_boundary_t boundaries[AP_SAILOR_STAGES];
    xm_arena_t arena = {0};
    xm_status_t status = XM_OK;

    for (int s = 0; s < row->stages && status == XM_OK; ++s) {
        status = price_stage(sailor, row, s, &arena, &stages[s]);
    }
    for (int s = 0; s + 1 < row->stages && status == XM_OK; ++s) {
        status = price_boundary(sailor, row, s, stages, &arena, &boundaries[s]);
    }
    XM_THEN(status, make_plan(sailor, row, stages, boundaries, plan));
    xm_arena_clear(&arena);
    return status == XM_OK ? status : xm_error_prefix(status, "%s", row->name);
}
