/* The life of the TCP bootstrap after its rendezvous: rank 0 is connected with all others and
 * relays allgathers and faults. There is no thread: rank 0 relays from inside its own calls, and
 * the others hear faults from inside theirs, so nothing here needs a lock. The kernel closes the
 * connections of a process that dies, which makes a death visible at rank 0 (or rank 0's death at
 * the others) within milliseconds and without any heartbeat. The first fault stays; the others are
 * told the same sentence. */
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

/* EVENTS: taken in one poll. FIN_MS: how long a leaving rank waits for the kernel to take
 * its last frames. */
enum { EVENTS = 64, FIN_MS = 1000 };

static void send_fault(xm_bootstrap_link_t *link, xm_bootstrap_type_t type,
                       const xm_bootstrap_fault_t *fault)
{
    uint8_t bytes[XM_BOOTSTRAP_FAULT_SIZE];

    xm_bootstrap_link_send(link, type, 0, bytes, xm_bootstrap_fault_encode(fault, bytes));
}

/* Makes a fault the sticky status, unless there is one, and on rank 0 tells everybody. The
 * frames are queued, so this never blocks, even if a rank does not read. */
static void settle(xm_bootstrap_tcp_t *self, const xm_bootstrap_fault_t *fault)
{
    if (self->base.fault.status != XM_OK) {
        return;
    }
    self->base.fault = *fault;
    if (self->base.rank == 0) {
        for (int rank = 1; rank < self->base.size; ++rank) {
            send_fault(&self->peers[rank].link, XM_BOOTSTRAP_FAULT, fault);
        }
    }
}

static void fault_of(const xm_bootstrap_tcp_t *self, int rank, xm_status_t status, const char *what,
                     xm_bootstrap_fault_t *fault)
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

/* Rank 0 handles one frame of a rank. A rank may be one allgather ahead, because it has its
 * result before rank 0 has sent all of them; anything else is out of step, and no later
 * allgather could be trusted. */
static void serve_frame(xm_bootstrap_tcp_t *self, int rank, xm_bootstrap_fault_t *fault)
{
    xm_bootstrap_peer_t *peer = &self->peers[rank];
    xm_bootstrap_link_t *link = &peer->link;
    xm_bootstrap_fault_t found = {0};
    /* A rank that has the result of the current allgather already may have posted the next. */
    uint32_t expected = self->sequence + (self->base.posted && !self->gathered ? 0 : 1);

    switch (link->frame.type) {
    case XM_BOOTSTRAP_GATHER:
    case XM_BOOTSTRAP_GATHERV:
        if (peer->contributed || link->frame.sequence != expected) {
            fault_of(self, rank, XM_ERR_CORRUPT, "is out of step with the allgathers of rank 0",
                     &found);
            break;
        }
        peer->block = link->payload;
        peer->block_length = link->frame.length;
        peer->variable = link->frame.type == XM_BOOTSTRAP_GATHERV;
        peer->contributed = true;
        /* The payload changes its owner without a copy. */
        link->payload = NULL;
        return;
    case XM_BOOTSTRAP_GOODBYE:
        peer->left = true;
        xm_bootstrap_link_close(link);
        return;
    case XM_BOOTSTRAP_ABORT:
        if (xm_bootstrap_fault_decode(link->payload, link->frame.length, &found) == XM_OK) {
            char sentence[XM_BOOTSTRAP_SENTENCE_SIZE + 16];

            if (found.rank >= 0 && found.rank != rank && found.rank < self->base.size) {
                break; /* it has learnt elsewhere that somebody else is gone */
            }
            (void)snprintf(sentence, sizeof(sentence), "gave up: %s", found.sentence);
            fault_of(self, rank, XM_ERR_CANCELED, sentence, &found);
            break;
        }
        /* fall through */
    default:
        fault_of(self, rank, XM_ERR_CORRUPT, "sent a frame that makes no sense to rank 0", &found);
    }
    keep_worse(fault, &found);
}

