/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/transport/ucx/gate.h
 * Keeps strangers from the ports at which UCX takes TCP connections. Internal.
 *
 * UCX 1.13 listens with every TCP device that it opens, also when connections are made by its
 * sockaddr interface, believes whoever sends its magic number, and aborts the process over a header
 * that it does not expect. Nor does it send anything of ours before that, so nothing could be
 * proved on the connection itself. So the kernel is told, by a filter on UCX's listening socket,
 * to drop every request for a connection (SYN) but those from an address and port that a rank of
 * the job has announced: no byte of a stranger reaches UCX, and no descriptor is spent on it.
 *
 * A rank learns the port from which UCX calls a peer when UCX has begun to connect; that first SYN
 * is dropped. It announces the port at a socket of the peer's gate, with a proof over a nonce of
 * the peer and with the key that came with its addresses, and has the socket connect once more
 * from the same port. Connections that UCX makes unseen are found by looking at this process'
 * sockets from time to time; progress has them connect once more, or the kernel after a second.
 *
 * Threads: shut, learn and knock are the transport's; a thread of the gate answers announcements.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

typedef struct xm_ucx_gate xm_ucx_gate_t;

/** Remembers which sockets of the process listen now: they are not UCX's. */
xm_status_t xm_ucx_gate_create(xm_ucx_gate_t **gate);

/** Shuts the ports of a worker that has been made since, whose address has them. Where the kernel
 * has no such filters they stay open. */
xm_status_t xm_ucx_gate_shut(xm_ucx_gate_t *gate, const void *address, size_t length);

/** What the peers need to be let in; the length is 0 when nothing is shut. */
enum { XM_UCX_GATE_DOORS = 8, XM_UCX_GATE_CARD = 17 + 20 * XM_UCX_GATE_DOORS };
size_t xm_ucx_gate_card(const xm_ucx_gate_t *gate, uint8_t card[XM_UCX_GATE_CARD]);

/** Takes over the card of a peer. */
xm_status_t xm_ucx_gate_learn(xm_ucx_gate_t *gate, const uint8_t *card, size_t length);

/** Begins to let the others in, when all cards are there. */
xm_status_t xm_ucx_gate_start(xm_ucx_gate_t *gate);

/** UCX has just begun to connect: has it let in. Waits for the peer's gate: a fifth of a second for
 * its host, and a second or two for its thread. */
void xm_ucx_gate_knock(xm_ucx_gate_t *gate);

/** Whether a connection has been found that wants a knock. */
bool xm_ucx_gate_has_unseen(const xm_ucx_gate_t *gate);

/** Before the workers are destroyed. NULL is allowed. */
void xm_ucx_gate_destroy(xm_ucx_gate_t *gate);
