/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts the unit tasks of a plan into what has arrived and what is missing. Most tasks have arrived
 * at all of their receivers or at none when a run breaks off, which sums over the transfers tell;
 * only those that are under way are cut, at every element where the set of ranks that have it
 * changes. A range that somebody needs is a piece: its holders are those of the task, and all that
 * have received it.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/plan/plan_private.h"

/* Elements of a task that a rank, by its new number, has. */
typedef struct {
    int64_t task, first, end;
    int rank;
} span_t;

typedef struct {
    const xm_plan_t *plan, *rest;
    const int *number; /* by rank of the plan: its new one */
    int living;        /* new ones below that are left */
    const xm_delivery_t *deliveries;
    xm_pieces_t *out;
    int **tile_of;      /* by layout of the plan, by rank: its tile; NULL: nobody asked */
    int64_t *next;      /* by rank of the plan: the arrival to look at */
    int64_t *delivered; /* by task: elements that its living receivers have in all … */
    int64_t *wanted;    /* … and should have */
    span_t *spans;
    size_t span_count, span_room;
    int *receivers; /* of the task at hand */
    int receiver_count;
    bool *have, *had; /* by receiver: whether it has the range at hand, and the one before */
    int64_t *until;   /* by new rank: where what it has of the task at hand ends */
    int64_t *mark;    /* by new rank: 1 + the piece whose holder it is */
    xm_arena_t arena; /* of all but the spans */
} cutter_t;

static xm_status_t no_memory(const cutter_t *c)
{
    return XM_NO_MEMORY("planning the rest of a plan of %" PRId64 " unit tasks",
                        c->plan->task_count);
}

/* ---- what has arrived ---------------------------------------------------------------------------
 */

static bool is_left(const cutter_t *c, int rank)
{
    return c->number[rank] < c->living;
}

/* The tile that a rank needs of a tensor. Every hop of the plan asks, so it is worked out once for
 * each layout, if there is memory. */
static int tile_of(const cutter_t *c, const xm_planned_tensor_t *tensor, int rank)
{
    int **tiles = &c->tile_of[tensor->dst_index];

    if (*tiles == NULL) {
        *tiles = malloc((size_t)c->plan->ranks * sizeof(**tiles));
        for (int r = 0; *tiles != NULL && r < c->plan->ranks; ++r) {
            (*tiles)[r] = xm_layout_tile_of_rank(tensor->dst, r);
        }
    }
    return *tiles != NULL ? (*tiles)[rank] : xm_layout_tile_of_rank(tensor->dst, rank);
}

/* Elements of a transfer that have come to a rank. Transfers are asked for in rising order, so that
 * the place in the record only moves on. */
static int64_t arrived(cutter_t *c, int rank, int64_t transfer, const xm_transfer_t *of)
{
    int64_t length = of->end - of->first;
    const xm_unit_task_t task = xm_plan_task(c->plan, of->task);
    const xm_delivery_t *delivery = &c->deliveries[rank];
    const xm_arrival_t *arrivals = delivery->arrivals;
    int64_t *at = &c->next[rank];

    /* A rank that only passes a transfer on has no tile to keep it in. */
    if (tile_of(c, &c->plan->tensors[task.tensor], rank) != task.dst_tile) {
        return 0;
    }
    while (*at < delivery->count && arrivals[*at].end < transfer) {
        ++*at;
    }
    if (*at == delivery->count || arrivals[*at].first > transfer) {
        return 0;
    }
    return transfer < arrivals[*at].end ? length : arrivals[*at].part;
}

/* Adds up by task what the living receivers have, from the records and from what was kept before.
 */
static void count_delivered(cutter_t *c)
{
    const xm_builder_t *builder = &c->plan->builder;

    for (int64_t t = 0; t < builder->transfer_count; ++t) {
        const xm_transfer_t one = xm_plan_transfer(c->plan, t), *transfer = &one;
        const xm_route_t *route = xm_builder_route_of(builder, transfer);

        for (int i = 0; i < route->count; ++i) {
            if (is_left(c, route->ranks[i])) {
                c->delivered[transfer->task] += arrived(c, route->ranks[i], t, transfer);
            }
        }
    }
    for (int64_t k = 0; k < c->plan->kept_count; ++k) {
        const xm_kept_t *kept = &c->plan->kept[k];
        const xm_route_t *route = kept->route >= 0 ? &builder->routes[kept->route] : NULL;

        for (int i = 0; route != NULL && i < route->count; ++i) {
            c->delivered[kept->task] += is_left(c, route->ranks[i]) ? kept->end - kept->first : 0;
        }
    }
}

