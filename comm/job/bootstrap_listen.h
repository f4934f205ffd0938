/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bootstrap_listen.h
 * Where rank 0 of the TCP bootstrap listens. Internal.
 */
#pragma once

#include "comm/job/bootstrap.h"
#include "comm/job/resolve.h"

/**
 * Listens at the master port, until @p deadline: at XM_BIND if that is set; at MASTER_ADDR if that
 * is an address in digits of this machine, or "localhost"; else at all addresses, because a name
 * may be a loopback address on its own machine and a real one for the others, and an address of
 * another may be one that is translated.
 */
xm_status_t xm_bootstrap_listen_master(const xm_job_env_t *env, double deadline, int *fd);

/**
 * Listens at a free port, for ranks that are told where: at XM_BIND if that is set, else at the
 * loopback interface if all ranks can reach it (@p local), else at all addresses.
 * @p addresses gets those under which the others should try, with the port.
 */
xm_status_t xm_bootstrap_listen_free(bool local, int *fd, xm_addresses_t *addresses);

/** The addresses of this host's interfaces that are up, IPv4 first; not the loopback's. */
xm_status_t xm_bootstrap_interfaces(bool ipv6, xm_addresses_t *addresses);
