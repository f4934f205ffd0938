/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file explain.h
 * Why a plan is what it is: for each main decision what was chosen, what came second and at which
 * cost, and the number that decided, with where it comes from.
 *
 * The decisions are, in this order: micro-batches; the order of hosts, where it is not the
 * profile's; the number of stages; the pipeline schedule; for each stage its logical mesh, whether
 * it recomputes, and the operators that cost most; for each boundary its resharding. The
 * alternatives are planned anew from the profile, so an explanation takes about as long as a plan.
 *
 * Threads: immutable.
 *
 * @code
 *     xm_status_t print_reasons(const ap_plan_t *plan, const ap_profile_t *profile)
 *     {
 *         ap_explanation_t *explanation;
 *         char *text;
 *         xm_status_t status = ap_explanation_create(plan, profile, 2, &explanation);
 *
 *         if (status != XM_OK) {
 *             return status;
 *         }
 *         status = ap_explanation_table(explanation, &text);
 *         if (status == XM_OK) {
 *             fputs(text, stdout);
 *             ap_free(text);
 *         }
 *         ap_explanation_destroy(explanation);
 *         return status;
 *     }
 * @endcode
 */
#ifndef AUTOPAR_EXPLAIN_H
#define AUTOPAR_EXPLAIN_H

#include <autopar/plan.h>
#include <autopar/profile.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ap_explanation ap_explanation_t;

/**
 * Explains @p plan with the costs of @p profile, which must have the plan's hosts and devices.
 * @p operators is the number of operators to explain in each stage.
 */
XM_API xm_status_t ap_explanation_create(const ap_plan_t *plan, const ap_profile_t *profile,
                                         int operators, ap_explanation_t **explanation);

/** JSON, which ap_free() ends; NULL when memory is short. */
XM_API char *ap_explanation_text(const ap_explanation_t *explanation);

/** Aligned text for people, which ap_free() ends. */
XM_API xm_status_t ap_explanation_table(const ap_explanation_t *explanation, char **text);

/** NULL is accepted. */
XM_API void ap_explanation_destroy(ap_explanation_t *explanation);

#ifdef __cplusplus
}
#endif

#endif
