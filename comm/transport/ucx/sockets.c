/* SPDX-License-Identifier: Apache-2.0 */
/* The sockets of this process. They are looked for in /proc, because UCX keeps its descriptors to
 * itself; this happens when it connects, and not when bytes move. */
#include "comm/transport/ucx/sockets.h"

#include <dirent.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

void xm_ucx_sockets_each(bool (*look)(void *arg, int fd), void *arg)
{
    DIR *folder = opendir("/proc/self/fd");
    bool enough = false;

    if (folder == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(folder); entry != NULL && !enough;
         entry = readdir(folder)) {
        enough = entry->d_name[0] != '.' && look(arg, atoi(entry->d_name));
    }
    (void)closedir(folder);
}

bool xm_ucx_socket_own_end(int fd, xm_ucx_end_t *end)
{
    xm_address_t address = {.length = sizeof(address.socket)};

    if (getsockname(fd, (struct sockaddr *)&address.socket, &address.length) != 0 ||
        (address.socket.ss_family != AF_INET && address.socket.ss_family != AF_INET6)) {
        return false;
    }
    xm_address_write(&address.socket, end->address);
    end->port = (uint16_t)xm_address_port(&address);
    return true;
}

bool xm_ucx_end_equal(const xm_ucx_end_t *a, const xm_ucx_end_t *b)
{
    return a->port == b->port && memcmp(a->address, b->address, sizeof(a->address)) == 0;
}

void xm_ucx_end_address(const xm_ucx_end_t *end, int port, xm_address_t *address)
{
    xm_address_read(end->address, address);
    xm_address_set_port(address, port);
}

bool xm_ucx_socket_listens(int fd)
{
    int listening = 0;
    socklen_t length = sizeof(listening);

    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) == 0 && listening != 0;
}

bool xm_ucx_socket_connects(int fd)
{
    struct tcp_info info;
    socklen_t length = sizeof(info);

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
           info.tcpi_state == TCP_SYN_SENT;
}

/* Reads an end as the kernel's table writes it: words of the address in hexadecimal digits, then
 * the port. */
static bool parse_end(const char *text, xm_ucx_end_t *end)
{
    size_t words = strcspn(text, ":") / 8;
    uint32_t word;

    memset(end->address, 0, sizeof(end->address));
    memset(end->address + 10, words == 1 ? 0xff : 0, 2);
    for (size_t i = 0; i < words && words <= 4; ++i) {
        if (sscanf(text + 8 * i, "%8" SCNx32, &word) != 1) {
            return false;
        }
        memcpy(end->address + 4 * (4 - words + i), &word, sizeof(word));
    }
    return (words == 1 || words == 4) && sscanf(text + 8 * words, ":%4" SCNx16, &end->port) == 1;
}

/* The socket is found by its inode; the other columns are skipped. */
bool xm_ucx_socket_other_end(int fd, xm_ucx_end_t *end)
{
    static const char *const tables[] = {"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"};
    char line[512], other[64];
    struct stat socket_stat;
    unsigned long inode;
    bool found = false;

    if (fstat(fd, &socket_stat) != 0) {
        return false;
    }
    for (int i = 0; i < 2 && !found; ++i) {
        FILE *table = fopen(tables[i], "re");

        while (table != NULL && !found && fgets(line, sizeof(line), table) != NULL) {
            found = sscanf(line, "%*s %*s %63s %*s %*s %*s %*s %*s %*s %lu", other, &inode) == 2 &&
                    inode == socket_stat.st_ino && parse_end(other, end);
        }
        if (table != NULL) {
            (void)fclose(table);
        }
    }
    return found;
}
