/* SPDX-License-Identifier: Apache-2.0 */
/* The heartbeat's thread. It exists because a rank that computes for minutes must not be taken
 * for dead: the thread answers for it, while one that is stopped as a whole (SIGSTOP, a lost
 * host) answers nothing. It never touches the transport, whose thread is the application's;
 * instead it passes on requests and news through a few fields under one mutex and a descriptor
 * that sleepers wait on. Who is silent is decided in liveness.c; here a silence becomes the
 * fault status, which is sent to all members several times, since datagrams get lost. */
#include "comm/fault/heartbeat.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "comm/base.h"
#include "comm/fault/heartbeat_wire.h"
#include "comm/fault/liveness.h"

/* REPEATS: how often a fault status is sent, half an interval apart. BATCH: datagrams that are
 * read before the clock is looked at. AWAIT_MS: longest wait for a first sign of every rank.
 * DEAF: silences at the start, one after the other, that are no slow start any more. */
enum {
    DEAF = 3,
    REPEATS = 5,
    AWAIT_MS = 2000,
    BATCH = 256,
    RECEIVE_BUFFER = 4 << 20,
    STACK_SIZE = 256 * 1024
};

typedef struct {
    int group_rank; /* -1: no member */
    bool centre;    /* watched as long as the group lives */
    bool silent;
    uint32_t asked_probe;  /* what we want from it */
    uint32_t wanted_probe; /* what it wants from us … */
    bool wanted;           /* … and nobody has looked yet */
    uint32_t ready_probe;  /* what we are ready for */
    uint32_t ready_for;    /* what it says it is ready for */
    uint64_t activity;     /* what it said last of its own thread */
    unsigned signs;        /* answers that showed more activity than the one before */
    bool heard;            /* at least once */
    int deaf;              /* silences before that */
} slot_t;

struct xm_heartbeat {
    const xm_endpoints_t *endpoints;
    int64_t interval;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards what follows */
    xm_liveness_t *liveness;
    slot_t *slots;
    uint32_t generation;
    bool muted;
    xm_bootstrap_fault_t fault_status; /* status XM_OK while there is none */
    int repeats;                       /* of the fault status, still to be sent */
    int64_t repeat_at;
    bool warned; /* that nothing is heard of a rank */
    int wake_fd, news_fd;
    atomic_bool news, stop;
    atomic_uint_fast64_t activity;
};

/* Wakes whoever polls the descriptor. */
static void signal_fd(int fd)
{
    uint64_t one = 1;

    /* It can only fail when the counter is full, and then the reader is awake. */
    (void)!write(fd, &one, sizeof(one));
}

static void drain_fd(int fd)
{
    uint64_t count;

    (void)!read(fd, &count, sizeof(count));
}

/* Tells the application's thread that there is news. The flag is what it looks at while it is
 * busy, the descriptor what wakes it when it sleeps; both change under the lock only, so that
 * neither is lost. */
static void announce(xm_heartbeat_t *self)
{
    atomic_store(&self->news, true);
    signal_fd(self->news_fd);
}

/* Sends one datagram. Failures are ignored: datagrams get lost anyway, and every question is
 * asked again. */
static void send_frame(xm_heartbeat_t *self, int rank, xm_heartbeat_frame_t *frame)
{
    uint8_t bytes[XM_HEARTBEAT_MAX_SIZE];
    struct sockaddr_storage address;
    size_t length;

    frame->sender = self->endpoints->rank;
    frame->receiver = rank;
    frame->generation = self->generation;
    frame->activity = atomic_load(&self->activity);
    length = xm_heartbeat_encode(frame, self->endpoints->key, bytes);
    xm_endpoint_datagram(&self->endpoints->of[rank], &address);
    /* A datagram that is lost is asked for again. */
    (void)sendto(self->endpoints->datagram_fd, bytes, length, MSG_NOSIGNAL,
                 (struct sockaddr *)&address, self->endpoints->of[rank].length);
}

