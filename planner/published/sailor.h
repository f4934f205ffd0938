/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file sailor.h
 * The face of planner/published/sailor/: other rooms include this header and none of the folder.
 * The measured runs of Sailor's artifact (SOSP'25) as a cluster profile, plans and their measured
 * steps.
 *
 * @code
 *     status = ap_sailor_import("shared/data/sailor", "sailor"); // writes sailor/measured.json, …
 * @endcode
 */
#pragma once

#include "comm/base.h"

/**
 * Reads profiles, network fits and plans of @p folder and writes into the folder @p output, which
 * is made, the cluster profile (cluster.json), the plans at our prices, and what was measured of
 * them (measured.json).
 */
xm_status_t ap_sailor_import(const char *folder, const char *output);
