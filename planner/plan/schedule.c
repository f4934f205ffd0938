/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan under a pipeline schedule. The plan has seconds per stage and boundary; the simulator
 * wants whole nanoseconds per part, a list of passes, and shares of links. This file translates,
 * runs the simulation, and for a new schedule makes a new plan with the step and the micro-batches
 * in flight that came out.
 *
 * A schedule is checked every time before it is simulated: that costs little, and a step of an
 * unsafe schedule would be a number without meaning.
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

/* The share of a stage's state that one more version of the parameters can take: their gradients
 * are as large, so never more than half. */
static const double VERSION_SHARE = 0.5;

enum { TEXT = 32 };

/* Everything of a simulation that is an array; [stages][slices], [stages] or [stages - 1][slices];
 * and what messages take of hosts' NICs and racks' uplinks. */
typedef struct arrays {
    int stages, slices;
    int64_t *forward, *backward, *weight, *update, *activation, *gradient, *bytes;
    ap_pipeline_use_t *uses;
    int use_count;
    ap_pipeline_skip_t *skips;
    int skip_count;
} arrays_t;

/* What passes from a device to the next: seconds both ways, and the links it needs for that. */
typedef struct passing {
    ap_cross_mesh_cost_t cost;
    const ap_link_load_t *links;
    int link_count;
    ap_link_load_t *priced; /* the links, where they are not the plan's */
} passing_t;

static void free_arrays(arrays_t *arrays)
{
    free(arrays->forward);
    free(arrays->backward);
    free(arrays->weight);
    free(arrays->update);
    free(arrays->activation);
    free(arrays->gradient);
    free(arrays->bytes);
    free(arrays->uses);
    free(arrays->skips);
}

static bool allocate_arrays(arrays_t *arrays)
{
    size_t parts = (size_t)arrays->stages * (size_t)arrays->slices;

    arrays->forward = calloc(parts, sizeof(int64_t));
    arrays->backward = calloc(parts, sizeof(int64_t));
    arrays->weight = calloc(parts, sizeof(int64_t));
    arrays->update = calloc(parts, sizeof(int64_t));
    arrays->activation = calloc(parts, sizeof(int64_t));
    arrays->gradient = calloc(parts, sizeof(int64_t));
    arrays->bytes = calloc(parts, sizeof(int64_t));
    arrays->skips = calloc((size_t)arrays->skip_count + 1, sizeof(*arrays->skips));
    return arrays->forward != NULL && arrays->backward != NULL && arrays->weight != NULL &&
           arrays->update != NULL && arrays->activation != NULL && arrays->gradient != NULL &&
           arrays->bytes != NULL && arrays->skips != NULL;
}

/* Seconds that are beyond any step become a number that the simulator refuses by its sum. */
static int64_t nanoseconds(double seconds)
{
    return seconds < 9e9 ? llround(1e9 * seconds) : INT64_MAX / 4;
}

/* The halves of a backward pass are taken to be equal, without the forward pass that recomputing
 * repeats. Virtual stages and slices divide times and bytes evenly: the plan does not know
 * better. */
static void fill_stages(const ap_plan_t *plan, arrays_t *arrays)
{
    int devices = ap_plan_stages(plan), chunks = arrays->stages / devices;
    double parts = (double)chunks * arrays->slices;

    for (int stage = 0; stage < arrays->stages; ++stage) {
        const ap_plan_stage_t *of = ap_plan_stage(plan, stage % devices);
        double weight = 0.5 * (of->backward - (of->recompute ? of->forward : 0.0));

        weight = weight > 0.0 ? weight : 0.0;
        arrays->update[stage] = nanoseconds((of->sync + of->update) / chunks);
        for (int i = stage * arrays->slices; i < (stage + 1) * arrays->slices; ++i) {
            arrays->forward[i] = nanoseconds(of->forward / parts);
            arrays->weight[i] = nanoseconds(weight / parts);
            arrays->backward[i] = nanoseconds((of->backward - weight) / parts);
            arrays->bytes[i] = (int64_t)llround(of->activation_bytes / parts);
        }
    }
}

