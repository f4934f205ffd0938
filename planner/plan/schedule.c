/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan under a pipeline schedule: its stages and boundaries given to the simulation
 * (planner/pipeline/step.h), and for a new schedule a new plan with the step and the micro-batches
 * in flight that came out.
 */

#include "planner/plan/schedule.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/boundary.h"
#include "planner/pipeline.h"
#include "planner/plan/order.h"

enum { TEXT = 32 };

static xm_status_t read_tensor(const ap_plan_tensor_t *tensor, ap_cross_mesh_tensor_t *read)
{
    xm_status_t status = ap_spec_parse(tensor->src, tensor->rank, 2, &read->src);

    read->shape.rank = tensor->rank;
    read->element_size = (int)tensor->element_size;
    memcpy(read->shape.dims, tensor->shape, (size_t)tensor->rank * sizeof(tensor->shape[0]));
    return status == XM_OK ? ap_spec_parse(tensor->dst, tensor->rank, 2, &read->dst) : status;
}

xm_status_t ap_plan_transfer(const ap_plan_boundary_t *like, const ap_plan_side_t *src,
                             const ap_plan_side_t *dst, xm_arena_t *arena,
                             ap_cross_mesh_transfer_t *transfer)
{
    ap_cross_mesh_tensor_t *tensors =
        xm_arena_get(arena, (size_t)like->more_count + 1, sizeof(*tensors));
    xm_status_t status = XM_OK;

    *transfer = (ap_cross_mesh_transfer_t){.src = {src->devices[0], {src->shape[0], src->shape[1]}},
                                           .dst = {dst->devices[0], {dst->shape[0], dst->shape[1]}},
                                           .tensors = tensors,
                                           .count = like->more_count + 1};
    XM_NEED_MEMORY(tensors, "the tensors of a resharding");
    for (int i = 0; i < transfer->count && status == XM_OK; ++i) {
        const ap_plan_tensor_t tensor = ap_plan_boundary_tensor(like, i);

        status = read_tensor(&tensor, &tensors[i]);
    }
    return status;
}

/* Prices the tensors of @p like, in their layouts, from the mesh of one stage to that of another.
 */
static xm_status_t price(ap_cross_mesh_t *cross_mesh, const ap_plan_boundary_t *like,
                         const ap_plan_side_t *src, const ap_plan_side_t *dst, xm_arena_t *arena,
                         ap_pipeline_transfer_t *transfer)
{
    ap_cross_mesh_transfer_t passing;
    ap_cross_mesh_cost_t cost;
    XM_TRY(ap_plan_transfer(like, src, dst, arena, &passing));

    XM_TRY(ap_cross_mesh_cost(cross_mesh, &passing, &cost));
    XM_TRY(
        ap_cross_mesh_loads(cross_mesh, &passing, arena, &transfer->links, &transfer->link_count));
    transfer->forward = cost.forward;
    transfer->backward = cost.backward;
    return XM_OK;
}

/* What a boundary of the plan takes, as the plan says or anew. */
static xm_status_t find_boundary(const ap_plan_boundary_t *boundary, ap_cross_mesh_t *cross_mesh,
                                 xm_arena_t *arena, ap_pipeline_transfer_t *transfer)
{
    transfer->from = boundary->from;
    transfer->to = boundary->to;
    if (cross_mesh != NULL) {
        return price(cross_mesh, boundary, &boundary->src, &boundary->dst, arena, transfer);
    }
    transfer->forward = boundary->forward;
    transfer->backward = boundary->backward;
    transfer->links = boundary->links;
    transfer->link_count = boundary->link_count;
    return XM_OK;
}

/* What passes from the last stage back to the first, for virtual stages. Without a profile, it is
 * taken to cost what the largest boundary between neighbours does. */
static xm_status_t find_way_back(const ap_plan_t *plan, ap_cross_mesh_t *cross_mesh,
                                 xm_arena_t *arena, ap_pipeline_transfer_t *transfer)
{
    int boundaries = ap_plan_stages(plan) - 1;
    const ap_plan_boundary_t *last = ap_plan_boundary(plan, boundaries - 1);

    transfer->from = boundaries;
    transfer->to = 0;
    if (cross_mesh != NULL) {
        return price(cross_mesh, last, &last->dst, &ap_plan_boundary(plan, 0)->src, arena,
                     transfer);
    }
    for (int i = 0; i < boundaries; ++i) {
        transfer->forward = fmax(transfer->forward, ap_plan_boundary(plan, i)->forward);
        transfer->backward = fmax(transfer->backward, ap_plan_boundary(plan, i)->backward);
    }
    return XM_OK;
}