/* Sends the fault status to all members, since each may have heard of nothing yet. */
static void send_fault_status(xm_heartbeat_t *self)
{
    xm_heartbeat_frame_t frame = {.type = XM_HEARTBEAT_FAULT_STATUS, .fault = self->fault_status};

    for (int rank = 0; rank < self->endpoints->size; ++rank) {
        if (rank != self->endpoints->rank && self->slots[rank].group_rank >= 0) {
            send_frame(self, rank, &frame);
        }
    }
}

/* Takes a fault status over, unless there is one: the first stays, so that all ranks end up
 * with one culprit. `tell`: it was found here, so the others have to hear of it. One that came
 * by datagram is not passed on, or messages would multiply. */
static void settle(xm_heartbeat_t *self, const xm_bootstrap_fault_t *fault, bool tell)
{
    if (self->muted || self->fault_status.status != XM_OK) {
        return;
    }
    self->fault_status = *fault;
    self->repeats = tell ? REPEATS : 0;
    self->repeat_at = 0;
    announce(self);
}

static void ask(void *arg, int rank, uint64_t question)
{
    xm_heartbeat_t *self = arg;
    xm_heartbeat_frame_t frame = {
        .type = XM_HEARTBEAT_PING, .question = question, .probe = self->slots[rank].asked_probe};

    send_frame(self, rank, &frame);
}

static void answer(xm_heartbeat_t *self, int rank, uint64_t question)
{
    xm_heartbeat_frame_t frame = {
        .type = XM_HEARTBEAT_PONG, .question = question, .probe = self->slots[rank].ready_probe};

    send_frame(self, rank, &frame);
}

/* True when datagrams were ever heard of some rank that is as far away as this one: on the own
 * host, or on another one. A firewall between hosts lets local datagrams pass, so only equal
 * distances compare. */
static bool datagrams_pass(const xm_heartbeat_t *self, int rank)
{
    const xm_endpoint_t *of = self->endpoints->of;
    const char *own = of[self->endpoints->rank].host;
    bool here = strcmp(of[rank].host, own) == 0;

    for (int other = 0; other < self->endpoints->size; ++other) {
        if (self->slots[other].heard && (here || strcmp(of[other].host, own) != 0)) {
            return true;
        }
    }
    return false;
}

/* Decides whether a silence counts. If nothing was ever heard of a rank, datagrams may be
 * blocked on the way, which is no death. Where they come from others they are not blocked,
 * unless the rank is the one that asks everybody. A rank that is not blamed is watched anew,
 * and after three such silences there is one warning. */
static bool is_deaf(xm_heartbeat_t *self, int rank)
{
    if (self->slots[rank].heard || (!self->slots[rank].centre && datagrams_pass(self, rank))) {
        return false;
    }
    if (++self->slots[rank].deaf >= DEAF && !self->warned) {
        self->warned = true;
        xm_log_warn("rank %d: no heartbeat of rank %d (host %s) has come; are datagrams to port %u "
                    "blocked? Hanging ranks are found by deadlines only",
                    self->slots[self->endpoints->rank].group_rank, self->slots[rank].group_rank,
                    self->endpoints->of[rank].host, self->endpoints->of[rank].datagram_port);
    }
    xm_liveness_watch(self->liveness, rank, false, 0);
    xm_liveness_watch(self->liveness, rank, true, xm_clock_ns());
    return true;
}

/* A watched rank has been silent for too long; liveness reports that once. It is called with
 * the lock held. */
static void on_silence(void *arg, int rank, int64_t silent_ns)
{
    xm_heartbeat_t *self = arg;
    const xm_endpoint_t *silent = &self->endpoints->of[rank];
    xm_bootstrap_fault_t fault = {.rank = rank, .status = XM_ERR_PEER_DIED};
    int own = self->endpoints->rank;

    if (is_deaf(self, rank)) {
        return;
    }
    self->slots[rank].silent = true;
    (void)snprintf(fault.sentence, sizeof(fault.sentence),
                   "rank %d (host %s, pid %d) stopped answering rank %d (host %s) %.1f s ago",
                   self->slots[rank].group_rank, silent->host, silent->pid,
                   self->slots[own].group_rank, self->endpoints->of[own].host,
                   (double)silent_ns * 1e-9);
    settle(self, &fault, true);
    announce(self);
}

