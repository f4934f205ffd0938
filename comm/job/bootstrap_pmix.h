/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bootstrap_pmix.h
 * Meeting through PMIx, the interface that mpirun (Open MPI) and srun (--mpi=pmix) offer to the
 * processes they start. Internal.
 *
 * The library (libpmix.so.2) is opened at run time, so one build runs with and without it; its
 * headers are needed only to build. PMIx is used for two allgathers, which tell where rank 0
 * listens and a random secret; then the TCP relay takes over. The connection to the launcher stays
 * until the process exits, shared with an MPI that the process may use before or after.
 */
#pragma once

#include "comm/job/bootstrap.h"

/** A relay whose ranks meet through PMIx. @p env is compared with what PMIx says.
 * XM_ERR_UNSUPPORTED when this build or machine has no PMIx. */
xm_status_t xm_bootstrap_create_pmix(const xm_job_env_t *env, double timeout,
                                     xm_bootstrap_t **bootstrap);
