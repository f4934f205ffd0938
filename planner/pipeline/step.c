/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Translates a pipeline in seconds for the simulator, which wants whole nanoseconds per part, a
 * list of passes, and shares of links.
 *
 * A schedule is checked every time before it is simulated: that costs little, and a step of an
 * unsafe schedule would be a number without meaning.
 */

#include "planner/pipeline/step.h"

#include <math.h>

#include "planner/pipeline/check.h"
#include "planner/pipeline/times.h"

/* Everything of a simulation that is an array; [stages][slices], [stages] or [stages - 1][slices];
 * and what messages take of hosts' NICs and racks' uplinks. */
typedef struct arrays {
    xm_arena_t arena;
    int stages, slices;
    int64_t *forward, *backward, *weight, *update, *activation, *gradient, *bytes;
    ap_pipeline_use_t *uses;
    int use_count;
    ap_pipeline_skip_t *skips;
    int skip_count;
} arrays_t;

static bool allocate(const ap_pipeline_step_t *step, arrays_t *arrays)
{
    size_t parts = (size_t)arrays->stages * (size_t)arrays->slices, uses = 0;
    int64_t **table[] = {&arrays->forward,    &arrays->backward, &arrays->weight, &arrays->update,
                         &arrays->activation, &arrays->gradient, &arrays->bytes};

    for (int i = 0; i < step->transfer_count; ++i) {
        uses += 2 * AP_LINK_DIRECTIONS * (size_t)step->transfers[i].link_count;
    }
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); ++i) {
        *table[i] = xm_arena_get(&arrays->arena, parts, sizeof(int64_t));
    }
    arrays->uses = xm_arena_take(&arrays->arena, uses * sizeof(*arrays->uses));
    arrays->skips =
        xm_arena_get(&arrays->arena, (size_t)step->transfer_count, sizeof(*arrays->skips));
    return !arrays->arena.failed;
}

/* Seconds that are beyond any step become a number that the simulator refuses by its sum. */
static int64_t nanoseconds(double seconds)
{
    return seconds < 9e9 ? llround(1e9 * seconds) : INT64_MAX / 4;
}

static int devices_of(const ap_pipeline_step_t *step)
{
    return step->devices > 0 ? step->devices : step->stage_count;
}

/* The part of a micro-batch's tokens that a slice has, and the share of its time. */
static double slice_part(const ap_pipeline_step_t *step, const arrays_t *arrays, int slice)
{
    return step->cut != NULL ? step->cut->part[slice] : 1.0 / arrays->slices;
}

static double slice_share(const ap_pipeline_step_t *step, const arrays_t *arrays, int slice)
{
    return step->cut != NULL ? step->cut->share[slice] : 1.0 / arrays->slices;
}

double ap_pipeline_weight_share(double measured)
{
    return measured > 0.0 ? measured : 0.5;
}

/* What a backward pass takes beside a forward pass that runs again in it. */
static double gradients_of(const ap_pipeline_stage_t *stage)
{
    return fmax(stage->backward - (stage->recompute ? stage->forward : 0.0), 0.0);
}

double ap_pipeline_weight_half(const ap_pipeline_stage_t *stage, double share)
{
    return share * gradients_of(stage);
}

