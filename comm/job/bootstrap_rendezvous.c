/* SPDX-License-Identifier: Apache-2.0 */
/* How rank 0 of the TCP bootstrap finds the others among all that connect to its port. The port
 * is open to everybody, so strangers (port scanners, other jobs, other versions) are the normal
 * case: they are counted and dropped, they cost a bounded number of descriptors and no memory
 * to speak of, and none of them can make the job fail. A rank counts as present when it has
 * answered rank 0's challenge. All ranks are welcomed together at the end, so a welcome means
 * that everybody is there. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/job/bootstrap_listen.h"
#include "comm/job/bootstrap_tcp.h"
#include "comm/base.h"

/* BATCH: connections accepted before those that have spoken are heard. SPARE_FILES: descriptors
 * that a process needs besides. */
enum { BATCH = 64, EVENTS = 256, SPARE_FILES = 256, DESCRIPTION = 160 };

/* Why somebody was turned away. */
enum { FOREIGN, OTHER_VERSION, NO_SECRET, REASONS };

typedef struct {
    xm_bootstrap_link_t link;
    int64_t since;
    uint8_t nonce[XM_JOB_NONCE_SIZE]; /* of our challenge */
    bool proven;                      /* a rank of this job, though perhaps a wrong one */
} stranger_t;

typedef struct {
    xm_bootstrap_tcp_t *self;
    xm_door_t door;
    bool paused; /* the listener is not looked at */
    stranger_t *strangers;
    int present;                          /* ranks that have said hello, rank 0 included */
    uint8_t (*proofs)[XM_JOB_PROOF_SIZE]; /* of the welcomes, by rank */
    int turned_away[REASONS];
    double timeout;
} reception_t;

/* Raises the limit on open files. Every rank costs a descriptor, and so does every stranger, of
 * which there may be as many and more. The limit that programs start with is often 1024, for
 * the sake of select(); what the administrator allows is far more. */
