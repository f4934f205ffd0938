/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan for the rest of another one, after ranks have been lost. Layouts and unit tasks stay those
 * of the first plan, on ranks with new numbers. What is missing are pieces of tasks (pieces.c),
 * which are scheduled as if they were tasks; the transfers that come out are then written as those
 * of the tasks that the pieces were cut from.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/plan/plan_private.h"
#include "resharding/plan/simulate.h"

typedef struct {
    const xm_plan_t *plan;
    const xm_plan_without_params_t *params;
    xm_plan_t *rest;
    int *number;               /* by rank of the plan: its new one */
    int numbers, living;       /* ranks that have one; new ones below `living` are left */
    xm_delivery_t *deliveries; /* by rank of the plan */
    xm_pieces_t pieces;
} without_t;

static xm_status_t no_memory(const without_t *w)
{
    return XM_NO_MEMORY("planning the rest of a plan of %" PRId64 " unit tasks",
                        w->plan->task_count);
}

/* ---- who is left --------------------------------------------------------------------------------
 */

static bool is_left(const without_t *w, int rank)
{
    return w->number[rank] < w->living;
}

/* Numbers the living ranks from 0 on in their order, then the lost ones; those that an earlier plan
 * was made without stay where they are, behind all others. */
static xm_status_t number_ranks(without_t *w)
{
    int before, next = 0;

    w->numbers = xm_network_ranks(w->plan->network);
    for (int i = 0; i < w->plan->tensor_count; ++i) {
        int src = xm_mesh_max_rank(xm_layout_mesh(w->plan->tensors[i].src)) + 1;
        int dst = xm_mesh_max_rank(xm_layout_mesh(w->plan->tensors[i].dst)) + 1;

        w->numbers = src > w->numbers ? src : w->numbers;
        w->numbers = dst > w->numbers ? dst : w->numbers;
    }
    before = xm_plan_living(w->plan);
    w->number = calloc((size_t)w->numbers, sizeof(*w->number));
    if (w->number == NULL) {
        return no_memory(w);
    }
    for (int i = 0; i < w->params->lost_count; ++i) {
        int rank = w->params->lost[i];

        if (rank < 0 || rank >= before) {
            return XM_INVALID("rank %d cannot be lost: the plan is for ranks 0 … %d", rank,
                              before - 1);
        }
        w->number[rank] = -1;
    }
    for (int r = 0; r < before; ++r) {
        w->number[r] = w->number[r] < 0 ? -1 : next++;
    }
    w->living = next;
    for (int r = 0; r < w->numbers; ++r) {
        if (r >= before) {
            w->number[r] = r;
        } else if (w->number[r] < 0) {
            w->number[r] = next++;
        }
    }
    return w->living > 0 ? XM_OK : XM_INVALID("no rank of the plan is left");
}

/* Meshes and layouts with the new numbers. Tensors mostly share theirs, so each layout is moved
 * once, and the mesh that was made last is taken again where it fits. */
typedef struct {
    const xm_mesh_t *last;
    xm_mesh_t *made;
    const xm_layout_t **moved; /* by layout of the plan; NULL: not yet */
} mover_t;

static xm_status_t renumber_mesh(const without_t *w, const xm_mesh_t *mesh, mover_t *mover)
{
    int sizes[XM_MAX_AXES], axes = xm_mesh_axes(mesh), size = xm_mesh_size(mesh), *ranks;
    xm_status_t status;

    if (mesh == mover->last) {
        return XM_OK;
    }
    ranks = malloc((size_t)size * sizeof(*ranks));
    if (ranks == NULL) {
        return no_memory(w);
    }
    for (int a = 0; a < axes; ++a) {
        sizes[a] = xm_mesh_axis_size(mesh, a);
    }
    for (int p = 0; p < size; ++p) {
        ranks[p] = w->number[xm_mesh_rank(mesh, p)];
        if (ranks[p] < w->living && ranks[p] >= w->rest->ranks) {
            w->rest->ranks = ranks[p] + 1;
        }
    }
    xm_mesh_destroy(mover->made);
    mover->made = NULL;
    status = xm_mesh_create(axes, sizes, ranks, &mover->made);
    mover->last = status == XM_OK ? mesh : NULL;
    free(ranks);
    return status;
}

