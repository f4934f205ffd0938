/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts in the ratio of speeds. A mesh halves its devices axis by axis; each axis gives its
 * positions parts that are to each other as the FLOP/s of the devices behind them, so what a device
 * holds after all axes is its share of the whole speed, and all take equally long. What is cut over
 * some of the axes only is not balanced as well; a table per set of axes says how badly.
 */

#include <math.h>
#include <stdlib.h>

#include "comm/base.h"
#include "planner/cost/cost_private.h"

static double speed_of(const ap_cost_mesh_t *mesh, int device)
{
    return xm_cluster_profile_host_device(mesh->model->profile, device / mesh->devices).flops;
}

/* Speed of the devices that have the same positions on the first axes, `behind` in a row each. */
static double speed_behind(const ap_cost_mesh_t *mesh, int device, int behind)
{
    double sum = 0;

    for (int d = device / behind * behind, end = d + behind; d < end; ++d) {
        sum += speed_of(mesh, d);
    }
    return sum;
}

/* What a device has of a dimension that is cut over one axis. */
static void list_parts(const ap_cost_mesh_t *mesh, int device, double part[AP_MAX_MESH_RANK])
{
    int behind = mesh->hosts * mesh->devices;
    double whole = speed_behind(mesh, device, behind);

    for (int a = 0; a < mesh->rank; ++a) {
        double own;

        behind /= mesh->axis[a].size;
        own = speed_behind(mesh, device, behind);
        part[a] = own / whole;
        whole = own;
    }
}

static void note(ap_cost_ratio_t *ratio, const double *part, int rank, double speed, bool first)
{
    for (unsigned axes = 0; axes < 1U << rank; ++axes) {
        double held = 1;

        for (int a = 0; a < rank; ++a) {
            held *= (axes >> a & 1U) != 0 ? part[a] : 1;
        }
        ratio->most[axes] = first ? held : fmax(ratio->most[axes], held);
        ratio->least[axes] = first ? held : fmin(ratio->least[axes], held);
        ratio->work[axes] = fmax(ratio->work[axes], held / speed);
    }
}

/* The slowest device is what a mesh without ratios counts all of its devices as. */
xm_status_t ap_cost_mesh_allow_ratio(ap_cost_mesh_t *mesh)
{
    enum { MOST = 4096 /* speeds of a group are added up for each of its devices */ };
    int devices = mesh->hosts * mesh->devices;
    double part[AP_MAX_MESH_RANK] = {0};

    if (mesh->model->profile == NULL || mesh->model->chosen || devices > MOST) {
        return XM_INVALID("parts by speed need a cluster profile of at most %d devices", MOST);
    }
    mesh->ratio = calloc(1, sizeof(*mesh->ratio));
    XM_NEED_MEMORY(mesh->ratio, "parts by speed");
    for (int d = 0; d < devices; ++d) {
        list_parts(mesh, d, part);
        for (int a = 0; a < mesh->rank && d == 0; ++a) {
            mesh->ratio->first[a] = part[a];
        }
        note(mesh->ratio, part, mesh->rank, speed_of(mesh, d) / mesh->device.flops, d == 0);
    }
    return XM_OK;
}

double ap_cost_mesh_first_part(const ap_cost_mesh_t *mesh, int axis)
{
    return mesh->ratio != NULL ? mesh->ratio->first[axis] : 0;
}

double ap_cost_mesh_speedup(const ap_cost_mesh_t *mesh, unsigned axes)
{
    return mesh->ratio != NULL ? 1 / mesh->ratio->work[axes] : ap_cost_mesh_devices(mesh, axes);
}

double ap_cost_mesh_lead(const ap_cost_mesh_t *mesh, unsigned axes)
{
    return mesh->ratio != NULL ? mesh->ratio->work[axes] / mesh->ratio->most[axes] : 1;
}

bool ap_cost_mesh_divides(const ap_cost_mesh_t *mesh, int64_t extent, unsigned axes)
{
    const ap_cost_ratio_t *ratio = mesh->ratio;

    return extent % ap_cost_mesh_devices(mesh, axes) == 0 &&
           (ratio == NULL || ratio->most[axes] - ratio->least[axes] < 1e-9);
}
