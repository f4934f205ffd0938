/* SPDX-License-Identifier: Apache-2.0 */
/* How the survivors of a group find each other again. Everybody acts on the same rule, that the
 * lowest rank not known to be dead is where to meet, and everybody serves its listening socket
 * meanwhile; so a rank that knows less than others still ends up at the right place, by
 * learning from hellos or by finding the place dead. A connection that fails is no proof of
 * death, only a refused one or a silent heartbeat is. All loops are bounded by the deadline,
 * and sets of the dead only grow, so the choice of the meeting place changes at most as often
 * as there are ranks. */
#include "comm/fault/regroup.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/job.h"
#include "comm/base.h"
#include "comm/fault/liveness.h"
#include "comm/fault/regroup_wire.h"

/* KNOCK_S: how often the centre tries the sockets of ranks that have not come. LOOK_MS: the
 * longest sleep. GRACE_S: a member waits this much longer than its deadline, because the centre
 * is about to say who is missing. STRANGERS: connections without a hello; the oldest makes
 * room. */
enum { LOOK_MS = 50, STRANGERS = 64, LISTED_RANKS = 8 };
static const double KNOCK_S = 0.2, GRACE_S = 1.0;

/* One connection, with what has been read from it so far. */
typedef struct {
    int fd; /* -1: none */
    uint8_t *bytes;
    size_t have;
    double since;
} line_t;

typedef struct {
    const xm_regroup_params_t *params;
    int size, rank;
    bool *dead;
    bool *set; /* of the frame in hand */
    uint32_t generation;
    size_t frame_size;
    line_t strangers[STRANGERS];
    int next_stranger;
    line_t *members; /* by rank: who has said hello */
    line_t *knocks;  /* by rank: attempts to reach those who have not */
    line_t up;       /* to the centre */
    int up_rank;     /* whose connection that is; -1: none */
    bool up_said;    /* hello */
    double up_again; /* when to connect again */
    struct pollfd *polls;
    double deadline;
    bool joined; /* the welcome has come, or was given */
} meeting_t;

static void hang_up(line_t *line)
{
    if (line->fd >= 0) {
        (void)close(line->fd);
    }
    free(line->bytes);
    *line = (line_t){.fd = -1};
}

static int centre_of(const meeting_t *meeting)
{
    int rank = 0;

    while (rank < meeting->size && meeting->dead[rank]) {
        ++rank;
    }
    return rank;
}

/* Sends a frame. All frames are small: if the kernel does not take one within a second, the
 * connection is dead, and the receiver will find that it did not get it. */
static void say(meeting_t *meeting, const line_t *line, xm_regroup_frame_t *frame)
{
    uint8_t *bytes = malloc(meeting->frame_size);
    size_t length, sent = 0;

    if (bytes == NULL) {
        return;
    }
    frame->sender = meeting->rank;
    length = xm_regroup_encode(frame, meeting->size, meeting->params->endpoints->key, bytes);
    while (sent < length) {
        ssize_t written = send(line->fd, bytes + sent, length - sent, MSG_NOSIGNAL);
        struct pollfd entry = {.fd = line->fd, .events = POLLOUT};

        if (written > 0) {
            sent += (size_t)written;
        } else if (errno != EINTR && (errno != EAGAIN || poll(&entry, 1, 1000) <= 0)) {
            break;
        }
    }
    free(bytes);
}

static void refuse(meeting_t *meeting, const line_t *line, xm_status_t status, int rank,
                   const char *sentence)
{
    xm_regroup_frame_t frame = {.type = XM_REGROUP_REFUSAL,
                                .fault = {.rank = rank, .status = status}};

    (void)snprintf(frame.fault.sentence, sizeof(frame.fault.sentence), "%s", sentence);
    say(meeting, line, &frame);
}

/* Reads a frame, and nothing behind it: after a welcome the connection belongs to the new
 * group, whose centre may have written to it already. XM_ERR_IO: the connection has ended;
 * others as xm_regroup_decode(). */
static xm_status_t hear(meeting_t *meeting, line_t *line, xm_regroup_frame_t *frame)
{
    xm_status_t status;
    ssize_t got;
    size_t used;

    if (line->bytes == NULL) {
        line->bytes = malloc(meeting->frame_size);
        if (line->bytes == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a frame of a regrouping");
        }
    }
    frame->set = meeting->set;
    do {
        size_t wanted = xm_regroup_wants(line->bytes, line->have, meeting->size);

        if (line->have + wanted > meeting->frame_size) {
            return xm_error_set(XM_ERR_CORRUPT, "regrouping: a frame without an end");
        }
        got = recv(line->fd, line->bytes + line->have, wanted, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
            return XM_ERR_IO;
        }
        line->have += got > 0 ? (size_t)got : 0;
        status = xm_regroup_decode(line->bytes, line->have, meeting->size,
                                   meeting->params->endpoints->key, frame, &used);
    } while (status == XM_IN_PROGRESS && got > 0);
    return status;
}

