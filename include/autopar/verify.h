/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file verify.h
 * Whether a plan answers a question: it may come from another planner, or from an old file.
 *
 * What a plan says must be possible, and must not be too good: the plan is about this model, batch
 * and cluster and keeps to the limits; its stages have the hosts and devices that they name; every
 * operator has one of its shardings, and every passing tensor the shape it has; with these
 * shardings no stage is faster or smaller than predicted, by our costs on this profile, nor a
 * resharding or the whole step; every stage fits into its memory. Predictions above ours are
 * accepted: a planner may know better why it is slow.
 *
 * Threads: no shared state.
 *
 * @code
 *     bool answers(const ap_plan_t *plan, const ap_profile_t *profile)
 *     {
 *         ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
 *
 *         params.model = "gpt-1.3b";
 *         params.profile = profile;
 *         if (ap_plan_verify(&params, plan) != XM_OK) {
 *             fprintf(stderr, "%s\n", ap_last_error());
 *             return false;
 *         }
 *         return true;
 *     }
 * @endcode
 */
#ifndef AUTOPAR_VERIFY_H
#define AUTOPAR_VERIFY_H

#include <autopar/planner.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Verifies @p plan against what was asked. XM_ERR_MISMATCH with the first thing that is wrong, by
 * stage, layer and operator, with both numbers.
 */
XM_API xm_status_t ap_plan_verify(const ap_planner_params_t *params, const ap_plan_t *plan);

#ifdef __cplusplus
}
#endif

#endif