/* The other ranks handle one frame of rank 0. A result must be that of the allgather in flight,
 * with its length; the buffer behind it is the caller's. */
static void obey_frame(xm_bootstrap_tcp_t *self, xm_bootstrap_fault_t *fault)
{
    xm_bootstrap_link_t *link = &self->peers[0].link;
    xm_bootstrap_fault_t found = {0};
    size_t expected = self->length * (size_t)self->base.size;

    switch (link->frame.type) {
    case XM_BOOTSTRAP_GATHERED:
        if (!self->base.posted || self->variable || link->frame.sequence != self->sequence ||
            link->frame.length != expected) {
            break;
        }
        if (expected > 0) {
            memcpy(self->receive, link->payload, expected);
        }
        self->gathered = true;
        return;
    case XM_BOOTSTRAP_GATHEREDV:
        if (!self->base.posted || !self->variable || link->frame.sequence != self->sequence) {
            break;
        }
        self->blobs = link->payload;
        self->blobs_length = link->frame.length;
        link->payload = NULL;
        self->gathered = true;
        return;
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
    fault_of(self, 0, XM_ERR_CORRUPT, "sent a frame that makes no sense here", &found);
    keep_worse(fault, &found);
}

/* Reads all that a link has. The end of the stream without a goodbye is a death; bytes that are
 * no frame are a fault of that rank, of which rank 0 tells it before it closes. */
static void drain_link(xm_bootstrap_tcp_t *self, int rank, xm_bootstrap_fault_t *fault)
{
    xm_bootstrap_link_t *link = &self->peers[rank].link;
    xm_bootstrap_fault_t found = {0};
    xm_status_t status;

    while ((status = xm_bootstrap_link_receive(link)) == XM_OK) {
        if (self->base.rank == 0) {
            serve_frame(self, rank, fault);
        } else {
            obey_frame(self, fault);
        }
    }
    if (status < 0) {
        if (status == XM_ERR_IO) {
            fault_of(self, rank, XM_ERR_PEER_DIED, "died", &found);
        } else {
            fault_of(self, rank, XM_ERR_CORRUPT, "sent bytes that are no bootstrap frame", &found);
            if (self->base.rank == 0) {
                send_fault(link, XM_BOOTSTRAP_FAULT, &found); /* the last thing it hears */
            }
        }
        keep_worse(fault, &found);
        xm_bootstrap_link_close(link);
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

        xm_bootstrap_link_flush(&self->peers[rank].link);
        if ((events[i].events & ~(uint32_t)EPOLLOUT) != 0) {
            drain_link(self, rank, &fault);
        }
    }
    if (fault.status != XM_OK) {
        settle(self, &fault);
    }
    return xm_bootstrap_fault_status(bootstrap);
}

static bool has_not_contributed(const xm_bootstrap_peer_t *peer)
{
    return !peer->contributed;
}

/* Rank 0 checks the blocks: a rank that has left can no longer contribute, all must have called
 * the same function, and the blocks of an allgather must have one length. Each violation names
 * the rank. */
static xm_status_t check_blocks(xm_bootstrap_tcp_t *self, bool *complete)
{
    static const char *const functions[] = {"allgather", "allgatherv"};
    xm_bootstrap_fault_t fault = {0};
    char what[128];

    *complete = true;
    for (int rank = 1; rank < self->base.size; ++rank) {
        const xm_bootstrap_peer_t *peer = &self->peers[rank];

        if (!peer->contributed) {
            *complete = false;
            if (!peer->left) {
                continue;
            }
            (void)snprintf(what, sizeof(what), "left the job before allgather %u", self->sequence);
            fault_of(self, rank, XM_ERR_PEER_DIED, what, &fault);
        } else if (peer->variable != self->variable) {
            (void)snprintf(what, sizeof(what), "called %s as number %u where rank 0 called %s",
                           functions[peer->variable], self->sequence, functions[self->variable]);
            fault_of(self, rank, XM_ERR_MISMATCH, what, &fault);
        } else if (!self->variable && peer->block_length != self->length) {
            (void)snprintf(what, sizeof(what),
                           "offered %zu bytes in allgather %u where rank 0 offered %zu",
                           peer->block_length, self->sequence, self->length);
            fault_of(self, rank, XM_ERR_MISMATCH, what, &fault);
        } else {
            continue;
        }
        settle(self, &fault);
        return xm_bootstrap_fault_status(&self->base);
    }
    return XM_OK;
}

/* Rank 0 computes the bytes of the result, as a frame's payload. Lengths are other ranks'
 * numbers, so the sum is bounded. */
static xm_status_t result_size(const xm_bootstrap_tcp_t *self, size_t *total)
{
    size_t size = (size_t)self->base.size;

    *total = self->length * size;
    if (!self->variable) {
        return XM_OK;
    }
    *total = self->length + 4 * size;
    for (size_t rank = 1; rank < size; ++rank) {
        *total += self->peers[rank].block_length;
    }
    if (*total > XM_BOOTSTRAP_MAX_GATHER) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "allgatherv %u: %d ranks offer %zu bytes together; %d are possible",
                            self->sequence, self->base.size, *total, XM_BOOTSTRAP_MAX_GATHER);
    }
    return XM_OK;
}

