/* SPDX-License-Identifier: Apache-2.0 */
/* From event to event: moves leave their ports or links, and arrive. */
#include "resharding/collective/simulate.h"

#include <math.h>
#include <stdlib.h>

/* A move leaves its resources, or (`arrives`) has come. */
typedef struct {
    double at;
    uint32_t move;
    bool arrives;
} event_t;

typedef struct {
    uint32_t *moves; /* a heap: the first of the list on top */
    size_t count, room;
} queue_t;

typedef struct {
    const xm_program_t *program;
    const xm_interconnect_t *net;
    xm_dependencies_t dependencies;
    xm_occupied_t *use; /* by move; without a dimension until it is first asked for */
    int64_t bytes;
    event_t *events; /* a heap by time, then by move */
    size_t count, room;
    queue_t *waiting; /* by resource: moves that could begin but for it */
    bool *busy;       /* by resource */
    double *credit;   /* by resource: bytes of its burst that were left at `since` */
    double *since;
    double *processor; /* when each is free */
    double now;
    size_t arrived;
    xm_status_t status;
} simulation_t;

static bool earlier(const event_t *a, const event_t *b)
{
    return a->at < b->at || (!(b->at < a->at) && a->move < b->move);
}

static void push_event(simulation_t *s, event_t event)
{
    size_t i = s->count;

    if (!xm_array_reserve(&s->events, &s->room, s->count + 1, sizeof(event))) {
        s->status = XM_NO_MEMORY("simulating %zu moves", s->program->count);
        return;
    }
    for (++s->count; i > 0 && earlier(&event, &s->events[(i - 1) / 2]); i = (i - 1) / 2) {
        s->events[i] = s->events[(i - 1) / 2];
    }
    s->events[i] = event;
}

static event_t pop_event(simulation_t *s)
{
    event_t top = s->events[0], last = s->events[--s->count];
    size_t i = 0;

    for (size_t child = 1; child < s->count; i = child, child = 2 * i + 1) {
        child += child + 1 < s->count && earlier(&s->events[child + 1], &s->events[child]);
        if (!earlier(&s->events[child], &last)) {
            break;
        }
        s->events[i] = s->events[child];
    }
    s->events[i] = last;
    return top;
}

static void push_move(simulation_t *s, queue_t *queue, uint32_t move)
{
    size_t i = queue->count;

    if (!xm_array_reserve(&queue->moves, &queue->room, queue->count + 1, sizeof(move))) {
        s->status = XM_NO_MEMORY("simulating %zu moves", s->program->count);
        return;
    }
    for (++queue->count; i > 0 && move < queue->moves[(i - 1) / 2]; i = (i - 1) / 2) {
        queue->moves[i] = queue->moves[(i - 1) / 2];
    }
    queue->moves[i] = move;
}

static void pop_move(queue_t *queue)
{
    uint32_t last = queue->moves[--queue->count];
    size_t i = 0;

    for (size_t child = 1; child < queue->count; i = child, child = 2 * i + 1) {
        child += child + 1 < queue->count && queue->moves[child + 1] < queue->moves[child];
        if (last <= queue->moves[child]) {
            break;
        }
        queue->moves[i] = queue->moves[child];
    }
    queue->moves[i] = last;
}

/* When so many bytes have passed the resources, beginning now. What is left of all their bursts
 * takes no time; while bytes flow, as much is added as they take. */
static double pass(simulation_t *s, const xm_occupied_t *use, double bytes)
{
    double most = use->dimension->burst / use->dimension->ratio, free = fmin(most, bytes), end;

    for (int r = 0; r < use->count; ++r) {
        int at = use->resource[r];

        s->credit[at] = fmin(most, s->credit[at] + (s->now - s->since[at]) * use->rate);
        free = fmin(free, s->credit[at]);
    }
    end = s->now + use->dimension->overhead + (bytes - free) / use->rate;
    for (int r = 0; r < use->count; ++r) {
        s->credit[use->resource[r]] -= free;
        s->since[use->resource[r]] = end;
    }
    return end;
}

/* When a move that leaves its resources now has come. */
static double arrival(simulation_t *s, const xm_dimension_t *d, double bytes)
{
    double *first = s->processor, end = s->now;

    for (int i = 1; i < s->net->processors; ++i) {
        first = s->processor[i] < *first ? &s->processor[i] : first;
    }
    if (s->net->processors > 0) {
        end = *first = fmax(*first, s->now) + d->message + bytes * d->cpu;
    }
    return end + d->latency + (d->coding > 0 ? 2 * bytes / d->coding : 0);
}

static double bytes_of(const simulation_t *s, const xm_move_t *move)
{
    return (double)(xm_program_first(s->program, move->chunk + move->count, s->bytes) -
                    xm_program_first(s->program, move->chunk, s->bytes));
}

