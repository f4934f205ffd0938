/**
 * @file launcher.h
 * Starts a command as N local ranks, for use without mpirun, srun or torchrun.
 *
 * The caller becomes the parent of N processes that run the same program again with RANK,
 * WORLD_SIZE, MASTER_ADDR, MASTER_PORT and (when emulated hosts are asked for) XM_HOST set; rank 0
 * inherits a socket that already listens at the port. The parent waits for all of them. When a rank
 * ends by a signal or with a non-zero status, the others get until the deadline to end by
 * themselves (they learn of it through the bootstrap's fault channel), then they are killed. No
 * process is left behind, also when the parent is interrupted or killed (PR_SET_PDEATHSIG).
 */
#ifndef XM_COMM_LAUNCHER_H
#define XM_COMM_LAUNCHER_H

#include <stddef.h>

#include "comm/status.h"

typedef struct xm_launch_params {
    size_t struct_size;
    int ranks;
    int ranks_per_host; /**< > 0: ranks r … are told XM_HOST=hostK, K = r / ranks_per_host; 0: one
                           host */
    double timeout;     /**< seconds the others get after a failure; 0 means XM_TIMEOUT */
    char *const *argv;  /**< arguments of the ranks, argv[0] first; the program is /proc/self/exe */
} xm_launch_params_t;

#define XM_LAUNCH_PARAMS_INIT                                                                      \
    {                                                                                              \
        .struct_size = sizeof(xm_launch_params_t)                                                  \
    }

/**
 * Runs the ranks to their end. XM_OK when all exited with 0. Otherwise the sentence names the first
 * rank that failed and how; *exit_code is that rank's exit status (128 + signal number for a
 * signal) and is what the parent should exit with.
 */
XM_API xm_status_t xm_launch(const xm_launch_params_t *params, int *exit_code);

/** In a launched rank: the inherited listening socket of rank 0 (closes on exec), else -1. */
XM_API int xm_launch_listen_fd(void);

#endif
