/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/plugin/service.h
 * The inside of the process in which a planner plug-in runs (autopar/planner_library.h): loads the
 * library and answers over a socket. Not installed.
 */
#pragma once

#include <stdbool.h>

/** What the other end wants to be told. */
typedef struct ap_planner_service {
    const char *path; /**< of the library, as for dlopen() */
    int socket;
    bool progress, log;
} ap_planner_service_t;

/** Serves until it is told to end, or nobody is left to tell. Returns the exit status. */
int ap_planner_serve(const ap_planner_service_t *service);
