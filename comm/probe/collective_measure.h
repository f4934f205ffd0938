/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file collective_measure.h
 * Measures the collectives of a library on every kind of mesh axis that hosts × devices make up:
 * inside hosts, across hosts (one group for each rank of a host, all at once), and all ranks.
 * Internal to the probe.
 */
#pragma once

#include "comm/probe/collective_library.h"
#include "comm/profile.h"

enum { XM_COLLECTIVE_AXES = 3, XM_COLLECTIVE_MIN_BYTES = 1024, XM_COLLECTIVE_GROWTH = 4 };

/** XM_ERR_UNSUPPORTED where hosts have unequal numbers of ranks, or there is one rank. Otherwise
 * the axes on which a group has at least two devices, no two of them alike. */
xm_status_t xm_collective_axes(const xm_collective_job_t *job,
                               xm_collective_axis_t axes[XM_COLLECTIVE_AXES], int *count);

/** What to spend. */
typedef struct xm_collective_effort {
    uint64_t max_bytes; /**< of the largest tensor; at least MIN_BYTES * GROWTH */
    int repetitions;    /**< median of at least this many, until it is known to XM_PROBE_TIGHT */
    double seconds;     /**< for one size; a size that takes much longer ends its curve */
} xm_collective_effort_t;

/** A curve with room for its points. */
typedef struct xm_collective_points {
    xm_curve_point_t points[XM_CURVE_MAX_POINTS];
    double spread[XM_CURVE_MAX_POINTS];
    int count; /**< at least 2 */
} xm_collective_points_t;

/**
 * Measures one collective on the axis that the library has entered, for tensors of 1 KiB, 4 KiB, …
 * up to max_bytes; each size's data is checked once. The time is that of the slowest rank of all
 * groups; times that fall are smoothed. Collective, same result on all ranks.
 */
xm_status_t xm_collective_measure(const xm_collective_job_t *job, xm_collective_library_t *library,
                                  const xm_collective_axis_t *axis, xm_collective_t kind,
                                  const xm_collective_effort_t *effort,
                                  xm_collective_points_t *measured);

/** Enters each axis in turn and calls @p visit for every collective there; ends with the first
 * failure. Collective. */
xm_status_t xm_collective_visit(const xm_collective_job_t *job, xm_collective_library_t *library,
                                xm_status_t (*visit)(void *arg, const xm_collective_axis_t *axis,
                                                     xm_collective_t kind),
                                void *arg);
