/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/resharding/plan/plan_mutation.h"

#include "xm_test.h"

/* ---- ingredients -------------------------------------------------------------------------------
 */

const xm_route_t *plan_route_of(const xm_plan_t *plan, const xm_transfer_t *transfer)
{
    return &plan->builder.routes[transfer->route];
}

bool plan_holds(const xm_plan_t *plan, int64_t task, int rank)
{
    const xm_unit_task_t *unit = &plan->tasks[task];

    return xm_layout_tile_of_rank(plan->tensors[unit->tensor].src, rank) == unit->src_tile;
}

bool plan_needs(const xm_plan_t *plan, int64_t task, int rank)
{
    const xm_unit_task_t *unit = &plan->tasks[task];

    return xm_layout_tile_of_rank(plan->tensors[unit->tensor].dst, rank) == unit->dst_tile;
}

static bool passes(const xm_route_t *route, int rank)
{
    for (int i = 0; i < route->count; ++i) {
        if (route->ranks[i] == rank) {
            return true;
        }
    }
    return false;
}

xm_route_t *plan_own_route(xm_plan_t *plan, xm_transfer_t *transfer)
{
    xm_builder_t *builder = &plan->builder;
    xm_route_t old = *plan_route_of(plan, transfer), *route;
    int *ranks = malloc(2 * ((size_t)old.count + 1) * sizeof(*ranks));

    ck_assert_ptr_nonnull(ranks);
    memcpy(ranks, old.ranks, (size_t)old.count * sizeof(*ranks));
    memcpy(ranks + old.count + 1, old.parents, (size_t)old.count * sizeof(*ranks));
    ck_assert(xm_array_reserve(&builder->routes, &builder->route_room,
                               (size_t)builder->route_count + 1, sizeof(*builder->routes)));
    transfer->route = builder->route_count;
    route = &builder->routes[builder->route_count++];
    *route = (xm_route_t){old.count, ranks, ranks + old.count + 1};
    return route;
}

int *route_ranks(xm_route_t *route)
{
    return (int *)(uintptr_t)route->ranks;
}

int *route_parents(xm_route_t *route)
{
    return (int *)(uintptr_t)route->parents;
}

/* Any rank of the job and two that do not exist. */
static int any_rank(random_t *random, const xm_plan_t *plan)
{
    return random_int(random, -1, plan->ranks);
}

/* ---- transfers ---------------------------------------------------------------------------------
 */

static bool drop(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_builder_t *builder = &plan->builder;

    (void)random;
    --builder->transfer_count;
    for (int64_t i = at; i < builder->transfer_count; ++i) {
        builder->transfers[i] = builder->transfers[i + 1];
        builder->transfers[i].parent -= builder->transfers[i].parent > at;
    }
    return true;
}

static bool duplicate(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_transfer_t copy = plan->builder.transfers[at];

    (void)random;
    ck_assert_xm_ok(xm_builder_append(&plan->builder, &copy, NULL));
    return true;
}

static bool shift(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_transfer_t *transfer = &plan->builder.transfers[at];
    int by = random_int(random, 0, 1) == 0 ? 1 : -1;

    transfer->first += by;
    transfer->end += by;
    return true;
}

static bool shorten(random_t *random, xm_plan_t *plan, int64_t at)
{
    if (random_int(random, 0, 1) == 0) {
        ++plan->builder.transfers[at].first;
    } else {
        --plan->builder.transfers[at].end;
    }
    return true;
}

static bool lengthen(random_t *random, xm_plan_t *plan, int64_t at)
{
    if (random_int(random, 0, 1) == 0) {
        --plan->builder.transfers[at].first;
    } else {
        ++plan->builder.transfers[at].end;
    }
    return true;
}

static bool send_what_it_lacks(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_transfer_t *transfer = &plan->builder.transfers[at];
    int rank = any_rank(random, plan);

    if (transfer->parent >= 0 || plan_holds(plan, transfer->task, rank)) {
        return false;
    }
    transfer->sender = rank;
    return true;
}

static bool relay_what_it_lacks(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_transfer_t *transfer = &plan->builder.transfers[at];
    int rank = any_rank(random, plan);

    if (transfer->parent < 0 ||
        passes(plan_route_of(plan, &plan->builder.transfers[transfer->parent]), rank)) {
        return false;
    }
    transfer->sender = rank;
    return true;
}

