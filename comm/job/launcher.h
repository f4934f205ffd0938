/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file launcher.h
 * Starts a command as N local ranks, for use without mpirun, srun or torchrun.
 *
 * The caller becomes the parent of N processes that run the same program again with RANK,
 * WORLD_SIZE, MASTER_ADDR, MASTER_PORT and (when emulated hosts are asked for) XM_HOST set; rank 0
 * inherits a socket that already listens at the port. The parent waits for all of them. When a rank
 * ends by a signal or with a non-zero status, the others get until the deadline to end by
 * themselves (they learn of it through the bootstrap's fault channel), then they are killed; at
 * once when the rank had not met the others yet, and a rank that all others report as gone is
 * killed without waiting for anything. No process is left behind, also when the parent is
 * interrupted or killed (PR_SET_PDEATHSIG).
 *
 * The ranks share a random XM_JOB_SECRET, unless the environment has a secret for them already, so
 * that no other process of the machine can join them.
 *
 * Ranks that are to run elsewhere than this process, such as in other namespaces, are moved there
 * by the caller's `enter`. The loopback interface of this process means nothing to them, so they
 * are given the address of rank 0, which then listens by itself.
 */
#pragma once

#include <stddef.h>

#include "comm/base.h"

typedef struct xm_launch_params {
    size_t struct_size;
    int ranks;
    int ranks_per_host; /**< > 0: ranks r … are told XM_HOST=hostK, K = r / ranks_per_host; 0: one
                           host */
    double timeout;     /**< seconds the others get after a failure; 0 means XM_TIMEOUT */
    char *const *argv;  /**< arguments of the ranks, argv[0] first; the program is /proc/self/exe */
    /** NULL, or called in a rank's process just before it runs the program. It may return in a
     * child of that process, if the latter passes signals on and ends as the child does. After a
     * failure the sentence is printed on standard error and the rank ends with status 127. */
    xm_status_t (*enter)(void *arg, int rank);
    /** NULL, or the variables that only this rank gets: texts NAME=VALUE with a NULL after the
     * last, which stay until the rank has been started. */
    const char *const *(*variables)(void *arg, int rank);
    void *arg;               /**< of the two */
    const char *master_addr; /**< where rank 0 is; NULL: the loopback interface */
    int master_port;         /**< with master_addr: a port that is free there */
} xm_launch_params_t;

#define XM_LAUNCH_PARAMS_INIT                                                                      \
    {                                                                                              \
        .struct_size = sizeof(xm_launch_params_t)                                                  \
    }

/**
 * Runs the ranks to their end. XM_OK when all exited with 0. A rank whose exit status somebody else
 * has collected, or that does not even end when it is killed, counts as failed (exit code 1).
 * Otherwise the sentence names the first
 * rank that failed and how; *exit_code is that rank's exit status (128 + signal number for a
 * signal) and is what the parent should exit with.
 */
xm_status_t xm_launch(const xm_launch_params_t *params, int *exit_code);

/** In a launched rank: tells the launcher that this rank has met the others, and, unless it is -1,
 * that it takes rank @p given_up for gone. Without effect in other processes. */
void xm_launch_report(int rank, int given_up);

/** In a launched rank: the inherited listening socket of rank 0 (closes on exec), else -1. */
int xm_launch_listen_fd(void);
