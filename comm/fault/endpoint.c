/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a job are reached without the bootstrap: a datagram socket for the heartbeat and
 * a listening socket to meet at when rank 0 is gone. The addresses are those that the bootstrap's
 * connections have proved to work, because a host's own list of interfaces does not say which of
 * them others can reach. A random key of rank 0, handed out over the bootstrap, authenticates
 * everything that comes through these sockets. */
#include "comm/fault/endpoint.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "comm/job.h"
#include "comm/base.h"

enum { BACKLOG = 4096, ADDRESS_SIZE = 17, PORTS_SIZE = 4, PID_SIZE = 4 };
enum { CARD_HEAD = PORTS_SIZE + PID_SIZE + XM_SIPHASH_KEY_SIZE };

/* Writes one byte for the family (4 or 6), then the address in network order. A mapped IPv4
 * address is written as what it is. */
static void put_address(const struct sockaddr_storage *address, uint8_t bytes[ADDRESS_SIZE])
{
    memset(bytes, 0, ADDRESS_SIZE);
    if (address->ss_family == AF_INET) {
        bytes[0] = 4;
        memcpy(bytes + 1, &((const struct sockaddr_in *)address)->sin_addr, 4);
    } else {
        const struct in6_addr *ipv6 = &((const struct sockaddr_in6 *)address)->sin6_addr;
        bool mapped = IN6_IS_ADDR_V4MAPPED(ipv6);

        bytes[0] = mapped ? 4 : 6;
        memcpy(bytes + 1, ipv6->s6_addr + (mapped ? 12 : 0), mapped ? 4 : 16);
    }
}

/* Only two kinds of address exist; another byte means that the sender speaks something else. */
static xm_status_t get_address(const uint8_t bytes[ADDRESS_SIZE], int rank, xm_endpoint_t *endpoint)
{
    memset(&endpoint->address, 0, sizeof(endpoint->address));
    if (bytes[0] == 4) {
        struct sockaddr_in *ipv4 = (struct sockaddr_in *)&endpoint->address;

        ipv4->sin_family = AF_INET;
        memcpy(&ipv4->sin_addr, bytes + 1, 4);
        endpoint->length = sizeof(*ipv4);
    } else if (bytes[0] == 6) {
        struct sockaddr_in6 *ipv6 = (struct sockaddr_in6 *)&endpoint->address;

        ipv6->sin6_family = AF_INET6;
        memcpy(&ipv6->sin6_addr, bytes + 1, 16);
        endpoint->length = sizeof(*ipv6);
    } else {
        return xm_error_set(XM_ERR_CORRUPT, "rank %d sent an address of kind %d", rank, bytes[0]);
    }
    return XM_OK;
}

static void set_port(struct sockaddr_storage *address, uint16_t port)
{
    if (address->ss_family == AF_INET) {
        ((struct sockaddr_in *)address)->sin_port = htons(port);
    } else {
        ((struct sockaddr_in6 *)address)->sin6_port = htons(port);
    }
}

/* The kernel chooses the ports, so ranks of one host cannot collide. */
static uint16_t port_of(int fd)
{
    struct sockaddr_storage address = {.ss_family = AF_INET};
    socklen_t length = sizeof(address);

    (void)getsockname(fd, (struct sockaddr *)&address, &length);
    return ntohs(address.ss_family == AF_INET ? ((struct sockaddr_in *)&address)->sin_port
                                              : ((struct sockaddr_in6 *)&address)->sin6_port);
}

void xm_endpoint_datagram(const xm_endpoint_t *endpoint, struct sockaddr_storage *address)
{
    *address = endpoint->address;
    set_port(address, endpoint->datagram_port);
}

void xm_endpoint_gathering(const xm_endpoint_t *endpoint, struct sockaddr_storage *address)
{
    *address = endpoint->address;
    set_port(address, endpoint->gathering_port);
}

/* Exchanges the addresses. A rank that knows itself only by a loopback address shares rank 0's
 * machine, so it gets rank 0's address, which others can use. */
