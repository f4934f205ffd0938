/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file explain_private.h
 * What the files that make explanations share. Not installed.
 */
#pragma once

#include "planner/explain/explain.h"
#include "planner/search.h"

struct ap_explanation {
    ap_decision_t *decisions;
    char *costs;
    int count;
    size_t capacity;
};

/* The plan under explanation with its hosts in their order (planner/plan/order.h), as it was given,
 * and the stage table of its case. */
typedef struct ap_explain_context {
    const ap_plan_t *plan;
    const xm_cluster_profile_t *profile;
    const ap_plan_t *asked_plan;
    const xm_cluster_profile_t *asked_profile;
    ap_planner_setup_t setup;
    ap_planner_case_t one;
    int operators;
} ap_explain_context_t;

/* Adds a decision without runner-up, about a subject, in seconds of a unit; NULL when memory is
 * short (the sentence is set). */
ap_decision_t *ap_explanation_add(ap_explanation_t *explanation, const char *unit,
                                  const char *subject, ...) __attribute__((format(printf, 3, 4)));

/* The question that a stage of a plan answers: its specs at the ends are given, because its
 * neighbours depend on them. */
xm_status_t ap_plan_stage_query(const ap_plan_t *plan, int index, ap_stage_query_t *query);

/* Logical mesh and dearest operators of one stage. */
xm_status_t ap_explain_stage(ap_explain_context_t *context, int index,
                             ap_explanation_t *explanation);

/* The pipeline schedule. */
xm_status_t ap_explain_schedule(const ap_explain_context_t *context, ap_explanation_t *explanation);
