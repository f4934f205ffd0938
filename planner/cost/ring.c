/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives on the profile that it has not measured: rings whose steps come from the measured
 * point-to-point curves, with what shares a link on top. A ring is what libraries use for large
 * messages; for small ones it overestimates, because trees have fewer steps, and a measured curve
 * should be given where that matters.
 */

#include <math.h>
#include <stdio.h>

#include "comm/base.h"
#include "planner/cost/cost_private.h"

/* Seconds until `messages` messages of `bytes`, of which `flows` share a host's NICs of that many
 * bytes/s, are across: each device's own messages one after the other, or all flows through the
 * NICs at full rate, whichever is slower. */
static double across(const xm_cluster_profile_t *profile, double nic, int messages, int64_t flows,
                     double bytes)
{
    double alone = messages * xm_cluster_profile_seconds(profile, XM_LINK_INTER_HOST, bytes);
    double shared =
        xm_cluster_profile_latency(profile, XM_LINK_INTER_HOST) + (double)flows * bytes / nic;

    return fmax(alone, shared);
}

/* Seconds of a message inside a host while all its devices send one; the fabric between them may be
 * narrower than the sum of their links. */
static double inside(const ap_cost_mesh_t *mesh, double bytes)
{
    const xm_cluster_profile_t *profile = mesh->model->profile;
    double alone = xm_cluster_profile_seconds(profile, XM_LINK_INTRA_HOST, bytes);
    double fabric = xm_cluster_profile_host_fabric(profile);

    if (fabric <= 0) {
        return alone;
    }
    return fmax(alone, xm_cluster_profile_latency(profile, XM_LINK_INTRA_HOST) +
                           mesh->devices * bytes / fabric);
}

/* One ring step: every device sends `bytes` to its neighbour. Steps end together, so the slowest
 * link decides. */
static double ring_step(const ap_cost_mesh_t *mesh, const ap_cost_axis_t *axis, double nic,
                        double bytes)
{
    const xm_cluster_profile_t *profile = mesh->model->profile;
    double seconds = 0;

    if (axis->inside) {
        seconds = inside(mesh, bytes);
    }
    if (axis->ring_flows > 0) {
        seconds = fmax(seconds, across(profile, nic, 1, axis->ring_flows, bytes));
    }
    return seconds;
}

/* The number of ring steps and the bytes of each. An all-reduce is a reduce-scatter and an
 * all-gather. */
static int ring_steps(const ap_cost_axis_t *axis, ap_collective_kind_t kind, double bytes,
                      double *step_bytes)
{
    *step_bytes = bytes / axis->size;
    switch (kind) {
    case AP_ALL_GATHER:
    case AP_REDUCE_SCATTER:
        return axis->size - 1;
    case AP_ALL_REDUCE:
        return 2 * (axis->size - 1);
    case AP_ALL_TO_ALL:
        *step_bytes = bytes / axis->size / axis->size;
        return axis->size - 1;
    case AP_PERMUTE:
    case AP_COLLECTIVE_COUNT:
        break;
    }
    *step_bytes = bytes;
    return 1;
}

/* An all-to-all has messages of its own for each peer: those inside the host one after the other,
 * then those that cross. */
static double ring(const ap_cost_mesh_t *mesh, double nic, ap_collective_kind_t kind, int axis,
                   double bytes)
{
    const ap_cost_axis_t *on = &mesh->axis[axis];
    double step_bytes, seconds;
    int steps = ring_steps(on, kind, bytes, &step_bytes);

    if (kind != AP_ALL_TO_ALL) {
        return steps * ring_step(mesh, on, nic, step_bytes);
    }
    seconds = (steps - on->far_peers) * inside(mesh, step_bytes);
    if (on->far_peers > 0) {
        seconds +=
            across(mesh->model->profile, nic, on->far_peers, on->all_to_all_flows, step_bytes);
    }
    return seconds;
}

double ap_cost_ring(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind, int axis, double bytes)
{
    return ring(mesh, mesh->nic, kind, axis, bytes);
}

double ap_cost_ring_slowdown(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind, int axis,
                             double bytes)
{
    double typical = xm_cluster_profile_nic_bandwidth(mesh->model->profile);

    return mesh->nic < typical && mesh->axis[axis].far_peers > 0
               ? ring(mesh, mesh->nic, kind, axis, bytes) / ring(mesh, typical, kind, axis, bytes)
               : 1;
}

