/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/frontend/hlo/hlo.h
 * Operator graphs from HLO text, as JAX (`lower(…).as_text(dialect="hlo")`) and XLA
 * (`--xla_dump_hlo_as_text`, the files `*.before_optimizations.txt`) print it.
 *
 * Calls, fusions, tuples and conditionals are looked through; a loop with a known trip count is its
 * body, run that many times. Constants and what is computed from nothing else need no data and
 * vanish. Entry parameters whose buffers are donated to a result are parameters of the model, and
 * the result takes their storage over; all others are inputs. Operators without a rule of their own
 * need all of everything on every device; they are listed. docs/hlo.md has the whole story.
 *
 * Ownership: the text is not kept. Threads: no shared state.
 */
#pragma once

#include <autopar/frontend.h>

#include "planner/frontend/common.h"
#include "planner/graph.h"

/** As ap_hlo_from_text(); the file is mapped, not loaded, so literals in it cost no memory. */
xm_status_t ap_hlo_from_file(const char *path, ap_graph_t **graph, ap_frontend_notes_t **notes);
