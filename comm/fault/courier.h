/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file courier.h
 * Carries the detectors' frames (frame.h) between the ranks of a job, by every path there is: as
 * datagrams to each address of a rank's host, and over connections to its listening socket, which
 * pass where a firewall keeps datagrams out. Internal.
 *
 * A frame goes to the address that was heard of last; with `urgent` it goes to all of them, and
 * over the connection if there is one. Nothing is certain to arrive: what matters is repeated by
 * who sends it.
 *
 * On a connection the side that accepts speaks first, with 16 random bytes; frames follow, each
 * behind its length (u32, little-endian), with codes by a key that is made of the job's key and
 * these bytes, so that nothing recorded can be played back. A connection becomes the bootstrap's
 * when it has carried ATTACH one way and ATTACHED back; no byte behind those is read here.
 *
 * Connections of strangers cost a descriptor each, and are dropped when there are too many.
 *
 * Threads: one at a time.
 */
#pragma once

#include <poll.h>

#include "comm/fault/endpoint.h"
#include "comm/fault/frame.h"

typedef struct xm_courier xm_courier_t;

/** The way that a frame came, for the answer. */
typedef struct xm_courier_way {
    int guest; /**< an accepted connection; −1: none */
    int call;  /**< the connection to this rank; −1: none */
    struct sockaddr_storage from;
    socklen_t length;
} xm_courier_way_t;

typedef struct xm_courier_events {
    void (*frame)(void *arg, const xm_frame_t *frame, const xm_courier_way_t *way);
    /** A host that has been reached at that address before refuses connections to the rank. @p
     * sure: it is this host. */
    void (*refused)(void *arg, int rank, bool sure);
    /** The connection that xm_courier_attach() asked for; the descriptor is the callee's. */
    void (*attached)(void *arg, int rank, int fd);
    void *arg;
} xm_courier_events_t;

/** @p endpoints must outlive it. */
xm_status_t xm_courier_create(const xm_endpoints_t *endpoints, xm_courier_t **courier);
void xm_courier_destroy(xm_courier_t *courier);

/** Fills in sender and receiver, and sends. */
void xm_courier_send(xm_courier_t *courier, int rank, xm_frame_t *frame, bool urgent);
/** The same, the way that another frame came. */
void xm_courier_reply(xm_courier_t *courier, int rank, xm_frame_t *frame,
                      const xm_courier_way_t *way);

/** Opens a connection to a rank, unless there is one that works, or is about to. */
void xm_courier_call(xm_courier_t *courier, int rank, int64_t now, int64_t limit);
/** Goes on trying to make a connection for the bootstrap of group @p generation. −1: no longer. */
void xm_courier_attach(xm_courier_t *courier, int rank, uint32_t generation);
/** To which rank; −1: none is wanted. */
int xm_courier_attaches(const xm_courier_t *courier);
/** Takes the connection that an ATTACH came by, after the answer; −1: it is gone. */
int xm_courier_take(xm_courier_t *courier, const xm_courier_way_t *way);

/** Most descriptors that xm_courier_polls() may want. */
int xm_courier_poll_count(const xm_courier_t *courier);
/** Writes what to poll, and returns how many. */
int xm_courier_polls(const xm_courier_t *courier, struct pollfd *polls);
/** Reads what has come, and does what is due; returns when to call again. */
int64_t xm_courier_read(xm_courier_t *courier, int64_t now, int64_t limit,
                        const xm_courier_events_t *events);
