/* SPDX-License-Identifier: Apache-2.0 */
/* Strangers at a listening socket. They are the normal case where a port is open to everybody, so
 * they are bounded before anything is known of them. */
#include "comm/job/door.h"

#include <errno.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/socket.h>

int xm_door_strangers(int wanted)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};

    (void)getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur / 4 < (rlim_t)wanted) {
        wanted = limit.rlim_cur < 4 ? 1 : (int)(limit.rlim_cur / 4);
    }
    return wanted;
}

/* The stranger that has been there for longest, or XM_DOOR_NOBODY. */
static int find_oldest(const xm_door_t *door, int *free_place, int *strangers, int64_t *since)
{
    int oldest = XM_DOOR_NOBODY;

    *free_place = XM_DOOR_NOBODY;
    *strangers = 0;
    for (int place = 0; place < door->places; ++place) {
        int64_t its;
        xm_door_place_t who = door->who(door->arg, place, &its);

        if (who == XM_DOOR_FREE) {
            *free_place = place;
        } else if (who == XM_DOOR_STRANGER) {
            ++*strangers;
            if (oldest < 0 || its < *since) {
                oldest = place;
                *since = its;
            }
        }
    }
    return oldest;
}

int xm_door_find_place(const xm_door_t *door, int64_t now)
{
    int free_place, strangers;
    int64_t since = 0;
    int oldest = find_oldest(door, &free_place, &strangers, &since);

    if (free_place >= 0 && strangers < door->strangers) {
        return free_place;
    }
    if (oldest < 0 || now - since < XM_DOOR_STAY_NS) {
        return XM_DOOR_FULL;
    }
    door->drop(door->arg, oldest);
    return oldest;
}

/* Where descriptors have run out all the same, strangers give theirs back, whatever time they have
 * had: the process needs one for each of its own connections. */
int xm_door_accept(const xm_door_t *door, int64_t now, int *fd)
{
    int place = xm_door_find_place(door, now), free_place, strangers;
    int64_t since = 0;

    if (place < 0) {
        return place;
    }
    *fd = accept4(door->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (*fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
        int oldest = find_oldest(door, &free_place, &strangers, &since);

        if (oldest < 0) {
            return XM_DOOR_FULL;
        }
        door->drop(door->arg, oldest);
        *fd = accept4(door->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    }
    return *fd >= 0 ? place : XM_DOOR_NOBODY;
}
