/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file wake_queue.h
 * Who does something next: a queue of numbered sleepers by the time at which each wakes, at most
 * one time each. Sleepers of one time wake in the order of their numbers.
 *
 * Setting, moving and taking cost O(log n). Threads: no shared state.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "comm/base.h"

typedef struct ap_wake_queue {
    int count;     /**< sleepers in the queue */
    int *heap;     /**< of sleepers, the next first */
    int *place;    /**< [sleepers] in the heap, -1: not in the queue */
    int64_t *time; /**< [sleepers] */
} ap_wake_queue_t;

/** For sleepers 0 … @p sleepers - 1, none of which is in it; it lies in the arena. */
xm_status_t ap_wake_queue_init(ap_wake_queue_t *queue, int sleepers, xm_arena_t *arena);

/** The sleeper wakes at this time, and at no other. */
void ap_wake_queue_set(ap_wake_queue_t *queue, int sleeper, int64_t time);

/** The sleeper does not wake. It need not be in the queue. */
void ap_wake_queue_remove(ap_wake_queue_t *queue, int sleeper);

/** Takes out the next one; false when there is none. */
bool ap_wake_queue_take(ap_wake_queue_t *queue, int *sleeper, int64_t *time);
