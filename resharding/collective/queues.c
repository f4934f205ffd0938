/* SPDX-License-Identifier: Apache-2.0 */
/* From frame to frame: frames leave the sender's port, and then the receiver's. */
#include "resharding/collective/queues.h"

#include <math.h>
#include <stdlib.h>

#include "comm/transport.h"
#include "resharding/collective/heap.h"

/* SEGMENT: bytes that TCP gives a NIC at once; FRAME: of an announcement or an answer, with what
 * Ethernet and TCP add. */
enum { SEGMENT = 64 * 1024, SEGMENTS = 2, FRAME = 120 };

/* When nothing has ended for so many seconds, ranks send one move more (run.c). */
static const double stall = 1;

/* START, GRANT, DATA, ALL: frames, in the words of comm/transport/rails. COME: processors are done
 * with a message. TAKEN: a receive ends. */
typedef enum { START, GRANT, DATA, ALL, COME, TAKEN } kind_t;

typedef struct {
    uint32_t move;
    kind_t kind;
    bool arrives; /* else it leaves its sender's port */
    double bytes;
} event_t;

typedef struct {
    double left, come;  /* bytes not in the port's queue yet, and those that have come */
    uint32_t ready;     /* the next of its rank's list, + 1 */
    bool started, here; /* announced; all has come */
    bool granted, taken;
} state_t;

typedef struct {
    const xm_program_t *program;
    const xm_interconnect_t *net;
    xm_dependencies_t dependencies;
    int64_t bytes;
    xm_heap_node_t *nodes; /* of events */
    event_t *events;
    size_t count, nodes_room, events_room;
    uint32_t heap, unused; /* unused: a list by `left` */
    state_t *states;       /* by move */
    double *busy_until;    /* by port, if it had no burst */
    double *processor;     /* when each is free */
    uint32_t *ready;       /* by rank: a list of moves that may be sent, + 1 */
    int *sends, *last;     /* by rank, as in run.c */
    double now;
    size_t ended;
    xm_status_t status;
} queues_t;

static double bytes_of(const queues_t *q, uint32_t m)
{
    return (double)xm_move_elements(q->program, &q->program->moves[m], q->bytes);
}

static void add_event(queues_t *q, double at, event_t event)
{
    uint32_t number = q->unused;

    if (number != 0) {
        q->unused = q->nodes[number].left;
    } else {
        number = (uint32_t)++q->count;
        if (!XM_ARRAY_ROOM(q->nodes, q->nodes_room, q->count) ||
            !XM_ARRAY_ROOM(q->events, q->events_room, q->count)) {
            q->status = XM_NO_MEMORY("simulating %zu moves", q->program->count);
            return;
        }
    }
    q->events[number] = event;
    xm_heap_push(q->nodes, &q->heap, number, at);
}

static bool goes_back(kind_t kind)
{
    return kind == GRANT || kind == ALL;
}

static void occupied(queues_t *q, uint32_t m, bool back, xm_occupied_t *use)
{
    const xm_move_t *move = &q->program->moves[m];
    xm_status_t status = xm_interconnect_use(q->net, back ? move->to : move->from,
                                             back ? move->from : move->to, use);

    q->status = status < 0 ? status : q->status;
}

/* When a frame that comes to a port now leaves it. What it let pass at once after a pause is as if
 * it had come earlier. */
static double pass(queues_t *q, const xm_occupied_t *use, int end, double bytes)
{
    double *until = &q->busy_until[use->resource[end]];

    *until = fmax(*until, q->now - use->dimension->burst / use->rate) + bytes / use->rate;
    return fmax(q->now, *until);
}

static void send_frame(queues_t *q, uint32_t m, kind_t kind, double bytes)
{
    xm_occupied_t use;

    occupied(q, m, goes_back(kind), &use);
    add_event(q, pass(q, &use, 0, bytes), (event_t){m, kind, false, bytes});
}

static void send_segment(queues_t *q, uint32_t m)
{
    double bytes = fmin(q->states[m].left, SEGMENT);

    q->states[m].left -= bytes;
    send_frame(q, m, DATA, bytes);
}

