/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A commit is predicted as what takes longer of finding with encoding, between two agreements of
 * all ranks, and of moving the bytes that are left, and then applying. How idle NICs take the first
 * bytes, and ranks the messages of a commit, an update of so many bytes tells in which all have
 * changed; what is left of longer ones moves at the pace of the plan's makespan.
 *
 * Where ranks have a processor each, bytes move while others are found. Where they share some, a
 * processor that finds serves no message, so the time that finding keeps all of them is added.
 *
 * The parts are rehearsed before, each alone: what takes how long when all ranks do it at once
 * depends on the processors, caches and NICs that they share, which no sum of single rates says.
 */
#include "bench/run/update_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/base.h"
#include "resharding/delta.h"
#include "resharding/layout.h"
#include "resharding/plan.h"

#include <crossmesh/update.h>

enum { PASSES = 5, BLOCK = 128 };

static const int64_t pause_ns = 50000000; /* for NICs to be idle, and for ranks to be asleep */

/* Bytes through a NIC, after which a stream goes on as it is; and of the smallest message. */
enum { STREAM = 2 * 1024 * 1024, MIN_CHUNK = 1024 };

static const double turns_share = 1.0 / 6;

/* How a part of the bytes is streamed. */
typedef struct {
    uint64_t chunk; /* bytes of a message */
    bool turns;     /* reshard.h */
} shape_t;

/* Elements that follow each other in the box of a task and change together. */
static int64_t unit_of(const xm_plan_t *plan, int64_t task, rb_changes_t pattern)
{
    int64_t row;
    xm_box_t box;

    xm_plan_task_box(plan, task, &box);
    row = box.dims > 0 ? box.hi[box.dims - 1] - box.lo[box.dims - 1] : 1;
    if (pattern == RB_CHANGES_UNIFORM) {
        return 1;
    }
    return pattern == RB_CHANGES_BLOCKS && row > BLOCK ? BLOCK : row;
}

static double chunk_bytes(int64_t count, int64_t size, int64_t unit, double density)
{
    int64_t changed = llrint((double)count * density);
    int64_t runs = llrint((double)changed / (double)unit * (1 - density));

    runs = runs < 1 ? 1 : runs;
    return (double)xm_encoding_bytes(count, changed, changed > 0 ? runs : 0, size);
}

/* Bytes that all ranks together send, of those of everything. */
static double share_of(const xm_plan_t *plan, rb_changes_t pattern, double density)
{
    double sent = 0, everything = 0;

    for (int64_t t = 0; t < xm_plan_transfer_count(plan); ++t) {
        const xm_transfer_t transfer = xm_plan_transfer(plan, t);
        const xm_route_t *route = xm_plan_route(plan, transfer.route);
        int64_t size = xm_plan_tensor_element_size(plan, xm_plan_task(plan, transfer.task).tensor);
        int64_t unit = unit_of(plan, transfer.task, pattern),
                elements = transfer.end - transfer.first;
        int64_t chunk = xm_plan_chunk_elements(plan, transfer.task), rest = elements % chunk;
        int64_t whole = elements / chunk;

        if (xm_transfer_is_copy(&transfer, route)) {
            continue;
        }
        sent += route->count * ((double)whole * chunk_bytes(chunk, size, unit, density) +
                                (rest > 0 ? chunk_bytes(rest, size, unit, density) : 0));
        everything += (double)(route->count * elements * size);
    }
    return everything > 0 ? sent / everything : 0;
}

/* ---- finding, encoding, applying ------------------------------------------------------------- */

/* One side of a tensor: what a rank has to do with its tile, in memory like it. */
typedef struct {
    const xm_plan_t *plan;
    int tensor, rank;
    bool applies;
    int64_t elements, size, found;
    xm_box_t box; /* of the tile */
    char *now, *shadow, *journal;
    uint64_t *bits;
    void *scratch;
    size_t room, used, largest; /* of the journal, and of the scratch */
} side_t;

/* Whether a transfer is work of this side; copies inside the rank are of both. */
static bool concerns(const side_t *side, int64_t t)
{
    const xm_transfer_t transfer = xm_plan_transfer(side->plan, t);
    const xm_route_t *route = xm_plan_route(side->plan, transfer.route);

    if (xm_plan_task(side->plan, transfer.task).tensor != side->tensor) {
        return false;
    }
    for (int i = 0; side->applies && i < route->count; ++i) {
        if (route->ranks[i] == side->rank) {
            return true;
        }
    }
    return !side->applies && transfer.sender == side->rank && transfer.parent == XM_PARENT_SOURCE;
}

