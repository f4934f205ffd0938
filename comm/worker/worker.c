/* SPDX-License-Identifier: Apache-2.0 */
/* The worker at work: bootstrap, transport, detector and path probe of one rank (create.c makes
 * them), and the one place where it blocks. xm_worker_wait() watches all of them together, because
 * a wait that listened to the transport alone would never end after a death elsewhere. The first
 * fault stays: it ends the operations with the rank that is gone (all of them after an abort), goes
 * out by every channel, and is what each later wait returns. Except for xm_worker_wake(), one
 * thread at a time may use a worker. */
#include "comm/worker/worker.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#include "comm/job.h"
#include "comm/base.h"
#include "comm/worker/worker_private.h"

/* FAULT_POLL_EVERY: busy progress calls between two looks at the fault channel. DRAIN_CALLS:
 * progress calls that end the operations with a failed peer. SPIN_ROUNDS: idle progress calls
 * of a spinning rank between two looks at the clock, which takes longer than one of them. */
enum { FAULT_POLL_EVERY = 256, DRAIN_CALLS = 1000, SPIN_ROUNDS = 32 };

/* How long the fault channel gets to name the culprit after a connection broke. */
static const int64_t fault_status_grace_ns = 250000000;
/* Intervals of the heartbeat after which the detector has a finding on a rank that it does not
 * hear. */
static const double FINDING = 4.5;

int xm_worker_rank(const xm_worker_t *worker)
{
    if (XM_IS_NULL(worker)) {
        return -1;
    }
    return xm_bootstrap_rank(worker->bootstrap);
}

int xm_worker_size(const xm_worker_t *worker)
{
    if (XM_IS_NULL(worker)) {
        return 0;
    }
    return xm_bootstrap_size(worker->bootstrap);
}

int xm_worker_host_count(const xm_worker_t *worker)
{
    return worker->slots.host_count;
}

int xm_worker_host_of(const xm_worker_t *worker, int rank)
{
    if (XM_IS_NULL(worker) || rank < 0 || rank >= xm_bootstrap_size(worker->bootstrap)) {
        return -1;
    }
    return worker->slots.host_of[rank];
}

const char *xm_worker_host_name(const xm_worker_t *worker, int host)
{
    if (XM_IS_NULL(worker) || host < 0 || host >= worker->slots.host_count) {
        return NULL;
    }
    return worker->slots.host_name[host];
}

xm_transport_t *xm_worker_transport(xm_worker_t *worker)
{
    return worker->transport;
}

xm_bootstrap_t *xm_worker_bootstrap(xm_worker_t *worker)
{
    return worker->bootstrap;
}

double xm_worker_timeout(const xm_worker_t *worker)
{
    if (XM_IS_NULL(worker)) {
        return 0.0;
    }
    return worker->timeout;
}

int64_t xm_worker_now(const xm_worker_t *worker)
{
    if (XM_IS_NULL(worker)) {
        return 0;
    }
    return xm_transport_now(worker->transport);
}

int64_t xm_worker_deadline(const xm_worker_t *worker)
{
    if (XM_IS_NULL(worker)) {
        return 0;
    }
    return xm_worker_now(worker) + (int64_t)(worker->timeout * 1e9);
}

xm_status_t xm_worker_fault_status(const xm_worker_t *worker)
{
    return worker->fault_status == XM_OK
               ? XM_OK
               : xm_error_set(worker->fault_status, "%s", worker->sentence);
}

/* Makes a failure the fault status and acts on it. The sentence is saved first, for everything
 * that follows may set others. The bootstrap tells the others, itself and by its guard, since
 * either may be cut. After an abort, or when no single rank is to blame, the transport is fenced;
 * after a death only that peer's operations end, and progress is made until their callbacks have
 * run, but not endlessly: other peers may send all the time. */
xm_status_t xm_worker_mark_failed(xm_worker_t *worker, xm_status_t status, int failed_rank)
{
    xm_bootstrap_fault_t fault = {.rank = failed_rank, .status = status};

    worker->fault_status = status;
    worker->failed_rank = failed_rank;
    (void)snprintf(worker->sentence, sizeof(worker->sentence), "%s", xm_last_error());
    (void)snprintf(fault.sentence, sizeof(fault.sentence), "%s", worker->sentence);
    xm_bootstrap_mark_failed(worker->bootstrap, &fault);
    if (status == XM_ERR_CANCELED || failed_rank == xm_worker_rank(worker) ||
        (status == XM_ERR_PEER_DIED && failed_rank < 0)) {
        xm_transport_fence(worker->transport);
    } else if (failed_rank >= 0) {
        xm_transport_peer_failed(worker->transport, failed_rank);
        for (int i = 0; i < DRAIN_CALLS && xm_transport_progress(worker->transport) > 0; ++i) {
            continue;
        }
    }
    return xm_worker_fault_status(worker);
}

/* Reads the one fault channel there is: what the detector finds comes by way of the bootstrap. */
xm_status_t xm_worker_poll_faults(xm_worker_t *worker)
{
    int failed_rank = -1;
    xm_status_t status = xm_bootstrap_poll(worker->bootstrap, &failed_rank);

    return status < 0 ? xm_worker_mark_failed(worker, status, failed_rank) : XM_OK;
}

