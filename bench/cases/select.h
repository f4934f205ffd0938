/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file select.h
 * The cases that a command line asks for.
 */
#pragma once

#include "bench/cases/case.h"
#include "bench/cases/options.h"

/** Variants of a case, which differ in strategy and scheduler only, stand side by side. */
typedef struct rb_selection {
    rb_case_t *cases;
    int count; /**< of variants of all cases */
} rb_selection_t;

/**
 * Lists the cases: of --suite, narrowed by --case; the one that --src-mesh … describe; the
 * model of --model-config, loaded as those of the suites are; or the boundary of --plan. --scale,
 * --dtype have been applied to them. Each stands once for every combination of --strategy and
 * --scheduler; in the suite alpa-ablation, without --scheduler, once for each of its schedulers.
 */
xm_status_t rb_select(const rb_options_t *options, rb_selection_t *selection);

/** Number of cases; their variants do not count. */
int rb_selection_cases(const rb_selection_t *selection);

void rb_selection_clear(rb_selection_t *selection);