static xm_status_t read_tensor(const ap_plan_tensor_t *tensor, ap_cross_mesh_tensor_t *read)
{
    xm_status_t status = ap_spec_parse(tensor->src, tensor->rank, 2, &read->src);

    read->shape.rank = tensor->rank;
    read->element_size = (int)tensor->element_size;
    memcpy(read->shape.dims, tensor->shape, (size_t)tensor->rank * sizeof(tensor->shape[0]));
    return status == XM_OK ? ap_spec_parse(tensor->dst, tensor->rank, 2, &read->dst) : status;
}

/* Prices the tensors of @p like, in their layouts, from the mesh of one stage to that of another.
 */
static xm_status_t price(ap_cross_mesh_t *cross_mesh, const ap_plan_boundary_t *like,
                         const ap_plan_side_t *src, const ap_plan_side_t *dst, passing_t *passing)
{
    ap_cross_mesh_tensor_t *tensors = calloc((size_t)like->more_count + 1, sizeof(*tensors));
    const ap_cross_mesh_transfer_t transfer = {
        .src = {src->devices[0], {src->shape[0], src->shape[1]}},
        .dst = {dst->devices[0], {dst->shape[0], dst->shape[1]}},
        .tensors = tensors,
        .count = like->more_count + 1};
    xm_status_t status = XM_OK;

    if (tensors == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for the tensors of a resharding");
    }
    for (int i = 0; i < transfer.count && status == XM_OK; ++i) {
        const ap_plan_tensor_t tensor = ap_plan_boundary_tensor(like, i);

        status = read_tensor(&tensor, &tensors[i]);
    }
    if (status == XM_OK) {
        status = ap_cross_mesh_cost(cross_mesh, &transfer, &passing->cost);
    }
    if (status == XM_OK) {
        status = ap_cross_mesh_loads(cross_mesh, &transfer, &passing->priced, &passing->link_count);
        passing->links = passing->priced;
    }
    free(tensors);
    return status;
}

/* What a boundary of the plan takes, as the plan says or anew. */
static xm_status_t find_boundary(const ap_plan_boundary_t *boundary, ap_cross_mesh_t *cross_mesh,
                                 passing_t *passing)
{
    if (cross_mesh != NULL) {
        return price(cross_mesh, boundary, &boundary->src, &boundary->dst, passing);
    }
    *passing = (passing_t){.cost = {.forward = boundary->forward, .backward = boundary->backward},
                           .links = boundary->links,
                           .link_count = boundary->link_count};
    return XM_OK;
}

/* What passes from device @p device to the next: its boundary, or from the last back to the first,
 * for virtual stages. Without a profile, the way back is taken to cost what the largest boundary
 * does. */
static xm_status_t find_passing(const ap_plan_t *plan, ap_cross_mesh_t *cross_mesh, int device,
                                passing_t *passing)
{
    ap_cross_mesh_cost_t *cost = &passing->cost;
    int boundaries = ap_plan_stages(plan) - 1;
    const ap_plan_boundary_t *last;

    if (device < boundaries) {
        return find_boundary(ap_plan_boundary(plan, device), cross_mesh, passing);
    }
    if (boundaries == 0) {
        return XM_OK;
    }
    last = ap_plan_boundary(plan, boundaries - 1);
    if (cross_mesh != NULL) {
        return price(cross_mesh, last, &last->dst, &ap_plan_boundary(plan, 0)->src, passing);
    }
    for (int i = 0; i < boundaries; ++i) {
        cost->forward = fmax(cost->forward, ap_plan_boundary(plan, i)->forward);
        cost->backward = fmax(cost->backward, ap_plan_boundary(plan, i)->backward);
    }
    return XM_OK;
}

/* Adds the share of a NIC's or uplink's direction that the messages of a channel take while alone.
 * Links are numbered so that host and rack of one index, and both directions, differ. */
