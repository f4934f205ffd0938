/* SPDX-License-Identifier: Apache-2.0 */
/* Ports and links that moves occupy, and what must cross them in any program. */
#include "resharding/collective/interconnect.h"

#include <math.h>

#include "resharding/flow.h"

int xm_interconnect_resources(const xm_interconnect_t *interconnect)
{
    return interconnect->link != NULL ? interconnect->devices * interconnect->devices
                                      : 2 * interconnect->dimensions * interconnect->devices;
}

static int dimension_between(const xm_interconnect_t *net, int from, int to)
{
    int last = net->dimensions - 1;

    if (from >= net->devices || to >= net->devices) {
        return last;
    }
    for (int k = 0; k < last; ++k) {
        from /= net->dimension[k].extent;
        to /= net->dimension[k].extent;
        if (from == to) {
            return k;
        }
    }
    return last;
}

xm_status_t xm_interconnect_use(const xm_interconnect_t *interconnect, int from, int to,
                                xm_occupied_t *occupied)
{
    const xm_interconnect_t *net = interconnect;

    if (net->link != NULL) {
        *occupied = (xm_occupied_t){.dimension = &net->dimension[0]};
        if (from >= net->devices || to >= net->devices ||
            net->link[from * net->devices + to] <= 0) {
            return XM_INVALID("no link goes from node %d to %d", from, to);
        }
        occupied->resource[occupied->count++] = from * net->devices + to;
        occupied->rate = net->link[from * net->devices + to] / net->dimension[0].ratio;
        return XM_OK;
    }
    int k = dimension_between(net, from, to), first = k * net->devices;

    *occupied = (xm_occupied_t){.dimension = &net->dimension[k],
                                .rate = net->dimension[k].rate / net->dimension[k].ratio};
    if (from < net->devices) {
        occupied->resource[occupied->count++] = 2 * (first + from / net->dimension[k].share);
    }
    if (to < net->devices) {
        occupied->resource[occupied->count++] = 2 * (first + to / net->dimension[k].share) + 1;
    }
    return XM_OK;
}

/* How often a byte of a device's data crosses between `parts` parts of `of` devices each. */
static double crossings(xm_collective_t kind, bool switches, int parts, int of)
{
    switch (kind) {
    case XM_ALL_REDUCE:
        return switches ? parts : 2.0 * (parts - 1);
    case XM_ALL_TO_ALL:
        return (double)parts * of - of;
    default:
        return parts - 1;
    }
}

/* The parts of each dimension are what lies in one place of it and of those behind it. What crosses
 * between them takes ports of these dimensions. */
static double bound_of_ports(const xm_interconnect_t *net, xm_collective_t kind, bool switches,
                             double bytes)
{
    double bound = 0;

    for (int k = 0, size = 1; k < net->dimensions; size *= net->dimension[k++].extent) {
        double rate = 0;

        for (int j = k; j < net->dimensions; ++j) {
            const xm_dimension_t *d = &net->dimension[j];

            rate += (double)net->devices / d->share * d->rate / d->ratio;
        }
        bound = fmax(bound, crossings(kind, switches, net->devices / size, size) * bytes / rate);
    }
    return bound;
}

/* Bytes/s that can come from device 0 to the one that least can, as tokens of a millionth of the
 * fastest link: rounded up, so that a bound is not too high. */
static xm_status_t smallest_flow(const xm_interconnect_t *net, double *rate)
{
    double fastest = 0, token;

    for (int l = 0; l < net->devices * net->devices; ++l) {
        fastest = fmax(fastest, net->link[l]);
    }
    token = fastest * 1e-6;
    *rate = INFINITY;
    for (int to = 1; to < net->devices; ++to) {
        xm_flow_t *flow;
        uint64_t value = 0;
        xm_status_t status = xm_flow_create(net->devices, &flow);

        XM_TRY(status);
        for (int l = 0; status == XM_OK && l < net->devices * net->devices; ++l) {
            if (net->link[l] > 0) {
                status = xm_flow_add_edge(flow, l / net->devices, l % net->devices,
                                          (int64_t)ceil(net->link[l] / token));
            }
        }
        XM_THEN(status, xm_flow_maximise(flow, 0, to, &value));
        xm_flow_destroy(flow);
        XM_TRY(status);
        *rate = fmin(*rate, (double)value * token);
    }
    return XM_OK;
}

xm_status_t xm_collective_bound(const xm_interconnect_t *interconnect, xm_collective_t kind,
                                bool switches, double bytes, double packed, double *seconds)
{
    const xm_interconnect_t *net = interconnect;
    double flow = 0;
    xm_status_t status;

    if (net->link == NULL) {
        *seconds = bound_of_ports(net, kind, switches, bytes);
        return XM_OK;
    }
    status = smallest_flow(net, &flow);
    if (status == XM_OK && flow <= 0) {
        return XM_INVALID("the links do not connect all devices");
    }
    /* Some contribution of every device must leave it, and all but its own part come to it. */
    *seconds = bytes / flow * net->dimension[0].ratio *
               (kind == XM_ALL_REDUCE ? 1 : 1 - 1.0 / net->devices);
    if (kind != XM_ALL_REDUCE) {
        /* The flow to one device may be from many, so only what enters it counts. */
        *seconds = 0;
        for (int d = 0; d < net->devices; ++d) {
            double in = 0;

            for (int from = 0; from < net->devices; ++from) {
                in += net->link[from * net->devices + d];
            }
            *seconds =
                fmax(*seconds, bytes * (1 - 1.0 / net->devices) / in * net->dimension[0].ratio);
        }
    } else if (packed > 0) {
        *seconds = fmax(*seconds, bytes / packed * net->dimension[0].ratio);
    }
    return status;
}