static void send_data(queues_t *q, uint32_t m)
{
    q->states[m].left = bytes_of(q, m);
    for (int i = 0; i < SEGMENTS && (i == 0 || q->states[m].left > 0); ++i) {
        send_segment(q, m);
    }
}

/* Inside a host there are no frames: UCX itself announces there, which takes no time. */
static bool in_frames(queues_t *q, uint32_t m)
{
    xm_occupied_t use;

    occupied(q, m, false, &use);
    return use.dimension != &q->net->dimension[0];
}

/* A message's receiver grants it once its receive is posted, and takes it when nothing is waited
 * for: what is added has memory of its own before. */
static void receive(queues_t *q, uint32_t m)
{
    state_t *state = &q->states[m];
    bool free = q->dependencies.receive_waits[m] == 0;

    if (state->started && !state->granted && (free || q->program->moves[m].reduce)) {
        state->granted = true;
        send_frame(q, m, GRANT, FRAME);
    }
    if (state->here && !state->taken && free) {
        state->taken = true;
        add_event(q, q->now, (event_t){m, TAKEN, true, 0});
    }
}

static void add_ready(queues_t *q, uint32_t m)
{
    uint32_t *list = &q->ready[q->program->moves[m].from];

    q->states[m].ready = *list;
    *list = m + 1;
}

/* A move has ended at one of its ends. */
static void end_at(queues_t *q, uint32_t m, int rank)
{
    xm_dependencies_t *d = &q->dependencies;

    ++q->ended;
    for (int64_t i = d->first[m]; i < d->first[m + 1]; ++i) {
        uint32_t next = d->next[i] / 2;
        const xm_move_t *move = &q->program->moves[next];

        if (d->next[i] % 2 == 0 && move->from == rank && --d->send_waits[next] == 0) {
            add_ready(q, next);
        } else if (d->next[i] % 2 != 0 && move->to == rank && --d->receive_waits[next] == 0) {
            receive(q, next);
        }
    }
}

/* The place in a rank's list of what it sends next, as run.c chooses; NULL: nothing. */
static uint32_t *choose(queues_t *q, int rank, bool stuck)
{
    int ranks = q->program->devices, least = INT32_MAX;
    uint32_t *best = NULL;

    for (uint32_t *at = &q->ready[rank]; *at != 0; at = &q->states[*at - 1].ready) {
        int behind = (q->program->moves[*at - 1].to - rank + ranks) % ranks;
        int after = stuck ? 0 : (behind - q->last[rank] - 1 + ranks) % ranks;

        if (after < least || (after == least && *at < *best)) {
            best = at;
            least = after;
        }
    }
    return q->sends[rank] == 0 || stuck ? best : NULL;
}

static void send_ready(queues_t *q, int rank, bool stuck)
{
    const int ranks = q->program->devices;
    uint32_t *place;

    while (q->status == XM_OK && (place = choose(q, rank, stuck)) != NULL) {
        uint32_t m = *place - 1;
        bool is_long = bytes_of(q, m) >= XM_TRANSPORT_EAGER;

        stuck = false;
        *place = q->states[m].ready;
        q->last[rank] = (q->program->moves[m].to - rank + ranks) % ranks;
        q->sends[rank] += is_long;
        if (is_long && in_frames(q, m)) {
            send_frame(q, m, START, FRAME);
        } else {
            send_data(q, m);
        }
        if (!is_long) {
            end_at(q, m, rank);
        }
    }
}

static void end_send(queues_t *q, uint32_t m)
{
    int rank = q->program->moves[m].from;

    --q->sends[rank];
    end_at(q, m, rank);
    send_ready(q, rank, false);
}

/* When the processors have done what a message costs them. */
static double processed(queues_t *q, const xm_dimension_t *d, double bytes)
{
    double *first = q->processor;

    for (int i = 1; i < q->net->processors; ++i) {
        first = q->processor[i] < *first ? &q->processor[i] : first;
    }
    if (q->net->processors == 0) {
        return q->now;
    }
    *first = fmax(*first, q->now) + d->message + bytes * d->cpu;
    return *first;
}