static void add_use(arrays_t *arrays, int channel, const ap_link_load_t *link, int direction,
                    double busy, double seconds)
{
    if (busy > 0.0 && seconds > 0.0) {
        arrays->uses[arrays->use_count++] =
            (ap_pipeline_use_t){.channel = channel,
                                .link = 2 * AP_LINK_DIRECTIONS * link->index +
                                        (link->rack ? AP_LINK_DIRECTIONS : 0) + direction,
                                .share = busy / seconds};
    }
}

/* Notes the links of messages that pass in channel @p there, and of their gradients in @p back. */
static xm_status_t add_uses(const passing_t *passing, int there, int back, arrays_t *arrays)
{
    size_t most =
        (size_t)arrays->use_count + 2 * AP_LINK_DIRECTIONS * (size_t)passing->link_count + 1;
    ap_pipeline_use_t *grown = realloc(arrays->uses, most * sizeof(*grown));

    if (grown == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d NICs", passing->link_count);
    }
    arrays->uses = grown;
    for (int i = 0; i < passing->link_count; ++i) {
        const ap_link_load_t *link = &passing->links[i];

        for (int d = 0; d < AP_LINK_DIRECTIONS; ++d) {
            add_use(arrays, there, link, d, link->forward[d], passing->cost.forward);
            add_use(arrays, back, link, d, link->backward[d], passing->cost.backward);
        }
    }
    return XM_OK;
}

/* What passes over stages has channels of its own. */
static xm_status_t fill_skips(const ap_plan_t *plan, ap_cross_mesh_t *cross_mesh, arrays_t *arrays)
{
    int devices = ap_plan_stages(plan);

    for (int i = 0; i < arrays->skip_count; ++i) {
        const ap_plan_boundary_t *boundary = ap_plan_boundary(plan, devices - 1 + i);
        passing_t passing = {0};
        xm_status_t status = find_boundary(boundary, cross_mesh, &passing);

        if (status == XM_OK) {
            arrays->skips[i] = (ap_pipeline_skip_t){boundary->from, boundary->to,
                                                    nanoseconds(passing.cost.forward),
                                                    nanoseconds(passing.cost.backward)};
            status = add_uses(&passing, ap_pipeline_skip_channel(devices, i, false),
                              ap_pipeline_skip_channel(devices, i, true), arrays);
        }
        free(passing.priced);
        if (status != XM_OK) {
            return xm_error_prefix(status, "resharding %d", devices - 1 + i);
        }
    }
    return XM_OK;
}

static xm_status_t fill_boundaries(const ap_plan_t *plan, ap_cross_mesh_t *cross_mesh,
                                   arrays_t *arrays)
{
    int devices = ap_plan_stages(plan);

    for (int stage = 0; stage + 1 < arrays->stages; ++stage) {
        passing_t passing = {0};
        xm_status_t status = find_passing(plan, cross_mesh, stage % devices, &passing);

        if (status != XM_OK) {
            return xm_error_prefix(status, "resharding %d", stage);
        }
        for (int i = stage * arrays->slices; i < (stage + 1) * arrays->slices; ++i) {
            arrays->activation[i] = nanoseconds(passing.cost.forward / arrays->slices);
            arrays->gradient[i] = nanoseconds(passing.cost.backward / arrays->slices);
        }
        /* Further parts of a stage use its channels as well, and so does the way back from the
         * second of two devices; each channel's uses are added once. */
        if (stage + 1 < devices || (stage < devices && devices > 2)) {
            int to = (stage + 1) % devices;

            status = add_uses(&passing, ap_pipeline_channel(devices, stage, to),
                              ap_pipeline_channel(devices, to, stage), arrays);
        }
        free(passing.priced);
        if (status != XM_OK) {
            return status;
        }
    }
    return fill_skips(plan, cross_mesh, arrays);
}

/* Prices boundaries as the plan predicts, or anew on a profile, on which meshes are looked at in
 * the plan's order of hosts. */
