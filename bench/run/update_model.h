/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file update_model.h
 * What an update is predicted to take: bytes from the density and the boxes of the plan, time from
 * those and from what finding, encoding and applying take here.
 */
#pragma once

#include "bench/cases.h"
#include "bench/run/processors.h"
#include "comm/worker.h"

/** Seconds of the slowest rank. */
typedef struct rb_update_work {
    double found;    /**< finding and encoding what the plan has ranks send */
    double busy;     /**< the same in processor time, of all ranks on average */
    double copied;   /**< a plain copy of the source tiles, to hold that against */
    double applied;  /**< writing what they receive */
    double agreed;   /**< an agreement that the others have waited for, asleep */
    double streamed; /**< an update of a part of the bytes, of which all have changed */
} rb_update_work_t;

typedef struct rb_update_model {
    double seconds;
    double share; /**< bytes that are sent, of those of everything */
    rb_update_work_t work;
} rb_update_model_t;

/** Collective: measures what this machine and its ranks need for the parts of one.
 *  @p nic: bytes a second of a NIC; @p processors of the ranks that have fewest. */
xm_status_t rb_update_predict(xm_worker_t *worker, const xm_plan_t *plan, double nic,
                              const rb_processors_t *processors, rb_changes_t pattern,
                              double density, rb_update_model_t *model);
