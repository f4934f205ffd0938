/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file agree.h
 * What a rank intends to do, in a form that ranks can compare: a list of strings, its hash, and the
 * sentence about the first difference. Internal.
 */
#pragma once

#include "resharding/execute.h"

enum { XM_AGREE_HASH_SIZE = 16 };

/** Describes the plan; the strings are freed with free(). */
xm_status_t xm_agree_describe(const xm_plan_t *plan, const char *dtype, char **strings,
                              size_t *length);

void xm_agree_hash(const char *strings, size_t length, unsigned char hash[XM_AGREE_HASH_SIZE]);

/** XM_ERR_MISMATCH, with the first difference between rank 0's description and rank @p rank's; both
 * may be any bytes. */
xm_status_t xm_agree_difference(int rank, const char *first, size_t first_length, const char *other,
                                size_t other_length);
/** Collective: rank 0 and rank @p odd, the first whose hash differs, tell everybody their strings.
 *  XM_ERR_MISMATCH names the first difference. */
xm_status_t xm_agree_explain(xm_worker_t *worker, int odd, const char *strings, size_t length);
