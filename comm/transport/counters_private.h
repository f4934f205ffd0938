/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file counters_private.h
 * How counters are counted: by one thread, with plain additions that another thread may watch. Not
 * installed.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "comm/transport/counters.h"

/** Written by one thread, read by any. */
typedef _Atomic uint64_t xm_counter_t;

typedef struct xm_peer_counters {
    xm_counter_t posted[XM_DIRECTION_COUNT], refused[XM_DIRECTION_COUNT];
    xm_counter_t ended[XM_DIRECTION_COUNT][XM_OUTCOME_COUNT];
    xm_counter_t bytes[XM_DIRECTION_COUNT];
    xm_counter_t copies, copied_bytes;
    xm_counter_t received_at;
} xm_peer_counters_t;

typedef struct xm_nic_counters {
    char name[XM_COUNTERS_NAME_SIZE]; /* complete before `nic_count` says that it is there */
    xm_counter_t rate;
    xm_counter_t pieces[XM_DIRECTION_COUNT], bytes[XM_DIRECTION_COUNT];
    xm_counter_t errors, retries, failovers;
} xm_nic_counters_t;

struct xm_counters {
    int peer_count;
    bool trace; /* operations are logged */
    atomic_int nic_count;
    xm_counter_t sleeps, slept_ns, registration_hits, registration_misses, resends;
    xm_nic_counters_t nic[XM_COUNTERS_MAX_NICS];
    xm_peer_counters_t peer[];
};

/** One thread counts, so this is an addition and not a locked one. */
static inline void xm_count(xm_counter_t *counter, uint64_t value)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + value,
                          memory_order_relaxed);
}

static inline uint64_t xm_counted(const xm_counter_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static inline xm_outcome_t xm_outcome_of(xm_status_t status)
{
    switch (status) {
    case XM_OK:
        return XM_OUTCOME_OK;
    case XM_ERR_CANCELED:
        return XM_OUTCOME_CANCELED;
    case XM_ERR_PEER_DIED:
        return XM_OUTCOME_PEER_DIED;
    case XM_ERR_CORRUPT:
        return XM_OUTCOME_CORRUPT;
    default:
        return XM_OUTCOME_FAILED;
    }
}

/** An operation with a peer has ended. */
static inline void xm_count_end(xm_peer_counters_t *peer, xm_direction_t direction, size_t length,
                                xm_status_t status)
{
    xm_counter_t *ended = &peer->ended[direction][xm_outcome_of(status)];

    if (status == XM_OK) {
        xm_count(&peer->bytes[direction], length);
    }
    if (status == XM_OK && direction == XM_RECEIVED) {
        /* The kernel's last tick: a few nanoseconds, where the exact time takes ten times that. */
        atomic_store_explicit(&peer->received_at,
                              (uint64_t)xm_clock_read_ns(CLOCK_MONOTONIC_COARSE),
                              memory_order_relaxed);
    }
    /* Released, so that who sees the end sees the post as well. */
    atomic_store_explicit(ended, xm_counted(ended) + 1, memory_order_release);
}

/** A posting call gave @p status. */
static inline void xm_count_post(xm_peer_counters_t *peer, xm_direction_t direction, size_t length,
                                 xm_status_t status)
{
    if (status < 0) {
        xm_count(&peer->refused[direction], 1);
        return;
    }
    xm_count(&peer->posted[direction], 1);
    if (status == XM_OK) {
        xm_count_end(peer, direction, length, status);
    }
}

/** Logs what became of an operation of @p rank with @p peer, where operations are logged. */
void xm_counters_trace(int rank, int peer, xm_direction_t direction, uint64_t tag, size_t length,
                       const char *what);

/** The NIC of that name, made if it is new. @p rate in bit/s, 0: unknown. NULL where there are no
 * counters, which the functions below accept. */
xm_nic_counters_t *xm_counters_open_nic(xm_counters_t *counters, const char *name, uint64_t rate);

/** A piece of an operation has ended. */
static inline void xm_count_fragment(xm_nic_counters_t *nic, xm_direction_t direction, size_t bytes,
                                     xm_status_t status)
{
    if (nic == NULL) {
        return;
    }
    if (status == XM_OK) {
        xm_count(&nic->pieces[direction], 1);
        xm_count(&nic->bytes[direction], bytes);
    } else if (status != XM_ERR_CANCELED) {
        xm_count(&nic->errors, 1);
    }
}

/** A piece goes over this NIC because another one failed to carry it. */
static inline void xm_count_retry(xm_nic_counters_t *nic)
{
    if (nic != NULL) {
        xm_count(&nic->retries, 1);
    }
}

/** What this NIC carried is carried by others from now on. */
static inline void xm_count_failover(xm_nic_counters_t *nic)
{
    if (nic != NULL) {
        xm_count(&nic->failovers, 1);
    }
}

/** A message needed registered memory: it was (hit), or had to be registered. */
static inline void xm_count_registration(xm_counters_t *counters, bool hit)
{
    if (counters != NULL) {
        xm_count(hit ? &counters->registration_hits : &counters->registration_misses, 1);
    }
}

/** The rank slept in a wait. */
static inline void xm_count_sleep(xm_counters_t *counters, int64_t nanoseconds)
{
    xm_count(&counters->sleeps, 1);
    xm_count(&counters->slept_ns, nanoseconds > 0 ? (uint64_t)nanoseconds : 0);
}
