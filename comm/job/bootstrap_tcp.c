/* SPDX-License-Identifier: Apache-2.0 */
/* The life of the TCP bootstrap after its rendezvous: rank 0 is connected with all others and
 * relays allgathers and faults. There is no thread: rank 0 relays from inside its own calls, and
 * the others hear faults from inside theirs, so nothing here needs a lock. The kernel closes the
 * connections of a process that dies, which makes rank 0 (or, when it is rank 0, the others) ask
 * the guard within milliseconds; but connections end for other reasons as well, and are then
 * replaced. The first fault stays; the others are told the same sentence. */
#include "comm/job/bootstrap_tcp.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/base.h"
#include "comm/job/launcher.h"

/* EVENTS: taken in one poll. FIN_MS: how long a leaving rank waits for the kernel to take
 * its last frames. */
enum { EVENTS = 64, FIN_MS = 1000 };

void xm_bootstrap_send_fault(xm_bootstrap_link_t *link, xm_bootstrap_type_t type,
                             const xm_bootstrap_fault_t *fault)
{
    uint8_t bytes[XM_BOOTSTRAP_FAULT_SIZE];

    xm_bootstrap_link_send(link, type, 0, bytes, xm_bootstrap_fault_encode(fault, bytes));
}

/* Makes a fault the sticky status, unless there is one, and on rank 0 tells everybody. The
 * frames are queued, so this never blocks, even if a rank does not read. */
void xm_bootstrap_tcp_settle(xm_bootstrap_tcp_t *self, const xm_bootstrap_fault_t *fault)
{
    if (self->base.fault.status != XM_OK) {
        return;
    }
    self->base.fault = *fault;
    if (self->base.rank == 0) {
        for (int rank = 1; rank < self->base.size; ++rank) {
            xm_bootstrap_send_fault(&self->peers[rank].link, XM_BOOTSTRAP_FAULT, fault);
        }
    }
    if (self->guarded) {
        self->guard.tell(self->guard.arg, fault,
                         self->base.rank == 0 || fault->rank == self->base.rank);
    }
}

void xm_bootstrap_tcp_fault_of(const xm_bootstrap_tcp_t *self, int rank, xm_status_t status,
                               const char *what, xm_bootstrap_fault_t *fault)
{
    char name[XM_BOOTSTRAP_NAME_SIZE];

    fault->rank = rank;
    fault->status = status;
    (void)snprintf(fault->sentence, sizeof(fault->sentence), "%s %s",
                   xm_bootstrap_peer_name(self, rank, name, sizeof(name)), what);
}

/* Keeps the worse of two faults that are seen in one poll: a death explains the aborts that
 * follow it, and the kernel may deliver them in the other order. */
static void keep_worse(xm_bootstrap_fault_t *kept, const xm_bootstrap_fault_t *found)
{
    if (kept->status == XM_OK ||
        (kept->status == XM_ERR_CANCELED && found->status == XM_ERR_PEER_DIED)) {
        *kept = *found;
    }
}

/* Rank 0 handles one frame of a rank. */
static void serve_frame(xm_bootstrap_tcp_t *self, int rank, xm_bootstrap_fault_t *fault)
{
    xm_bootstrap_peer_t *peer = &self->peers[rank];
    xm_bootstrap_link_t *link = &peer->link;
    xm_bootstrap_fault_t found = {0};

    switch (link->frame.type) {
    case XM_BOOTSTRAP_ALIVE:
        return;
    case XM_BOOTSTRAP_GATHER:
    case XM_BOOTSTRAP_GATHERV:
        if (xm_bootstrap_tcp_take_block(self, rank)) {
            return;
        }
        xm_bootstrap_tcp_fault_of(self, rank, XM_ERR_CORRUPT,
                                  "is out of step with the allgathers of rank 0", &found);
        break;
    case XM_BOOTSTRAP_GOODBYE:
        peer->left = true;
        xm_bootstrap_link_close(link);
        return;
    case XM_BOOTSTRAP_ABORT:
        if (xm_bootstrap_fault_decode(link->payload, link->frame.length, &found) == XM_OK) {
            char sentence[XM_BOOTSTRAP_SENTENCE_SIZE + 16];

            if (found.rank < self->base.size &&
                (found.status != XM_ERR_CANCELED || (found.rank >= 0 && found.rank != rank))) {
                break; /* it has found that somebody is gone, or learnt it elsewhere */
            }
            (void)snprintf(sentence, sizeof(sentence), "gave up: %s", found.sentence);
            xm_bootstrap_tcp_fault_of(self, rank, XM_ERR_CANCELED, sentence, &found);
            break;
        }
        /* fall through */
    default:
        xm_bootstrap_tcp_fault_of(self, rank, XM_ERR_CORRUPT,
                                  "sent a frame that makes no sense to rank 0", &found);
    }
    keep_worse(fault, &found);
}

