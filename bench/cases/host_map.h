/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file host_map.h
 * Which rank is on which host: from a launched job, or of an emulated cluster with equally many
 * ranks on every host (the last may have fewer).
 */
#pragma once

#include "comm/base.h"
#include "comm/worker.h"

typedef struct rb_host_map {
    int ranks;
    int hosts;
    int *host_of; /**< by rank */
} rb_host_map_t;

/** @p ranks ranks, @p ranks_per_host on a host (0: all on one). */
xm_status_t rb_host_map_emulate(int ranks, int ranks_per_host, rb_host_map_t *map);

/** The hosts of a running job. */
xm_status_t rb_host_map_of_worker(const xm_worker_t *worker, rb_host_map_t *map);

/** Number of ranks on @p host. */
int rb_host_map_members(const rb_host_map_t *map, int host);

/** The rank that is number @p index (from 0) on @p host, or -1. */
int rb_host_map_member(const rb_host_map_t *map, int host, int index);

void rb_host_map_clear(rb_host_map_t *map);
