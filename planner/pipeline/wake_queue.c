/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A binary heap of numbered sleepers with their places noted, so that a sleeper can be moved when
 * its time changes. The simulator moves the end of every message whose pace changes; a heap without
 * places would have to keep outdated entries and skip them.
 *
 * Sleepers of one time wake in the order of their numbers, so the order does not depend on the
 * history of the heap.
 */

#include "planner/pipeline/wake_queue.h"

xm_status_t ap_wake_queue_init(ap_wake_queue_t *queue, int sleepers, xm_arena_t *arena)
{
    size_t count = (size_t)sleepers + 1;

    *queue = (ap_wake_queue_t){.heap = xm_arena_get(arena, count, sizeof(*queue->heap)),
                               .place = xm_arena_get(arena, count, sizeof(*queue->place)),
                               .time = xm_arena_get(arena, count, sizeof(*queue->time))};
    XM_NEED_MEMORY(!arena->failed, "a queue of %d", sleepers);
    for (int i = 0; i < sleepers; ++i) {
        queue->place[i] = -1;
    }
    return XM_OK;
}

static bool is_before(const ap_wake_queue_t *queue, int one, int other)
{
    return queue->time[one] != queue->time[other] ? queue->time[one] < queue->time[other]
                                                  : one < other;
}

static void put(ap_wake_queue_t *queue, int place, int sleeper)
{
    queue->heap[place] = sleeper;
    queue->place[sleeper] = place;
}

/* The sleeper goes to its place from `place`, which is free, by way of the entries before it. */
static void move_up(ap_wake_queue_t *queue, int place, int sleeper)
{
    while (place > 0 && is_before(queue, sleeper, queue->heap[(place - 1) / 2])) {
        put(queue, place, queue->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    put(queue, place, sleeper);
}

/* The same by way of the entries after it. */
static void move_down(ap_wake_queue_t *queue, int place, int sleeper)
{
    for (;;) {
        int child = 2 * place + 1;

        if (child + 1 < queue->count &&
            is_before(queue, queue->heap[child + 1], queue->heap[child])) {
            ++child;
        }
        if (child >= queue->count || is_before(queue, sleeper, queue->heap[child])) {
            break;
        }
        put(queue, place, queue->heap[child]);
        place = child;
    }
    put(queue, place, sleeper);
}

void ap_wake_queue_set(ap_wake_queue_t *queue, int sleeper, int64_t time)
{
    ap_wake_queue_remove(queue, sleeper);
    queue->time[sleeper] = time;
    move_up(queue, queue->count++, sleeper);
}

void ap_wake_queue_remove(ap_wake_queue_t *queue, int sleeper)
{
    int place = queue->place[sleeper], last;

    if (place < 0) {
        return;
    }
    queue->place[sleeper] = -1;
    /* The last entry fills the gap. It may come from another branch of the heap, so it can have to
     * move either way. */
    last = queue->heap[--queue->count];
    if (last == sleeper) {
        return;
    }
    if (place > 0 && is_before(queue, last, queue->heap[(place - 1) / 2])) {
        move_up(queue, place, last);
    } else {
        move_down(queue, place, last);
    }
}

bool ap_wake_queue_take(ap_wake_queue_t *queue, int *sleeper, int64_t *time)
{
    if (queue->count == 0) {
        return false;
    }
    *sleeper = queue->heap[0];
    *time = queue->time[*sleeper];
    ap_wake_queue_remove(queue, *sleeper);
    return true;
}
