/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of strategies, the cost model that `auto` chooses by, and the length of chunks.
 * In the model a pipelined chain costs one pass over its slowest stage plus filling. It
 * estimates one task among many, so its numbers are for comparing strategies and are
 * never reported as times; those come from the simulation.
 */
#include <math.h>

#include "comm/base.h"
#include "resharding/plan/plan_private.h"

static const char *const strategy_names[XM_STRATEGY_COUNT] = {
    "send_recv", "allgather", "broadcast", "auto", "local_allgather", "global_allgather", "alpa"};

const char *xm_strategy_name(xm_strategy_t strategy)
{
    return strategy_names[strategy];
}

xm_status_t xm_strategy_parse(const char *name, xm_strategy_t *strategy)
{
    int index;

    XM_NEED_ARGUMENTS(name, strategy);
    XM_TRY(xm_text_choose("strategy", name, strategy_names, XM_STRATEGY_COUNT, &index));
    *strategy = (xm_strategy_t)index;
    return XM_OK;
}

/*
 * A chain of h hops over n bytes in chunks of c takes (n / c + h − 1) · (latency + c / bandwidth),
 * which is least at c = sqrt(n · latency · bandwidth / (h − 1)).
 */
int64_t xm_chunk_bytes(const xm_network_t *network, int64_t bytes, int hops, uint64_t limit)
{
    double best, product = xm_network_nic_latency(network) * xm_network_nic_bandwidth(network);

    if (hops < 2) {
        return (int64_t)limit;
    }
    best = sqrt((double)bytes * product / (double)(hops - 1));
    return llrint(fmin((double)limit, fmax(best, XM_SMALLEST_CHUNK)));
}

/*
 * The cost of a pipeline in chunks over `hosts` hops between hosts and `inner` hops
 * inside one, whose slowest stage moves `bytes` at `rate`: see xm_strategy_predict().
 * Latencies occupy nothing (network.h), so they count as filling only.
 */
static double pipeline(const xm_network_t *network, double bytes, double chunk, double rate,
                       int hosts, int inner, double share)
{
    double fill = hosts * xm_network_nic_latency(network) + (hosts - 1) * chunk / rate;
    double last = xm_network_host_latency(network) + chunk / xm_network_host_bandwidth(network);

    return bytes / rate + (fill + inner * last) * share;
}

/*
 * Chooses the strategy of the least cost. The cost is the time for which the task
 * occupies its busiest NIC or port, plus its share of the time that goes by with filling
 * the pipeline: one task alone waits for all of it, one of many leaves the NICs to the
 * others meanwhile. Ties go to the simpler strategy.
 */
xm_strategy_t xm_strategy_predict(const xm_network_t *network, const xm_class_t *class,
                                  int64_t bytes, int64_t tasks)
{
    double nic = xm_network_nic_bandwidth(network), port = xm_network_host_bandwidth(network);
    double amount = (double)bytes, share = 1.0 / (double)tasks, chunk, direct, broadcast, allgather;
    int hosts = class->remote_host_count, most = class->widest;

    /* With one receiver all strategies are the same message. */
    if (class->remote_count < 2) {
        return XM_STRATEGY_SEND_RECV;
    }
    chunk = (double)xm_chunk_bytes(network, bytes, hosts + most - 1, INT64_C(1) << 40);
    chunk = fmin(chunk, amount);
    direct = amount * class->remote_count / nic + xm_network_nic_latency(network) * share;
    broadcast =
        pipeline(network, amount, chunk, most > 1 ? fmin(nic, port) : nic, hosts, most - 1, share);
    /* Each of the shards is a pipeline of its own; a device's port takes in all but its own shard.
     */
    allgather =
        pipeline(network, amount, fmin(chunk, ceil(amount / most)),
                 most > 1 ? fmin(nic, port * most / (most - 1)) : nic, hosts, most - 1, share);
    if (direct <= broadcast && direct <= allgather) {
        return XM_STRATEGY_SEND_RECV;
    }
    return broadcast <= allgather ? XM_STRATEGY_BROADCAST : XM_STRATEGY_ALLGATHER;
}
