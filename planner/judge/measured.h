/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file measured.h
 * Plans with the steps that were measured of them, as a document (docs/truth.md): one row a run of
 * a plan, with seconds of a step and bytes of the fullest device; beside them, where there are any,
 * the predictions of another planner.
 *
 * @code
 *     status = ap_measured_load("sailor/measured.json", &measured);
 *     for (int i = 0; i < measured.count; ++i) {
 *         printf("%s: %g s\n", measured.rows[i].name, measured.rows[i].step);
 *     }
 *     ap_measured_clear(&measured);
 * @endcode
 */
#pragma once

#include <jansson.h>

#include "planner/plan.h"

/** Of what was not measured: 0. */
typedef struct ap_measured_row {
    const char *name;
    ap_plan_t *plan;
    double step;       /**< seconds */
    double sync;       /**< of these, of synchronising gradients */
    double memory;     /**< bytes of the fullest device */
    double other_step; /**< as another planner predicts it */
} ap_measured_row_t;

typedef struct ap_measured {
    json_t *document; /**< that the texts are of */
    const char *source, *other;
    bool blocking; /**< transfers keep devices busy in this runtime */
    ap_measured_row_t *rows;
    int count;
} ap_measured_t;

/** Reads a document and the plans that it names, relative to its folder. */
xm_status_t ap_measured_load(const char *path, ap_measured_t *measured);

/** NULL and all-zero are accepted. */
void ap_measured_clear(ap_measured_t *measured);