static xm_status_t exchange_addresses(xm_endpoints_t *endpoints, xm_bootstrap_t *bootstrap,
                                      double timeout)
{
    struct sockaddr_storage address;
    uint8_t own[ADDRESS_SIZE], *all = malloc((size_t)endpoints->size * ADDRESS_SIZE);
    xm_status_t status = xm_bootstrap_own_address(bootstrap, &address);

    if (all == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d addresses", endpoints->size);
    }
    if (status == XM_OK) {
        put_address(&address, own);
        status = xm_bootstrap_allgather(bootstrap, own, all, ADDRESS_SIZE, timeout);
    }
    for (int rank = 0; rank < endpoints->size && status == XM_OK; ++rank) {
        status = get_address(all + (size_t)rank * ADDRESS_SIZE, rank, &endpoints->of[rank]);
    }
    for (int rank = 1; rank < endpoints->size && status == XM_OK; ++rank) {
        /* Rank 0's own address may be the loopback as well: then all ranks are on one host. */
        if (xm_address_is_loopback(&endpoints->of[rank].address)) {
            endpoints->of[rank].address = endpoints->of[0].address;
            endpoints->of[rank].length = endpoints->of[0].length;
        }
    }
    if (status == XM_OK) {
        xm_endpoints_align(endpoints);
    }
    free(all);
    return status;
}

/* A kernel without IPv6 refuses to make such a socket. */
static bool has_ipv6(void)
{
    int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd >= 0) {
        (void)close(fd);
    }
    return fd >= 0;
}

/* One socket cannot send to both families, so IPv4 addresses are mapped into IPv6 where both
 * occur. */
void xm_endpoints_align(xm_endpoints_t *endpoints)
{
    bool mixed = false;

    for (int rank = 1; rank < endpoints->size; ++rank) {
        mixed =
            mixed || endpoints->of[rank].address.ss_family != endpoints->of[0].address.ss_family;
    }
    for (int rank = 0; rank < endpoints->size && mixed && has_ipv6(); ++rank) {
        xm_endpoint_t *endpoint = &endpoints->of[rank];
        struct in_addr ipv4 = ((const struct sockaddr_in *)&endpoint->address)->sin_addr;
        struct sockaddr_in6 *ipv6 = (struct sockaddr_in6 *)&endpoint->address;

        if (endpoint->address.ss_family == AF_INET) {
            memset(ipv6, 0, sizeof(*ipv6));
            ipv6->sin6_family = AF_INET6;
            memset(ipv6->sin6_addr.s6_addr + 10, 0xff, 2);
            memcpy(ipv6->sin6_addr.s6_addr + 12, &ipv4, 4);
            endpoint->length = sizeof(*ipv6);
        }
    }
}

/* Opens a socket at the loopback interface when the address says that all are on it, else at
 * all addresses. The caller closes it after a failure. */
static xm_status_t open_socket(const xm_endpoint_t *like, int type, int *fd)
{
    struct sockaddr_storage address = like->address;
    int one_family = 0;

    if (!xm_address_is_loopback(&address)) {
        memset(&address, 0, sizeof(address)); /* the wildcard of the family */
        address.ss_family = like->address.ss_family;
    }
    *fd = socket(address.ss_family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd >= 0 && address.ss_family == AF_INET6) {
        /* The socket must take mapped IPv4 addresses, whatever the system's default is. */
        (void)setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &one_family, sizeof(one_family));
    }
    if (*fd < 0 || bind(*fd, (const struct sockaddr *)&address, like->length) != 0 ||
        (type == SOCK_STREAM && listen(*fd, BACKLOG) != 0)) {
        return xm_error_set(XM_ERR_IO, "cannot open a socket to be reached at: %s",
                            strerror(errno));
    }
    return XM_OK;
}

/* The card: ports, process and key, then the host's name. */
static void write_card(const xm_endpoints_t *endpoints, uint8_t *card)
{
    char host[XM_BOOTSTRAP_HOST_SIZE];
    unsigned pid = (unsigned)getpid();

    xm_bootstrap_own_host(host, sizeof(host));
    xm_put_le(card, port_of(endpoints->datagram_fd), 2);
    xm_put_le(card + 2, port_of(endpoints->gathering_fd), 2);
    xm_put_le(card + 4, pid, 4);
    memcpy(card + PORTS_SIZE + PID_SIZE, endpoints->key, sizeof(endpoints->key));
    (void)snprintf((char *)card + CARD_HEAD, XM_BOOTSTRAP_HOST_SIZE, "%s", host);
}