/* Datagrams pass to this rank and back: from now on silence means something. */
static void on_sign(xm_heartbeat_t *self, int rank)
{
    if (!self->slots[rank].heard) {
        self->slots[rank].heard = true;
        announce(self);
    }
}

/* Answers at once, whatever the group: a process that belongs to an older generation still
 * lives. A probe that the sender wants is handed to the application's thread. */
static void on_ping(xm_heartbeat_t *self, const xm_heartbeat_frame_t *ping)
{
    slot_t *slot = &self->slots[ping->sender];

    if (ping->generation == self->generation && ping->probe != 0 &&
        ping->probe != slot->wanted_probe) {
        slot->wanted_probe = ping->probe;
        slot->wanted = true;
        announce(self);
    }
    answer(self, ping->sender, ping->question);
}

/* An answer. Only one to a question that is open counts as a sign of life, so a delayed or
 * repeated datagram cannot make a dead rank look alive. */
static void on_pong(xm_heartbeat_t *self, const xm_heartbeat_frame_t *pong)
{
    slot_t *slot = &self->slots[pong->sender];
    bool fresh = xm_liveness_answered(self->liveness, pong->sender, pong->question, xm_clock_ns());

    if (pong->generation != self->generation) {
        return;
    }
    if (pong->probe != slot->ready_for && pong->probe == slot->asked_probe) {
        slot->ready_for = pong->probe;
        announce(self);
    }
    if (fresh) {
        on_sign(self, pong->sender);
        slot->signs += pong->activity > slot->activity;
        slot->activity = pong->activity;
    }
}

/* A fault status of another generation belongs to a group that is no more. */
static void on_frame(xm_heartbeat_t *self, const xm_heartbeat_frame_t *frame)
{
    switch (frame->type) {
    case XM_HEARTBEAT_PING:
        on_ping(self, frame);
        break;
    case XM_HEARTBEAT_PONG:
        on_pong(self, frame);
        break;
    case XM_HEARTBEAT_FAULT_STATUS:
        if (frame->generation == self->generation && frame->fault.rank < self->endpoints->size) {
            settle(self, &frame->fault, false);
        }
        break;
    }
}

/* Reads what has come, but not endlessly: the ticks have to go on under a flood. Datagrams with
 * a wrong code, or for another rank, are dropped without a word. */
static void read_datagrams(xm_heartbeat_t *self)
{
    for (int i = 0; i < BATCH; ++i) {
        uint8_t bytes[XM_HEARTBEAT_MAX_SIZE + 1];
        ssize_t length = recv(self->endpoints->datagram_fd, bytes, sizeof(bytes), 0);
        xm_heartbeat_frame_t frame;

        if (length < 0) {
            return;
        }
        if (xm_heartbeat_decode(bytes, (size_t)length, self->endpoints->key, &frame) == XM_OK &&
            frame.receiver == self->endpoints->rank && frame.sender < self->endpoints->size) {
            on_frame(self, &frame);
        }
    }
}

/* Does what is due; returns when the next thing will be. */
static int64_t beat(xm_heartbeat_t *self)
{
    xm_liveness_actions_t actions = {.ask = ask, .silent = on_silence, .arg = self};
    int64_t now = xm_clock_ns(), next = xm_liveness_tick(self->liveness, now, &actions);

    if (self->repeats > 0 && now >= self->repeat_at) {
        send_fault_status(self);
        --self->repeats;
        self->repeat_at = now + self->interval / 2;
    }
    return self->repeats > 0 && self->repeat_at < next ? self->repeat_at : next;
}

/* The thread. It sleeps without the lock, until a datagram comes, another thread has changed
 * something, or the next question is due. */
