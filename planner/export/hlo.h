/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/export/hlo.h
 * A copy of an HLO module with the shardings of a solution written into it.
 *
 * Every instruction whose sharding the solution knows, and that has the same one in all the calls
 * it runs in, gets `sharding={…}` in XLA's V2 form, e.g. `{devices=[2,1,4]<=[8]
 * last_tile_dim_replicate}`; entry parameters and the entry's result always do. Where an operator
 * uses an operand in another sharding than it is made in, the steps between are written down, each
 * as a custom call to `Sharding`, so that XLA reshards there, this way, and nowhere else. Other
 * annotations of the same instructions are replaced; the rest of the text stays as it is.
 *
 * Device k of the assignment is logical device k of the mesh, row-major.
 */
#pragma once

#include <stdio.h>

#include "planner/frontend/hlo.h"
#include "planner/intra_op.h"

/**
 * Writes the annotated copy of @p text to @p stream. @p notes are those of ap_hlo_from_text() for
 * the very same text, from which the solution's graph comes.
 */
xm_status_t ap_export_hlo(const ap_shard_solution_t *solution, const ap_frontend_notes_t *notes,
                          const char *text, size_t size, const char *name, FILE *stream);

/** As ap_export_hlo(), from the file @p path. */
xm_status_t ap_export_hlo_file(const ap_shard_solution_t *solution,
                               const ap_frontend_notes_t *notes, const char *path, FILE *stream);
