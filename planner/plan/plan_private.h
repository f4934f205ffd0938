/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan_private.h
 * What plan.c and what writes and reads its document share. Not installed.
 */
#pragma once

#include <jansson.h>

#include "planner/plan/plan.h"

enum { AP_DIGEST_TEXT = 33, AP_PLAN_VERSION = 1 /* of the format */ };

#define AP_PLAN_FORMAT "crossmesh-plan"

/*
 * The document is the plan: every string that the structures point at is one of its strings, and
 * the structures are read from it, also when the plan was not read from a file.
 */
struct ap_plan {
    json_t *document;
    ap_plan_info_t info;
    ap_plan_stage_t *stages;
    int stage_count;
    ap_plan_boundary_t *boundaries;
    int boundary_count;
    xm_arena_t arena; /* every array */
    char digest[AP_DIGEST_TEXT];
};

/* Builds the document (without digest) from parameters; NULL when memory is short. */
json_t *ap_plan_to_json(const ap_plan_params_t *params);

/* Refuses numbers of seconds or bytes that are none; the sentence begins with the place. */
xm_status_t ap_plan_check_times(const char *place, const double *seconds, int count);

/* Checks boundary @p index of a plan whose stages are right. */
xm_status_t ap_plan_check_boundary(const ap_plan_t *plan, int index);

/* Fills the structures from plan->document. The sentence names the place. */
xm_status_t ap_plan_from_json(ap_plan_t *plan);
