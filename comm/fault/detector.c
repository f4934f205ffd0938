/* SPDX-License-Identifier: Apache-2.0 */
/* The detector's thread. It exists because a rank that computes for minutes must not be taken for
 * dead: the thread answers for it, while one that is stopped as a whole (SIGSTOP, a lost host)
 * answers nothing. It never touches the transport, whose thread is the application's; it only
 * reads what that has counted, and passes on requests and news through a few fields under one
 * mutex and descriptors that sleepers wait on. What a silence means is decided in liveness.c; here
 * it becomes the finding, with a sentence, which is sent to all members several times. */
#include "comm/fault/detector.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "comm/base.h"
#include "comm/fault/detector_private.h"

/* REPEATS: how often a finding is sent, half an interval apart. WARN_AFTER: intervals after which a
 * rank that has never answered is worth a warning. */
enum { REPEATS = 5, WARN_AFTER = 10, STACK_SIZE = 256 * 1024 };

/* Of a heartbeat that is off: what counts as its interval where there must be one. */
static const double DEFAULT_INTERVAL_S = 1.0;

void xm_detector_signal(int fd)
{
    /* It can only fail when the counter is full, and then the reader is awake. */
    (void)eventfd_write(fd, 1);
}

void xm_detector_drain(int fd)
{
    eventfd_t count;

    (void)eventfd_read(fd, &count);
}

/* The flag is what the application's thread looks at while it is busy, the descriptor what wakes it
 * when it sleeps; both change under the lock only, so that neither is lost. */
void xm_detector_announce(xm_detector_t *self)
{
    atomic_store(&self->news, true);
    xm_detector_signal(self->news_fd);
}

static void send_frame(xm_detector_t *self, int rank, xm_frame_t *frame, bool urgent)
{
    frame->generation = self->generation;
    frame->activity = atomic_load(&self->activity);
    xm_courier_send(self->courier, rank, frame, urgent);
}

void xm_detector_send_finding(xm_detector_t *self)
{
    const xm_endpoint_t *of = self->endpoints->of;
    int own = self->endpoints->rank;
    xm_frame_t frame = {.type = XM_FRAME_FINDING, .about = -1, .fault = self->finding};

    for (int rank = 0; rank < self->endpoints->size; ++rank) {
        if (rank != own && self->slots[rank].group_rank >= 0 && !self->slots[rank].left &&
            (!self->near || of[rank].host_number == of[own].host_number)) {
            send_frame(self, rank, &frame, true);
        }
    }
}

void xm_detector_settle(xm_detector_t *self, const xm_bootstrap_fault_t *fault, bool tell)
{
    if (self->muted || self->finding.status != XM_OK) {
        return;
    }
    self->finding = *fault;
    self->delivered = false;
    self->repeats = tell ? REPEATS : 0;
    self->repeat_at = 0;
    xm_detector_signal(self->guard_fd);
    xm_detector_announce(self);
    if (fault->status == XM_ERR_PEER_DIED && fault->rank >= 0) {
        xm_launch_report(self->endpoints->rank, fault->rank);
    }
}

static void name_rank(const xm_detector_t *self, int rank, char *text, size_t size)
{
    const xm_endpoint_t *of = &self->endpoints->of[rank];

    (void)snprintf(text, size, "rank %d (host %s, pid %d)", self->slots[rank].group_rank, of->host,
                   of->pid);
}

enum { NAME_SIZE = XM_BOOTSTRAP_HOST_SIZE + 48 };

void xm_detector_settle_closed(xm_detector_t *self, int rank)
{
    xm_bootstrap_fault_t fault = {.rank = rank, .status = XM_ERR_PEER_DIED};
    char name[NAME_SIZE];

    self->slots[rank].closed = true;
    /* One that has left in order is missed only by a bootstrap that still waits for it. */
    if (self->slots[rank].group_rank >= 0 &&
        (!self->slots[rank].left || xm_courier_attaches(self->courier) == rank)) {
        name_rank(self, rank, name, sizeof(name));
        (void)snprintf(fault.sentence, sizeof(fault.sentence), "%s died", name);
        xm_detector_settle(self, &fault, true);
    }
    xm_detector_announce(self);
}

