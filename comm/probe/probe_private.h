/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a probe: probe.c (order, sharing), result.c (the profile), comm/probe/nic.c
 * (streams), comm/probe/collective.c (collectives). */
#pragma once

#include "comm/probe/collective_library.h"
#include "comm/probe/probe.h"
#include "comm/probe/profile.h"
#include "comm/profile.h"
#include "comm/probe/state.h"

typedef struct xm_probe {
    xm_worker_t *worker;
    xm_probe_params_t params;
    int rank, ranks, hosts;
    int *host_of;
    uint64_t sizes[XM_CURVE_MAX_POINTS];
    int size_count;
    xm_probe_state_t *state;
    double started; /* this rank's clock */
    double elapsed; /* seconds since then on rank 0's clock, when all last heard of it */
    double phase_start, phase_end;
    const char *phase;
    /* Collectives, where they are measured. */
    xm_collective_job_t job;
    xm_collective_library_t *library;
    char note[768];           /* why they are not, for the provenance */
    double collective_budget; /* seconds */
    double links_part;        /* of the progress: the rest is for collectives */
} xm_probe_t;

/* All ranks begin a phase together, and idle ranks sleep until the next one. */
xm_status_t xm_probe_enter(xm_probe_t *probe, const char *phase, double start, double end);

/* Whether a step has been done, by this run or one before. */
bool xm_probe_is_done(const xm_probe_t *probe, const char *step);

/* Ends a step: what the ranks have measured, one after the other, is known to all and saved. */
xm_status_t xm_probe_finish_step(xm_probe_t *probe, const char *step, const double *own,
                                 size_t count);

/* Numbers of a step that measures a rate: bytes/s, spread, and the seconds of processors that a
 * byte cost all ranks. */
enum { XM_PROBE_RATE_NUMBERS = 3 };

/* What a rank says of its device; and what it copies at least, however many ranks use the caches.
 */
enum {
    XM_PROBE_DEVICE_NUMBERS = sizeof(xm_probe_device_t) / sizeof(double),
    XM_PROBE_COPY_BYTES = 32 << 20
};

/* NIC rates of every host in both directions, and what the ranks of a host reach among themselves.
 * Steps "nic/<host>/out", "nic/<host>/in", "nic/both", "fabric", empty when they were not measured.
 */
xm_status_t xm_probe_measure_fabric(xm_probe_t *probe);
xm_status_t xm_probe_measure_nics(xm_probe_t *probe);

/* Opens what params.collectives names, and leaves the rest of the budget to the links. */
xm_status_t xm_probe_open_collectives(xm_probe_t *probe);

/* Curves of all collectives on all kinds of axes, a step "<library> <collective> <axis>" for each:
 * bytes, seconds and spread of each point. Nothing where no library is open. */
xm_status_t xm_probe_measure_collectives(xm_probe_t *probe);

/* Adds these curves, or the note, to the profile. */
xm_status_t xm_probe_add_collectives(xm_probe_t *probe, xm_cluster_profile_t **profile);

/* The profile, without collectives. */
xm_status_t xm_probe_make_profile(xm_probe_t *probe, xm_cluster_profile_t **profile);

/* Name of the step of a host's direction. */
char *xm_probe_nic_step(int host, bool out, char *buffer, size_t size);
