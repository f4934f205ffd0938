/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file collective_nccl.h
 * NCCL as a library of collectives: opened at run time, on device memory, never blocking. Internal
 * to the probe.
 *
 * Every rank takes a device of its own: its number among the ranks of its machine, where the
 * machine has that many, else among those of its host (XM_HOST), else the only one that it sees
 * (launchers that hide the others). Communicators are made without blocking, and every wait ends
 * after half the job's time limit and looks after the other ranks; a communicator that fails or is
 * late is aborted at once, so that nothing hangs. NCCL_COMM_BLOCKING=1 in the environment would
 * take that away and is refused.
 */
#pragma once

#include "comm/probe/collective_library.h"

/** XM_ERR_UNSUPPORTED where a rank has no NCCL, no CUDA or no device of its own. The job must
 * outlive the library. Collective, same result on all ranks. */
xm_status_t xm_collective_nccl_open(const xm_collective_job_t *job,
                                    xm_collective_library_t **library);