static bool reach_a_stranger(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_transfer_t *transfer = &plan->builder.transfers[at];
    int rank = any_rank(random, plan);
    xm_route_t *route;

    if (plan_needs(plan, transfer->task, rank)) {
        return false;
    }
    route = plan_own_route(plan, transfer);
    route_ranks(route)[random_int(random, 0, route->count - 1)] = rank;
    return true;
}

static bool end_at_a_stranger(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_transfer_t *transfer = &plan->builder.transfers[at];
    int rank = any_rank(random, plan);
    xm_route_t *route;

    if (plan_needs(plan, transfer->task, rank)) {
        return false;
    }
    route = plan_own_route(plan, transfer);
    route_ranks(route)[route->count] = rank;
    route_parents(route)[route->count] = random_int(random, -1, route->count - 1);
    ++route->count;
    return true;
}

/* A rank that only passes on along its route has nothing that another transfer could start from. */
static bool relay_what_was_forwarded(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_transfer_t *transfer = &plan->builder.transfers[at], *parent;
    int rank = any_rank(random, plan), *ranks, *parents;
    xm_route_t *route;

    if (transfer->parent < 0 || plan_needs(plan, transfer->task, rank)) {
        return false;
    }
    parent = &plan->builder.transfers[transfer->parent];
    if (parent->sender == rank) {
        return false;
    }
    route = plan_own_route(plan, parent);
    ranks = route_ranks(route);
    parents = route_parents(route);
    for (int i = route->count++; i-- > 0;) {
        ranks[i + 1] = ranks[i];
        parents[i + 1] = parents[i] + 1;
    }
    ranks[0] = rank;
    parents[0] = -1;
    transfer->sender = rank;
    return true;
}

static bool reach_another_receiver(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_transfer_t *transfer = &plan->builder.transfers[at];
    int rank = any_rank(random, plan), entry;
    xm_route_t *route;

    if (!plan_needs(plan, transfer->task, rank)) {
        return false;
    }
    route = plan_own_route(plan, transfer);
    entry = random_int(random, 0, route->count - 1);
    if (route->ranks[entry] == rank) {
        return false;
    }
    route_ranks(route)[entry] = rank;
    return true;
}

static bool skip_a_receiver(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_route_t *route = plan_own_route(plan, &plan->builder.transfers[at]);
    int entry = random_int(random, 0, route->count - 1), parent = route->parents[entry];

    for (int i = entry; i + 1 < route->count; ++i) {
        int fed = route->parents[i + 1];

        route_ranks(route)[i] = route->ranks[i + 1];
        route_parents(route)[i] = fed == entry ? parent : fed - (fed > entry);
    }
    --route->count;
    return true;
}

static bool reach_twice(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_route_t *route = plan_own_route(plan, &plan->builder.transfers[at]);
    int *ranks = route_ranks(route), *parents = route_parents(route);

    ranks[route->count] = ranks[random_int(random, 0, route->count - 1)];
    parents[route->count] = random_int(random, -1, route->count - 1);
    ++route->count;
    return true;
}

static bool feed_from_behind(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_route_t *route = plan_own_route(plan, &plan->builder.transfers[at]);
    int entry = random_int(random, 0, route->count - 1);

    route_parents(route)[entry] = random_int(random, entry, route->count);
    return true;
}

static bool feed_from_nowhere(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_route_t *route = plan_own_route(plan, &plan->builder.transfers[at]);

    route_parents(route)[random_int(random, 0, route->count - 1)] = -2;
    return true;
}

/* A holder's parent may go: then it reads the same elements from its source tile. */
static bool do_not_wait(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_transfer_t *transfer = &plan->builder.transfers[at];

    (void)random;
    if (transfer->parent < 0 || plan_holds(plan, transfer->task, transfer->sender)) {
        return false;
    }
    transfer->parent = -1;
    return true;
}

static bool wait_for_the_future(random_t *random, xm_plan_t *plan, int64_t at)
{
    int64_t later =
        (int64_t)(xm_random_next(random) % (uint64_t)(plan->builder.transfer_count + 1 - at));

    plan->builder.transfers[at].parent = at + later;
    return true;
}

static bool wait_for_nothing(random_t *random, xm_plan_t *plan, int64_t at)
{
    plan->builder.transfers[at].parent = -2 - random_int(random, 0, 1000);
    return true;
}