/* Begins a move, or lets it wait for the first of its resources that is busy. Between two that are
 * mostly busy it goes to and fro, so what it occupies is worked out only once. */
static void begin(simulation_t *s, uint32_t m)
{
    const xm_move_t *move = &s->program->moves[m];
    xm_occupied_t *use = &s->use[m];

    if (use->dimension == NULL &&
        (s->status = xm_interconnect_use(s->net, move->from, move->to, use)) < 0) {
        return;
    }
    for (int r = 0; r < use->count; ++r) {
        if (s->busy[use->resource[r]]) {
            push_move(s, &s->waiting[use->resource[r]], m);
            return;
        }
    }
    for (int r = 0; r < use->count; ++r) {
        s->busy[use->resource[r]] = true;
    }
    push_event(s, (event_t){pass(s, use, bytes_of(s, move)), m, false});
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

    ++s->arrived;
    for (int64_t i = d->first[m]; i < d->first[m + 1]; ++i) {
        --(d->next[i] % 2 != 0 ? d->receive_waits : d->send_waits)[d->next[i] / 2];
    }
    for (int64_t i = d->first[m]; i < d->first[m + 1]; ++i) {
        uint32_t next = d->next[i] / 2;

        if (may_begin(s, next)) {
            d->send_waits[next] = -1; /* once */
            begin(s, next);
        }
    }
}

/* A freed resource takes the first of those that wait and can begin; those whose other end is busy
 * wait there from now on. */
static void leave(simulation_t *s, uint32_t m)
{
    const xm_occupied_t *use = &s->use[m];
    double bytes = bytes_of(s, &s->program->moves[m]);

    push_event(s, (event_t){arrival(s, use->dimension, bytes), m, true});
    for (int r = 0; r < use->count; ++r) {
        s->busy[use->resource[r]] = false;
    }
    while (s->status == XM_OK) {
        queue_t *next = NULL;

        for (int r = 0; r < use->count; ++r) {
            queue_t *queue = &s->waiting[use->resource[r]];

            if (queue->count > 0 && !s->busy[use->resource[r]] &&
                (next == NULL || queue->moves[0] < next->moves[0])) {
                next = queue;
            }
        }
        if (next == NULL) {
            return;
        }
        uint32_t first = next->moves[0];

        pop_move(next);
        begin(s, first);
    }
}

static void run(simulation_t *s, double *seconds)
{
    for (size_t m = 0; m < s->program->count && s->status == XM_OK; ++m) {
        /* What the moves before have set off at this moment cannot be: nothing has ended yet. */
        if (may_begin(s, (uint32_t)m)) {
            begin(s, (uint32_t)m);
        }
    }
    *seconds = 0;
    while (s->count > 0 && s->status == XM_OK) {
        event_t event = pop_event(s);

        s->now = event.at;
        if (event.arrives) {
            *seconds = s->now;
            arrive(s, event.move);
        } else {
            leave(s, event.move);
        }
    }
}

xm_status_t xm_program_simulate(const xm_program_t *program, const xm_interconnect_t *interconnect,
                                int64_t bytes, double *seconds)
{
    size_t resources = (size_t)xm_interconnect_resources(interconnect);
    simulation_t s = {.program = program,
                      .net = interconnect,
                      .bytes = bytes,
                      .use = calloc(program->count + 1, sizeof(*s.use)),
                      .waiting = calloc(resources, sizeof(*s.waiting)),
                      .busy = calloc(resources, sizeof(*s.busy)),
                      .credit = calloc(resources, sizeof(*s.credit)),
                      .since = calloc(resources, sizeof(*s.since)),
                      .processor =
                          calloc((size_t)interconnect->processors + 1, sizeof(*s.processor))};

    s.status = xm_dependencies_find(program, &s.dependencies);
    if (s.status == XM_OK && (s.use == NULL || s.waiting == NULL || s.busy == NULL ||
                              s.credit == NULL || s.since == NULL || s.processor == NULL)) {
        s.status = XM_NO_MEMORY("simulating %zu moves", program->count);
    }
    for (size_t r = 0; s.status == XM_OK && r < resources; ++r) {
        s.credit[r] = INFINITY; /* as much as there can be */
    }
    if (s.status == XM_OK) {
        run(&s, seconds);
    }
    for (size_t r = 0; s.waiting != NULL && r < resources; ++r) {
        free(s.waiting[r].moves);
    }
    free(s.processor);
    free(s.since);
    free(s.credit);
    free(s.waiting);
    free(s.use);
    free(s.busy);
    free(s.events);
    xm_dependencies_clear(&s.dependencies);
    return s.status;
}
