/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file explain.h
 * The decisions of an explanation one by one; the public header has what they are about.
 */
#pragma once

#include "planner/cost.h"

#include <autopar/explain.h>

#include <stdio.h>

#include "comm/profile.h"
#include "planner/plan.h"

enum { AP_SUBJECT_TEXT = 96, AP_CHOICE_TEXT = 224, AP_REASON_TEXT = 1280 };

typedef struct ap_decision {
    char subject[AP_SUBJECT_TEXT];   /**< e.g. "stage 0: logical mesh" */
    char chosen[AP_CHOICE_TEXT];     /**< e.g. "1x4" */
    char runner_up[AP_CHOICE_TEXT];  /**< "" when there is none */
    char decided_by[AP_REASON_TEXT]; /**< the numbers that decided */
    char unit[32];                   /**< what the seconds are of: "step" or "micro-batch" */
    double chosen_seconds;
    double runner_up_seconds; /**< INFINITY when there is none */
} ap_decision_t;

/** Writes it as aligned text. */
void ap_explanation_print(const ap_explanation_t *explanation, FILE *stream);
