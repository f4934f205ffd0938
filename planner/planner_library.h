/**
 * @file planner_library.h
 * The host's side of planner plug-ins: loads a library that exports `autopar_planner_v1`
 * (planner_plugin.h), asks it, and verifies what it answers.
 *
 * Threads: one at a time per library.
 *
 * @code
 *     status = ap_planner_library_open("./libmine.so", NULL, &library);
 *     status = ap_planner_library_plan(library, &params, &plan);   // params as for
 * ap_planner_run() ap_planner_library_close(library);
 * @endcode
 */
#ifndef AP_PLANNER_PLANNER_LIBRARY_H
#define AP_PLANNER_PLANNER_LIBRARY_H

#include "planner/planner.h"
#include "planner/planner_plugin.h"

typedef struct ap_planner_library ap_planner_library_t;

/**
 * Loads and initialises. @p path goes to dlopen(): a name without a slash is looked for as
 * libraries are. @p host may be NULL; it is copied. XM_ERR_NOT_FOUND: no such library;
 * XM_ERR_UNSUPPORTED: it exports no table, one of another version, or one with holes;
 * XM_ERR_INTERNAL: init failed.
 */
XM_API xm_status_t ap_planner_library_open(const char *path, const autopar_planner_host_v1_t *host,
                                           ap_planner_library_t **library);

/** The planner's name. */
XM_API const char *ap_planner_library_name(const ap_planner_library_t *library);

/**
 * Asks for a plan. The plan was verified (plan_verify.h). XM_ERR_NO_SOLUTION: the planner says that
 * there is none; XM_ERR_INTERNAL: it failed; XM_ERR_PARSE: its reply is no plan; XM_ERR_MISMATCH:
 * the plan does not answer the question. Sentences begin with the planner's name.
 */
XM_API xm_status_t ap_planner_library_plan(ap_planner_library_t *library,
                                           const ap_planner_params_t *params, ap_plan_t **plan);

/** Finalises and unloads. NULL is accepted. */
XM_API void ap_planner_library_close(ap_planner_library_t *library);

#endif
