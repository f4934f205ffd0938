/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connections and transfers of socket_copy: one non-blocking TCP connection for each
 * pair, driven by one poll() loop. It is kept as plain as a careful user would write it,
 * because it is the baseline.
 */
#include "bench/baseline/socket_flow.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "comm/base.h"

enum { PIECE = 1 << 20, BACKLOG = 4096 };

/* This rank's end of a pair. */
typedef struct {
    int pair, peer;
    bool sends;
    int socket;
    unsigned char *buffer; /* a receiver's own; the flow's source when it sends */
    uint64_t done;         /* bytes of this run */
} end_t;

struct rb_socket_flow {
    xm_bootstrap_t *bootstrap;
    const rb_pair_list_t *pairs;
    uint64_t bytes;
    double timeout;
    end_t *ends;
    int count;
    unsigned char *source; /* what this rank sends to everybody */
    struct pollfd *polled; /* of the ends, and the bootstrap's behind them */
};

/* Where a rank can be reached. */
typedef struct {
    socklen_t length;
    struct sockaddr_storage address;
} reach_t;

/* Finds the address that this rank has towards the master, by connecting a datagram
 * socket; nothing is sent. */
static xm_status_t own_address(const xm_job_env_t *env, reach_t *reach)
{
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *found = NULL;
    char service[16];
    int probe = -1, error;

    (void)snprintf(service, sizeof(service), "%d", env->master_port);
    error = getaddrinfo(env->master_addr, service, &hints, &found);
    if (error != 0) {
        return xm_error_set(XM_ERR_UNREACHABLE, "%s: %s", env->master_addr, gai_strerror(error));
    }
    reach->length = sizeof(reach->address);
    probe = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    error = probe < 0 || connect(probe, found->ai_addr, found->ai_addrlen) != 0 ||
                    getsockname(probe, (struct sockaddr *)&reach->address, &reach->length) != 0
                ? errno
                : 0;
    if (probe >= 0) {
        (void)close(probe);
    }
    freeaddrinfo(found);
    return error == 0 ? XM_OK
                      : xm_error_set(XM_ERR_UNREACHABLE, "no way to the master at %s: %s",
                                     env->master_addr, strerror(error));
}

/* The kernel chooses the port. */
static xm_status_t open_listener(reach_t *reach, int *listener)
{
    struct sockaddr *address = (struct sockaddr *)&reach->address;

    if (address->sa_family == AF_INET) {
        ((struct sockaddr_in *)address)->sin_port = 0;
    } else {
        ((struct sockaddr_in6 *)address)->sin6_port = 0;
    }
    *listener = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*listener < 0 || bind(*listener, address, reach->length) != 0 ||
        listen(*listener, BACKLOG) != 0 || getsockname(*listener, address, &reach->length) != 0) {
        return xm_error_set(XM_ERR_IO, "cannot listen: %s", strerror(errno));
    }
    return XM_OK;
}

/* Waits for one descriptor, with the rank in the sentence. */
static xm_status_t wait_for(int fd, short events, double timeout, const char *what, int rank)
{
    struct pollfd polled = {.fd = fd, .events = events};
    int ready = poll(&polled, 1, (int)(timeout * 1e3));

    return ready > 0 ? XM_OK
                     : xm_error_set(XM_ERR_TIMEOUT, "%s rank %d: nothing for %.0f s", what, rank,
                                    timeout);
}

/* Limits connect(), and a recv() of several bytes; without limits a lost peer would hang
 * the rank. */
static bool limit_waits(int fd, double timeout)
{
    struct timeval limit = {.tv_sec = (time_t)timeout + 1};

    return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0 &&
           setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0;
}

/* Connects to a receiver and says first which pair the connection is for, as their order
 * of arrival is open. */