static double factor(double times)
{
    return times > 0 ? times : 1;
}

/* What waits in host memory goes over the link to it, in both directions at a time: with a pass of
 * another micro-batch, or beside the updates. A pass is as long as the longer of both. */
static void fill_stages(const ap_plan_t *plan, const ap_plan_simulation_t *simulation,
                        ap_pipeline_stage_t *stages)
{
    const xm_runtime_t *runtime = &simulation->runtime;

    for (int i = 0; i < ap_plan_stages(plan); ++i) {
        const ap_plan_stage_t *of = ap_plan_stage(plan, i);
        double moved = simulation->swap ? of->activation_bytes / runtime->host_link : 0.0;
        double state = simulation->offload ? of->state_bytes / runtime->host_link : 0.0;

        stages[i] = (ap_pipeline_stage_t){.forward = fmax(of->forward + runtime->pass, moved),
                                          .backward = fmax(of->backward + runtime->pass, moved),
                                          .once = factor(runtime->collective) * of->sync +
                                                  of->update + state,
                                          .activation_bytes = of->activation_bytes,
                                          .recompute = of->recompute};
    }
}

/* Runs a plan whose boundaries are priced as it predicts, or anew by @p cross_mesh. */
static xm_status_t run_plan(const ap_plan_t *plan, const ap_plan_simulation_t *simulation,
                            ap_cross_mesh_t *cross_mesh, ap_pipeline_step_t *step,
                            ap_schedule_t **schedule, ap_pipeline_run_t **run)
{
    size_t count = (size_t)ap_plan_stages(plan), boundaries = (size_t)ap_plan_boundaries(plan);
    xm_arena_t arena = {0};
    ap_pipeline_stage_t *stages = xm_arena_get(&arena, count, sizeof(*stages));
    ap_pipeline_transfer_t *transfers = xm_arena_get(&arena, boundaries + 1, sizeof(*transfers));
    xm_status_t status = XM_OK;
    /* Virtual stages go round the ring; of one stage nothing passes. */
    bool round = count > 1 && step->virtual_stages > 1 && !ap_schedule_traits(step->kind)->v;
    /* Devices of several stages have no channels for what passes over stages: it is not counted. */
    int wanted = step->devices > 0 ? (int)count - 1 : (int)boundaries + (round ? 1 : 0);

    if (arena.failed) {
        status = XM_NO_MEMORY("%zu stages", count);
        goto clear;
    }
    fill_stages(plan, simulation, stages);
    step->stages = stages;
    step->stage_count = (int)count;
    step->transfers = transfers;
    for (; step->transfer_count < wanted && status == XM_OK; ++step->transfer_count) {
        int i = step->transfer_count;

        status = i < (int)boundaries
                     ? find_boundary(ap_plan_boundary(plan, i), cross_mesh, &arena, &transfers[i])
                     : find_way_back(plan, cross_mesh, &arena, &transfers[i]);
        if (status != XM_OK) {
            status = xm_error_prefix(status, "resharding %d", i);
        }
    }
    XM_THEN(status, ap_pipeline_step_run(step, schedule, run));

clear:
    xm_arena_clear(&arena);
    return status;
}

