/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/search/host_permutation.h
 * Hosts lined up in an order: what a planner run knows of a cluster whose hosts stand so. Not
 * installed.
 */
#pragma once

#include "planner/inter_op.h"
#include "planner/search/case.h"

typedef struct ap_host_permutation {
    int *order; /* the profile's host in each place */
    ap_device_classes_t *classes;
    ap_cross_mesh_t *cross_mesh;   /* the setup's where all hosts have the same network */
    xm_cluster_profile_t *profile; /* of a cross_mesh of its own */
} ap_host_permutation_t;

/* The orders that a run starts with. */
typedef struct ap_host_permutations {
    ap_host_orders_t *orders;     /* NULL where hosts keep the profile's order */
    ap_host_permutation_t *items; /* the profile's order first */
    int count;                    /* 0: the profile's order is the only one */
    bool all;                     /* there are no others that differ and might be taken */
} ap_host_permutations_t;

/**
 * Lists the orders and widens the setup's classes of devices for them. Only the profile's where
 * hosts are alike, may not change places, or are of so many kinds that a stage table has no room
 * for them. Close them also after a failed open.
 */
xm_status_t ap_host_permutations_open(ap_planner_setup_t *setup, int layers,
                                      ap_host_permutations_t *host_permutations);
void ap_host_permutations_close(const ap_planner_setup_t *setup,
                                ap_host_permutations_t *host_permutations);

/* How many orders one case may be bounded for, by the size of its stage table. */
int ap_host_permutations_most(const ap_planner_setup_t *setup, int layers);

/** One order more. XM_ERR_NOT_FOUND: the setup has no classes for it. */
xm_status_t ap_host_permutation_open(const ap_planner_setup_t *setup, const int *order,
                                     ap_host_permutation_t *host_permutation);
void ap_host_permutation_close(const ap_planner_setup_t *setup,
                               ap_host_permutation_t *host_permutation);

/* Reshardings simulated on networks of their own. */
int64_t ap_host_permutations_simulated(const ap_planner_setup_t *setup,
                                       const ap_host_permutations_t *host_permutations);