static void *run(void *arg)
{
    xm_heartbeat_t *self = arg;
    struct pollfd entries[] = {{.fd = self->endpoints->datagram_fd, .events = POLLIN},
                               {.fd = self->wake_fd, .events = POLLIN}};

    while (!atomic_load(&self->stop)) {
        int64_t next, now;

        (void)pthread_mutex_lock(&self->mutex);
        read_datagrams(self);
        next = beat(self);
        (void)pthread_mutex_unlock(&self->mutex);
        now = xm_clock_ns();
        if (next > now) {
            int64_t wait = next == INT64_MAX ? -1 : (next - now) / 1000000 + 1;

            (void)poll(entries, 2, wait > INT_MAX ? INT_MAX : (int)wait);
            if (entries[1].revents != 0) {
                drain_fd(self->wake_fd);
            }
        }
    }
    return NULL;
}

/* Starts the thread with all signals blocked: the application's signal handlers belong to its
 * own threads. Its stack is small, since a job may have hundreds of ranks on a host. */
static xm_status_t start_thread(xm_heartbeat_t *self)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    int error;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setstacksize(&attributes, STACK_SIZE);
    error = pthread_create(&self->thread, &attributes, run, self);
    (void)pthread_attr_destroy(&attributes);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0
               ? XM_OK
               : xm_error_set(XM_ERR_NO_MEMORY, "cannot start the heartbeat: %s", strerror(error));
}

static void free_heartbeat(xm_heartbeat_t *self)
{
    if (self->wake_fd >= 0) {
        (void)close(self->wake_fd);
    }
    if (self->news_fd >= 0) {
        (void)close(self->news_fd);
    }
    xm_liveness_destroy(self->liveness);
    (void)pthread_mutex_destroy(&self->mutex);
    free(self->slots);
    free(self);
}

/* Creates the heartbeat, muted and watching nobody, so that nothing is judged before the group
 * begins. The socket's buffer is enlarged because all ranks may answer at the same moment. */
