/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks a plan that somebody else made. It need not be the plan that our search finds, or price
 * its stages as we do; but it must be possible, and must not be better than possible. So for each
 * claim a lower bound is computed from our own costs, over everything that the plan leaves open
 * (how parameters are kept, which of several strategies has these specs), and only a claim below it
 * is refused.
 *
 * Those of a stage's time and memory are in least.c.
 */

#include "planner/explain/verify.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/explain/least.h"
#include "planner/search.h"
#include "planner/plan.h"
#include "planner/stage.h"

/* Sums in another order, and profiles that passed through a text, differ in their last digits. */
static const double slack = 1e-6;

enum { PLACE = 48 };

typedef struct verification {
    const ap_plan_t *plan;
    const ap_plan_info_t *info;
    ap_planner_setup_t setup;
    const ap_graph_t *graph;
    ap_graph_t *made;
    ap_stage_context_t **context; /* per class of devices, then the same recomputing */
    ap_layer_weights_t weights;   /* of the plan's objective, memory for nothing; of the stage */
} verification_t;

static xm_status_t wrong_count(const char *what, int64_t says, int64_t asked)
{
    return XM_MISMATCH("the plan is for %" PRId64 " %s, not %" PRId64, says, what, asked);
}

/* Without a list, any number that divides the batch is an answer. */
static bool is_asked(const verification_t *v)
{
    const ap_planner_params_t *params = v->setup.params;

    if (v->setup.micro_batches != 0) {
        return v->info->micro_batches == v->setup.micro_batches;
    }
    for (size_t i = 0; i < params->micro_batch_count; ++i) {
        if (params->micro_batches[i] == v->info->micro_batches) {
            return true;
        }
    }
    return params->micro_batch_count == 0 && v->info->micro_batches > 0 &&
           v->info->global_batch % v->info->micro_batches == 0;
}

static xm_status_t check_question(const verification_t *v)
{
    const ap_planner_params_t *params = v->setup.params;
    const ap_plan_info_t *info = v->info;
    int stages = ap_plan_stages(v->plan);
    const char *schedule = params->schedule != NULL ? params->schedule : "1f1b", *which;
    char text[PLACE];

    if (strcmp(info->model, params->model) != 0) {
        return XM_MISMATCH("the plan is for the model '%s', not '%s'", info->model, params->model);
    }
    if (info->global_batch != v->setup.global_batch) {
        return wrong_count("samples", info->global_batch, v->setup.global_batch);
    }
    if (!is_asked(v)) {
        return XM_MISMATCH("%" PRId64 " micro-batches were not asked for", info->micro_batches);
    }
    if (stages < params->min_stages || (params->max_stages > 0 && stages > params->max_stages)) {
        return XM_MISMATCH("%d stages were not asked for", stages);
    }
    if (strcmp(schedule, "auto") != 0 && strcmp(schedule, info->schedule) != 0) {
        return XM_MISMATCH("the plan has the schedule %s, not %s", info->schedule, schedule);
    }
    which = ap_plan_recompute_text(v->plan, text, sizeof(text));
    if ((params->recompute == AP_RECOMPUTE_ON && strcmp(which, "on") != 0) ||
        (params->recompute == AP_RECOMPUTE_OFF && strcmp(which, "off") != 0) ||
        (params->recompute == AP_RECOMPUTE_UNIFORM && strcmp(which, "on") != 0 &&
         strcmp(which, "off") != 0)) {
        return XM_MISMATCH("recomputation is %s in the plan", which);
    }
    if (info->memory_limit > v->setup.memory_limit * (1 + slack)) {
        return XM_MISMATCH("the plan takes %.0f bytes a device for given, not %.0f",
                           info->memory_limit, v->setup.memory_limit);
    }
    return XM_OK;
}