/* The sentence says who does not hear whom, and how this is known. */
static void describe(const xm_detector_t *self, int rank, xm_finding_t finding, double seconds,
                     int witness, char sentence[XM_BOOTSTRAP_SENTENCE_SIZE])
{
    int own = self->endpoints->rank;
    const char *host = self->endpoints->of[own].host;
    char name[NAME_SIZE], other[NAME_SIZE] = "";
    size_t size = XM_BOOTSTRAP_SENTENCE_SIZE;

    name_rank(self, rank, name, sizeof(name));
    if (witness >= 0) {
        name_rank(self, witness, other, sizeof(other));
    }
    switch (finding) {
    case XM_FINDING_CUT:
        (void)snprintf(sentence, size,
                       "%s lives, as %s knows, but nothing has passed between it and rank %d (host "
                       "%s) for %.1f s: the path between their hosts is down",
                       name, other, self->slots[own].group_rank, host, seconds);
        break;
    case XM_FINDING_ALONE:
        name_rank(self, own, name, sizeof(name));
        (void)snprintf(sentence, size,
                       "%s has heard no rank of another host for %.1f s: its own link is down",
                       name, seconds);
        break;
    default:
        (void)snprintf(sentence, size, "%s stopped answering rank %d (host %s) %.1f s ago%s%s%s",
                       name, self->slots[own].group_rank, host, seconds, witness >= 0 ? "; " : "",
                       other, witness >= 0 ? " does not hear it either" : "");
    }
}

/* A rank is found to be gone, or cut off; who is only cut off is not named as the one that is gone:
 * the next group may do without either of the two. It is called with the lock held. */
static void on_finding(void *arg, int rank, xm_finding_t finding, int64_t silent_ns, int witness)
{
    xm_detector_t *self = arg;
    xm_bootstrap_fault_t fault = {.rank = finding == XM_FINDING_SILENT ? rank : -1,
                                  .status = XM_ERR_PEER_DIED};

    if (finding == XM_FINDING_CLOSED) {
        xm_detector_settle_closed(self, rank);
        return;
    }
    if (self->slots[rank].group_rank >= 0 && !self->slots[rank].left && !self->muted) {
        describe(self, rank, finding, (double)silent_ns * 1e-9, witness, fault.sentence);
        self->near = self->finding.status == XM_OK ? finding == XM_FINDING_ALONE : self->near;
        xm_detector_settle(self, &fault, true);
    }
    xm_detector_announce(self);
}

void xm_detector_ask(xm_detector_t *self, int rank, uint64_t question, int about, bool urgent)
{
    xm_frame_t frame = {.type = XM_FRAME_ASK,
                        .question = question,
                        .about = about,
                        .hears = xm_liveness_hears(self->liveness, rank, xm_clock_ns()),
                        .probe = self->slots[rank].asked_probe};

    send_frame(self, rank, &frame, urgent);
}

static void on_ask_due(void *arg, int rank, uint64_t question, int about, bool urgent)
{
    xm_detector_ask(arg, rank, question, about, urgent);
}

static void on_call_due(void *arg, int rank)
{
    xm_detector_t *self = arg;

    xm_courier_call(self->courier, rank, xm_clock_ns(), self->interval / 2);
}

/* @p question NULL: nobody has asked; @p way NULL: the best one. */
void xm_detector_answer(xm_detector_t *self, int rank, const xm_frame_t *question,
                        const xm_courier_way_t *way)
{
    xm_frame_t frame = {.type = XM_FRAME_ANSWER,
                        .about = -1,
                        .hears = true,
                        .generation = self->generation,
                        .activity = atomic_load(&self->activity),
                        .probe = self->slots[rank].ready_probe};

    if (question != NULL) {
        frame.question = question->question;
        frame.about = question->about;
    }
    if (frame.about >= 0) {
        frame.opinion = frame.about == self->endpoints->rank
                            ? XM_OPINION_HEARS
                            : xm_liveness_testify(self->liveness, frame.about, xm_clock_ns());
    }
    if (way != NULL) {
        xm_courier_reply(self->courier, rank, &frame, way);
    } else {
        xm_courier_send(self->courier, rank, &frame, false);
    }
}

/* Answers at once, whatever the group: a process that belongs to an older generation still lives. A
 * probe that the sender wants is handed to the application's thread. */
static void on_ask(xm_detector_t *self, const xm_frame_t *ask, const xm_courier_way_t *way)
{
    xm_detector_slot_t *slot = &self->slots[ask->sender];

    xm_liveness_asked(self->liveness, ask->sender, ask->hears, xm_clock_ns());
    if (ask->generation == self->generation && ask->probe != 0 &&
        ask->probe != slot->wanted_probe) {
        slot->wanted_probe = ask->probe;
        slot->wanted = true;
        xm_detector_announce(self);
    }
    xm_detector_answer(self, ask->sender, ask, way);
}

