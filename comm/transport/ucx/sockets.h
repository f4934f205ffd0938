/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/transport/ucx/sockets.h
 * The sockets of this process, as the kernel knows them: UCX tells nothing of those that it has
 * opened. Internal.
 */
#pragma once

#include "comm/job.h"

/** One end of a connection. */
typedef struct xm_ucx_end {
    uint8_t address[XM_ADDRESS_BYTES];
    uint16_t port;
} xm_ucx_end_t;

/** Calls a function for every descriptor of this process, until it says that this is enough. */
void xm_ucx_sockets_each(bool (*look)(void *arg, int fd), void *arg);

/** Whether a TCP socket waits for connections; whether it is about to have one. */
bool xm_ucx_socket_listens(int fd);
bool xm_ucx_socket_connects(int fd);

/** Reads the own end of a socket. */
bool xm_ucx_socket_own_end(int fd, xm_ucx_end_t *end);

/** Where a socket is connecting to: getpeername() does not say before it is connected. */
bool xm_ucx_socket_other_end(int fd, xm_ucx_end_t *end);

bool xm_ucx_end_equal(const xm_ucx_end_t *a, const xm_ucx_end_t *b);

/** The address of an end, with that port. */
void xm_ucx_end_address(const xm_ucx_end_t *end, int port, xm_address_t *address);