/* The devices of a stage are a submesh of the cluster as it says: so many of each of its hosts. */
static xm_status_t check_submesh(const verification_t *v, const ap_plan_stage_t *stage, int index)
{
    int *of_host = calloc((size_t)v->info->hosts, sizeof(*of_host));
    int hosts = 0, most = 0;

    XM_NEED_MEMORY(of_host, "%d hosts", v->info->hosts);
    for (int d = 0; d < stage->hosts * stage->devices_per_host; ++d) {
        int host = stage->devices[d] / v->info->devices_per_host;

        hosts += of_host[host] == 0;
        ++of_host[host];
        most = of_host[host] > most ? of_host[host] : most;
    }
    free(of_host);
    if (hosts != stage->hosts || most != stage->devices_per_host) {
        return XM_MISMATCH("stages[%d]: a submesh of %d x %d devices, whose ranks are on %d hosts "
                           "with up to %d on one",
                           index, stage->hosts, stage->devices_per_host, hosts, most);
    }
    return XM_OK;
}

static xm_status_t too_good(const char *place, const char *what, double says, double least)
{
    return XM_MISMATCH("%s: %s of %.9g, which is at least %.9g", place, what, says, least);
}

/* The class of devices that a stage stands on; scattered hosts count as the slowest there is, for
 * whom the bound is not exact. A stage whose run of hosts would end beyond the cluster is one of
 * them. */
static int class_of(const verification_t *v, const ap_plan_stage_t *stage)
{
    const ap_device_classes_t *classes = v->setup.classes;
    int per_host = v->info->devices_per_host, host = v->info->hosts, class = -1;

    for (int d = 0; d < stage->hosts * stage->devices_per_host; ++d) {
        host = stage->devices[d] / per_host < host ? stage->devices[d] / per_host : host;
    }
    if (host + stage->hosts <= classes->hosts) {
        class = ap_device_classes_find(classes, host, stage->hosts);
    }
    return class >= 0 ? class : ap_device_classes_find(classes, 0, classes->hosts);
}

/* The limit is the caller's, or else the memory of the devices that the stage stands on. A byte of
 * slack makes up for the rounding of bytes in the document. */
static xm_status_t check_stage(verification_t *v, int index)
{
    const ap_plan_stage_t *stage = ap_plan_stage(v->plan, index);
    ap_least_t least;
    char place[PLACE];
    double memory;
    xm_status_t status = check_submesh(v, stage, index);

    v->weights.forward = stage->recompute ? 2 : 1;
    (void)snprintf(place, sizeof(place), "stages[%d]", index);
    if (status == XM_OK && stage->layer_count == 0) {
        status = XM_MISMATCH("%s does not say how its operators are sharded", place);
    }
    XM_THEN(status,
            ap_plan_stage_least(
                v->plan, index,
                v->context[class_of(v, stage) + (stage->recompute ? v->setup.classes->count : 0)],
                &v->weights, &least));
    XM_TRY(status);
    if (ap_plan_stage_seconds(v->plan, index) < least.seconds * (1 - slack)) {
        return too_good(place, "seconds", ap_plan_stage_seconds(v->plan, index), least.seconds);
    }
    if (stage->state_bytes < least.state * (1 - slack) - 1) {
        return too_good(place, "state_bytes", stage->state_bytes, least.state);
    }
    if (stage->activation_bytes < least.activations * (1 - slack) - 1) {
        return too_good(place, "activation_bytes", stage->activation_bytes, least.activations);
    }
    memory = v->setup.classes->classes[class_of(v, stage)].device.memory_bytes;
    if (ap_plan_stage_memory(stage) > memory * (1 + slack) + 1) {
        return XM_MISMATCH("%s needs %.0f bytes a device, %.0f are there", place,
                           ap_plan_stage_memory(stage), memory);
    }
    return XM_OK;
}

/* Whether the ranks of a mesh follow each other. */
static bool is_run(const ap_plan_side_t *side)
{
    int d = 1;

    while (d < side->device_count && side->devices[d] == side->devices[0] + d) {
        ++d;
    }
    return d >= side->device_count;
}

/* Of scattered ranks the bound of the stages is all that is known. */
static xm_status_t check_boundary_cost(const verification_t *v, const ap_plan_boundary_t *boundary,
                                       const char *place)
{
    ap_cross_mesh_transfer_t transfer;
    ap_cross_mesh_cost_t cost;
    xm_arena_t arena = {0};
    xm_status_t status;

    if (!is_run(&boundary->src) || !is_run(&boundary->dst)) {
        return XM_OK;
    }
    status = ap_plan_transfer(boundary, &boundary->src, &boundary->dst, &arena, &transfer);
    XM_THEN(status, ap_cross_mesh_cost(v->setup.cross_mesh, &transfer, &cost));
    if (status == XM_OK && boundary->forward < cost.bound * (1 - slack)) {
        status = too_good(place, "forward_s", boundary->forward, cost.bound);
    }
    xm_arena_clear(&arena);
    return status;
}

