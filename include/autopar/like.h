/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file like.h
 * Plans a model as a published planner would, and judges every planner's plan alike.
 *
 * A published planner is ours on a part of the space, with another search, schedule or view of the
 * costs (`autopar compare` lists them). All plan on the same graph and the same measured costs; the
 * judge then takes the plan as it is: the measured costs of every operator, collective and
 * resharding, the schedule simulated event by event, and the memory of every device.
 *
 * Deterministic, but for `search_seconds`. Threads: no shared state.
 *
 * @code
 *     void print_all(const ap_planner_params_t *params)
 *     {
 *         for (size_t i = 0; ap_like_name(i) != NULL; i++) {
 *             ap_like_info_t info = AP_LIKE_INFO_INIT;
 *             ap_plan_t *plan;
 *
 *             if (ap_like_plan(ap_like_name(i), params, &plan, &info) == XM_OK) {
 *                 printf("%s: %g s\n", ap_like_name(i), info.step);
 *                 ap_plan_destroy(plan);
 *             }
 *         }
 *     }
 * @endcode
 */
#ifndef AUTOPAR_LIKE_H
#define AUTOPAR_LIKE_H

#include <autopar/planner.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What the judge says. Filled in as far as the caller's `struct_size` reaches. */
typedef struct ap_like_info {
    size_t struct_size;
    double step;           /**< predicted seconds of a training step */
    double memory;         /**< bytes of the fullest device */
    double over_bytes;     /**< of these beyond the limit; 0: it fits */
    double search_seconds; /**< wall-clock time of the search, judging included */
    int64_t judged;        /**< plans that the judge has seen */
} ap_like_info_t;

#define AP_LIKE_INFO_INIT                                                                          \
    {                                                                                              \
        sizeof(ap_like_info_t), 0, 0, 0, 0, 0                                                      \
    }

/** Name @p index of the planners, "default" (ours) last; NULL past the end. */
XM_API const char *ap_like_name(size_t index);

/**
 * Plans like planner @p name. Of @p params `space`, `free_boundaries` and `schedule` are
 * that planner's; numbers of stages and recomputation are those that both allow. A planner that
 * does not look at memory may give a plan that does not fit. @p info may be NULL. XM_ERR_NOT_FOUND
 * gives the nearest name; XM_ERR_NO_SOLUTION: it finds no plan at all, the sentence says why.
 */
XM_API xm_status_t ap_like_plan(const char *name, const ap_planner_params_t *params,
                                ap_plan_t **plan, ap_like_info_t *info);

/**
 * Where a plan differs from another, in a few words: "2 stages, not 4; 16 micro-batches, not 64",
 * or the first operator that is cut otherwise. Returns @p buffer; "" when nothing differs.
 */
XM_API char *ap_like_difference(const ap_plan_t *plan, const ap_plan_t *other, char *buffer,
                                size_t size);

#ifdef __cplusplus
}
#endif

#endif
