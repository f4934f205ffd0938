/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file report_json.h
 * What the JSON reports of reshard-bench, pipeline-bench and the peers have in common.
 */
#pragma once

#include <jansson.h>

#include "bench/run/result.h"
#include "cli_support.h"
#include "comm/base.h"

/** A text that may be no UTF-8, which then loses what is not ASCII. */
json_t *rb_json_text(const char *text);

/** The arguments of a command line as they were given, not as they were understood. */
json_t *rb_json_arguments(int argc, char *const *argv);

json_t *rb_json_numbers(const double *numbers, int count);

json_t *rb_json_shape(const rb_case_t *one);

/** NULL unless it is above 0: json_pack() leaves a field out whose value ("o*") is NULL. */
json_t *rb_json_positive(double number);

/** Smallest, median and largest time, mean and variance, and all times. */
json_t *rb_json_times(const rb_result_t *result);
