/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file worker_private.h
 * A worker's state, shared by its making (create.c), its waits (worker.c) and the changes of its
 * group (group.c).
 * Internal.
 */
#pragma once

#include "comm/transport.h"
#include "comm/fault.h"
#include "comm/worker/metrics.h"
#include "comm/worker/worker.h"
#include "comm/worker/guest.h"
#include "comm/worker/slots.h"

struct xm_worker {
    xm_bootstrap_t *bootstrap;
    xm_transport_t *transport;
    xm_worker_slots_t slots;
    char *host; /* what the creator gave, or NULL */
    double timeout;
    bool spin;
    bool verbs; /* the transport's kind */
    unsigned calls;
    int wake_fd;              /* eventfd of xm_worker_wake() */
    xm_status_t fault_status; /* sticky failure of the group; XM_OK while there is none */
    int failed_rank;          /* of the fault status; -1: nobody in particular */
    char sentence[1024];

    int generation;  /* times the group was re-formed */
    int *job_rank;   /* by rank: the rank in the job as it began */
    int *group_rank; /* by rank of the job: in the group, -1 when it is no member any more */
    xm_endpoints_t endpoints;    /* by rank of the job; without members in a job of one rank */
    double interval;             /* of the questions; 0: off */
    xm_detector_t *detector;     /* NULL: a job of one rank, or without addresses */
    xm_path_probe_t *path_probe; /* NULL: no questions, or nobody to doubt */
    bool *cut;                   /* by rank of the job: messages do not get through to it */
    xm_counters_t *counters;     /* by rank of the job */
    xm_metrics_t *metrics;       /* NULL: no file is wanted */
    xm_worker_guest_t *guests;   /* list: whose work goes on in every wait */
};

/* Opens the transport with the NICs that all ranks have agreed on, and learns which rails they use.
 */
xm_status_t xm_worker_open_transport(xm_worker_t *worker);

/* Exchanges slots and opens the transport over the worker's bootstrap, and begins to watch the
 * others. On failure what was made is left for xm_worker_leave(). */
xm_status_t xm_worker_enter(xm_worker_t *worker);

/* Makes the counters that transports count in, and the file of them where one is wanted. */
xm_status_t xm_worker_open_counters(xm_worker_t *worker);
xm_status_t xm_worker_open_metrics(xm_worker_t *worker);

/* The opposite: ends everything in flight; the bootstrap goes as well. */
void xm_worker_leave(xm_worker_t *worker);

/* The sticky fault status with its sentence, or XM_OK. */
xm_status_t xm_worker_fault_status(const xm_worker_t *worker);

/* xm_worker_wait() for a rank that has to look again after so many ns. */
xm_status_t xm_worker_wait_at_most(xm_worker_t *worker, int64_t deadline, int64_t longest_sleep);

/* Reads what the bootstrap has to say, and the detector by way of it. */
xm_status_t xm_worker_poll_faults(xm_worker_t *worker);

/* The transport has lost a peer: finds out why, and makes that the fault status. */
xm_status_t xm_worker_check_lost_peer(xm_worker_t *worker);

/* Makes a failure the fault status: ends the operations with the rank that is gone (all of them
 * after an abort), and tells the others. The sentence is the thread's last. */
xm_status_t xm_worker_mark_failed(xm_worker_t *worker, xm_status_t status, int failed_rank);
