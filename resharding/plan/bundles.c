/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes bundles. openshop knows rails and bytes only, so what it orders is told apart by nothing
 * else.
 */
#include "resharding/plan/bundles.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

enum { LEAST_TURNS = 8, MOST_TURNS = 32, HOPS_IN_TURNS = 30000 };

/* The lanes' bundles, while these are made. */
typedef struct {
    const xm_plan_t *plan;
    const xm_classes_t *classes;
    xm_bundles_t *out;
    size_t capacity;
    xm_index_t index; /* of bundles, by the rails' lists */
    int64_t *bundle;  /* by lane */
} making_t;

static xm_status_t no_memory(const making_t *m)
{
    return XM_NO_MEMORY("scheduling %" PRId64 " unit tasks in parts", m->plan->task_count);
}

/* The same rails in both roles give the same hash, whatever the bytes. */
static uint64_t hash_demand(const xm_demand_t *demand)
{
    uint64_t hash = xm_hash_list(0, demand->holders, demand->holder_count);

    return xm_hash_list(hash, demand->receivers, demand->receiver_count);
}

static bool same_rails(const xm_demand_t *a, const xm_demand_t *b)
{
    return a->holder_count == b->holder_count && a->receiver_count == b->receiver_count &&
           memcmp(a->holders, b->holders, (size_t)a->holder_count * sizeof(int)) == 0 &&
           memcmp(a->receivers, b->receivers, (size_t)a->receiver_count * sizeof(int)) == 0;
}

/* Finds the bundle of these rails, or makes it with no bytes yet. */
static xm_status_t find_bundle(making_t *m, const xm_demand_t *rails, int64_t *bundle)
{
    xm_bundles_t *out = m->out;
    uint64_t hash = hash_demand(rails);

    for (size_t step = 0; (*bundle = xm_index_next(&m->index, hash, &step)) >= 0;) {
        if (same_rails(&out->demands[*bundle], rails)) {
            return XM_OK;
        }
    }
    if (!XM_ARRAY_ROOM(out->demands, m->capacity, out->count) ||
        !xm_index_enter(&m->index, hash, out->count)) {
        return no_memory(m);
    }
    *bundle = out->count;
    out->demands[out->count++] = *rails;
    return XM_OK;
}

/* Finds the bundles of all lanes. Those that differ only in devices share one, so the
 * scheduler sees fewer demands than there are lanes. */
static xm_status_t bundle_lanes(making_t *m)
{
    const xm_lanes_t *lanes = m->out->lanes;
    xm_status_t status = XM_OK;

    m->bundle = malloc(((size_t)lanes->count + 1) * sizeof(*m->bundle));
    if (m->bundle == NULL) {
        return no_memory(m);
    }
    for (int64_t k = 0; k < m->classes->count; ++k) {
        for (int64_t l = lanes->by_class[k].first; status == XM_OK && l < lanes->by_class[k].end;
             ++l) {
            const xm_demand_t rails = {.holders = lanes->holders[k].rails,
                                       .holder_count = lanes->holders[k].count,
                                       .receivers = lanes->lanes[l].rails,
                                       .receiver_count = lanes->lanes[l].count};

            status = find_bundle(m, &rails, &m->bundle[l]);
        }
    }
    return status;
}

/* Walks all entries in task order, counting them first and filling them in the second
 * call. Task order within a bundle is what they are searched by. */
static void walk_entries(making_t *m, int64_t *fill)
{
    xm_bundles_t *out = m->out;

    for (int64_t t = 0; t < m->plan->task_count; ++t) {
        const xm_lane_range_t *range = &out->lanes->by_class[m->classes->class_of[t]];
        int64_t size = m->plan->tensors[m->plan->tasks[t].tensor].element_size;

        for (int64_t l = range->first; l < range->end; ++l) {
            const xm_lane_t *lane = &out->lanes->lanes[l];
            int64_t stream = 2 * m->bundle[l] + (lane->receiver >= 0);
            const xm_entry_t entry = {t, xm_lane_part(out->lanes, m->plan, lane, t),
                                      out->bytes[stream], lane->receiver};

            if (entry.part.first == entry.part.end) {
                continue;
            }
            if (out->entries != NULL) {
                out->entries[fill[stream]] = entry;
                out->bytes[stream] += (entry.part.end - entry.part.first) * size;
            }
            ++fill[stream];
        }
    }
}

