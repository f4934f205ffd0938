/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping, asynchronous events of the devices, and heartbeats. Sleepers wait on one epoll
 * descriptor that holds the completion channels, the event descriptors and a timer. The timer
 * exists because RDMA is silent about a dead peer as long as this rank sends nothing to it:
 * after a second of silence an empty write is sent, which either completes or fails within the
 * retry time. It runs only while operations are in flight. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "comm/base.h"
#include "comm/transport/verbs/transport_verbs_private.h"

/* The numbers of the epoll instance's entries; each kind's ports are numbered from there on. */
enum { ENTRY_TIMER, ENTRY_COMPLETIONS, ENTRY_EVENTS = ENTRY_COMPLETIONS + XM_NICS_MAX };
enum { ENTRIES = ENTRY_EVENTS + XM_NICS_MAX };

/* A tick, and how many of them without a sign of life make this rank ask. */
enum { TICK_NS = 500000000, SILENT_TICKS = 2 };

static xm_status_t add(const xm_verbs_transport_t *self, int fd, uint32_t entry)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = entry};

    return epoll_ctl(self->epoll, EPOLL_CTL_ADD, fd, &event) == 0
               ? XM_OK
               : xm_error_set(XM_ERR_IO, "rank %d: epoll_ctl: %s", self->base.rank,
                              strerror(errno));
}

/* Makes the descriptors. A spinning transport has them as well, because events of devices come
 * by them only. */
xm_status_t xm_verbs_events_open(xm_verbs_transport_t *self)
{
    xm_status_t status;

    self->epoll = epoll_create1(EPOLL_CLOEXEC);
    self->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (self->epoll < 0 || self->timer < 0) {
        return xm_error_set(XM_ERR_IO, "rank %d: no descriptor to wait on: %s", self->base.rank,
                            strerror(errno));
    }
    status = add(self, self->timer, ENTRY_TIMER);
    for (int i = 0; i < self->port_count && status == XM_OK; ++i) {
        status = add(self, self->ports[i].channel->fd, ENTRY_COMPLETIONS + (uint32_t)i);
        if (status == XM_OK) {
            status = add(self, self->ports[i].context->async_fd, ENTRY_EVENTS + (uint32_t)i);
        }
    }
    return status;
}

void xm_verbs_events_close(xm_verbs_transport_t *self)
{
    if (self->timer >= 0) {
        (void)close(self->timer);
    }
    if (self->epoll >= 0) {
        (void)close(self->epoll);
    }
}

static void set_timer(xm_verbs_transport_t *self, bool run)
{
    struct timespec tick = {.tv_nsec = run ? TICK_NS : 0};
    struct itimerspec times = {.it_interval = tick, .it_value = tick};

    /* Setting it again would restart a tick that is running. */
    if (run != self->ticking && timerfd_settime(self->timer, 0, &times, NULL) == 0) {
        self->ticking = run;
    }
}

/* Asks the peers from which nothing came although something is waited for, on all their rails.
 * The answer is not a message but the completion of the write, so the peer's process need not
 * run: this finds dead devices and hosts, and leaves busy processes alone. */
static void tick(xm_verbs_transport_t *self)
{
    uint64_t expirations;

    (void)!read(self->timer, &expirations, sizeof(expirations));
    for (int rank = 0; rank < self->base.size; ++rank) {
        xm_verbs_peer_t *peer = &self->peers[rank];
        /* Operations of the transport's own count here as well: a probe must not wait for ever. */
        bool waited = !xm_list_is_empty(&peer->receives) || !xm_list_is_empty(&peer->busy);

        peer->silent = waited && !peer->heard ? peer->silent + 1 : 0;
        peer->heard = false;
        /* Every rail is asked, since the dead one is not known. */
        for (int rail = 0; rail < peer->stripe.rails && peer->silent >= SILENT_TICKS; ++rail) {
            xm_verbs_lane_beat(&peer->lanes[rail]);
        }
        for (int rail = 0; rail < peer->stripe.rails && !peer->failed; ++rail) {
            xm_verbs_comeback_tick(&peer->lanes[rail]);
        }
    }
    /* The timer goes on only while somebody waits. */
    set_timer(self, self->in_flight > 0);
}

