/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/placement/import.h
 * Reads the JSON inputs of Tarnawski et al.'s device placement programs (NeurIPS'20):
 * maxSizePerFPGA, maxFPGAs, maxCPUs; nodes with id, supportedOnFpga, cpuLatency, fpgaLatency,
 * isBackwardNode, and perhaps size, colorClass; edges with sourceId, destId, cost.
 *
 * Other keys (name, layerId) are passed over. Threads: no shared state.
 */
#pragma once

#include <stddef.h>

#include "planner/published/placement/placement.h"

/**
 * Reads @p length bytes of @p text; @p name stands for the file in sentences. Errors name the line
 * and column, or the node or edge: an unknown id, a node with two different transfer costs, a
 * negative time, an edge from a backward to a forward node.
 */
xm_status_t ap_import_dnn_partitioning(const char *name, const char *text, size_t length,
                                       ap_placement_problem_t *problem);
