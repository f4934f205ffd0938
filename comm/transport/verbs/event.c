/* The verbs transport: sleeping, asynchronous events of the devices, and heartbeats. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "comm/base.h"
#include "comm/transport/verbs/transport_verbs_private.h"

/* What an entry of the epoll instance is; ports are numbered from there on. */
enum { ENTRY_TIMER, ENTRY_COMPLETIONS, ENTRY_EVENTS = ENTRY_COMPLETIONS + XM_NICS_MAX };
enum { ENTRIES = ENTRY_EVENTS + XM_NICS_MAX };

/* A tick, and how many of them without a sign of a peer make this rank ask. */
enum { TICK_NS = 500000000, SILENT_TICKS = 2 };

static xm_status_t add(const xm_verbs_transport_t *self, int fd, uint32_t entry)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = entry};

    return epoll_ctl(self->epoll, EPOLL_CTL_ADD, fd, &event) == 0
               ? XM_OK
               : xm_error_set(XM_ERR_IO, "rank %d: epoll_ctl: %s", self->base.rank,
                              strerror(errno));
}

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

    if (run != self->ticking && timerfd_settime(self->timer, 0, &times, NULL) == 0) {
        self->ticking = run;
    }
}

/* Peers from which nothing came although something is waited for are asked whether they live. */
static void tick(xm_verbs_transport_t *self)
{
    uint64_t expirations;

    (void)!read(self->timer, &expirations, sizeof(expirations));
    for (int rank = 0; rank < self->base.size; ++rank) {
        xm_verbs_peer_t *peer = &self->peers[rank];
        bool waited = !xm_list_is_empty(&peer->receives) || !xm_list_is_empty(&peer->busy);

        peer->silent = waited && !peer->heard ? peer->silent + 1 : 0;
        peer->heard = false;
        for (int rail = 0; rail < peer->stripe.rails && peer->silent >= SILENT_TICKS; ++rail) {
            xm_verbs_lane_beat(&peer->lanes[rail]);
        }
    }
    set_timer(self, self->in_flight > 0);
}

static void fail_port(xm_verbs_transport_t *self, int port, const char *what)
{
    for (int rank = 0; rank < self->base.size; ++rank) {
        if (self->peers[rank].lanes[port].qp != NULL) {
            xm_verbs_fail(&self->peers[rank], "%s reports: %s", self->ports[port].offer.name, what);
        }
    }
}

/* A port that is down may come back before the connections have given up; only they decide. */
static void act(xm_verbs_transport_t *self, int index, const struct ibv_async_event *event)
{
    xm_verbs_port_t *port = &self->ports[index];
    const char *what = ibv_event_type_str(event->event_type);
    xm_verbs_lane_t *lane;

    switch (event->event_type) {
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
        if (event->element.port_num == port->number) {
            port->down = event->event_type == IBV_EVENT_PORT_ERR;
            xm_log_info("rank %d: %s: %s", self->base.rank, port->offer.name, what);
        }
        break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
        lane = event->element.qp->qp_context;
        xm_verbs_fail(lane->peer, "its connection over %s failed: %s", port->offer.name, what);
        break;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_DEVICE_FATAL:
        fail_port(self, index, what);
        break;
    default:
        break;
    }
}

static void read_events(xm_verbs_transport_t *self, int index)
{
    struct ibv_async_event event;

    while (ibv_get_async_event(self->ports[index].context, &event) == 0) {
        act(self, index, &event);
        ibv_ack_async_event(&event);
    }
}

static void read_completions(xm_verbs_port_t *port)
{
    struct ibv_cq *cq;
    void *context;

    while (ibv_get_cq_event(port->channel, &cq, &context) == 0) {
        ibv_ack_cq_events(cq, 1);
        port->armed = false;
    }
}

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
            read_completions(&self->ports[entry - ENTRY_COMPLETIONS]);
        } else {
            read_events(self, (int)entry - ENTRY_EVENTS);
        }
    }
    if (self->in_flight > 0) {
        set_timer(self, true);
    }
}

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
        port->armed = true;
    }
    set_timer(self, self->in_flight > 0);
    self->slept = true;
    /* What came before the queues were armed makes no event. */
    return xm_verbs_poll(self) > 0 || self->failures > 0 ? XM_IN_PROGRESS : XM_OK;
}
