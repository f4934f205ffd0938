/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/pipeline/times.h
 * Times of passes and messages for the simulator: whether they can be used, and how they vary.
 * Not installed.
 */
#pragma once

#include "planner/pipeline/simulate.h"

/* Refuses times below 0, or so long that their sum overflows. */
xm_status_t ap_pipeline_times_check(const ap_schedule_t *schedule,
                                    const ap_pipeline_times_t *times);

/* What an entry takes that takes @p time without jitter. */
int64_t ap_pipeline_jittered(const ap_pipeline_times_t *times, const ap_schedule_op_t *op,
                             int64_t time);

/* What a pass or an update takes. */
int64_t ap_pipeline_pass_time(const ap_schedule_t *schedule, const ap_pipeline_times_t *times,
                              const ap_schedule_op_t *op);
