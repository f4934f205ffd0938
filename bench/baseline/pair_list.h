/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pair_list.h
 * Which rank sends to which: "0:4,1:5", or "0-3:4-7" for every rank of the one range with every
 * rank of the other.
 */
#pragma once

#include "comm/base.h"

typedef struct rb_pair {
    int sender, receiver;
} rb_pair_t;

typedef struct rb_pair_list {
    rb_pair_t *pairs; /**< owned */
    int count;
} rb_pair_list_t;

/** Parses the list for a job of @p ranks ranks. A pair may stand in it several times; a rank cannot
 * send to itself. */
xm_status_t rb_pair_list_parse(const char *text, int ranks, rb_pair_list_t *list);

void rb_pair_list_clear(rb_pair_list_t *list);