static void find(side_t *side, int64_t end)
{
    end = end < side->elements ? (end + 63) / 64 * 64 : side->elements;
    end = end < side->elements ? end : side->elements;
    if (end > side->found) {
        (void)xm_changes_find(side->now + side->found * side->size,
                              side->shadow + side->found * side->size, end - side->found,
                              side->size, side->bits + xm_changes_words(side->found));
        side->found = end;
    }
}

/* Goes through the chunks: encodes them into the journal, or writes them out of it. */
static void go_through(side_t *side, bool writes)
{
    side->used = 0;
    for (int64_t t = 0; t < xm_plan_transfer_count(side->plan); ++t) {
        const xm_transfer_t transfer = xm_plan_transfer(side->plan, t);
        int64_t chunk = xm_plan_chunk_elements(side->plan, transfer.task);
        xm_view_t view;
        xm_box_t box;

        if (!concerns(side, t)) {
            continue;
        }
        xm_plan_task_box(side->plan, transfer.task, &box);
        xm_view_init(&view, &side->box, &box, side->size);
        for (int64_t first = transfer.first; first < transfer.end; first += chunk) {
            int64_t count = transfer.end - first < chunk ? transfer.end - first : chunk;
            char *entry = side->journal + side->used;
            size_t length;
            xm_cursor_t last;

            if (writes) {
                memcpy(&length, entry, sizeof(length));
                (void)xm_encoding_apply(&view, side->now, first, count, entry + sizeof(length),
                                        length);
            } else {
                xm_cursor_set(&last, &view, first + count - 1);
                find(side, last.offset / side->size + 1);
                length = xm_encoding_write(&view, side->now, side->bits, first, count,
                                           side->scratch, entry + sizeof(length));
                memcpy(entry, &length, sizeof(length));
            }
            side->used += (sizeof(length) + length + 7) / 8 * 8;
        }
    }
    find(side, side->elements);
}

/* Room for it; @p unit: elements that change together. */
static xm_status_t open_side(side_t *side, int64_t *unit)
{
    const xm_layout_t *layout = side->applies ? xm_plan_tensor_dst(side->plan, side->tensor)
                                              : xm_plan_tensor_src(side->plan, side->tensor);
    size_t bytes;

    side->size = xm_plan_tensor_element_size(side->plan, side->tensor);
    bytes = xm_layout_buffer_bytes(layout, side->rank, side->size);
    side->elements = (int64_t)bytes / side->size;
    if (bytes == 0) {
        return XM_OK;
    }
    xm_layout_tile_box(layout, xm_layout_tile_of_rank(layout, side->rank), &side->box);
    for (int64_t t = 0; t < xm_plan_transfer_count(side->plan); ++t) {
        const xm_transfer_t transfer = xm_plan_transfer(side->plan, t);
        int64_t chunk = xm_plan_chunk_elements(side->plan, transfer.task);

        if (concerns(side, t)) {
            size_t scratch = xm_encoding_scratch(chunk);

            side->room += (size_t)((transfer.end - transfer.first + chunk - 1) / chunk) *
                          (xm_encoding_limit(chunk, side->size) + 2 * sizeof(size_t));
            side->largest = scratch > side->largest ? scratch : side->largest;
            *unit = transfer.task;
        }
    }
    side->now = calloc(1, bytes);
    side->shadow = calloc(1, bytes);
    side->bits = calloc(xm_changes_words(side->elements), sizeof(*side->bits));
    side->journal = malloc(side->room + 1);
    side->scratch = malloc(side->largest + 1);
    return side->now != NULL && side->shadow != NULL && side->bits != NULL &&
                   side->journal != NULL && side->scratch != NULL
               ? XM_OK
               : XM_NO_MEMORY("measuring what updates take");
}

static void close_side(side_t *side)
{
    free(side->scratch);
    free(side->journal);
    free(side->bits);
    free(side->shadow);
    free(side->now);
}