static xm_status_t move_layout(const without_t *w, const xm_layout_t *layout, int index,
                               mover_t *mover, xm_layout_t **moved)
{
    xm_status_t status;

    if (mover->moved[index] != NULL) {
        return xm_layout_clone(mover->moved[index], moved);
    }
    status = renumber_mesh(w, xm_layout_mesh(layout), mover);
    XM_THEN(status, xm_layout_move(layout, mover->made, moved));
    mover->moved[index] = status == XM_OK ? *moved : NULL;
    return status;
}

/* Copies the tensors, on meshes with the new numbers. */
static xm_status_t copy_tensors(const without_t *w)
{
    xm_plan_t *rest = w->rest;
    mover_t mover = {.moved = calloc((size_t)w->plan->layout_count + 1, sizeof(*mover.moved))};
    xm_status_t status;

    rest->tensors = calloc((size_t)w->plan->tensor_count, sizeof(*rest->tensors));
    status = rest->tensors == NULL || mover.moved == NULL ? no_memory(w) : XM_OK;
    for (int i = 0; status == XM_OK && i < w->plan->tensor_count; ++i) {
        const xm_planned_tensor_t *tensor = &w->plan->tensors[i];
        xm_planned_tensor_t *copy = &rest->tensors[rest->tensor_count++];

        copy->element_size = tensor->element_size;
        copy->name = strdup(tensor->name);
        status = copy->name != NULL
                     ? move_layout(w, tensor->src, tensor->src_index, &mover, &copy->src)
                     : no_memory(w);
        XM_THEN(status, move_layout(w, tensor->dst, tensor->dst_index, &mover, &copy->dst));
    }
    xm_mesh_destroy(mover.made);
    free(mover.moved);
    return status;
}

/* The caller's network of the ranks that are left, or the plan's own: the hosts of lost ranks stay
 * in it, but have nothing to do. */
static xm_status_t take_network(const without_t *w)
{
    const xm_network_t *given = w->params->network;
    xm_network_t *own = NULL;
    int64_t bytes = (int64_t)xm_plan_bytes(w->plan);
    xm_status_t status;

    if (given == NULL) {
        status = xm_network_renumber(w->plan->network, w->number, &own);
    } else if (xm_network_ranks(given) < w->living) {
        return XM_INVALID("the network has %d ranks, but %d are left", xm_network_ranks(given),
                          w->living);
    } else {
        status = xm_plan_check_time(given, bytes);
    }
    XM_THEN(status, xm_plan_take_network(w->rest, given != NULL ? given : own));
    xm_network_destroy(own);
    return status;
}

/* ---- what has arrived ---------------------------------------------------------------------------
 */

/* A rank that has never begun a run has received nothing; all others must have been in the same
 * one, or their elements are of different times. */
static xm_status_t check_runs(const without_t *w)
{
    int other = -1;

    for (int r = 0; r < w->numbers; ++r) {
        if (w->deliveries[r].run == 0) {
            continue;
        }
        if (other >= 0 && w->deliveries[other].run != w->deliveries[r].run) {
            return XM_MISMATCH("rank %d has a record of run %" PRIu64 ", rank %d of run %" PRIu64
                               ": what they have received is not of the same time",
                               r, w->deliveries[r].run, other, w->deliveries[other].run);
        }
        other = r;
    }
    return XM_OK;
}

static xm_status_t read_records(without_t *w)
{
    w->deliveries = calloc((size_t)w->numbers, sizeof(*w->deliveries));
    if (w->deliveries == NULL) {
        return no_memory(w);
    }
    for (int i = 0; i < w->params->delivered_count; ++i) {
        xm_delivery_t read = {0};
        xm_status_t status = xm_delivery_read(&read, w->plan, &w->params->delivered[i]);

        if (status == XM_OK && (read.rank >= w->numbers || !is_left(w, read.rank) ||
                                w->deliveries[read.rank].capacity < 0)) {
            status = XM_INVALID("record %d is of rank %d, which is lost or has another one", i,
                                read.rank);
        }
        if (status < 0) {
            xm_delivery_clear(&read);
            return status;
        }
        read.capacity = -1; /* it has been seen, and does not grow any more */
        w->deliveries[read.rank] = read;
    }
    return check_runs(w);
}

/* ---- what moves --------------------------------------------------------------------------------
 */

