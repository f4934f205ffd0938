/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a placement loads each device with, straight from the definition in the paper. The solver
 * and the local search update loads in their own ways; both answers are computed again here before
 * they are returned, so an error in an update cannot be reported as a good placement.
 */

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "planner/published/placement/groups.h"

typedef struct crossing {
    int node, device; /* that pays for the node's output */
} crossing_t;

static int compare_crossings(const void *a, const void *b)
{
    const crossing_t *left = a, *right = b;

    if (left->node != right->node) {
        return left->node < right->node ? -1 : 1;
    }
    return (left->device > right->device) - (left->device < right->device);
}

/* Each device pays once for an output that it sends or receives; CPUs do not pay. */
static xm_status_t add_transfers(const ap_placement_problem_t *problem, const int *device_of,
                                 double *loads)
{
    crossing_t *crossings = malloc((2 * (size_t)problem->edge_count + 1) * sizeof(*crossings));
    size_t count = 0;

    if (crossings == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d edges", problem->edge_count);
    }
    for (int i = 0; i < problem->edge_count; ++i) {
        int node = problem->edges[i].before, from = device_of[node];
        int to = device_of[problem->edges[i].after];

        if (from != to) {
            crossings[count++] = (crossing_t){node, from};
            crossings[count++] = (crossing_t){node, to};
        }
    }
    qsort(crossings, count, sizeof(*crossings), compare_crossings);
    for (size_t i = 0; i < count; ++i) {
        if ((i == 0 || compare_crossings(&crossings[i - 1], &crossings[i]) != 0) &&
            crossings[i].device < problem->accelerators) {
            loads[crossings[i].device] += problem->nodes[crossings[i].node].transfer;
        }
    }
    free(crossings);
    return XM_OK;
}

typedef struct coloured {
    int64_t colour;
    int device, node;
} coloured_t;

static int compare_colours(const void *a, const void *b)
{
    const coloured_t *left = a, *right = b;

    return (left->colour > right->colour) - (left->colour < right->colour);
}

static xm_status_t check_colours(const ap_placement_problem_t *problem, const int *device_of)
{
    coloured_t *nodes = malloc((size_t)problem->node_count * sizeof(*nodes));
    xm_status_t status = XM_OK;

    if (nodes == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d operators",
                            problem->node_count);
    }
    for (int i = 0; i < problem->node_count; ++i) {
        nodes[i] = (coloured_t){problem->nodes[i].colour, device_of[i], i};
    }
    qsort(nodes, (size_t)problem->node_count, sizeof(*nodes), compare_colours);
    for (int i = 1; i < problem->node_count && status == XM_OK; ++i) {
        if (nodes[i].colour == nodes[i - 1].colour && nodes[i].device != nodes[i - 1].device) {
            status =
                xm_error_set(XM_ERR_CORRUPT,
                             "operators %" PRId64 " and %" PRId64
                             " have one colour and are on devices %d and %d",
                             problem->nodes[nodes[i - 1].node].id, problem->nodes[nodes[i].node].id,
                             nodes[i - 1].device, nodes[i].device);
        }
    }
    free(nodes);
    return status;
}

/* A little slack on memory makes up for the order of the sums. */
static xm_status_t add_operators(const ap_placement_problem_t *problem, const int *device_of,
                                 double *loads, double *sizes)
{
    int devices = problem->accelerators + problem->cpus;

    for (int i = 0; i < problem->node_count; ++i) {
        const ap_placement_node_t *node = &problem->nodes[i];
        int device = device_of[i];
        bool cpu = device >= problem->accelerators;

        if (device < 0 || device >= devices || (!cpu && !node->on_accelerator)) {
            return xm_error_set(XM_ERR_CORRUPT, "operator %" PRId64 " cannot be on device %d",
                                node->id, device);
        }
        loads[device] += cpu ? node->cpu : node->accelerator;
        sizes[device] += node->size;
        if (!cpu && sizes[device] > problem->memory * (1.0 + 1e-9)) {
            return xm_error_set(XM_ERR_CORRUPT, "device %d has %g of memory and needs more", device,
                                problem->memory);
        }
    }
    return XM_OK;
}

xm_status_t ap_placement_loads(const ap_placement_problem_t *problem, const int *device_of,
                               double *loads)
{
    int devices = problem->accelerators + problem->cpus;
    double *sizes = calloc((size_t)devices + 1, sizeof(*sizes));
    xm_status_t status;

    if (sizes == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d devices", devices);
    }
    for (int device = 0; device < devices; ++device) {
        loads[device] = 0.0;
    }
    status = add_operators(problem, device_of, loads, sizes);
    free(sizes);
    if (status == XM_OK) {
        status = check_colours(problem, device_of);
    }
    return status == XM_OK ? add_transfers(problem, device_of, loads) : status;
}

/* Zeroed loads and places of an answer. */
xm_status_t ap_placement_init(const ap_placement_problem_t *problem, ap_placement_t *placement)
{
    placement->devices = problem->accelerators + problem->cpus;
    placement->loads = xm_arena_get(&placement->arena, (size_t)placement->devices, sizeof(double));
    placement->device_of =
        xm_arena_get(&placement->arena, (size_t)problem->node_count, sizeof(int));
    return placement->arena.failed ? xm_error_set(XM_ERR_NO_MEMORY, "out of memory for a placement")
                                   : XM_OK;
}

xm_status_t ap_placement_finish(const ap_placement_problem_t *problem,
                                const ap_placement_groups_t *groups, const int *device_of_group,
                                ap_placement_t *placement)
{
    xm_status_t status;

    placement->groups = groups->count;
    for (int i = 0; i < problem->node_count; ++i) {
        placement->device_of[i] = device_of_group[groups->group_of[i]];
    }
    status = ap_placement_loads(problem, placement->device_of, placement->loads);
    for (int device = 0; device < placement->devices; ++device) {
        placement->load = fmax(placement->load, placement->loads[device]);
    }
    return status;
}

void ap_placement_clear(ap_placement_t *placement)
{
    xm_arena_clear(&placement->arena);
    *placement = (ap_placement_t){0};
}

void ap_placement_problem_clear(ap_placement_problem_t *problem)
{
    xm_arena_clear(&problem->arena);
    *problem = (ap_placement_problem_t){0};
}
