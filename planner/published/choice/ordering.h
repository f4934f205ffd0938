/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/choice/ordering.h
 * The assignment with the least seconds by dynamic programming over an order of the variables
 * (PaSE, Elango, IPDPS'21): each variable is decided for every combination of the later ones that
 * it still depends on, the one with the smallest such table first. elimination.h does the work.
 *
 * Exact. XM_ERR_UNSUPPORTED when a table would exceed 2^24 cells. Threads: no shared state.
 */
#pragma once

#include "planner/published/choice/network.h"

xm_status_t ap_search_ordering(const ap_cfn_core_t *network, int *assignment);