static void fill_stages(const ap_pipeline_step_t *step, arrays_t *arrays)
{
    int chunks = arrays->stages / step->stage_count, devices = devices_of(step);
    double split = ap_schedule_traits(step->kind)->splits ? fmax(step->split, 1.0) : 1.0;

    for (int stage = 0; stage < arrays->stages; ++stage) {
        const ap_pipeline_stage_t *of =
            &step->stages[chunks == 1 ? stage : ap_schedule_device(step->kind, devices, stage)];
        double weight = split * ap_pipeline_weight_half(of, ap_pipeline_weight_share(step->weight));
        double both = of->backward + (split - 1.0) * gradients_of(of);

        arrays->update[stage] = nanoseconds(of->once / chunks);
        for (int s = 0; s < arrays->slices; ++s) {
            int i = stage * arrays->slices + s;
            double share = slice_share(step, arrays, s) / chunks;

            arrays->forward[i] = nanoseconds(of->forward * share);
            arrays->weight[i] = nanoseconds(weight * share);
            arrays->backward[i] = nanoseconds((both - weight) * share);
            arrays->bytes[i] =
                (int64_t)llround(of->activation_bytes * slice_part(step, arrays, s) / chunks);
        }
    }
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
static void add_uses(arrays_t *arrays, const ap_pipeline_transfer_t *transfer, int there, int back)
{
    for (int i = 0; i < transfer->link_count; ++i) {
        const ap_link_load_t *link = &transfer->links[i];

        for (int d = 0; d < AP_LINK_DIRECTIONS; ++d) {
            add_use(arrays, there, link, d, link->forward[d], transfer->forward);
            add_use(arrays, back, link, d, link->backward[d], transfer->backward);
        }
    }
}

/* What passes over stages has channels of its own. */
static void add_skip(const ap_pipeline_step_t *step, const ap_pipeline_transfer_t *transfer,
                     arrays_t *arrays)
{
    int skip = arrays->skip_count++;

    arrays->skips[skip] =
        (ap_pipeline_skip_t){transfer->from, transfer->to, nanoseconds(transfer->forward),
                             nanoseconds(transfer->backward)};
    add_uses(arrays, transfer, ap_pipeline_skip_channel(devices_of(step), skip, false),
             ap_pipeline_skip_channel(devices_of(step), skip, true));
}

/* Whether a stage hands on to the next by this transfer: the one between them or, where the stages
 * are parts of those given, between their devices. */
static bool hands_on(const ap_pipeline_step_t *step, const ap_pipeline_transfer_t *transfer,
                     bool parts, int stage)
{
    int devices = devices_of(step), from = ap_schedule_device(step->kind, devices, stage);
    int to = ap_schedule_device(step->kind, devices, stage + 1);

    if (!parts) {
        return stage == transfer->from;
    }
    return (from == transfer->from && to == transfer->to) ||
           (ap_schedule_traits(step->kind)->v && from == transfer->to && to == transfer->from);
}

/* Several stages of a device use its channels, and so does the way back from the second of two
 * stages; each channel's uses are added once. */
static void fill_transfers(const ap_pipeline_step_t *step, arrays_t *arrays)
{
    int devices = devices_of(step);

    for (int t = 0; t < step->transfer_count; ++t) {
        const ap_pipeline_transfer_t *transfer = &step->transfers[t];
        int from = ap_schedule_device(step->kind, devices, transfer->from);
        int to = ap_schedule_device(step->kind, devices, transfer->to);

        if (transfer->to > transfer->from + 1) {
            add_skip(step, transfer, arrays);
            continue;
        }
        for (int stage = 0; stage + 1 < arrays->stages; ++stage) {
            if (!hands_on(step, transfer, arrays->stages > step->stage_count, stage)) {
                continue;
            }
            for (int s = 0; s < arrays->slices; ++s) {
                int i = stage * arrays->slices + s;
                double part = slice_part(step, arrays, s);

                arrays->activation[i] = nanoseconds(transfer->forward * part);
                arrays->gradient[i] = nanoseconds(transfer->backward * part);
            }
        }
        if (from != to && transfer->from < devices && (from < to || devices > 2)) {
            add_uses(arrays, transfer, ap_pipeline_channel(devices, from, to),
                     ap_pipeline_channel(devices, to, from));
        }
    }
}

static xm_status_t simulate(const ap_pipeline_step_t *step, const arrays_t *arrays,
                            ap_schedule_t **result, ap_pipeline_run_t **run)
{
    ap_schedule_params_t params = {.kind = step->kind,
                                   .devices = devices_of(step),
                                   .micro_batches = step->micro_batches,
                                   .virtual_stages = arrays->stages / devices_of(step),
                                   .slices = arrays->slices,
                                   .batches = step->batches,
                                   .activation_bytes = arrays->bytes};
    ap_pipeline_times_t times = {.forward = arrays->forward,
                                 .backward = arrays->backward,
                                 .weight = arrays->weight,
                                 .activation = arrays->activation,
                                 .gradient = arrays->gradient,
                                 .update = arrays->update,
                                 .uses = arrays->uses,
                                 .use_count = arrays->use_count,
                                 .skips = arrays->skips,
                                 .skip_count = arrays->skip_count,
                                 .blocking = step->blocking,
                                 .send = nanoseconds(step->send),
                                 .slowdown = step->slowdown,
                                 .jitter = step->jitter,
                                 .seed = step->seed};
    ap_schedule_t *schedule = NULL;
    xm_status_t status = ap_schedule_create(&params, &schedule);

    XM_THEN(status, ap_schedule_check(schedule, NULL));
    XM_THEN(status, ap_pipeline_simulate(schedule, &times, run));
    if (status == XM_OK) {
        *result = schedule;
    } else {
        ap_schedule_destroy(schedule);
    }
    return status;
}

/* The numbers of parts are bounded before their product is used. */
xm_status_t ap_pipeline_step_run(const ap_pipeline_step_t *step, ap_schedule_t **schedule,
                                 ap_pipeline_run_t **run)
{
    int chunks = step->virtual_stages > 0 ? step->virtual_stages : 1;
    arrays_t arrays = {.stages = step->stage_count * chunks,
                       .slices = step->cut != NULL  ? step->cut->count
                                 : step->slices > 0 ? step->slices
                                                    : 1};
    xm_status_t status;

    if (chunks > (1 << 20) / step->stage_count || arrays.slices > (1 << 20) / arrays.stages) {
        return XM_INVALID("%d virtual stages and %d slices on %d stages are too many", chunks,
                          arrays.slices, step->stage_count);
    }
    if (allocate(step, &arrays)) {
        fill_stages(step, &arrays);
        fill_transfers(step, &arrays);
        status = simulate(step, &arrays, schedule, run);
    } else {
        status = XM_NO_MEMORY("%d stages", arrays.stages);
    }
    xm_arena_clear(&arrays.arena);
    return status;
}

xm_status_t ap_pipeline_step_seconds(const ap_pipeline_step_t *step, double *seconds)
{
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;
    XM_TRY(ap_pipeline_step_run(step, &schedule, &run));

    *seconds = 1e-9 * (double)run->step_ns;
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
    return XM_OK;
}
