/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/pipeline/step.h
 * What one training step of a pipeline takes: stages and transfers in seconds, put under a schedule
 * and simulated. Whoever says what a step takes asks here, the search as well as the reader of a
 * finished plan, so there is one answer.
 *
 * The two halves of a backward pass cost the same where layers are nothing but products of
 * matrices; a runtime may have measured another part for the weight half. With recomputation the
 * forward pass runs again in the input half, and the rest is divided. Virtual stages and slices
 * divide times and bytes evenly.
 *
 * @code
 *     ap_pipeline_step_t step = {.kind = AP_SCHEDULE_1F1B, .micro_batches = 32};
 *
 *     step.stages = stages, step.stage_count = 4, step.transfers = transfers;
 *     step.transfer_count = 3;
 *     status = ap_pipeline_step_seconds(&step, &seconds);
 * @endcode
 *
 * Units: seconds, bytes. Threads: no shared state.
 */
#pragma once

#include <autopar/plan.h>

#include "planner/pipeline/simulate.h"
#include "planner/pipeline/token_slices.h"

/** A stage, which has a device of the schedule to itself unless there are fewer `devices`. */
typedef struct ap_pipeline_stage {
    double forward, backward; /**< of one micro-batch */
    double once;              /**< gradient synchronisation and update, once a step */
    double activation_bytes;  /**< of one micro-batch */
    bool recompute;           /**< the forward pass is part of `backward` as well */
} ap_pipeline_stage_t;

/** The weight half's part of both. @p measured 0: a half. */
double ap_pipeline_weight_share(double measured);

/** Seconds of the weight half of a whole backward pass, which has that share of both. */
double ap_pipeline_weight_half(const ap_pipeline_stage_t *stage, double share);

/** What passes from a stage to another for each micro-batch, and its gradient the way back. */
typedef struct ap_pipeline_transfer {
    int from, to;
    double forward, backward;
    const ap_link_load_t *links; /**< that it keeps busy while it is alone */
    int link_count;
} ap_pipeline_transfer_t;

/** One pipeline. What it points at is borrowed for the call. */
typedef struct ap_pipeline_step {
    ap_schedule_kind_t kind;
    int micro_batches;
    int virtual_stages; /**< to a stage, 0: 1 */
    int devices;        /**< of the schedule, 0: one to a stage */
    int slices;         /**< 0: 1 */
    /** Slices of unlike lengths instead; NULL: equal ones. */
    const ap_token_slices_t *cut;
    int batches;     /**< as in ap_schedule_params_t */
    double slowdown; /**< as in ap_pipeline_times_t */
    bool blocking;   /**< transfers keep devices busy */
    double send;     /**< as in ap_pipeline_times_t, seconds */
    double split;    /**< a backward pass in halves takes so many times as long; below 1: 1 */
    double weight;   /**< the weight half's part of both; 0: a half */
    double jitter;   /**< as in ap_pipeline_times_t, with its seed */
    uint64_t seed;
    const ap_pipeline_stage_t *stages;
    int stage_count;
    /** At most one between two stages; from a stage to the next or one behind that, and with
     * virtual stages from the last to the first. */
    const ap_pipeline_transfer_t *transfers;
    int transfer_count;
} ap_pipeline_step_t;

/** Makes the schedule, checks it (planner/pipeline/check.h) and simulates it. The caller destroys
 * both. */
xm_status_t ap_pipeline_step_run(const ap_pipeline_step_t *step, ap_schedule_t **schedule,
                                 ap_pipeline_run_t **run);

/** Seconds of the step alone. */
xm_status_t ap_pipeline_step_seconds(const ap_pipeline_step_t *step, double *seconds);