/* Changes elements of the tile, other ones in each pass. */
static void change(side_t *side, int64_t unit, double density, int pass)
{
    for (int64_t e = 0; e < side->elements; ++e) {
        uint64_t by = xm_random_of((uint64_t)(e / unit) + ((uint64_t)pass << 40));

        side->now[e * side->size] =
            (char)(side->now[e * side->size] + (by >> 1 < (uint64_t)(fmin(density, 1) * 0x1p63)));
    }
    memset(side->bits, 0, xm_changes_words(side->elements) * sizeof(*side->bits));
    side->found = 0;
}

static void rest(void)
{
    const struct timespec pause = {.tv_nsec = pause_ns};

    (void)nanosleep(&pause, NULL);
}

/* What a rank took in each pass. */
typedef struct {
    double seconds[PASSES], busy[PASSES], copied[PASSES];
} passes_t;

/* A plain copy of the tile, which also leaves the caches as cool as others' work does. */
static double copy(side_t *side)
{
    int64_t start = xm_clock_ns();

    memcpy(side->shadow, side->now, (size_t)(side->elements * side->size));
    return (double)(xm_clock_ns() - start) * 1e-9;
}

/* All ranks do their part of one side of a tensor at once; adds the seconds of each pass. */
static xm_status_t rehearse(xm_worker_t *worker, side_t *side, rb_changes_t pattern, double density,
                            passes_t *own)
{
    int64_t task = -1, start, cpu, unit = 1;
    xm_status_t status = open_side(side, &task);

    if (task >= 0) {
        unit = unit_of(side->plan, task, pattern);
    }
    for (int pass = 0; status == XM_OK && pass < PASSES; ++pass) {
        if (side->elements > 0) {
            own->copied[pass] += side->applies ? 0 : copy(side);
            change(side, unit, density, pass);
        }
        if (side->elements > 0 && side->applies) {
            go_through(side, false);
            (void)copy(side);
        }
        status = xm_worker_barrier(worker);
        start = xm_clock_ns();
        cpu = xm_clock_cpu_ns();
        if (side->elements > 0) {
            go_through(side, side->applies);
        }
        own->busy[pass] += (double)(xm_clock_cpu_ns() - cpu) * 1e-9;
        own->seconds[pass] += (double)(xm_clock_ns() - start) * 1e-9;
    }
    close_side(side);
    return status;
}

/* Of the slowest rank in each pass, or of all on average, without the first, which brings pages in.
 */
static xm_status_t gather(xm_worker_t *worker, const double *own, bool average, double *seconds)
{
    int size = xm_worker_size(worker);
    double *all = malloc((size_t)size * PASSES * sizeof(*all)), of[PASSES] = {0};
    xm_status_t status = all != NULL ? xm_worker_allgather(worker, own, all, PASSES * sizeof(*own))
                                     : XM_NO_MEMORY("times of %d ranks", size);

    for (int i = 0; status == XM_OK && i < size * PASSES; ++i) {
        double *one = &of[i % PASSES];

        *one = average ? *one + all[i] / size : fmax(*one, all[i]);
    }
    *seconds = xm_array_median(of + 1, PASSES - 1);
    free(all);
    return status;
}

static xm_status_t measure_side(xm_worker_t *worker, const xm_plan_t *plan, bool applies,
                                rb_changes_t pattern, double density, rb_update_work_t *work)
{
    passes_t own = {0};

    for (int t = 0; t < xm_plan_tensors(plan); ++t) {
        side_t side = {
            .plan = plan, .tensor = t, .rank = xm_worker_rank(worker), .applies = applies};

        XM_TRY(rehearse(worker, &side, pattern, density, &own));
    }
    if (!applies) {
        XM_TRY(gather(worker, own.copied, false, &work->copied));
        XM_TRY(gather(worker, own.busy, true, &work->busy));
    }
    return gather(worker, own.seconds, false, applies ? &work->applied : &work->found);
}

/* ---- agreements and NICs --------------------------------------------------------------------- */

/* The last rank, whose time it is, comes when the others are asleep. */
static xm_status_t measure_agreement(xm_worker_t *worker, double *seconds)
{
    bool last = xm_worker_rank(worker) == xm_worker_size(worker) - 1;
    double own[PASSES] = {0};
    xm_status_t status = XM_OK;

    for (int pass = 0; status == XM_OK && pass < PASSES; ++pass) {
        int64_t start;

        status = xm_worker_barrier(worker);
        if (last) {
            rest();
        }
        start = xm_clock_ns();
        XM_THEN(status, xm_worker_barrier(worker));
        own[pass] = last ? (double)(xm_clock_ns() - start) * 1e-9 : 0;
    }
    return status == XM_OK ? gather(worker, own, false, seconds) : status;
}

