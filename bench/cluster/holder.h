/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bench/cluster/holder.h
 * The process that owns an emulated cluster: it makes the namespaces, waits, and ends them.
 */
#pragma once

#include "bench/cluster/state.h"

/** What the holder tells its maker, in one write. */
typedef struct rb_holder_report {
    xm_error_t error; /**< or XM_OK */
    pid_t init[RB_CLUSTER_HOSTS];
} rb_holder_report_t;

/**
 * What a holder does from its fork to its end. @p report_fd is where the report goes; @p claim is
 * the locked file of a lasting cluster, or has no descriptor: then the holder dies with its parent.
 */
void rb_cluster_hold(const rb_cluster_shape_t *shape, const rb_cluster_claim_t *claim,
                     int report_fd) __attribute__((noreturn));
