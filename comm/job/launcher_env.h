/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file launcher_env.h
 * The environment that a launcher gives its ranks, and what they report. Internal.
 */
#pragma once

#include "comm/job/launcher.h"

enum { XM_LAUNCH_VARIABLES = 8, XM_LAUNCH_VARIABLE_SIZE = 64 };

/* One report of a rank, small enough that the pipe never splits it. */
typedef struct {
    int32_t rank, given_up;
} xm_launch_report_t;

/** Where the rank meets the others, and what it inherits. */
typedef struct xm_launch_place {
    int port;
    int listen_fd; /**< −1: none */
    int report_fd;
    const char *secret; /**< "": there is one */
} xm_launch_place_t;

/** The environment of a rank: ours, with the variables that place it, and the caller's for it. It
 * is made before the fork, because malloc() after it may wait for a lock that another thread held.
 */
typedef struct xm_launch_env {
    char texts[XM_LAUNCH_VARIABLES][XM_LAUNCH_VARIABLE_SIZE];
    const char *const *more;
    char **entries; /**< the caller frees the array */
} xm_launch_env_t;

xm_status_t xm_launch_env_make(const xm_launch_params_t *params, int rank,
                               const xm_launch_place_t *place, xm_launch_env_t *env);