/* Bytes between ranks of different hosts, by sender and receiver. */
static void count_pairs(const xm_worker_t *worker, const xm_plan_t *plan, double share,
                        double *pairs)
{
    const int size = xm_worker_size(worker);

    for (int64_t t = 0; t < xm_plan_transfer_count(plan); ++t) {
        const xm_transfer_t transfer = xm_plan_transfer(plan, t);
        const xm_route_t *route = xm_plan_route(plan, transfer.route);
        int64_t element =
            xm_plan_tensor_element_size(plan, xm_plan_task(plan, transfer.task).tensor);

        for (int i = 0; i < route->count; ++i) {
            int from = route->parents[i] < 0 ? transfer.sender : route->ranks[route->parents[i]];
            int to = route->ranks[i];

            if (xm_worker_host_of(worker, from) != xm_worker_host_of(worker, to)) {
                pairs[from * size + to] +=
                    share * (double)((transfer.end - transfer.first) * element);
            }
        }
    }
}

/* So many bytes, wherever they are: all of them on one rank. */
static xm_status_t lie_on(int rank, int64_t bytes, xm_layout_t **layout)
{
    const int one = 1;
    xm_mesh_t *mesh = NULL;
    xm_spec_t spec;
    xm_status_t status = xm_spec_parse("R", &spec);

    XM_THEN(status, xm_mesh_create(1, &one, &rank, &mesh));
    status =
        status == XM_OK ? xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, &bytes, layout) : status;
    xm_mesh_destroy(mesh);
    return status;
}

/* What the plan's senders and receivers move between hosts, with elements of bytes. */
typedef struct {
    double *pairs;
    xm_tensor_t *tensors;
    xm_tensor_buffers_t *buffers;
    char *memory;
    size_t bytes;
    int count;
    xm_network_t *network;
    xm_plan_t *plan;
    xm_update_t *update;
} stream_t;

/* A tensor for each pair. */
static xm_status_t make_streams(stream_t *stream, int size, int rank)
{
    char *memory = stream->memory;
    xm_status_t status = XM_OK;

    for (int p = 0; status == XM_OK && p < size * size; ++p) {
        int64_t bytes = llrint(ceil(stream->pairs[p]));
        bool sends = p / size == rank, receives = p % size == rank;
        xm_layout_t *src = NULL, *dst = NULL;

        if (bytes < 1) {
            continue;
        }
        status = lie_on(p / size, bytes, &src);
        XM_THEN(status, lie_on(p % size, bytes, &dst));
        stream->tensors[stream->count] = (xm_tensor_t){NULL, src, dst, 8};
        stream->buffers[stream->count++] =
            (xm_tensor_buffers_t){sends ? memory : NULL, sends ? (uint64_t)bytes : 0,
                                  receives ? memory : NULL, receives ? (uint64_t)bytes : 0};
        memory += sends || receives ? bytes : 0;
    }
    return status;
}

static void close_stream(stream_t *stream)
{
    xm_update_destroy(stream->update);
    xm_plan_destroy(stream->plan);
    xm_network_destroy(stream->network);
    for (int t = 0; t < stream->count; ++t) {
        xm_layout_destroy((xm_layout_t *)(uintptr_t)stream->tensors[t].src);
        xm_layout_destroy((xm_layout_t *)(uintptr_t)stream->tensors[t].dst);
    }
    free(stream->memory);
    free(stream->buffers);
    free(stream->tensors);
    free(stream->pairs);
}

