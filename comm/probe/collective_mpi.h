/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file collective_mpi.h
 * MPI as a library of collectives. MPI's binary interface differs between libraries, so this is
 * compiled with the one that it measures: into the module libcrossmesh-mpi.so, which `autopar probe
 * --collectives mpi` opens at run time, and into autopar-probe-mpi. Internal to the probe.
 *
 * MPI has no deadlines: a call that takes longer than the job's time limit ends the process with a
 * sentence, and the launcher ends the others.
 */
#pragma once

#include "comm/probe/collective_library.h"

/** The module's only symbol. */
#define XM_COLLECTIVE_MPI_SYMBOL "xm_collective_mpi_open"

/**
 * Initialises MPI unless that has been done, and then finalises it at the end. The ranks of the job
 * must be those of MPI_COMM_WORLD, in any order; XM_ERR_UNSUPPORTED where they are not, or where no
 * launcher of MPI has started this process. The job and @p host must outlive the library.
 * Collective, same result on all ranks.
 */
XM_API xm_status_t xm_collective_mpi_open(const xm_collective_host_t *host,
                                          const xm_collective_job_t *job,
                                          xm_collective_library_t **library);

/** From now on MPI has so many seconds; 0: as many as it likes. */
void xm_collective_mpi_deadline(double seconds);
