/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file autopar/planner_command.h
 * Planners as commands: any program, in any language, can plan instead of ours.
 *
 * The command gets the question on its standard input, one JSON document that holds the whole model
 * and the whole cluster profile, and writes a parallel plan (docs/plan.md) to its standard output.
 * On standard error a line `progress 0.5 what` reports progress, every other line is a sentence for
 * the user. It exits with 0; with 2 where there is no plan, with anything else where it failed, and
 * then the last line on standard error is the reason. docs/planner-plugin.md has the question key
 * by key. `autopar plan --request -` is our own planner as such a command.
 *
 * The command runs by /bin/sh in a process group of its own, which is ended with all that it has
 * started when its time is up, when it has answered, or when the caller ends. Its plan is verified
 * (verify.h) before anyone sees it.
 *
 * Threads: no shared state.
 *
 * @code
 *     xm_status_t ask(const ap_planner_params_t *params, ap_plan_t **plan)
 *     {
 *         return ap_planner_command_plan("python3 mine.py --fast", params, NULL, NULL, plan);
 *     }
 * @endcode
 */
#ifndef AUTOPAR_PLANNER_COMMAND_H
#define AUTOPAR_PLANNER_COMMAND_H

#include <autopar/planner.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Asks a command for a plan. It may take `params->time_limit` seconds; 0: 600. Its progress goes to
 * `params->progress`, its other lines to @p log, which may be NULL, with @p log_arg.
 * XM_ERR_NO_SOLUTION: the command says that there is no plan; XM_ERR_INTERNAL: it failed or
 * crashed; XM_ERR_TIMEOUT: it took longer; XM_ERR_PARSE: what it wrote is no plan; XM_ERR_MISMATCH:
 * the plan does not answer the question. Sentences begin with "planner" and the command.
 */
XM_API xm_status_t ap_planner_command_plan(const char *command, const ap_planner_params_t *params,
                                           void (*log)(void *arg, const char *line), void *log_arg,
                                           ap_plan_t **plan);

#ifdef __cplusplus
}
#endif

#endif
