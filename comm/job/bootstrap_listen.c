/* SPDX-License-Identifier: Apache-2.0 */
/* Where rank 0 listens. It should listen as narrowly as possible, because anybody who reaches
 * the port can connect; but on its own host a name may resolve to a loopback address (Debian's
 * 127.0.1.1), and an address may be translated on the way, and then the narrow choice would be
 * one that no other rank reaches. docs/launching.md has the table of the choices. */
#include "comm/job/bootstrap_listen.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/job/bootstrap_wire.h"
#include "comm/base.h"

/* The kernel lowers it to net.core.somaxconn. */
enum { BACKLOG = 4096 };

/* Returns the listening socket, or -1 with errno. REUSEADDR lets a job start on the port that
 * an earlier one has just left. */
static int try_listen(const xm_address_t *address)
{
    int fd = socket(address->socket.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1, zero = 0, error;

    if (fd < 0) {
        return -1;
    }
    /* IPv6's "all addresses" includes IPv4's, whatever the system's default. */
    if (address->socket.ss_family == AF_INET6) {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
    }
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 &&
        bind(fd, (const struct sockaddr *)&address->socket, address->length) == 0 &&
        listen(fd, BACKLOG) == 0) {
        return fd;
    }
    error = errno;
    (void)close(fd);
    errno = error;
    return -1;
}

/* All addresses of the family of @p like, with its port. */
static xm_address_t everywhere(const xm_address_t *like)
{
    xm_address_t address = *like;

    if (address.socket.ss_family == AF_INET6) {
        ((struct sockaddr_in6 *)&address.socket)->sin6_addr = in6addr_any;
    } else {
        ((struct sockaddr_in *)&address.socket)->sin_addr.s_addr = htonl(INADDR_ANY);
    }
    return address;
}

/* Reads XM_BIND, which must be an address in digits: a name would have to be resolved, and
 * could mean several. */
static xm_status_t read_bind(const char *text, int port, xm_address_t *address)
{
    xm_addresses_t found;
    xm_status_t status;

    if (!xm_resolve_is_numeric(text)) {
        return XM_MALFORMED("XM_BIND: '%s' is not an IPv4 or IPv6 address", text);
    }
    status = xm_resolve("XM_BIND", text, port, xm_clock_seconds(), &found);
    if (status == XM_OK) {
        *address = found.list[0];
    }
    return status;
}

/* Listens at the master port. If MASTER_ADDR is an address that this host does not have, it is
 * taken to be one that is translated, and all addresses are listened at. */
xm_status_t xm_bootstrap_listen_master(const xm_job_env_t *env, double deadline, int *fd)
{
    const char *configured = xm_config_string(XM_CONFIG_BIND), *where = env->master_addr;
    bool literal = strcmp(where, "localhost") == 0 || xm_resolve_is_numeric(where);
    xm_addresses_t found;
    xm_address_t address;
    xm_status_t status;

    if (configured[0] != '\0') {
        where = configured;
        status = read_bind(configured, env->master_port, &address);
    } else {
        status = xm_resolve("MASTER_ADDR", where, env->master_port, deadline, &found);
        if (status == XM_OK) {
            address = literal ? found.list[0] : everywhere(&found.list[0]);
        }
    }
    XM_TRY(status);
    *fd = try_listen(&address);
    if (*fd < 0 && errno == EADDRNOTAVAIL && configured[0] == '\0') {
        address = everywhere(&address);
        *fd = try_listen(&address);
    }
    if (*fd < 0) {
        return xm_error_set(XM_ERR_IO, "rank 0 cannot listen at %s port %d: %s", where,
                            env->master_port, strerror(errno));
    }
    return XM_OK;
}

/* Adds the addresses of one family that other machines can use; as many as a card holds. */
static void add_interfaces(const struct ifaddrs *interfaces, int family, xm_addresses_t *addresses)
{
    socklen_t length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

    for (const struct ifaddrs *i = interfaces;
         i != NULL && addresses->count < XM_BOOTSTRAP_CARD_ADDRESSES; i = i->ifa_next) {
        xm_address_t address = {.length = length};

        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != family ||
            (i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0) {
            continue;
        }
        memcpy(&address.socket, i->ifa_addr, length);
        /* One that is local to a link means nothing without the link. */
        if (family == AF_INET6 &&
            IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)&address.socket)->sin6_addr)) {
            continue;
        }
        addresses->list[addresses->count++] = address;
    }
}

/* Lists where the others can reach a socket that listens at all addresses. IPv4 stands first,
 * since an address that does not answer costs the others time. */
xm_status_t xm_bootstrap_interfaces(bool ipv6, xm_addresses_t *addresses)
{
    struct ifaddrs *interfaces;

    addresses->count = 0;
    if (getifaddrs(&interfaces) != 0) {
        return xm_error_set(XM_ERR_IO, "cannot list the network interfaces: %s", strerror(errno));
    }
    add_interfaces(interfaces, AF_INET, addresses);
    if (ipv6) {
        add_interfaces(interfaces, AF_INET6, addresses);
    }
    freeifaddrs(interfaces);
    if (addresses->count == 0) {
        return xm_error_set(XM_ERR_UNREACHABLE,
                            "this host has no address that ranks on other hosts could reach");
    }
    return XM_OK;
}

