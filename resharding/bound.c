#include "resharding/bound.h"

#include <stdlib.h>
#include <string.h>

#include "resharding/flow.h"

/*
 * Tasks with the same holding hosts are one group: the flow has a node per group and a node per
 * host. A group is keyed by its source tile, whose replicas are the holders, so groups are at most
 * the source tiles.
 */
typedef struct {
    int tiles, hosts;
    int64_t *needed; /* by source tile: bytes that must leave its holders */
    int *first;      /* by source tile: where its hosts start in `holder`; tiles + 1 entries */
    int *holder;     /* hosts, each once a tile */
} senders_t;

/* Marks the tiles that do not fit when every host may send `host_capacity` bytes. */
static xm_status_t find_misfits(const senders_t *senders, int64_t host_capacity, char *misfits)
{
    int source = senders->tiles + senders->hosts, sink = source + 1;
    xm_flow_t *flow = NULL;
    uint64_t value;
    xm_status_t status;

    status = xm_flow_create(sink + 1, &flow);
    for (int t = 0; status == XM_OK && t < senders->tiles; ++t) {
        if (senders->needed[t] == 0) {
            continue;
        }
        status = xm_flow_add_edge(flow, source, t, senders->needed[t]);
        for (int i = senders->first[t]; status == XM_OK && i < senders->first[t + 1]; ++i) {
            status =
                xm_flow_add_edge(flow, t, senders->tiles + senders->holder[i], senders->needed[t]);
        }
    }
    for (int h = 0; status == XM_OK && h < senders->hosts; ++h) {
        status = xm_flow_add_edge(flow, senders->tiles + h, sink, host_capacity);
    }
    if (status == XM_OK) {
        status = xm_flow_maximise(flow, source, sink, &value);
    }
    for (int t = 0; status == XM_OK && t < senders->tiles; ++t) {
        misfits[t] = xm_flow_on_source_side(flow, t);
    }
    xm_flow_destroy(flow);
    return status;
}

/*
 * Largest bytes(S) / |S| over sets of hosts S, rounded up. Starts from the set of all holders;
 * while some tiles do not fit into a capacity of that ratio, their holders are a set with a larger
 * one.
 */
static xm_status_t largest_ratio(const senders_t *senders, int64_t *bytes_per_host)
{
    char *inside = malloc((size_t)senders->tiles);
    char *in_set = malloc((size_t)senders->hosts);
    int64_t capacity = 0;
    xm_status_t status = XM_OK;

    if (inside == NULL || in_set == NULL) {
        status =
            xm_error_set(XM_ERR_NO_MEMORY, "no memory for the bound of %d tiles", senders->tiles);
        goto free_sets;
    }
    memset(inside, 1, (size_t)senders->tiles);
    for (;;) {
        int64_t bytes = 0, hosts = 0, next;

        memset(in_set, 0, (size_t)senders->hosts);
        for (int t = 0; t < senders->tiles; ++t) {
            if (!inside[t] || senders->needed[t] == 0) {
                continue;
            }
            bytes += senders->needed[t];
            for (int i = senders->first[t]; i < senders->first[t + 1]; ++i) {
                hosts += !in_set[senders->holder[i]];
                in_set[senders->holder[i]] = 1;
            }
        }
        next = hosts > 0 ? (bytes + hosts - 1) / hosts : 0;
        if (next <= capacity) {
            break;
        }
        capacity = next;
        status = find_misfits(senders, capacity, inside);
        if (status < 0) {
            break;
        }
    }
    *bytes_per_host = capacity;

free_sets:
    free(in_set);
    free(inside);
    return status;
}

static xm_status_t create_senders(const xm_layout_t *src, const xm_network_t *network,
                                  senders_t *senders)
{
    int *last_tile, next = 0;

    senders->tiles = xm_layout_tiles(src);
    senders->hosts = xm_network_hosts(network);
    senders->needed = calloc((size_t)senders->tiles, sizeof(*senders->needed));
    senders->first = malloc(((size_t)senders->tiles + 1) * sizeof(*senders->first));
    senders->holder = malloc((size_t)xm_mesh_size(xm_layout_mesh(src)) * sizeof(*senders->holder));
    last_tile = malloc((size_t)senders->hosts * sizeof(*last_tile));
    if (senders->needed == NULL || senders->first == NULL || senders->holder == NULL ||
        last_tile == NULL) {
        free(last_tile);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory for the bound of %d tiles on %d hosts",
                            senders->tiles, senders->hosts);
    }
    memset(last_tile, -1, (size_t)senders->hosts * sizeof(*last_tile));
    for (int t = 0; t < senders->tiles; ++t) {
        int count;
        const int *ranks = xm_layout_replicas(src, t, &count);

        senders->first[t] = next;
        for (int i = 0; i < count; ++i) {
            int host = xm_network_host_of(network, ranks[i]);

            if (last_tile[host] != t) {
                last_tile[host] = t;
                senders->holder[next++] = host;
            }
        }
    }
    senders->first[senders->tiles] = next;
    free(last_tile);
    return XM_OK;
}

xm_status_t xm_bound_compute(const xm_layout_t *src, const xm_layout_t *dst,
                             const xm_unit_task_t *tasks, int64_t count, int64_t element_size,
                             const xm_network_t *network, xm_bound_t *bound)
{
    int hosts = xm_network_hosts(network);
    uint64_t *received = calloc((size_t)hosts, sizeof(*received));
    int64_t *last_task = malloc((size_t)hosts * sizeof(*last_task));
    senders_t senders = {0};
    xm_bound_t result = {.receive_host = -1};
    int64_t send_bytes = 0;
    xm_status_t status;

    status = create_senders(src, network, &senders);
    if (status == XM_OK && (received == NULL || last_task == NULL)) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "no memory for the bound of %d hosts", hosts);
    }
    if (status < 0) {
        goto free_all;
    }
    memset(last_task, -1, (size_t)hosts * sizeof(*last_task));
    for (int64_t i = 0; i < count; ++i) {
        int64_t bytes = tasks[i].elements * element_size;
        int receivers;
        const int *ranks = xm_layout_replicas(dst, tasks[i].dst_tile, &receivers);
        bool crosses = false;

        /* Hosts that hold the box have it as much as those that were counted. */
        for (int s = senders.first[tasks[i].src_tile]; s < senders.first[tasks[i].src_tile + 1];
             ++s) {
            last_task[senders.holder[s]] = i;
        }
        for (int r = 0; r < receivers; ++r) {
            int host = xm_network_host_of(network, ranks[r]);

            if (last_task[host] == i) {
                continue;
            }
            last_task[host] = i;
            received[host] += (uint64_t)bytes;
            crosses = true;
        }
        if (crosses) {
            senders.needed[tasks[i].src_tile] += bytes;
        }
    }
    for (int h = 0; h < hosts; ++h) {
        if (received[h] > result.receive_bytes) {
            result.receive_bytes = received[h];
            result.receive_host = h;
        }
    }
    status = largest_ratio(&senders, &send_bytes);
    if (status == XM_OK) {
        result.receive_ns = xm_network_egress_ns(network, 0, result.receive_bytes);
        result.send_ns = xm_network_egress_ns(network, 0, (uint64_t)send_bytes);
        result.ns = result.receive_ns > result.send_ns ? result.receive_ns : result.send_ns;
        *bound = result;
    }

free_all:
    free(senders.holder);
    free(senders.first);
    free(senders.needed);
    free(last_task);
    free(received);
    return status;
}
