/**
 * @file autopar/planner_library.h
 * The host's side of planner plug-ins: loads a library that exports `autopar_planner_v1`
 * (autopar/planner_plugin.h), asks it, and verifies what it answers.
 *
 * The library is loaded by a child process, a fork, and all its functions run there. One that
 * hangs is killed when its time is up, together with what it has started; one that crashes takes
 * nothing with it. Either is a sentence. Every wait has a deadline.
 *
 * Threads: one at a time per library. Open it from a thread that lives as long (the child ends with
 * that thread), while no other thread holds locks that the library may need.
 *
 * @code
 *     xm_status_t ask(const ap_planner_params_t *params, ap_plan_t **plan)
 *     {
 *         ap_planner_library_t *library;
 *         xm_status_t status = ap_planner_library_open("./libmine.so", NULL, 0, &library);
 *
 *         if (status == XM_OK) {
 *             status = ap_planner_library_plan(library, params, plan);
 *             ap_planner_library_close(library);
 *         }
 *         return status;
 *     }
 * @endcode
 */
#ifndef AUTOPAR_PLANNER_LIBRARY_H
#define AUTOPAR_PLANNER_LIBRARY_H

#include <autopar/planner.h>
#include <autopar/planner_plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ap_planner_library ap_planner_library_t;

enum { AP_PLANNER_NAME_MOST = 64 /**< characters of a planner's name */ };

/**
 * Loads and initialises. @p path goes to dlopen(): a name without a slash is looked for as
 * libraries are. @p host may be NULL; it is copied, and called back in this process. Starting, and
 * later finalising, may take @p timeout seconds; 0: 30. XM_ERR_NOT_FOUND: no such library;
 * XM_ERR_UNSUPPORTED: it exports no table, one of another version, or one with holes;
 * XM_ERR_INTERNAL: init failed, or crashed; XM_ERR_TIMEOUT: it did not return.
 */
XM_API xm_status_t ap_planner_library_open(const char *path, const autopar_planner_host_v1_t *host,
                                           double timeout, ap_planner_library_t **library);

/** The planner's name. */
XM_API const char *ap_planner_library_name(const ap_planner_library_t *library);

/**
 * Asks for a plan. The plan was verified (verify.h). The planner may take
 * `params->time_limit` seconds; 0: 600. XM_ERR_NO_SOLUTION: the planner says that there is none;
 * XM_ERR_INTERNAL: it failed or crashed; XM_ERR_TIMEOUT: it took longer; XM_ERR_PARSE: its reply is
 * no plan; XM_ERR_MISMATCH: the plan does not answer the question. Sentences begin with the
 * planner's name. After a crash or a timeout the planner is no longer running.
 */
XM_API xm_status_t ap_planner_library_plan(ap_planner_library_t *library,
                                           const ap_planner_params_t *params, ap_plan_t **plan);

/** Finalises and unloads; what goes wrong is told to the host's `log`. NULL is accepted. */
XM_API void ap_planner_library_close(ap_planner_library_t *library);

#ifdef __cplusplus
}
#endif

#endif
