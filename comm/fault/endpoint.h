/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file endpoint.h
 * How the ranks of a job reach each other without the bootstrap: a datagram socket for the
 * heartbeat and a listening socket to gather at when the centre of the bootstrap is gone. Internal.
 *
 * A rank's address is the one its connection to rank 0 has at its own end; rank 0's is the one that
 * the others reach it at. Where some ranks of rank 0's host came over the loopback interface and
 * others from elsewhere, the former count as being at rank 0's address, too. The sockets are bound
 * to the loopback interface when all ranks are on it, as the rendezvous is; else everywhere. Where
 * some came over IPv4 and others over IPv6, the sockets take both, and IPv4 addresses are written
 * as IPv6 ones; a host without IPv6 keeps to IPv4, and does not reach the others.
 *
 * The job's key, random bytes of rank 0, authenticates what comes through these sockets. It travels
 * over the bootstrap and is as secret as that is.
 */
#pragma once

#include <sys/socket.h>

#include "comm/job.h"
#include "comm/fault/siphash.h"

typedef struct xm_endpoint {
    struct sockaddr_storage address;
    socklen_t length;
    uint16_t datagram_port, gathering_port;
    int pid;
    char host[XM_BOOTSTRAP_HOST_SIZE];
} xm_endpoint_t;

typedef struct xm_endpoints {
    int size;
    int rank;          /**< this one's */
    xm_endpoint_t *of; /**< by rank of the job as it began */
    uint8_t key[XM_SIPHASH_KEY_SIZE];
    int datagram_fd, gathering_fd; /**< non-blocking; -1 when closed */
} xm_endpoints_t;

/** Opens the sockets and exchanges addresses. Collective over a TCP bootstrap. */
xm_status_t xm_endpoints_open(xm_endpoints_t *endpoints, xm_bootstrap_t *bootstrap, double timeout);
void xm_endpoints_close(xm_endpoints_t *endpoints);

/** Makes all addresses of one family when they are of both. For xm_endpoints_open() and its test.
 */
void xm_endpoints_align(xm_endpoints_t *endpoints);

/** The address of one of a rank's sockets. */
void xm_endpoint_datagram(const xm_endpoint_t *endpoint, struct sockaddr_storage *address);
void xm_endpoint_gathering(const xm_endpoint_t *endpoint, struct sockaddr_storage *address);
