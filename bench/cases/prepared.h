/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file prepared.h
 * A case on the ranks of a job: its plan; and all selected cases, planned before the first one
 * runs, so that whatever cannot be planned is said before anything moves. A plan is made once and
 * handed on. Plans of models are large and their layouts known to be right once they are loaded:
 * they are made when their turn comes.
 */
#pragma once

#include "bench/cases/case.h"
#include "bench/cases/host_map.h"
#include "bench/cases/select.h"
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

typedef struct rb_prepared_list {
    const rb_selection_t *selection;
    const rb_host_map_t *hosts;
    const xm_network_t *network;
    rb_prepared_t *prepared; /**< by case; without a plan: not made yet, or taken */
} rb_prepared_list_t;

/** The selection, hosts and network must outlive the list. */
xm_status_t rb_prepared_list_create(const rb_selection_t *selection, const rb_host_map_t *hosts,
                                    const xm_network_t *network, rb_prepared_list_t *list);

/** Hands out case @p index, which the caller clears. Once per case. */
xm_status_t rb_prepared_list_take(rb_prepared_list_t *list, int index, rb_prepared_t *prepared);

void rb_prepared_list_clear(rb_prepared_list_t *list);
