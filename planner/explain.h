/**
 * @file explain.h
 * Why a plan is what it is: for each main decision what was chosen, what came second and at which
 * cost, and the number that decided, with where it comes from.
 *
 * The decisions are, in this order: micro-batches; the order of hosts, where it is not the
 * profile's; the number of stages; the pipeline schedule; for
 * each stage its logical mesh, whether it recomputes, and the operators that cost most; for each
 * boundary its resharding. The alternatives are planned anew from the profile, so an explanation
 * takes about as long as a plan. A plan that was made under limits (a number of stages, of
 * micro-batches) may have an alternative that is faster; the explanation shows it.
 *
 * Threads: no shared state; explanations are immutable.
 */
#ifndef AP_PLANNER_EXPLAIN_H
#define AP_PLANNER_EXPLAIN_H

#include <stdio.h>

#include "comm/cluster_profile.h"
#include "planner/plan.h"

typedef struct ap_explanation ap_explanation_t;

enum { AP_SUBJECT_TEXT = 96, AP_CHOICE_TEXT = 224, AP_REASON_TEXT = 640 };

typedef struct ap_decision {
    char subject[AP_SUBJECT_TEXT];   /**< e.g. "stage 0: logical mesh" */
    char chosen[AP_CHOICE_TEXT];     /**< e.g. "1x4" */
    char runner_up[AP_CHOICE_TEXT];  /**< "" when there is none */
    char decided_by[AP_REASON_TEXT]; /**< the numbers that decided */
    char unit[32];                   /**< what the seconds are of: "step" or "micro-batch" */
    double chosen_seconds;
    double runner_up_seconds; /**< INFINITY when there is none */
} ap_decision_t;

/**
 * Explains @p plan with the costs of @p profile, which must have the plan's hosts and devices.
 * @p operators is the number of operators to explain in each stage.
 */
XM_API xm_status_t ap_explanation_create(const ap_plan_t *plan, const xm_cluster_profile_t *profile,
                                         int operators, ap_explanation_t **explanation);

/** How the costs behind all decisions came about: the profile's provenance. */
XM_API const char *ap_explanation_costs(const ap_explanation_t *explanation);

XM_API int ap_explanation_decisions(const ap_explanation_t *explanation);
XM_API const ap_decision_t *ap_explanation_decision(const ap_explanation_t *explanation, int index);

/** Writes it as aligned text. */
XM_API void ap_explanation_print(const ap_explanation_t *explanation, FILE *stream);

/** JSON text that the caller frees with free(); NULL when memory is short. */
XM_API char *ap_explanation_text(const ap_explanation_t *explanation);

/** NULL is accepted. */
XM_API void ap_explanation_destroy(ap_explanation_t *explanation);

#endif
