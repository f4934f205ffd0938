/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cluster.h
 * The emulated cluster of ranks that this machine starts or simulates: how many ranks, on which
 * hosts, and whether the selected cases fit.
 */
#pragma once

#include "bench/cases.h"

/**
 * Ranks on a host, 0 for all of them: --ranks-per-host, else what the cases are made for.
 */
int rb_cluster_ranks_per_host(const rb_options_t *options, const rb_selection_t *selection);

/** Ranks that the selected cases need on such hosts. */
int rb_cluster_needs(const rb_options_t *options, const rb_selection_t *selection);

/**
 * Makes the hosts' map of -n ranks, or of as many as the cases need when -n is not given.
 */
xm_status_t rb_cluster_create(const rb_options_t *options, const rb_selection_t *selection,
                              rb_host_map_t *hosts);

/** rb_prepare_check() of all selected cases. */
xm_status_t rb_cluster_check(const rb_selection_t *selection, const rb_host_map_t *hosts);
