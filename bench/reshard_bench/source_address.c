/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of an emulated host share its network, so the kernel would let a connection leave through
 * the NIC of the same number as the one it goes to, whichever NIC the rank was dealt. RDMA devices
 * send from where they are opened. So this program's connections to other hosts start from the
 * address of the rank's own NIC: UCX has no setting for that, and takes this function for the C
 * library's (the program exports it).
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench/run.h"

/* The fields of 10.77.<NIC>.<host + 1>. */
typedef struct {
    uint8_t field[4];
} host_nic_t;

_Static_assert(sizeof(host_nic_t) == sizeof(in_addr_t), "an address is four bytes");

/* The NIC of this rank from which it reaches the other host's, or false: the kernel may choose. */
static bool find_source(const struct sockaddr *to, struct sockaddr_in *source)
{
    const char *dealt = getenv(RB_EMULATION_DEALT);
    union {
        in_addr_t address;
        host_nic_t nic;
    } name;
    int first, hands, host;

    if (dealt == NULL || to->sa_family != AF_INET ||
        sscanf(dealt, "%d/%d@%d", &first, &hands, &host) != 3) { // NOLINT(cert-err34-c)
        return false;
    }
    name.address = ((const struct sockaddr_in *)(const void *)to)->sin_addr.s_addr;
    if (name.nic.field[0] != 10 || name.nic.field[1] != 77 || name.nic.field[3] == host + 1) {
        return false;
    }
    name.nic.field[2] = (uint8_t)(first + name.nic.field[2] / hands * hands);
    name.nic.field[3] = (uint8_t)(host + 1);
    *source = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {name.address}};
    return true;
}

static bool is_bound(int fd)
{
    struct sockaddr_in own = {0};
    socklen_t length = sizeof(own);

    return getsockname(fd, (struct sockaddr *)&own, &length) != 0 ||
           own.sin_addr.s_addr != INADDR_ANY;
}

/* A socket that cannot be bound connects all the same. */
__attribute__((visibility("default"))) int connect(int fd, __CONST_SOCKADDR_ARG address,
                                                   socklen_t length)
{
    struct sockaddr_in source;
    int yes = 1;

    if (find_source(address.__sockaddr__, &source) && !is_bound(fd)) {
        /* The port is chosen with the peer in view, so there are enough of them. */
        (void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof(yes));
        (void)bind(fd, (const struct sockaddr *)&source, sizeof(source));
    }
    return (int)syscall(SYS_connect, fd, address.__sockaddr__, length);
}
