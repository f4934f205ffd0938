/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedules as lists of what each device does. Lists cost some memory (a few million entries at
 * most), but whatever looks at a schedule (checker, simulator, figure, runtime) needs no knowledge
 * of its kind, and a new schedule is one more order of passes.
 *
 * A writer per device turns each pass into entries: what it waits for, the pass, what others wait
 * for, with the bytes of activations held at every moment.
 */

#include "planner/pipeline/schedule.h"

#include <inttypes.h>
#include <stdlib.h>

#include "comm/base.h"
#include "planner/pipeline/order.h"

/* Most passes of one kind, over all stages; and most devices. */
enum { MOST_PASSES = 1 << 22, MOST_DEVICES = 4096, DEFAULT_BATCHES = 3 };

#define FLUSHES .synchronous = true
/* Two stages to a device, down the devices and up again. */
#define V_SHAPED FLUSHES, .ahead = 1, .first = 1, .chunks = 2, .splits = true, .v = true

static const ap_schedule_traits_t kinds[AP_SCHEDULE_KINDS] = {
    [AP_SCHEDULE_GPIPE] = {"gpipe", FLUSHES, .first = 1},
    [AP_SCHEDULE_1F1B] = {"1f1b", FLUSHES, .ahead = 1, .first = 1},
    [AP_SCHEDULE_INTERLEAVED] = {"interleaved", FLUSHES, .ahead = 1, .first = 1, .chunks = 2},
    [AP_SCHEDULE_EAGER_1F1B] = {"eager-1f1b", FLUSHES, .ahead = 2, .first = 1},
    [AP_SCHEDULE_EAGER_1F1B_W] = {"eager-1f1b-w", FLUSHES, .ahead = 2, .first = 1, .splits = true,
                                  .filled = 1},
    [AP_SCHEDULE_CHIMERA] = {"chimera", FLUSHES, .ahead = 1, .first = 1},
    [AP_SCHEDULE_ZB_H1] = {"zb-h1", FLUSHES, .ahead = 1, .first = 1, .delay = 1, .splits = true,
                           .filled = 2},
    [AP_SCHEDULE_ZB_H2] = {"zb-h2", FLUSHES, .ahead = 2, .first = 1, .delay = 2, .splits = true,
                           .filled = 2},
    [AP_SCHEDULE_TERAPIPE] = {"terapipe", FLUSHES, .ahead = 1, .first = 1},
    [AP_SCHEDULE_PIPEDREAM_2BW] = {"pipedream-2bw", .ahead = 1, .first = 1},
    [AP_SCHEDULE_ZB_V] = {"zb-v", V_SHAPED},
    [AP_SCHEDULE_DUALPIPEV] = {"dualpipev", V_SHAPED},
    [AP_SCHEDULE_PIPEDREAM] = {"pipedream", .ahead = 1, .first = 1, .updates_each = true},
    [AP_SCHEDULE_PIPEMARE] = {"pipemare", .ahead = 2, .first = 2},
    [AP_SCHEDULE_HETPIPE] = {"hetpipe", .ahead = 1, .first = 1, .updates_each = true},
    [AP_SCHEDULE_VARUNA] = {"varuna", FLUSHES, .ahead = 2, .first = 2, .beyond_list = true}};

static const char *const pass_names[AP_PASSES] = {
    "forward",         "backward",           "weight",        "update",
    "send activation", "receive activation", "send gradient", "receive gradient"};

/* The list of one device while it is written. A lack of memory sticks and is told at the end,
 * because the order's makers call back without a way to fail. */
typedef struct writer {
    ap_schedule_t *schedule;
    int device;
    size_t capacity;
    int64_t held;
    int updates; /* that are in the list */
    bool no_memory;
} writer_t;

const ap_schedule_traits_t *ap_schedule_traits(ap_schedule_kind_t kind)
{
    return &kinds[kind];
}

const char *ap_schedule_name(ap_schedule_kind_t kind)
{
    return kinds[kind].name;
}

