/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file update_model.h
 * What an update is predicted to take: bytes from the density and the boxes of the plan, time from
 * those and from what finding, encoding and applying take here.
 */
#pragma once

#include "bench/cases.h"
#include "comm/worker.h"

typedef struct rb_update_model {
    double seconds;
    double share; /**< bytes that are sent, of those of everything */
} rb_update_model_t;

/** Bytes that all ranks together send, of those of everything. */
double rb_update_share(const xm_plan_t *plan, rb_changes_t pattern, double density);

/** Collective: measures what this machine needs for a few MiB, and the ranks for an agreement.
 *  @p cores of each host. @p head_start: seconds of a NIC's rate that pass it at once after a
 * pause, as they do where it is emulated (rb_nic_rate_burst()); what is sent is predicted to take
 * so much less. */
xm_status_t rb_update_predict(xm_worker_t *worker, const xm_plan_t *plan, rb_changes_t pattern,
                              double density, int cores, double head_start,
                              rb_update_model_t *model);