static void name_rank(const meeting_t *meeting, int rank, char *text, size_t size)
{
    const xm_endpoint_t *endpoint = &meeting->params->endpoints->of[rank];

    (void)snprintf(text, size, "rank %d of the job (host %s, pid %d)", rank, endpoint->host,
                   endpoint->pid);
}

/* A rank says hello. The centre learns from it which ranks are dead and which generations there
 * have been, and keeps its connection, which replaces an older one of that rank. A rank that
 * the others take for dead is told so: letting it in could make two groups that both count it. */
static void admit(meeting_t *meeting, line_t *line, const xm_regroup_frame_t *hello)
{
    char name[XM_BOOTSTRAP_HOST_SIZE + 64], sentence[XM_BOOTSTRAP_HOST_SIZE + 128];

    if (meeting->dead[hello->sender]) {
        name_rank(meeting, hello->sender, name, sizeof(name));
        (void)snprintf(sentence, sizeof(sentence), "the others take %s for dead", name);
        refuse(meeting, line, XM_ERR_PEER_DIED, hello->sender, sentence);
        hang_up(line);
        return;
    }
    for (int rank = 0; rank < meeting->size; ++rank) {
        meeting->dead[rank] |= hello->set[rank] && rank != meeting->rank;
    }
    if (hello->generation > meeting->generation) {
        meeting->generation = hello->generation;
    }
    hang_up(&meeting->members[hello->sender]);
    meeting->members[hello->sender] = *line;
    *line = (line_t){.fd = -1};
}

/* A connection counts from its first valid frame; whatever else comes ends it. */
static void serve_stranger(meeting_t *meeting, line_t *line)
{
    xm_regroup_frame_t frame;
    xm_status_t status = hear(meeting, line, &frame);

    if (status == XM_OK && frame.type == XM_REGROUP_HELLO && frame.sender != meeting->rank) {
        admit(meeting, line, &frame);
    } else if (status != XM_IN_PROGRESS) {
        hang_up(line);
    }
}

