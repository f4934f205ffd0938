/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/cli/plan/input.h
 * autopar plan --like: problems of other planners, from their own input files.
 */
#pragma once

#include "cli_support.h"

typedef struct ap_plan_input {
    const char *planner; /**< a row that reads graphs of its own */
    const char *input;
    const char *output; /**< file for the answer as JSON, or NULL */
    int devices;        /**< 0: the input's */
    int micro_batches;  /**< piper; 0: the input's */
    double memory;      /**< bytes of a device; 0: the input's */
    double bandwidth;   /**< piper, bytes per second; 0: the input's */
    int seed;           /**< of the search of a placement */
    int64_t budget;     /**< of that search, in moves of a group */
    const xm_cli_json_t *json;
} ap_plan_input_t;

/** Reads the input, solves it, prints the answer. */
xm_status_t ap_plan_input_run(const ap_plan_input_t *like);
