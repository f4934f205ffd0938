/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Anytime search for cheap solutions of a core: large neighbourhoods, one after the other, each
 * solved by planner/solver/local/region.h at the shared prices. Private to the solver.
 */
#pragma once

#include "planner/solver/network.h"

typedef struct ap_cfn_search ap_cfn_search_t;

/* One searcher, for one thread. */
xm_status_t ap_cfn_search_create(ap_cfn_shared_t *shared, uint64_t seed, ap_cfn_search_t **search);

/* Searches until `until` (of ap_cfn_shared_now()) or ap_cfn_shared_is_over(); offers what it finds.
 * Can be called again. There must be published prices. */
xm_status_t ap_cfn_search_run(ap_cfn_search_t *search, int64_t until);

void ap_cfn_search_destroy(ap_cfn_search_t *search);
