/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file profile_compare.h
 * What has changed between two profiles of a cluster.
 *
 * A row is one number that both profiles have: a rate or the time of one size. A change is *worse*
 * when times rose or rates fell. It is significant when it is larger than what both numbers may be
 * wrong by (the sum of their spreads, curve.h); where a profile does not tell a spread, nobody
 * knows, and a change counts as significant.
 *
 * Threads: immutable after creation.
 */
#pragma once

#include "comm/profile/cluster_profile.h"

typedef struct xm_profile_compare xm_profile_compare_t;

typedef struct xm_profile_change {
    char name[96];    /**< e.g. "inter_host 1.00 MiB", "nic of host 3" */
    bool is_time;     /**< seconds; otherwise a rate per second */
    double before;    /**< in the old profile */
    double after;     /**< in the new one */
    double change;    /**< after / before − 1 */
    double spread;    /**< what both may be wrong by together; negative: unknown */
    bool significant; /**< |change| is larger than the spread, or that is unknown */
} xm_profile_change_t;

/** Compares what both have. Fails when the profiles are of clusters of different sizes. */
xm_status_t xm_profile_compare_create(const xm_cluster_profile_t *before,
                                      const xm_cluster_profile_t *after,
                                      xm_profile_compare_t **compare);

size_t xm_profile_compare_rows(const xm_profile_compare_t *compare);
const xm_profile_change_t *xm_profile_compare_row(const xm_profile_compare_t *compare, size_t row);

/** Number of significant changes of more than @p threshold (0.1 is 10 %) in either direction. */
size_t xm_profile_compare_beyond(const xm_profile_compare_t *compare, double threshold);

void xm_profile_compare_destroy(xm_profile_compare_t *compare);