/* Only an answer to a question that is open counts as a sign of life, so a delayed or repeated
 * datagram cannot make a dead rank look alive. */
static void on_answer(xm_detector_t *self, const xm_frame_t *answer)
{
    xm_detector_slot_t *slot = &self->slots[answer->sender];
    bool known = xm_liveness_answers(self->liveness, answer->sender);
    bool fresh = xm_liveness_answered(self->liveness, answer->sender, answer->question,
                                      answer->about, answer->opinion, xm_clock_ns());

    slot->closed = slot->closed && !fresh;
    if (answer->generation != self->generation) {
        return;
    }
    if (answer->probe != slot->ready_for && answer->probe == slot->asked_probe) {
        slot->ready_for = answer->probe;
        xm_detector_announce(self);
    }
    if (fresh) {
        slot->signs += answer->activity > slot->activity;
        slot->activity = answer->activity;
    }
    if (fresh && !known) {
        xm_detector_announce(self);
    }
}

/* The latest connection of a rank counts: if it has made another, it knows why. */
static void on_attached(void *arg, int rank, int fd)
{
    xm_detector_t *self = arg;

    if (self->slots[rank].link >= 0) {
        (void)close(self->slots[rank].link);
    }
    self->slots[rank].link = fd;
    xm_detector_signal(self->guard_fd);
}

/* A rank wants a connection for the bootstrap. It is a member of the group that this rank is in,
 * or will ask again. */
static void on_attach(xm_detector_t *self, const xm_frame_t *attach, const xm_courier_way_t *way)
{
    xm_frame_t frame = {.type = XM_FRAME_ATTACHED, .about = -1, .generation = self->generation};

    if (way->guest < 0 || self->muted || attach->generation != self->generation ||
        self->slots[attach->sender].group_rank < 0) {
        return;
    }
    xm_courier_reply(self->courier, attach->sender, &frame, way);
    on_attached(self, attach->sender, xm_courier_take(self->courier, way));
}

/* A frame of a regrouping, of a rank that the group has gone on without, or that has not heard yet
 * that there is a group. */
static bool answers_late_hello(xm_detector_t *self, const xm_frame_t *hello)
{
    xm_detector_slot_t *slots = self->slots;
    int own = self->endpoints->rank, size = self->endpoints->size;
    bool member = slots[hello->sender].group_rank >= 0;
    xm_frame_t frame = {.type = XM_FRAME_REFUSAL, .about = -1};
    uint8_t *standing;

    if (self->muted || hello->type != XM_FRAME_HELLO ||
        (member && (hello->generation >= self->generation || slots[own].group_rank != 0))) {
        return false;
    }
    if (!member) {
        frame.fault = (xm_bootstrap_fault_t){.rank = hello->sender, .status = XM_ERR_PEER_DIED};
        (void)snprintf(frame.fault.sentence, sizeof(frame.fault.sentence),
                       "the others take rank %d of the job (host %s, pid %d) for dead",
                       hello->sender, self->endpoints->of[hello->sender].host,
                       self->endpoints->of[hello->sender].pid);
        send_frame(self, hello->sender, &frame, true);
        return true;
    }
    standing = malloc((size_t)size);
    for (int rank = 0; rank < size && standing != NULL; ++rank) {
        standing[rank] = slots[rank].group_rank >= 0 ? XM_STANDING_WELL : XM_STANDING_OUT;
    }
    frame.type = XM_FRAME_WELCOME;
    frame.standing = standing;
    if (standing != NULL) {
        send_frame(self, hello->sender, &frame, true);
    }
    free(standing);
    return true;
}

/* Keeps the last frame of a regrouping that a rank has sent. */
static void on_regrouping(xm_detector_t *self, const xm_frame_t *frame)
{
    xm_detector_slot_t *slot = &self->slots[frame->sender];
    size_t size = (size_t)self->endpoints->size;

    if (answers_late_hello(self, frame)) {
        return;
    }
    if (slot->said == NULL) {
        slot->said = malloc(sizeof(*slot->said) + size);
    }
    if (slot->said != NULL) {
        *slot->said = *frame;
        slot->said->standing = (uint8_t *)(slot->said + 1);
        memcpy(slot->said->standing, frame->standing, size);
        slot->said_at = xm_clock_ns();
        xm_detector_announce(self);
    }
}

