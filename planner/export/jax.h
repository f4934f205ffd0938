/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/export/jax.h
 * A solution as tables for JAX, in JSON.
 *
 * They hold the mesh, for each parameter and result the axes that cut each dimension, and, for a
 * graph that came from HLO text, the same of every operator. `lower(function, mesh, *arguments)` of
 * crossmesh.jax.shardings traces the function that the text was made from, finds the operators
 * again, puts `with_sharding_constraint` around them, and lowers it with the in and out shardings.
 * Products, convolutions, gathers, scatters and reductions are found by their order, and it raises
 * when one is missing or has another shape; the others by what they are applied to, and where that
 * is not known XLA decides.
 *
 * The body of a `scan` is treated likewise, and what it carries, stacks and takes apart keeps the
 * plan's sharding from round to round. Operators in the bodies of `while_loop` and `cond` get no
 * constraint: XLA derives their shardings from what goes in.
 */
#pragma once

#include <stdio.h>

#include "planner/frontend/hlo.h"
#include "planner/intra_op.h"

/** Writes the tables. @p notes may be NULL, or those of a model that is no HLO: then there are
 * specs by name, and no `lower`. */
xm_status_t ap_export_jax(const ap_shard_solution_t *solution, const ap_frontend_notes_t *notes,
                          FILE *stream);
