/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/planner/published/choice_network.h"

#include <stdlib.h>
#include <string.h>

static xm_status_t check(const ap_choice_variable_t *variables, int variable_count,
                         const ap_choice_edge_t *edges, int edge_count)
{
    for (int v = 0; v < variable_count; ++v) {
        if (variables[v].domain < 1) {
            return XM_INVALID("variable %d has %d values", v, variables[v].domain);
        }
    }
    for (int e = 0; e < edge_count; ++e) {
        int a = edges[e].a, b = edges[e].b;

        if (a < 0 || b < 0 || a >= variable_count || b >= variable_count || a == b) {
            return XM_INVALID("edge %d is from %d to %d of %d variables", e, a, b, variable_count);
        }
    }
    return XM_OK;
}

static void add_variable(ap_cfn_core_maker_t *maker, const ap_choice_variable_t *variable)
{
    size_t bytes = (size_t)variable->domain * sizeof(double);

    memcpy(ap_cfn_core_add_variable(maker, variable->domain), variable->seconds, bytes);
    if (variable->bytes != NULL) {
        memcpy(ap_cfn_core_add_segment(maker, 0, 1), variable->bytes, bytes);
    }
}

xm_status_t ap_choice_network_create(const ap_choice_variable_t *variables, int variable_count,
                                     const ap_choice_edge_t *edges, int edge_count,
                                     ap_choice_network_t **network)
{
    ap_cfn_core_size_t size = {.variables = variable_count, .links = edge_count, .times = 1};
    xm_status_t status = check(variables, variable_count, edges, edge_count);
    ap_cfn_core_maker_t maker;
    ap_choice_network_t *made;

    if (status != XM_OK) {
        return status;
    }
    for (int v = 0; v < variable_count; ++v) {
        size.values += (size_t)variables[v].domain;
        size.segments += variables[v].bytes != NULL;
        size.usages += variables[v].bytes != NULL ? (size_t)variables[v].domain : 0;
    }
    made = calloc(1, sizeof(*made));
    if (made != NULL) {
        made->part = calloc((size_t)variable_count + 1, sizeof(*made->part));
    }
    if (made == NULL || made->part == NULL) {
        ap_choice_network_destroy(made);
        return XM_NO_MEMORY("%d variables", variable_count);
    }
    status = ap_cfn_core_begin(&size, &maker);
    if (status != XM_OK) {
        ap_choice_network_destroy(made);
        return status;
    }
    for (int v = 0; v < variable_count; ++v) {
        add_variable(&maker, &variables[v]);
        made->part[v] = variables[v].part;
    }
    for (int e = 0; e < edge_count; ++e) {
        ap_cfn_core_borrow_link(&maker, edges[e].a, edges[e].b, edges[e].seconds);
    }
    made->core = ap_cfn_core_finish(&maker);
    *network = made;
    return XM_OK;
}

void ap_choice_network_destroy(ap_choice_network_t *network)
{
    if (network != NULL) {
        ap_cfn_core_destroy(network->core);
        free(network->part);
        free(network);
    }
}
