/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping, and asynchronous events of the devices. Sleepers wait on one epoll descriptor that
 * holds the completion channels, the event descriptors and the timer of rails. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "comm/base.h"
#include "comm/transport/verbs/transport_verbs_private.h"

/* The numbers of the epoll instance's entries; each kind's ports are numbered from there on. */
enum { ENTRY_TIMER, ENTRY_COMPLETIONS, ENTRY_EVENTS = ENTRY_COMPLETIONS + XM_NICS_MAX };
enum { ENTRIES = ENTRY_EVENTS + XM_NICS_MAX };

static xm_status_t add(const xm_verbs_transport_t *self, int fd, uint32_t entry)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = entry};

    return epoll_ctl(self->epoll, EPOLL_CTL_ADD, fd, &event) == 0
               ? XM_OK
               : xm_error_set(XM_ERR_IO, "rank %d: epoll_ctl: %s", self->base.base.rank,
                              strerror(errno));
}

/* Makes the descriptors. A spinning transport has them as well, because events of devices come
 * by them only. */
xm_status_t xm_verbs_events_open(xm_verbs_transport_t *self)
{
    xm_status_t status;

    self->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (self->epoll < 0) {
        return xm_error_set(XM_ERR_IO, "rank %d: no descriptor to wait on: %s",
                            self->base.base.rank, strerror(errno));
    }
    status = xm_rails_timer_open(&self->base);
    XM_THEN(status, add(self, self->base.timer_fd, ENTRY_TIMER));
    for (int i = 0; i < self->port_count && status == XM_OK; ++i) {
        status = add(self, self->ports[i].channel->fd, ENTRY_COMPLETIONS + (uint32_t)i);
        XM_THEN(status, add(self, self->ports[i].context->async_fd, ENTRY_EVENTS + (uint32_t)i));
    }
    return status;
}

void xm_verbs_events_close(xm_verbs_transport_t *self)
{
    if (self->base.timer_fd >= 0) {
        (void)close(self->base.timer_fd);
    }
    if (self->epoll >= 0) {
        (void)close(self->epoll);
    }
}

/* A completion queue or device that failed takes all connections over that port with it. */
static void fail_port(xm_verbs_transport_t *self, int port, const char *what)
{
    for (int rank = 0; rank < self->base.base.size; ++rank) {
        if (self->peers[rank].lanes[port].qp != NULL) {
            xm_rails_broken(&self->peers[rank].base, port, "%s reports: %s",
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
            xm_log_info("rank %d: %s: %s", self->base.base.rank, port->offer.name, what);
        }
        break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
        lane = event->element.qp->qp_context;
        xm_rails_broken(&lane->peer->base, lane->rail, "over %s: %s", port->offer.name, what);
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

        /* Ports are numbered within their kind of entry. The timer is read before sleeping. */
        if (entry >= ENTRY_EVENTS) {
            read_events(self, (int)entry - ENTRY_EVENTS);
        } else if (entry >= ENTRY_COMPLETIONS) {
            read_completions(&self->ports[entry - ENTRY_COMPLETIONS]);
        }
    }
}

/* Prepares for sleeping. Everything that can be sent is sent first, because nothing would wake
 * this rank to send it later. The queues are armed, and polled once more afterwards. */
xm_status_t xm_verbs_arm(xm_transport_t *transport)
{
    xm_verbs_transport_t *self = (xm_verbs_transport_t *)transport;

    xm_verbs_flush_lanes(self);
    if (self->spin || self->base.reports > 0 || !xm_list_is_empty(&self->base.ended) ||
        xm_rails_rings(&self->base)) {
        return XM_IN_PROGRESS;
    }
    for (int i = 0; i < self->port_count; ++i) {
        xm_verbs_port_t *port = &self->ports[i];
        int error = port->armed ? 0 : ibv_req_notify_cq(port->cq, 0);

        if (error != 0) {
            return xm_error_set(XM_ERR_INTERNAL, "rank %d: %s: ibv_req_notify_cq: %s",
                                self->base.base.rank, port->offer.name, strerror(error));
        }
        /* An armed queue stays armed until its event has been read. */
        port->armed = true;
    }
    self->slept = true;
    /* Completions that came before the queues were armed make no event, so they must be looked for
     * now. */
    return xm_verbs_poll(self) > 0 ? XM_IN_PROGRESS : XM_OK;
}
