/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/intra_op/plan.h
 * Solving a sharding problem (planner/intra_op/problem.h): a strategy for every node, within a
 * memory limit that holds at every moment, and what that plan costs and uses.
 *
 * Memory is that of one device over time; operators run in the order of the graph. Parameters,
 * inputs and optimizer state live all the time; so do gradients that several micro-batches are
 * summed into; what operators make, unless a compiler fuses it, lives to its last use, what
 * scattering and gathering needs besides while the operator runs. The limit makes the solver shard
 * optimizer state, gradients and parameters (what ZeRO calls its stages 1 to 3), gather parameters
 * where they are used, and, if it may, compute tensors of the forward pass a second time instead of
 * keeping them.
 *
 * Layers of one structure get one plan unless the options say otherwise; it is the problem's
 * optimum among such plans that the bound belongs to then.
 *
 * Ownership: the problem is borrowed and must outlive the plan. Threads: a plan is immutable.
 *
 * @code
 *     ap_shard_options_t options = AP_SHARD_OPTIONS_INIT;
 *     status = ap_shard_solve(problem, &options, &plan);
 *     ap_shard_problem_spec(problem, ap_shard_plan_strategies(plan), tensor);
 * @endcode
 */
#pragma once

#include "planner/cost.h"

#include <autopar/shard.h>

#include <stdint.h>

#include "planner/intra_op/problem.h"
#include "planner/solver/network.h"

/**
 * A search instead of the solver: gives a value to every node of @p cfn, which has no limit.
 * @p part: per value of every node (AP_MAX_MESH_RANK each, in the order of the costs), what its
 * operator or tensor does with each mesh axis: 0 nothing, else a factor or dimension that it cuts.
 */
typedef xm_status_t ap_shard_search_fn(void *arg, const ap_cfn_t *cfn, const uint8_t *part,
                                       int *choice);

typedef struct ap_shard_options {
    double seconds; /**< for the solver, kept to; 0 = 1, or up to 60 until there is a plan */
    int threads;    /**< 0 = one per core */
    uint64_t seed;
    ap_memory_budget_t memory;  /**< of a device; without a limit the mesh's model says how much */
    double memory_limit;        /**< that comes of it, bytes per device; 0 = none */
    double yardstick;           /**< bytes that tensors are large or small against; 0 = the limit */
    bool recompute;             /**< tensors of the forward pass may be computed a second time */
    bool every_layer;           /**< layers of one structure may get different plans */
    ap_shard_search_fn *search; /**< looks at no memory; NULL: the solver */
    void *search_arg;
    /** Called about once a second while the solver runs; may be NULL. */
    void (*progress)(void *arg, double fraction, const char *what);
    void *progress_arg;
} ap_shard_options_t;

#define AP_SHARD_OPTIONS_INIT                                                                      \
    {                                                                                              \
        .seed = 1, .memory = {.reserve = AP_MEMORY_RESERVE_DEFAULT }                               \
    }

/** What memory is used for. */
typedef enum ap_shard_part {
    AP_SHARD_PARAMETERS,
    AP_SHARD_STATE, /**< of the optimizer */
    AP_SHARD_GRADIENTS,
    AP_SHARD_INPUTS,
    AP_SHARD_ACTIVATIONS,
    AP_SHARD_TEMPORARIES, /**< what collectives and gathered operands need */
    AP_SHARD_PARTS
} ap_shard_part_t;

/** "parameters", "optimizer state", … */
const char *ap_shard_part_name(ap_shard_part_t part);

/** Bytes of one device while an operator runs. */
typedef struct ap_shard_memory {
    double part[AP_SHARD_PARTS];
} ap_shard_memory_t;

double ap_shard_memory_sum(const ap_shard_memory_t *memory);

typedef struct ap_shard_plan ap_shard_plan_t;

/**
 * XM_ERR_NO_SOLUTION when nothing fits the limit, XM_ERR_TIMEOUT when nothing was found in time.
 */
xm_status_t ap_shard_solve(const ap_shard_problem_t *problem, const ap_shard_options_t *options,
                           ap_shard_plan_t **plan);

/**
 * The network within the limit that ap_shard_solve() would give to the solver, for another one: its
 * nodes are choices, not the problem's. The caller destroys it.
 */
xm_status_t ap_shard_problem_network(const ap_shard_problem_t *problem,
                                     const ap_shard_options_t *options, ap_cfn_t **cfn);

const ap_shard_result_t *ap_shard_plan_result(const ap_shard_plan_t *plan);

/** A strategy per node of the problem. */
const int *ap_shard_plan_strategies(const ap_shard_plan_t *plan);

/** Whether an operator runs a second time, in the backward pass. */
bool ap_shard_plan_recomputes(const ap_shard_plan_t *plan, int op);

/** Memory while operator @p op runs. */
const ap_shard_memory_t *ap_shard_plan_memory(const ap_shard_plan_t *plan, int op);

void ap_shard_plan_destroy(ap_shard_plan_t *plan);
