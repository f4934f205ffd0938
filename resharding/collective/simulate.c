/* SPDX-License-Identifier: Apache-2.0 */
/* From event to event: moves leave their ports or links, and arrive. */
#include "resharding/collective/simulate.h"

#include <stdlib.h>
#include <string.h>

#include "resharding/collective/heap.h"

/* Ports of a dimension and direction are a kind, and have numbers in it. A move between two ports
 * waits at both, for a pair of a number and its peer's; one that takes a port or a link alone has
 * the peer `width - 1`, which is always idle. */
typedef struct {
    const xm_program_t *program;
    const xm_interconnect_t *net;
    xm_dependencies_t dependencies;
    int64_t bytes;
    /* By move, from 1 on: it waits for its resources, leaves them, or (`arrives`) comes. */
    xm_heap_node_t *nodes;
    bool *arrives;
    uint32_t events;
    uint32_t *waiting; /* by resource that sends, or is alone, and peer: a heap by move */
    uint64_t *peers;   /* by resource: of which peers moves wait, as bits */
    uint64_t *idle;    /* by kind: which are free, as bits */
    size_t width, words;
    bool *busy; /* by resource */
    double now;
    xm_status_t status;
} simulation_t;

static double bytes_of(const simulation_t *s, uint32_t m)
{
    return (double)xm_move_elements(s->program, &s->program->moves[m - 1], s->bytes);
}

static void occupied(simulation_t *s, uint32_t m, xm_occupied_t *use)
{
    const xm_move_t *move = &s->program->moves[m - 1];
    xm_status_t status = xm_interconnect_use(s->net, move->from, move->to, use);

    s->status = status < 0 ? status : s->status;
}

static size_t number(const simulation_t *s, int resource)
{
    return s->net->link != NULL ? 0 : (size_t)resource / 2 % (size_t)s->net->devices;
}

static uint64_t *idle(const simulation_t *s, int resource, bool opposite)
{
    size_t dimension = s->net->link != NULL ? 0 : (size_t)(resource / 2 / s->net->devices);

    return &s->idle[(2 * dimension + (size_t)(resource % 2 != opposite)) * s->words];
}

static void flip(uint64_t *bits, size_t bit)
{
    bits[bit / 64] ^= UINT64_C(1) << bit % 64;
}

static void occupy(simulation_t *s, const xm_occupied_t *use, bool busy)
{
    for (int r = 0; r < use->count; ++r) {
        s->busy[use->resource[r]] = busy;
        if (s->net->link == NULL) {
            flip(idle(s, use->resource[r], false), number(s, use->resource[r]));
        }
    }
}

static uint32_t *waiting(const simulation_t *s, int resource, size_t peer)
{
    if (peer < s->width - 1 && resource % 2 != 0) { /* it receives: the list is the peer's */
        size_t own = number(s, resource);

        return &s->waiting[((size_t)resource - 1 - 2 * own + 2 * peer) * s->width + own];
    }
    return &s->waiting[(size_t)resource * s->width + peer];
}

/* Where a move's resources are free it begins; else it waits. @p queued: it is the first of those
 * that wait for these, and now begins. */
static void begin(simulation_t *s, uint32_t m, bool queued)
{
    xm_occupied_t use;
    uint32_t *heap;
    bool free = true, was;

    occupied(s, m, &use);
    if (s->status < 0) {
        return;
    }
    heap = waiting(s, use.resource[0], use.count > 1 ? number(s, use.resource[1]) : s->width - 1);
    for (int r = 0; r < use.count; ++r) {
        free = free && !s->busy[use.resource[r]];
    }
    was = *heap != 0;
    if (queued) {
        (void)xm_heap_pop(s->nodes, heap);
    } else if (!free) {
        xm_heap_push(s->nodes, heap, m, 0);
    }
    for (int r = 0; r < use.count && was != (*heap != 0); ++r) {
        flip(&s->peers[(size_t)use.resource[r] * s->words],
             use.count > 1 ? number(s, use.resource[1 - r]) : s->width - 1);
    }
    if (free) {
        occupy(s, &use, true);
        xm_heap_push(s->nodes, &s->events, m,
                     s->now + use.dimension->overhead + bytes_of(s, m) / use.rate);
    }
}

static bool may_begin(const simulation_t *s, uint32_t move)
{
    return s->dependencies.send_waits[move] == 0 && s->dependencies.receive_waits[move] == 0;
}

