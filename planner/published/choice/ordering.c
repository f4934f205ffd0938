/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PaSE's dynamic programme over an order of the operators (Elango, IPDPS'21). Deciding each
 * operator for every combination of the later ones that it depends on is variable elimination,
 * which this library has (elimination.h); so this file only hands the network over and traces the
 * answer. What remains of the paper is its result: the order with the smallest tables makes it
 * affordable.
 */

#include "planner/published/choice/ordering.h"

#include "planner/solver/elimination.h"

static const double MAX_CELLS = 1 << 24;

xm_status_t ap_search_ordering(const ap_cfn_core_t *network, int *assignment)
{
    const ap_elimination_params_t params = {.cells = MAX_CELLS};
    ap_elimination_t *elimination;
    xm_status_t status;

    XM_TRY(ap_elimination_create(network, &elimination));
    status = ap_elimination_plan(elimination, &params);
    if (status == XM_OK) {
        (void)ap_elimination_solve(elimination, ap_cfn_core_costs(network), assignment);
    }
    ap_elimination_destroy(elimination);
    return status;
}
