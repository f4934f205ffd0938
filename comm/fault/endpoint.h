/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file endpoint.h
 * How the ranks of a job reach each other without the bootstrap: for every rank the addresses of
 * its host, the port of a datagram socket and the port of a listening one. Internal.
 *
 * A rank's first address is the one its connection to rank 0 has at its own end (rank 0's: the one
 * that the others reach it at); the others are those of its host's interfaces that are up, so that
 * no NIC is the only way to a rank. Which of them others can reach is for others to find out. The
 * sockets are bound to the loopback interface when all ranks are on it, as the rendezvous is; else
 * everywhere. They take IPv4 and IPv6; a host without IPv6 keeps to IPv4.
 *
 * The job's key, random bytes of rank 0, authenticates what comes through these sockets. It travels
 * over the bootstrap and is as secret as that is.
 */
#pragma once

#include <sys/socket.h>

#include "comm/job.h"
#include "comm/fault/siphash.h"

enum { XM_ENDPOINT_ADDRESSES = 32 };

typedef struct xm_endpoint {
    uint8_t addresses[XM_ENDPOINT_ADDRESSES][XM_ADDRESS_BYTES];
    int count;
    uint16_t datagram_port, stream_port;
    int pid;
    int host_number; /**< equal for ranks whose hosts have one name: their lowest rank */
    char host[XM_BOOTSTRAP_HOST_SIZE];
} xm_endpoint_t;

typedef struct xm_endpoints {
    int size;
    int rank;          /**< this one's */
    xm_endpoint_t *of; /**< by rank of the job as it began */
    uint8_t key[XM_SIPHASH_KEY_SIZE];
    int family;                 /**< of the sockets: AF_INET6 takes both */
    int datagram_fd, stream_fd; /**< non-blocking; -1 when closed */
} xm_endpoints_t;

/**
 * Opens the sockets and exchanges addresses. Collective over a TCP bootstrap, as the first thing
 * that the ranks do when they have met: there is no detector yet, so their bootstrap finds out who
 * hangs, by the detector's rule with its @p interval (0: not at all), until it gets a guard.
 */
xm_status_t xm_endpoints_open(xm_endpoints_t *endpoints, xm_bootstrap_t *bootstrap, double interval,
                              double timeout);
void xm_endpoints_close(xm_endpoints_t *endpoints);

/** Reads what a rank tells of itself; @p endpoint is zeroed before. */
xm_status_t xm_endpoint_read_card(const uint8_t *card, size_t length, int rank,
                                  xm_endpoint_t *endpoint);

/** Address @p number of a rank, with the port of one of its sockets, as a socket of the family
 * needs it. Returns its length; 0: the family cannot reach it. */
socklen_t xm_endpoint_address(const xm_endpoints_t *endpoints, int rank, int number, bool stream,
                              struct sockaddr_storage *address);
