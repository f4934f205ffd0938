/**
 * @file select.h
 * The cases that a command line asks for.
 */
#ifndef RB_SELECT_H
#define RB_SELECT_H

#include "bench/case.h"
#include "bench/options.h"

typedef struct rb_selection {
    rb_case_t *cases;
    int count;
} rb_selection_t;

/**
 * Lists the cases: of --suite, narrowed by --case; the one that --src-mesh … describe; the
 * model of --model-config, loaded as those of the suites are; or the boundary of --plan. --scale,
 * --dtype, --strategy and --scheduler have been applied to them.
 */
xm_status_t rb_select(const rb_options_t *options, rb_selection_t *selection);

void rb_selection_clear(rb_selection_t *selection);

#endif
