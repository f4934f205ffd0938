/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file prepared.h
 * A case on the ranks of a job: its plan.
 */
#pragma once

#include "bench/cases/case.h"
#include "bench/cases/host_map.h"
#include "resharding/plan.h"

typedef struct rb_prepared {
    const rb_case_t *one;
    const xm_network_t *network;
    xm_plan_t *plan;
    double plan_s; /**< seconds that layouts and plan took */
    bool shared;   /**< see placement.h */
} rb_prepared_t;

/**
 * Places the case and makes its two layouts, which the caller destroys; none (NULL), but the same
 * checks, for a model. *shared as in placement.h.
 */
xm_status_t rb_lay_out(const rb_case_t *one, const rb_host_map_t *hosts, xm_layout_t **src,
                       xm_layout_t **dst, bool *shared);

/**
 * Fails when the case cannot be laid out on these ranks: a mesh that does not fit, a spec that does
 * not fit its mesh, a dimension that does not divide. Cheap: nothing is planned.
 */
xm_status_t rb_prepare_check(const rb_case_t *one, const rb_host_map_t *hosts);

/** Places the case, lays its tensors out and plans. @p one and @p network must outlive the result.
 */
xm_status_t rb_prepare(const rb_case_t *one, const rb_host_map_t *hosts,
                       const xm_network_t *network, rb_prepared_t *prepared);

void rb_prepared_clear(rb_prepared_t *prepared);
