/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file watchdog.h
 * A deadline for what MPI waits for without one: when XM_TIMEOUT passes, the process says so and
 * ends with status 1, upon which mpirun ends the job. Timer and signal (SIGALRM) are the process's.
 */
#pragma once

/** Starts the time again, from XM_TIMEOUT down. */
void rb_peer_watchdog_start(void);

/** There is nothing to wait for. */
void rb_peer_watchdog_stop(void);
