/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/worker/rate.h
 * How fast the hosts of a worker are, by their topologies. Internal.
 */
#pragma once

#include "comm/worker/worker.h"

/**
 * Bytes/s by host of all NICs together that are suitable for tensors (nic_choice.h), by cable and
 * slot; 0 where one does not tell its speed and where there is none. Equal on all ranks, as all
 * have the same topologies. Read once; valid until the group changes.
 */
xm_status_t xm_worker_nic_rates(xm_worker_t *worker, const double **rates);
