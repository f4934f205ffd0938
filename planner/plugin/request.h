/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/plugin/request.h
 * A question to a planner as JSON: what passes to a planner plug-in (autopar/planner_plugin.h).
 *
 * The document, version 1 of the format `autopar-request`, holds the whole model and the whole
 * cluster profile: whoever answers needs no file of the asker. docs/planner-plugin.md has every
 * key. Reading is strict. Not installed.
 */
#pragma once

#include "planner/search.h"

enum { AP_REQUEST_VERSION = 1 };

/** A question that was read; it owns what its parameters point at. */
typedef struct ap_planner_request {
    ap_planner_params_t params;
    xm_cluster_profile_t *profile;
    ap_graph_t *graph;
    xm_arena_t arena; /**< model, schedule, micro-batches */
} ap_planner_request_t;

/** The question as text, freed with free(). Reads the model. */
xm_status_t ap_planner_request_text(const ap_planner_params_t *params, char **text);

/** Reads a question. Clear it with ap_planner_request_clear(). */
xm_status_t ap_planner_request_parse(const char *text, size_t length,
                                     ap_planner_request_t *request);

/** NULL and an all-zero request are accepted. */
void ap_planner_request_clear(ap_planner_request_t *request);