static xm_transfer_t *earlier(random_t *random, xm_plan_t *plan, int64_t at)
{
    return &plan->builder.transfers[xm_random_next(random) % (uint64_t)at];
}

static bool wait_for_another_task(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_transfer_t *transfer = &plan->builder.transfers[at], *other;

    if (at == 0) {
        return false;
    }
    other = earlier(random, plan, at);
    if (other->task == transfer->task) {
        return false;
    }
    transfer->parent = other - plan->builder.transfers;
    return true;
}

static bool wait_for_another_range(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_transfer_t *transfer = &plan->builder.transfers[at], *other;

    if (at == 0) {
        return false;
    }
    other = earlier(random, plan, at);
    if (other->task != transfer->task ||
        (other->first <= transfer->first && other->end >= transfer->end)) {
        return false;
    }
    transfer->parent = other - plan->builder.transfers;
    return true;
}

/* The parent has the range, but does not bring it to the sender. */
static bool wait_for_another_rank(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_transfer_t *transfer = &plan->builder.transfers[at], *other;

    if (at == 0) {
        return false;
    }
    other = earlier(random, plan, at);
    if (other->task != transfer->task || other->first > transfer->first ||
        other->end < transfer->end || passes(plan_route_of(plan, other), transfer->sender)) {
        return false;
    }
    transfer->parent = other - plan->builder.transfers;
    return true;
}

/* What a rank copied it can send at once; nothing is to wait for a copy. */
static bool wait_for_a_copy(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_transfer_t *transfer = &plan->builder.transfers[at];

    (void)random;
    for (int64_t i = 0; i < at; ++i) {
        const xm_transfer_t *other = &plan->builder.transfers[i];

        if (other->task == transfer->task && other->sender == transfer->sender &&
            xm_transfer_is_copy(other, plan_route_of(plan, other))) {
            transfer->parent = i;
            return true;
        }
    }
    return false;
}

static bool name_no_route(random_t *random, xm_plan_t *plan, int64_t at)
{
    plan->builder.transfers[at].route =
        random_int(random, 0, 1) == 0 ? -1 : plan->builder.route_count;
    return true;
}

static bool move_another_task(random_t *random, xm_plan_t *plan, int64_t at)
{
    int64_t task = random_int(random, -1, (int)plan->task_count);

    if (task == plan->builder.transfers[at].task) {
        return false;
    }
    plan->builder.transfers[at].task = task;
    return true;
}

/* ---- tasks -------------------------------------------------------------------------------------
 */

static xm_unit_task_t *any_task(random_t *random, xm_plan_t *plan)
{
    return &plan->tasks[xm_random_next(random) % (uint64_t)plan->task_count];
}

static bool resize_task(random_t *random, xm_plan_t *plan, int64_t at)
{
    (void)at;
    any_task(random, plan)->elements += random_int(random, 0, 1) == 0 ? 1 : -1;
    return true;
}

/* The task goes with all its transfers; the others keep their places. */
static bool drop_task(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_builder_t *builder = &plan->builder;
    int64_t task = any_task(random, plan) - plan->tasks;

    (void)at;
    for (int64_t i = builder->transfer_count - 1; i >= 0; --i) {
        if (builder->transfers[i].task == task) {
            (void)drop(random, plan, i);
        } else {
            builder->transfers[i].task -= builder->transfers[i].task > task;
        }
    }
    --plan->task_count;
    for (int64_t t = task; t < plan->task_count; ++t) {
        plan->tasks[t] = plan->tasks[t + 1];
        builder->chunk_elements[t] = builder->chunk_elements[t + 1];
    }
    return true;
}

static bool repeat_task(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_unit_task_t *a = any_task(random, plan), *b = any_task(random, plan);

    (void)at;
    if (a == b) {
        return false;
    }
    *a = *b;
    return true;
}

/* A receiver gets one slice of its tile twice, each time from a holder, and another never. */
static bool repeat_task_and_transfers(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_unit_task_t *a = any_task(random, plan), *b = any_task(random, plan);
    int64_t task = a - plan->tasks;
    int holders;
    const int *ranks;

    (void)at;
    if (a == b || a->tensor != b->tensor || a->dst_tile != b->dst_tile ||
        a->elements != b->elements) {
        return false;
    }
    *a = *b;
    ranks = xm_layout_replicas(plan->tensors[a->tensor].src, a->src_tile, &holders);
    for (int64_t t = 0; t < plan->builder.transfer_count; ++t) {
        xm_transfer_t *transfer = &plan->builder.transfers[t];

        if (transfer->task == task && transfer->parent < 0) {
            transfer->sender = ranks[random_int(random, 0, holders - 1)];
        }
    }
    return true;
}