static bool hears_all(const xm_detector_t *self)
{
    bool all = true;

    for (int rank = 0; rank < self->endpoints->size && all; ++rank) {
        all = xm_liveness_is_heard(self->liveness, rank) ||
              !xm_liveness_watches(self->liveness, rank);
    }
    return all;
}

static void on_frame(void *arg, const xm_frame_t *frame, const xm_courier_way_t *way)
{
    xm_detector_t *self = arg;
    bool heard = xm_liveness_is_heard(self->liveness, frame->sender);

    switch (frame->type) {
    case XM_FRAME_ASK:
        on_ask(self, frame, way);
        break;
    case XM_FRAME_ANSWER:
        on_answer(self, frame);
        break;
    case XM_FRAME_FINDING:
        if (frame->generation == self->generation) {
            xm_detector_settle(self, &frame->fault, false);
        }
        break;
    case XM_FRAME_LEAVE:
        if (frame->generation == self->generation) {
            self->slots[frame->sender].left = true;
            xm_liveness_watch(self->liveness, frame->sender, false, 0);
        }
        break;
    case XM_FRAME_ATTACH:
        on_attach(self, frame, way);
        break;
    case XM_FRAME_ATTACHED:
        break;
    case XM_FRAME_HELLO:
    case XM_FRAME_WELCOME:
    case XM_FRAME_REFUSAL:
        on_regrouping(self, frame);
        break;
    }
    /* The last one that a regrouping knew nothing of. Not each of them: every time it says what it
     * knows, to a rank that hears this from all. */
    if (!heard && xm_liveness_is_heard(self->liveness, frame->sender) && hears_all(self)) {
        xm_detector_announce(self);
    }
}

static void on_refused(void *arg, int rank, bool sure)
{
    xm_detector_t *self = arg;

    xm_liveness_refused(self->liveness, rank, sure, xm_clock_ns());
}

/* What the transport has received of a watched rank is a sign of life of it, of the moment when it
 * came: this thread may have slept for an interval since. */
static void look_at_traffic(xm_detector_t *self)
{
    for (int rank = 0; rank < self->endpoints->size && self->counters != NULL; ++rank) {
        int64_t at = xm_counters_received_at(self->counters, rank);

        if (xm_liveness_watches(self->liveness, rank) && at != self->slots[rank].received_at) {
            self->slots[rank].received_at = at;
            xm_liveness_heard(self->liveness, rank, at);
        }
    }
}

/* A rank that has never answered, by no path, cannot be blamed for silence. That is said once. */
static void warn_of_the_mute(xm_detector_t *self, int64_t now)
{
    for (int rank = 0; rank < self->endpoints->size && !self->warned; ++rank) {
        const xm_detector_slot_t *slot = &self->slots[rank];

        if (slot->centre && !slot->left && !slot->closed &&
            !xm_liveness_answers(self->liveness, rank) &&
            now - self->began_at > WARN_AFTER * self->interval) {
            self->warned = true;
            xm_log_warn("rank %d: rank %d (host %s) answers no questions; are datagrams to port %u "
                        "and connections to port %u blocked? Hanging ranks are found by deadlines "
                        "only",
                        self->slots[self->endpoints->rank].group_rank, slot->group_rank,
                        self->endpoints->of[rank].host, self->endpoints->of[rank].datagram_port,
                        self->endpoints->of[rank].stream_port);
        }
    }
}

/* Does what is due; returns when the next thing will be. */
static int64_t beat(xm_detector_t *self)
{
    xm_courier_events_t events = {on_frame, on_refused, on_attached, self};
    xm_liveness_actions_t actions = {on_ask_due, on_call_due, on_finding, self};
    int64_t now = xm_clock_ns(),
            link = xm_courier_read(self->courier, now, self->interval / 2, &events);
    int64_t next;

    look_at_traffic(self);
    next = xm_liveness_tick(self->liveness, now, &actions);
    next = link < next ? link : next;
    warn_of_the_mute(self, now);
    if (self->repeats > 0 && now >= self->repeat_at) {
        xm_detector_send_finding(self);
        --self->repeats;
        self->repeat_at = now + self->interval / 2;
    }
    return self->repeats > 0 && self->repeat_at < next ? self->repeat_at : next;
}

/* The thread. It sleeps without the lock, until something comes, another thread has changed
 * something, or the next question is due. */
