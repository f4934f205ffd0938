/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file placement.h
 * Which ranks form the meshes of a case.
 *
 * Explicit ranks are taken as they are. Otherwise a described case has its source on ranks 0, 1, …
 * and its destination on those that follow. A suite's case lies on hosts: the source on the first
 * hosts, the destination on the next ones, on the first ranks of each; a case of the small tests
 * has both on one host when they fit. When the job has too few hosts for a suite's case, the
 * destination takes the last ranks of the last hosts, so that the meshes share hosts and, where it
 * cannot be helped, ranks.
 */
#pragma once

#include "bench/cases/case.h"
#include "bench/cases/host_map.h"
#include "resharding/layout.h"

/** Ranks a job needs to hold the case, on hosts of @p ranks_per_host ranks (0: one host). */
int rb_place_needs(const rb_case_t *one, int ranks_per_host);

/**
 * Makes the meshes. *shared tells that a suite's case had to share hosts. Fails with the number of
 * ranks that are needed.
 */
xm_status_t rb_place(const rb_case_t *one, const rb_host_map_t *hosts, xm_mesh_t **src,
                     xm_mesh_t **dst, bool *shared);
