/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file prepared_list.h
 * All selected cases, planned before the first one runs, so that whatever cannot be planned is said
 * before anything moves. A plan is made once and handed on. Plans of models are large and their
 * layouts known to be right once they are loaded: they are made when their turn comes.
 */
#pragma once

#include "bench/cases/prepared.h"
#include "bench/cases/select.h"

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
