/* How the ranks of the TCP bootstrap find each other. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "comm/bootstrap_tcp.h"
#include "comm/log.h"

/*
 * STRANGERS: connections beyond the number of ranks that may be open without having said who they
 * are. BATCH: connections accepted before those that have spoken are heard: far fewer than there is
 * room for, so that a flood does not push out a rank whose hello has arrived. ANSWER_GRACE_S: a
 * connected rank waits this much longer than its own deadline, because rank 0, which started about
 * as late, is about to say which ranks are missing. ATTEMPT_S: what one of several addresses of
 * rank 0 gets to answer before the next is tried.
 */
enum { STRANGERS = 64, BATCH = 16, EVENTS = 64, BACKLOG = 1024 };
static const double ANSWER_GRACE_S = 1.0, ATTEMPT_S = 2.0;
static const double FIRST_RETRY_S = 0.002, LAST_RETRY_S = 0.1;

/* Addresses of "host:port". */
static xm_status_t resolve(const xm_job_env_t *env, struct addrinfo **addresses)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    char service[16];
    int error;

    (void)snprintf(service, sizeof(service), "%d", env->master_port);
    error = getaddrinfo(env->master_addr, service, &hints, addresses);
    if (error != 0) {
        return xm_error_set(XM_ERR_UNREACHABLE, "MASTER_ADDR %s: %s", env->master_addr,
                            error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
    }
    return XM_OK;
}

/* True for a number and for "localhost". Any other name may be a loopback address on its own
 * machine only, where /etc/hosts says so, and a real one for the others. */
static bool means_the_same_everywhere(const char *name)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST}, *found;

    if (strcmp(name, "localhost") == 0) {
        return true;
    }
    if (getaddrinfo(name, NULL, &hints, &found) != 0) {
        return false;
    }
    freeaddrinfo(found);
    return true;
}

/* Listens on the loopback interface when that is where the master address is, else everywhere:
 * behind address translation the name the others use may be no address of this machine. */
static void choose_listen_address(const struct addrinfo *found, bool loopback,
                                  struct sockaddr_storage *address, socklen_t *length)
{
    memset(address, 0, sizeof(*address));
    memcpy(address, found->ai_addr, found->ai_addrlen);
    *length = found->ai_addrlen;
    if (found->ai_family == AF_INET) {
        struct sockaddr_in *ipv4 = (struct sockaddr_in *)address;

        if (!loopback || (ntohl(ipv4->sin_addr.s_addr) >> 24) != 127) {
            ipv4->sin_addr.s_addr = htonl(INADDR_ANY);
        }
    } else if (found->ai_family == AF_INET6) {
        struct sockaddr_in6 *ipv6 = (struct sockaddr_in6 *)address;

        if (!loopback || !IN6_IS_ADDR_LOOPBACK(&ipv6->sin6_addr)) {
            ipv6->sin6_addr = in6addr_any;
        }
    }
}

static xm_status_t open_listener(const xm_job_env_t *env, int *listen_fd)
{
    struct addrinfo *addresses;
    struct sockaddr_storage address;
    socklen_t length;
    int fd, one = 1;
    xm_status_t status = resolve(env, &addresses);

    if (status < 0) {
        return status;
    }
    choose_listen_address(addresses, means_the_same_everywhere(env->master_addr), &address,
                          &length);
    freeaddrinfo(addresses);
    fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(fd, (const struct sockaddr *)&address, length) != 0 || listen(fd, BACKLOG) != 0) {
        status = xm_error_set(XM_ERR_IO, "rank 0 cannot listen at %s port %d: %s", env->master_addr,
                              env->master_port, strerror(errno));
        if (fd >= 0) {
            (void)close(fd);
        }
        return status;
    }
    *listen_fd = fd;
    return XM_OK;
}

typedef struct {
    xm_bootstrap_tcp_t *self;
    int listen_fd;
    xm_bootstrap_link_t *strangers; /* a ring: the oldest makes room */
    int slots, next_slot;
    int present; /* ranks that have said hello, rank 0 included */
    double timeout;
} reception_t;

