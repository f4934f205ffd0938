/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/transport/ucx/gate.h
 * Keeps strangers from the ports at which UCX takes TCP connections. Internal.
 *
 * UCX 1.13 listens with every TCP device that it opens, also when connections are made by its
 * sockaddr interface, believes whoever sends its magic number, and ends the process over a header
 * that it does not expect. Nor does it send anything of ours before that, so nothing can be proved
 * on the connection itself. So the kernel is told, by a filter on UCX's listening socket, to drop
 * every request for a connection (SYN) that does not come from an address of a host of the job: no
 * byte of others reaches UCX, and no descriptor is spent on them. Ranks of one host talk through
 * shared memory, so a rank's own host is not let in either, unless several hosts of the job are
 * emulated on it. What stays possible: a process on one of the job's other hosts.
 *
 * Announcing each connection with a proof before it is let in would close that as well, but UCX
 * connects unseen and ends the process over connections that come late (ucp_request.c, "got REP
 * message"), so it would cost the safety that it is for.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/job.h"

typedef struct xm_ucx_gate xm_ucx_gate_t;

/** Remembers which sockets of the process listen now: they are not UCX's. @p allowed: whose
 *  connections are wanted; @p count 0: everybody's. */
xm_status_t xm_ucx_gate_create(const uint8_t (*allowed)[XM_ADDRESS_BYTES], int count,
                               xm_ucx_gate_t **gate);

/** Shuts the ports of a worker that has been made since, whose address has them. Where the kernel
 * does not take the filter they stay open, which the log says at level info. */
void xm_ucx_gate_shut(xm_ucx_gate_t *gate, const void *address, size_t length);

/** NULL is allowed. The filters stay as long as the sockets. */
void xm_ucx_gate_destroy(xm_ucx_gate_t *gate);