static xm_status_t greet(rb_socket_flow_t *flow, end_t *end, const reach_t *reach)
{
    int32_t number = end->pair;

    end->socket = socket(reach->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (end->socket < 0 || !limit_waits(end->socket, flow->timeout) ||
        connect(end->socket, (const struct sockaddr *)&reach->address, reach->length) != 0 ||
        send(end->socket, &number, sizeof(number), MSG_NOSIGNAL) != (ssize_t)sizeof(number)) {
        return xm_error_set(XM_ERR_UNREACHABLE, "rank %d cannot connect to rank %d: %s",
                            xm_bootstrap_rank(flow->bootstrap), end->peer, strerror(errno));
    }
    return XM_OK;
}

/* A pair can connect once only. */
static end_t *find_receiver(rb_socket_flow_t *flow, int32_t pair)
{
    for (int i = 0; i < flow->count; ++i) {
        if (!flow->ends[i].sends && flow->ends[i].pair == pair && flow->ends[i].socket < 0) {
            return &flow->ends[i];
        }
    }
    return NULL;
}

/* Accepts one connection and reads whose it is. Senders greet first; the kernel answers
 * for receivers that are not there yet, so nobody waits in a ring. */
static xm_status_t accept_one(rb_socket_flow_t *flow, int listener)
{
    int rank = xm_bootstrap_rank(flow->bootstrap), taken;
    int32_t number = -1;
    end_t *end;

    XM_TRY(wait_for(listener, POLLIN, flow->timeout, "senders of", rank));
    taken = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (taken < 0) {
        return xm_error_set(XM_ERR_IO, "rank %d cannot accept: %s", rank, strerror(errno));
    }
    if (!limit_waits(taken, flow->timeout) ||
        recv(taken, &number, sizeof(number), MSG_WAITALL) != (ssize_t)sizeof(number)) {
        number = -1;
    }
    end = find_receiver(flow, number);
    if (end == NULL) {
        (void)close(taken);
        return xm_error_set(XM_ERR_CORRUPT, "rank %d: a stranger connected", rank);
    }
    end->socket = taken;
    return XM_OK;
}

/* Connecting all before accepting any cannot deadlock, as accept_one() explains. */
static xm_status_t connect_all(rb_socket_flow_t *flow, const reach_t *all, int listener)
{
    int incoming = 0, yes = 1;

    for (int i = 0; i < flow->count; ++i) {
        incoming += !flow->ends[i].sends;
        if (flow->ends[i].sends) {
            XM_TRY(greet(flow, &flow->ends[i], &all[flow->ends[i].peer]));
        }
    }
    for (int i = 0; i < incoming; ++i) {
        XM_TRY(accept_one(flow, listener));
    }
    for (int i = 0; i < flow->count; ++i) {
        int fd = flow->ends[i].socket, flags = fcntl(fd, F_GETFL);

        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
        if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
            return xm_error_set(XM_ERR_IO, "fcntl: %s", strerror(errno));
        }
    }
    return XM_OK;
}

/* Lists the ends of this rank, with a buffer for each that receives; all sends share one
 * source. */
static xm_status_t list_ends(rb_socket_flow_t *flow)
{
    int rank = xm_bootstrap_rank(flow->bootstrap);

    for (int i = 0; i < flow->pairs->count; ++i) {
        const rb_pair_t *pair = &flow->pairs->pairs[i];
        end_t *end = &flow->ends[flow->count];

        if (pair->sender != rank && pair->receiver != rank) {
            continue;
        }
        *end = (end_t){.pair = i, .sends = pair->sender == rank, .socket = -1};
        end->peer = end->sends ? pair->receiver : pair->sender;
        ++flow->count;
        if (end->sends && flow->source == NULL) {
            flow->source = malloc(flow->bytes);
        }
        end->buffer = end->sends ? flow->source : malloc(flow->bytes);
        if (end->buffer == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "rank %d has no memory for %" PRIu64 " bytes",
                                rank, flow->bytes);
        }
    }
    return XM_OK;
}

/* The listener is needed only while the connections are made. */
static xm_status_t meet(rb_socket_flow_t *flow, const xm_job_env_t *env)
{
    reach_t own = {0}, *all;
    int listener = -1;
    xm_status_t status = own_address(env, &own);

    XM_THEN(status, open_listener(&own, &listener));
    all = malloc((size_t)xm_bootstrap_size(flow->bootstrap) * sizeof(*all));
    if (status == XM_OK && all == NULL) {
        status = XM_NO_MEMORY("the addresses of all ranks");
    }
    XM_THEN(status, xm_bootstrap_allgather(flow->bootstrap, &own, all, sizeof(own), flow->timeout));
    XM_THEN(status, connect_all(flow, all, listener));
    free(all);
    if (listener >= 0) {
        (void)close(listener);
    }
    return status;
}

xm_status_t rb_socket_flow_create(xm_bootstrap_t *bootstrap, const xm_job_env_t *env,
                                  const rb_pair_list_t *pairs, uint64_t bytes, double timeout,
                                  rb_socket_flow_t **flow)
{
    rb_socket_flow_t *made = calloc(1, sizeof(*made));
    xm_status_t status;

    XM_NEED_MEMORY(made, "a flow");
    *made = (rb_socket_flow_t){
        .bootstrap = bootstrap, .pairs = pairs, .bytes = bytes, .timeout = timeout};
    made->ends = calloc((size_t)pairs->count + 1, sizeof(*made->ends));
    made->polled = calloc((size_t)pairs->count + 1, sizeof(*made->polled));
    status = made->ends != NULL && made->polled != NULL ? list_ends(made)
                                                        : XM_NO_MEMORY("%d pairs", pairs->count);
    XM_THEN(status, meet(made, env));
    if (status < 0) {
        rb_socket_flow_destroy(made);
        return status;
    }
    *flow = made;
    return XM_OK;
}

/* The byte at @p place of what @p sender sends in a run: it follows from the place, the
 * sender and the run. */
static unsigned char pattern(uint64_t place, int sender, int run)
{
    return (unsigned char)((xm_hash_spread(place) >> 40) + (unsigned)sender * 29u +
                           (unsigned)run * 101u);
}