xm_status_t xm_heartbeat_create(const xm_endpoints_t *endpoints, double interval,
                                xm_heartbeat_t **heartbeat)
{
    xm_heartbeat_t *self = calloc(1, sizeof(*self));
    int size = RECEIVE_BUFFER;
    xm_status_t status;

    if (self == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a heartbeat");
    }
    self->endpoints = endpoints;
    self->interval = (int64_t)(interval * 1e9);
    self->muted = true;
    (void)pthread_mutex_init(&self->mutex, NULL);
    self->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    self->news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    self->slots = calloc((size_t)endpoints->size, sizeof(*self->slots));
    status = xm_liveness_create(endpoints->size, self->interval, &self->liveness);
    if (status == XM_OK && self->slots == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory to watch %d ranks", endpoints->size);
    }
    if (status == XM_OK && (self->wake_fd < 0 || self->news_fd < 0)) {
        status = xm_error_set(XM_ERR_IO, "eventfd: %s", strerror(errno));
    }
    for (int rank = 0; rank < endpoints->size && status == XM_OK; ++rank) {
        self->slots[rank].group_rank = -1;
    }
    /* All may answer at once; the kernel gives what it allows. */
    (void)setsockopt(endpoints->datagram_fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
    if (status == XM_OK) {
        status = start_thread(self);
    }
    if (status < 0) {
        free_heartbeat(self);
        return status;
    }
    *heartbeat = self;
    return XM_OK;
}

/* Ends the thread before anything that it uses is freed. */
void xm_heartbeat_destroy(xm_heartbeat_t *heartbeat)
{
    if (heartbeat != NULL) {
        atomic_store(&heartbeat->stop, true);
        signal_fd(heartbeat->wake_fd);
        (void)pthread_join(heartbeat->thread, NULL);
        free_heartbeat(heartbeat);
    }
}

static void lock(xm_heartbeat_t *heartbeat)
{
    (void)pthread_mutex_lock(&heartbeat->mutex);
}

/* Lets go of the lock; `wake` makes the thread look at what has changed, for it may sleep long. */
static void unlock(xm_heartbeat_t *heartbeat, bool wake)
{
    (void)pthread_mutex_unlock(&heartbeat->mutex);
    if (wake) {
        signal_fd(heartbeat->wake_fd);
    }
}

static void watch_nobody(xm_heartbeat_t *self)
{
    for (int rank = 0; rank < self->endpoints->size; ++rank) {
        xm_liveness_watch(self->liveness, rank, false, 0);
        self->slots[rank].silent = false;
        self->slots[rank].centre = false;
    }
}

/* A group begins. What was known of the group before is forgotten, except that a rank was
 * heard: whether datagrams pass does not depend on the group. The lowest rank watches all, all
 * watch the lowest: 2 (n - 1) questions an interval instead of n squared. */
void xm_heartbeat_begin(xm_heartbeat_t *heartbeat, uint32_t generation, const int *rank_of)
{
    bool central = rank_of[heartbeat->endpoints->rank] == 0;

    lock(heartbeat);
    watch_nobody(heartbeat);
    heartbeat->generation = generation;
    heartbeat->muted = false;
    heartbeat->fault_status.status = XM_OK;
    heartbeat->repeats = 0;
    for (int rank = 0; rank < heartbeat->endpoints->size; ++rank) {
        slot_t *slot = &heartbeat->slots[rank];

        *slot = (slot_t){.group_rank = rank_of[rank], .heard = slot->heard};
        slot->centre = rank_of[rank] >= 0 && rank != heartbeat->endpoints->rank &&
                       (central || rank_of[rank] == 0);
        xm_liveness_watch(heartbeat->liveness, rank, slot->centre, xm_clock_ns());
    }
    unlock(heartbeat, true);
}

static bool has_heard_all(xm_heartbeat_t *self)
{
    bool all = true;

    lock(self);
    for (int rank = 0; rank < self->endpoints->size && all; ++rank) {
        all = !self->slots[rank].centre || self->slots[rank].heard;
    }
    unlock(self, false);
    return all;
}

/* Waits for a first sign of all that are watched, but not long, because some may start late.
 * Everything that woke it is announced again afterwards, since this loop has taken it off the
 * descriptor. */
void xm_heartbeat_await(xm_heartbeat_t *heartbeat)
{
    int64_t deadline = xm_clock_ns() + AWAIT_MS * INT64_C(1000000);

    while (!has_heard_all(heartbeat) && xm_clock_ns() < deadline) {
        struct pollfd entry = {.fd = heartbeat->news_fd, .events = POLLIN};

        (void)poll(&entry, 1, (int)((deadline - xm_clock_ns()) / 1000000) + 1);
        lock(heartbeat);
        drain_fd(heartbeat->news_fd);
        unlock(heartbeat, false);
    }
    /* Signs that came meanwhile are news for the next look. */
    lock(heartbeat);
    announce(heartbeat);
    unlock(heartbeat, false);
}

/* The group is no more: silences are noted for the regrouping, and end nothing. */
void xm_heartbeat_mute(xm_heartbeat_t *heartbeat)
{
    lock(heartbeat);
    watch_nobody(heartbeat);
    heartbeat->muted = true;
    unlock(heartbeat, true);
}

/* Watches a rank, or no longer. The lowest rank of the group and the others stay watched by each
 * other. */
void xm_heartbeat_watch(xm_heartbeat_t *heartbeat, int rank, bool watch)
{
    lock(heartbeat);
    watch = watch || heartbeat->slots[rank].centre;
    if (watch != xm_liveness_watches(heartbeat->liveness, rank)) {
        /* Two ranks that have lost each other should not blame each other, so the lower rank
         * speaks first. */
        int64_t grace = rank < heartbeat->endpoints->rank ? heartbeat->interval / 2 : 0;

        xm_liveness_watch(heartbeat->liveness, rank, watch, xm_clock_ns() + grace);
        heartbeat->slots[rank].silent = false;
    }
    unlock(heartbeat, watch);
}

bool xm_heartbeat_is_silent(xm_heartbeat_t *heartbeat, int rank)
{
    bool silent;

    lock(heartbeat);
    silent = heartbeat->slots[rank].silent;
    unlock(heartbeat, false);
    return silent;
}

bool xm_heartbeat_is_heard(xm_heartbeat_t *heartbeat, int rank)
{
    bool heard;

    lock(heartbeat);
    heard = heartbeat->slots[rank].heard && !heartbeat->slots[rank].silent;
    unlock(heartbeat, false);
    return heard;
}

int xm_heartbeat_fd(const xm_heartbeat_t *heartbeat)
{
    return heartbeat->news_fd;
}

/* The common case is one relaxed load, because a busy rank asks in every progress call. */
bool xm_heartbeat_take_news(xm_heartbeat_t *heartbeat)
{
    if (!atomic_load_explicit(&heartbeat->news, memory_order_relaxed)) {
        return false;
    }
    lock(heartbeat);
    drain_fd(heartbeat->news_fd);
    atomic_store(&heartbeat->news, false);
    unlock(heartbeat, false);
    return true;
}

bool xm_heartbeat_fault_status(xm_heartbeat_t *heartbeat, xm_bootstrap_fault_t *fault)
{
    lock(heartbeat);
    *fault = heartbeat->fault_status;
    unlock(heartbeat, false);
    return fault->status != XM_OK;
}

/* Sends at once, and not only with the thread's next round: the process may be about to end. */
void xm_heartbeat_tell(xm_heartbeat_t *heartbeat, const xm_bootstrap_fault_t *fault)
{
    lock(heartbeat);
    settle(heartbeat, fault, true);
    if (heartbeat->repeats == REPEATS) {
        send_fault_status(heartbeat); /* at once: the process may be about to end */
    }
    unlock(heartbeat, true);
}

void xm_heartbeat_active(xm_heartbeat_t *heartbeat)
{
    atomic_fetch_add_explicit(&heartbeat->activity, 1, memory_order_relaxed);
}

unsigned xm_heartbeat_signs(xm_heartbeat_t *heartbeat, int rank)
{
    unsigned signs;

    lock(heartbeat);
    signs = heartbeat->slots[rank].signs;
    unlock(heartbeat, false);
    return signs;
}

/* Asks right away, with question number 0, which counts as no sign of life when it is answered. */
void xm_heartbeat_want_probe(xm_heartbeat_t *heartbeat, int rank, uint32_t probe)
{
    lock(heartbeat);
    heartbeat->slots[rank].asked_probe = probe;
    ask(heartbeat, rank, 0);
    unlock(heartbeat, false);
}

/* Takes one wish; the caller repeats until there is none. */
bool xm_heartbeat_wanted(xm_heartbeat_t *heartbeat, int *rank, uint32_t *probe)
{
    bool found = false;

    lock(heartbeat);
    for (int r = 0; r < heartbeat->endpoints->size && !found; ++r) {
        if (heartbeat->slots[r].wanted) {
            heartbeat->slots[r].wanted = false;
            *rank = r;
            *probe = heartbeat->slots[r].wanted_probe;
            found = true;
        }
    }
    unlock(heartbeat, false);
    return found;
}

/* Answers without being asked, so that the probe need not wait for the next question. */
void xm_heartbeat_set_ready(xm_heartbeat_t *heartbeat, int rank, uint32_t probe)
{
    lock(heartbeat);
    heartbeat->slots[rank].ready_probe = probe;
    answer(heartbeat, rank, 0);
    unlock(heartbeat, false);
}

bool xm_heartbeat_is_ready(xm_heartbeat_t *heartbeat, int rank, uint32_t probe)
{
    bool ready;

    lock(heartbeat);
    ready = heartbeat->slots[rank].ready_for == probe;
    unlock(heartbeat, false);
    return ready;
}