/* The other ranks handle one frame of rank 0. */
static void obey_frame(xm_bootstrap_tcp_t *self, xm_bootstrap_fault_t *fault)
{
    xm_bootstrap_link_t *link = &self->peers[0].link;
    xm_bootstrap_fault_t found = {0};

    switch (link->frame.type) {
    case XM_BOOTSTRAP_ALIVE:
        return;
    case XM_BOOTSTRAP_GATHERED:
    case XM_BOOTSTRAP_GATHEREDV:
        if (xm_bootstrap_tcp_take_result(self)) {
            return;
        }
        break;
    case XM_BOOTSTRAP_GOODBYE:
        self->peers[0].left = true;
        xm_bootstrap_link_close(link);
        return;
    case XM_BOOTSTRAP_FAULT:
        if (xm_bootstrap_fault_decode(link->payload, link->frame.length, &found) == XM_OK) {
            keep_worse(fault, &found);
            return;
        }
        break;
    default:
        break;
    }
    xm_bootstrap_tcp_fault_of(self, 0, XM_ERR_CORRUPT, "sent a frame that makes no sense here",
                              &found);
    keep_worse(fault, &found);
}

/* Reads all that a link has. The end of the stream without a goodbye is a death, unless there is a
 * guard to say what it is; bytes that are no frame are a fault of that rank, of which rank 0 tells
 * it before it closes. */
static void drain_link(xm_bootstrap_tcp_t *self, int rank, xm_bootstrap_fault_t *fault)
{
    xm_bootstrap_link_t *link = &self->peers[rank].link;
    xm_bootstrap_fault_t found = {0};
    bool heard = false;
    xm_status_t status;

    while ((status = xm_bootstrap_link_receive(link)) == XM_OK) {
        heard = true;
        if (self->base.rank == 0) {
            serve_frame(self, rank, fault);
        } else {
            obey_frame(self, fault);
        }
    }
    if (heard) {
        self->peers[rank].heard_at = xm_clock_ns();
    }
    if (heard && self->guarded) {
        self->guard.heard(self->guard.arg, rank);
    }
    if (status == XM_ERR_IO && self->guarded) {
        xm_bootstrap_link_close(link);
        self->guard.lost(self->guard.arg, rank);
    } else if (status < 0) {
        if (status == XM_ERR_IO) {
            xm_bootstrap_tcp_fault_of(self, rank, XM_ERR_PEER_DIED, "died", &found);
        } else {
            xm_bootstrap_tcp_fault_of(self, rank, XM_ERR_CORRUPT,
                                      "sent bytes that are no bootstrap frame", &found);
            if (self->base.rank == 0) {
                xm_bootstrap_send_fault(link, XM_BOOTSTRAP_FAULT,
                                        &found); /* the last thing it hears */
            }
        }
        keep_worse(fault, &found);
        xm_bootstrap_link_close(link);
    }
}

/* Takes a connection in place of one that has ended, or that only the other side knows to have
 * ended, and says over it what may have got lost. */
