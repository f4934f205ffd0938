/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file spec.h
 * Sharding specs (crossmesh/layout.h) as the planner handles them: packed.
 *
 * A packed spec is one machine word: byte d holds the set of mesh axes (bit a = axis a) that
 * dimension d is cut over, always in ascending order of axis. As text: one token per dimension, `R`
 * or `S` with the axes, e.g. "S01RR" (Alpa, OSDI'22, section 4.1). Specs compare with ==.
 *
 * Threads: values only, no shared state.
 */
#pragma once

#include <autopar/graph.h>

#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"
#include "resharding/layout.h"

typedef uint64_t ap_spec_t;

/** Every dimension whole. */
#define AP_SPEC_REPLICATED ((ap_spec_t)0)

/** Set of axes that dimension @p dim is cut over, bit a = axis a. */
unsigned ap_spec_axes(ap_spec_t spec, int dim);

/** @p spec with dimension @p dim cut over the set @p axes (replacing what it was cut over). */
ap_spec_t ap_spec_with(ap_spec_t spec, int dim, unsigned axes);

/** Union of the axes of all dimensions. */
unsigned ap_spec_used_axes(ap_spec_t spec);

/** The spec of a tensor of @p rank dimensions, unpacked. */
xm_spec_t ap_spec_unpack(ap_spec_t spec, int rank);

/** Writes e.g. "S01RR" into @p buffer (AP_SPEC_TEXT bytes) and returns the buffer; "" for rank 0.
 */
char *ap_spec_format(ap_spec_t spec, int rank, char *buffer, size_t size);

/** Several, of tensors of these ranks: "S0RR,RS1", as far as @p size allows. */
void ap_spec_list(const ap_spec_t *specs, const int *ranks, int count, char *text, size_t size);

/**
 * How a tensor of these extents rests on a mesh of two axes: cut by its first dimension, the batch,
 * over as many of @p axes as divide it; a tensor of one dimension, which has no batch, is whole.
 */
ap_spec_t ap_spec_resting(int rank, const int64_t *dims, const int mesh[2], unsigned axes);

/**
 * Reads "S01RR" of a tensor of @p rank dimensions on a mesh of @p mesh_rank axes. Refused with the
 * dimension in the sentence: other letters, too few or many tokens, an axis outside the mesh, an
 * axis twice, axes not ascending.
 */
xm_status_t ap_spec_parse(const char *text, int rank, int mesh_rank, ap_spec_t *spec);
