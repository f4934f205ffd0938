/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pipeline.h
 * A parallel plan made ready to run: the schedule's lists, the seconds of every pass, the
 * reshardings between the stages as plans, and what a simulation of all this predicts.
 *
 * The prediction is ap_plan_simulate()'s, which `autopar simulate` prints, on the same profile. The
 * reshardings are those it has priced: the boundary's layouts, strategy and scheduler.
 *
 * Immutable. Units: nanoseconds. Threads: shared freely.
 */
#pragma once

#include "comm/profile.h"
#include "planner/plan.h"
#include "resharding/plan.h"

/** One direction between two stages: activations, or gradients. */
typedef struct rb_way {
    xm_plan_t *plan;           /**< of one micro-batch's tensors */
    char dtype[512];           /**< the plan's names of their elements, comma-separated */
    const ap_plan_side_t *src; /**< the plan's; its first device is the stage's first rank */
    const ap_plan_side_t *dst;
    int from, to; /**< stages */
    int messages; /**< in one run of the lists */
} rb_way_t;

typedef struct rb_pipeline {
    ap_plan_t *plan;
    ap_schedule_t *schedule;
    ap_pipeline_run_t *predicted; /**< every pass has its duration there */
    int64_t free_ns;              /**< predicted step if all transfers were free */
    rb_way_t *ways;               /**< way 2 b: activations over boundary b, 2 b + 1: gradients */
    int way_count;
} rb_pipeline_t;

typedef struct rb_pipeline_params {
    const char *path;                    /**< of the plan */
    const char *schedule;                /**< NULL: the plan's */
    int micro_batches;                   /**< 0: the plan's */
    const xm_cluster_profile_t *profile; /**< of the plan's size, prices the reshardings; NULL: they
                                              take what the plan says */
    const xm_network_t *network;         /**< that the reshardings are planned for */
} rb_pipeline_params_t;

/** Reads and prepares. Fails on schedules that do not keep one stage to a device. */
xm_status_t rb_pipeline_create(const rb_pipeline_params_t *params, rb_pipeline_t **pipeline);

/** The stage that a rank belongs to, -1: none. *first tells whether it is the first of its ranks.
 */
int rb_pipeline_stage_of(const rb_pipeline_t *pipeline, int rank, bool *first);

/** Bytes that all reshardings of one step move from host to host. */
uint64_t rb_pipeline_net_bytes(const rb_pipeline_t *pipeline);

/** NULL is accepted. */
void rb_pipeline_destroy(rb_pipeline_t *pipeline);