/* The sentence about what nobody can send any more. */
static xm_status_t name_gap(const without_t *w)
{
    const xm_pieces_t *pieces = &w->pieces;
    const xm_stay_t *gap = pieces->stays;
    const xm_unit_task_t *task;
    char box[512], part[64] = "", more[64] = "";
    xm_box_t bounds;

    while (gap->count > 0) {
        ++gap;
    }
    task = &w->rest->tasks[gap->kept.task];
    xm_plan_task_box(w->rest, gap->kept.task, &bounds);
    if (gap->kept.end - gap->kept.first < task->elements) {
        (void)snprintf(part, sizeof(part), "elements %" PRId64 " … %" PRId64 " of ",
                       gap->kept.first, gap->kept.end - 1);
    }
    if (pieces->gap_count > 1) {
        (void)snprintf(more, sizeof(more), ", nor %" PRId64 " more", pieces->gap_count - 1);
    }
    return XM_NO_SOLUTION("tensor %s: no rank that is left holds %sbox %s%s",
                          w->rest->tensors[task->tensor].name, part,
                          xm_box_format(&bounds, box, sizeof(box)), more);
}

/* Schedules the pieces in the place of tasks, as the first plan was scheduled. The builder and the
 * bound are the rest's; the simulation waits until the pieces are tasks again. */
static xm_status_t schedule_pieces(const without_t *w)
{
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_plan_t *rest = w->rest, planned = *rest;
    xm_classes_t classes = {0};
    xm_bound_t bound;
    xm_status_t status;

    planned.tasks = w->pieces.tasks;
    planned.task_count = w->pieces.count;
    planned.sides = w->pieces.sides;
    params.strategy = rest->strategy;
    params.scheduler = w->plan->chosen;
    params.chunk_bytes = rest->chunk_bytes;
    params.seed = rest->seed;
    params.node_budget = rest->node_budget;
    params.network = rest->network;
    status = xm_classes_create(&planned, rest->network, &classes);
    XM_THEN(status, xm_classes_bound(&classes, rest->network, &bound));
    if (status == XM_OK) {
        planned.bound_ns = bound.ns;
        status = xm_schedule(&planned, &params, &classes);
    }
    xm_classes_clear(&classes);
    if (status == XM_OK) {
        rest->builder = planned.builder;
        rest->bound_ns = planned.bound_ns;
        rest->chosen = planned.chosen;
    }
    return status;
}

/* A task has one length of chunks: the shortest of its pieces'. */
static xm_status_t join_chunks(const without_t *w)
{
    xm_plan_t *rest = w->rest;
    const int64_t *of_piece = rest->builder.chunk_elements;
    int64_t *chunks = malloc(((size_t)rest->task_count + 1) * sizeof(*chunks));

    if (chunks == NULL) {
        return no_memory(w);
    }
    for (int64_t t = 0; t < rest->task_count; ++t) {
        chunks[t] = rest->tasks[t].elements;
    }
    for (int64_t p = 0; p < w->pieces.count; ++p) {
        int64_t task = w->pieces.pieces[p].task;

        chunks[task] = of_piece[p] < chunks[task] ? of_piece[p] : chunks[task];
    }
    free(rest->builder.chunk_elements);
    rest->builder.chunk_elements = chunks;
    return XM_OK;
}

/* Writes the pieces' transfers as those of tasks. Who holds no source passes on what it has
 * received. */
static void join_transfers(const without_t *w)
{
    xm_plan_t *rest = w->rest;

    for (int64_t i = 0; i < rest->builder.transfer_count; ++i) {
        xm_transfer_t *transfer = &rest->builder.transfers[i];
        const xm_piece_t *piece = &w->pieces.pieces[transfer->task];
        const xm_unit_task_t *task = &rest->tasks[piece->task];

        transfer->task = piece->task;
        transfer->first += piece->first;
        transfer->end += piece->first;
        if (transfer->parent == XM_PARENT_SOURCE &&
            xm_layout_tile_of_rank(rest->tensors[task->tensor].src, transfer->sender) !=
                task->src_tile) {
            transfer->parent = XM_PARENT_KEPT;
        }
    }
}

