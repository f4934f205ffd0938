/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cluster_profile_private.h
 * What the files that make profiles of profiles share. Not installed.
 */
#pragma once

#include <stddef.h>

#include "comm/profile/cluster_profile.h"

/** Everything of a profile, borrowed. */
xm_cluster_profile_params_t xm_cluster_profile_params_of(const xm_cluster_profile_t *profile);

xm_status_t xm_cluster_profile_check_sizes(int hosts, int devices_per_host);

/** A number that may be unknown, then 0: where it stands in files, and in the parameters. */
typedef struct xm_profile_number {
    const char *section, *key;
    size_t offset;
} xm_profile_number_t;

/* XM_PROFILE_VERSION: of the files that are written; older ones are read too. */
enum { XM_PROFILE_NUMBERS = 8, XM_PROFILE_VERSION = 2 };

/** By sections; of one that has nothing else the first is known where any is. */
extern const xm_profile_number_t xm_profile_numbers[XM_PROFILE_NUMBERS];

double *xm_profile_number(xm_cluster_profile_params_t *params, const xm_profile_number_t *number);

/** The keys of a device's rates: of any number, of each type, of its memory. */
const char *xm_profile_rate_key(int rate);