/* A completion queue or device that failed takes all connections over that port with it. */
static void fail_port(xm_verbs_transport_t *self, int port, const char *what)
{
    for (int rank = 0; rank < self->base.size; ++rank) {
        if (self->peers[rank].lanes[port].qp != NULL) {
            xm_verbs_lose(&self->peers[rank].lanes[port], "%s reports: %s",
                          self->ports[port].offer.name, what);
        }
    }
}

/* Acts on an event. A port that is down may come back before the connections have given up, and
 * only they decide: their retries cover a short loss. Errors of queue pairs and devices are
 * final. */
static void act(xm_verbs_transport_t *self, int index, const struct ibv_async_event *event)
{
    xm_verbs_port_t *port = &self->ports[index];
    const char *what = ibv_event_type_str(event->event_type);
    xm_verbs_lane_t *lane;

    switch (event->event_type) {
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
        if (event->element.port_num == port->number) {
            /* The state goes into the sentence of a connection that fails while the port is
             * down. */
            port->down = event->event_type == IBV_EVENT_PORT_ERR;
            xm_log_info("rank %d: %s: %s", self->base.rank, port->offer.name, what);
        }
        break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
        lane = event->element.qp->qp_context;
        xm_verbs_lose(lane, "its connection over %s failed: %s", port->offer.name, what);
        break;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_DEVICE_FATAL:
        fail_port(self, index, what);
        break;
    default:
        break;
    }
}

/* Reads all events of a port. An event is acknowledged only after it was handled: destroying
 * its queue pair blocks until then, and the handler must still find the lane. */
static void read_events(xm_verbs_transport_t *self, int index)
{
    struct ibv_async_event event;

    while (ibv_get_async_event(self->ports[index].context, &event) == 0) {
        act(self, index, &event);
        ibv_ack_async_event(&event);
    }
}

/* Takes the notifications of a completion channel. They say nothing but that the queue has to
 * be armed again; the completions themselves are polled. */
static void read_completions(xm_verbs_port_t *port)
{
    struct ibv_cq *cq;
    void *context;

    while (ibv_get_cq_event(port->channel, &cq, &context) == 0) {
        ibv_ack_cq_events(cq, 1);
        port->armed = false;
    }
}

/* Reads what woke the caller, or, from busy progress, what has come meanwhile. One call of
 * epoll without waiting covers all descriptors. */
void xm_verbs_events_read(xm_verbs_transport_t *self)
{
    struct epoll_event events[ENTRIES];
    int count = epoll_wait(self->epoll, events, ENTRIES, 0);

    self->slept = false;
    for (int i = 0; i < count; ++i) {
        uint32_t entry = events[i].data.u32;

        if (entry == ENTRY_TIMER) {
            tick(self);
        } else if (entry < ENTRY_EVENTS) {
            /* Ports are numbered within their kind of entry. */
            read_completions(&self->ports[entry - ENTRY_COMPLETIONS]);
        } else {
            read_events(self, (int)entry - ENTRY_EVENTS);
        }
    }
    /* The timer is started here and not with each post, which would cost a system call for each. */
    if (self->in_flight > 0) {
        set_timer(self, true);
    }
}

/* Prepares for sleeping. Everything that can be sent is sent first, because nothing would wake
 * this rank to send it later. The queues are armed, and polled once more afterwards. */
xm_status_t xm_verbs_arm(xm_transport_t *transport)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;

    xm_verbs_flush_lanes(self);
    if (self->spin || self->failures > 0 || !xm_list_is_empty(&self->ended)) {
        return XM_IN_PROGRESS;
    }
    for (int i = 0; i < self->port_count; ++i) {
        xm_verbs_port_t *port = &self->ports[i];
        int error = port->armed ? 0 : ibv_req_notify_cq(port->cq, 0);

        if (error != 0) {
            return xm_error_set(XM_ERR_INTERNAL, "rank %d: %s: ibv_req_notify_cq: %s",
                                self->base.rank, port->offer.name, strerror(error));
        }
        /* An armed queue stays armed until its event has been read. */
        port->armed = true;
    }
    set_timer(self, self->in_flight > 0);
    self->slept = true;
    /* Completions that came before the queues were armed make no event, so they must be looked for
     * now. */
    return xm_verbs_poll(self) > 0 || self->failures > 0 ? XM_IN_PROGRESS : XM_OK;
}