/* On a profile, meshes are looked at in the plan's order of hosts. */
xm_status_t ap_plan_simulate(const ap_plan_t *plan, const ap_plan_simulation_t *simulation,
                             ap_schedule_t **schedule, ap_pipeline_run_t **run)
{
    const ap_plan_info_t *info = ap_plan_info(plan);
    const xm_cluster_profile_t *profile = simulation->profile;
    int64_t micro_batches =
        simulation->micro_batches > 0 ? simulation->micro_batches : info->micro_batches;
    ap_pipeline_step_t step = {
        .kind = simulation->kind,
        .micro_batches = (int)micro_batches,
        .virtual_stages = simulation->virtual_stages > 0 ? simulation->virtual_stages
                                                         : ap_schedule_chunks(simulation->kind),
        .slices = simulation->slices,
        .cut = simulation->cut,
        .batches = simulation->batches,
        .slowdown = simulation->runtime.slowdown,
        .jitter = simulation->jitter,
        .seed = simulation->seed,
        .blocking = simulation->blocking || simulation->runtime.blocking,
        .send = profile != NULL ? xm_cluster_profile_runtime(profile)->send : info->send,
        .split = profile != NULL ? xm_cluster_profile_runtime(profile)->split : info->split,
        .weight = profile != NULL ? xm_cluster_profile_runtime(profile)->weight : info->weight};
    ap_cross_mesh_t *cross_mesh = NULL;
    ap_plan_view_t view;
    xm_status_t status;

    if ((simulation->swap || simulation->offload) && !(simulation->runtime.host_link > 0)) {
        return XM_INVALID("the link to host memory has no rate");
    }
    if (micro_batches > INT32_MAX) {
        return XM_INVALID("%" PRId64 " micro-batches are too many", micro_batches);
    }
    if (simulation->fold) {
        if (ap_plan_stages(plan) % step.virtual_stages != 0) {
            return XM_INVALID("%d stages do not fold onto devices of %d stages each",
                              ap_plan_stages(plan), step.virtual_stages);
        }
        step.devices = ap_plan_stages(plan) / step.virtual_stages;
        step.virtual_stages = 1;
    }
    if (simulation->profile == NULL) {
        return run_plan(plan, simulation, NULL, &step, schedule, run);
    }
    status = ap_plan_view_open(plan, simulation->profile, &view);
    XM_THEN(status, ap_cross_mesh_create(view.profile, &cross_mesh));
    XM_THEN(status, run_plan(view.plan, simulation, cross_mesh, &step, schedule, run));
    ap_cross_mesh_destroy(cross_mesh);
    ap_plan_view_close(&view);
    return status;
}

xm_status_t ap_plan_runtime_step(const ap_plan_t *plan, const xm_runtime_t *runtime, double *step)
{
    ap_plan_simulation_t simulation = {.runtime = *runtime};
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;
    XM_TRY(ap_schedule_find(ap_plan_info(plan)->schedule, &simulation.kind));

    XM_TRY(ap_plan_simulate(plan, &simulation, &schedule, &run));
    *step = 1e-9 * (double)run->step_ns;
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
    return XM_OK;
}

double ap_plan_runtime_memory(const ap_plan_t *plan, const xm_runtime_t *runtime)
{
    double most = 0;

    for (int i = 0; i < ap_plan_stages(plan); ++i) {
        ap_plan_stage_t stage = *ap_plan_stage(plan, i);

        stage.work_bytes *= factor(runtime->working);
        most = fmax(most, runtime->context + ap_plan_stage_memory(&stage));
    }
    return most;
}

xm_status_t ap_plan_check_schedule(ap_schedule_kind_t kind)
{
    return ap_plan_can_have(kind)
               ? XM_OK
               : XM_UNSUPPORTED(
                     "%s does not keep one stage to a device or whole micro-batches, which a plan "
                     "cannot say; autopar simulate shows what it would give",
                     ap_schedule_name(kind));
}

/* Counts the micro-batches whose activations are held at once, weight halves that wait included. */
static int in_flight(const ap_schedule_t *schedule, int device)
{
    int now = 0, most = 1;

    for (int i = 0; i < schedule->op_count[device]; ++i) {
        ap_pass_t pass = schedule->ops[device][i].pass;

        now += pass == AP_PASS_FORWARD;
        most = now > most ? now : most;
        now -= pass == (schedule->split ? AP_PASS_WEIGHT : AP_PASS_BACKWARD);
    }
    return most;
}

static xm_status_t check_memory(const ap_plan_t *plan, ap_schedule_kind_t kind, int index,
                                const ap_plan_stage_t *stage)
{
    double needed = ap_plan_stage_memory(stage), limit = ap_plan_info(plan)->memory_limit;
    char need[TEXT], most[TEXT];

    if (limit <= 0.0 || needed <= limit) {
        return XM_OK;
    }
    return XM_NO_SOLUTION(
        "%s: stage %d needs %s with %d micro-batches in flight, the limit is %s",
        ap_schedule_name(kind), index, xm_text_format_bytes((uint64_t)needed, need, sizeof(need)),
        stage->in_flight, xm_text_format_bytes((uint64_t)limit, most, sizeof(most)));
}

/* What a plan is held against under its new schedule. */
typedef struct terms {
    double version_share; /* of a stage's state, for one more version of the parameters */
    bool stash;           /* a version for every micro-batch in flight */
    bool refuse;          /* a stage that needs more memory than the limit is an error */
    double memory_limit;
} terms_t;

/* Only what a schedule changes is changed: micro-batches in flight, versions of the parameters, the
 * step. What bounded the step under another schedule says nothing about this one. */
