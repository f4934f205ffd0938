/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bootstrap_listen.h
 * Where rank 0 of the TCP bootstrap listens, and who may wait at any socket that all can reach.
 * Internal.
 */
#pragma once

#include "comm/job/bootstrap.h"
#include "comm/job/resolve.h"

/**
 * Listens at the master port, until @p deadline: at XM_BIND if that is set; at MASTER_ADDR if that
 * is an address in digits of this machine, or "localhost"; else at all addresses, because a name
 * may be a loopback address on its own machine and a real one for the others, and an address of
 * another may be one that is translated.
 */
xm_status_t xm_bootstrap_listen_master(const xm_job_env_t *env, double deadline, int *fd);

/**
 * Listens at a free port, for ranks that are told where: at XM_BIND if that is set, else at the
 * loopback interface if all ranks can reach it (@p local), else at all addresses.
 * @p addresses gets those under which the others should try, with the port.
 */
xm_status_t xm_bootstrap_listen_free(bool local, int *fd, xm_addresses_t *addresses);

/** The addresses of this host's interfaces that are up, IPv4 first; not the loopback's. */
xm_status_t xm_bootstrap_interfaces(bool ipv6, xm_addresses_t *addresses);

/*
 * A door is a listening socket that anybody can reach.
 * Whoever connects is a stranger until it has proved who it is, and takes one of the owner's places
 * meanwhile. There are few places for strangers, fewer still where descriptors are scarce; the rest
 * wait in the kernel's queue, which costs this process nothing. When all are taken the oldest
 * stranger makes room, but none before it has had XM_DOOR_STAY_NS for its proof: a rank that
 * answers promptly is never dropped, however many strangers there are.
 */
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