xm_status_t ap_schedule_find(const char *name, ap_schedule_kind_t *kind)
{
    const char *names[AP_SCHEDULE_KINDS];
    int index;

    for (int i = 0; i < AP_SCHEDULE_KINDS; ++i) {
        names[i] = kinds[i].name;
    }
    XM_TRY(xm_text_choose("pipeline schedule", name, names, AP_SCHEDULE_KINDS, &index));
    *kind = (ap_schedule_kind_t)index;
    return XM_OK;
}

const char *ap_pass_name(ap_pass_t pass)
{
    return pass_names[pass];
}

bool ap_schedule_is_synchronous(ap_schedule_kind_t kind)
{
    return kinds[kind].synchronous;
}

int ap_schedule_versions(const ap_schedule_t *schedule, int stage)
{
    return schedule->kind == AP_SCHEDULE_PIPEDREAM ? schedule->stages - stage : schedule->versions;
}

double ap_schedule_delay(const ap_schedule_t *schedule, int stage)
{
    int device = schedule->device_of[stage], first = schedule->batches - schedule->updates;
    double late = 0.0;

    for (int i = 0; i < schedule->op_count[device]; ++i) {
        const ap_schedule_op_t *op = &schedule->ops[device][i];
        int batch = op->micro_batch / schedule->micro_batches;

        if (op->pass == AP_PASS_FORWARD && op->stage == stage && batch >= first) {
            late += batch - op->version;
        }
    }
    return late / schedule->updates / schedule->micro_batches / schedule->slices;
}

/* The peaks of the lists in closed form, for searches that ask per stage without making a list. */
int64_t ap_schedule_in_flight(ap_schedule_kind_t kind, int before, int after, int64_t micro_batches)
{
    const ap_schedule_traits_t *of = &kinds[kind];
    int64_t held = (int64_t)of->ahead * after + (int64_t)of->delay * before + of->first;

    return of->ahead > 0 && held < micro_batches ? held : micro_batches;
}

int ap_schedule_chunks(ap_schedule_kind_t kind)
{
    return kinds[kind].chunks > 0 ? kinds[kind].chunks : 1;
}

int ap_schedule_device(ap_schedule_kind_t kind, int devices, int stage)
{
    return kinds[kind].v && stage >= devices ? 2 * devices - 1 - stage : stage % devices;
}

int ap_schedule_accumulated(ap_schedule_kind_t kind, int micro_batches)
{
    return kinds[kind].updates_each ? 1 : micro_batches;
}

double ap_schedule_fill_share(ap_schedule_kind_t kind, double weight)
{
    return kinds[kind].synchronous ? 1.0 - kinds[kind].filled * weight : 0.0;
}

static void append(writer_t *writer, const ap_schedule_op_t *op)
{
    ap_schedule_t *schedule = writer->schedule;
    int count = schedule->op_count[writer->device];

    writer->no_memory =
        writer->no_memory || !XM_ARRAY_ROOM(schedule->ops[writer->device], writer->capacity, count);
    if (!writer->no_memory) {
        schedule->ops[writer->device][count] = *op;
        schedule->ops[writer->device][count].held = writer->held;
        ++schedule->op_count[writer->device];
    }
}

static void append_transfer(writer_t *writer, const ap_schedule_op_t *of, ap_pass_t pass,
                            int other_stage)
{
    const ap_schedule_t *schedule = writer->schedule;
    ap_schedule_op_t op = *of;

    if (other_stage >= 0 && other_stage < schedule->stages &&
        schedule->device_of[of->pipeline * schedule->stages + other_stage] != writer->device) {
        op.pass = pass;
        append(writer, &op);
    }
}

/* Writes the pass, what it waits for before it, what others wait for after it. Activations are held
 * from the forward pass on; the part that the weight half needs stays until then. */
