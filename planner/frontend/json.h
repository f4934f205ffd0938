/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file json.h
 * Operator graphs as JSON: written by any front end of ours, or by hand or another program.
 *
 * An operator either spells out its sharding rule, or names what it is and the front end derives
 * rule, result shapes and FLOPs ("kind": "conv", "stride": [2, 2]). docs/graph.md has the format,
 * docs/graph.schema.json its schema. What ap_json_text() writes, ap_json_from_text() reads back as
 * a graph with the same operators, rules, costs and layers; names that come twice are made unique.
 *
 * @code
 *     status = ap_json_from_file("model.json", &graph);
 *     status = ap_json_save(graph, "copy.json");
 * @endcode
 *
 * Ownership: texts are not kept. Threads: no shared state.
 */
#pragma once

#include <autopar/frontend.h>

#include "planner/graph.h"

enum { AP_GRAPH_JSON_VERSION = 1 };

xm_status_t ap_json_from_file(const char *path, ap_graph_t **graph);

/** Writes the text beside @p path and renames it: a reader sees all of it, or the old file. */
xm_status_t ap_json_save(const ap_graph_t *graph, const char *path);