static bool swap_source_tiles(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_unit_task_t *a = any_task(random, plan), *b = any_task(random, plan);
    int tile = a->src_tile;

    (void)at;
    if (a->tensor != b->tensor || a->src_tile == b->src_tile) {
        return false;
    }
    a->src_tile = b->src_tile;
    b->src_tile = tile;
    return true;
}

static bool swap_destination_tiles(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_unit_task_t *a = any_task(random, plan), *b = any_task(random, plan);
    int tile = a->dst_tile;

    (void)at;
    if (a->tensor != b->tensor || a->dst_tile == b->dst_tile) {
        return false;
    }
    a->dst_tile = b->dst_tile;
    b->dst_tile = tile;
    return true;
}

static bool swap_source_and_destination(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_unit_task_t *task = any_task(random, plan);
    int tile = task->src_tile;

    (void)at;
    if (task->src_tile == task->dst_tile) {
        return false;
    }
    task->src_tile = task->dst_tile;
    task->dst_tile = tile;
    return true;
}

static bool name_no_tensor(random_t *random, xm_plan_t *plan, int64_t at)
{
    (void)at;
    any_task(random, plan)->tensor = random_int(random, 0, 1) == 0 ? -1 : plan->tensor_count;
    return true;
}

static bool move_to_another_tensor(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_unit_task_t *task = any_task(random, plan);
    int tensor = random_int(random, 0, plan->tensor_count - 1);

    (void)at;
    if (tensor == task->tensor) {
        return false;
    }
    task->tensor = tensor;
    return true;
}

static bool empty_chunks(random_t *random, xm_plan_t *plan, int64_t at)
{
    (void)at;
    plan->builder.chunk_elements[any_task(random, plan) - plan->tasks] = -random_int(random, 0, 1);
    return true;
}

static bool oversized_chunks(random_t *random, xm_plan_t *plan, int64_t at)
{
    xm_unit_task_t *task = any_task(random, plan);

    (void)at;
    plan->builder.chunk_elements[task - plan->tasks] = task->elements + 1;
    return true;
}

const plan_mutation_t plan_mutations[PLAN_MUTATIONS] = {
    {"a transfer is dropped", drop},
    {"a transfer is there twice", duplicate},
    {"a range is shifted by an element", shift},
    {"a range is an element short", shorten},
    {"a range is an element long", lengthen},
    {"a rank sends what it does not hold", send_what_it_lacks},
    {"a rank passes on what it does not get", relay_what_it_lacks},
    {"a route reaches a rank that does not need it", reach_a_stranger},
    {"a route ends at a rank that does not need it", end_at_a_stranger},
    {"a transfer starts from what a rank only passes on", relay_what_was_forwarded},
    {"a route reaches a receiver in place of another", reach_another_receiver},
    {"a route lacks a receiver", skip_a_receiver},
    {"a route reaches a receiver twice", reach_twice},
    {"a route's entry is fed by itself or a later one", feed_from_behind},
    {"a route's entry is fed by entry -2", feed_from_nowhere},
    {"a relay does not wait", do_not_wait},
    {"a transfer waits for itself or a later one", wait_for_the_future},
    {"a transfer waits for transfer -2 or less", wait_for_nothing},
    {"a transfer waits for one of another task", wait_for_another_task},
    {"a transfer waits for one of another range", wait_for_another_range},
    {"a transfer waits for one that does not reach its sender", wait_for_another_rank},
    {"a transfer waits for a copy", wait_for_a_copy},
    {"a transfer names no route", name_no_route},
    {"a transfer is of another task", move_another_task},
    {"a task has an element more or less", resize_task},
    {"a task is dropped", drop_task},
    {"a task is there twice, another is not", repeat_task},
    {"a task is there twice with its transfers", repeat_task_and_transfers},
    {"two tasks swap source tiles", swap_source_tiles},
    {"two tasks swap destination tiles", swap_destination_tiles},
    {"a task swaps its two tiles", swap_source_and_destination},
    {"a task names no tensor", name_no_tensor},
    {"a task is of another tensor", move_to_another_tensor},
    {"chunks are empty", empty_chunks},
    {"chunks are longer than the task", oversized_chunks},
};
