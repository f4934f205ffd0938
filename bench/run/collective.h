/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file collective.h
 * Agreement of all ranks on whether something went well.
 */
#pragma once

#include "comm/worker.h"

/**
 * Collective: every rank gives what it got. When all got XM_OK so is the result; otherwise it is,
 * on every rank, the failure of the lowest rank that has one, with that rank's sentence. The
 * sentence names the rank unless it is rank 0 or all ranks say the same.
 */
xm_status_t rb_share_status(xm_worker_t *worker, xm_status_t mine);
