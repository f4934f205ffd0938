/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/piper/import.h
 * Reads Piper's JSON inputs (NeurIPS'21): maxMemoryPerDevice, maxDevices, bandwidth, mbsInBatch (or
 * maxBatchSize); nodes with id and TMPCs, which gives for each tensor-parallel degree up to two
 * ways to run the layer (id, timePerSample, parameterSize, memoryUsageA, memoryUsageB, syncTimeFw,
 * syncTimeBw); edges with sourceId, destId, communicationCost in bytes.
 *
 * Other keys (name) are passed over. Threads: no shared state.
 */
#pragma once

#include <stddef.h>

#include "planner/published/piper/piper.h"

/**
 * Reads @p length bytes of @p text; @p name stands for the file in sentences. Errors name the line
 * and column, or the node, degree and variant: an unknown id, a doubled edge, a synchronisation for
 * an edge that is not there or none for one that is, a negative number.
 */
xm_status_t ap_import_piper(const char *name, const char *text, size_t length,
                            ap_piper_problem_t *problem);
