/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/solver/network/read.h
 * Reads a cost function network from the JSON of the ASPLOS'25 contest (IOPDDL), gzipped or not.
 *
 * `{"problem": {"name": …, "nodes": {"intervals": [[lo, hi], …], "costs": [[…], …], "usages":
 * [[…], …]}, "edges": {"nodes": [[a, b], …], "costs": [[…], …]}, "usage_limit": n}}`. Members may
 * come in any order; `name`, `usage_limit` and an edge-free `edges` may be missing, and members
 * that the format does not know are skipped. Numbers are integers of 64 bits.
 *
 * The text is streamed: memory is that of the numbers, 8 bytes each.
 */
#pragma once

#include "planner/solver/network/network.h"

/** Reads @p path. XM_ERR_PARSE with line and column for what is not the format, XM_ERR_NOT_FOUND
 *  or XM_ERR_IO for a file that cannot be read, XM_ERR_TIMEOUT when it takes longer than
 *  @p seconds (0: as long as it takes). The result is checked (ap_cfn_check()). */
xm_status_t ap_cfn_read(const char *path, double seconds, ap_cfn_t **cfn);

/** The same from text in memory. */
xm_status_t ap_cfn_read_text(const char *text, size_t length, ap_cfn_t **cfn);