/* Rank 0 writes everybody's block in a row, behind their lengths where these differ. */
static void fill_result(const xm_bootstrap_tcp_t *self, uint8_t *payload)
{
    size_t size = (size_t)self->base.size;
    uint8_t *next = payload + (self->variable ? 4 * size : 0);

    for (size_t rank = 0; rank < size; ++rank) {
        size_t length = rank == 0 ? self->length : self->peers[rank].block_length;

        if (self->variable) {
            xm_bootstrap_length_encode((uint32_t)length, payload + 4 * rank);
        }
        if (length > 0) {
            memcpy(next, rank == 0 ? self->send : self->peers[rank].block, length);
        }
        next += length;
    }
}

/* Rank 0 keeps the result for its own caller, since the frame lives only until all links have
 * sent it. */
static xm_status_t keep_result(xm_bootstrap_tcp_t *self, const uint8_t *payload, size_t total)
{
    if (self->variable) {
        self->blobs = malloc(total);
        if (self->blobs == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "allgatherv: no memory for %zu bytes", total);
        }
        self->blobs_length = total;
    }
    if (total > 0) {
        memcpy(self->variable ? self->blobs : self->receive, payload, total);
    }
    return XM_OK;
}

/* All ranks have contributed: rank 0 makes the result and starts sending it, one frame for all
 * links. The contributions are freed before, and the flags reset for a rank that is one ahead. */
static xm_status_t publish(xm_bootstrap_tcp_t *self)
{
    xm_bootstrap_header_t header = {.type = self->variable ? XM_BOOTSTRAP_GATHEREDV
                                                           : XM_BOOTSTRAP_GATHERED,
                                    .sequence = self->sequence};
    size_t total;
    xm_status_t status = result_size(self, &total);

    if (status < 0) {
        xm_bootstrap_fault_t fault = {.rank = -1, .status = status};

        (void)snprintf(fault.sentence, sizeof(fault.sentence), "%s", xm_last_error());
        settle(self, &fault);
        return xm_bootstrap_fault_status(&self->base);
    }
    self->bulk = malloc(XM_BOOTSTRAP_HEADER_SIZE + total);
    if (self->bulk == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "allgather: no memory for %zu bytes", total);
    }
    header.length = (uint32_t)total;
    xm_bootstrap_header_encode(&header, self->bulk);
    fill_result(self, self->bulk + XM_BOOTSTRAP_HEADER_SIZE);
    status = keep_result(self, self->bulk + XM_BOOTSTRAP_HEADER_SIZE, total);
    if (status < 0) {
        return status;
    }
    self->gathered = true;
    for (int rank = 1; rank < self->base.size; ++rank) {
        xm_bootstrap_peer_t *peer = &self->peers[rank];

        free(peer->block);
        peer->block = NULL;
        peer->contributed = false;
        if (peer->link.fd >= 0) {
            xm_bootstrap_link_send_bulk(&peer->link, self->bulk, XM_BOOTSTRAP_HEADER_SIZE + total);
        }
    }
    return XM_OK;
}