static xm_address_t ipv4_address(uint32_t host_order)
{
    xm_address_t address = {.length = sizeof(struct sockaddr_in)};
    struct sockaddr_in *ipv4 = (struct sockaddr_in *)&address.socket;

    ipv4->sin_family = AF_INET;
    ipv4->sin_addr.s_addr = htonl(host_order);
    return address;
}

static xm_address_t ipv6_everywhere(void)
{
    xm_address_t address = {.length = sizeof(struct sockaddr_in6)};

    address.socket.ss_family = AF_INET6;
    return address;
}

static bool is_everywhere(const xm_address_t *address)
{
    xm_address_t all = everywhere(address);

    return memcmp(&all.socket, &address->socket, sizeof(all.socket)) == 0;
}

/* Listens at a free port. On failure no descriptor is left open. The port is known only after
 * the kernel has chosen it, so it is filled into all addresses at the end. */
xm_status_t xm_bootstrap_listen_free(bool local, int *fd, xm_addresses_t *addresses)
{
    const char *configured = xm_config_string(XM_CONFIG_BIND);
    xm_address_t address = local ? ipv4_address(INADDR_LOOPBACK) : ipv6_everywhere(), bound;
    xm_status_t status = XM_OK;

    if (configured[0] != '\0') {
        XM_TRY(read_bind(configured, 0, &address));
    }
    *fd = try_listen(&address);
    if (*fd < 0 && configured[0] == '\0' && !local) {
        /* A kernel without IPv6. */
        address = ipv4_address(INADDR_ANY);
        *fd = try_listen(&address);
    }
    bound.length = sizeof(bound.socket);
    if (*fd < 0 || getsockname(*fd, (struct sockaddr *)&bound.socket, &bound.length) != 0) {
        status = xm_error_set(XM_ERR_IO, "rank 0 cannot listen%s%s: %s",
                              configured[0] != '\0' ? " at " : "", configured, strerror(errno));
    } else if (is_everywhere(&address)) {
        status = xm_bootstrap_interfaces(address.socket.ss_family == AF_INET6, addresses);
    } else {
        *addresses = (xm_addresses_t){.count = 1, .list = {address}};
    }
    if (status < 0) {
        if (*fd >= 0) {
            (void)close(*fd);
        }
        return status;
    }
    for (int i = 0; i < addresses->count; ++i) {
        xm_address_set_port(&addresses->list[i], xm_address_port(&bound));
    }
    return XM_OK;
}

int xm_door_strangers(int wanted)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};

    (void)getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur / 4 < (rlim_t)wanted) {
        wanted = limit.rlim_cur < 4 ? 1 : (int)(limit.rlim_cur / 4);
    }
    return wanted;
}

/* The stranger that has been there for longest, or XM_DOOR_NOBODY. */
static int find_oldest(const xm_door_t *door, int *free_place, int *strangers, int64_t *since)
{
    int oldest = XM_DOOR_NOBODY;

    *free_place = XM_DOOR_NOBODY;
    *strangers = 0;
    for (int place = 0; place < door->places; ++place) {
        int64_t its;
        xm_door_place_t who = door->who(door->arg, place, &its);

        if (who == XM_DOOR_FREE) {
            *free_place = place;
        } else if (who == XM_DOOR_STRANGER) {
            ++*strangers;
            if (oldest < 0 || its < *since) {
                oldest = place;
                *since = its;
            }
        }
    }
    return oldest;
}

int xm_door_find_place(const xm_door_t *door, int64_t now)
{
    int free_place, strangers;
    int64_t since = 0;
    int oldest = find_oldest(door, &free_place, &strangers, &since);

    if (free_place >= 0 && strangers < door->strangers) {
        return free_place;
    }
    if (oldest < 0 || now - since < XM_DOOR_STAY_NS) {
        return XM_DOOR_FULL;
    }
    door->drop(door->arg, oldest);
    return oldest;
}

/* Where descriptors have run out all the same, strangers give theirs back, whatever time they have
 * had: the process needs one for each of its own connections. */
int xm_door_accept(const xm_door_t *door, int64_t now, int *fd)
{
    int place = xm_door_find_place(door, now), free_place, strangers;
    int64_t since = 0;

    if (place < 0) {
        return place;
    }
    *fd = accept4(door->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (*fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
        int oldest = find_oldest(door, &free_place, &strangers, &since);

        if (oldest < 0) {
            return XM_DOOR_FULL;
        }
        door->drop(door->arg, oldest);
        *fd = accept4(door->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    }
    return *fd >= 0 ? place : XM_DOOR_NOBODY;
}
