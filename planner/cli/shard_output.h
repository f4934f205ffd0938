/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file shard_output.h
 * What autopar shard says about a solution: the table of collectives and memory, the same as JSON,
 * the figure, and the exports.
 */
#pragma once

#include <jansson.h>

#include "planner/frontend/hlo.h"
#include "planner/intra_op.h"

/** Files to write; NULL = not wanted. */
typedef struct ap_shard_files {
    const char *plot, *jax, *hlo, *torch, *problem;
} ap_shard_files_t;

/** Refuses files that cannot be made of a model that is no HLO text. */
xm_status_t ap_shard_files_check(const ap_shard_files_t *files, bool is_hlo, const char *model);

/** @p model: its name, or the file it comes from; @p notes: NULL for a built-in model. */
xm_status_t ap_shard_files_write(const ap_shard_files_t *files, const char *model,
                                 const ap_shard_solution_t *solution,
                                 const ap_memory_curve_t *curve, const ap_frontend_notes_t *notes);

/** Writes a network in the format of the contest, which `autopar solve` reads. */
xm_status_t ap_shard_problem_write(const ap_cfn_t *cfn, const char *path);

/** The memory of a plan over its operators. */
xm_status_t ap_shard_memory_curve(const ap_shard_plan_t *plan, const ap_graph_t *graph,
                                  ap_memory_curve_t **curve);

/** The collectives per kind and set of axes. */
void ap_shard_report_print(const ap_shard_report_t *report, bool seconds);

/** Adds "mesh", "compute", "collectives" and "transfers" to a document. */
xm_status_t ap_shard_report_json(const ap_shard_report_t *report,
                                 const ap_shard_solution_t *solution, json_t *document);

/** Adds "memory". */
xm_status_t ap_memory_curve_json(const ap_memory_curve_t *curve, const ap_graph_t *graph,
                                 json_t *document);