/* Takes up what the detector has for this thread, if there is anything. With it the bootstrap is
 * read, maybe the end of an allgather: *moved tells the caller to look before it sleeps. */
static xm_status_t hear(xm_worker_t *worker, bool *moved)
{
    if (worker->detector == NULL || !xm_detector_take_news(worker->detector)) {
        return XM_OK;
    }
    *moved = true;
    if (worker->path_probe != NULL) {
        xm_path_probe_on_news(worker->path_probe);
    }
    return xm_worker_poll_faults(worker);
}

/* Looks after peers that are waited for; *next tells when to do so again. */
static xm_status_t look_around(xm_worker_t *worker, int64_t *next)
{
    xm_bootstrap_fault_t fault;

    *next = INT64_MAX;
    if (worker->path_probe == NULL) {
        return XM_OK;
    }
    *next = xm_path_probe_look(worker->path_probe, xm_worker_now(worker), &fault);
    if (fault.status == XM_OK) {
        return XM_OK;
    }
    /* Nobody but this rank knows it, so it is not for this rank to say which of the two is gone. */
    worker->cut[worker->job_rank[fault.rank]] = true;
    return xm_worker_mark_failed(worker, xm_error_set(fault.status, "%s", fault.sentence), -1);
}

/* The transport lost a peer. The fault channel knows better who is gone, and whether anybody is:
 * when one rank dies, others leave because of it, and their connections break as well. So it gets a
 * quarter of a second, and as long as the detector does not hear the peer, until it has a
 * finding. A peer that is heard lives, and only the connection is lost. */
xm_status_t xm_worker_check_lost_peer(xm_worker_t *worker)
{
    struct pollfd entry = {.fd = xm_bootstrap_fd(worker->bootstrap), .events = POLLIN};
    int64_t began = xm_worker_now(worker), limit = (int64_t)(worker->interval * FINDING * 1e9);
    int lost = worker->transport->failed_peer, rank = xm_worker_rank(worker);
    bool lives = false;

    if (worker->detector != NULL) {
        xm_detector_suspect(worker->detector, worker->job_rank[lost]);
    }
    while (entry.fd >= 0 && xm_worker_now(worker) - began < fault_status_grace_ns + limit) {
        xm_status_t status = xm_worker_poll_faults(worker);

        if (status < 0) {
            return status;
        }
        lives = worker->detector != NULL &&
                xm_detector_hears(worker->detector, worker->job_rank[lost], fault_status_grace_ns);
        if ((lives || worker->detector == NULL) &&
            xm_worker_now(worker) - began >= fault_status_grace_ns) {
            break;
        }
        (void)poll(&entry, 1, 10);
    }
    return xm_worker_mark_failed(
        worker,
        xm_error_set(
            XM_ERR_PEER_DIED, "rank %d (host %s) has lost the connection to rank %d (host %s)%s",
            rank, worker->slots.host_name[worker->slots.host_of[rank]], lost,
            worker->slots.host_name[worker->slots.host_of[lost]], lives ? ", which lives" : ""),
        -1);
}

static void write_metrics(xm_worker_t *worker, int64_t now)
{
    if (worker->metrics != NULL) {
        xm_metrics_tick(worker->metrics, now);
    }
}

/* Makes progress and the checks that go with it; *moved tells whether anything happened. The
 * fault channel costs a system call, so a busy rank asks it only now and then, while the
 * detector's news is a flag. */
static xm_status_t advance(xm_worker_t *worker, bool *moved)
{
    *moved = xm_transport_progress(worker->transport) > 0;
    *moved = xm_worker_advance_guests(worker) || *moved;
    if (worker->transport->failed_peer >= 0) {
        return xm_worker_check_lost_peer(worker);
    }
    if (++worker->calls % FAULT_POLL_EVERY == 0) {
        int64_t next;
        xm_status_t status = xm_worker_poll_faults(worker);

        *moved = true; /* what was read may be the end of an allgather: the caller must look */
        if (status == XM_OK) {
            write_metrics(worker, xm_worker_now(worker));
            status = look_around(worker, &next);
        }
        return status;
    }
    return hear(worker, moved);
}

/* The only function that another thread may call: it writes to a descriptor and touches nothing
 * else. */
void xm_worker_wake(xm_worker_t *worker)
{
    if (XM_IS_NULL(worker)) {
        return;
    }
    /* A full counter means that it is to be woken already. */
    (void)eventfd_write(worker->wake_fd, 1);
}

