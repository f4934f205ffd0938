/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file detector_private.h
 * The detector's state, shared by its thread (detector.c) and what other threads ask of it
 * (detector_calls.c). Internal.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "comm/fault/courier.h"
#include "comm/fault/detector.h"
#include "comm/fault/liveness.h"

typedef struct {
    int group_rank;        /* -1: no member */
    bool centre;           /* watched as long as the group lives */
    bool closed;           /* its process has ended */
    bool left;             /* in order */
    int link;              /* a connection that it has made for the bootstrap; -1: none */
    uint32_t asked_probe;  /* what we want from it */
    uint32_t wanted_probe; /* what it wants from us … */
    bool wanted;           /* … and nobody has looked yet */
    uint32_t ready_probe;  /* what we are ready for */
    uint32_t ready_for;    /* what it says it is ready for */
    uint64_t activity;     /* what it said last of its own thread */
    unsigned signs;        /* answers that showed more activity than the one before */
    int64_t received_at;   /* of the transport, when last looked at */
    xm_frame_t *said;      /* the last frame of a regrouping, its table behind it; NULL: none */
    int64_t said_at;
} xm_detector_slot_t;

struct xm_detector {
    const xm_endpoints_t *endpoints;
    const xm_counters_t *counters;
    int64_t interval;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards what follows */
    xm_liveness_t *liveness;
    xm_courier_t *courier;
    xm_detector_slot_t *slots;
    struct pollfd *polls;
    int64_t began_at;
    uint32_t generation;
    bool muted;                   /* between two groups: findings are noted only */
    xm_bootstrap_fault_t finding; /* status XM_OK while there is none */
    bool delivered;               /* to the bootstrap */
    int repeats;                  /* of the finding, still to be sent */
    int64_t repeat_at;
    bool near; /* the finding goes to this host only */
    bool warned;
    int wake_fd, news_fd, guard_fd;
    atomic_bool news, stop;
    atomic_uint_fast64_t activity;
};

/* Of a descriptor that is written to wake somebody. */
void xm_detector_signal(int fd);
void xm_detector_drain(int fd);

/* Tells the application's thread that there is news. */
void xm_detector_announce(xm_detector_t *self);

/* Takes a finding over, unless there is one: the first stays, so that all ranks end up with one
 * culprit. `tell`: it was found here, so the others have to hear of it. One that came by frame is
 * not passed on, or messages would multiply. */
void xm_detector_settle(xm_detector_t *self, const xm_bootstrap_fault_t *fault, bool tell);

/* The finding on a process that has ended. */
void xm_detector_settle_closed(xm_detector_t *self, int rank);

/* Sends the finding to all members. */
void xm_detector_send_finding(xm_detector_t *self);

void xm_detector_ask(xm_detector_t *self, int rank, uint64_t question, int about, bool urgent);
void xm_detector_answer(xm_detector_t *self, int rank, const xm_frame_t *question,
                        const xm_courier_way_t *way);

/* Forgets what was said in a regrouping. */
void xm_detector_forget(xm_detector_t *self);
