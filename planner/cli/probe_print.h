/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file probe_print.h
 * What autopar probe prints: a profile, and what has changed between two.
 */
#pragma once

#include "cli_support.h"
#include "comm/profile.h"

/** The profile as a table with how well its numbers are known, or as its file holds it. */
xm_status_t ap_probe_give_profile(const xm_cluster_profile_t *profile, const xm_cli_json_t *json);

/** One line for each number; those that changed significantly by more than @p threshold have a '*'.
 */
void ap_probe_print_compare(const xm_profile_compare_t *compare, double threshold);