/* Lists what each bundle consists of, with the offset of every task's first byte in it. */
static xm_status_t list_entries(making_t *m)
{
    xm_bundles_t *out = m->out;
    size_t streams = 2 * (size_t)out->count;
    int64_t *fill = calloc(streams + 1, sizeof(*fill)), next = 0;

    out->first = malloc((streams + 1) * sizeof(*out->first));
    out->bytes = calloc(streams + 1, sizeof(*out->bytes));
    if (fill == NULL || out->first == NULL || out->bytes == NULL) {
        free(fill);
        return no_memory(m);
    }
    walk_entries(m, fill);
    /* Counts become places: each stream's entries follow those of the one before. */
    for (size_t i = 0; i < streams; ++i) {
        out->first[i] = next;
        next += fill[i];
        fill[i] = out->first[i];
    }
    out->first[streams] = next;
    out->entries = malloc(((size_t)next + 1) * sizeof(*out->entries));
    if (out->entries != NULL) {
        walk_entries(m, fill);
    }
    free(fill);
    return out->entries != NULL ? XM_OK : no_memory(m);
}

/* True when some receivers of a bundle get it from neighbours. */
static bool find_wide(const making_t *m, int64_t bundle)
{
    const xm_bundles_t *out = m->out;

    for (int64_t e = out->first[2 * bundle]; e < out->first[2 * bundle + 1]; ++e) {
        const xm_class_t *class = &m->classes->classes[m->classes->class_of[out->entries[e].task]];

        if (class->remote_count > class->remote_host_count) {
            return true;
        }
    }
    return false;
}

/* As many turns as leave few hops, where several rails or two ways into a host must keep in step
 * with each other. */
static int turns_for(const xm_bundles_t *out, const xm_network_t *network)
{
    bool several = out->single > 0 || xm_network_rails(network) > xm_network_hosts(network);
    bool wide = false;
    int64_t hops = 1, turns; /* that a turn has */

    for (int64_t d = 0; several && d < out->count; ++d) {
        hops += out->demands[d].receiver_count;
        wide = wide || out->wide[d];
    }
    turns = HOPS_IN_TURNS / hops < MOST_TURNS ? HOPS_IN_TURNS / hops : MOST_TURNS;
    return !wide ? 0 : turns > LEAST_TURNS ? (int)turns : LEAST_TURNS;
}

/* Has openshop order the bundles. Each of its hops becomes transfers to all receivers of a host. */
static xm_status_t order_bundles(const xm_scheduling_t *s, xm_bundles_t *out)
{
    const xm_problem_t problem = {out->lanes->network, out->demands, out->count};
    xm_openshop_params_t params = {
        .seed = s->params->seed, .most_hops = s->work_left, .most_bytes = out->message};
    int widest = 1;

    for (int64_t k = 0; k < s->classes->count; ++k) {
        widest = s->classes->classes[k].widest > widest ? s->classes->classes[k].widest : widest;
    }
    params.most_hops /= widest;
    params.turns = out->turns = turns_for(out, s->params->network);
    return out->count > 0 ? xm_schedule_openshop(&problem, &params, &out->hops, &out->hop_count,
                                                 &out->makespan_ns)
                          : XM_OK;
}

/* The demands point into the lanes' lists of rails. */
xm_status_t xm_bundles_create(const xm_scheduling_t *s, double single, bool near, int64_t message,
                              xm_bundles_t *bundles)
{
    making_t m = {.plan = s->plan, .classes = s->classes, .out = bundles};
    xm_status_t status = XM_OK;

    *bundles =
        (xm_bundles_t){.single = single, .near = near, .message = message, .lanes = &s->lanes};
    if (single > 0 || near) {
        status = xm_lanes_create(s->plan, s->params->network, s->classes, single, near,
                                 &bundles->own_lanes);
        bundles->lanes = &bundles->own_lanes;
    }
    XM_THEN(status, bundle_lanes(&m));
    XM_THEN(status, list_entries(&m));
    if (status == XM_OK) {
        bundles->wide = malloc((size_t)bundles->count + 1);
        status = bundles->wide != NULL ? XM_OK : no_memory(&m);
    }
    for (int64_t d = 0; status == XM_OK && d < bundles->count; ++d) {
        bundles->demands[d].bytes = bundles->bytes[2 * d] + bundles->bytes[2 * d + 1];
        bundles->wide[d] = find_wide(&m, d);
    }
    XM_THEN(status, order_bundles(s, bundles));
    free(m.bundle);
    xm_index_clear(&m.index);
    if (status < 0) {
        xm_bundles_clear(bundles);
    }
    return status;
}

void xm_bundles_clear(xm_bundles_t *bundles)
{
    free(bundles->hops);
    free(bundles->wide);
    free(bundles->entries);
    free(bundles->bytes);
    free(bundles->first);
    free(bundles->demands);
    if (bundles->lanes == &bundles->own_lanes) {
        xm_lanes_clear(&bundles->own_lanes);
    }
    memset(bundles, 0, sizeof(*bundles));
}