static xm_status_t price_boundaries(const ap_plan_t *plan, const xm_cluster_profile_t *profile,
                                    arrays_t *arrays)
{
    ap_cross_mesh_t *cross_mesh = NULL;
    ap_plan_view_t view;
    xm_status_t status;

    if (profile == NULL) {
        return fill_boundaries(plan, NULL, arrays);
    }
    status = ap_plan_view_open(plan, profile, &view);
    if (status == XM_OK) {
        status = ap_cross_mesh_create(view.profile, &cross_mesh);
    }
    if (status == XM_OK) {
        status = fill_boundaries(view.plan, cross_mesh, arrays);
    }
    ap_cross_mesh_destroy(cross_mesh);
    ap_plan_view_close(&view);
    return status;
}

static xm_status_t make_schedule(const ap_plan_t *plan, const ap_plan_simulation_t *simulation,
                                 const arrays_t *arrays, ap_schedule_t **schedule)
{
    ap_schedule_params_t params = AP_SCHEDULE_PARAMS_INIT;
    int64_t micro_batches = simulation->micro_batches > 0 ? simulation->micro_batches
                                                          : ap_plan_info(plan)->micro_batches;
    xm_status_t status;

    if (micro_batches > INT32_MAX) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT, "%" PRId64 " micro-batches are too many",
                            micro_batches);
    }
    params.kind = simulation->kind;
    params.devices = ap_plan_stages(plan);
    params.micro_batches = (int)micro_batches;
    params.virtual_stages = arrays->stages / params.devices;
    params.slices = arrays->slices;
    params.batches = simulation->batches;
    params.activation_bytes = arrays->bytes;
    status = ap_schedule_create(&params, schedule);
    if (status == XM_OK) {
        status = ap_schedule_check(*schedule, NULL);
        if (status != XM_OK) {
            ap_schedule_destroy(*schedule);
        }
    }
    return status;
}

static xm_status_t run_schedule(const ap_plan_simulation_t *simulation, const arrays_t *arrays,
                                ap_schedule_t *schedule, ap_pipeline_run_t **run)
{
    ap_pipeline_times_t times = AP_PIPELINE_TIMES_INIT;

    times.forward = arrays->forward;
    times.backward = arrays->backward;
    times.weight = arrays->weight;
    times.activation = arrays->activation;
    times.gradient = arrays->gradient;
    times.update = arrays->update;
    times.uses = arrays->uses;
    times.use_count = arrays->use_count;
    times.skips = arrays->skips;
    times.skip_count = arrays->skip_count;
    times.blocking = simulation->blocking;
    return ap_pipeline_simulate(schedule, &times, run);
}

/* The numbers of parts are bounded before their product is used. The caller gets schedule and run
 * only together. */
xm_status_t ap_plan_simulate(const ap_plan_t *plan, const ap_plan_simulation_t *simulation,
                             ap_schedule_t **result, ap_pipeline_run_t **run)
{
    int devices = ap_plan_stages(plan);
    int chunks = simulation->virtual_stages > 0                ? simulation->virtual_stages
                 : simulation->kind == AP_SCHEDULE_INTERLEAVED ? 2
                                                               : 1;
    arrays_t arrays = {.stages = devices * chunks,
                       .slices = simulation->slices > 0 ? simulation->slices : 1,
                       .skip_count = ap_plan_boundaries(plan) + 1 - devices};
    ap_schedule_t *schedule = NULL;
    xm_status_t status;

    if (chunks > (1 << 20) / devices || arrays.slices > (1 << 20) / arrays.stages) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "%d virtual stages and %d slices on %d stages are too many", chunks,
                            arrays.slices, devices);
    }
    if (allocate_arrays(&arrays)) {
        fill_stages(plan, &arrays);
        status = price_boundaries(plan, simulation->profile, &arrays);
    } else {
        status = xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d stages", arrays.stages);
    }
    if (status == XM_OK) {
        status = make_schedule(plan, simulation, &arrays, &schedule);
    }
    if (status == XM_OK) {
        status = run_schedule(simulation, &arrays, schedule, run);
        if (status == XM_OK) {
            *result = schedule;
        } else {
            ap_schedule_destroy(schedule);
        }
    }
    free_arrays(&arrays);
    return status;
}