static bool all_sent(const xm_bootstrap_tcp_t *self)
{
    for (int rank = 1; rank < self->base.size; ++rank) {
        if (!xm_bootstrap_link_idle(&self->peers[rank].link)) {
            return false;
        }
    }
    return true;
}

/* Rank 0's allgather ends when every link has handed the result to the kernel: only then may
 * the frame be freed, and rank 0 go away without losing it for others. */
static xm_status_t test_as_root(xm_bootstrap_tcp_t *self)
{
    bool complete = true;
    xm_status_t status = XM_OK;

    if (!self->gathered) {
        status = check_blocks(self, &complete);
        if (status == XM_OK && complete) {
            status = publish(self);
        }
    }
    if (status < 0 || !complete || !all_sent(self)) {
        return status < 0 ? status : XM_IN_PROGRESS;
    }
    free(self->bulk);
    self->bulk = NULL;
    return XM_OK;
}

/* Tests an allgather. A result that is there counts as success even if a rank has died since,
 * so that all ranks agree about which allgathers have taken place as far as possible. */
static xm_status_t tcp_test(xm_bootstrap_t *bootstrap)
{
    xm_bootstrap_tcp_t *self = (xm_bootstrap_tcp_t *)bootstrap;
    xm_bootstrap_fault_t fault = {0};
    xm_status_t status = tcp_poll(bootstrap);

    if (bootstrap->rank != 0 && self->gathered) {
        return XM_OK; /* complete, even if somebody died since */
    }
    if (status < 0) {
        return status;
    }
    if (bootstrap->rank == 0) {
        return test_as_root(self);
    }
    if (self->peers[0].left) {
        char what[64];

        (void)snprintf(what, sizeof(what), "left the job before allgather %u", self->sequence);
        fault_of(self, 0, XM_ERR_PEER_DIED, what, &fault);
        settle(self, &fault);
        return xm_bootstrap_fault_status(bootstrap);
    }
    return XM_IN_PROGRESS;
}

/* Begins an allgather. Other ranks send their block at once; rank 0 waits for them in its tests. */
static void begin(xm_bootstrap_tcp_t *self, const void *send, void *receive, size_t length,
                  bool variable)
{
    ++self->sequence;
    self->send = send;
    self->receive = receive;
    self->length = length;
    self->variable = variable;
    self->gathered = false;
    free(self->blobs);
    self->blobs = NULL;
    if (self->base.rank != 0) {
        xm_bootstrap_link_send(&self->peers[0].link,
                               variable ? XM_BOOTSTRAP_GATHERV : XM_BOOTSTRAP_GATHER,
                               self->sequence, send, length);
    }
}

static xm_status_t tcp_post(xm_bootstrap_t *bootstrap, const void *send, void *receive,
                            size_t length)
{
    begin((xm_bootstrap_tcp_t *)bootstrap, send, receive, length, false);
    return XM_OK;
}

static xm_status_t tcp_post_blobs(xm_bootstrap_t *bootstrap, const void *send, size_t length)
{
    begin((xm_bootstrap_tcp_t *)bootstrap, send, NULL, length, true);
    return XM_OK;
}

/* Hands the gathered blocks over. The lengths come over the wire and must fit the payload
 * exactly. */
