/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file op_times.h
 * How long operators really take on a device, next to what its peak rates promise.
 *
 * An entry is one measured run of a kind of operator on one device: what it computes, on numbers of
 * which type, what it reads and writes, and the seconds it took. The *roofline* of an operator is
 * the longer of FLOPs over the device's FLOP/s of that type and bytes over its memory bandwidth. An
 * operator of a kind that was measured takes what one of the same FLOPs and bytes took; else, by
 * rooflines, the time between the two nearest entries in proportion, and beyond them its roofline
 * times the ratio of measured to roofline of the last; others take their roofline. Entries of the
 * operator's type count, and where there are none, those that name no type.
 *
 * Threads: values, no shared state.
 */
#pragma once

#include <stddef.h>

#include "comm/base.h"
#include "comm/profile/device.h"

typedef struct xm_op_time {
    const char *op;      /**< kind of operator, e.g. "einsum" (docs/graph.md names them) */
    double flops, bytes; /**< of the run */
    double seconds;
    xm_number_t number; /**< type of the numbers; XM_NUMBER_ANY: of any that has no entries */
} xm_op_time_t;

/** Refuses an entry without a name, with negative or infinite numbers, that does nothing or takes
 * no time. The sentence starts with @p name. */
xm_status_t xm_op_time_check(const char *name, const xm_op_time_t *entry);

/** A copy in @p memory, by operator and roofline, rounded as a file holds them; NULL: no memory. */
xm_op_time_t *xm_op_times_copy(xm_arena_t *memory, const xm_op_time_t *entries, size_t count,
                               const xm_cluster_device_t *device);

/** Seconds of an operator, from entries in the order of xm_op_times_copy(). */
double xm_op_times_seconds(const xm_op_time_t *entries, size_t count,
                           const xm_cluster_device_t *device, const char *op, xm_number_t number,
                           double flops, double bytes);
