/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exclusive simulation: every resource serves its messages one at a time, in plan
 * order. The whole is linear in (max, +), so running the messages in plan order and
 * keeping one clock per resource is exact, without any event queue. Chunks that only
 * repeat the one before are skipped, so that the cost does not grow with the number of
 * chunks.
 */
#include "resharding/plan/simulate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "resharding/plan/plan_private.h"
#include "resharding/plan/simulate/private.h"

typedef struct {
    const xm_plan_t *plan;
    int64_t count;
    xm_resources_t resources;
    int64_t *free_at;   /* by resource */
    int64_t **history;  /* by transfer: see history_of(); NULL where none starts from another */
    int64_t *histories; /* of all of them */
    xm_hop_uses_t uses;
    xm_use_t own; /* of the hop from the sender of the transfer at hand */
    xm_fold_t fold;
    int64_t *arrival;  /* by hop of the transfer at hand: when its latest chunk arrived */
    int64_t *previous; /* by hop: when it started its previous chunk */
    xm_span_t *spans;
    int64_t makespan;
} exclusive_t;

static const xm_route_t *route_of(const exclusive_t *x, int64_t transfer)
{
    return xm_plan_route(x->plan, xm_plan_transfer(x->plan, transfer).route);
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The times at which the data of a transfer arrived, by chunk and hop, hops together; they are kept
 * where a later transfer starts from them, and NULL where nobody asks. */
static int64_t *history_of(const exclusive_t *x, int64_t transfer)
{
    return x->history != NULL ? x->history[transfer] : NULL;
}

static xm_status_t no_memory(const exclusive_t *x)
{
    return XM_NO_MEMORY("simulating %" PRId64 " transfers", x->count);
}

/* Makes room for the arrivals of transfers that others start from. Few transfers are
 * relayed by a second transfer, so most of a plan needs none of this memory. */
static xm_status_t keep_histories(exclusive_t *x)
{
    int64_t *none = (int64_t[1]){0}, total = 0;

    /* Transfers of regular plans have no parents. */
    for (int64_t i = 0; x->plan->regular == NULL && i < x->count; ++i) {
        int64_t parent = xm_plan_transfer(x->plan, i).parent, times;

        if (parent < 0 || history_of(x, parent) != NULL) {
            continue;
        }
        x->history =
            x->history != NULL ? x->history : calloc((size_t)x->count, sizeof(*x->history));
        /* Chunks of one byte, eight bytes each: beyond 2^64. */
        if (x->history == NULL ||
            __builtin_mul_overflow(xm_plan_chunks(x->plan, parent), route_of(x, parent)->count,
                                   &times) ||
            __builtin_add_overflow(total, times, &total)) {
            return no_memory(x);
        }
        x->history[parent] = none;
    }
    x->histories =
        total <= INT64_MAX / 8 ? malloc(((size_t)total + 1) * sizeof(*x->histories)) : NULL;
    total = 0;
    for (int64_t i = 0; x->histories != NULL && x->history != NULL && i < x->count; ++i) {
        if (x->history[i] != NULL) {
            x->history[i] = x->histories + total;
            total += xm_plan_chunks(x->plan, i) * route_of(x, i)->count;
        }
    }
    return x->histories != NULL ? XM_OK : no_memory(x);
}

/* Returns when the sender of a transfer has the elements of its range up to `end`: the
 * arrival of the parent's chunk that contains the last of them. */
static int64_t at_sender(const exclusive_t *x, const xm_transfer_t *transfer, int64_t end)
{
    xm_transfer_t parent;
    const xm_route_t *route;
    int64_t chunk;
    int hop = 0;

    if (transfer->parent < 0) {
        return 0;
    }
    parent = xm_plan_transfer(x->plan, transfer->parent);
    route = xm_plan_route(x->plan, parent.route);
    while (route->ranks[hop] != transfer->sender) {
        ++hop;
    }
    chunk = (end - 1 - parent.first) / xm_plan_chunk_elements(x->plan, transfer->task);
    return history_of(x, transfer->parent)[chunk * route->count + hop];
}

/* What a hop occupies. Routes are shared by many transfers, so only the hops from the
 * transfer's own sender are looked up each time. */
static const xm_use_t *use_of(exclusive_t *x, const xm_transfer_t *transfer,
                              const xm_route_t *route, int hop)
{
    if (route->parents[hop] >= 0) {
        return xm_hop_use(&x->uses, transfer->route, hop);
    }
    xm_resources_use(&x->resources, transfer->sender, route->ranks[hop], &x->own);
    return &x->own;
}

/*
 * Runs one message: returns when it starts, and notes what it occupies and when it has
 * arrived. All its resources are taken at the same start, each for its own time; latency
 * occupies nothing.
 */
static int64_t run_message(exclusive_t *x, const xm_use_t *use, int64_t ready, uint64_t bytes,
                           int64_t *arrived)
{
    int64_t start = ready, longest = 0;

    xm_fold_touch(&x->fold, use);
    for (int r = 0; r < use->count; ++r) {
        start = later(start, x->free_at[use->resource[r]]);
    }
    for (int r = 0; r < use->count; ++r) {
        int64_t busy = xm_resource_ns(&x->resources, use->resource[r], bytes);

        x->free_at[use->resource[r]] = start + busy;
        longest = later(longest, busy);
    }
    *arrived = start + longest + use->latency_ns;
    return start;
}

/*
 * Runs one chunk over all hops. It returns by how much later every hop started than with
 * the chunk before, or −1 when that differs between hops: equal steps repeat for as long
 * as chunks are equal, since the whole is linear in (max, +).
 */
static int64_t run_chunk(exclusive_t *x, int64_t i, const xm_transfer_t *transfer,
                         const xm_route_t *route, int64_t chunk, int64_t first, int64_t end)
{
    int64_t size = xm_task_element_size(x->plan, transfer->task);
    uint64_t bytes = (uint64_t)((end - first) * size);
    int64_t source = at_sender(x, transfer, end), step = -2, *history = history_of(x, i);

    for (int h = 0; h < route->count; ++h) {
        int64_t ready = route->parents[h] < 0 ? source : x->arrival[route->parents[h]];
        int64_t start = run_message(x, use_of(x, transfer, route, h), ready, bytes, &x->arrival[h]);

        if (chunk == 0 && x->spans != NULL) {
            x->spans[xm_plan_first_hop(x->plan, i) + h].start_ns = start;
        }
        if (chunk == 0 || (step != -2 && start - x->previous[h] != step)) {
            step = -1;
        } else if (step == -2) {
            step = start - x->previous[h];
        }
        x->previous[h] = start;
        if (history != NULL) {
            history[chunk * route->count + h] = x->arrival[h];
        }
    }
    return step;
}

/*
 * Repeats the last chunk's step for `chunks` more of the same size. A resource that
 * several hops of the route use must move once only, which the marks see to; they are
 * cleared again by a second pass.
 */
static void skip_chunks(exclusive_t *x, const xm_transfer_t *transfer, const xm_route_t *route,
                        int64_t chunks, int64_t step)
{
    for (int h = 0; h < route->count; ++h) {
        x->arrival[h] += chunks * step;
        x->previous[h] += chunks * step;
    }
    for (int h = 0; h < route->count; ++h) {
        const xm_use_t *use = use_of(x, transfer, route, h);

        for (int r = 0; r < use->count; ++r) {
            if (!x->resources.moved[use->resource[r]]) {
                x->resources.moved[use->resource[r]] = true;
                x->free_at[use->resource[r]] += chunks * step;
            }
        }
    }
    for (int h = 0; h < route->count; ++h) {
        const xm_use_t *use = use_of(x, transfer, route, h);

        for (int r = 0; r < use->count; ++r) {
            x->resources.moved[use->resource[r]] = false;
        }
    }
}

/* Runs so many equal messages through a folded chain. After the first each waits for the one
 * before it. */
static void run_folded(exclusive_t *x, const xm_transfer_t *transfer, const xm_use_t *use,
                       int64_t bytes, int64_t count)
{
    int64_t busy = xm_resource_ns(&x->resources, use->resource[0], (uint64_t)bytes), arrived;
    int64_t start = run_message(x, use, 0, (uint64_t)bytes, &arrived);

    for (int r = 0; r < use->count; ++r) {
        x->free_at[use->resource[r]] += (count - 1) * busy;
    }
    xm_fold_add(&x->fold, transfer->route, start, busy, count);
}

/* Runs a transfer that its route's chain takes in: its equal chunks, then the last, which may be
 * shorter. */
static bool run_folded_transfer(exclusive_t *x, const xm_transfer_t *transfer,
                                const xm_route_t *route, int64_t chunks)
{
    int64_t element = xm_task_element_size(x->plan, transfer->task);
    int64_t size = xm_plan_chunk_elements(x->plan, transfer->task);
    int64_t last = transfer->end - transfer->first - (chunks - 1) * size;
    const xm_use_t *first = use_of(x, transfer, route, 0);

    if (!xm_fold_takes(&x->fold, transfer->route, first)) {
        return false;
    }
    if (chunks > 1) {
        run_folded(x, transfer, first, size * element, chunks - 1);
    }
    run_folded(x, transfer, first, last * element, 1);
    return true;
}

/* Runs the chunks of one transfer in order. Chunks may be skipped only where nobody asks
 * for the arrival of each and the sender has its data from the start. */
static void run_transfer(exclusive_t *x, int64_t i)
{
    const xm_transfer_t one = xm_plan_transfer(x->plan, i), *transfer = &one;
    const xm_route_t *route = xm_plan_route(x->plan, transfer->route);
    int64_t size = xm_plan_chunk_elements(x->plan, transfer->task),
            chunks = (transfer->end - transfer->first + size - 1) / size;
    bool may_skip = transfer->parent < 0 && history_of(x, i) == NULL;

    if (xm_transfer_is_copy(transfer, route)) {
        return;
    }
    if (may_skip && x->spans == NULL && run_folded_transfer(x, transfer, route, chunks)) {
        return;
    }
    for (int64_t c = 0; c < chunks; ++c) {
        int64_t first = transfer->first + c * size,
                end = first + size < transfer->end ? first + size : transfer->end;
        int64_t step = run_chunk(x, i, transfer, route, c, first, end);

        /* The last chunk may be shorter, so it is run. */
        if (may_skip && step >= 0 && c + 2 < chunks) {
            skip_chunks(x, transfer, route, chunks - 2 - c, step);
            c = chunks - 2;
        }
    }
    for (int h = 0; h < route->count; ++h) {
        x->makespan = later(x->makespan, x->arrival[h]);
        if (x->spans != NULL) {
            x->spans[xm_plan_first_hop(x->plan, i) + h].end_ns = x->arrival[h];
        }
    }
}

/* Looks up what the hops of all routes occupy, and finds the chains that can be folded. */
static xm_status_t read_routes(exclusive_t *x)
{
    int routes = xm_plan_routes(x->plan);
    int64_t hops = 0;

    for (int r = 0; r < routes; ++r) {
        x->uses.first[r] = hops;
        hops += xm_plan_route(x->plan, r)->count;
    }
    x->uses.use = malloc(((size_t)hops + 1) * sizeof(*x->uses.use));
    XM_NEED_MEMORY(x->uses.use, "simulating %d routes", routes);
    for (int r = 0; r < routes; ++r) {
        const xm_route_t *route = xm_plan_route(x->plan, r);

        for (int h = 0; h < route->count; ++h) {
            if (route->parents[h] >= 0) {
                xm_resources_use(&x->resources, route->ranks[route->parents[h]], route->ranks[h],
                                 &x->uses.use[x->uses.first[r] + h]);
            }
        }
    }
    return xm_fold_init(&x->fold, x->plan, &x->resources, &x->uses, x->free_at);
}

static int longest_route(const xm_plan_t *plan)
{
    int longest = 1;

    for (int r = 0; r < xm_plan_routes(plan); ++r) {
        longest = xm_plan_route(plan, r)->count > longest ? xm_plan_route(plan, r)->count : longest;
    }
    return longest;
}

/* Makes room for the clocks of all resources and routes. */
static xm_status_t allocate(exclusive_t *x)
{
    size_t longest = (size_t)longest_route(x->plan), routes = (size_t)xm_plan_routes(x->plan);

    x->free_at = calloc((size_t)x->resources.count, sizeof(*x->free_at));
    x->uses.first = malloc((routes + 1) * sizeof(*x->uses.first));
    x->arrival = malloc(longest * sizeof(*x->arrival));
    x->previous = malloc(longest * sizeof(*x->previous));
    if (x->free_at == NULL || x->uses.first == NULL || x->arrival == NULL || x->previous == NULL) {
        return no_memory(x);
    }
    return XM_OK;
}

/* Runs the transfers in plan order; a parent stands earlier, so its arrivals are known. It ends
 * early once one of them arrives at the limit or later. */
static xm_status_t simulate_exclusive(const xm_plan_t *plan, const xm_network_t *network,
                                      int64_t limit_ns, xm_span_t *spans, int64_t *makespan_ns)
{
    exclusive_t x = {.plan = plan, .spans = spans, .count = xm_plan_transfer_count(plan)};
    xm_status_t status;

    XM_TRY(xm_resources_init(&x.resources, network));
    status = allocate(&x);
    XM_THEN(status, keep_histories(&x));
    XM_THEN(status, read_routes(&x));
    for (int64_t i = 0; status == XM_OK && i < x.count && x.makespan < limit_ns; ++i) {
        run_transfer(&x, i);
    }
    if (status == XM_OK) {
        xm_fold_end(&x.fold);
        *makespan_ns = later(x.makespan, x.fold.makespan);
    }
    free(x.previous);
    free(x.arrival);
    xm_fold_clear(&x.fold);
    free(x.uses.first);
    free(x.uses.use);
    free(x.histories);
    free(x.history);
    free(x.free_at);
    xm_resources_clear(&x.resources);
    return status;
}

/* Copies inside a rank take no time but a processor's, and keep the zeros. */
xm_status_t xm_simulate(const xm_plan_t *plan, const xm_network_t *network, xm_sharing_t sharing,
                        xm_span_t *spans, int64_t *makespan_ns)
{
    if (spans != NULL) {
        memset(spans, 0, (size_t)xm_plan_hops(plan) * sizeof(*spans));
    }
    XM_TRY(sharing == XM_SHARING_FAIR
               ? xm_simulate_fair(plan, network, spans, makespan_ns)
               : simulate_exclusive(plan, network, INT64_MAX, spans, makespan_ns));
    return xm_processors_slow(plan, network, spans, makespan_ns);
}

xm_status_t xm_simulate_until(const xm_plan_t *plan, const xm_network_t *network, int64_t limit_ns,
                              int64_t *makespan_ns)
{
    XM_TRY(simulate_exclusive(plan, network, limit_ns, NULL, makespan_ns));

    return xm_processors_slow(plan, network, NULL, makespan_ns);
}