/* Exchanges the cards. Every rank sends a key, but only rank 0's counts, so all have the same. */
static xm_status_t exchange_cards(xm_endpoints_t *endpoints, xm_bootstrap_t *bootstrap,
                                  double timeout)
{
    uint8_t own[CARD_HEAD + XM_BOOTSTRAP_HOST_SIZE] = {0}, *all = NULL;
    size_t *offsets = NULL;
    xm_status_t status;

    write_card(endpoints, own);
    status = xm_bootstrap_allgatherv(bootstrap, own, CARD_HEAD + strlen((char *)own + CARD_HEAD),
                                     (void **)&all, &offsets, timeout);
    for (int rank = 0; rank < endpoints->size && status == XM_OK; ++rank) {
        const uint8_t *card = all + offsets[rank];
        size_t length = offsets[rank + 1] - offsets[rank];
        xm_endpoint_t *endpoint = &endpoints->of[rank];

        /* The host's name has no terminator on the wire; the endpoint's field is zeroed and
         * longer. */
        if (length < CARD_HEAD || length - CARD_HEAD >= sizeof(endpoint->host)) {
            status = xm_error_set(XM_ERR_CORRUPT, "rank %d tells where it is in %zu bytes", rank,
                                  length);
            break;
        }
        endpoint->datagram_port = (uint16_t)xm_get_le(card, 2);
        endpoint->gathering_port = (uint16_t)xm_get_le(card + 2, 2);
        endpoint->pid = (int)xm_get_le(card + 4, 4);
        memcpy(endpoint->host, card + CARD_HEAD, length - CARD_HEAD);
        if (rank == 0) {
            memcpy(endpoints->key, card + PORTS_SIZE + PID_SIZE, sizeof(endpoints->key));
        }
    }
    free(offsets);
    free(all);
    return status;
}

/* Opens all; collective. Addresses come first, since they decide what the sockets are bound to.
 * On failure everything is closed. */
xm_status_t xm_endpoints_open(xm_endpoints_t *endpoints, xm_bootstrap_t *bootstrap, double timeout)
{
    xm_status_t status;

    *endpoints = (xm_endpoints_t){.size = xm_bootstrap_size(bootstrap),
                                  .rank = xm_bootstrap_rank(bootstrap),
                                  .datagram_fd = -1,
                                  .gathering_fd = -1};
    /* A rank that fails here has not taken part; its caller aborts the bootstrap, which tells the
     * others. */
    endpoints->of = calloc((size_t)endpoints->size, sizeof(*endpoints->of));
    if (endpoints->of == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d endpoints", endpoints->size);
    }
    status = exchange_addresses(endpoints, bootstrap, timeout);
    if (status == XM_OK) {
        status = open_socket(&endpoints->of[0], SOCK_DGRAM, &endpoints->datagram_fd);
    }
    if (status == XM_OK) {
        status = open_socket(&endpoints->of[0], SOCK_STREAM, &endpoints->gathering_fd);
    }
    if (status == XM_OK && endpoints->rank == 0 &&
        getrandom(endpoints->key, sizeof(endpoints->key), 0) != (ssize_t)sizeof(endpoints->key)) {
        status = xm_error_set(XM_ERR_IO, "no random bytes for the job's key: %s", strerror(errno));
    }
    if (status == XM_OK) {
        status = exchange_cards(endpoints, bootstrap, timeout);
    }
    if (status < 0) {
        xm_endpoints_close(endpoints);
    }
    return status;
}

/* Closing twice does no harm. */
void xm_endpoints_close(xm_endpoints_t *endpoints)
{
    if (endpoints->of == NULL) {
        return;
    }
    if (endpoints->datagram_fd >= 0) {
        (void)close(endpoints->datagram_fd);
    }
    if (endpoints->gathering_fd >= 0) {
        (void)close(endpoints->gathering_fd);
    }
    free(endpoints->of);
    endpoints->of = NULL;
}