static void put_pass(void *arg, ap_pass_t pass, int pipeline, int stage, int micro_batch, int slice)
{
    writer_t *writer = arg;
    const ap_schedule_t *schedule = writer->schedule;
    int batch = micro_batch / schedule->micro_batches, part = stage * schedule->slices + slice;
    int versions = ap_schedule_versions(schedule, stage);
    ap_schedule_op_t op = {.pass = pass,
                           .pipeline = pipeline,
                           .stage = stage,
                           .micro_batch = micro_batch,
                           .slice = slice,
                           .version = schedule->kind == AP_SCHEDULE_PIPEMARE ? writer->updates
                                      : batch < versions                     ? 0
                                                         : batch - versions + 1};

    switch (pass) {
    case AP_PASS_FORWARD:
        append_transfer(writer, &op, AP_PASS_RECEIVE_ACTIVATION, stage - 1);
        writer->held += schedule->activation_bytes[part];
        append(writer, &op);
        append_transfer(writer, &op, AP_PASS_SEND_ACTIVATION, stage + 1);
        break;
    case AP_PASS_BACKWARD:
        append_transfer(writer, &op, AP_PASS_RECEIVE_GRADIENT, stage + 1);
        append(writer, &op);
        writer->held -= schedule->activation_bytes[part];
        writer->held += schedule->split ? schedule->weight_bytes[part] : 0;
        append_transfer(writer, &op, AP_PASS_SEND_GRADIENT, stage - 1);
        break;
    default:
        append(writer, &op);
        writer->held -= schedule->weight_bytes[part];
        break;
    }
}

static bool is_last_of_batch(const ap_schedule_t *schedule, const ap_schedule_op_t *op)
{
    ap_pass_t last = schedule->split ? AP_PASS_WEIGHT : AP_PASS_BACKWARD;

    return op->pass == last &&
           op->micro_batch % schedule->micro_batches == schedule->micro_batches - 1;
}

/* Without a flush, updates stand between the passes: a batch's after its last gradient. */
static void put_between(void *arg, ap_pass_t pass, int pipeline, int stage, int micro_batch,
                        int slice)
{
    writer_t *writer = arg;
    const ap_schedule_op_t done = {.pass = pass, .micro_batch = micro_batch};

    put_pass(arg, pass, pipeline, stage, micro_batch, slice);
    if (is_last_of_batch(writer->schedule, &done)) {
        int batch = micro_batch / writer->schedule->micro_batches;
        const ap_schedule_op_t update = {
            .pass = AP_PASS_UPDATE, .stage = stage, .micro_batch = batch, .version = batch};

        append(writer, &update);
        ++writer->updates;
    }
}

/* Both directions of chimera have all stages, so a device updates each copy that it holds. */
static void put_updates(writer_t *writer)
{
    const ap_schedule_t *schedule = writer->schedule;

    for (int i = 0; i < schedule->pipelines * schedule->stages; ++i) {
        const ap_schedule_op_t update = {.pass = AP_PASS_UPDATE,
                                         .pipeline = i / schedule->stages,
                                         .stage = i % schedule->stages};

        if (schedule->device_of[i] == writer->device) {
            append(writer, &update);
        }
    }
}

static xm_status_t write_device(ap_schedule_t *schedule, int device)
{
    writer_t writer = {.schedule = schedule, .device = device};
    ap_order_sink_t sink = {put_pass, &writer};
    xm_status_t status = XM_OK;

    switch (schedule->kind) {
    case AP_SCHEDULE_GPIPE:
    case AP_SCHEDULE_TERAPIPE:
        ap_order_flush(schedule, device, &sink);
        break;
    case AP_SCHEDULE_INTERLEAVED:
        ap_order_interleaved(schedule, device, &sink);
        break;
    case AP_SCHEDULE_CHIMERA:
        status = ap_order_chimera(schedule, device, &sink);
        break;
    case AP_SCHEDULE_ZB_V:
        ap_order_zb_v(schedule, device, &sink);
        break;
    case AP_SCHEDULE_DUALPIPEV:
        ap_order_dualpipev(schedule, device, &sink);
        break;
    default:
        sink.put = ap_schedule_is_synchronous(schedule->kind) ? sink.put : put_between;
        ap_order_one_by_one(schedule, device, &sink);
        break;
    }
    /* The pipeline is empty at the end of a synchronous step, so all updates come last. */
    if (ap_schedule_is_synchronous(schedule->kind)) {
        put_updates(&writer);
    }
    if (status == XM_OK && writer.no_memory) {
        status = XM_NO_MEMORY("the schedule of device %d", device);
    }
    return status;
}

