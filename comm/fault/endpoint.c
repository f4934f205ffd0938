/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a job are reached without the bootstrap: over all addresses of their hosts, by
 * datagrams and by connections. The bootstrap's connections prove one address of each rank to work;
 * a host's own list of interfaces does not say which of the others can be reached from elsewhere,
 * but is all there is when that one is lost. A random key of rank 0, handed out over the
 * bootstrap, authenticates everything that comes through these sockets. */
#include "comm/fault/endpoint.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "comm/base.h"
#include "comm/fault/liveness.h"

enum { BACKLOG = 4096, CARD_HEAD = 2 + 2 + 4 + XM_SIPHASH_KEY_SIZE + 1 };

socklen_t xm_endpoint_address(const xm_endpoints_t *endpoints, int rank, int number, bool stream,
                              struct sockaddr_storage *address)
{
    const xm_endpoint_t *endpoint = &endpoints->of[rank];
    xm_address_t found;

    xm_address_read(endpoint->addresses[number], &found);
    if (endpoints->family == AF_INET6) {
        /* IPv4 addresses are written as IPv6 ones. */
        memset(&found, 0, sizeof(found));
        ((struct sockaddr_in6 *)&found.socket)->sin6_family = AF_INET6;
        memcpy(&((struct sockaddr_in6 *)&found.socket)->sin6_addr, endpoint->addresses[number],
               XM_ADDRESS_BYTES);
        found.length = sizeof(struct sockaddr_in6);
    }
    xm_address_set_port(&found, stream ? endpoint->stream_port : endpoint->datagram_port);
    *address = found.socket;
    return found.socket.ss_family == endpoints->family ? found.length : 0;
}

/* The kernel chooses the ports, so ranks of one host cannot collide. */
static uint16_t port_of(int fd)
{
    xm_address_t bound = {.length = sizeof(bound.socket)};

    (void)getsockname(fd, (struct sockaddr *)&bound.socket, &bound.length);
    return (uint16_t)xm_address_port(&bound);
}

static bool is_loopback(const uint8_t bytes[XM_ADDRESS_BYTES])
{
    xm_address_t address;

    xm_address_read(bytes, &address);
    return xm_address_is_loopback(&address.socket);
}

static void add_address(xm_endpoint_t *endpoint, const uint8_t bytes[XM_ADDRESS_BYTES])
{
    for (int i = 0; i < endpoint->count; ++i) {
        if (memcmp(endpoint->addresses[i], bytes, XM_ADDRESS_BYTES) == 0) {
            return;
        }
    }
    if (endpoint->count < XM_ENDPOINT_ADDRESSES) {
        memcpy(endpoint->addresses[endpoint->count++], bytes, XM_ADDRESS_BYTES);
    }
}

/* Exchanges the addresses that the bootstrap's connections have, each the first of its rank. A
 * rank that knows itself only by a loopback address shares rank 0's machine, so it gets rank 0's
 * address, which others can use. */
static xm_status_t exchange_addresses(xm_endpoints_t *endpoints, xm_bootstrap_t *bootstrap,
                                      double timeout)
{
    struct sockaddr_storage address;
    uint8_t own[XM_ADDRESS_BYTES], *all = malloc((size_t)endpoints->size * sizeof(own));
    xm_status_t status = xm_bootstrap_own_address(bootstrap, &address);

    XM_NEED_MEMORY(all, "%d addresses", endpoints->size);
    if (status == XM_OK) {
        xm_address_write(&address, own);
        status = xm_bootstrap_allgather(bootstrap, own, all, sizeof(own), timeout);
    }
    for (int rank = 0; rank < endpoints->size && status == XM_OK; ++rank) {
        const uint8_t *bytes = all + (size_t)rank * sizeof(own);

        /* Rank 0's own address may be the loopback as well: then all ranks are on one host. */
        add_address(&endpoints->of[rank], is_loopback(bytes) ? all : bytes);
    }
    free(all);
    return status;
}

/* Opens a socket at the loopback interface when rank 0's address says that all are on it, else at
 * all addresses. The caller closes it after a failure. */
static xm_status_t open_socket(xm_endpoints_t *endpoints, int type, int *fd)
{
    struct sockaddr_storage address;
    int one_family = 0;
    socklen_t length;

    *fd = socket(AF_INET6, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    endpoints->family = *fd >= 0 ? AF_INET6 : AF_INET;
    if (*fd >= 0) {
        /* The socket must take mapped IPv4 addresses, whatever the system's default is. */
        (void)setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &one_family, sizeof(one_family));
    } else {
        *fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    }
    length = xm_endpoint_address(endpoints, 0, 0, false, &address);
    if (!is_loopback(endpoints->of[0].addresses[0])) {
        memset(&address, 0, sizeof(address)); /* the wildcard of the family */
        address.ss_family = (sa_family_t)endpoints->family;
        length = endpoints->family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                               : sizeof(struct sockaddr_in);
    }
    if (*fd < 0 || bind(*fd, (const struct sockaddr *)&address, length) != 0 ||
        (type == SOCK_STREAM && listen(*fd, BACKLOG) != 0)) {
        return xm_error_set(XM_ERR_IO, "cannot open a socket to be reached at: %s",
                            strerror(errno));
    }
    return XM_OK;
}

/* The own addresses besides the first. Where they cannot be listed, the first has to do. */
static void add_interfaces(xm_endpoints_t *endpoints)
{
    xm_endpoint_t *own = &endpoints->of[endpoints->rank];
    uint8_t bytes[XM_ADDRESS_BYTES];
    xm_addresses_t found;

    if (is_loopback(own->addresses[0]) ||
        xm_bootstrap_interfaces(endpoints->family == AF_INET6, &found) < 0) {
        return;
    }
    for (int i = 0; i < found.count; ++i) {
        xm_address_write(&found.list[i].socket, bytes);
        add_address(own, bytes);
    }
}

