/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of cost models and cost meshes: cost.c, planner/cost/ring.c, planner/cost/reshard.c.
 */
#pragma once

#include "planner/cost/cost.h"

struct ap_cost_model {
    const xm_cluster_profile_t *profile; /* NULL: alpa */
    bool chosen;                         /* the hosts are like these, wherever they stand: */
    xm_cluster_device_t device;          /* what each device counts as */
    double nic;                          /* bytes/s of the slowest NICs of a host */
    ap_alpa_params_t alpa;
};

/* How the devices of one axis lie on the hosts. */
typedef struct ap_cost_axis {
    int size;
    bool inside;    /* some ring neighbours share a host */
    int ring_flows; /* ring links that leave one host at once, over all rings of the axis */
    int far_peers;  /* most peers of a device that are on other hosts */
    int64_t all_to_all_flows; /* pairs that leave one host, over all groups of the axis */
    /* Measured curves of the axis by xm_collective_t, borrowed from the profile; NULL: none. */
    const xm_collective_curve_t *measured[XM_COLLECTIVE_COUNT];
} ap_cost_axis_t;

struct ap_cost_mesh {
    const ap_cost_model_t *model;
    int hosts, devices;
    int rank;
    xm_cluster_device_t device;  /* of the model, or the least of the profile's first hosts */
    double nic;                  /* likewise, bytes/s of the slowest host of the submesh */
    bool uneven;                 /* dimensions that do not divide are padded */
    struct ap_cost_ratio *ratio; /* parts as large as their devices are fast; NULL: equal parts */
    ap_cost_axis_t axis[AP_MAX_MESH_RANK];
};

/* What the devices of a mesh hold of a dimension that is cut over a set of axes. */
typedef struct ap_cost_ratio {
    double most[1 << AP_MAX_MESH_RANK], least[1 << AP_MAX_MESH_RANK];
    double work[1 << AP_MAX_MESH_RANK]; /* of the device that takes longest, as the slowest's */
    double first[AP_MAX_MESH_RANK];     /* the part of the first half */
} ap_cost_ratio_t;

/* The measured curve of a collective over an axis, or NULL. */
const xm_collective_curve_t *ap_cost_measured(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind,
                                              int axis);

/* Seconds of a collective as a ring of messages, and where any of a profile's costs comes from. */
double ap_cost_ring(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind, int axis, double bytes);
/* How much longer it takes with the mesh's NICs than with the profile's typical ones, which is what
 * measured collectives are of; never below 1. */
double ap_cost_ring_slowdown(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind, int axis,
                             double bytes);
char *ap_cost_ring_explain(const ap_cost_mesh_t *mesh, ap_collective_kind_t kind, int axis,
                           double bytes, char *buffer, size_t size);
