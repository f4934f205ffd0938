/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file job_info.h
 * What reports say of the job as a whole.
 */
#pragma once

#include "bench/cases.h"
#include "bench/run/rates.h"

enum { RB_HOST_NAME = 64 };

typedef struct rb_rank_info {
    int64_t pid;
    char host[RB_HOST_NAME];
} rb_rank_info_t;

/** Nothing in it is owned. */
typedef struct rb_job_info {
    const rb_options_t *options;
    const rb_selection_t *selection;
    const rb_host_map_t *hosts;
    const rb_rates_t *rates;
    const rb_rank_info_t *ranks; /**< by rank; NULL when no process was started for a rank */
    int window;        /**< chunks in flight per peer; 0 where nothing is sent in real time */
    const char *start; /**< what rank 0 runs on, xm_worker_describe(); NULL without ranks */
} rb_job_info_t;

/** "ucx", "verbs", "sim", or "none" under --dry-run. */
const char *rb_job_transport(const rb_job_info_t *job);