static bool is_tensor(const ap_plan_tensor_t *passing, const ap_tensor_t *tensor)
{
    bool same = passing->rank == tensor->shape.rank &&
                strcmp(passing->dtype, ap_dtype_name(tensor->dtype)) == 0 &&
                passing->element_size == ap_dtype_bytes(tensor->dtype);

    for (int d = 0; d < passing->rank && same; ++d) {
        same = passing->shape[d] == tensor->shape.dims[d];
    }
    return same;
}

/* Whether the plan passes a tensor, by name, from one stage to another. */
static bool passes(const ap_plan_t *plan, int from, int to, const ap_tensor_t *tensor)
{
    for (int b = 0; b < ap_plan_boundaries(plan); ++b) {
        const ap_plan_boundary_t *boundary = ap_plan_boundary(plan, b);

        for (int i = 0; i <= boundary->more_count && boundary->from == from && boundary->to == to;
             ++i) {
            const ap_plan_tensor_t passing = ap_plan_boundary_tensor(boundary, i);

            if (strcmp(passing.tensor, tensor->name) == 0 && is_tensor(&passing, tensor)) {
                return true;
            }
        }
    }
    return false;
}

/* Every resting copy that a stage reads must come to it from the stage that makes it. */
static xm_status_t check_resting(const verification_t *v)
{
    int *resting = malloc(((size_t)ap_graph_tensors(v->graph) + 1) * sizeof(*resting));
    int stages = ap_plan_stages(v->plan);
    xm_status_t status = XM_OK;

    XM_NEED_MEMORY(resting, "the tensors between stages");
    for (int pair = 0; pair < stages * stages; ++pair) {
        int from = pair / stages, to = pair % stages, count = 0;
        const ap_plan_stage_t *src = ap_plan_stage(v->plan, from),
                              *dst = ap_plan_stage(v->plan, to);

        if (from < to) {
            count = ap_graph_resting(v->graph, (int[]){src->first_layer, src->last_layer},
                                     (int[]){dst->first_layer, dst->last_layer}, resting);
        }
        for (int i = 0; i < count && status == XM_OK; ++i) {
            const ap_tensor_t *tensor = ap_graph_tensor(v->graph, resting[i]);

            if (!passes(v->plan, from, to, tensor)) {
                status = XM_MISMATCH("reshardings: '%s' does not pass from stage %d, which makes "
                                     "it, to stage %d, which reads it",
                                     tensor->name, from, to);
            }
        }
    }
    free(resting);
    return status;
}

static xm_status_t check_boundary(const verification_t *v, int index)
{
    const ap_plan_boundary_t *boundary = ap_plan_boundary(v->plan, index);
    const ap_plan_tensor_t first = ap_plan_boundary_tensor(boundary, 0);
    int layer = ap_plan_stage(v->plan, boundary->from)->last_layer;
    const ap_tensor_t *tensor = ap_graph_tensor(v->graph, ap_graph_boundary(v->graph, layer));
    char place[PLACE];

    (void)snprintf(place, sizeof(place), "reshardings[%d]", index);
    if (boundary->to == boundary->from + 1 && !is_tensor(&first, tensor)) {
        return XM_MISMATCH("%s: shape or type are not those of '%s', which passes after layer %d",
                           place, tensor->name, layer);
    }
    return check_boundary_cost(v, boundary, place);
}

/* Checks the step against what the plan's own stages and reshardings take under its schedule. The
 * plan may claim more. */
static xm_status_t check_step(const verification_t *v)
{
    ap_plan_simulation_t simulation = AP_PLAN_SIMULATION_INIT;
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;
    double step;

    XM_TRY(ap_schedule_find(v->info->schedule, &simulation.kind));
    XM_TRY(ap_plan_simulate(v->plan, &simulation, &schedule, &run));
    step = 1e-9 * (double)run->step_ns;
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
    return v->info->step < step * (1 - slack) ? too_good("predicted", "step_s", v->info->step, step)
                                              : XM_OK;
}

