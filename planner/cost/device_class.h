/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file device_class.h
 * Hosts whose devices or NICs differ, as a stage sees them: the hosts of a submesh do what the
 * slowest of them does, in the memory of the smallest, and send what its slowest NIC sends. Every
 * run of hosts belongs to a class of runs that are alike in this; where all hosts are of one kind
 * there is one class.
 *
 * Hosts may stand in several orders: then there are the classes of them all, and one object says
 * which runs of one order are of which class.
 *
 * Threads: immutable after creation. Not installed.
 */
#pragma once

#include "comm/profile.h"
#include "planner/cost/cost.h"
#include "planner/cost/memory_budget.h"

typedef struct ap_device_class {
    xm_cluster_device_t device; /**< what each device of such hosts counts as */
    double nic;                 /**< bytes/s of the slowest NICs; of a host alone the typical */
    ap_cost_model_t *cost;
} ap_device_class_t;

typedef struct ap_device_classes {
    int count, hosts;
    int firsts; /**< first hosts that matter: 1 where all hosts are alike */
    ap_device_class_t *classes;
    int *of;    /**< [firsts][hosts - 1]: the class of a run; -1 beyond the last host */
    bool *some; /**< [class][hosts - 1]: in some order there is such a run of so many hosts */
    const struct ap_device_classes *whole; /**< whose classes these are; NULL: its own */
} ap_device_classes_t;

/** @p profile is borrowed. Classes count with what plans may use of their devices' memory. */
xm_status_t ap_device_classes_create(const xm_cluster_profile_t *profile, ap_memory_budget_t budget,
                                     ap_device_classes_t **classes);

/** Adds the classes that there are with host @p order[i] in place i. Not while there are objects of
 * ap_device_classes_arrange(). */
xm_status_t ap_device_classes_widen(ap_device_classes_t *classes,
                                    const xm_cluster_profile_t *profile, ap_memory_budget_t budget,
                                    const int *order);

/**
 * The classes of @p whole, which is borrowed, with the hosts in another order. XM_ERR_NOT_FOUND:
 * it has runs of a class, or of a class in a length, that @p whole was not widened for.
 */
xm_status_t ap_device_classes_arrange(const ap_device_classes_t *whole,
                                      const xm_cluster_profile_t *profile,
                                      ap_memory_budget_t budget, const int *order,
                                      ap_device_classes_t **classes);

/** Class of the run of @p hosts hosts from @p first_host on. */
int ap_device_classes_find(const ap_device_classes_t *classes, int first_host, int hosts);

/** NULL is accepted. */
void ap_device_classes_destroy(ap_device_classes_t *classes);