static void arrive(queues_t *q, const event_t *event, const xm_dimension_t *dimension)
{
    uint32_t m = event->move;
    state_t *state = &q->states[m];
    double bytes = bytes_of(q, m);

    switch (event->kind) {
    case START:
        state->started = true;
        receive(q, m);
        return;
    case GRANT:
        send_data(q, m);
        return;
    case DATA:
        state->come += event->bytes;
        if (state->come >= bytes) {
            add_event(q, processed(q, dimension, bytes), (event_t){m, COME, true, 0});
        }
        return;
    case ALL:
        end_send(q, m);
        return;
    case COME:
        state->here = true;
        if (bytes >= XM_TRANSPORT_EAGER && in_frames(q, m)) {
            send_frame(q, m, ALL, FRAME);
        } else if (bytes >= XM_TRANSPORT_EAGER) {
            end_send(q, m);
        }
        receive(q, m);
        return;
    default:
        end_at(q, m, q->program->moves[m].to);
        send_ready(q, q->program->moves[m].to, false);
    }
}

static void run(queues_t *q)
{
    for (size_t m = 0; m < q->program->count; ++m) {
        if (q->dependencies.send_waits[m] == 0) {
            add_ready(q, (uint32_t)m);
        }
    }
    for (int r = 0; r < q->program->devices; ++r) {
        send_ready(q, r, false);
    }
    while (q->ended < 2 * q->program->count && q->status == XM_OK) {
        if (q->heap == 0) { /* the first move that has not ended can always be sent */
            q->now += stall;
            for (int r = 0; r < q->program->devices; ++r) {
                send_ready(q, r, true);
            }
            continue;
        }
        uint32_t number = xm_heap_pop(q->nodes, &q->heap);
        event_t event = q->events[number];
        xm_occupied_t use;

        q->now = q->nodes[number].at;
        q->nodes[number].left = q->unused;
        q->unused = number;
        occupied(q, event.move, goes_back(event.kind), &use);
        if (event.arrives) {
            arrive(q, &event, use.dimension);
            continue;
        }
        if (event.kind == DATA && q->states[event.move].left > 0) {
            send_segment(q, event.move);
        }
        event.arrives = true;
        add_event(q, pass(q, &use, 1, event.bytes) + use.dimension->latency, event);
    }
}

xm_status_t xm_program_simulate_queues(const xm_program_t *program,
                                       const xm_interconnect_t *interconnect, int64_t bytes,
                                       double *seconds)
{
    size_t ports = (size_t)xm_interconnect_resources(interconnect);
    size_t ranks = (size_t)program->devices;
    xm_arena_t arena = {0};
    queues_t q = {.program = program,
                  .net = interconnect,
                  .bytes = bytes,
                  .states = xm_arena_get(&arena, program->count + 1, sizeof(*q.states)),
                  .busy_until = xm_arena_take(&arena, ports * sizeof(*q.busy_until)),
                  .processor = xm_arena_get(&arena, (size_t)interconnect->processors + 1,
                                            sizeof(*q.processor)),
                  .ready = xm_arena_get(&arena, ranks, sizeof(*q.ready)),
                  .sends = xm_arena_get(&arena, ranks, sizeof(*q.sends)),
                  .last = xm_arena_get(&arena, ranks, sizeof(*q.last))};

    q.status = program->nodes != program->devices || interconnect->link != NULL
                   ? XM_INVALID("ranks run programs of devices with ports only")
                   : xm_dependencies_find(program, &q.dependencies);
    if (q.status == XM_OK && arena.failed) {
        q.status = XM_NO_MEMORY("simulating %zu moves", program->count);
    }
    for (size_t p = 0; p < ports && q.status == XM_OK; ++p) {
        q.busy_until[p] = -INFINITY;
    }
    if (q.status == XM_OK) {
        run(&q);
    }
    *seconds = q.now;
    xm_arena_clear(&arena);
    free(q.events);
    free(q.nodes);
    xm_dependencies_clear(&q.dependencies);
    return q.status;
}
