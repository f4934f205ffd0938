/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file compute.h
 * What a rank does for as long as a pass of its stage takes.
 *
 *  - `wait`: nothing. The device is elsewhere, as a GPU would be: the processor only has to keep
 *    transfers going. Many ranks can do so on few cores at once, and none of them is late.
 *  - `spin`, `gemm`: real work, integer arithmetic or products of matrices, in units whose time is
 *    measured beforehand. A pass is as many units as its time holds; between two the caller looks
 *    after its transfers. Needs a core for each rank.
 *
 * Threads: one thread at a time per object.
 */
#pragma once

#include <stdint.h>

#include "comm/base.h"

/** In the order of the choices of --compute. */
typedef enum rb_compute_kind {
    RB_COMPUTE_WAIT,
    RB_COMPUTE_SPIN,
    RB_COMPUTE_GEMM
} rb_compute_kind_t;

#define RB_COMPUTE_NAMES "wait|spin|gemm"

typedef struct rb_compute rb_compute_t;

/** Measures the time of a unit (a tenth of a second), except for `wait`. Ranks that work at the
 * same time should call it at the same time. */
xm_status_t rb_compute_create(rb_compute_kind_t kind, rb_compute_t **compute);

rb_compute_kind_t rb_compute_kind(const rb_compute_t *compute);

/** Fails unless this process may use a core for each of @p ranks ranks of @p where, if they are to
 * do real work. */
xm_status_t rb_compute_check(rb_compute_kind_t kind, int ranks, const char *where);

/** "wait", "spin" or "gemm". */
const char *rb_compute_name(rb_compute_kind_t kind);

/** Units that fill @p duration_ns, to the nearest; 0 for `wait`. */
int64_t rb_compute_units(const rb_compute_t *compute, int64_t duration_ns);

/** Does one unit. */
void rb_compute_unit(rb_compute_t *compute);

/** NULL is accepted. */
void rb_compute_destroy(rb_compute_t *compute);