static void renew(xm_bootstrap_tcp_t *self, int rank, int fd)
{
    xm_bootstrap_peer_t *peer = rank >= 0 && rank < self->peer_count ? &self->peers[rank] : NULL;

    if (peer == NULL || peer->left) {
        (void)close(fd);
        return;
    }
    xm_bootstrap_link_close(&peer->link);
    if (xm_bootstrap_link_open(&peer->link, fd, self->epoll, (uint64_t)rank) < 0) {
        self->guard.lost(self->guard.arg, rank);
        return;
    }
    peer->link.expected = 0;
    xm_bootstrap_link_hurry(&peer->link);
    if (self->base.posted) {
        xm_bootstrap_tcp_offer(self);
    }
    if (self->base.rank == 0 && self->base.fault.status != XM_OK) {
        xm_bootstrap_send_fault(&peer->link, XM_BOOTSTRAP_FAULT, &self->base.fault);
    }
}

/* Hears what the guard has to say. A finding of its own is passed on to rank 0, which may be
 * reached by nothing else. */
static void hear_guard(xm_bootstrap_tcp_t *self, xm_bootstrap_fault_t *fault)
{
    xm_bootstrap_fault_t found;
    int rank, fd;

    while (self->guard.renewed(self->guard.arg, &rank, &fd)) {
        renew(self, rank, fd);
    }
    if (self->guard.failed(self->guard.arg, &found)) {
        if (self->base.rank != 0 && self->base.fault.status == XM_OK) {
            xm_bootstrap_send_fault(&self->peers[0].link, XM_BOOTSTRAP_ABORT, &found);
        }
        keep_worse(fault, &found);
    }
}

void xm_bootstrap_attend(xm_bootstrap_t *bootstrap, double seconds)
{
    xm_bootstrap_tcp_t *self = (xm_bootstrap_tcp_t *)bootstrap;

    bootstrap->silence = (int64_t)(seconds * 1e9);
    self->looked_at = xm_clock_ns();
    for (int rank = 0; rank < self->peer_count; ++rank) {
        self->peers[rank].heard_at = self->looked_at;
    }
}

/* Whether the allgather in flight needs the rank to do something. */
static bool is_waited_for(const xm_bootstrap_tcp_t *self, int rank)
{
    const xm_bootstrap_peer_t *peer = &self->peers[rank];

    return self->base.posted && peer->link.fd >= 0 &&
           (!xm_bootstrap_link_idle(&peer->link) ||
            (!self->gathered && (self->base.rank != 0 || !peer->contributed)));
}

/* Says that this rank lives, and finds out who does not. What it was held up itself does not count
 * against the others: it may have heard nothing because of that. */
static void look_after_ranks(xm_bootstrap_tcp_t *self, xm_bootstrap_fault_t *fault)
{
    int64_t now = xm_clock_ns(), pause = self->base.silence / XM_BOOTSTRAP_SIGNS;
    int64_t held_up = now - self->looked_at > 2 * pause ? now - self->looked_at : 0;
    bool say = now - self->said_at >= pause;

    self->looked_at = now;
    self->said_at = say ? now : self->said_at;
    for (int rank = 0; rank < self->peer_count; ++rank) {
        xm_bootstrap_peer_t *peer = &self->peers[rank];
        xm_bootstrap_fault_t found = {0};
        char what[XM_BOOTSTRAP_HOST_SIZE + 64];

        peer->heard_at += held_up;
        if (say && peer->link.fd >= 0 && xm_bootstrap_link_idle(&peer->link)) {
            xm_bootstrap_link_send(&peer->link, XM_BOOTSTRAP_ALIVE, 0, NULL, 0);
        }
        if (is_waited_for(self, rank) && now - peer->heard_at > self->base.silence) {
            (void)snprintf(what, sizeof(what), "stopped answering rank %d (host %s) %.1f s ago",
                           self->base.rank, self->host, (double)(now - peer->heard_at) * 1e-9);
            xm_bootstrap_tcp_fault_of(self, rank, XM_ERR_PEER_DIED, what, &found);
            keep_worse(fault, &found);
            xm_launch_report(self->base.rank, rank);
        }
    }
}

/* Looks at all links without waiting. Faults are collected first and settled once, so that the
 * worst of one poll wins. */
