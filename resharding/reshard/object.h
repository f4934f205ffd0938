/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file object.h
 * What an update needs of the reshard that it is made of. Internal.
 */
#pragma once

#include <crossmesh/reshard.h>

#include "resharding/execute.h"

/** As xm_reshard_create(), with runs that bring only what has changed; NULL: everything. */
xm_status_t xm_reshard_create_changes(xm_worker_t *worker, const xm_reshard_params_t *params,
                                      const xm_executor_changes_t *changes, xm_reshard_t **reshard);

/** The executor of a reshard that has been made; NULL: its group is no more. */
xm_executor_t *xm_reshard_executor(const xm_reshard_t *reshard);