/* A stage holds as many micro-batches as its schedule puts there; claiming fewer would claim memory
 * that is not there. */
static xm_status_t check_in_flight(const verification_t *v)
{
    int stages = ap_plan_stages(v->plan);
    ap_schedule_kind_t kind;

    XM_TRY(ap_schedule_find(v->info->schedule, &kind));
    for (int i = 0; i < stages; ++i) {
        int64_t least = ap_schedule_in_flight(kind, i, stages - 1 - i, v->info->micro_batches);

        if (ap_plan_stage(v->plan, i)->in_flight < least) {
            return XM_MISMATCH("stages[%d] has %d micro-batches in flight, of at least %" PRId64, i,
                               ap_plan_stage(v->plan, i)->in_flight, least);
        }
    }
    return XM_OK;
}

static xm_status_t open_model(verification_t *v)
{
    ap_stage_context_params_t params = AP_STAGE_CONTEXT_PARAMS_INIT;
    xm_status_t status = XM_OK;

    XM_TRY(ap_planner_graph_open(&v->setup, v->info->micro_batches, &v->graph, &v->made));
    if (ap_graph_layers(v->graph) != v->info->layers) {
        XM_TRY(wrong_count("layers", v->info->layers, ap_graph_layers(v->graph)));
    }
    v->context = calloc(2 * (size_t)v->setup.classes->count, sizeof(ap_stage_context_t *));
    XM_NEED_MEMORY(v->context, "the stages of a plan");
    params.graph = v->graph;
    params.micro_batches = (int)v->info->micro_batches;
    v->weights = (ap_layer_weights_t){.per_iteration = 1.0 / (double)v->info->micro_batches};
    for (int c = 0; c < 2 * v->setup.classes->count && status == XM_OK; ++c) {
        params.rematerialize = c >= v->setup.classes->count;
        params.cost = v->setup.classes->classes[c % v->setup.classes->count].cost;
        status = ap_stage_context_create(&params, &v->context[c]);
    }
    return status;
}

static xm_status_t verify(verification_t *v)
{
    XM_TRY(check_question(v));

    XM_TRY(open_model(v));
    for (int i = 0; i < ap_plan_stages(v->plan); ++i) {
        XM_TRY(check_stage(v, i));
    }
    for (int i = 0; i < ap_plan_boundaries(v->plan); ++i) {
        XM_TRY(check_boundary(v, i));
    }
    XM_TRY(check_resting(v));
    XM_TRY(check_in_flight(v));
    return check_step(v);
}

/* Verifies a plan with its hosts in their order, as asked on the profile in the same order. */
static xm_status_t verify_view(const ap_planner_params_t *asked, const ap_plan_view_t *view)
{
    verification_t v = {.plan = view->plan, .info = ap_plan_info(view->plan)};
    ap_planner_params_t params = *asked;
    xm_status_t status;

    params.profile = view->profile;
    status = ap_planner_setup_open(&params, 0.0, &v.setup);
    XM_THEN(status, verify(&v));
    for (int c = 0; v.context != NULL && c < 2 * v.setup.classes->count; ++c) {
        ap_stage_context_destroy(v.context[c]);
    }
    free(v.context);
    ap_graph_destroy(v.made);
    ap_planner_setup_close(&v.setup);
    return status;
}

xm_status_t ap_plan_verify(const ap_planner_params_t *params, const ap_plan_t *plan)
{
    XM_NEED_ARGUMENTS(plan);
    ap_door_planner_t own;
    ap_plan_view_t view = {.plan = plan};
    xm_status_t status = XM_OK;

    XM_TRY(ap_door_planner_params(&own, __func__, params));
    params = &own.params;
    view.profile = params->profile;
    if (params->profile != NULL) { /* the planner's setup says that one is needed */
        status = ap_plan_view_open(plan, params->profile, &view);
    }
    XM_THEN(status, verify_view(params, &view));
    ap_plan_view_close(&view);
    return status;
}
