/**
 * @file frontend_json.h
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
#ifndef AP_PLANNER_FRONTEND_JSON_H
#define AP_PLANNER_FRONTEND_JSON_H

#include "planner/graph.h"

enum { AP_GRAPH_JSON_VERSION = 1 };

/**
 * Reads @p size bytes; @p name is the file in sentences. The graph is finished. Refused in one
 * sentence with line and column: text that is not JSON, unknown or missing keys, a tensor that is
 * not defined before its use, shapes that do not go together, numbers out of range.
 */
XM_API xm_status_t ap_json_from_text(const char *text, size_t size, const char *name,
                                     ap_graph_t **graph);

XM_API xm_status_t ap_json_from_file(const char *path, ap_graph_t **graph);

/** The graph as text, freed with free(); NULL without memory. */
XM_API char *ap_json_text(const ap_graph_t *graph);

/** Writes the text beside @p path and renames it: a reader sees all of it, or the old file. */
XM_API xm_status_t ap_json_save(const ap_graph_t *graph, const char *path);

#endif
