/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cut_bound.h
 * How soon data can have left those that hold it, when each byte may leave from any of its holders.
 * Not installed.
 *
 * Nodes are hosts or racks. A time T is enough if and only if every set S of nodes can send, within
 * T, what only S holds; the smallest such T is the largest over all sets. It is found without
 * enumerating them: whether T is enough is a flow (bytes to holders to capacities), and when it is
 * not, the minimum cut is a set that needs more, from which to go on (Dinkelbach's method).
 */
#pragma once

#include <stdint.h>

#include "comm/base.h"

typedef struct xm_cut_bound xm_cut_bound_t;

/** Adds a number to an ascending list of them, unless it is there; returns how many there are. */
int xm_set_insert(int *set, int count, int value);

/** Nodes that send at rate[node] bytes/s; the array is copied. */
xm_status_t xm_cut_bound_create(int nodes, const double *rate, xm_cut_bound_t **cut_bound);
void xm_cut_bound_destroy(xm_cut_bound_t *cut_bound);

/**
 * Adds @p bytes that any of @p holders (ascending, each once, at least one) may send. Equal sets
 * are added up. All bytes together are below 2^63.
 */
xm_status_t xm_cut_bound_add(xm_cut_bound_t *cut_bound, const int *holders, int count,
                             int64_t bytes);

/** Smallest whole number of ns in which all can have left, in whole bytes. */
xm_status_t xm_cut_bound_time(const xm_cut_bound_t *cut_bound, int64_t *ns);

/**
 * Whole bytes that pass at @p rate in @p ns, at most @p limit. A bound made of it is never too
 * high: 2^-50 is added, more than what the roundings here and in the simulations' doubles take
 * away. That is exact unless the true amount is closer than this to the next whole byte.
 */
int64_t xm_cut_bound_capacity(double rate, int64_t ns, int64_t limit);

/** Smallest ns with xm_cut_bound_capacity(rate, ns) of at least @p bytes. */
int64_t xm_cut_bound_single(double rate, int64_t bytes);
