/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file message_trace.h
 * All messages of a plan, one chunk of one hop each, in plan order, and what each occupies in the
 * words of network.h: what naive simulations work on.
 */
#pragma once

#include "tests/resharding/plan/random_case.h"
#include "resharding/plan/plan_private.h"
#include "resharding/plan/simulate.h"

enum { TRACE_RANKS = 32 };

enum { EGRESS, INGRESS, UPLINK, DOWNLINK, PORT_OUT, PORT_IN, RESOURCE_KINDS };

typedef struct {
    int kind[4], number[4], count;
    int64_t latency_ns;
} message_use_t;

/* How long a resource is occupied, and bytes/s. */
int64_t resource_busy_ns(const xm_network_t *network, int kind, int number, uint64_t bytes);
double resource_rate(const xm_network_t *network, int kind, int number);

typedef struct {
    int64_t hop, task, first, end;
    uint64_t bytes;
    int sender, receiver;
    bool reads_source; /* its sender holds the slice */
    message_use_t use;
    int64_t next; /* message that delivered to the same (task, receiver) before, or −1 */
    int64_t start, arrived;
} traced_message_t;

typedef struct {
    const xm_plan_t *plan;
    const xm_network_t *network;
    traced_message_t *messages;
    int64_t count;
    int64_t *latest; /* by task and rank: the last message to it so far */
} message_trace_t;

void message_trace_create(const xm_plan_t *plan, const xm_network_t *network,
                          message_trace_t *trace);
void message_trace_destroy(message_trace_t *trace);

/* The next message towards its sender that brings elements of this one (after −1: the first), −1 at
 * the end. It follows from who sends what to whom, not from the parents in the plan. */
int64_t message_trace_source(const message_trace_t *trace, const traced_message_t *message,
                             int64_t after);

/* First start and last arrival of every hop, from the messages; the caller frees it. */
xm_span_t *message_trace_spans(const message_trace_t *trace);