/* True when some living receiver of the task has some of it, and not all have all. */
static bool is_in_part(const cutter_t *c, int64_t task)
{
    return c->delivered[task] > 0 && c->delivered[task] < c->wanted[task];
}

static xm_status_t add_span(cutter_t *c, int64_t task, int64_t first, int64_t end, int rank)
{
    if (first == end || !is_left(c, rank)) {
        return XM_OK;
    }
    if (!XM_ARRAY_ROOM(c->spans, c->span_room, c->span_count)) {
        return no_memory(c);
    }
    c->spans[c->span_count++] = (span_t){task, first, end, c->number[rank]};
    return XM_OK;
}

static int compare_spans(const void *a, const void *b)
{
    const span_t *x = a, *y = b;

    XM_ORDER_BY(x->task, y->task);
    return xm_order(x->first, y->first);
}

/* Lists who has what of the tasks that have arrived in part. */
static xm_status_t list_spans(cutter_t *c)
{
    const xm_builder_t *builder = &c->plan->builder;
    xm_status_t status = XM_OK;

    for (int64_t t = 0; status == XM_OK && t < builder->transfer_count; ++t) {
        const xm_transfer_t one = xm_plan_transfer(c->plan, t), *transfer = &one;
        const xm_route_t *route = xm_builder_route_of(builder, transfer);

        for (int i = 0; is_in_part(c, transfer->task) && status == XM_OK && i < route->count; ++i) {
            int64_t count = arrived(c, route->ranks[i], t, transfer);

            status = add_span(c, transfer->task, transfer->first, transfer->first + count,
                              route->ranks[i]);
        }
    }
    for (int64_t k = 0; status == XM_OK && k < c->plan->kept_count; ++k) {
        const xm_kept_t *kept = &c->plan->kept[k];
        const xm_route_t *route = kept->route >= 0 ? &builder->routes[kept->route] : NULL;

        for (int i = 0; route != NULL && is_in_part(c, kept->task) && i < route->count; ++i) {
            status = status < 0 ? status
                                : add_span(c, kept->task, kept->first, kept->end, route->ranks[i]);
        }
    }
    if (status == XM_OK && c->span_count > 1) {
        qsort(c->spans, c->span_count, sizeof(*c->spans), compare_spans);
    }
    return status;
}

/* ---- cutting ------------------------------------------------------------------------------------
 */

/* The receivers of a task that are left, in mesh order. */
static void list_receivers(cutter_t *c, int64_t task)
{
    const xm_unit_task_t *unit = &c->rest->tasks[task];
    int count;
    const int *all = xm_layout_replicas(c->rest->tensors[unit->tensor].dst, unit->dst_tile, &count);

    c->receiver_count = 0;
    for (int i = 0; i < count; ++i) {
        if (all[i] < c->living) {
            c->receivers[c->receiver_count++] = all[i];
        }
    }
}

/* Makes room for so many ranks behind the common list. */
static bool make_room(xm_pieces_t *out, int64_t count)
{
    return xm_array_reserve(&out->ranks, &out->rank_room, (size_t)(out->rank_count + count) + 1,
                            sizeof(*out->ranks));
}

/* Appends those receivers that have the range at hand, or those that do not. */
static bool append_receivers(cutter_t *c, bool have)
{
    xm_pieces_t *out = c->out;

    if (!make_room(out, c->receiver_count)) {
        return false;
    }
    for (int i = 0; i < c->receiver_count; ++i) {
        if (c->had[i] == have) {
            out->ranks[out->rank_count++] = c->receivers[i];
        }
    }
    return true;
}

