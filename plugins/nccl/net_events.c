/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events for NCCL's profiler, one for each NIC that carries a part of a message. They
 * have the form of NCCL's own InfiniBand transport, which profilers know. Events cost
 * nothing where no profiler listens.
 */
#include "plugins/nccl/net_events.h"

#include <stdlib.h>

enum { OPCODE_SEND = 2, OPCODE_RECEIVE = 128 };

/* What one NIC carries of one message. */
typedef struct net_event {
    void *handle;
    void *parent;
    int slot, rail;
    nccl_profiler_ib_v1_t data;
} net_event_t;

struct net_events {
    net_events_t *next, **link;
    xm_pipe_t *pipe;
    uint64_t number;
    bool send;
    int count;
    net_event_t list[XM_PIPE_GROUP_MAX * NCCL_MEMBERS_MAX_V12];
};

/* Shares a length out over the NICs, as far as that is known beforehand; returns how many
 * there are. */
static int share(const xm_pipe_t *pipe, size_t length, size_t shares[NCCL_MEMBERS_MAX_V12])
{
    int rails = xm_pipe_shares(pipe, length, shares);

    if (rails == 0) {
        shares[0] = length;
    }
    return rails;
}

/* A message without length still has one event, and NICs without a share have none. */
static void start(net_events_t *events, int slot, const net_device_t *device, size_t length,
                  void *parent)
{
    size_t shares[NCCL_MEMBERS_MAX_V12];
    int rails = share(events->pipe, length, shares);
    bool whole = rails == 0 || length == 0;

    for (int rail = 0; rail < (whole ? 1 : rails); ++rail) {
        net_event_t *event = &events->list[events->count];

        if (!whole && shares[rail] == 0) {
            continue;
        }
        *event = (net_event_t){.parent = parent, .slot = slot, .rail = rail};
        event->data.type = NCCL_PROFILER_QUEUE_PAIR;
        event->data.of.queue_pair.device =
            rails == 0 ? -1 : device->members[rail < device->count ? rail : device->count - 1];
        event->data.of.queue_pair.work_request = events->number;
        event->data.of.queue_pair.opcode = events->send ? OPCODE_SEND : OPCODE_RECEIVE;
        event->data.of.queue_pair.queue_pair = rail;
        event->data.of.queue_pair.length = length == 0 ? 0 : shares[rail];
        if (net_profiler()(&event->handle, NCCL_EVENT_START, parent, NCCL_PROFILER_IB_V1,
                           &event->data) == NCCL_OK) {
            ++events->count;
        }
    }
}

/* Without memory there are no events; a profile with gaps is better than a failed
 * message. */
void net_events_start(net_events_list_t *list, xm_pipe_request_t *request,
                      const net_device_t *device, bool send, const size_t *lengths,
                      void *const *phandles)
{
    int count = xm_pipe_request_count(request);
    net_events_t *events;
    bool wanted = false;

    for (int i = 0; i < count && phandles != NULL; ++i) {
        wanted = wanted || phandles[i] != NULL;
    }
    if (net_profiler() == NULL || !wanted) {
        return;
    }
    events = calloc(1, sizeof(*events));
    if (events == NULL) {
        return;
    }
    events->pipe = xm_pipe_request_pipe(request);
    events->number = xm_pipe_request_number(request);
    events->send = send;
    for (int i = 0; i < count; ++i) {
        if (phandles[i] != NULL) {
            start(events, i, device, lengths[i], phandles[i]);
        }
    }
    events->next = list->first;
    events->link = &list->first;
    if (events->next != NULL) {
        events->next->link = &events->next;
    }
    list->first = events;
    xm_pipe_request_set_user(request, events);
}

/* A receive's true lengths are known only at its end, so its event is updated. */
static void stop(net_event_t *event, const net_events_t *events, const size_t *lengths)
{
    size_t shares[NCCL_MEMBERS_MAX_V12] = {0};

    if (lengths == NULL || events->send) {
        (void)net_profiler()(&event->handle, NCCL_EVENT_STOP, event->parent, 0, NULL);
        return;
    }
    (void)share(events->pipe, lengths[event->slot], shares);
    event->data.of.queue_pair.length = shares[event->rail];
    (void)net_profiler()(&event->handle, NCCL_EVENT_UPDATE_AND_STOP, event->parent,
                         NCCL_PROFILER_IB_V1, &event->data);
}

/* Each list of events knows the link that points to it, so it is removed without a
 * search. */
void net_events_stop(net_events_t *events, const size_t *lengths)
{
    if (events == NULL) {
        return;
    }
    for (int i = 0; i < events->count; ++i) {
        stop(&events->list[i], events, lengths);
    }
    *events->link = events->next;
    if (events->next != NULL) {
        events->next->link = events->link;
    }
    free(events);
}

void net_events_stop_all(net_events_list_t *list)
{
    while (list->first != NULL) {
        net_events_stop(list->first, NULL);
    }
}