static xm_status_t accept_strangers(reception_t *reception)
{
    for (int i = 0; i < BATCH; ++i) {
        int fd = accept4(reception->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        int slot = reception->next_slot;

        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
            return xm_error_set(XM_ERR_NO_MEMORY,
                                "rank 0 cannot hold connections to %d ranks: %s (ulimit -n)",
                                reception->self->base.size, strerror(errno));
        }
        if (fd < 0) {
            return XM_OK; /* none left, or one that is gone again */
        }
        xm_bootstrap_link_close(&reception->strangers[slot]);
        (void)xm_bootstrap_link_open(&reception->strangers[slot], fd, reception->self->epoll,
                                     (uint64_t)slot | XM_BOOTSTRAP_KEY_STRANGER);
        reception->next_slot = (slot + 1) % reception->slots;
    }
    return XM_OK; /* the listener stays readable */
}

/* Checks who a stranger says it is and gives it its place. */
static xm_status_t admit(reception_t *reception, xm_bootstrap_link_t *link)
{
    xm_bootstrap_tcp_t *self = reception->self;
    xm_bootstrap_identity_t identity;
    xm_bootstrap_peer_t *peer;
    char name[XM_BOOTSTRAP_HOST_SIZE + 64];

    if (xm_bootstrap_identity_decode(link->payload, link->frame.length, &identity) < 0) {
        xm_bootstrap_link_close(link);
        return XM_OK;
    }
    if (identity.size != self->base.size) {
        return xm_error_set(
            XM_ERR_MISMATCH, "rank %d (host %s, pid %d) was started for %d ranks, rank 0 for %d",
            identity.rank, identity.host, identity.pid, identity.size, self->base.size);
    }
    peer = &self->peers[identity.rank];
    if (peer->host != NULL) {
        return xm_error_set(XM_ERR_MISMATCH, "rank %d exists twice: host %s pid %d, and %s",
                            identity.rank, identity.host, identity.pid,
                            xm_bootstrap_peer_name(self, identity.rank, name, sizeof(name)));
    }
    peer->host = strdup(identity.host);
    if (peer->host == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the name of rank %d", identity.rank);
    }
    peer->pid = identity.pid;
    peer->link = *link;
    peer->link.stranger = false;
    *link = (xm_bootstrap_link_t){.fd = -1};
    ++reception->present;
    return xm_bootstrap_link_set_key(&peer->link, (uint64_t)identity.rank);
}

static xm_status_t serve_stranger(reception_t *reception, int slot)
{
    xm_bootstrap_link_t *link = &reception->strangers[slot];
    xm_status_t status = xm_bootstrap_link_receive(link);

    if (status == XM_OK) {
        return admit(reception, link);
    }
    if (status == XM_ERR_MISMATCH) {
        link->frame_read = true; /* it is told as well */
        return xm_error_prefix(status, "rank 0 was called by another version of crossmesh");
    }
    if (status < 0) {
        /* A port scanner, or another job's rank: none of ours, so no reason to fail. */
        xm_log_debug("rendezvous: dropped a connection that is not a rank's");
        xm_bootstrap_link_close(link);
    }
    return XM_OK;
}

/* An admitted rank has nothing to say before the welcome, except by dying. */
static xm_status_t serve_admitted(reception_t *reception, int rank)
{
    xm_bootstrap_peer_t *peer = &reception->self->peers[rank];
    xm_status_t status = xm_bootstrap_link_receive(&peer->link);
    char name[XM_BOOTSTRAP_HOST_SIZE + 64];

    if (status == XM_IN_PROGRESS) {
        return XM_OK;
    }
    return xm_error_set(XM_ERR_PEER_DIED, "%s died during the rendezvous",
                        xm_bootstrap_peer_name(reception->self, rank, name, sizeof(name)));
}

static bool is_absent(const xm_bootstrap_peer_t *peer)
{
    return peer->host == NULL;
}