/* Sleeps on transport, fault channel, detector and wake-ups for at most `duration` nanoseconds. */
static xm_status_t sleep_until_event(xm_worker_t *worker, int64_t duration)
{
    struct pollfd entries[] = {
        {.fd = xm_bootstrap_fd(worker->bootstrap), .events = POLLIN},
        {.fd = xm_transport_event_fd(worker->transport), .events = POLLIN},
        {.fd = worker->detector != NULL ? xm_detector_fd(worker->detector) : -1, .events = POLLIN},
        {.fd = worker->wake_fd, .events = POLLIN},
    };
    struct timespec limit = {.tv_sec = duration / 1000000000, .tv_nsec = duration % 1000000000};
    int ready = ppoll(entries, 4, &limit, NULL);
    bool moved = false; /* whoever has slept returns in any case */
    eventfd_t wakes;

    if (ready < 0 && errno != EINTR) {
        return xm_error_set(XM_ERR_IO, "ppoll: %s", strerror(errno));
    }
    if (ready > 0 && entries[3].revents != 0) {
        (void)eventfd_read(worker->wake_fd, &wakes);
    }
    /* The fault channel comes first: a dead peer shows up on both, and only this one names it. */
    if (ready > 0 && entries[0].revents != 0) {
        xm_status_t status = xm_worker_poll_faults(worker);

        if (status < 0) {
            return status;
        }
    }
    return ready > 0 && entries[2].revents != 0 ? hear(worker, &moved) : XM_OK;
}

/* The deadline has passed: names a rank with which operations are in flight. That is no fault
 * of the group; the caller may wait again. */
static xm_status_t too_late(const xm_worker_t *worker)
{
    for (int rank = 0; rank < xm_worker_size(worker); ++rank) {
        uint64_t moved;

        if (rank != xm_worker_rank(worker) && xm_transport_waits(worker->transport, rank, &moved)) {
            return xm_error_set(XM_ERR_TIMEOUT,
                                "rank %d: the deadline passed (XM_TIMEOUT is %g s) with operations "
                                "in flight with rank %d (host %s)",
                                xm_worker_rank(worker), worker->timeout, rank,
                                worker->slots.host_name[worker->slots.host_of[rank]]);
        }
    }
    return xm_error_set(XM_ERR_TIMEOUT, "rank %d: the deadline passed (XM_TIMEOUT is %g s)",
                        xm_worker_rank(worker), worker->timeout);
}

/* The wait. It returns when anything has moved, since the caller alone knows what it waits for;
 * so no event is lost if the caller tests first and waits then. Before it sleeps the transport
 * has to be armed, which fails if something has come meanwhile; the sleep ends at the earliest
 * of deadline, probe and metrics. */
xm_status_t xm_worker_wait_at_most(xm_worker_t *worker, int64_t deadline, int64_t longest_sleep)
{
    bool moved = false;
    xm_status_t status = xm_worker_fault_status(worker);

    /* A fault that an allgather has read already makes no descriptor readable any more. */
    if (status == XM_OK && xm_bootstrap_fault_status(worker->bootstrap) < 0) {
        status = xm_worker_poll_faults(worker);
    }
    while (status == XM_OK) {
        int64_t now, woke, next = INT64_MAX, sleep = longest_sleep;

        for (int round = worker->spin ? SPIN_ROUNDS : 1; round > 0 && status == XM_OK; --round) {
            status = advance(worker, &moved);
            if (status < 0 || moved) {
                return status;
            }
        }
        status = look_around(worker, &next);
        now = xm_worker_now(worker);
        if (status < 0) {
            return status;
        }
        if (now >= deadline) {
            /* The last word belongs to the fault channel: a death is a better reason than a
             * deadline. */
            status = xm_worker_poll_faults(worker);
            return status < 0 ? status : too_late(worker);
        }
        write_metrics(worker, now);
        if (worker->spin) {
            continue;
        }
        status = xm_transport_arm(worker->transport);
        if (status == XM_OK) {
            sleep = deadline - now < sleep ? deadline - now : sleep;
            sleep = next - now < sleep ? next - now : sleep;
            sleep = worker->metrics != NULL && xm_metrics_due(worker->metrics) - now < sleep
                        ? xm_metrics_due(worker->metrics) - now
                        : sleep;
            status = sleep_until_event(worker, sleep > 0 ? sleep : 0);
            woke = xm_worker_now(worker);
            xm_count_sleep(worker->counters, woke - now);
            if (status < 0 || woke < deadline) {
                return status;
            }
            continue;
        }
        status = status == XM_IN_PROGRESS ? XM_OK : status;
    }
    return status;
}

/* Blocks until something has moved, a fault is known or the deadline has passed. */
xm_status_t xm_worker_wait(xm_worker_t *worker, int64_t deadline)
{
    XM_NEED_ARGUMENTS(worker);
    return xm_worker_wait_at_most(worker, deadline, INT64_MAX);
}

/* One step without blocking, for callers with a loop of their own. */
xm_status_t xm_worker_progress(xm_worker_t *worker)
{
    XM_NEED_ARGUMENTS(worker);
    bool moved;
    int64_t next;
    xm_status_t status = xm_worker_fault_status(worker);

    XM_THEN(status, advance(worker, &moved));
    /* Callers come here rarely, and rank 0 passes on what it reads, so the fault channel is
     * read every time. */
    XM_THEN(status, xm_worker_poll_faults(worker));
    return status < 0 ? status : look_around(worker, &next);
}
