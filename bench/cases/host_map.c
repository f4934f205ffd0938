/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which host each rank is on: emulated by counting, or as the worker has found out. The
 * map is what placement and networks are made of, so both kinds of jobs share all code
 * behind it.
 */
#include "bench/cases/host_map.h"

#include <stdlib.h>

static xm_status_t allocate(int ranks, rb_host_map_t *map)
{
    map->host_of = malloc((size_t)ranks * sizeof(int));
    XM_NEED_MEMORY(map->host_of, "the hosts of %d ranks", ranks);
    map->ranks = ranks;
    return XM_OK;
}

/* With 0 ranks a host all are on one host. */
xm_status_t rb_host_map_emulate(int ranks, int ranks_per_host, rb_host_map_t *map)
{
    XM_TRY(allocate(ranks, map));
    for (int r = 0; r < ranks; ++r) {
        map->host_of[r] = ranks_per_host > 0 ? r / ranks_per_host : 0;
    }
    map->hosts = map->host_of[ranks - 1] + 1;
    return XM_OK;
}

xm_status_t rb_host_map_of_worker(const xm_worker_t *worker, rb_host_map_t *map)
{
    XM_TRY(allocate(xm_worker_size(worker), map));
    for (int r = 0; r < map->ranks; ++r) {
        map->host_of[r] = xm_worker_host_of(worker, r);
    }
    map->hosts = xm_worker_host_count(worker);
    return XM_OK;
}

int rb_host_map_members(const rb_host_map_t *map, int host)
{
    int count = 0;

    for (int r = 0; r < map->ranks; ++r) {
        count += map->host_of[r] == host;
    }
    return count;
}

/* The rank with this number among those of a host, −1 when there is none. */
int rb_host_map_member(const rb_host_map_t *map, int host, int index)
{
    for (int r = 0; r < map->ranks; ++r) {
        if (map->host_of[r] == host && index-- == 0) {
            return r;
        }
    }
    return -1;
}

void rb_host_map_clear(rb_host_map_t *map)
{
    free(map->host_of);
    *map = (rb_host_map_t){0};
}