static xm_status_t receive_ranks(reception_t *reception, double deadline)
{
    xm_bootstrap_tcp_t *self = reception->self;
    struct epoll_event events[EVENTS];
    xm_status_t status = XM_OK;
    char list[128];

    while (reception->present < self->base.size && status == XM_OK) {
        double remaining = deadline - xm_bootstrap_clock();
        int count;

        if (remaining <= 0.0) {
            int missing = xm_bootstrap_list_ranks(self, is_absent, list, sizeof(list));

            return xm_error_set(XM_ERR_TIMEOUT,
                                "rendezvous timed out after %g s: %d of %d ranks are missing: %s",
                                reception->timeout, missing, self->base.size, list);
        }
        count = epoll_wait(self->epoll, events, EVENTS,
                           remaining > 1.0 ? 1000 : (int)(remaining * 1000.0) + 1);
        for (int i = 0; i < count && status == XM_OK; ++i) {
            int key = (int)events[i].data.u64;

            if (key == XM_BOOTSTRAP_KEY_LISTENER) {
                status = accept_strangers(reception);
            } else if ((key & XM_BOOTSTRAP_KEY_STRANGER) != 0) {
                status = serve_stranger(reception, key & ~XM_BOOTSTRAP_KEY_STRANGER);
            } else {
                status = serve_admitted(reception, key);
            }
        }
    }
    return status;
}

/* Tells every admitted rank how it ended, and a stranger whose hello was refused. */
static void announce(reception_t *reception, xm_status_t status)
{
    xm_bootstrap_tcp_t *self = reception->self;
    uint8_t bytes[XM_BOOTSTRAP_FAULT_SIZE + XM_BOOTSTRAP_IDENTITY_SIZE];
    xm_bootstrap_type_t type = status < 0 ? XM_BOOTSTRAP_REFUSAL : XM_BOOTSTRAP_WELCOME;
    size_t length;

    if (status < 0) {
        xm_bootstrap_fault_t fault = {.rank = -1, .status = status};

        (void)snprintf(fault.sentence, sizeof(fault.sentence), "%s", xm_last_error());
        length = xm_bootstrap_fault_encode(&fault, bytes);
        for (int slot = 0; slot < reception->slots; ++slot) {
            xm_bootstrap_link_t *link = &reception->strangers[slot];

            /* Whose hello has come meanwhile is told as well. */
            if (link->fd >= 0 && (link->frame_read || xm_bootstrap_link_receive(link) == XM_OK)) {
                xm_bootstrap_link_send(link, type, 0, bytes, length);
            }
        }
    } else {
        xm_bootstrap_identity_t identity = {
            .rank = 0, .size = self->base.size, .pid = self->peers[0].pid};

        (void)snprintf(identity.host, sizeof(identity.host), "%s", self->host);
        length = xm_bootstrap_identity_encode(&identity, bytes);
    }
    for (int rank = 1; rank < self->base.size; ++rank) {
        xm_bootstrap_link_send(&self->peers[rank].link, type, 0, bytes, length);
    }
}

xm_status_t xm_bootstrap_rendezvous_accept(xm_bootstrap_tcp_t *self, const xm_job_env_t *env,
                                           int listen_fd, double timeout)
{
    reception_t reception = {.self = self,
                             .listen_fd = listen_fd,
                             .slots = self->base.size + STRANGERS,
                             .present = 1,
                             .timeout = timeout};
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = XM_BOOTSTRAP_KEY_LISTENER};
    double deadline = xm_bootstrap_clock() + timeout;
    xm_status_t status = XM_OK;

    if (listen_fd < 0) {
        status = open_listener(env, &reception.listen_fd);
        if (status < 0) {
            return status;
        }
    }
    reception.strangers = calloc((size_t)reception.slots, sizeof(*reception.strangers));
    if (reception.strangers == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for %d connections", reception.slots);
        goto close_listener;
    }
    for (int slot = 0; slot < reception.slots; ++slot) {
        reception.strangers[slot].fd = -1;
    }
    if (fcntl(reception.listen_fd, F_SETFL, O_NONBLOCK) != 0 ||
        epoll_ctl(self->epoll, EPOLL_CTL_ADD, reception.listen_fd, &event) != 0) {
        status = xm_error_set(XM_ERR_IO, "rank 0 cannot listen: %s", strerror(errno));
        goto free_strangers;
    }
    status = receive_ranks(&reception, deadline);
    announce(&reception, status);
    (void)epoll_ctl(self->epoll, EPOLL_CTL_DEL, reception.listen_fd, NULL);