static xm_status_t tcp_poll(xm_bootstrap_t *bootstrap)
{
    xm_bootstrap_tcp_t *self = (xm_bootstrap_tcp_t *)bootstrap;
    xm_bootstrap_fault_t fault = {0};
    struct epoll_event events[EVENTS];
    int count = epoll_wait(self->epoll, events, EVENTS, 0);

    for (int i = 0; i < count; ++i) {
        int rank = (int)events[i].data.u64;

        if (rank == XM_BOOTSTRAP_KEY_GUARD) {
            hear_guard(self, &fault);
            continue;
        }
        xm_bootstrap_link_flush(&self->peers[rank].link);
        if ((events[i].events & ~(uint32_t)EPOLLOUT) != 0) {
            drain_link(self, rank, &fault);
        }
    }
    if (bootstrap->silence > 0 && bootstrap->fault.status == XM_OK) {
        look_after_ranks(self, &fault);
    }
    if (fault.status != XM_OK) {
        xm_bootstrap_tcp_settle(self, &fault);
    }
    return xm_bootstrap_fault_status(bootstrap);
}

/* From now on ends of connections are the guard's business; links that are not there are to come.
 */
static xm_status_t tcp_set_guard(xm_bootstrap_t *bootstrap, const xm_bootstrap_guard_t *guard)
{
    xm_bootstrap_tcp_t *self = (xm_bootstrap_tcp_t *)bootstrap;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = XM_BOOTSTRAP_KEY_GUARD};

    if (epoll_ctl(self->epoll, EPOLL_CTL_ADD, guard->fd, &event) != 0) {
        return xm_error_set(XM_ERR_IO, "epoll_ctl: %s", strerror(errno));
    }
    self->guard = *guard;
    self->guarded = true;
    bootstrap->silence = 0;
    for (int rank = 0; rank < self->peer_count; ++rank) {
        if (self->peers[rank].link.fd >= 0) {
            xm_bootstrap_link_hurry(&self->peers[rank].link);
        } else if (bootstrap->rank != 0) {
            guard->lost(guard->arg, rank);
        }
    }
    return XM_OK;
}

static int tcp_fd(const xm_bootstrap_t *bootstrap)
{
    return ((const xm_bootstrap_tcp_t *)bootstrap)->epoll;
}

/* Ends the job for all with a sentence. A rank other than 0 tells rank 0, which passes it on;
 * its own status is set at once, without waiting for the echo. */
static void tcp_abort(xm_bootstrap_t *bootstrap, const char *sentence)
{
    xm_bootstrap_tcp_t *self = (xm_bootstrap_tcp_t *)bootstrap;
    xm_bootstrap_fault_t fault = {.rank = bootstrap->rank, .status = XM_ERR_CANCELED};
    char what[XM_BOOTSTRAP_SENTENCE_SIZE + 16];

    if (bootstrap->fault.status != XM_OK) {
        return; /* the job is over already, and for an earlier reason */
    }
    (void)snprintf(fault.sentence, sizeof(fault.sentence), "%s", sentence);
    if (bootstrap->rank != 0) {
        xm_bootstrap_send_fault(&self->peers[0].link, XM_BOOTSTRAP_ABORT, &fault);
    }
    (void)snprintf(what, sizeof(what), "gave up: %s", sentence);
    xm_bootstrap_tcp_fault_of(self, bootstrap->rank, XM_ERR_CANCELED, what, &fault);
    xm_bootstrap_tcp_settle(self, &fault);
}

/* A fault was learnt elsewhere, by heartbeat or a probe: it becomes the status here, and rank 0
 * is told, which may not have heard. */
static void tcp_mark_failed(xm_bootstrap_t *bootstrap, const xm_bootstrap_fault_t *fault)
{
    xm_bootstrap_tcp_t *self = (xm_bootstrap_tcp_t *)bootstrap;

    if (bootstrap->fault.status == XM_OK && bootstrap->rank != 0) {
        xm_bootstrap_send_fault(&self->peers[0].link, XM_BOOTSTRAP_ABORT, fault);
        if (self->guarded) {
            self->guard.tell(self->guard.arg, fault, true);
        }
    }
    xm_bootstrap_tcp_settle(self, fault);
}

