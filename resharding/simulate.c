#include "resharding/simulate.h"

#include <stdlib.h>

typedef struct {
    int64_t *egress; /* by host: when it is free again */
    int64_t *ingress;
} clocks_t;

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/*
 * Transfers [first, end) of the list are one chain: the same task, all but the first fed by another
 * of them. It starts when every NIC direction it needs is free and holds them all for the time of
 * one hop.
 */
static void run_chain(const xm_plan_t *plan, const xm_network_t *network, int64_t first,
                      int64_t end, clocks_t *clocks, xm_span_t *spans, int64_t *makespan)
{
    int64_t count, start = 0, duration = 0;
    const xm_transfer_t *transfers = xm_plan_transfers(plan, &count);

    for (int64_t i = first; i < end; ++i) {
        int from = xm_network_host_of(network, transfers[i].sender);
        int to = xm_network_host_of(network, transfers[i].receiver);

        if (from != to) {
            start = later(start, later(clocks->egress[from], clocks->ingress[to]));
            duration =
                later(duration, xm_network_egress_ns(network, 0, xm_plan_transfer_bytes(plan, i)));
        }
    }
    for (int64_t i = first; i < end; ++i) {
        int from = xm_network_host_of(network, transfers[i].sender);
        int to = xm_network_host_of(network, transfers[i].receiver);

        if (from != to) {
            clocks->egress[from] = start + duration;
            clocks->ingress[to] = start + duration;
        }
        if (spans != NULL) {
            spans[i] = (xm_span_t){start, start + duration};
        }
    }
    *makespan = later(*makespan, start + duration);
}

xm_status_t xm_simulate(const xm_plan_t *plan, const xm_network_t *network, xm_span_t *spans,
                        int64_t *makespan_ns)
{
    size_t hosts = (size_t)xm_network_hosts(network);
    clocks_t clocks = {calloc(hosts, sizeof(int64_t)), calloc(hosts, sizeof(int64_t))};
    int64_t count, makespan = 0;
    const xm_transfer_t *transfers = xm_plan_transfers(plan, &count);
    xm_status_t status = XM_OK;

    if (clocks.egress == NULL || clocks.ingress == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory to simulate %zu hosts", hosts);
        goto free_clocks;
    }
    for (int64_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && transfers[end].task == transfers[first].task &&
                              transfers[end].parent >= first;
             ++end) {
        }
        run_chain(plan, network, first, end, &clocks, spans, &makespan);
    }
    *makespan_ns = makespan;

free_clocks:
    free(clocks.ingress);
    free(clocks.egress);
    return status;
}