free_strangers:
    for (int slot = 0; slot < reception.slots; ++slot) {
        xm_bootstrap_link_close(&reception.strangers[slot]);
    }
    free(reception.strangers);
close_listener:
    (void)close(reception.listen_fd);
    return status;
}

/* poll() until the deadline, whatever signals come. */
static int poll_uninterrupted(struct pollfd *entry, double deadline)
{
    int count;

    do {
        double remaining = deadline - xm_bootstrap_clock();

        count = poll(entry, 1, remaining > 0.0 ? (int)(remaining * 1000.0) + 1 : 0);
    } while (count < 0 && errno == EINTR);
    return count;
}

/* Tries one address. Returns the socket, or -1 with errno. */
static int try_connect(const struct addrinfo *address, double deadline)
{
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_storage here, there;
    socklen_t here_length = sizeof(here), there_length = sizeof(there), error_length;
    int error = 0;

    if (fd < 0) {
        return -1;
    }
    if (connect(fd, address->ai_addr, address->ai_addrlen) != 0) {
        struct pollfd entry = {.fd = fd, .events = POLLOUT};
        double remaining = deadline - xm_bootstrap_clock();

        error = errno;
        if (error == EINPROGRESS) {
            error = ETIMEDOUT;
            error_length = sizeof(error);
            if (remaining > 0.0 && poll_uninterrupted(&entry, deadline) > 0 &&
                getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_length) != 0) {
                error = errno;
            }
        }
    }
    /* A port of the ephemeral range where nobody listens may connect to itself. */
    if (error == 0 && getsockname(fd, (struct sockaddr *)&here, &here_length) == 0 &&
        getpeername(fd, (struct sockaddr *)&there, &there_length) == 0 &&
        here_length == there_length && memcmp(&here, &there, here_length) == 0) {
        error = ECONNREFUSED;
    }
    if (error != 0) {
        (void)close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* A pause before the next attempt, each twice as long as the one before. */
static void pause_before_retry(double *pause)
{
    struct timespec nap = {.tv_nsec = (long)(*pause * 1e9)};

    (void)nanosleep(&nap, NULL);
    *pause = *pause * 2 < LAST_RETRY_S ? *pause * 2 : LAST_RETRY_S;
}

/* Tries each address once. Returns the socket, or -1 with errno. */
static int try_all(const struct addrinfo *addresses, double deadline)
{
    int fd = -1;

    for (const struct addrinfo *address = addresses; address != NULL && fd < 0;
         address = address->ai_next) {
        double attempt_end = xm_bootstrap_clock() + ATTEMPT_S;

        fd = try_connect(address, attempt_end < deadline ? attempt_end : deadline);
    }
    return fd;
}

/* Connects and says hello. Tries again and again, because rank 0 may not have started; but where it
 * has been reached before (`again`) and nobody listens any more, it is gone. */
static xm_status_t say_hello(xm_bootstrap_tcp_t *self, const struct addrinfo *addresses, bool again,
                             double deadline)
{
    xm_bootstrap_identity_t identity = {
        .rank = self->base.rank, .size = self->base.size, .pid = (int)getpid()};
    uint8_t bytes[XM_BOOTSTRAP_IDENTITY_SIZE];
    xm_bootstrap_link_t *link = &self->peers[0].link;
    double pause = FIRST_RETRY_S;
    int fd = try_all(addresses, deadline);
    xm_status_t status;

    while (fd < 0 && !(again && errno == ECONNREFUSED) && xm_bootstrap_clock() + pause < deadline) {
        pause_before_retry(&pause);
        fd = try_all(addresses, deadline);
    }
    if (fd < 0) {
        return XM_ERR_UNREACHABLE;
    }
    status = xm_bootstrap_link_open(link, fd, self->epoll, 0);
    if (status == XM_OK) {
        link->stranger = false;
        (void)snprintf(identity.host, sizeof(identity.host), "%s", self->host);
        xm_bootstrap_link_send(link, XM_BOOTSTRAP_HELLO, 0, bytes,
                               xm_bootstrap_identity_encode(&identity, bytes));
    }
    return status;
}

/* Rank 0's answer to the hello. */
static xm_status_t read_answer(xm_bootstrap_tcp_t *self)
{
    xm_bootstrap_link_t *link = &self->peers[0].link;
    xm_bootstrap_identity_t identity;
    xm_bootstrap_fault_t fault;
    xm_status_t status;

    if (link->frame.type == XM_BOOTSTRAP_REFUSAL) {
        status = xm_bootstrap_fault_decode(link->payload, link->frame.length, &fault);
        return status < 0 ? status : xm_error_set(fault.status, "%s", fault.sentence);
    }
    if (link->frame.type != XM_BOOTSTRAP_WELCOME) {
        return xm_error_set(XM_ERR_CORRUPT, "rank 0 answered with frame type %d",
                            (int)link->frame.type);
    }
    status = xm_bootstrap_identity_decode(link->payload, link->frame.length, &identity);
    if (status == XM_OK) {
        self->peers[0].pid = identity.pid;
        self->peers[0].host = strdup(identity.host);
    }
    return status;
}

/* @p closed: the connection ended without an answer. */
static xm_status_t await_answer(xm_bootstrap_tcp_t *self, double timeout, double deadline,
                                bool *closed)
{
    xm_bootstrap_link_t *link = &self->peers[0].link;
    xm_status_t status;

    while ((status = xm_bootstrap_link_receive(link)) == XM_IN_PROGRESS) {
        struct pollfd entry = {.fd = self->epoll, .events = POLLIN};
        double remaining = deadline - xm_bootstrap_clock();

        if (remaining <= 0.0) {
            return xm_error_set(XM_ERR_TIMEOUT,
                                "rank %d reached rank 0 but was not welcomed within %g s: ranks "
                                "are missing",
                                self->base.rank, timeout);
        }
        (void)poll(&entry, 1, (int)(remaining * 1000.0) + 1);
        xm_bootstrap_link_flush(link);
    }
    if (status == XM_OK) {
        return read_answer(self);
    }
    *closed = status == XM_ERR_IO;
    if (*closed) {
        return xm_error_set(XM_ERR_PEER_DIED,
                            "rank 0 closed the connection of rank %d during the rendezvous",
                            self->base.rank);
    }
    return xm_error_prefix(status, status == XM_ERR_MISMATCH
                                       ? "rank 0 runs another version of crossmesh"
                                       : "what listens at the master port is not rank 0 of "
                                         "crossmesh");
}

xm_status_t xm_bootstrap_rendezvous_connect(xm_bootstrap_tcp_t *self, const xm_job_env_t *env,
                                            double timeout)
{
    double deadline = xm_bootstrap_clock() + timeout, pause = FIRST_RETRY_S;
    struct addrinfo *addresses;
    bool again = false, closed = false;
    xm_status_t status = resolve(env, &addresses);

    if (status < 0) {
        return status;
    }
    /* Rank 0 drops the oldest connections when strangers flood it, so a closed one is tried anew;
     * where nobody listens any more, rank 0 is gone. */
    do {
        if (closed) {
            pause_before_retry(&pause);
        }
        again = closed;
        closed = false;
        status = say_hello(self, addresses, again, deadline);
        if (status == XM_OK) {
            status = await_answer(self, timeout, deadline + ANSWER_GRACE_S, &closed);
        } else if (status == XM_ERR_UNREACHABLE && again) {
            status =
                xm_error_set(XM_ERR_PEER_DIED, "rank 0 died before it welcomed rank %d", env->rank);
        } else if (status == XM_ERR_UNREACHABLE) {
            status = xm_error_set(XM_ERR_TIMEOUT,
                                  "rank %d: no rank 0 at %s port %d within %g s: %s", env->rank,
                                  env->master_addr, env->master_port, timeout, strerror(errno));
        }
        if (status < 0) {
            xm_bootstrap_link_close(&self->peers[0].link); /* no goodbye without a welcome */
        }
    } while (closed && xm_bootstrap_clock() + pause < deadline);
    freeaddrinfo(addresses);
    return status;
}
