/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/resharding/plan/message_trace.h"

#include <math.h>

#include "xm_test.h"

static void add_use(message_use_t *use, int kind, int number)
{
    use->kind[use->count] = kind;
    use->number[use->count++] = number;
}

static message_use_t use_of(const xm_network_t *network, int sender, int receiver)
{
    int from = xm_network_host_of(network, sender), to = xm_network_host_of(network, receiver);
    message_use_t use = {.count = 0};

    if (from == to) {
        add_use(&use, PORT_OUT, sender);
        add_use(&use, PORT_IN, receiver);
        use.latency_ns = llround(1e9 * xm_network_host_latency(network));
        return use;
    }
    add_use(&use, EGRESS, xm_network_rail_of(network, sender));
    add_use(&use, INGRESS, xm_network_rail_of(network, receiver));
    use.latency_ns = llround(1e9 * xm_network_nic_latency(network));
    if (xm_network_rack_of(network, from) != xm_network_rack_of(network, to) &&
        xm_network_uplink_bandwidth(network) > 0) {
        add_use(&use, UPLINK, xm_network_rack_of(network, from));
        add_use(&use, DOWNLINK, xm_network_rack_of(network, to));
    }
    return use;
}

double resource_rate(const xm_network_t *network, int kind, int number)
{
    switch (kind) {
    case EGRESS:
        return xm_network_rail_egress(network, number);
    case INGRESS:
        return xm_network_rail_ingress(network, number);
    case UPLINK:
    case DOWNLINK:
        return xm_network_uplink_bandwidth(network);
    default:
        return xm_network_host_bandwidth(network);
    }
}

int64_t resource_busy_ns(const xm_network_t *network, int kind, int number, uint64_t bytes)
{
    return (int64_t)ceil((double)bytes * 1e9 / resource_rate(network, kind, number));
}

static void trace_transfer(message_trace_t *trace, int64_t index)
{
    const xm_transfer_t *transfer = &trace->plan->builder.transfers[index];
    const xm_route_t *route = xm_plan_route(trace->plan, transfer->route);
    int64_t chunk = xm_plan_chunk_elements(trace->plan, transfer->task);
    int64_t size =
        xm_plan_tensor_element_size(trace->plan, trace->plan->tasks[transfer->task].tensor);

    if (xm_transfer_is_copy(transfer, route)) {
        return;
    }
    for (int64_t first = transfer->first; first < transfer->end; first += chunk) {
        for (int h = 0; h < route->count; ++h) {
            traced_message_t *message = &trace->messages[trace->count++];

            *message = (traced_message_t){
                .hop = xm_plan_first_hop(trace->plan, index) + h,
                .task = transfer->task,
                .first = first,
                .end = first + chunk < transfer->end ? first + chunk : transfer->end,
                .sender = xm_hop_sender(transfer, route, h),
                .receiver = route->ranks[h],
                .reads_source = route->parents[h] < 0 && transfer->parent < 0};
            message->bytes = (uint64_t)((message->end - first) * size);
            message->use = use_of(trace->network, message->sender, message->receiver);
        }
    }
}

void message_trace_create(const xm_plan_t *plan, const xm_network_t *network,
                          message_trace_t *trace)
{
    size_t pairs = (size_t)plan->task_count * TRACE_RANKS + 1;
    int64_t most = 0;

    *trace = (message_trace_t){.plan = plan, .network = network};
    for (int64_t t = 0; t < plan->builder.transfer_count; ++t) {
        most +=
            xm_plan_chunks(plan, t) * xm_plan_route(plan, plan->builder.transfers[t].route)->count;
    }
    trace->messages = malloc(((size_t)most + 1) * sizeof(*trace->messages));
    trace->latest = malloc(pairs * sizeof(*trace->latest));
    ck_assert(trace->messages != NULL && trace->latest != NULL);
    for (size_t p = 0; p < pairs; ++p) {
        trace->latest[p] = -1;
    }
    for (int64_t t = 0; t < plan->builder.transfer_count; ++t) {
        trace_transfer(trace, t);
    }
    for (int64_t m = 0; m < trace->count; ++m) {
        traced_message_t *message = &trace->messages[m];
        int64_t *latest = &trace->latest[message->task * TRACE_RANKS + message->receiver];

        message->next = *latest;
        *latest = m;
    }
}

void message_trace_destroy(message_trace_t *trace)
{
    free(trace->latest);
    free(trace->messages);
}

int64_t message_trace_source(const message_trace_t *trace, const traced_message_t *message,
                             int64_t after)
{
    int64_t m = after < 0 ? trace->latest[message->task * TRACE_RANKS + message->sender]
                          : trace->messages[after].next;

    while (m >= 0 &&
           (trace->messages[m].end <= message->first || trace->messages[m].first >= message->end)) {
        m = trace->messages[m].next;
    }
    return m;
}

xm_span_t *message_trace_spans(const message_trace_t *trace)
{
    xm_span_t *spans = calloc((size_t)xm_plan_hops(trace->plan) + 1, sizeof(*spans));

    ck_assert_ptr_nonnull(spans);
    for (int64_t m = trace->count - 1; m >= 0; --m) {
        const traced_message_t *message = &trace->messages[m];
        xm_span_t *span = &spans[message->hop];

        span->start_ns = message->start;
        span->end_ns = message->arrived > span->end_ns ? message->arrived : span->end_ns;
    }
    return spans;
}
