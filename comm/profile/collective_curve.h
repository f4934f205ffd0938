/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file collective_curve.h
 * What a collective of some library costs on one mesh axis: a curve bytes → seconds for a group of
 * devices.
 *
 * Axes are told apart by how their groups lie on the hosts: a group has @p devices_per_host devices
 * on each of @p hosts hosts, and @p groups_per_host such groups work side by side, sharing the
 * NICs of the same hosts. On 2 hosts of 4 devices the axis inside a host is 1 x 4, one group a
 * host; the axis across hosts is 2 x 1, four groups a host; all devices are 2 x 4, one group.
 *
 * Bytes are those of the whole tensor as seen on that axis: the gathered result of an all-gather,
 * the operand of an all-reduce or a reduce-scatter, n times a device's buffer for an all-to-all of
 * n devices.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "comm/profile/curve.h"

typedef enum xm_collective {
    XM_ALL_GATHER,
    XM_ALL_REDUCE,
    XM_REDUCE_SCATTER,
    XM_ALL_TO_ALL,
    XM_COLLECTIVE_COUNT
} xm_collective_t;

/** "all-gather", "all-reduce", "reduce-scatter", "all-to-all". */
XM_API const char *xm_collective_name(xm_collective_t kind);

typedef struct xm_collective_curve {
    xm_collective_t kind;
    int hosts, devices_per_host; /**< of one group */
    int groups_per_host;         /**< groups that use a host at the same time */
    const char *library;         /**< what was measured, e.g. "Open MPI 4.1.4", "NCCL 2.28.7" */
    const xm_curve_point_t *points;
    const double *spread; /**< of each point (curve.h), or NULL */
    size_t count;
} xm_collective_curve_t;

/** Devices of one group. */
XM_API int xm_collective_curve_devices(const xm_collective_curve_t *curve);

/** True when both are about the same collective on the same kind of axis. */
XM_API bool xm_collective_curve_same(const xm_collective_curve_t *a,
                                     const xm_collective_curve_t *b);

/** Refuses sizes below 1, groups of one device, an empty library and what xm_curve_check() does.
 * The sentence starts with @p name. */
XM_API xm_status_t xm_collective_curve_check(const char *name, const xm_collective_curve_t *curve);

/** A copy with its own texts and arrays, rounded as a file holds them. */
xm_status_t xm_collective_curve_copy(const xm_collective_curve_t *from, xm_collective_curve_t *to);

/** Frees what a copy owns. */
void xm_collective_curve_release(xm_collective_curve_t *copy);

/** Releases @p count copies and frees their array; NULL is accepted. */
XM_API void xm_collective_curves_free(xm_collective_curve_t *curves, size_t count);