/* Receivers start with the complement, so a byte that never came is wrong. */
static void fill(const rb_socket_flow_t *flow, int run)
{
    int rank = xm_bootstrap_rank(flow->bootstrap);

    for (uint64_t i = 0; flow->source != NULL && i < flow->bytes; ++i) {
        flow->source[i] = pattern(i, rank, run);
    }
    for (int e = 0; e < flow->count; ++e) {
        const end_t *end = &flow->ends[e];

        for (uint64_t i = 0; !end->sends && i < flow->bytes; ++i) {
            end->buffer[i] = (unsigned char)~pattern(i, end->peer, run);
        }
    }
}

/* Counts bytes, so that the size of a fault shows. */
static int64_t check(const rb_socket_flow_t *flow, int run)
{
    int64_t wrong = 0;

    for (int e = 0; e < flow->count; ++e) {
        const end_t *end = &flow->ends[e];

        for (uint64_t i = 0; !end->sends && i < flow->bytes; ++i) {
            wrong += end->buffer[i] != pattern(i, end->peer, run);
        }
    }
    return wrong;
}

/* Moves what can be moved at once, at most a piece, so that all connections take turns. */
static xm_status_t advance(const rb_socket_flow_t *flow, end_t *end)
{
    uint64_t left = flow->bytes - end->done;
    size_t piece = left < PIECE ? (size_t)left : PIECE;
    ssize_t moved = end->sends ? send(end->socket, end->buffer + end->done, piece, MSG_NOSIGNAL)
                               : recv(end->socket, end->buffer + end->done, piece, 0);

    if (moved > 0) {
        end->done += (uint64_t)moved;
        return XM_OK;
    }
    if (moved < 0 && (errno == EAGAIN || errno == EINTR)) {
        return XM_OK;
    }
    return xm_error_set(XM_ERR_PEER_DIED, "rank %d %s after %" PRIu64 " of %" PRIu64 " bytes",
                        end->peer, moved == 0 ? "has closed its connection" : strerror(errno),
                        end->done, flow->bytes);
}

/* Waits until something can be moved or a rank is gone, which the bootstrap's descriptor
 * tells. */
static xm_status_t wait_any(rb_socket_flow_t *flow, int *open)
{
    int fault = xm_bootstrap_fd(flow->bootstrap), ready;

    *open = 0;
    for (int e = 0; e < flow->count; ++e) {
        const end_t *end = &flow->ends[e];
        bool finished = end->done == flow->bytes;

        flow->polled[e] = (struct pollfd){.fd = finished ? -1 : end->socket,
                                          .events = end->sends ? POLLOUT : POLLIN};
        *open += !finished;
    }
    if (*open == 0) {
        return XM_OK;
    }
    flow->polled[flow->count] = (struct pollfd){.fd = fault, .events = POLLIN};
    ready = poll(flow->polled, (nfds_t)flow->count + 1, (int)(flow->timeout * 1e3));
    if (ready == 0) {
        return xm_error_set(XM_ERR_TIMEOUT, "rank %d: nothing moved for %.0f s",
                            xm_bootstrap_rank(flow->bootstrap), flow->timeout);
    }
    return flow->polled[flow->count].revents != 0 ? xm_bootstrap_poll(flow->bootstrap, NULL)
                                                  : XM_OK;
}

/* A pass over all ends after each poll, so no connection starves. */
static xm_status_t move(rb_socket_flow_t *flow)
{
    int open = 1;
    xm_status_t status = XM_OK;

    for (int e = 0; e < flow->count; ++e) {
        flow->ends[e].done = 0;
    }
    while (status == XM_OK && open > 0) {
        status = wait_any(flow, &open);
        for (int e = 0; status == XM_OK && open > 0 && e < flow->count; ++e) {
            if (flow->polled[e].revents != 0) {
                status = advance(flow, &flow->ends[e]);
            }
        }
    }
    return status;
}

/* Filling and checking stand outside of the measured time. */
xm_status_t rb_socket_flow_run(rb_socket_flow_t *flow, int run, rb_flow_sample_t *sample)
{
    int64_t start, cpu;

    fill(flow, run);
    XM_TRY(xm_bootstrap_barrier(flow->bootstrap, flow->timeout));
    cpu = xm_clock_cpu_ns();
    start = xm_clock_ns();
    XM_TRY(move(flow));
    sample->ns = xm_clock_ns() - start;
    sample->cpu_ns = xm_clock_cpu_ns() - cpu;
    sample->wrong = check(flow, run);
    return XM_OK;
}

void rb_socket_flow_destroy(rb_socket_flow_t *flow)
{
    if (flow == NULL) {
        return;
    }
    for (int e = 0; flow->ends != NULL && e < flow->count; ++e) {
        if (flow->ends[e].socket >= 0) {
            (void)close(flow->ends[e].socket);
        }
        if (!flow->ends[e].sends) {
            free(flow->ends[e].buffer);
        }
    }
    free(flow->source);
    free(flow->polled);
    free(flow->ends);
    free(flow);
}