static xm_status_t check_numbers(const ap_schedule_params_t *params)
{
    const char *name;

    if ((int)params->kind < 0 || (int)params->kind >= AP_SCHEDULE_KINDS) {
        return XM_INVALID("a schedule needs a kind");
    }
    name = kinds[params->kind].name;
    if (params->devices < 1 || params->devices > MOST_DEVICES || params->micro_batches < 1) {
        return XM_INVALID(
            "%s: %d micro-batches on %d devices: at least one of each, and at most %d devices",
            name, params->micro_batches, params->devices, MOST_DEVICES);
    }
    if (params->virtual_stages < 0 ||
        (params->virtual_stages > 0 && params->kind != AP_SCHEDULE_INTERLEAVED &&
         params->virtual_stages != ap_schedule_chunks(params->kind))) {
        return XM_INVALID("%s has %s on a device, not %d", name,
                          kinds[params->kind].v ? "two stages" : "one stage",
                          params->virtual_stages);
    }
    if (params->slices < 0 || (params->slices > 1 && params->kind != AP_SCHEDULE_TERAPIPE)) {
        return XM_INVALID("%s does not cut micro-batches into %d slices", name, params->slices);
    }
    if (params->batches < 0 || (params->batches > 1 && ap_schedule_is_synchronous(params->kind))) {
        return XM_INVALID("%s empties the pipeline after each batch: %d batches are %d schedules",
                          name, params->batches, params->batches);
    }
    return XM_OK;
}

/* What a schedule of this kind asks of the numbers. The bound on passes keeps every count of them
 * within an int. */
static xm_status_t check_fit(const ap_schedule_t *schedule)
{
    const char *name = kinds[schedule->kind].name;
    int devices = schedule->devices, micro_batches = schedule->micro_batches;

    if (schedule->kind == AP_SCHEDULE_CHIMERA && devices % 2 != 0) {
        return XM_INVALID("%s needs an even number of devices, not %d", name, devices);
    }
    if (schedule->kind == AP_SCHEDULE_INTERLEAVED && micro_batches % devices != 0) {
        return XM_INVALID("%s needs micro-batches in multiples of the %d devices, not %d", name,
                          devices, micro_batches);
    }
    if (schedule->kind == AP_SCHEDULE_PIPEDREAM_2BW && micro_batches < devices) {
        return XM_INVALID("%s keeps two versions of the parameters only with at least as many "
                          "micro-batches as devices: %d for %d",
                          name, micro_batches, devices);
    }
    if (schedule->kind == AP_SCHEDULE_DUALPIPEV && micro_batches < 2 * devices) {
        return XM_INVALID("%s needs at least two micro-batches to each of the %d devices, not %d",
                          name, devices, micro_batches);
    }
    if ((int64_t)schedule->pipelines * schedule->stages * micro_batches >
        MOST_PASSES / schedule->slices / schedule->batches) {
        return XM_INVALID(
            "%s: %d stages, %d micro-batches of %d slices, %d batches are more than %d passes",
            name, schedule->stages, micro_batches, schedule->slices, schedule->batches,
            MOST_PASSES);
    }
    return XM_OK;
}

static xm_status_t fill_bytes(const ap_schedule_params_t *params, ap_schedule_t *schedule)
{
    for (int i = 0; i < schedule->stages * schedule->slices; ++i) {
        int64_t bytes = params->activation_bytes != NULL ? params->activation_bytes[i] : 1;
        int64_t weight = params->weight_bytes != NULL ? params->weight_bytes[i] : bytes;

        /* The bytes of all parts together must fit 64 bits, for a device may hold them all. */
        if (bytes < 0 || weight < 0 || weight > bytes ||
            bytes > INT64_MAX / 2 / schedule->micro_batches / schedule->batches / schedule->stages /
                        schedule->slices) {
            return XM_INVALID("stage %d, slice %d: %" PRId64 " bytes of activations, %" PRId64
                              " of them for weight gradients",
                              i / schedule->slices, i % schedule->slices, bytes, weight);
        }
        schedule->activation_bytes[i] = bytes;
        schedule->weight_bytes[i] = weight;
    }
    return XM_OK;
}

