/* SPDX-License-Identifier: Apache-2.0 */
/* The gate before UCX's TCP ports. UCX tells nothing of its listening sockets, so they are looked
 * up among the descriptors of this process: they bear a port that stands in the worker's address.
 */
#include "comm/transport/ucx/gate.h"

#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "comm/base.h"

enum {
    WORDS = XM_ADDRESS_BYTES / 4,
    HEAD = 4,                   /* instructions before those of addresses */
    PER_ADDRESS = 2 * WORDS + 1 /* at most */
};

struct xm_ucx_gate {
    uint8_t (*allowed)[XM_ADDRESS_BYTES];
    int count;
    int *before; /* descriptors that listened already, or are shut */
    size_t before_count, before_room;
};

static bool listens(int fd)
{
    int listening = 0;
    socklen_t length = sizeof(listening);

    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) == 0 && listening != 0;
}

/* Calls a function for every listening socket of this process. */
static void each_listener(xm_ucx_gate_t *gate, void (*look)(xm_ucx_gate_t *, int, void *),
                          void *arg)
{
    DIR *folder = opendir("/proc/self/fd");

    if (folder == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        int fd = (int)strtol(entry->d_name, NULL, 10);

        if (entry->d_name[0] != '.' && listens(fd)) {
            look(gate, fd, arg);
        }
    }
    (void)closedir(folder);
}

static void note(xm_ucx_gate_t *gate, int fd, void *arg)
{
    (void)arg;
    if (XM_ARRAY_ROOM(gate->before, gate->before_room, gate->before_count)) {
        gate->before[gate->before_count++] = fd;
    }
}

xm_status_t xm_ucx_gate_create(const uint8_t (*allowed)[XM_ADDRESS_BYTES], int count,
                               xm_ucx_gate_t **gate)
{
    xm_ucx_gate_t *self = calloc(1, sizeof(*self));

    if (self != NULL && count > 0) {
        self->allowed = malloc((size_t)count * sizeof(*self->allowed));
    }
    if (self == NULL || (count > 0 && self->allowed == NULL)) {
        free(self);
        return XM_NO_MEMORY("the gate of UCX's ports");
    }
    if (count > 0) {
        memcpy(self->allowed, allowed, (size_t)count * sizeof(*self->allowed));
        self->count = count;
        each_listener(self, note, NULL);
    }
    *gate = self;
    return XM_OK;
}

void xm_ucx_gate_destroy(xm_ucx_gate_t *gate)
{
    if (gate != NULL) {
        free(gate->before);
        free(gate->allowed);
        free(gate);
    }
}

static bool is_ipv4(const uint8_t address[XM_ADDRESS_BYTES])
{
    return IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)address);
}

/* Writes the filter: what is no SYN passes, since those who were let in inherit the filter; a SYN
 * passes if it comes from one of the addresses. Those of the other family never call at this
 * socket, which is bound to an address. IPv4 addresses are the last word of four. */
static size_t write_filter(const xm_ucx_gate_t *gate, bool ipv4, struct sock_filter *program)
{
    unsigned at = (unsigned)SKF_NET_OFF + (ipv4 ? 12u : 8u), first = ipv4 ? WORDS - 1 : 0;
    size_t count = 0;

    program[count++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 13);
    program[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 2, 1, 0);
    program[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
    for (int i = 0; i < gate->count; ++i) {
        uint8_t left = (uint8_t)(1 + 2 * (WORDS - first));

        for (unsigned word = first; is_ipv4(gate->allowed[i]) == ipv4 && word < WORDS; ++word) {
            uint32_t value;

            left = (uint8_t)(left - 2);
            memcpy(&value, gate->allowed[i] + 4 * word, sizeof(value));
            program[count++] =
                (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at + 4 * (word - first));
            program[count++] =
                (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(value), 0, left);
            if (word == WORDS - 1) {
                program[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
            }
        }
    }
    program[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
    return count;
}

static bool set_filter(const xm_ucx_gate_t *gate, int fd, bool ipv4)
{
    struct sock_filter *program =
        malloc((HEAD + (size_t)gate->count * PER_ADDRESS) * sizeof(*program));
    struct sock_fprog filter = {.filter = program};
    size_t count = program != NULL ? write_filter(gate, ipv4, program) : 0;
    bool set = false;

    if (count > 0 && count <= BPF_MAXINSNS) {
        filter.len = (unsigned short)count;
        set = setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0;
    } else {
        errno = E2BIG;
    }
    free(program);
    return set;
}

typedef struct {
    const void *address;
    size_t length;
} ports_t;

/* A socket is UCX's if it did not listen before, and the worker's address has its port. */
static void shut(xm_ucx_gate_t *gate, int fd, void *arg)
{
    const ports_t *ports = arg;
    xm_address_t own = {.length = sizeof(own.socket)};
    uint8_t bytes[XM_ADDRESS_BYTES];
    uint16_t port;

    for (size_t i = 0; i < gate->before_count; ++i) {
        if (gate->before[i] == fd) {
            return;
        }
    }
    if (getsockname(fd, (struct sockaddr *)&own.socket, &own.length) != 0 ||
        (own.socket.ss_family != AF_INET && own.socket.ss_family != AF_INET6)) {
        return;
    }
    port = htons((uint16_t)xm_address_port(&own));
    if (memmem(ports->address, ports->length, &port, sizeof(port)) == NULL) {
        return;
    }
    xm_address_write(&own.socket, bytes);
    if (!set_filter(gate, fd, is_ipv4(bytes))) {
        xm_log_info("port %u of UCX is open to everybody: %s", ntohs(port), strerror(errno));
    }
    note(gate, fd, NULL);
}

void xm_ucx_gate_shut(xm_ucx_gate_t *gate, const void *address, size_t length)
{
    ports_t ports = {address, length};

    if (gate->count > 0) {
        each_listener(gate, shut, &ports);
    }
}
