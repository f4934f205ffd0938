/* SPDX-License-Identifier: Apache-2.0 */
/* Watches whether the NICs of a transport are up. The kernel announces changes over netlink, so
 * nothing is polled; the message itself is not parsed: it is only a reason to look at all
 * interfaces anew, which is simpler and cannot miss one. A NIC is down when it has lost its
 * carrier or the addresses of the family that it had at the start. */
#include "comm/topology/nic_watch.h"

#include <errno.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* NICs that are up, have a carrier and an address of a family, as bits; all when the kernel
 * does not say, because a doubt must not cost a rail. */
static unsigned look(const xm_nics_t *nics, int family)
{
    struct ifaddrs *list;
    unsigned up = 0;

    if (getifaddrs(&list) != 0) {
        return ~0u;
    }
    for (const struct ifaddrs *at = list; at != NULL; at = at->ifa_next) {
        bool counts = at->ifa_addr != NULL && at->ifa_addr->sa_family == family &&
                      (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_RUNNING) != 0;

        for (int nic = 0; nic < nics->count && counts; ++nic) {
            up |= strcmp(at->ifa_name, nics->nic[nic].device) == 0 ? 1u << nic : 0;
        }
    }
    freeifaddrs(list);
    return up;
}

/* Opens the watch. Without it (a sandbox may forbid netlink) nothing is ever seen down, and
 * silence decides. */
void xm_nic_watch_open(xm_nic_watch_t *watch, const xm_nics_t *nics)
{
    struct sockaddr_nl address = {.nl_family = AF_NETLINK,
                                  .nl_groups =
                                      RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR};

    *watch = (xm_nic_watch_t){
        .fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)};
    if (watch->fd >= 0 && bind(watch->fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        xm_nic_watch_close(watch);
    }
    if (watch->fd >= 0) {
        watch->ipv4 = look(nics, AF_INET);
        watch->ipv6 = look(nics, AF_INET6) & ~watch->ipv4;
    }
}

void xm_nic_watch_close(xm_nic_watch_t *watch)
{
    if (watch->fd >= 0) {
        (void)close(watch->fd);
    }
    watch->fd = -1;
}

/* Reads all news, then looks once. True when the set of NICs that are down has changed. */
bool xm_nic_watch_read(xm_nic_watch_t *watch, const xm_nics_t *nics)
{
    unsigned before = watch->down;
    char news[8192];
    bool any = false;

    /* A full buffer of the socket is reported as an error, once, and is news as well. */
    while (watch->fd >= 0 && (recv(watch->fd, news, sizeof(news), 0) > 0 || errno == ENOBUFS)) {
        any = true;
        errno = 0;
    }
    if (any) {
        watch->down = (watch->ipv4 & ~look(nics, AF_INET)) | (watch->ipv6 & ~look(nics, AF_INET6));
    }
    return watch->down != before;
}
