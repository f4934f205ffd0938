/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/intra_op/report.h
 * What a solved sharding makes the devices say to each other: which collectives run, what they move
 * and what they cost.
 *
 * Collectives: those of the operators' strategies, and the steps of the reshardings between made
 * and used specs. A tensor that several operators use in one other spec is resharded once, and
 * reshardings of one tensor share the steps they have in common: so runtimes do it. (The solver
 * charges every use; the sum of the costs here can therefore be below the objective's part.)
 *
 * All of it is of one step with its micro-batches, while the solver's objective is of one
 * micro-batch: gradients are reduced and parameters updated once. What a memory limit makes run a
 * second time, or scatter after every micro-batch, is in the objective only.
 *
 * Ownership: a report keeps no pointer to the solution. Threads: immutable.
 */
#pragma once

#include "planner/intra_op/solution.h"

/** One collective over one mesh axis, or an all-reduce over several. */
typedef struct ap_shard_transfer {
    ap_collective_kind_t kind;
    unsigned axes; /**< set of mesh axes, of more than one device each */
    bool reshard;  /**< between two operators, not inside one */
    int op;        /**< that needs it; the first of them for a resharding */
    int tensor;    /**< that moves */
    double bytes;  /**< of one run, as cost.h defines them for the kind */
    double runs;   /**< in one step */
    bool gradient; /**< of a parameter: a part may hide behind the backward pass (cost.h) */
    double cost;   /**< of all runs, less what hides */
} ap_shard_transfer_t;

enum { AP_AXIS_SETS = 1 << AP_MAX_MESH_RANK };

typedef struct ap_shard_total {
    double count; /**< runs of all collectives of a kind over a set of axes */
    double bytes, cost;
} ap_shard_total_t;

typedef struct ap_shard_report {
    int transfer_count;
    ap_shard_transfer_t *transfers; /**< by operator */
    ap_shard_total_t total[AP_COLLECTIVE_COUNT][AP_AXIS_SETS];
    double compute; /**< cost of all operators without their collectives */
    /** per mesh axis: share of a device's FLOPs that the devices of the axis all perform alike */
    double repeated[AP_MAX_MESH_RANK];
} ap_shard_report_t;

xm_status_t ap_shard_report_create(const ap_shard_solution_t *solution, ap_shard_report_t **report);

void ap_shard_report_destroy(ap_shard_report_t *report);