xm_status_t ap_plan_check_schedule(ap_schedule_kind_t kind)
{
    return ap_plan_can_have(kind)
               ? XM_OK
               : xm_error_set(
                     XM_ERR_UNSUPPORTED,
                     "%s does not keep one stage to a device or whole micro-batches, which "
                     "a plan cannot say; autopar simulate shows what it would give",
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
    return xm_error_set(
        XM_ERR_NO_SOLUTION,
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
 * step. The search's own sum and bottleneck stay, for they say how the plan was found. */
static xm_status_t rebuild(const ap_plan_t *plan, const ap_schedule_t *schedule,
                           const ap_pipeline_run_t *run, const terms_t *terms, ap_plan_t **result)
{
    int count = ap_plan_stages(plan);
    ap_plan_params_t params = AP_PLAN_PARAMS_INIT;
    ap_plan_stage_t *stages = calloc((size_t)count, sizeof(*stages));
    ap_plan_boundary_t *boundaries =
        calloc((size_t)ap_plan_boundaries(plan) + 1, sizeof(*boundaries));
    char optimiser[256];
    xm_status_t status = XM_OK;

    if (stages == NULL || boundaries == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "out of memory for a plan of %d stages", count);
        goto free_parts;
    }
    for (int i = 0; i < count && status == XM_OK; ++i) {
        int versions;

        stages[i] = *ap_plan_stage(plan, i);
        stages[i].in_flight = in_flight(schedule, i);
        versions = terms->stash ? stages[i].in_flight : schedule->versions;
        stages[i].state_bytes *= 1.0 + terms->version_share * (versions - 1);
        if (terms->refuse) {
            status = check_memory(plan, schedule->kind, i, &stages[i]);
        }
    }
    for (int i = 0; i < ap_plan_boundaries(plan); ++i) {
        boundaries[i] = *ap_plan_boundary(plan, i);
    }
    params.info = *ap_plan_info(plan);
    (void)snprintf(optimiser, sizeof(optimiser), "%.200s; schedule simulated",
                   params.info.optimiser);
    params.info.optimiser = optimiser;
    params.info.schedule = ap_schedule_name(schedule->kind);
    params.info.memory_limit = terms->memory_limit;
    params.info.step = 1e-9 * (double)run->step_ns;
    params.stages = stages;
    params.stage_count = count;
    params.boundaries = boundaries;
    params.skip_count = ap_plan_boundaries(plan) + 1 - count;
    if (status == XM_OK) {
        status = ap_plan_create(&params, result);
    }

free_parts:
    free(boundaries);
    free(stages);
    return status;
}

static xm_status_t reschedule(const ap_plan_t *plan, ap_schedule_kind_t kind, const terms_t *terms,
                              ap_plan_t **result)
{
    ap_plan_simulation_t simulation = AP_PLAN_SIMULATION_INIT;
    ap_pipeline_run_t *run = NULL;
    ap_schedule_t *schedule = NULL;
    xm_status_t status = ap_plan_check_schedule(kind);

    if (status != XM_OK) {
        return status;
    }
    /* This is no fault of the caller: with more micro-batches there can be such a schedule. */
    if (kind == AP_SCHEDULE_PIPEDREAM_2BW &&
        ap_plan_info(plan)->micro_batches < ap_plan_stages(plan)) {
        return xm_error_set(XM_ERR_NO_SOLUTION,
                            "%s: two versions of the parameters need at least as many "
                            "micro-batches as stages: %" PRId64 " for %d",
                            ap_schedule_name(kind), ap_plan_info(plan)->micro_batches,
                            ap_plan_stages(plan));
    }
    simulation.kind = kind;
    status = ap_plan_simulate(plan, &simulation, &schedule, &run);
    if (status == XM_OK) {
        status = rebuild(plan, schedule, run, terms, result);
    }
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
    return status;
}

xm_status_t ap_plan_reschedule(const ap_plan_t *plan, ap_schedule_kind_t kind, ap_plan_t **result)
{
    terms_t terms = {.version_share = VERSION_SHARE,
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

        if (!ap_plan_can_have(kind) || !ap_schedule_is_synchronous(kind) || i == AP_SCHEDULE_1F1B) {
            continue;
        }
        status = ap_plan_reschedule(plan, kind, &candidate);
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
