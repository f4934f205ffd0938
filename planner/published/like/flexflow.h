/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/like/flexflow.h
 * A stage's operators as FlexFlow's strategy file has them (planner/export/flexflow.h writes one).
 */
#pragma once

#include "planner/published/like/stage_network.h"

/**
 * Gives every operator of the file the cheapest of the strategies whose output has those degrees;
 * @p assignment: -1 for all others. Devices are not looked at: they follow from the mesh.
 * XM_ERR_NO_SOLUTION: this mesh has no such strategy.
 */
xm_status_t ap_like_read_flexflow(const ap_stage_network_t *network, const char *text,
                                  const int shape[2], int *assignment);