static void *run(void *arg)
{
    xm_detector_t *self = arg;

    while (!atomic_load(&self->stop)) {
        int64_t next, now;
        int count;

        (void)pthread_mutex_lock(&self->mutex);
        next = beat(self);
        count = xm_courier_polls(self->courier, self->polls + 1);
        (void)pthread_mutex_unlock(&self->mutex);
        now = xm_clock_ns();
        if (next > now) {
            int64_t wait = next == INT64_MAX ? -1 : (next - now) / 1000000 + 1;

            self->polls[0] = (struct pollfd){.fd = self->wake_fd, .events = POLLIN};
            (void)poll(self->polls, (nfds_t)count + 1, wait > INT_MAX ? INT_MAX : (int)wait);
            if (self->polls[0].revents != 0) {
                xm_detector_drain(self->wake_fd);
            }
        }
    }
    return NULL;
}

/* Starts the thread with all signals blocked: the application's signal handlers belong to its
 * own threads. Its stack is small, since a job may have hundreds of ranks on a host. */
static xm_status_t start_thread(xm_detector_t *self)
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
               : xm_error_set(XM_ERR_NO_MEMORY, "cannot start the detector: %s", strerror(error));
}

void xm_detector_forget(xm_detector_t *self)
{
    for (int rank = 0; rank < self->endpoints->size && self->slots != NULL; ++rank) {
        free(self->slots[rank].said);
        self->slots[rank].said = NULL;
    }
}

static void free_detector(xm_detector_t *self)
{
    int fds[] = {self->wake_fd, self->news_fd, self->guard_fd};

    for (size_t i = 0; i < sizeof(fds) / sizeof(*fds); ++i) {
        if (fds[i] >= 0) {
            (void)close(fds[i]);
        }
    }
    xm_detector_forget(self);
    for (int rank = 0; rank < self->endpoints->size && self->slots != NULL; ++rank) {
        if (self->slots[rank].link >= 0) {
            (void)close(self->slots[rank].link);
        }
    }
    xm_courier_destroy(self->courier);
    xm_liveness_destroy(self->liveness);
    (void)pthread_mutex_destroy(&self->mutex);
    free(self->polls);
    free(self->slots);
    free(self);
}

/* Creates the detector, muted and watching nobody, so that nothing is judged before the group
 * begins. */
xm_status_t xm_detector_create(const xm_endpoints_t *endpoints, double interval,
                               const xm_counters_t *counters, xm_detector_t **detector)
{
    xm_detector_t *self = calloc(1, sizeof(*self));
    xm_status_t status;

    XM_NEED_MEMORY(self, "a detector");
    self->endpoints = endpoints;
    self->counters = counters;
    self->interval = (int64_t)((interval > 0.0 ? interval : DEFAULT_INTERVAL_S) * 1e9);
    self->muted = true;
    (void)pthread_mutex_init(&self->mutex, NULL);
    self->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    self->news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    self->guard_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    self->slots = calloc((size_t)endpoints->size, sizeof(*self->slots));
    for (int rank = 0; rank < endpoints->size && self->slots != NULL; ++rank) {
        self->slots[rank] = (xm_detector_slot_t){.group_rank = -1, .link = -1};
    }
    status = xm_liveness_create(endpoints->size, endpoints->rank, self->interval, interval > 0.0,
                                &self->liveness);
    if (status == XM_OK && (status = xm_courier_create(endpoints, &self->courier)) == XM_OK) {
        self->polls =
            calloc((size_t)xm_courier_poll_count(self->courier) + 1, sizeof(*self->polls));
    }
    if (status == XM_OK && (self->slots == NULL || self->polls == NULL)) {
        status = XM_NO_MEMORY("watching %d ranks", endpoints->size);
    }
    if (status == XM_OK && (self->wake_fd < 0 || self->news_fd < 0 || self->guard_fd < 0)) {
        status = xm_error_set(XM_ERR_IO, "eventfd: %s", strerror(errno));
    }
    XM_THEN(status, start_thread(self));
    if (status < 0) {
        free_detector(self);
        return status;
    }
    *detector = self;
    return XM_OK;
}

/* Says that this rank leaves, to those that watch it, and ends the thread before anything that it
 * uses is freed. */
void xm_detector_destroy(xm_detector_t *detector)
{
    xm_frame_t frame = {.type = XM_FRAME_LEAVE, .about = -1};

    if (detector == NULL) {
        return;
    }
    atomic_store(&detector->stop, true);
    xm_detector_signal(detector->wake_fd);
    (void)pthread_join(detector->thread, NULL);
    for (int rank = 0; rank < detector->endpoints->size; ++rank) {
        if (detector->slots[rank].centre && !detector->muted) {
            send_frame(detector, rank, &frame, true);
        }
    }
    free_detector(detector);
}