/* Appends the living holders of the source, then the ranks of the list that are none of them. */
static bool append_holders(cutter_t *c, int64_t task, int64_t first, int64_t count)
{
    const xm_unit_task_t *unit = &c->rest->tasks[task];
    xm_pieces_t *out = c->out;
    int sources;
    const int *all =
        xm_layout_replicas(c->rest->tensors[unit->tensor].src, unit->src_tile, &sources);

    if (!make_room(out, count + sources)) {
        return false;
    }
    for (int i = 0; i < sources; ++i) {
        if (all[i] < c->living) {
            c->mark[all[i]] = out->count + 1;
            out->ranks[out->rank_count++] = all[i];
        }
    }
    for (int64_t i = first; i < first + count; ++i) {
        if (c->mark[out->ranks[i]] != out->count + 1) {
            out->ranks[out->rank_count++] = out->ranks[i];
        }
    }
    return true;
}

static xm_status_t add_stay(cutter_t *c, const xm_kept_t *kept, int64_t ranks, int64_t count)
{
    xm_pieces_t *out = c->out;

    if (!XM_ARRAY_ROOM(out->stays, out->stay_room, out->stay_count)) {
        return no_memory(c);
    }
    out->stays[out->stay_count++] = (xm_stay_t){*kept, ranks, (int)count};
    out->gap_count += count == 0;
    return XM_OK;
}

static xm_status_t add_piece(cutter_t *c, const xm_piece_t *piece)
{
    xm_pieces_t *out = c->out;

    if (!XM_ARRAY_ROOM(out->pieces, out->room, out->count)) {
        return no_memory(c);
    }
    out->pieces[out->count++] = *piece;
    return XM_OK;
}

/* Elements [first, end) of a task: `had` says which receivers have them. They stay there, and are a
 * piece when others need them, or a gap when nobody can send them. */
static xm_status_t add_range(cutter_t *c, int64_t task, int64_t first, int64_t end)
{
    xm_pieces_t *out = c->out;
    const xm_kept_t kept = {task, first, end, -1};
    int64_t stays = out->rank_count, count;
    xm_piece_t piece = {.task = task, .first = first, .end = end};
    xm_status_t status = append_receivers(c, true) ? XM_OK : no_memory(c);

    count = out->rank_count - stays;
    if (status == XM_OK && count > 0) {
        status = add_stay(c, &kept, stays, count);
    }
    if (status < 0 || count == c->receiver_count) {
        return status;
    }
    piece.holders = out->rank_count;
    if (!append_holders(c, task, stays, count)) {
        return no_memory(c);
    }
    if (piece.holders == out->rank_count) {
        return add_stay(c, &kept, stays, 0);
    }
    piece.receivers = out->rank_count;
    piece.receiver_count = c->receiver_count - (int)count;
    return append_receivers(c, false) ? add_piece(c, &piece) : no_memory(c);
}

/* All receivers have the task, or none has. */
static xm_status_t add_whole(cutter_t *c, int64_t task, bool have)
{
    for (int i = 0; i < c->receiver_count; ++i) {
        c->had[i] = have;
    }
    return add_range(c, task, 0, c->rest->tasks[task].elements);
}

/* Where the next span begins or ends, behind element `at`. */
static int64_t next_cut(const cutter_t *c, const span_t *span, const span_t *end, int64_t at,
                        int64_t elements)
{
    int64_t cut = span < end && span->first < elements ? span->first : elements;

    for (int i = 0; i < c->receiver_count; ++i) {
        int64_t until = c->until[c->receivers[i]];

        cut = until > at && until < cut ? until : cut;
    }
    return cut;
}

/* Goes through a task from cut to cut. Neighbours that the same ranks have become one range. */
static xm_status_t add_parts(cutter_t *c, int64_t task, const span_t *span, const span_t *end)
{
    int64_t elements = c->rest->tasks[task].elements, first = 0;
    xm_status_t status = XM_OK;

    for (int i = 0; i < c->receiver_count; ++i) {
        c->until[c->receivers[i]] = 0;
    }
    for (int64_t at = 0; status == XM_OK && at < elements;) {
        bool same = true, *had = c->had;

        for (; span < end && span->first == at; ++span) {
            c->until[span->rank] = span->end;
        }
        for (int i = 0; i < c->receiver_count; ++i) {
            c->have[i] = c->until[c->receivers[i]] > at;
            same = same && c->have[i] == c->had[i];
        }
        if (!same && at > first) {
            status = add_range(c, task, first, at);
            first = at;
        }
        c->had = c->have;
        c->have = had;
        at = next_cut(c, span, end, at, elements);
    }
    return status < 0 ? status : add_range(c, task, first, elements);
}