/* All that has waited is counted first, so that a move whose two ends waited does not come after
 * later ones of the list. */
static void arrive(simulation_t *s, uint32_t m)
{
    const xm_dependencies_t *d = &s->dependencies;

    for (int64_t i = d->first[m - 1]; i < d->first[m]; ++i) {
        --(d->next[i] % 2 != 0 ? d->receive_waits : d->send_waits)[d->next[i] / 2];
    }
    for (int64_t i = d->first[m - 1]; i < d->first[m]; ++i) {
        uint32_t next = d->next[i] / 2;

        if (may_begin(s, next)) {
            d->send_waits[next] = -1; /* once */
            begin(s, next + 1, false);
        }
    }
}

/* The first of those that wait for a resource and only for it; 0 when there is none. */
static uint32_t first_of(const simulation_t *s, int resource, uint32_t first)
{
    const uint64_t *peers = &s->peers[(size_t)resource * s->words];
    const uint64_t *free = idle(s, resource, true);

    for (size_t w = 0; w < s->words; ++w) {
        for (uint64_t both = peers[w] & free[w]; both != 0; both &= both - 1) {
            uint32_t m = *waiting(s, resource, 64 * w + (size_t)__builtin_ctzll(both));

            first = first == 0 || m < first ? m : first;
        }
    }
    return first;
}

/* What is freed takes the first of those that can begin now. */
static void leave(simulation_t *s, uint32_t m)
{
    uint32_t next = m;
    xm_occupied_t use;

    occupied(s, m, &use);
    s->arrives[m] = true;
    xm_heap_push(s->nodes, &s->events, m,
                 s->now + use.dimension->latency +
                     (use.dimension->coding > 0 ? 2 * bytes_of(s, m) / use.dimension->coding : 0));
    occupy(s, &use, false);
    while (s->status == XM_OK && next != 0) {
        next = 0;
        for (int r = 0; r < use.count; ++r) {
            next = s->busy[use.resource[r]] ? next : first_of(s, use.resource[r], next);
        }
        if (next != 0) {
            begin(s, next, true);
        }
    }
}

static void run(simulation_t *s, double *seconds)
{
    for (size_t m = 0; m < s->program->count && s->status == XM_OK; ++m) {
        /* What the moves before have set off at this moment cannot be: nothing has ended yet. */
        if (may_begin(s, (uint32_t)m)) {
            begin(s, (uint32_t)m + 1, false);
        }
    }
    *seconds = 0;
    while (s->events != 0 && s->status == XM_OK) {
        uint32_t m = xm_heap_pop(s->nodes, &s->events);

        s->now = s->nodes[m].at;
        if (s->arrives[m]) {
            *seconds = s->now;
            arrive(s, m);
        } else {
            leave(s, m);
        }
    }
}

xm_status_t xm_program_simulate(const xm_program_t *program, const xm_interconnect_t *interconnect,
                                int64_t bytes, double *seconds)
{
    size_t resources = (size_t)xm_interconnect_resources(interconnect);
    size_t width = interconnect->link != NULL ? 1 : (size_t)interconnect->devices + 1;
    size_t words = (width + 63) / 64, kinds = 2 * XM_INTERCONNECT_MOST;
    xm_arena_t arena = {0};
    simulation_t s = {.program = program,
                      .net = interconnect,
                      .bytes = bytes,
                      .width = width,
                      .words = words,
                      .nodes = xm_arena_get(&arena, program->count + 1, sizeof(*s.nodes)),
                      .arrives = xm_arena_get(&arena, program->count + 1, sizeof(*s.arrives)),
                      .waiting = xm_arena_get(&arena, resources * width, sizeof(*s.waiting)),
                      .peers = xm_arena_get(&arena, resources * words, sizeof(*s.peers)),
                      .idle = xm_arena_take(&arena, kinds * words * sizeof(*s.idle)),
                      .busy = xm_arena_get(&arena, resources, sizeof(*s.busy))};

    s.status = xm_dependencies_find(program, &s.dependencies);
    if (s.status == XM_OK && arena.failed) {
        s.status = XM_NO_MEMORY("simulating %zu moves", program->count);
    }
    if (s.status == XM_OK) {
        memset(s.idle, 0xff, kinds * words * sizeof(*s.idle));
        run(&s, seconds);
    }
    xm_arena_clear(&arena);
    xm_dependencies_clear(&s.dependencies);
    return s.status;
}
