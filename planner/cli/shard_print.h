/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file shard_print.h
 * What autopar shard prints of a plan: a table with the strategy of every node, or JSON.
 */
#pragma once

#include <jansson.h>

#include "planner/cli/command.h"
#include "planner/frontend/hlo.h"
#include "planner/intra_op.h"

/** @p notes may be NULL; @p seconds: that is the objective's unit. */
void ap_shard_print(const ap_graph_t *graph, const ap_shard_problem_t *problem,
                    const ap_shard_plan_t *plan, const ap_frontend_notes_t *notes, bool seconds);

/** The members of @p more are added to the document. */
xm_status_t ap_shard_give_json(const ap_graph_t *graph, const ap_shard_problem_t *problem,
                               const ap_shard_plan_t *plan, const ap_frontend_notes_t *notes,
                               json_t *more, const xm_cli_json_t *json);