static xm_status_t open_stream(xm_worker_t *worker, const xm_plan_t *plan, double share,
                               const shape_t *shape, stream_t *stream)
{
    const int size = xm_worker_size(worker), rank = xm_worker_rank(worker);
    const size_t pairs = (size_t)size * (size_t)size;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_reshard_params_t own = XM_RESHARD_PARAMS_INIT;
    xm_status_t status = XM_OK;

    *stream = (stream_t){.bytes = pairs};
    stream->pairs = calloc(pairs, sizeof(*stream->pairs));
    stream->tensors = calloc(pairs, sizeof(*stream->tensors));
    stream->buffers = calloc(pairs, sizeof(*stream->buffers));
    if (stream->pairs == NULL || stream->tensors == NULL || stream->buffers == NULL) {
        return XM_NO_MEMORY("streams of %d ranks", size);
    }
    count_pairs(worker, plan, share, stream->pairs);
    for (int p = 0; p < size * size; ++p) {
        bool mine = p / size == rank || p % size == rank;

        stream->bytes += mine ? (size_t)ceil(stream->pairs[p]) : 0;
    }
    stream->memory = calloc(1, stream->bytes);
    XM_NEED_MEMORY(stream->memory, "%zu bytes of streams", stream->bytes);
    status = make_streams(stream, size, rank);
    if (status < 0 || stream->count == 0) {
        return status;
    }
    status = xm_network_from_worker(worker, &stream->network);
    params.tensors = stream->tensors;
    params.tensor_count = stream->count;
    params.network = stream->network;
    params.chunk_bytes = shape->chunk;
    XM_THEN(status, xm_plan_create(&params, &stream->plan));
    own.plan = stream->plan;
    own.buffers = stream->buffers;
    own.turns = shape->turns;
    return status == XM_OK ? xm_update_create(worker, &own, &stream->update) : status;
}

/* After a pause, an update of so many bytes, of which all have changed, in as many messages. */
static xm_status_t measure_stream(xm_worker_t *worker, const xm_plan_t *plan, double share,
                                  const shape_t *shape, double *seconds)
{
    double own[PASSES] = {0};
    stream_t stream;
    xm_status_t status = open_stream(worker, plan, share, shape, &stream);

    for (int pass = 0; stream.update != NULL && status == XM_OK && pass < PASSES; ++pass) {
        int64_t start;

        memset(stream.memory, pass + 1, stream.bytes);
        rest();
        status = xm_worker_barrier(worker);
        start = xm_clock_ns();
        XM_THEN(status, xm_update_commit(stream.update, 0, NULL));
        own[pass] = (double)(xm_clock_ns() - start) * 1e-9;
    }
    close_stream(&stream);
    return status == XM_OK ? gather(worker, own, false, seconds) : status;
}

/* Ranks do the work of the plan at the same moment, on memory of their own: what they take is what
 * they take beside each other. `share`: of the bytes of everything, streamed. */
static xm_status_t measure(xm_worker_t *worker, const xm_plan_t *plan, rb_changes_t pattern,
                           double density, double share, const shape_t *shape,
                           rb_update_work_t *work)
{
    XM_TRY(measure_side(worker, plan, false, pattern, density, work));

    XM_TRY(measure_side(worker, plan, true, pattern, density, work));
    XM_TRY(measure_agreement(worker, &work->agreed));
    return measure_stream(worker, plan, share, shape, &work->streamed);
}

/* ---- the prediction -------------------------------------------------------------------------- */

xm_status_t rb_update_predict(xm_worker_t *worker, const xm_plan_t *plan, double nic,
                              const rb_processors_t *processors, rb_changes_t pattern,
                              double density, rb_update_model_t *model)
{
    double share = share_of(plan, pattern, density), part, finding;
    double wire = (double)xm_plan_makespan_ns(plan) * 1e-9 * share;
    shape_t shape = {.chunk = MIN_CHUNK, .turns = share > turns_share};
    xm_status_t status;

    for (int64_t t = 0; t < xm_plan_transfer_count(plan); ++t) {
        int64_t task = xm_plan_transfer(plan, t).task;
        double bytes =
            share * (double)(xm_plan_chunk_elements(plan, task) *
                             xm_plan_tensor_element_size(plan, xm_plan_task(plan, task).tensor));

        shape.chunk = bytes > (double)shape.chunk ? (uint64_t)bytes : shape.chunk;
    }
    *model = (rb_update_model_t){.share = share};
    part = wire * nic > STREAM ? STREAM / (wire * nic) : 1;
    status = measure(worker, plan, pattern, density, share * part, &shape, &model->work);
    wire = model->work.streamed + wire * (1 - part);
    finding = model->work.found + 2 * model->work.agreed;
    if (processors->ranks > processors->cores) {
        wire += model->work.busy * processors->ranks / processors->cores;
    }
    model->seconds = fmax(wire, finding) + model->work.applied;
    return status;
}
