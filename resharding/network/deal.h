/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file resharding/network/deal.h
 * The rails of hosts whose NICs are dealt to their ranks in turn. Not installed.
 */
#pragma once

#include "resharding/network.h"

/**
 * Makes the rails of params->nics_per_host, at least 1, on @p hosts hosts: which the ranks have,
 * and their rates in both directions. @p params then refers to them, and *memory to what the caller
 * frees.
 */
xm_status_t xm_network_deal_nics(xm_network_params_t *params, int hosts, void **memory);