/* Names the part of a curve that a size falls on: "the point at 1.00 MiB", "between the points at
 * …", "beyond the last point at …". */
static void explain_point(const xm_curve_point_t *curve, size_t points, double bytes, char *buffer,
                          size_t size)
{
    char low[32], high[32];

    for (size_t i = 0; i < points; ++i) {
        if (bytes > (double)curve[i].bytes) {
            continue;
        }
        (void)xm_text_format_bytes(curve[i].bytes, high, sizeof(high));
        if (i == 0 || bytes >= (double)curve[i].bytes) {
            (void)snprintf(buffer, size, "the point at %s", high);
        } else {
            (void)snprintf(buffer, size, "between the points at %s and %s",
                           xm_text_format_bytes(curve[i - 1].bytes, low, sizeof(low)), high);
        }
        return;
    }
    (void)snprintf(buffer, size, "beyond the last point at %s",
                   xm_text_format_bytes(curve[points - 1].bytes, high, sizeof(high)));
}

/* Names the NICs that decide where they are not the profile's typical ones; else nothing. */
static char *explain_nic(const ap_cost_mesh_t *mesh, int axis, char *buffer, size_t size)
{
    buffer[0] = '\0';
    if (mesh->axis[axis].far_peers > 0 &&
        mesh->nic != xm_cluster_profile_nic_bandwidth(mesh->model->profile)) {
        (void)snprintf(buffer, size, ", the slowest host's NICs carry %.3g GB/s", 1e-9 * mesh->nic);
    }
    return buffer;
}

static char *explain_measured(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind, int axis,
                              double bytes, char *buffer, size_t size)
{
    const xm_collective_curve_t *curve = ap_cost_measured(mesh, kind, axis);
    char whole[32], seconds[32], point[96], nic[64];

    explain_point(curve->points, curve->count, bytes, point, sizeof(point));
    (void)snprintf(buffer, size, "%s of %s over axis %d (%d devices): %s, measured with %s, %s%s",
                   ap_collective_name(kind),
                   xm_text_format_bytes((uint64_t)bytes, whole, sizeof(whole)), axis,
                   mesh->axis[axis].size,
                   xm_text_format_seconds(ap_cost_collective(mesh, kind, axis, bytes), seconds,
                                          sizeof(seconds)),
                   curve->library, point, explain_nic(mesh, axis, nic, sizeof(nic)));
    return buffer;
}

/* The link class is that of the slowest part: an axis that leaves the host is told as such. */
char *ap_cost_ring_explain(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind, int axis,
                           double bytes, char *buffer, size_t size)
{
    const xm_cluster_profile_t *profile = mesh->model->profile;
    const ap_cost_axis_t *on = &mesh->axis[axis];
    xm_link_class_t link =
        on->ring_flows > 0 || on->far_peers > 0 ? XM_LINK_INTER_HOST : XM_LINK_INTRA_HOST;
    char whole[32], part[32], seconds[32], step_seconds[32], point[96], shared[64] = "", nic[64];
    double step_bytes;
    int steps = ring_steps(on, kind, bytes, &step_bytes);
    const xm_curve_point_t *curve;
    size_t points;

    if (ap_cost_measured(mesh, kind, axis) != NULL) {
        return explain_measured(mesh, kind, axis, bytes, buffer, size);
    }
    curve = xm_cluster_profile_curve(profile, link, &points);
    explain_point(curve, points, step_bytes, point, sizeof(point));
    if (link == XM_LINK_INTER_HOST && on->ring_flows > 1) {
        (void)snprintf(shared, sizeof(shared), ", %d flows share a host's NICs", on->ring_flows);
    }
    (void)snprintf(
        buffer, size,
        "%s of %s over axis %d (%d devices): %d steps of %s in %s, together %s; %s curve, %s%s%s",
        ap_collective_name(kind), xm_text_format_bytes((uint64_t)bytes, whole, sizeof(whole)), axis,
        on->size, steps, xm_text_format_bytes((uint64_t)step_bytes, part, sizeof(part)),
        xm_text_format_seconds(ap_cost_ring(mesh, kind, axis, bytes) / steps, step_seconds,
                               sizeof(step_seconds)),
        xm_text_format_seconds(ap_cost_ring(mesh, kind, axis, bytes), seconds, sizeof(seconds)),
        xm_link_class_name(link), point, shared, explain_nic(mesh, axis, nic, sizeof(nic)));
    return buffer;
}
