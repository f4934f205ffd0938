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

/* Each device pays once for an output that it sends or receives; CPUs do not pay. */
static xm_status_t add_transfers(const ap_placement_problem_t *problem, const int *device_of,
                                 double *loads, xm_arena_t *arena)
{
    /* An operator, and the device that pays for its output. */
    ap_precedence_t *crossings =
        xm_arena_get(arena, 2 * (size_t)problem->edge_count, sizeof(*crossings));
    size_t count = 0;

    XM_NEED_MEMORY(crossings, "%d edges", problem->edge_count);
    for (int i = 0; i < problem->edge_count; ++i) {
        int node = problem->edges[i].before, from = device_of[node];
        int to = device_of[problem->edges[i].after];

        if (from != to) {
            crossings[count++] = (ap_precedence_t){node, from};
            crossings[count++] = (ap_precedence_t){node, to};
        }
    }
    qsort(crossings, count, sizeof(*crossings), ap_precedence_compare);
    for (size_t i = 0; i < count; ++i) {
        if ((i == 0 || ap_precedence_compare(&crossings[i - 1], &crossings[i]) != 0) &&
            crossings[i].after < problem->accelerators) {
            loads[crossings[i].after] += problem->nodes[crossings[i].before].transfer;
        }
    }
    return XM_OK;
}

static xm_status_t check_colours(const ap_placement_problem_t *problem, const int *device_of,
                                 xm_arena_t *arena)
{
    const int *order = ap_placement_by_colour(problem, arena);

    XM_NEED_MEMORY(order, "%d operators", problem->node_count);
    for (int i = 1; i < problem->node_count; ++i) {
        int a = order[i - 1], b = order[i];

        if (problem->nodes[a].colour == problem->nodes[b].colour && device_of[a] != device_of[b]) {
            return xm_error_set(XM_ERR_CORRUPT,
                                "operators %" PRId64 " and %" PRId64
                                " have one colour and are on devices %d and %d",
                                problem->nodes[a].id, problem->nodes[b].id, device_of[a],
                                device_of[b]);
        }
    }
    return XM_OK;
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
    xm_arena_t arena = {0};
    double *sizes = xm_arena_get(&arena, (size_t)devices, sizeof(*sizes));
    xm_status_t status;

    XM_NEED_MEMORY(sizes, "%d devices", devices);
    for (int device = 0; device < devices; ++device) {
        loads[device] = 0.0;
    }
    status = add_operators(problem, device_of, loads, sizes);
    XM_THEN(status, check_colours(problem, device_of, &arena));
    XM_THEN(status, add_transfers(problem, device_of, loads, &arena));
    xm_arena_clear(&arena);
    return status;
}

/* Zeroed loads and places of an answer. */
xm_status_t ap_placement_init(const ap_placement_problem_t *problem, ap_placement_t *placement)
{
    placement->devices = problem->accelerators + problem->cpus;
    placement->loads = xm_arena_get(&placement->arena, (size_t)placement->devices, sizeof(double));
    placement->device_of =
        xm_arena_get(&placement->arena, (size_t)problem->node_count, sizeof(int));
    return placement->arena.failed ? XM_NO_MEMORY("a placement") : XM_OK;
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