static xm_status_t allocate(ap_schedule_t *schedule)
{
    size_t parts = (size_t)schedule->stages * (size_t)schedule->slices;
    xm_arena_t *arena = &schedule->arena;

    schedule->device_of =
        xm_arena_get(arena, (size_t)schedule->pipelines * (size_t)schedule->stages, sizeof(int));
    schedule->op_count = xm_arena_get(arena, (size_t)schedule->devices, sizeof(int));
    schedule->ops = xm_arena_get(arena, (size_t)schedule->devices, sizeof(*schedule->ops));
    schedule->activation_bytes = xm_arena_get(arena, parts, sizeof(int64_t));
    schedule->weight_bytes = xm_arena_get(arena, parts, sizeof(int64_t));
    XM_NEED_MEMORY(!arena->failed, "a schedule of %d devices", schedule->devices);
    for (int stage = 0; stage < schedule->stages; ++stage) {
        schedule->device_of[stage] = ap_schedule_device(schedule->kind, schedule->devices, stage);
        if (schedule->pipelines == 2) {
            schedule->device_of[schedule->stages + stage] = schedule->devices - 1 - stage;
        }
    }
    return XM_OK;
}

static void set_numbers(const ap_schedule_params_t *params, ap_schedule_t *schedule)
{
    ap_schedule_kind_t kind = params->kind;
    int chunks = params->virtual_stages > 0 ? params->virtual_stages : ap_schedule_chunks(kind);

    schedule->kind = kind;
    schedule->devices = params->devices;
    /* Capped, so that the product cannot overflow; check_fit() then refuses it in a sentence. */
    schedule->stages =
        chunks > MOST_PASSES / params->devices ? MOST_PASSES : params->devices * chunks;
    schedule->pipelines = kind == AP_SCHEDULE_CHIMERA ? 2 : 1;
    schedule->micro_batches = ap_schedule_accumulated(kind, params->micro_batches);
    schedule->slices = params->slices > 0 ? params->slices : 1;
    schedule->batches = params->batches > 0                ? params->batches
                        : ap_schedule_is_synchronous(kind) ? 1
                        : kind == AP_SCHEDULE_PIPEMARE     ? DEFAULT_BATCHES + 1
                                                           : DEFAULT_BATCHES;
    schedule->updates = params->micro_batches / schedule->micro_batches;
    schedule->versions = kind == AP_SCHEDULE_PIPEDREAM_2BW ? 2 : 1;
    if (kinds[kind].updates_each) {
        schedule->versions = params->devices;
        schedule->batches = schedule->batches > MOST_PASSES / schedule->updates
                                ? MOST_PASSES + 1
                                : schedule->batches * schedule->updates;
    }
    schedule->split = kinds[kind].splits;
}

xm_status_t ap_schedule_create(const ap_schedule_params_t *params, ap_schedule_t **result)
{
    ap_schedule_t *schedule;
    xm_status_t status;

    XM_TRY(check_numbers(params));
    schedule = calloc(1, sizeof(*schedule));
    XM_NEED_MEMORY(schedule, "a schedule");
    set_numbers(params, schedule);
    status = check_fit(schedule);
    XM_THEN(status, allocate(schedule));
    XM_THEN(status, fill_bytes(params, schedule));
    for (int device = 0; device < schedule->devices && status == XM_OK; ++device) {
        status = write_device(schedule, device);
    }
    if (status != XM_OK) {
        ap_schedule_destroy(schedule);
        return status;
    }
    *result = schedule;
    return XM_OK;
}

void ap_schedule_destroy(ap_schedule_t *schedule)
{
    if (schedule == NULL) {
        return;
    }
    for (int device = 0; schedule->ops != NULL && device < schedule->devices; ++device) {
        free(schedule->ops[device]);
    }
    xm_arena_clear(&schedule->arena);
    free(schedule);
}
