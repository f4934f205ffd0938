/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/pipeline/times.h
 * Times of passes and messages for the simulator: whether they can be used, how they vary, and by
 * which number the channel goes that a message takes.
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

/** The channel from a device to the next or the one before, round the ring of @p devices. */
int ap_pipeline_channel(int devices, int from, int to);

/** The channel of a skip's activations, or gradients: behind those of the ring. */
int ap_pipeline_skip_channel(int devices, int skip, bool gradient);
