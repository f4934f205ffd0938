/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cost models, and logical meshes that they are bound to. Binding is where geometry is worked out,
 * once: how the groups of each axis lie on hosts, how many of their links share a host's NICs, and
 * which measured collectives are of groups that lie so. After that a price is a look-up in a curve
 * or a few multiplications, because searches ask for millions.
 *
 * A measured collective is preferred; rings of point-to-point messages (planner/cost/ring.c) stand
 * in where none was measured. Alpa's formulas are kept for comparison only.
 */

#include "planner/cost/cost.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/cost/cost_private.h"

const char *ap_collective_name(ap_collective_kind_t kind)
{
    static const char *const names[AP_COLLECTIVE_COUNT] = {
        "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "permute"};

    return names[kind];
}

static xm_status_t create(const xm_cluster_profile_t *profile, const ap_alpa_params_t *alpa,
                          ap_cost_model_t **model)
{
    ap_cost_model_t *made = calloc(1, sizeof(*made));

    XM_NEED_MEMORY(made, "a cost model");
    made->profile = profile;
    if (alpa != NULL) {
        made->alpa = *alpa;
    }
    *model = made;
    return XM_OK;
}

xm_status_t ap_cost_model_create_profile(const xm_cluster_profile_t *profile,
                                         ap_cost_model_t **model)
{
    if (XM_IS_NULL(profile) || XM_IS_NULL(model)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    return create(profile, NULL, model);
}

xm_status_t ap_cost_model_create_hosts(const xm_cluster_profile_t *profile,
                                       const xm_cluster_device_t *device, double nic,
                                       ap_cost_model_t **model)
{
    XM_TRY(create(profile, NULL, model));

    (*model)->chosen = true;
    (*model)->device = *device;
    (*model)->nic = nic;
    return XM_OK;
}

xm_status_t ap_cost_model_create_alpa(const ap_alpa_params_t *params, ap_cost_model_t **model)
{
    if (XM_IS_NULL(model)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    ap_alpa_params_t own = AP_ALPA_PARAMS_INIT;
    xm_status_t taken = XM_PARAMS_COPY(ap_alpa_params_t, &own, params);

    if (taken != XM_OK) {
        return taken;
    }
    params = &own;

    for (int a = 0; a < AP_MAX_MESH_RANK; ++a) {
        if (!(params->alpha[a] >= 0) || !(params->beta[a] >= 0)) {
            return XM_INVALID("alpha %g and beta %g of axis %d must not be negative",
                              params->alpha[a], params->beta[a], a);
        }
    }
    return create(NULL, params, model);
}

bool ap_cost_model_is_alpa(const ap_cost_model_t *model)
{
    return model->profile == NULL;
}

bool ap_cost_model_forces_data_parallel(const ap_cost_model_t *model)
{
    return model->profile == NULL && model->alpa.force_data_parallel;
}

void ap_cost_model_destroy(ap_cost_model_t *model)
{
    free(model);
}

/* What leaves one host at once over an axis. */
typedef struct flows {
    int ring;    /* links between ring neighbours */
    int64_t all; /* pairs of a group */
} flows_t;

/* The device `steps` further along an axis of that stride, around the ring. */
static int neighbour(int device, int stride, int size, int steps)
{
    int position = device / stride % size;

    return device + ((position + steps) % size - position) * stride;
}

/* How many devices of a group share a host with its member `device`, from that member on. Members
 * are in the order of their hosts, so a run is enough. */
static int run_of(const ap_cost_mesh_t *mesh, int device, int stride, int size)
{
    int rest = size - device / stride % size;
    int fit = (mesh->devices - 1 - device % mesh->devices) / stride + 1;

    return fit < rest ? fit : rest;
}

/* Counts which links of an axis stay in a host and which leave it, a group's run of members on a
 * host at a time: large meshes have too many pairs to look at each. The host with the most links
 * decides, because a collective ends with its slowest member. */
static xm_status_t place_axis(ap_cost_mesh_t *mesh, int axis, int stride)
{
    ap_cost_axis_t *on = &mesh->axis[axis];
    flows_t *of = calloc((size_t)mesh->hosts, sizeof(*of));

    XM_NEED_MEMORY(of, "a mesh of %d hosts", mesh->hosts);
    for (int first = 0; first < mesh->hosts * mesh->devices && on->size > 1; ++first) {
        int run;

        if (first / stride % on->size != 0) {
            continue;
        }
        for (int k = 0; k < on->size; k += run) {
            int device = first + k * stride, host = device / mesh->devices, far;

            run = run_of(mesh, device, stride, on->size);
            far = on->size - run;
            of[host].ring += far > 0;
            of[host].all += (int64_t)run * far;
            on->inside = on->inside || run > 1;
            on->far_peers = far > on->far_peers ? far : on->far_peers;
        }
    }
    for (int h = 0; h < mesh->hosts; ++h) {
        on->ring_flows = of[h].ring > on->ring_flows ? of[h].ring : on->ring_flows;
        on->all_to_all_flows = of[h].all > on->all_to_all_flows ? of[h].all : on->all_to_all_flows;
    }
    free(of);
    return XM_OK;
}

/* How the groups of an axis lie on the hosts, in the terms of collective_curve.h; false when they
 * do not all lie alike, for then no measurement is of such groups. Members of a group are in the
 * order of their hosts. */
static bool group_shape(const ap_cost_mesh_t *mesh, int axis, int stride, int *hosts, int *devices,
                        int *groups)
{
    int size = mesh->axis[axis].size, all = mesh->hosts * mesh->devices, parts = 0;

    *hosts = *devices = 0;
    for (int d = 0; d < all; ++d) {
        int runs = 0, run = 0;

        if (d / stride % size != 0) {
            continue;
        }
        for (int k = 0; k < size; ++k) {
            int host = neighbour(d, stride, size, k) / mesh->devices;
            bool last = k + 1 == size || neighbour(d, stride, size, k + 1) / mesh->devices != host;

            ++run;
            if (!last) {
                continue;
            }
            if (*devices != 0 && run != *devices) {
                return false;
            }
            *devices = run;
            run = 0;
            ++runs;
        }
        if (*hosts != 0 && runs != *hosts) {
            return false;
        }
        *hosts = runs;
        parts += runs;
    }
    /* Equal parts fill the hosts evenly, so the division has no remainder. */
    *groups = parts / mesh->hosts;
    return true;
}

/* Finds what the profile has measured of an axis. */
static void find_measured(ap_cost_mesh_t *mesh, int axis, int stride)
{
    const xm_cluster_profile_t *profile = mesh->model->profile;
    int hosts, devices, groups;

    if (profile == NULL || mesh->axis[axis].size == 1 ||
        !group_shape(mesh, axis, stride, &hosts, &devices, &groups)) {
        return;
    }
    for (int kind = 0; kind < XM_COLLECTIVE_COUNT; ++kind) {
        mesh->axis[axis].measured[kind] = xm_cluster_profile_find_collective(
            profile, (xm_collective_t)kind, hosts, devices, groups);
    }
}

static xm_status_t check_mesh(const ap_cost_model_t *model, int hosts, int devices,
                              const int *shape, int rank)
{
    long product = 1;

    if (rank < 1 || rank > AP_MAX_MESH_RANK) {
        return XM_INVALID("a logical mesh has 1 … %d axes, not %d", AP_MAX_MESH_RANK, rank);
    }
    for (int a = 0; a < rank; ++a) {
        if (shape[a] < 1) {
            return XM_INVALID("mesh axis %d has size %d", a, shape[a]);
        }
        product *= shape[a];
    }
    if (hosts < 1 || devices < 1 || product != (long)hosts * devices) {
        return XM_INVALID("a logical mesh of %ld devices does not fit a submesh of %d x %d",
                          product, hosts, devices);
    }
    if (model->profile != NULL && (hosts > xm_cluster_profile_hosts(model->profile) ||
                                   devices > xm_cluster_profile_devices_per_host(model->profile))) {
        return XM_INVALID("a submesh of %d x %d is larger than the cluster of %d x %d", hosts,
                          devices, xm_cluster_profile_hosts(model->profile),
                          xm_cluster_profile_devices_per_host(model->profile));
    }
    return XM_OK;
}

/* Finds what the devices and NICs of the submesh count as. */
static void find_hosts(ap_cost_mesh_t *mesh)
{
    const ap_cost_model_t *model = mesh->model;

    if (model->chosen || model->profile == NULL) {
        mesh->device = model->device;
        mesh->nic = model->nic;
        return;
    }
    mesh->device = xm_cluster_profile_host_device(model->profile, 0);
    mesh->nic = xm_cluster_profile_host_nic_bandwidth(model->profile, 0);
    for (int h = 1; h < mesh->hosts; ++h) {
        xm_cluster_device_t device = xm_cluster_profile_host_device(model->profile, h);

        mesh->device = xm_cluster_device_least(&mesh->device, &device);
        mesh->nic = fmin(mesh->nic, xm_cluster_profile_host_nic_bandwidth(model->profile, h));
    }
}

/* Logical devices are numbered row-major, so the last axis has stride 1. */
xm_status_t ap_cost_mesh_create(const ap_cost_model_t *model, int hosts, int devices,
                                const int *shape, int rank, ap_cost_mesh_t **mesh)
{
    if (XM_IS_NULL(model) || XM_IS_NULL(shape) || XM_IS_NULL(mesh)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    ap_cost_mesh_t *made;
    xm_status_t status = check_mesh(model, hosts, devices, shape, rank);
    int stride = 1;

    if (status != XM_OK) {
        return status;
    }
    made = calloc(1, sizeof(*made));
    XM_NEED_MEMORY(made, "a cost mesh");
    made->model = model;
    made->hosts = hosts;
    made->devices = devices;
    made->rank = rank;
    find_hosts(made);
    for (int a = rank - 1; a >= 0; --a) {
        made->axis[a].size = shape[a];
        status = place_axis(made, a, stride);
        if (status != XM_OK) {
            free(made);
            return status;
        }
        find_measured(made, a, stride);
        stride *= shape[a];
    }
    *mesh = made;
    return XM_OK;
}

int ap_cost_mesh_rank(const ap_cost_mesh_t *mesh)
{
    return mesh->rank;
}

int ap_cost_mesh_size(const ap_cost_mesh_t *mesh, int axis)
{
    return mesh->axis[axis].size;
}

int ap_cost_mesh_devices(const ap_cost_mesh_t *mesh, unsigned axes)
{
    int devices = 1;

    for (int a = 0; a < mesh->rank; ++a) {
        devices *= (axes >> a & 1U) != 0 ? mesh->axis[a].size : 1;
    }
    return devices;
}

unsigned ap_cost_mesh_axes(const ap_cost_mesh_t *mesh)
{
    unsigned axes = 0;

    for (int a = 0; a < mesh->rank; ++a) {
        axes |= mesh->axis[a].size > 1 ? 1U << a : 0;
    }
    return axes;
}

double ap_cost_mesh_memory(const ap_cost_mesh_t *mesh)
{
    return ap_cost_model_is_alpa(mesh->model) ? 0 : mesh->device.memory_bytes;
}

const ap_cost_model_t *ap_cost_mesh_model(const ap_cost_mesh_t *mesh)
{
    return mesh->model;
}

void ap_cost_mesh_destroy(ap_cost_mesh_t *mesh)
{
    if (mesh != NULL) {
        free(mesh->ratio);
    }
    free(mesh);
}

/* Permutations are not among Alpa's collectives; they count as one message. */
static double alpa_collective(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind, int axis,
                              double bytes)
{
    const ap_alpa_params_t *alpa = &mesh->model->alpa;
    double n = mesh->axis[axis].size;
    double volume = alpa->beta[axis] * (n - 1) / n * bytes;

    switch (kind) {
    case AP_ALL_GATHER:
        return alpa->force_data_parallel ? AP_COST_INFINITE : alpa->alpha[axis] + volume + 0.1;
    case AP_ALL_REDUCE:
        return alpa->alpha[axis] + 2 * volume + 0.01;
    case AP_REDUCE_SCATTER:
        return alpa->alpha[axis] + volume + 0.001;
    case AP_ALL_TO_ALL:
        return alpa->force_data_parallel ? AP_COST_INFINITE
                                         : alpa->alpha[axis] + volume / n * (n / 2) + 0.001;
    case AP_PERMUTE:
    case AP_COLLECTIVE_COUNT:
        break;
    }
    return alpa->alpha[axis] + alpa->beta[axis] * bytes + 0.001;
}

const xm_collective_curve_t *ap_cost_measured(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind,
                                              int axis)
{
    const ap_cost_axis_t *on = &mesh->axis[axis];

    switch (kind) {
    case AP_ALL_GATHER:
        return on->measured[XM_ALL_GATHER];
    case AP_ALL_REDUCE:
        return on->measured[XM_ALL_REDUCE];
    case AP_REDUCE_SCATTER:
        return on->measured[XM_REDUCE_SCATTER];
    case AP_ALL_TO_ALL:
        return on->measured[XM_ALL_TO_ALL];
    case AP_PERMUTE:
    case AP_COLLECTIVE_COUNT:
        break;
    }
    return NULL;
}

/* An axis of one device has nobody to talk to. */
double ap_cost_collective(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind, int axis,
                          double bytes)
{
    if (XM_IS_NULL(mesh)) {
        return 0;
    }
    const xm_collective_curve_t *measured = ap_cost_measured(mesh, kind, axis);

    if (mesh->axis[axis].size == 1) {
        return 0;
    }
    if (measured != NULL) {
        return xm_curve_seconds(measured->points, measured->count, bytes) *
               ap_cost_ring_slowdown(mesh, kind, axis, bytes);
    }
    return mesh->model->profile == NULL ? alpa_collective(mesh, kind, axis, bytes)
                                        : ap_cost_ring(mesh, kind, axis, bytes);
}

/* The type of numbers whose rate an operator computes at. */
static xm_number_t number_of(ap_dtype_t dtype)
{
    static const xm_number_t numbers[AP_DTYPE_COUNT] = {
        [AP_DTYPE_F16] = XM_NUMBER_FLOAT16, [AP_DTYPE_BF16] = XM_NUMBER_BFLOAT16,
        [AP_DTYPE_F32] = XM_NUMBER_FLOAT32, [AP_DTYPE_F64] = XM_NUMBER_FLOAT64,
        [AP_DTYPE_I8] = XM_NUMBER_INT8,     [AP_DTYPE_C128] = XM_NUMBER_FLOAT64};

    return numbers[dtype];
}

double ap_cost_op(const ap_cost_mesh_t *mesh, ap_op_kind_t kind, ap_dtype_t dtype, double flops,
                  double bytes)
{
    if (XM_IS_NULL(mesh)) {
        return 0;
    }
    const xm_cluster_profile_t *profile = mesh->model->profile;
    const xm_number_t number = number_of(dtype);
    double measured, roofline, here;
    xm_cluster_device_t typical;

    if (profile == NULL) {
        return 0;
    }
    typical = xm_cluster_profile_device(profile);
    here = xm_cluster_device_roofline(&mesh->device, number, flops, bytes);
    measured = xm_cluster_profile_op_seconds(profile, ap_op_kind_name(kind), number, flops, bytes);
    roofline = xm_cluster_device_roofline(&typical, number, flops, bytes);
    /* What was measured is for the profile's typical device; others are taken to be as much slower
     * or faster as their rooflines are. */
    return roofline > 0 && here != roofline ? measured * (here / roofline) : measured;
}

/* All devices push their gradients to parameter servers, and pull parameters while others push:
 * what is longer, the way through the servers' NICs or that through the busiest host's. */
static double server_seconds(const ap_cost_mesh_t *mesh, double servers, double bytes)
{
    double all = (double)mesh->hosts * mesh->devices / servers;

    return bytes * fmax(all, mesh->devices) / mesh->nic;
}

double ap_cost_gradient_collective(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind,
                                   unsigned axes, double bytes)
{
    const xm_cluster_profile_t *profile = mesh->model->profile;
    double alone = profile == NULL ? 1 : 1 - xm_cluster_profile_gradient_overlap(profile);
    double bucket = profile == NULL ? 0 : xm_cluster_profile_runtime(profile)->bucket;
    double joined = kind == AP_ALL_REDUCE && bytes < bucket ? bucket : bytes;
    double servers = profile == NULL ? 0 : xm_cluster_profile_runtime(profile)->servers;

    if (servers > 0 && ap_cost_mesh_devices(mesh, axes) > 1) {
        return alone * server_seconds(mesh, servers, bytes);
    }
    return joined > 0 ? alone * (bytes / joined) * ap_cost_collective_over(mesh, kind, axes, joined)
                      : 0;
}

double ap_cost_gradient_exposed(const ap_cost_model_t *model, double sync, double backward)
{
    double overlap =
        model->profile == NULL ? 0 : xm_cluster_profile_gradient_overlap(model->profile);
    double whole = overlap < 1 ? sync / (1 - overlap) : 0;

    return sync + overlap * fmax(0, whole - backward);
}

double ap_cost_replicated(const ap_cost_mesh_t *mesh)
{
    return mesh->model->profile == NULL ? mesh->model->alpa.replicated_penalty : 0;
}

char *ap_cost_explain_collective(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind, int axis,
                                 double bytes, char *buffer, size_t size)
{
    if (XM_IS_NULL(mesh) || XM_IS_NULL(buffer)) {
        return NULL;
    }
    const ap_alpa_params_t *alpa = &mesh->model->alpa;

    if (mesh->model->profile != NULL) {
        return ap_cost_ring_explain(mesh, kind, axis, bytes, buffer, size);
    }
    (void)snprintf(buffer, size,
                   "%s of %.0f bytes over axis %d (%d devices): %g; assumed alpha %g, "
                   "beta %g",
                   ap_collective_name(kind), bytes, axis, mesh->axis[axis].size,
                   ap_cost_collective(mesh, kind, axis, bytes), alpa->alpha[axis],
                   alpa->beta[axis]);
    return buffer;
}

/* Which of the two bounds holds is told by the comparison that the cost itself makes. */
char *ap_cost_explain_op(const ap_cost_mesh_t *mesh, ap_op_kind_t kind, ap_dtype_t dtype,
                         double flops, double bytes, char *buffer, size_t size)
{
    double seconds = ap_cost_op(mesh, kind, dtype, flops, bytes), best, rate;
    char text[32], moved[32];
    int length;

    if (mesh->model->profile == NULL) {
        (void)snprintf(buffer, size, "compute is free in the alpa model");
        return buffer;
    }
    rate = xm_cluster_device_flops(&mesh->device, number_of(dtype));
    best = xm_cluster_device_roofline(&mesh->device, number_of(dtype), flops, bytes);
    (void)xm_text_format_seconds(seconds, text, sizeof(text));
    if (flops / rate >= bytes / mesh->device.memory_bandwidth) {
        length = snprintf(buffer, size, "%s: %.3g FLOP at %.3g FLOP/s", text, flops, rate);
    } else {
        length = snprintf(buffer, size, "%s: %s at %.3g B/s of memory bandwidth", text,
                          xm_text_format_bytes((uint64_t)bytes, moved, sizeof(moved)),
                          mesh->device.memory_bandwidth);
    }
    if (length > 0 && (size_t)length < size && fabs(seconds - best) > 1e-9 * best) {
        (void)snprintf(buffer + length, size - (size_t)length, ", times %.3g as %s was measured",
                       seconds / best, ap_op_kind_name(kind));
    }
    return buffer;
}
