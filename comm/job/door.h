/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file door.h
 * Who may wait at a listening socket that anybody can reach. Internal.
 *
 * Whoever connects is a stranger until it has proved who it is, and takes one of the owner's places
 * meanwhile. There are few places for strangers, fewer still where descriptors are scarce; the rest
 * wait in the kernel's queue, which costs this process nothing. When all are taken the oldest
 * stranger makes room, but none before it has had XM_DOOR_STAY_NS for its proof: a rank that
 * answers promptly is never dropped, however many strangers there are.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* STAY: a quarter of a second. STRANGERS: places for them at most. */
#define XM_DOOR_STAY_NS INT64_C(250000000)
enum { XM_DOOR_STRANGERS = 256, XM_DOOR_NOBODY = -1, XM_DOOR_FULL = -2 };

typedef enum xm_door_place { XM_DOOR_FREE, XM_DOOR_STRANGER, XM_DOOR_KNOWN } xm_door_place_t;

typedef struct xm_door {
    int fd; /**< listens, and does not block */
    int places;
    int strangers; /**< of them for strangers: xm_door_strangers() */
    /** Who is there, and since when (xm_clock_ns()). */
    xm_door_place_t (*who)(void *arg, int place, int64_t *since);
    /** Closes the connection of a stranger. */
    void (*drop)(void *arg, int place);
    void *arg;
} xm_door_t;

/** How many strangers a process may hold, which is a quarter of its descriptors at most. */
int xm_door_strangers(int wanted);

/**
 * The place for another connection, which is free then; ::XM_DOOR_FULL: all are taken by such as
 * have not had their time.
 */
int xm_door_find_place(const xm_door_t *door, int64_t now);

/**
 * Accepts one connection, which blocks as little as the socket. The place for it, or
 * ::XM_DOOR_NOBODY when none waits, or ::XM_DOOR_FULL as above.
 */
int xm_door_accept(const xm_door_t *door, int64_t now, int *fd);
