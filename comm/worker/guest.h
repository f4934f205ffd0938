/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/worker/guest.h
 * Guests of a worker: objects above the transport (reshards) whose work goes on whenever the worker
 * makes progress, whatever its caller waits for, and that have to let go of the transport before it
 * is destroyed. Internal.
 *
 * Without this, two ranks that wait for the same two reshards in different orders would wait for
 * each other until the deadline: each would only move the one that the other does not.
 */
#pragma once

#include <stdbool.h>

#include "comm/worker/worker.h"

typedef struct xm_worker_guest xm_worker_guest_t;

/** Embedded in the guest; zeroed before the first use. */
struct xm_worker_guest {
    xm_worker_guest_t *next, **link; /**< link: what points here; NULL: in no list */
    /** Does what can be done now; true when there is more to do at once, so that the worker does
     * not sleep. May neither add nor remove guests. */
    bool (*advance)(xm_worker_guest_t *guest);
    /** The transport and the bootstrap are about to be destroyed. The guest has been removed. */
    void (*leave)(xm_worker_guest_t *guest);
};

void xm_worker_add_guest(xm_worker_t *worker, xm_worker_guest_t *guest);

/** A guest that is in no list is accepted. */
void xm_worker_remove_guest(xm_worker_guest_t *guest);

/** One step of all guests; true when one has more to do at once. */
bool xm_worker_advance_guests(xm_worker_t *worker);

/** The group has failed: nothing that needs others will end well any more. */
bool xm_worker_has_failed(const xm_worker_t *worker);

/** Removes all guests and tells them to leave. */
void xm_worker_dismiss_guests(xm_worker_t *worker);

/**
 * Waits for the allgather that was posted at @p start: its end, or XM_IN_PROGRESS when @p until has
 * passed before. The worker's timeout counts from @p start; then it is given up.
 */
xm_status_t xm_worker_allgather_wait(xm_worker_t *worker, int64_t start, int64_t until);
