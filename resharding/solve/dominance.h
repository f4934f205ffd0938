/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dominance.h
 * What a search has been through: states, each a set of at most 64 things left to do and a vector
 * of times, where smaller is better. Of bounded size: old states make room for new ones. Not
 * installed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "comm/base.h"

typedef struct xm_dominance xm_dominance_t;

/* For sets of `things` things and vectors of `length` times. */
xm_status_t xm_dominance_create(int things, int length, xm_dominance_t **dominance);
void xm_dominance_destroy(xm_dominance_t *dominance);

/* True when a state with the same things left and no later time was seen; else remembers this one.
 */
bool xm_dominance_seen(xm_dominance_t *dominance, uint64_t left, const int64_t *times);
