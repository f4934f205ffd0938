/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which MPI ranks share a host. MPI says who shares memory; XM_HOST splits a machine into
 * emulated hosts as it does for reshard-bench, so cases are placed alike in both.
 */
#include "bench/peers/mpi_hosts.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where a rank is: the lowest rank that it shares memory with, and the host's name. */
typedef struct {
    int leader;
    rb_rank_info_t info;
} place_t;

/* Collective. The lowest rank of those that share memory names the host. */
static void find_place(place_t *place)
{
    const char *emulated = getenv("XM_HOST");
    MPI_Comm sharing;
    int rank;

    *place = (place_t){.info.pid = getpid()};
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &sharing);
    place->leader = rank;
    MPI_Bcast(&place->leader, 1, MPI_INT, 0, sharing);
    MPI_Comm_free(&sharing);
    if (emulated != NULL && emulated[0] != '\0') {
        (void)snprintf(place->info.host, sizeof(place->info.host), "%s", emulated);
    } else if (gethostname(place->info.host, sizeof(place->info.host)) != 0) {
        (void)snprintf(place->info.host, sizeof(place->info.host), "host of rank %d",
                       place->leader);
    }
    place->info.host[sizeof(place->info.host) - 1] = '\0';
}

static bool together(const place_t *a, const place_t *b)
{
    return a->leader == b->leader && strcmp(a->info.host, b->info.host) == 0;
}

/* Hosts are numbered in the order of their lowest ranks. */
static void number_hosts(const place_t *places, rb_host_map_t *map)
{
    map->hosts = 0;
    for (int r = 0; r < map->ranks; ++r) {
        int other = 0;

        while (!together(&places[other], &places[r])) {
            ++other;
        }
        map->host_of[r] = other < r ? map->host_of[other] : map->hosts++;
    }
}

static xm_status_t check_hosts(const rb_host_map_t *map, int ranks_per_host)
{
    for (int r = 0; r < map->ranks; ++r) {
        if (map->host_of[r] != r / ranks_per_host) {
            return XM_INVALID("--ranks-per-host %d puts rank %d on host %d, but it is on host %d",
                              ranks_per_host, r, r / ranks_per_host, map->host_of[r]);
        }
    }
    return XM_OK;
}

/* On a single machine --ranks-per-host places cases as if there were several; where there
 * are real hosts it has to agree with them. */
xm_status_t rb_peer_hosts(int ranks_per_host, rb_host_map_t *map, rb_rank_info_t **ranks)
{
    rb_host_map_t made = {0};
    rb_rank_info_t *infos;
    place_t own, *places;
    int size;
    xm_status_t status;

    MPI_Comm_size(MPI_COMM_WORLD, &size);
    find_place(&own);
    places = malloc((size_t)size * sizeof(*places));
    infos = malloc((size_t)size * sizeof(*infos));
    if (places == NULL || infos == NULL) {
        free(infos);
        free(places);
        return XM_NO_MEMORY("the hosts of %d ranks", size);
    }
    MPI_Allgather(&own, (int)sizeof(own), MPI_BYTE, places, (int)sizeof(own), MPI_BYTE,
                  MPI_COMM_WORLD);
    status = rb_host_map_emulate(size, ranks_per_host, &made);
    if (status == XM_OK) {
        int emulated = made.hosts;

        number_hosts(places, &made);
        if (ranks_per_host > 0 && made.hosts == 1 && emulated > 1) {
            for (int r = 0; r < size; ++r) {
                made.host_of[r] = r / ranks_per_host;
            }
            made.hosts = emulated;
        } else if (ranks_per_host > 0) {
            status = check_hosts(&made, ranks_per_host);
        }
    }
    for (int r = 0; r < size; ++r) {
        infos[r] = places[r].info;
    }
    free(places);
    if (status < 0) {
        rb_host_map_clear(&made);
        free(infos);
        return status;
    }
    *map = made;
    *ranks = infos;
    return XM_OK;
}
