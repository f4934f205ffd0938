/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file net_events.h
 * Events for profilers: one for each NIC that carries a part of a message, from the moment that
 * NCCL hands the message over until it has ended. Internal.
 *
 * They have the form of NCCL's own InfiniBand transport, which profilers know: the device is the
 * NIC
 * (-1 where both ends are on one machine and none is used), the work request the number of the
 * message on its connection, the queue pair the NIC's place in the device, the opcode 2 for a send
 * and 128 for a receive (IBV_WR_SEND, IBV_WC_RECV). The lengths of a receive are at first those of
 * its slots, and at the end those of the messages.
 */
#pragma once

#include "plugins/nccl/net.h"

typedef struct net_events net_events_t;

/** The events of a connection that have not ended. Used under the caller's lock. */
typedef struct net_events_list {
    net_events_t *first;
} net_events_list_t;

/** Begins the events of a request, and makes them its user (xm_pipe_request_user()). Does nothing
 * where nobody listens. */
void net_events_start(net_events_list_t *list, xm_pipe_request_t *request,
                      const net_device_t *device, bool send, const size_t *lengths,
                      void *const *phandles);

/** Ends and frees them; @p lengths of the messages, NULL: the request has failed. NULL events are
 * accepted. */
void net_events_stop(net_events_t *events, const size_t *lengths);

/** Ends all that are left. */
void net_events_stop_all(net_events_list_t *list);