/* Says goodbye and waits a little until the kernel has taken what is queued: without the
 * goodbye the others would take the end of the connection for a death. */
static void send_fin(xm_bootstrap_link_t *link, double deadline)
{
    char discarded[4096];

    xm_bootstrap_link_send(link, XM_BOOTSTRAP_GOODBYE, 0, NULL, 0);
    while (!xm_bootstrap_link_idle(link) && xm_clock_seconds() < deadline) {
        struct pollfd entry = {.fd = link->fd, .events = POLLOUT};

        if (poll(&entry, 1, 10) > 0 && (entry.revents & (POLLERR | POLLHUP)) != 0) {
            break;
        }
        xm_bootstrap_link_flush(link);
    }
    if (link->fd >= 0) {
        (void)shutdown(link->fd, SHUT_WR);
        /* Closing with unread bytes would reset the connection and overtake the goodbye. */
        while (recv(link->fd, discarded, sizeof(discarded), 0) > 0) {
            continue;
        }
    }
}

/* Leaves in order. All links share one deadline, so ranks that do not read cost one second
 * together. */
void xm_bootstrap_tcp_destroy(xm_bootstrap_tcp_t *self)
{
    double deadline = xm_clock_seconds() + FIN_MS * 1e-3;

    for (int rank = 0; rank < self->peer_count; ++rank) {
        xm_bootstrap_peer_t *peer = &self->peers[rank];

        send_fin(&peer->link, deadline);
        xm_bootstrap_link_close(&peer->link);
        free(peer->host);
        free(peer->block);
    }
    free(self->bulk);
    free(self->blobs);
    free(self->peers);
    if (self->epoll >= 0) {
        (void)close(self->epoll);
    }
    explicit_bzero(&self->secret, sizeof(self->secret));
    free(self);
}

static void tcp_destroy(xm_bootstrap_t *bootstrap)
{
    xm_bootstrap_tcp_destroy((xm_bootstrap_tcp_t *)bootstrap);
}

static const xm_bootstrap_ops_t tcp_ops = {.post = xm_bootstrap_tcp_post,
                                           .post_blobs = xm_bootstrap_tcp_post_blobs,
                                           .take_blobs = xm_bootstrap_tcp_take_blobs,
                                           .test = xm_bootstrap_tcp_test,
                                           .abandon = xm_bootstrap_tcp_abandon,
                                           .poll = tcp_poll,
                                           .fd = tcp_fd,
                                           .connected = true,
                                           .abort = tcp_abort,
                                           .mark_failed = tcp_mark_failed,
                                           .set_guard = tcp_set_guard,
                                           .destroy = tcp_destroy};

/* Makes the object before its rendezvous. Ranks other than 0 have one peer only. */
xm_status_t xm_bootstrap_tcp_create(int rank, int size, const xm_job_secret_t *secret,
                                    xm_bootstrap_tcp_t **self)
{
    xm_bootstrap_tcp_t *created = calloc(1, sizeof(*created));

    XM_NEED_MEMORY(created, "a bootstrap");
    created->base.ops = &tcp_ops;
    created->base.rank = rank;
    created->base.size = size;
    created->secret = *secret;
    created->peer_count = rank == 0 ? size : 1;
    xm_bootstrap_own_host(created->host, sizeof(created->host));
    created->peers = calloc((size_t)created->peer_count, sizeof(*created->peers));
    created->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (created->peers == NULL || created->epoll < 0) {
        created->peer_count = 0;
        xm_bootstrap_tcp_destroy(created);
        return xm_error_set(XM_ERR_NO_MEMORY, "cannot make a bootstrap of %d ranks: %s", size,
                            strerror(errno));
    }
    for (int i = 0; i < created->peer_count; ++i) {
        created->peers[i].link.fd = -1;
    }
    *self = created;
    return XM_OK;
}
