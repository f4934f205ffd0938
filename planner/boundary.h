/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file boundary.h
 * What the tensors between two pipeline stages cost to move: the cross-mesh resharding of all of
 * them together that resharding/ would run, planned and simulated on the cluster profile. Seconds
 * are the larger of the simulated makespan on the hosts' NICs, and what the busiest device sends or
 * receives, message after message, by the measured curves.
 *
 * Both stages occupy consecutive devices of hosts with `devices_per_host` devices. Where all hosts
 * have the same NICs and no shared uplinks, only which hosts they share matters, and answers are
 * cached by that; otherwise by where they stand. Strategy and scheduler are `auto`, as wherever a
 * resharding runs that is told nothing; plans record them, and what runs a plan takes them from
 * there.
 *
 * Threads: an object may be used by several, and works for them at the same time; what it has found
 * is known to all.
 */
#pragma once

#include <stdint.h>

#include "comm/profile.h"
#include <autopar/plan.h>
#include "planner/graph.h"

typedef struct ap_cross_mesh ap_cross_mesh_t;

/** One side: a logical mesh on the devices first … first + shape[0] * shape[1] - 1. */
typedef struct ap_cross_mesh_side {
    int first_device;
    int shape[2];
} ap_cross_mesh_side_t;

typedef struct ap_cross_mesh_tensor {
    ap_shape_t shape;
    int element_size;   /**< bytes */
    ap_spec_t src, dst; /**< how each side cuts it */
} ap_cross_mesh_tensor_t;

/** What passes together. The devices of the two sides must not overlap, and every cut dimension
 * must divide. */
typedef struct ap_cross_mesh_transfer {
    ap_cross_mesh_side_t src, dst;
    const ap_cross_mesh_tensor_t *tensors;
    int count;    /**< 0: nothing passes, and costs nothing */
    bool one_way; /**< there are no gradients to pass back */
} ap_cross_mesh_transfer_t;

typedef struct ap_cross_mesh_cost {
    double forward;    /**< seconds of the tensors, src to dst (simulated) */
    double backward;   /**< seconds of their gradients, dst to src (simulated) */
    double bound;      /**< no plan's `forward` can be below (seconds) */
    int64_t net_bytes; /**< that cross from host to host, forward */
} ap_cross_mesh_cost_t;

/** @p profile is borrowed and must outlive the object. */
xm_status_t ap_cross_mesh_create(const xm_cluster_profile_t *profile, ap_cross_mesh_t **cross_mesh);

xm_status_t ap_cross_mesh_cost(ap_cross_mesh_t *cross_mesh,
                               const ap_cross_mesh_transfer_t *transfer,
                               ap_cross_mesh_cost_t *cost);

/**
 * What forward and backward take together at least: quick to have, for it plans nothing. The sum
 * itself where the costs are known.
 */
xm_status_t ap_cross_mesh_lower_bound(ap_cross_mesh_t *cross_mesh,
                                      const ap_cross_mesh_transfer_t *transfer, double *seconds);

/**
 * What the same resharding, and that of the gradients, occupy of hosts' NICs and racks' uplinks: an
 * array of @p count in @p arena, hosts in their order, then racks, without those that it does not
 * touch. Hosts are those of the devices, rack r has those from r times the
 * profile's hosts per rack on.
 */
xm_status_t ap_cross_mesh_loads(ap_cross_mesh_t *cross_mesh,
                                const ap_cross_mesh_transfer_t *transfer, xm_arena_t *arena,
                                const ap_link_load_t **loads, int *count);

/** Costs are equal for later stages that begin on devices of one place, a number from 0 up to the
 * device's: all that matters of where they begin. */
int ap_cross_mesh_place(const ap_cross_mesh_t *cross_mesh, int first_device);

/** The profile's runtime; its object's. */
const xm_runtime_t *ap_cross_mesh_runtime(const ap_cross_mesh_t *cross_mesh);

/** Number of reshardings simulated so far. */
size_t ap_cross_mesh_simulated(ap_cross_mesh_t *cross_mesh);

/** Names of the strategy and the scheduler that costs are for. */
const char *ap_cross_mesh_strategy(void);
const char *ap_cross_mesh_scheduler(void);

/** NULL is accepted. */
void ap_cross_mesh_destroy(ap_cross_mesh_t *cross_mesh);

#include "planner/boundary/passing.h"