static xm_status_t tcp_take_blobs(xm_bootstrap_t *bootstrap, void **blobs, size_t *offsets)
{
    xm_bootstrap_tcp_t *self = (xm_bootstrap_tcp_t *)bootstrap;
    size_t table = 4 * (size_t)bootstrap->size;
    xm_bootstrap_fault_t fault;
    xm_status_t status =
        xm_bootstrap_lengths_decode(self->blobs, self->blobs_length, bootstrap->size, offsets);

    if (status < 0) {
        fault_of(self, 0, status, "sent blocks that do not fit their lengths", &fault);
        settle(self, &fault);
        return xm_bootstrap_fault_status(bootstrap);
    }
    memmove(self->blobs, (uint8_t *)self->blobs + table, self->blobs_length - table);
    *blobs = self->blobs;
    self->blobs = NULL;
    return XM_OK;
}

/* Gives up an allgather, with the sentence that fits: rank 0 knows which ranks are missing, the
 * others know only that rank 0 did not answer. Rank 0 tells them. */
static xm_status_t tcp_abandon(xm_bootstrap_t *bootstrap, double waited)
{
    xm_bootstrap_tcp_t *self = (xm_bootstrap_tcp_t *)bootstrap;
    xm_bootstrap_fault_t fault = {.rank = -1, .status = XM_ERR_TIMEOUT};
    char list[128];

    if (bootstrap->rank == 0 && !self->gathered) {
        int missing = xm_bootstrap_list_ranks(self, has_not_contributed, list, sizeof(list));

        (void)snprintf(fault.sentence, sizeof(fault.sentence),
                       "allgather %u timed out after %g s: %d of %d ranks did not call it: %s",
                       self->sequence, waited, missing, bootstrap->size, list);
    } else if (bootstrap->rank == 0) {
        (void)snprintf(fault.sentence, sizeof(fault.sentence),
                       "allgather %u timed out after %g s: a rank did not read the result",
                       self->sequence, waited);
    } else {
        (void)snprintf(fault.sentence, sizeof(fault.sentence),
                       "rank %d: allgather %u timed out after %g s without an answer of rank 0",
                       bootstrap->rank, self->sequence, waited);
    }
    settle(self, &fault);
    return xm_bootstrap_fault_status(bootstrap);
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
        send_fault(&self->peers[0].link, XM_BOOTSTRAP_ABORT, &fault);
    }
    (void)snprintf(what, sizeof(what), "gave up: %s", sentence);
    fault_of(self, bootstrap->rank, XM_ERR_CANCELED, what, &fault);
    settle(self, &fault);
}

/* A fault was learnt elsewhere, by heartbeat or a probe: it becomes the status here, and rank 0
 * is told, which may not have heard. */
static void tcp_mark_failed(xm_bootstrap_t *bootstrap, const xm_bootstrap_fault_t *fault)
{
    xm_bootstrap_tcp_t *self = (xm_bootstrap_tcp_t *)bootstrap;

    if (bootstrap->fault.status == XM_OK && bootstrap->rank != 0) {
        send_fault(&self->peers[0].link, XM_BOOTSTRAP_ABORT, fault);
    }
    settle(self, fault);
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

static const xm_bootstrap_ops_t tcp_ops = {.post = tcp_post,
                                           .post_blobs = tcp_post_blobs,
                                           .take_blobs = tcp_take_blobs,
                                           .test = tcp_test,
                                           .abandon = tcp_abandon,
                                           .poll = tcp_poll,
                                           .fd = tcp_fd,
                                           .connected = true,
                                           .abort = tcp_abort,
                                           .mark_failed = tcp_mark_failed,
                                           .destroy = tcp_destroy};

/* Makes the object before its rendezvous. Ranks other than 0 have one peer only. */
xm_status_t xm_bootstrap_tcp_create(int rank, int size, const xm_job_secret_t *secret,
                                    xm_bootstrap_tcp_t **self)
{
    xm_bootstrap_tcp_t *created = calloc(1, sizeof(*created));

    if (created == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a bootstrap");
    }
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
