/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/worker/limits.h
 * Whether a rank can start at all under the limits of its process: UCX ends the process by an
 * assertion where it cannot open a file or start a thread. Internal.
 */
#pragma once

#include "comm/base.h"

/** Raises the limit of open files as far as it may be and is needed, and tries what a rank of a job
 * of @p size ranks will need. @p rank −1: not known yet. */
xm_status_t xm_worker_limits_check(int rank, int size);
