/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file mpi_hosts.h
 * Which rank of MPI_COMM_WORLD is on which host.
 */
#pragma once

#include "bench/cases.h"
#include "bench/run.h"

/**
 * Collective. Ranks are on one host when MPI says that they can share memory and their hosts have
 * one name (XM_HOST, where it is set, else what the machine calls itself). Hosts are numbered by
 * their first ranks. @p ranks_per_host above 0 emulates hosts of so many ranks for the placement of
 * the case when all ranks are on one machine, and must agree with the real hosts otherwise. *ranks
 * (free() it) has the names.
 */
xm_status_t rb_peer_hosts(int ranks_per_host, rb_host_map_t *map, rb_rank_info_t **ranks);