/* Writes down what stays; the ranks that have it are a route, so that each list is there once. */
static xm_status_t keep_stays(const without_t *w)
{
    const xm_pieces_t *pieces = &w->pieces;
    xm_plan_t *rest = w->rest;
    int *parents = malloc((size_t)w->living * sizeof(*parents));
    xm_status_t status = XM_OK;

    rest->kept = malloc(((size_t)pieces->stay_count + 1) * sizeof(*rest->kept));
    if (rest->kept == NULL || parents == NULL) {
        free(parents);
        return no_memory(w);
    }
    for (int r = 0; r < w->living; ++r) {
        parents[r] = -1;
    }
    for (int64_t i = 0; status == XM_OK && i < pieces->stay_count; ++i) {
        const xm_stay_t *stay = &pieces->stays[i];
        xm_kept_t *kept = &rest->kept[rest->kept_count++];

        *kept = stay->kept;
        if (stay->count > 0) {
            status = xm_builder_route(&rest->builder, stay->count, pieces->ranks + stay->ranks,
                                      parents, &kept->route);
        }
    }
    free(parents);
    return status;
}

/* From the records to the finished plan. */
static xm_status_t plan_pieces(without_t *w)
{
    XM_TRY(xm_pieces_cut(&w->pieces, w->plan, w->rest, w->number, w->numbers, w->living,
                         w->deliveries));

    if (w->pieces.gap_count > 0 && w->params->gap == NULL) {
        XM_TRY(name_gap(w));
    }
    XM_TRY(schedule_pieces(w));
    XM_TRY(join_chunks(w));
    join_transfers(w);
    XM_TRY(keep_stays(w));
    XM_TRY(
        xm_simulate(w->rest, w->rest->network, XM_SHARING_EXCLUSIVE, NULL, &w->rest->makespan_ns));
    return xm_plan_finish(w->rest);
}

/* ---- the rest -----------------------------------------------------------------------------------
 */

/* What the first plan was made with; its tasks keep their tiles, whoever has them. */
static xm_status_t begin(const without_t *w)
{
    const xm_plan_t *plan = w->plan;
    xm_plan_t *rest = w->rest;

    rest->strategy = plan->strategy;
    rest->scheduler = plan->scheduler;
    rest->chunk_bytes = plan->chunk_bytes;
    rest->seed = plan->seed;
    rest->node_budget = plan->node_budget;
    rest->living = w->living;
    rest->tasks = malloc(((size_t)plan->task_count + 1) * sizeof(*rest->tasks));
    if (rest->tasks == NULL) {
        return no_memory(w);
    }
    for (int64_t t = 0; t < plan->task_count; ++t) {
        rest->tasks[t] = xm_plan_task(plan, t);
    }
    rest->task_count = plan->task_count;
    XM_TRY(copy_tensors(w));
    return xm_plan_number_layouts(rest);
}

static xm_status_t make_rest(without_t *w)
{
    XM_TRY(number_ranks(w));

    XM_TRY(read_records(w));
    XM_TRY(begin(w));
    XM_TRY(take_network(w));
    return plan_pieces(w);
}

/* Tells the caller what no rank has. */
static void tell_gaps(const without_t *w)
{
    for (int64_t k = 0; k < w->rest->kept_count; ++k) {
        const xm_kept_t *kept = &w->rest->kept[k];
        xm_plan_gap_t gap = {
            .tensor = w->rest->tasks[kept->task].tensor, .first = kept->first, .end = kept->end};

        if (kept->route < 0 && w->params->gap != NULL) {
            xm_plan_task_box(w->rest, kept->task, &gap.box);
            w->params->gap(w->params->arg, &gap);
        }
    }
}

xm_status_t xm_plan_without(const xm_plan_t *plan, const xm_plan_without_params_t *params,
                            xm_plan_t **rest)
{
    xm_plan_without_params_t own = XM_PLAN_WITHOUT_PARAMS_INIT;
    without_t w = {.plan = plan, .params = &own};
    xm_status_t status;

    XM_NEED_ARGUMENTS(plan, rest);
    XM_TRY(XM_PARAMS_COPY(xm_plan_without_params_t, &own, params));
    if ((own.lost_count > 0 && xm_is_null(__func__, "params.lost", own.lost)) ||
        (own.delivered_count > 0 && xm_is_null(__func__, "params.delivered", own.delivered))) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    w.rest = calloc(1, sizeof(*w.rest));
    status = w.rest != NULL ? make_rest(&w) : no_memory(&w);
    if (status == XM_OK) {
        tell_gaps(&w);
    }
    xm_pieces_clear(&w.pieces);
    for (int r = 0; w.deliveries != NULL && r < w.numbers; ++r) {
        xm_delivery_clear(&w.deliveries[r]);
    }
    free(w.deliveries);
    free(w.number);
    if (status < 0) {
        xm_plan_destroy(w.rest);
        return status;
    }
    *rest = w.rest;
    return XM_OK;
}
