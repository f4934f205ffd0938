/*
 * The common problem of the published searches, with its sums. It is kept free of graphs, meshes
 * and costs, so that a search is a file about searching, and can be tested on random networks
 * against trying everything.
 */

#include "planner/published/choice/network.h"

#include <stdlib.h>
#include <string.h>

static xm_status_t check(const ap_choice_variable_t *variables, int variable_count,
                         const ap_choice_edge_t *edges, int edge_count)
{
    for (int v = 0; v < variable_count; ++v) {
        if (variables[v].domain < 1) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "variable %d has %d values", v,
                                variables[v].domain);
        }
    }
    for (int e = 0; e < edge_count; ++e) {
        int a = edges[e].a, b = edges[e].b;

        if (a < 0 || b < 0 || a >= variable_count || b >= variable_count || a == b) {
            return xm_error_set(XM_ERR_INVALID_ARGUMENT, "edge %d is from %d to %d of %d variables",
                                e, a, b, variable_count);
        }
    }
    return XM_OK;
}

/* Lists which edges touch a variable: counted, then filled from the back, which leaves the
 * beginnings in `first`. */
static void list_touching(ap_choice_network_t *network)
{
    for (int e = 0; e < network->edge_count; ++e) {
        ++network->first[network->edges[e].a];
        ++network->first[network->edges[e].b];
    }
    for (int v = 0; v < network->variable_count; ++v) {
        network->first[v + 1] += network->first[v];
    }
    for (int e = network->edge_count - 1; e >= 0; --e) {
        network->touching[--network->first[network->edges[e].a]] = e;
        network->touching[--network->first[network->edges[e].b]] = e;
    }
}

xm_status_t ap_choice_network_create(const ap_choice_variable_t *variables, int variable_count,
                                     const ap_choice_edge_t *edges, int edge_count,
                                     ap_choice_network_t **network)
{
    size_t count = (size_t)variable_count, links = (size_t)edge_count;
    xm_status_t status = check(variables, variable_count, edges, edge_count);
    ap_choice_network_t *made;

    if (status != XM_OK) {
        return status;
    }
    made = calloc(1, sizeof(*made));
    if (made != NULL) {
        made->variable_count = variable_count;
        made->edge_count = edge_count;
        made->variables = malloc((count + 1) * sizeof(*made->variables));
        made->edges = malloc((links + 1) * sizeof(*made->edges));
        made->first = calloc(count + 1, sizeof(*made->first));
        made->touching = malloc((2 * links + 1) * sizeof(*made->touching));
    }
    if (made == NULL || made->variables == NULL || made->edges == NULL || made->first == NULL ||
        made->touching == NULL) {
        ap_choice_network_destroy(made);
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %zu variables", count);
    }
    if (count > 0) {
        memcpy(made->variables, variables, count * sizeof(*variables));
    }
    if (links > 0) {
        memcpy(made->edges, edges, links * sizeof(*edges));
    }
    list_touching(made);
    *network = made;
    return XM_OK;
}

void ap_choice_network_destroy(ap_choice_network_t *network)
{
    if (network != NULL) {
        free(network->touching);
        free(network->first);
        free(network->edges);
        free(network->variables);
        free(network);
    }
}

static double edge_seconds(const ap_choice_network_t *network, int edge, const int *assignment)
{
    const ap_choice_edge_t *of = &network->edges[edge];

    return of->seconds[(size_t)assignment[of->a] * (size_t)network->variables[of->b].domain +
                       (size_t)assignment[of->b]];
}

double ap_choice_network_seconds(const ap_choice_network_t *network, const int *assignment)
{
    double sum = 0.0;

    for (int v = 0; v < network->variable_count; ++v) {
        sum += network->variables[v].seconds[assignment[v]];
    }
    for (int e = 0; e < network->edge_count; ++e) {
        sum += edge_seconds(network, e, assignment);
    }
    return sum;
}

double ap_choice_network_bytes(const ap_choice_network_t *network, const int *assignment)
{
    double sum = 0.0;

    for (int v = 0; v < network->variable_count; ++v) {
        const double *bytes = network->variables[v].bytes;

        sum += bytes == NULL ? 0.0 : bytes[assignment[v]];
    }
    return sum;
}

/* The cost of changing one variable is a difference of two such sums. */
double ap_choice_local_seconds(const ap_choice_network_t *network, int variable, int value,
                               const int *assignment)
{
    double sum = network->variables[variable].seconds[value];

    for (int i = network->first[variable]; i < network->first[variable + 1]; ++i) {
        const ap_choice_edge_t *edge = &network->edges[network->touching[i]];
        int from = edge->a == variable ? value : assignment[edge->a];
        int to = edge->b == variable ? value : assignment[edge->b];

        sum +=
            edge->seconds[(size_t)from * (size_t)network->variables[edge->b].domain + (size_t)to];
    }
    return sum;
}