static xm_status_t cut_tasks(cutter_t *c)
{
    const span_t *span = c->spans, *end = span != NULL ? span + c->span_count : NULL;

    for (int64_t t = 0; t < c->rest->task_count; ++t) {
        list_receivers(c, t);
        if (c->receiver_count == 0) {
            continue;
        }
        if (is_in_part(c, t)) {
            const span_t *first = span;

            while (span < end && span->task == t) {
                ++span;
            }
            XM_TRY(add_parts(c, t, first, span));
        } else {
            XM_TRY(add_whole(c, t, c->delivered[t] > 0));
        }
    }
    return XM_OK;
}

/* Writes the pieces as tasks with sides of their own, now that the list of ranks stays where it is.
 */
static xm_status_t finish(const cutter_t *c)
{
    xm_pieces_t *out = c->out;

    out->tasks = malloc(((size_t)out->count + 1) * sizeof(*out->tasks));
    out->sides = malloc(((size_t)out->count + 1) * sizeof(*out->sides));
    if (out->tasks == NULL || out->sides == NULL) {
        return no_memory(c);
    }
    for (int64_t p = 0; p < out->count; ++p) {
        const xm_piece_t *piece = &out->pieces[p];

        out->tasks[p] = c->rest->tasks[piece->task];
        out->tasks[p].elements = piece->end - piece->first;
        out->sides[p] = (xm_sides_t){.holders = out->ranks + piece->holders,
                                     .receivers = out->ranks + piece->receivers,
                                     .holder_count = (int)(piece->receivers - piece->holders),
                                     .receiver_count = piece->receiver_count};
    }
    return XM_OK;
}

/* Arrays by task and by rank. Both kinds of ranks are below `numbers`. */
static xm_status_t allocate(cutter_t *c, size_t numbers)
{
    size_t tasks = (size_t)c->plan->task_count + 1;

    c->tile_of = xm_arena_get(&c->arena, (size_t)c->plan->layout_count + 1, sizeof(*c->tile_of));
    c->next = xm_arena_get(&c->arena, numbers, sizeof(*c->next));
    c->delivered = xm_arena_get(&c->arena, tasks, sizeof(*c->delivered));
    c->wanted = xm_arena_get(&c->arena, tasks, sizeof(*c->wanted));
    c->receivers = xm_arena_take(&c->arena, numbers * sizeof(*c->receivers));
    c->have = xm_arena_get(&c->arena, numbers, sizeof(*c->have));
    c->had = xm_arena_get(&c->arena, numbers, sizeof(*c->had));
    c->until = xm_arena_get(&c->arena, numbers, sizeof(*c->until));
    c->mark = xm_arena_get(&c->arena, numbers, sizeof(*c->mark));
    return c->arena.failed ? no_memory(c) : XM_OK;
}

xm_status_t xm_pieces_cut(xm_pieces_t *pieces, const xm_plan_t *plan, const xm_plan_t *rest,
                          const int *number, int numbers, int living,
                          const xm_delivery_t *deliveries)
{
    cutter_t c = {.plan = plan,
                  .rest = rest,
                  .number = number,
                  .living = living,
                  .deliveries = deliveries,
                  .out = pieces};
    xm_status_t status = allocate(&c, (size_t)numbers);

    if (status == XM_OK) {
        for (int64_t t = 0; t < rest->task_count; ++t) {
            list_receivers(&c, t);
            c.wanted[t] = c.receiver_count * rest->tasks[t].elements;
        }
        count_delivered(&c);
        memset(c.next, 0, (size_t)numbers * sizeof(*c.next));
        status = list_spans(&c);
    }
    XM_THEN(status, cut_tasks(&c));
    XM_THEN(status, finish(&c));
    for (int l = 0; c.tile_of != NULL && l < plan->layout_count; ++l) {
        free(c.tile_of[l]);
    }
    free(c.spans);
    xm_arena_clear(&c.arena);
    return status;
}

void xm_pieces_clear(xm_pieces_t *pieces)
{
    free(pieces->ranks);
    free(pieces->stays);
    free(pieces->sides);
    free(pieces->tasks);
    free(pieces->pieces);
    memset(pieces, 0, sizeof(*pieces));
}