static void allow_files(int ranks)
{
    struct rlimit limit;
    rlim_t wanted = 2 * (rlim_t)ranks + XM_DOOR_STRANGERS + SPARE_FILES;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
        limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* Stops or resumes looking at the listener. While it is not looked at, connections wait in the
 * kernel's queue, which costs this process nothing. */
static void watch_listener(reception_t *reception, bool watch)
{
    struct epoll_event event = {.events = watch ? (uint32_t)EPOLLIN : 0,
                                .data.u64 = XM_BOOTSTRAP_KEY_LISTENER};

    (void)epoll_ctl(reception->self->epoll, EPOLL_CTL_MOD, reception->door.fd, &event);
    reception->paused = !watch;
}

static void turn_away(reception_t *reception, stranger_t *stranger, int reason)
{
    ++reception->turned_away[reason];
    xm_bootstrap_link_close(&stranger->link);
}

/* Strangers for the door. */
static xm_door_place_t who_is(void *arg, int slot, int64_t *since)
{
    const stranger_t *stranger = &((const reception_t *)arg)->strangers[slot];

    *since = stranger->since;
    return stranger->link.fd < 0 ? XM_DOOR_FREE : XM_DOOR_STRANGER;
}

static void drop(void *arg, int slot)
{
    turn_away(arg, &((reception_t *)arg)->strangers[slot], FOREIGN);
}

/* Accepts a batch of connections, then lets those that have spoken be heard: a flood must not
 * starve them. */
static xm_status_t accept_strangers(reception_t *reception)
{
    int64_t now = xm_clock_ns();
    xm_status_t status = XM_OK;

    for (int i = 0; i < BATCH && status == XM_OK; ++i) {
        int fd, slot = xm_door_accept(&reception->door, now, &fd);

        if (slot == XM_DOOR_FULL) {
            watch_listener(reception, false);
        }
        if (slot < 0) {
            break; /* none left, or one that is gone again */
        }
        reception->strangers[slot].since = now;
        reception->strangers[slot].proven = false;
        status =
            xm_bootstrap_challenge(&reception->strangers[slot].link, fd, reception->self->epoll,
                                   (uint64_t)slot | XM_BOOTSTRAP_KEY_STRANGER,
                                   &reception->self->secret, reception->strangers[slot].nonce);
    }
    return status; /* a listener with more stays readable */
}

/* Gives a proven rank its place. Its connection moves from the stranger to the peer, so exactly
 * one of them closes it. Here a mistake is one of the job itself (a wrong size, a rank that
 * exists twice) and ends the rendezvous for all. */
static xm_status_t admit(reception_t *reception, stranger_t *stranger,
                         const xm_bootstrap_hello_t *hello)
{
    const xm_bootstrap_identity_t *identity = &hello->identity;
    xm_bootstrap_tcp_t *self = reception->self;
    xm_bootstrap_identity_t own;
    xm_bootstrap_peer_t *peer;
    char name[XM_BOOTSTRAP_NAME_SIZE];

    if (identity->size != self->base.size) {
        return XM_MISMATCH("rank %d (host %s, pid %d) was started for %d ranks, rank 0 for %d",
                           identity->rank, identity->host, identity->pid, identity->size,
                           self->base.size);
    }
    peer = &self->peers[identity->rank];
    if (peer->host != NULL) {
        return XM_MISMATCH("rank %d exists twice: host %s pid %d, and %s", identity->rank,
                           identity->host, identity->pid,
                           xm_bootstrap_peer_name(self, identity->rank, name, sizeof(name)));
    }
    peer->host = strdup(identity->host);
    XM_NEED_MEMORY(peer->host, "the name of rank %d", identity->rank);
    /* Rank 0's own proof is made now, while the rank's nonce is at hand; it is sent with the
     * welcome. */
    xm_bootstrap_identify(self, &own);
    xm_bootstrap_prove(&self->secret, "root", stranger->nonce, hello->nonce, &own,
                       reception->proofs[identity->rank]);
    peer->pid = identity->pid;
    peer->link = stranger->link;
    peer->link.expected = 0;
    stranger->link = (xm_bootstrap_link_t){.fd = -1};
    ++reception->present;
    return xm_bootstrap_link_set_key(&peer->link, (uint64_t)identity->rank);
}

static void send_refusal(xm_bootstrap_link_t *link, xm_status_t status, const char *sentence)
{
    xm_bootstrap_fault_t fault = {.rank = -1, .status = status};

    (void)snprintf(fault.sentence, sizeof(fault.sentence), "%s", sentence);
    xm_bootstrap_send_fault(link, XM_BOOTSTRAP_REFUSAL, &fault);
}

/* Reads the answer to the challenge. XM_OK: a rank of this job has said hello. XM_IN_PROGRESS:
 * not yet, or it was turned away: a port scanner, or another job's rank, is no reason to fail.
 * A rank with a wrong secret is told so, because its user would otherwise see a timeout only. */
static xm_status_t hear(reception_t *reception, stranger_t *stranger, xm_bootstrap_hello_t *hello)
{
    xm_bootstrap_link_t *link = &stranger->link;
    xm_status_t status = xm_bootstrap_link_receive(link);
    char sentence[XM_BOOTSTRAP_SENTENCE_SIZE];

    XM_THEN(status, xm_bootstrap_hello_decode(link->payload, link->frame.length, hello));
    if (status < 0) {
        xm_log_debug("rendezvous: dropped a connection that is not a rank's");
        turn_away(reception, stranger, status == XM_ERR_UNSUPPORTED ? OTHER_VERSION : FOREIGN);
        return XM_IN_PROGRESS;
    }
    XM_TRY(status);
    stranger->proven = xm_bootstrap_is_proven(&reception->self->secret, stranger->nonce, hello);
    if (!stranger->proven) {
        (void)snprintf(sentence, sizeof(sentence),
                       "rank %d does not know the secret of the job that listens there: "
                       "XM_JOB_SECRET or XM_JOB_SECRET_FILE must be equal on all ranks",
                       hello->identity.rank);
        send_refusal(link, XM_ERR_MISMATCH, sentence);
        turn_away(reception, stranger, NO_SECRET);
        return XM_IN_PROGRESS;
    }
    return XM_OK;
}

static xm_status_t serve_stranger(reception_t *reception, int slot)
{
    stranger_t *stranger = &reception->strangers[slot];
    xm_bootstrap_hello_t hello;

    xm_bootstrap_link_flush(&stranger->link);
    return hear(reception, stranger, &hello) == XM_OK ? admit(reception, stranger, &hello) : XM_OK;
}

/* An admitted rank has nothing to say before the welcome, so anything that comes from it means
 * that it died or is out of order. */
static xm_status_t serve_admitted(reception_t *reception, int rank)
{
    xm_bootstrap_peer_t *peer = &reception->self->peers[rank];
    xm_status_t status = xm_bootstrap_link_receive(&peer->link);
    char name[XM_BOOTSTRAP_NAME_SIZE];

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

/* Whoever was turned away goes with the timeout, whose cause it often is: "3 of others, 1 without
 * the job's secret". */
static xm_status_t ranks_are_missing(const reception_t *reception)
{
    static const char *const who[REASONS] = {"of others", "of another version of crossmesh",
                                             "without the job's secret"};
    char list[128], away[DESCRIPTION] = "";
    int missing = xm_bootstrap_list_ranks(reception->self, is_absent, list, sizeof(list));

    for (int reason = 0; reason < REASONS; ++reason) {
        if (reception->turned_away[reason] > 0) {
            xm_text_list_add(away, sizeof(away), ", ", "%d %s", reception->turned_away[reason],
                             who[reason]);
        }
    }
    return xm_error_set(XM_ERR_TIMEOUT,
                        "rendezvous timed out after %g s: %d of %d ranks are missing: %s%s%s",
                        reception->timeout, missing, reception->self->base.size, list,
                        away[0] != '\0' ? "; connections turned away: " : "", away);
}

static xm_status_t serve(reception_t *reception, const struct epoll_event *event)
{
    int key = (int)event->data.u64;

    if (key == XM_BOOTSTRAP_KEY_LISTENER) {
        return accept_strangers(reception);
    }
    if ((key & XM_BOOTSTRAP_KEY_STRANGER) != 0) {
        return serve_stranger(reception, key & ~XM_BOOTSTRAP_KEY_STRANGER);
    }
    return serve_admitted(reception, key);
}

/* Serves events until all ranks are present or the deadline has passed. While the listener is
 * paused the loop wakes up more often, to see when the oldest stranger has had its time. */
static xm_status_t receive_ranks(reception_t *reception, double deadline)
{
    struct epoll_event events[EVENTS];
    xm_status_t status = XM_OK;

    while (reception->present < reception->self->base.size && status == XM_OK) {
        double remaining = deadline - xm_clock_seconds();
        double longest = reception->paused ? 0.05 : 1.0;
        int count;

        if (remaining <= 0.0) {
            return ranks_are_missing(reception);
        }
        count = epoll_wait(reception->self->epoll, events, EVENTS,
                           (int)((remaining > longest ? longest : remaining) * 1000.0) + 1);
        for (int i = 0; i < count && status == XM_OK; ++i) {
            status = serve(reception, &events[i]);
        }
        if (reception->paused && xm_door_find_place(&reception->door, xm_clock_ns()) >= 0) {
            watch_listener(reception, true);
        }
    }
    return status;
}

/* Welcomes all ranks. The frames are only queued: what the sockets do not take at once goes out
 * with the first allgather. */
static void announce_welcome(reception_t *reception)
{
    xm_bootstrap_tcp_t *self = reception->self;
    uint8_t bytes[XM_BOOTSTRAP_WELCOME_SIZE];
    xm_bootstrap_welcome_t welcome;

    xm_bootstrap_identify(self, &welcome.identity);
    for (int rank = 1; rank < self->base.size; ++rank) {
        memcpy(welcome.proof, reception->proofs[rank], sizeof(welcome.proof));
        xm_bootstrap_link_send(&self->peers[rank].link, XM_BOOTSTRAP_WELCOME, 0, bytes,
                               xm_bootstrap_welcome_encode(&welcome, bytes));
    }
}

/* Tells every admitted rank why the rendezvous failed, and every other that has proved to be of
 * this job. The error is saved meanwhile, since hearing strangers may set others. */
static void announce_failure(reception_t *reception, xm_status_t status)
{
    xm_bootstrap_tcp_t *self = reception->self;
    xm_bootstrap_hello_t hello;
    xm_error_t error;

    xm_error_save(&error, status);
    for (int slot = 0; slot < reception->door.places; ++slot) {
        stranger_t *stranger = &reception->strangers[slot];

        /* A hello that has come meanwhile is read, so that its rank is told as well. */
        if (stranger->link.fd >= 0 &&
            (stranger->proven || hear(reception, stranger, &hello) == XM_OK)) {
            send_refusal(&stranger->link, status, error.sentence);
        }
    }
    for (int rank = 1; rank < self->base.size; ++rank) {
        send_refusal(&self->peers[rank].link, status, error.sentence);
    }
    (void)xm_error_restore(&error);
}

/* Rank 0's rendezvous. The listening socket is closed in every case, so the port is free as soon as
 * the ranks have met. Links of admitted ranks stay with the relay, which the caller destroys on
 * failure. */
xm_status_t xm_bootstrap_rendezvous_accept(xm_bootstrap_tcp_t *self, int listen_fd, double deadline,
                                           double timeout)
{
    reception_t reception = {.self = self,
                             .door = {.fd = listen_fd, .who = who_is, .drop = drop},
                             .present = 1,
                             .timeout = timeout};
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = XM_BOOTSTRAP_KEY_LISTENER};
    xm_status_t status;

    allow_files(self->base.size);
    reception.door.arg = &reception;
    reception.door.places = self->base.size + XM_DOOR_STRANGERS;
    reception.door.strangers = xm_door_strangers(reception.door.places);
    reception.strangers = calloc((size_t)reception.door.places, sizeof(*reception.strangers));
    reception.proofs = calloc((size_t)self->base.size, sizeof(*reception.proofs));
    if (reception.strangers == NULL || reception.proofs == NULL) {
        status = XM_NO_MEMORY("%d connections", reception.door.places);
        goto free_proofs;
    }
    for (int slot = 0; slot < reception.door.places; ++slot) {
        reception.strangers[slot].link.fd = -1;
    }
    if (fcntl(listen_fd, F_SETFL, O_NONBLOCK) != 0 ||
        epoll_ctl(self->epoll, EPOLL_CTL_ADD, listen_fd, &event) != 0) {
        status = xm_error_set(XM_ERR_IO, "rank 0 cannot listen: %s", strerror(errno));
        goto close_strangers;
    }
    status = receive_ranks(&reception, deadline);
    if (status < 0) {
        announce_failure(&reception, status);
    } else {
        announce_welcome(&reception);
    }
    (void)epoll_ctl(self->epoll, EPOLL_CTL_DEL, listen_fd, NULL);

close_strangers:
    for (int slot = 0; slot < reception.door.places; ++slot) {
        xm_bootstrap_link_close(&reception.strangers[slot].link);
    }
free_proofs:
    free(reception.proofs);
    free(reception.strangers);
    (void)close(listen_fd);
    return status;
}
