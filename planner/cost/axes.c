/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of mesh axes: how they cut a tensor, and collectives over several of them. On a mesh of
 * hosts and devices, an all-reduce over both axes is cheapest when it is scattered inside the hosts
 * first, so that only a share of the bytes crosses between them; which order is best depends on the
 * curves, so all are tried. With four axes at most, that is a handful.
 */

#include <math.h>

#include "comm/base.h"
#include "planner/cost/cost_private.h"

void ap_cost_mesh_allow_uneven(ap_cost_mesh_t *mesh)
{
    if (XM_IS_NULL(mesh)) {
        return;
    }
    mesh->uneven = true;
}

int64_t ap_cost_mesh_share(const ap_cost_mesh_t *mesh, int64_t extent, unsigned axes)
{
    int64_t devices = ap_cost_mesh_devices(mesh, axes);

    return mesh->ratio != NULL ? (int64_t)ceil((double)extent * mesh->ratio->most[axes] - 1e-9)
                               : (extent + devices - 1) / devices;
}

/* An uneven cut must stay consistent from axis to axis: the parts of a further axis must fill the
 * parts of those before exactly, or cutting once more would move elements between devices. */
bool ap_cost_mesh_cuts(const ap_cost_mesh_t *mesh, int64_t extent, unsigned axes)
{
    unsigned before = 0;

    if (mesh->ratio != NULL) {
        return (double)extent * mesh->ratio->least[axes] >= 1;
    }
    if (extent % ap_cost_mesh_devices(mesh, axes) == 0) {
        return true;
    }
    if (!mesh->uneven || extent < ap_cost_mesh_devices(mesh, axes)) {
        return false;
    }
    for (int a = 0; a < mesh->rank; ++a) {
        unsigned with = before | (axes & 1U << a);

        if (before != 0 &&
            ap_cost_mesh_share(mesh, extent, with) * ap_cost_mesh_devices(mesh, with & ~before) !=
                ap_cost_mesh_share(mesh, extent, before)) {
            return false;
        }
        before = with;
    }
    return true;
}

/* Every device holds as much as the first one, padding included. */
double ap_cost_mesh_local_bytes(const ap_cost_mesh_t *mesh, const ap_shape_t *shape, double bytes,
                                ap_spec_t spec)
{
    for (int d = 0; d < shape->rank; ++d) {
        unsigned axes = ap_spec_axes(spec, d);

        if (axes != 0) {
            bytes *=
                (double)ap_cost_mesh_share(mesh, shape->dims[d], axes) / (double)shape->dims[d];
        }
    }
    return bytes;
}

/* Puts a step at a place, if anybody wants to know. */
static void put(ap_collective_step_t *steps, int at, ap_collective_kind_t kind, int axis,
                double bytes)
{
    if (steps != NULL) {
        steps[at] = (ap_collective_step_t){.kind = kind, .axis = axis, .bytes = bytes};
    }
}

/* One axis after the other, each on all the bytes. */
static double in_turn(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind, unsigned axes,
                      double bytes, ap_collective_step_t *steps, int *count)
{
    double cost = 0;

    *count = 0;
    for (int a = 0; a < mesh->rank; ++a) {
        if ((axes >> a & 1U) != 0) {
            cost += ap_cost_collective(mesh, kind, a, bytes);
            put(steps, (*count)++, kind, a, bytes);
        }
    }
    return cost;
}

/* Begins with one axis and takes the cheapest way for the rest, on which the tensor is as much
 * smaller as that axis has devices. The first scattering sees all bytes, and so does the last
 * gathering. */
static double begin_with(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind, unsigned axes,
                         int axis, double bytes, ap_collective_step_t *steps, int *count)
{
    bool gathers = kind == AP_ALL_GATHER, sums = kind == AP_ALL_REDUCE;
    double cost =
        ap_cost_collective_steps(mesh, kind, axes & ~(1U << axis), bytes / mesh->axis[axis].size,
                                 steps == NULL || gathers ? steps : steps + 1, count);

    if (!gathers) {
        cost += ap_cost_collective(mesh, AP_REDUCE_SCATTER, axis, bytes);
        put(steps, 0, AP_REDUCE_SCATTER, axis, bytes);
        ++*count;
    }
    if (gathers || sums) {
        cost += ap_cost_collective(mesh, AP_ALL_GATHER, axis, bytes);
        put(steps, (*count)++, AP_ALL_GATHER, axis, bytes);
    }
    return cost;
}

/* The recursion removes an axis from the set with every step. */
double ap_cost_collective_steps(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind,
                                unsigned axes, double bytes, ap_collective_step_t *steps,
                                int *count)
{
    int best = -1;
    double least;

    axes &= ap_cost_mesh_axes(mesh);
    least = in_turn(mesh, kind, axes, bytes, steps, count);
    if ((axes & (axes - 1)) == 0 || ap_cost_model_is_alpa(mesh->model) ||
        (kind != AP_ALL_GATHER && kind != AP_REDUCE_SCATTER && kind != AP_ALL_REDUCE)) {
        return least;
    }
    for (int a = 0; a < mesh->rank; ++a) {
        int unused;
        double cost = (axes >> a & 1U) != 0 ? begin_with(mesh, kind, axes, a, bytes, NULL, &unused)
                                            : HUGE_VAL;

        if (cost < least) {
            least = cost;
            best = a;
        }
    }
    if (best >= 0 && steps != NULL) {
        (void)begin_with(mesh, kind, axes, best, bytes, steps, count);
    }
    return least;
}

double ap_cost_collective_over(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind, unsigned axes,
                               double bytes)
{
    int count;

    return ap_cost_collective_steps(mesh, kind, axes, bytes, NULL, &count);
}
