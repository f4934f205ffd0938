/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/comm/transport/ucx/lane_strike.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/comm/job/local_job.h"

enum { MOST_FDS = 1024, LANES = LANE_STRIKE_LANES };

static int listening[2][LANES]; /* ports of the two ranks' rails, once exchanged */
static int before[MOST_FDS];
static int before_count;

static int tcp_port(int fd, bool own, bool *listens)
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof(address), size = sizeof(int);
    int accepts = 0;

    if (own ? getsockname(fd, (struct sockaddr *)&address, &length) != 0
            : getpeername(fd, (struct sockaddr *)&address, &length) != 0) {
        return -1;
    }
    if (listens != NULL) {
        (void)getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size);
        *listens = accepts != 0;
    }
    return address.ss_family == AF_INET ? ntohs(((struct sockaddr_in *)&address)->sin_port) : -1;
}

void lane_strike_begin(void)
{
    before_count = 0;
    for (int fd = 0; fd < MOST_FDS; ++fd) {
        if (fcntl(fd, F_GETFD) >= 0) {
            before[before_count++] = fd;
        }
    }
}

static bool is_new(int fd)
{
    for (int i = 0; i < before_count; ++i) {
        if (before[i] == fd) {
            return false;
        }
    }
    return true;
}

void lane_strike_learn(xm_bootstrap_t *bootstrap, double limit)
{
    int own[LANES] = {0}, all[2 * LANES], found = 0;

    /* In the order of the rails. */
    for (int fd = 0; fd < MOST_FDS && found < LANES; ++fd) {
        bool listens = false;
        int port = is_new(fd) ? tcp_port(fd, true, &listens) : -1;

        if (port > 0 && listens) {
            own[found++] = port;
        }
    }
    local_expect(found == LANES, "%d rails listen", found);
    local_expect_ok(xm_bootstrap_allgather(bootstrap, own, all, sizeof(own), local_timeout(limit)));
    memcpy(listening, all, sizeof(listening));
}

int lane_strike(int rank, int lane, void (*strike)(int fd))
{
    int count = 0;

    for (int fd = 0; fd < MOST_FDS; ++fd) {
        bool listens = false;
        int own = is_new(fd) ? tcp_port(fd, true, &listens) : -1, other = tcp_port(fd, false, NULL);

        if (own > 0 && !listens &&
            (own == listening[rank][lane] || other == listening[1 - rank][lane])) {
            strike(fd);
            ++count;
        }
    }
    return count;
}

void lane_cut(int fd)
{
    (void)shutdown(fd, SHUT_RDWR);
}

void lane_swallow(int fd)
{
    struct sock_filter nothing[] = {{BPF_RET | BPF_K, 0, 0, 0}};
    struct sock_fprog program = {.len = 1, .filter = nothing};

    local_expect(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0,
                 "filter");
}

void lane_let_through(int fd)
{
    int nothing = 0;

    local_expect(setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &nothing, sizeof(nothing)) == 0,
                 "filter");
}