static void accept_all(meeting_t *meeting)
{
    int fd;

    while ((fd = accept4(meeting->params->endpoints->gathering_fd, NULL, NULL,
                         SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        line_t *line = &meeting->strangers[meeting->next_stranger];

        meeting->next_stranger = (meeting->next_stranger + 1) % STRANGERS;
        hang_up(line);
        line->fd = fd;
        serve_stranger(meeting, line); /* its hello may be there already */
    }
}

/* Starts connecting. XM_ERR_UNREACHABLE: nothing listens there any more, so the process has
 * ended. */
static xm_status_t call(meeting_t *meeting, int rank, line_t *line)
{
    const xm_endpoint_t *endpoint = &meeting->params->endpoints->of[rank];
    struct sockaddr_storage address;

    xm_endpoint_gathering(endpoint, &address);
    *line = (line_t){.fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0),
                     .since = xm_clock_seconds()};
    if (line->fd < 0) {
        return xm_error_set(XM_ERR_IO, "no socket to call rank %d: %s", rank, strerror(errno));
    }
    if (connect(line->fd, (struct sockaddr *)&address, endpoint->length) != 0 &&
        errno != EINPROGRESS) {
        xm_status_t status = errno == ECONNREFUSED ? XM_ERR_UNREACHABLE : XM_IN_PROGRESS;

        hang_up(line);
        return status;
    }
    return XM_OK;
}

/* Tells how a call has ended: 0, an errno, or EINPROGRESS while it has not. */
static int call_result(const line_t *line)
{
    struct pollfd entry = {.fd = line->fd, .events = POLLOUT};
    int error = 0;
    socklen_t length = sizeof(error);

    if (poll(&entry, 1, 0) <= 0) {
        return EINPROGRESS;
    }
    return getsockopt(line->fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

static bool is_overdue(const meeting_t *meeting, const line_t *line)
{
    return xm_clock_seconds() - line->since >
           meeting->params->interval * XM_LIVENESS_SILENT_INTERVALS;
}

/* Judges a call that gets no answer: the host is gone, or its process has more callers than its
 * queue takes. A rank whose heartbeat is heard is not dead; when that ends, watch() will
 * notice. */
static bool is_unreachable(const meeting_t *meeting, int rank)
{
    return meeting->params->heartbeat == NULL ||
           !xm_heartbeat_is_heard(meeting->params->heartbeat, rank);
}

/* The centre tries whether ranks that have not come are still there. It only connects and hangs
 * up: that suffices to tell a process that has ended, whose port refuses, from one that is
 * busy. */
static void knock(meeting_t *meeting, int rank)
{
    line_t *line = &meeting->knocks[rank];
    int result;

    if (line->fd < 0) {
        if (xm_clock_seconds() - line->since >= KNOCK_S) {
            meeting->dead[rank] |= call(meeting, rank, line) == XM_ERR_UNREACHABLE;
            line->since = xm_clock_seconds();
        }
        return;
    }
    result = call_result(line);
    if (result == EINPROGRESS && !is_overdue(meeting, line)) {
        return;
    }
    meeting->dead[rank] |=
        result == ECONNREFUSED || (result == EINPROGRESS && is_unreachable(meeting, rank));
    hang_up(line);
    line->since = xm_clock_seconds();
}

/* A member connects to the centre and says hello with what it knows. It starts over when the
 * centre changes, and repeats a call that failed after a pause. Its hello may be repeated: the
 * centre takes the last one. */
static void reach_centre(meeting_t *meeting, int centre)
{
    xm_regroup_frame_t hello = {
        .type = XM_REGROUP_HELLO, .generation = meeting->generation, .set = meeting->dead};
    double now = xm_clock_seconds();
    int result;

    if (meeting->up_rank != centre) {
        hang_up(&meeting->up);
        meeting->up_rank = centre;
        meeting->up_again = 0.0;
    }
    if (meeting->up.fd < 0) {
        if (now < meeting->up_again) {
            return;
        }
        meeting->up_said = false;
        meeting->up_again = now + KNOCK_S;
        meeting->dead[centre] |= call(meeting, centre, &meeting->up) == XM_ERR_UNREACHABLE;
    }
    if (meeting->up.fd < 0 || meeting->up_said) {
        return;
    }
    result = call_result(&meeting->up);
    if (result == 0) {
        say(meeting, &meeting->up, &hello);
        meeting->up_said = true;
    } else if (result != EINPROGRESS || is_overdue(meeting, &meeting->up)) {
        meeting->dead[centre] |=
            result == ECONNREFUSED || (result == EINPROGRESS && is_unreachable(meeting, centre));
        hang_up(&meeting->up);
    }
}

/* A member hears the centre. A welcome counts only from the rank that it called, and only if
 * this rank is in it. Everything else ends the connection, and the next call shows whether the
 * centre is dead. */
static xm_status_t obey(meeting_t *meeting)
{
    xm_regroup_frame_t frame;
    xm_status_t status = hear(meeting, &meeting->up, &frame);

    if (status == XM_IN_PROGRESS) {
        return XM_OK;
    }
    if (status == XM_OK && frame.type == XM_REGROUP_REFUSAL) {
        return xm_error_set(frame.fault.status, "%s", frame.fault.sentence);
    }
    if (status == XM_OK && frame.type == XM_REGROUP_WELCOME && frame.set[meeting->rank] &&
        frame.sender == meeting->up_rank) {
        for (int rank = 0; rank < meeting->size; ++rank) {
            meeting->dead[rank] = !frame.set[rank];
        }
        meeting->generation = frame.generation;
        meeting->joined = true;
        return XM_OK;
    }
    hang_up(&meeting->up); /* it is called again, and if it is dead that shows */
    return XM_OK;
}

/* Sleeps until something may have happened, and reads what has come. */
static xm_status_t listen_around(meeting_t *meeting)
{
    struct pollfd *polls = meeting->polls;
    int count = 0;
    xm_status_t status = XM_OK;

    polls[count++] =
        (struct pollfd){.fd = meeting->params->endpoints->gathering_fd, .events = POLLIN};
    polls[count++] =
        (struct pollfd){.fd = meeting->up_said ? meeting->up.fd : -1, .events = POLLIN};
    for (int i = 0; i < STRANGERS; ++i) {
        polls[count++] = (struct pollfd){.fd = meeting->strangers[i].fd, .events = POLLIN};
    }
    for (int rank = 0; rank < meeting->size; ++rank) {
        polls[count++] = (struct pollfd){.fd = meeting->members[rank].fd, .events = POLLIN};
    }
    /* A connection that is being made has no place in the list, so the sleep is short as long
     * as there is one. */
    (void)poll(polls, (nfds_t)count, meeting->up.fd >= 0 && !meeting->up_said ? 2 : LOOK_MS);
    if (polls[1].revents != 0) {
        status = obey(meeting);
    }
    for (int i = 0; i < STRANGERS; ++i) {
        if (polls[2 + i].revents != 0) {
            serve_stranger(meeting, &meeting->strangers[i]);
        }
    }
    /* A member has nothing more to say, so what is readable is the end of its connection. */
    for (int rank = 0; rank < meeting->size; ++rank) {
        if (polls[2 + STRANGERS + rank].revents != 0 &&
            meeting->members[rank].fd == polls[2 + STRANGERS + rank].fd) {
            hang_up(&meeting->members[rank]);
        }
    }
    accept_all(meeting);
    return status;
}

/* Makes the heartbeat watch the ranks that this one needs, and counts those that it finds
 * silent as dead. A member needs the centre only; the centre needs all. */
static void watch(meeting_t *meeting, int centre)
{
    for (int rank = 0; rank < meeting->size && meeting->params->heartbeat != NULL; ++rank) {
        bool needed = rank != meeting->rank && !meeting->dead[rank] &&
                      (centre == meeting->rank || rank == centre);

        if (rank == meeting->rank) {
            continue;
        }
        xm_heartbeat_watch(meeting->params->heartbeat, rank, needed);
        if (needed && xm_heartbeat_is_silent(meeting->params->heartbeat, rank)) {
            meeting->dead[rank] = true;
            hang_up(&meeting->members[rank]);
        }
    }
}

/* The centre: true when every rank has come that is not dead. */
static bool is_complete(meeting_t *meeting)
{
    bool complete = true;

    for (int rank = 0; rank < meeting->size; ++rank) {
        if (rank == meeting->rank || meeting->dead[rank]) {
            continue;
        }
        if (meeting->members[rank].fd < 0) {
            complete = false;
            knock(meeting, rank);
        }
    }
    return complete;
}

/* Welcomes all. The welcome is not confirmed; what happens if this rank dies now is in
 * regroup.h. */
static void welcome_all(meeting_t *meeting)
{
    xm_regroup_frame_t frame = {
        .type = XM_REGROUP_WELCOME, .generation = ++meeting->generation, .set = meeting->set};

    for (int rank = 0; rank < meeting->size; ++rank) {
        meeting->set[rank] = !meeting->dead[rank];
    }
    for (int rank = 0; rank < meeting->size; ++rank) {
        if (meeting->members[rank].fd < 0) {
            continue;
        }
        if (meeting->set[rank]) {
            say(meeting, &meeting->members[rank], &frame);
        } else {
            refuse(meeting, &meeting->members[rank], XM_ERR_PEER_DIED, rank,
                   "the others take this rank for dead");
        }
    }
    meeting->joined = true;
}

/* Gives up at the deadline, naming the ranks that live but did not come. The centre tells those
 * that did come, so that all fail with one sentence. */
static xm_status_t give_up(meeting_t *meeting, int centre)
{
    char list[128] = "";
    size_t used = 0;
    int missing = 0;
    xm_status_t status;

    if (centre != meeting->rank) {
        return xm_error_set(XM_ERR_TIMEOUT,
                            "shrink timed out after %g s: rank %d of the job (host %s), where the "
                            "others meet, has not answered rank %d",
                            meeting->params->timeout, centre,
                            meeting->params->endpoints->of[centre].host, meeting->rank);
    }
    for (int rank = 0; rank < meeting->size; ++rank) {
        if (rank == meeting->rank || meeting->dead[rank] || meeting->members[rank].fd >= 0) {
            continue;
        }
        if (missing++ < LISTED_RANKS) {
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%d", used > 0 ? ", " : "",
                                     rank);
        }
    }
    status = xm_error_set(
        XM_ERR_TIMEOUT, "shrink timed out after %g s: %d ranks live but have not called it: %s%s",
        meeting->params->timeout, missing, list, missing > LISTED_RANKS ? " …" : "");
    for (int rank = 0; rank < meeting->size; ++rank) {
        if (meeting->members[rank].fd >= 0) {
            refuse(meeting, &meeting->members[rank], status, -1, xm_last_error());
        }
    }
    return status;
}

/* The loop. The dead are determined anew in each round, because watching may find more, and
 * with them the meeting place may change. */
static xm_status_t meet(meeting_t *meeting)
{
    xm_status_t status = XM_OK;

    while (status == XM_OK && !meeting->joined) {
        int centre = centre_of(meeting);
        double now = xm_clock_seconds();

        watch(meeting, centre);
        centre = centre_of(meeting);
        if (centre == meeting->rank) {
            hang_up(&meeting->up);
            meeting->up_rank = -1;
            if (is_complete(meeting)) {
                welcome_all(meeting);
                break;
            }
        } else {
            reach_centre(meeting, centre);
        }
        if (now > meeting->deadline + (centre == meeting->rank ? 0.0 : GRACE_S)) {
            return give_up(meeting, centre);
        }
        status = listen_around(meeting);
    }
    return status;
}

/* Hands the connections over to a bootstrap of the members, numbered in the order of their old
 * ranks. Descriptors are taken out of the lines, so that exactly one side closes them. */
static xm_status_t found(meeting_t *meeting, xm_bootstrap_t **bootstrap)
{
    xm_bootstrap_slot_t *slots = calloc((size_t)meeting->size, sizeof(*slots));
    int count = 0, own = -1;
    xm_status_t status;

    if (slots == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for a group of %d ranks", meeting->size);
    }
    for (int rank = 0; rank < meeting->size; ++rank) {
        const xm_endpoint_t *endpoint = &meeting->params->endpoints->of[rank];
        line_t *line = &meeting->members[rank];

        if (meeting->dead[rank]) {
            continue;
        }
        if (rank == meeting->rank) {
            own = count;
        }
        line = meeting->up_rank == rank ? &meeting->up : line;
        slots[count++] =
            (xm_bootstrap_slot_t){.fd = line->fd, .pid = endpoint->pid, .host = endpoint->host};
        line->fd = -1; /* the bootstrap's from now on */
    }
    status = xm_bootstrap_adopt(own, count, slots, bootstrap);
    free(slots);
    return status;
}

static xm_status_t prepare(meeting_t *meeting)
{
    size_t size = (size_t)meeting->size;

    meeting->set = calloc(size, sizeof(*meeting->set));
    meeting->members = calloc(size, sizeof(*meeting->members));
    meeting->knocks = calloc(size, sizeof(*meeting->knocks));
    meeting->polls = calloc(2 + STRANGERS + size, sizeof(*meeting->polls));
    if (meeting->set == NULL || meeting->members == NULL || meeting->knocks == NULL ||
        meeting->polls == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory to regroup %d ranks", meeting->size);
    }
    for (int rank = 0; rank < meeting->size; ++rank) {
        meeting->members[rank].fd = meeting->knocks[rank].fd = -1;
    }
    return XM_OK;
}

/* Works on whatever prepare() has made. */
static void disperse(meeting_t *meeting)
{
    for (int rank = 0; rank < meeting->size && meeting->knocks != NULL; ++rank) {
        hang_up(&meeting->knocks[rank]);
    }
    for (int rank = 0; rank < meeting->size && meeting->members != NULL; ++rank) {
        hang_up(&meeting->members[rank]);
    }
    for (int i = 0; i < STRANGERS; ++i) {
        hang_up(&meeting->strangers[i]);
    }
    hang_up(&meeting->up);
    free(meeting->polls);
    free(meeting->knocks);
    free(meeting->members);
    free(meeting->set);
}

/* Regroups. All state is local to the call, so a failed attempt leaves nothing behind but what
 * `dead` has learnt. */
xm_status_t xm_regroup(const xm_regroup_params_t *params, bool *dead, xm_bootstrap_t **bootstrap,
                       uint32_t *generation)
{
    meeting_t meeting = {.params = params,
                         .size = params->endpoints->size,
                         .rank = params->endpoints->rank,
                         .dead = dead,
                         .generation = params->generation,
                         .frame_size = xm_regroup_max_size(params->endpoints->size),
                         .up = {.fd = -1},
                         .up_rank = -1,
                         .deadline = xm_clock_seconds() + params->timeout};
    xm_status_t status;

    for (int i = 0; i < STRANGERS; ++i) {
        meeting.strangers[i].fd = -1;
    }
    status = prepare(&meeting);
    if (status == XM_OK) {
        status = meet(&meeting);
    }
    if (status == XM_OK) {
        status = found(&meeting, bootstrap);
    }
    if (status == XM_OK) {
        *generation = meeting.generation;
    }
    disperse(&meeting);
    return status;
}
