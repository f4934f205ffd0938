/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stage.h
 * What one pipeline stage costs: a range of layers on a submesh, under the best intra-operator
 * plan.
 *
 * The stage-slicing DP (inter_op.h) asks this object for every (first layer, last layer, submesh,
 * logical shape). A context solves each distinct layer of the model once per (submesh, logical
 * shape, memory price) into the exact table cost[spec of its input][spec of its output], and
 * answers a range by min-plus products of these tables, so all O(layers²) ranges are cheap.
 *
 * The submesh is @p hosts x @p devices; the logical mesh is d0 x d1 = hosts·devices, and logical
 * device (i, j) is device i·d1 + j of the submesh counted host by host. A spec names axis 0 (d0)
 * and axis 1 (d1).
 *
 * Within a stage the gradient of a tensor has the spec of the tensor, and the backward operators of
 * an operator use its factor assignment (the same factors over the same axes).
 *
 * Units: seconds and bytes, per device. Threads: a context caches and must not be used by two
 * threads at once; solutions are immutable. Source: Alpa (OSDI'22) sections 4.2 and 5.2, t_intra,
 * mem_stage and mem_act.
 *
 * @code
 *     ap_stage_query_t query = AP_STAGE_QUERY_INIT;
 *     query.first = 0; query.last = 12; query.hosts = 1; query.devices = 4;
 *     query.shape[0] = 2; query.shape[1] = 2;
 *     query.memory_limit = 16e9; query.in_flight = 2;
 *     status = ap_stage_evaluate(context, &query, &cost);   // XM_ERR_NO_SOLUTION: does not fit
 * @endcode
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <autopar/planner.h>

#include "comm/base.h"
#include "planner/cost.h"
#include "planner/graph.h"
#include "planner/stage/space.h"

typedef struct ap_stage_context ap_stage_context_t;
typedef struct ap_stage_solution ap_stage_solution_t;

/** The model and its cost model are borrowed and must outlive the context. */
typedef struct ap_stage_context_params {
    const ap_graph_t *graph;     /**< forward graph with layer marks, sized for one micro-batch */
    const ap_cost_model_t *cost; /**< a cost model on a cluster profile */
    int micro_batches;  /**< B: per-iteration costs (gradient synchronisation) are divided by it */
    bool rematerialize; /**< keep only layer inputs and run each layer's forward pass again */
    const ap_space_t *space; /**< strategies to choose from; copied; NULL: all */
} ap_stage_context_params_t;

#define AP_STAGE_CONTEXT_PARAMS_INIT                                                               \
    {                                                                                              \
        .micro_batches = 1                                                                         \
    }

/** One question. Layers are inclusive, 0 … ap_graph_layers() - 1. */
typedef struct ap_stage_query {
    int first, last;
    int hosts, devices;  /**< submesh: that many hosts, that many devices of each */
    int shape[2];        /**< logical shape; shape[0]·shape[1] = hosts·devices */
    double memory_limit; /**< bytes one device may use; 0 = no limit */
    double worth;        /**< plans with a greater objective are not looked for; 0 = all are */
    int in_flight;       /**< micro-batches whose activations live at once (1F1B: stages from here
                              to the end, at most B) */
    bool fix_input, fix_output; /**< demand these specs of the boundary tensors … */
    ap_spec_t input, output;    /**< … else the cheapest are chosen */
} ap_stage_query_t;

#define AP_STAGE_QUERY_INIT                                                                        \
    {                                                                                              \
        .in_flight = 1                                                                             \
    }

/** The answer. Per device = the worst device; the plan is symmetric, so every device. */
typedef struct ap_stage_cost {
    double forward;      /**< seconds of one micro-batch's forward pass */
    double backward;     /**< seconds of one micro-batch's backward pass (with recomputation) */
    double sync;         /**< seconds of gradient synchronisation, once per iteration */
    double update;       /**< seconds of the parameter update, once per iteration */
    double mem_stage;    /**< bytes of parameters, gradients and optimizer state */
    double mem_act;      /**< bytes of activations kept per micro-batch in flight */
    double mem_work;     /**< bytes needed besides, once (largest operator's temporaries) */
    ap_spec_t input;     /**< spec of the stage's input tensor and of its gradient */
    ap_spec_t output;    /**< spec of the stage's output tensor and of its gradient */
    unsigned batch_axes; /**< which the resting copies that it reads and makes are cut over */
    int input_tensor;    /**< id in the graph; -1 for the first stage, which reads the data set */
    int output_tensor;   /**< id in the graph; -1 for the last stage, which ends in the loss */
    double bound;   /**< no plan of this space within the memory limit has an objective below */
    bool recompute; /**< layers keep their input only: the context rematerialises */
} ap_stage_cost_t;

/** The axes of a mesh that resting copies are cut over, in every stage of the context. */
unsigned ap_stage_batch_axes(const ap_stage_context_t *context);

/** The objective that was minimised: forward + backward + (sync + update) / B. */
double ap_stage_objective(const ap_stage_cost_t *cost, int micro_batches);

/** mem_stage + in_flight·mem_act + mem_work: what is held against the memory limit. */
double ap_stage_memory(const ap_stage_cost_t *cost, int in_flight);

xm_status_t ap_stage_context_create(const ap_stage_context_params_t *params,
                                    ap_stage_context_t **context);

/**
 * Costs of the best plan of a stage. XM_ERR_NO_SOLUTION when no plan fits the memory limit (the
 * sentence says what the smallest one needs), XM_ERR_INVALID_ARGUMENT for a layer outside the
 * model, a shape that is not the submesh, or a submesh larger than the cluster.
 */
xm_status_t ap_stage_evaluate(ap_stage_context_t *context, const ap_stage_query_t *query,
                              ap_stage_cost_t *cost);

/** The same, with what was chosen for each operator. The solution outlives the context, not the
 * graph. */
xm_status_t ap_stage_solve(ap_stage_context_t *context, const ap_stage_query_t *query,
                           ap_stage_solution_t **solution);

/** What one forward operator of the stage (and its backward and update operators) does. */
typedef struct ap_stage_choice {
    int op;                 /**< id in the graph */
    const char *rule;       /**< the operator's factors, e.g. "bsh,hf->bsf" */
    const ap_spec_t *specs; /**< of its operands, then its results */
    double compute;         /**< seconds per micro-batch, forward and backward */
    double comm;            /**< seconds of collectives per micro-batch, forward and backward */
    double reshard; /**< seconds per micro-batch to bring operands into these specs, and back */
    double sync;    /**< seconds per iteration, gradients of its parameters */
    double memory;  /**< bytes of its parameters' state */
    double act;     /**< bytes of its operands kept per micro-batch */
    /** How gradients and results are summed that take several collectives, by the rule's term:
     * "1: reduce-scatter 1, all-reduce 0, all-gather 1"; "" where one all-reduce does. */
    const char *sums;
    const char *why; /**< collectives with axis, bytes and where the numbers come from; may be "" */
    const char *runner_up;  /**< next best choice of this operator, the others kept; "" if none */
    double runner_up_extra; /**< how much more seconds of objective it would cost */
} ap_stage_choice_t;

const ap_stage_cost_t *ap_stage_solution_cost(const ap_stage_solution_t *solution);
int ap_stage_solution_choices(const ap_stage_solution_t *solution);
/** Choice @p index in the order of the graph's operators; owned by the solution. */
const ap_stage_choice_t *ap_stage_solution_choice(const ap_stage_solution_t *solution, int index);
void ap_stage_solution_destroy(ap_stage_solution_t *solution);

void ap_stage_context_destroy(ap_stage_context_t *context);