static xm_status_t rebuild(const ap_plan_t *plan, const ap_schedule_t *schedule,
                           const ap_pipeline_run_t *run, const terms_t *terms, ap_plan_t **result)
{
    ap_plan_params_t params = ap_plan_params(plan);
    int count = params.stage_count;
    ap_plan_stage_t *stages = calloc((size_t)count, sizeof(*stages));
    xm_status_t status = XM_OK;

    XM_NEED_MEMORY(stages, "a plan of %d stages", count);
    for (int i = 0; i < count && status == XM_OK; ++i) {
        int versions;

        stages[i] = *ap_plan_stage(plan, i);
        stages[i].in_flight = in_flight(schedule, i);
        versions = terms->stash ? stages[i].in_flight : ap_schedule_versions(schedule, i);
        stages[i].state_bytes *= 1.0 + terms->version_share * (versions - 1);
        if (terms->refuse) {
            status = check_memory(plan, schedule->kind, i, &stages[i]);
        }
    }
    params.info.schedule = ap_schedule_name(schedule->kind);
    params.info.memory_limit = terms->memory_limit;
    params.info.step = 1e-9 * (double)run->step_ns;
    params.info.bound = 0.0;
    params.stages = stages;
    XM_THEN(status, ap_plan_create(&params, result));
    free(stages);
    return status;
}

static xm_status_t reschedule(const ap_plan_t *plan, ap_schedule_kind_t kind, const terms_t *terms,
                              ap_plan_t **result)
{
    ap_plan_simulation_t simulation = AP_PLAN_SIMULATION_INIT;
    ap_pipeline_run_t *run = NULL;
    ap_schedule_t *schedule = NULL;
    xm_status_t status;

    XM_TRY(ap_plan_check_schedule(kind));
    /* This is no fault of the caller: with more micro-batches there can be such a schedule. */
    if (!ap_schedule_is_synchronous(kind) &&
        ap_plan_info(plan)->micro_batches < ap_plan_stages(plan)) {
        return XM_NO_SOLUTION("%s: steps without a flush need at least as many micro-batches as "
                              "stages: %" PRId64 " for %d",
                              ap_schedule_name(kind), ap_plan_info(plan)->micro_batches,
                              ap_plan_stages(plan));
    }
    simulation.kind = kind;
    status = ap_plan_simulate(plan, &simulation, &schedule, &run);
    XM_THEN(status, rebuild(plan, schedule, run, terms, result));
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
    return status;
}

xm_status_t ap_plan_reschedule(const ap_plan_t *plan, ap_schedule_kind_t kind, double version_share,
                               ap_plan_t **result)
{
    terms_t terms = {.version_share = version_share,
                     .refuse = true,
                     .memory_limit = ap_plan_info(plan)->memory_limit};

    return reschedule(plan, kind, &terms, result);
}

xm_status_t ap_plan_evaluate(const ap_plan_t *plan, const ap_plan_evaluation_t *evaluation,
                             ap_plan_t **result)
{
    terms_t terms = {.version_share = evaluation->version_share,
                     .stash = evaluation->stash,
                     .memory_limit = evaluation->memory_limit};

    return reschedule(plan, evaluation->kind, &terms, result);
}

/* 1f1b comes first and only a strictly shorter step replaces a plan, so equal schedules give 1f1b.
 * Each candidate takes the place of the worse one, and one of the two is freed. */
xm_status_t ap_plan_reschedule_best(const ap_plan_t *plan, ap_plan_t **result)
{
    ap_plan_t *best = NULL;

    for (int i = -1; i < AP_SCHEDULE_KINDS; ++i) {
        ap_schedule_kind_t kind = i < 0 ? AP_SCHEDULE_1F1B : (ap_schedule_kind_t)i;
        ap_plan_t *candidate;
        xm_status_t status;

        if (!ap_plan_may_choose(kind) || i == AP_SCHEDULE_1F1B) {
            continue;
        }
        status = ap_plan_reschedule(plan, kind, 0.0, &candidate); /* of one version */
        if (status == XM_ERR_NO_SOLUTION) {
            continue;
        }
        if (status != XM_OK) {
            ap_plan_destroy(best);
            return status;
        }
        if (best == NULL || ap_plan_info(candidate)->step < ap_plan_info(best)->step) {
            ap_plan_t *worse = best;

            best = candidate;
            candidate = worse;
        }
        ap_plan_destroy(candidate);
    }
    if (best == NULL) {
        return XM_ERR_NO_SOLUTION;
    }
    *result = best;
    return XM_OK;
}
