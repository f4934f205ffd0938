/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PaSE's dynamic programme over an order of the operators (Elango, IPDPS'21). Deciding each
 * operator for every combination of the later ones that it depends on is variable elimination,
 * which this library has (elimination.h); so this file only hands the network over and traces the
 * answer. What remains of the paper is its result: the order with the smallest tables makes it
 * affordable.
 */

#include "planner/published/choice/ordering.h"

#include <stdlib.h>

#include "planner/solver/elimination.h"

static const size_t MAX_CELLS = 1 << 24;

xm_status_t ap_search_ordering(const ap_choice_network_t *network, int *assignment)
{
    int count = network->variable_count;
    int *domain = calloc((size_t)count + 1, sizeof(*domain));
    ap_elimination_t *elimination = NULL;
    xm_status_t status;

    if (domain == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d variables", count);
    }
    for (int v = 0; v < count; ++v) {
        domain[v] = network->variables[v].domain;
        assignment[v] = 0;
    }
    status = ap_elimination_create(count, domain, &elimination);
    free(domain);
    for (int v = 0; v < count && status == XM_OK; ++v) {
        status = ap_elimination_add(elimination, &v, 1, network->variables[v].seconds);
    }
    for (int e = 0; e < network->edge_count && status == XM_OK; ++e) {
        const int ends[] = {network->edges[e].a, network->edges[e].b};

        status = ap_elimination_add(elimination, ends, 2, network->edges[e].seconds);
    }
    if (status == XM_OK) {
        status = ap_elimination_run(elimination, NULL, MAX_CELLS);
    }
    if (status == XM_OK) {
        ap_elimination_trace(elimination, assignment);
    }
    ap_elimination_destroy(elimination);
    return status;
}
