/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file flow.h
 * Maximum flow with integer capacities (Dinic's algorithm), and the minimum cut it proves. Not
 * installed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "comm/base.h"

typedef struct xm_flow xm_flow_t;

/** A network of @p nodes nodes without edges. */
xm_status_t xm_flow_create(int nodes, xm_flow_t **flow);
void xm_flow_destroy(xm_flow_t *flow);

xm_status_t xm_flow_add_edge(xm_flow_t *flow, int from, int to, int64_t capacity);

/**
 * Pushes as much as possible from @p source to @p sink. Edges may be added afterwards and the
 * function called again: *value is what it pushed in addition, and no node passes on less than
 * before directly to the sink.
 */
xm_status_t xm_flow_maximise(xm_flow_t *flow, int source, int sink, uint64_t *value);

/** What flows along an edge; edges count from 0 in the order they were added. */
int64_t xm_flow_along(const xm_flow_t *flow, int edge);

/** After xm_flow_maximise(): whether a node is on the source's side of a minimum cut. */
bool xm_flow_on_source_side(const xm_flow_t *flow, int node);
