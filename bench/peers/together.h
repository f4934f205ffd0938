/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file together.h
 * Agreement of all ranks of MPI_COMM_WORLD on whether something went well, and a deadline for what
 * MPI waits for without one: when XM_TIMEOUT passes, the process says so and ends with status 1,
 * upon which mpirun ends the job. Timer and signal (SIGALRM) are the process's.
 */
#pragma once

#include "comm/base.h"

/**
 * Collective: every rank gives what it got. When all got XM_OK so is the result. Otherwise it is,
 * on every rank, the failure of the lowest rank that has one, with that rank's sentence.
 */
xm_status_t rb_peer_agree(xm_status_t mine);

/** Starts the time again, from XM_TIMEOUT down. */
void rb_peer_watchdog_start(void);

/** There is nothing to wait for. */
void rb_peer_watchdog_stop(void);
