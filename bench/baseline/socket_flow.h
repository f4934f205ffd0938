/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file socket_flow.h
 * Plain TCP between the ranks of a job: a connection for each pair, its bytes sent with send() and
 * received with recv() by one poll() loop a rank. Nothing is packed, scheduled or pipelined.
 */
#pragma once

#include <stdint.h>

#include "bench/baseline/pair_list.h"
#include "comm/job.h"

typedef struct rb_socket_flow rb_socket_flow_t;

/** What a run cost this rank, and how many bytes it received wrongly. */
typedef struct rb_flow_sample {
    int64_t ns;     /**< from the end of the barrier to the end of this rank's part */
    int64_t cpu_ns; /**< processor time, user and system, in that span */
    int64_t wrong;
} rb_flow_sample_t;

/**
 * Collective: connects all pairs. Each rank is reached at the address it has towards the master.
 * @p bootstrap, @p env and @p pairs must outlive the flow; @p timeout seconds limit every wait.
 */
xm_status_t rb_socket_flow_create(xm_bootstrap_t *bootstrap, const xm_job_env_t *env,
                                  const rb_pair_list_t *pairs, uint64_t bytes, double timeout,
                                  rb_socket_flow_t **flow);

/** Collective: moves the bytes of every pair once, new bytes in each run, and checks them. */
xm_status_t rb_socket_flow_run(rb_socket_flow_t *flow, int run, rb_flow_sample_t *sample);

void rb_socket_flow_destroy(rb_socket_flow_t *flow);
