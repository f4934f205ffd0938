/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/plan/schedule.h
 * A parallel plan under a pipeline schedule: its stages' times and its reshardings, simulated event
 * by event; and the plan that a schedule makes of another.
 *
 * The plan gives a stage's whole backward pass, whose halves planner/pipeline/step.h divides.
 * Everything that a forward pass leaves is taken to stay until the weight half, which is on the
 * safe side.
 *
 * Threads: no shared state.
 */
#pragma once

#include "comm/profile.h"
#include "planner/boundary.h"
#include "planner/pipeline.h"
#include "planner/plan/plan.h"

typedef struct ap_plan_simulation {
    ap_schedule_kind_t kind;
    int64_t micro_batches; /**< of the plan's size; 0: as many as the plan has */
    int virtual_stages;    /**< interleaved: parts that every stage is cut into; equal in time */
    int slices;            /**< terapipe: parts of every micro-batch; equal in time */
    const ap_token_slices_t *cut; /**< or these */
    int batches;                  /**< steps of asynchronous schedules, 0: 3 or 4 */
    double jitter;                /**< share by which times vary, see planner/pipeline/simulate.h */
    uint64_t seed;
    bool blocking;        /**< transfers keep devices busy, see planner/pipeline/simulate.h */
    xm_runtime_t runtime; /**< what a runtime adds to the times of the plan; zero: nothing */
    /** Prices the reshardings anew, on this profile of the plan's hosts and devices; NULL: as the
     * plan predicts them. */
    const xm_cluster_profile_t *profile;
    /** Activations wait in host memory between the passes of a micro-batch (vPipe), the device has
     * those of two: one in a pass, one on the way. */
    bool swap;
    bool offload; /**< the state comes from host memory and goes back, once a step (PatrickStar) */
    bool fold;    /**< the stages are the virtual ones, several to a device */
} ap_plan_simulation_t;

#define AP_PLAN_SIMULATION_INIT                                                                    \
    {                                                                                              \
        .kind = AP_SCHEDULE_1F1B                                                                   \
    }

/**
 * Makes the schedule for the plan's stages, checks it (planner/pipeline/check.h) and simulates it.
 * With virtual stages, what passes from the last device to the first is priced like the largest
 * boundary, or with a profile as the resharding from the last mesh to the first.
 */
xm_status_t ap_plan_simulate(const ap_plan_t *plan, const ap_plan_simulation_t *simulation,
                             ap_schedule_t **schedule, ap_pipeline_run_t **run);

/** Seconds of the step under the plan's own schedule in such a runtime, and bytes of the fullest
 * device. */
xm_status_t ap_plan_runtime_step(const ap_plan_t *plan, const xm_runtime_t *runtime, double *step);
double ap_plan_runtime_memory(const ap_plan_t *plan, const xm_runtime_t *runtime);

/** The tensors of a boundary in their layouts, from the mesh of one stage to that of another, to be
 * priced; they lie in @p arena. */
xm_status_t ap_plan_transfer(const ap_plan_boundary_t *like, const ap_plan_side_t *src,
                             const ap_plan_side_t *dst, xm_arena_t *arena,
                             ap_cross_mesh_transfer_t *transfer);

/** ap_plan_can_have() with a sentence: XM_ERR_UNSUPPORTED. */
xm_status_t ap_plan_check_schedule(ap_schedule_kind_t kind);

/**
 * The same plan under another schedule: its step time from the simulation, its micro-batches in
 * flight from the list. XM_ERR_NO_SOLUTION when a stage then needs more memory than the plan's
 * limit, the sentence says which, and how much; or when an asynchronous schedule has fewer
 * micro-batches than stages. Each version of the parameters after the first is charged as @p
 * version_share of the state.
 */
xm_status_t ap_plan_reschedule(const ap_plan_t *plan, ap_schedule_kind_t kind, double version_share,
                               ap_plan_t **result);

/** What ap_plan_evaluate() holds a plan against. */
typedef struct ap_plan_evaluation {
    ap_schedule_kind_t kind;
    bool stash; /**< a version of the parameters for every micro-batch in flight (PipeDream) */
    double version_share; /**< of a stage's state, for one more version of the parameters */
    double memory_limit;  /**< of a device, bytes */
} ap_plan_evaluation_t;

#define AP_PLAN_EVALUATION_INIT                                                                    \
    {                                                                                              \
        .kind = AP_SCHEDULE_1F1B                                                                   \
    }

/**
 * The same plan under a schedule, simulated, whether or not its memory fits: ap_plan_stage_memory()
 * tells. XM_ERR_NO_SOLUTION as of ap_plan_reschedule() only for too few micro-batches.
 */
xm_status_t ap_plan_evaluate(const ap_plan_t *plan, const ap_plan_evaluation_t *evaluation,
                             ap_plan_t **result);

/**
 * The plan under the schedule with the shortest simulated step among the synchronous ones that a
 * plan can have and whose memory fits; of equal ones the first in the order of the kinds, 1f1b
 * before all. XM_ERR_NO_SOLUTION: none fits.
 */
xm_status_t ap_plan_reschedule_best(const ap_plan_t *plan, ap_plan_t **result);