/* The card: ports, process, key and addresses, then the host's name. */
static size_t write_card(const xm_endpoints_t *endpoints, uint8_t *card)
{
    const xm_endpoint_t *own = &endpoints->of[endpoints->rank];
    size_t addresses = (size_t)own->count * XM_ADDRESS_BYTES;
    char host[XM_BOOTSTRAP_HOST_SIZE];
    size_t length;

    xm_bootstrap_own_host(host, sizeof(host));
    length = strlen(host);
    xm_put_le(card, port_of(endpoints->datagram_fd), 2);
    xm_put_le(card + 2, port_of(endpoints->stream_fd), 2);
    xm_put_le(card + 4, (uint64_t)getpid(), 4);
    memcpy(card + 8, endpoints->key, sizeof(endpoints->key));
    card[CARD_HEAD - 1] = (uint8_t)own->count;
    memcpy(card + CARD_HEAD, own->addresses, addresses);
    memcpy(card + CARD_HEAD + addresses, host, length);
    return CARD_HEAD + addresses + length;
}

/* The host's name has no terminator on the wire; the endpoint's field is zeroed and longer. */
xm_status_t xm_endpoint_read_card(const uint8_t *card, size_t length, int rank,
                                  xm_endpoint_t *endpoint)
{
    size_t addresses = length >= CARD_HEAD ? (size_t)card[CARD_HEAD - 1] * XM_ADDRESS_BYTES : 0;

    if (addresses == 0 || addresses > sizeof(endpoint->addresses) ||
        length < CARD_HEAD + addresses ||
        length - CARD_HEAD - addresses >= sizeof(endpoint->host)) {
        return xm_error_set(XM_ERR_CORRUPT, "rank %d tells where it is in %zu bytes", rank, length);
    }
    endpoint->datagram_port = (uint16_t)xm_get_le(card, 2);
    endpoint->stream_port = (uint16_t)xm_get_le(card + 2, 2);
    endpoint->pid = (int)xm_get_le(card + 4, 4);
    endpoint->count = card[CARD_HEAD - 1];
    memcpy(endpoint->addresses, card + CARD_HEAD, addresses);
    memcpy(endpoint->host, card + CARD_HEAD + addresses, length - CARD_HEAD - addresses);
    return XM_OK;
}

/* Numbers the hosts by their lowest ranks. */
static void number_hosts(xm_endpoints_t *endpoints)
{
    for (int rank = 0; rank < endpoints->size; ++rank) {
        int lowest = 0;

        while (strcmp(endpoints->of[lowest].host, endpoints->of[rank].host) != 0) {
            ++lowest;
        }
        endpoints->of[rank].host_number = lowest;
    }
}

/* Exchanges the cards. Every rank sends a key, but only rank 0's counts, so all have the same. */
static xm_status_t exchange_cards(xm_endpoints_t *endpoints, xm_bootstrap_t *bootstrap,
                                  double timeout)
{
    uint8_t own[CARD_HEAD + XM_ENDPOINT_ADDRESSES * XM_ADDRESS_BYTES + XM_BOOTSTRAP_HOST_SIZE];
    uint8_t *all = NULL;
    size_t *offsets = NULL;
    xm_status_t status = xm_bootstrap_allgatherv(bootstrap, own, write_card(endpoints, own),
                                                 (void **)&all, &offsets, timeout);

    for (int rank = 0; rank < endpoints->size && status == XM_OK; ++rank) {
        status = xm_endpoint_read_card(all + offsets[rank], offsets[rank + 1] - offsets[rank], rank,
                                       &endpoints->of[rank]);
    }
    if (status == XM_OK) {
        memcpy(endpoints->key, all + 8, sizeof(endpoints->key));
        number_hosts(endpoints);
    }
    free(offsets);
    free(all);
    return status;
}

/* Opens all; collective. First addresses come first, since they decide what the sockets are bound
 * to. On failure everything is closed. */
xm_status_t xm_endpoints_open(xm_endpoints_t *endpoints, xm_bootstrap_t *bootstrap, double interval,
                              double timeout)
{
    xm_status_t status;

    *endpoints = (xm_endpoints_t){.size = xm_bootstrap_size(bootstrap),
                                  .rank = xm_bootstrap_rank(bootstrap),
                                  .datagram_fd = -1,
                                  .stream_fd = -1};
    /* A rank that fails here has not taken part; its caller aborts the bootstrap, which tells the
     * others. */
    endpoints->of = calloc((size_t)endpoints->size, sizeof(*endpoints->of));
    XM_NEED_MEMORY(endpoints->of, "%d endpoints", endpoints->size);
    xm_bootstrap_attend(bootstrap, XM_LIVENESS_SILENT * interval);
    status = exchange_addresses(endpoints, bootstrap, timeout);
    XM_THEN(status, open_socket(endpoints, SOCK_DGRAM, &endpoints->datagram_fd));
    XM_THEN(status, open_socket(endpoints, SOCK_STREAM, &endpoints->stream_fd));
    if (status == XM_OK && endpoints->rank == 0 &&
        getrandom(endpoints->key, sizeof(endpoints->key), 0) != (ssize_t)sizeof(endpoints->key)) {
        status = xm_error_set(XM_ERR_IO, "no random bytes for the job's key: %s", strerror(errno));
    }
    if (status == XM_OK) {
        add_interfaces(endpoints);
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
    if (endpoints->stream_fd >= 0) {
        (void)close(endpoints->stream_fd);
    }
    free(endpoints->of);
    endpoints->of = NULL;
}
