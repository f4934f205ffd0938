/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each rank goes through its sends and its receives in the order of the list, and looks a window
 * ahead for those that need not wait. The first move of the list that has not ended is always in
 * the windows of both its ends, so a program cannot get stuck.
 */
#include "resharding/collective/run.h"

#include <stdlib.h>
#include <string.h>

enum { WINDOW = 64 };

typedef struct run run_t;

/* A move under way. */
typedef struct {
    xm_op_t op;
    run_t *run;
    uint8_t *staging; /* of receives: what is added comes here */
    size_t room;
    uint32_t move;
    bool busy;
} slot_t;

/* A rank's sends, or its receives. */
typedef struct {
    uint32_t *moves;
    size_t count, first; /* first: not ended */
    bool *posted, *ended;
    slot_t slots[WINDOW];
} side_t;

struct run {
    const xm_program_t *program;
    const xm_dependencies_t *dependencies;
    xm_worker_t *worker;
    xm_transport_t *transport;
    const xm_element_t *element;
    uint8_t *data;
    int64_t elements;
    int *waits[2]; /* by end and move: sends, receives */
    side_t side[2];
    xm_status_t status;
};

static uint8_t *bytes_of(const run_t *run, const xm_move_t *move, int64_t *count)
{
    int64_t first = xm_program_first(run->program, move->chunk, run->elements);

    *count = xm_program_first(run->program, move->chunk + move->count, run->elements) - first;
    return run->data + (size_t)first * run->element->size;
}

/* What waits for this move at this rank waits for one less. */
static void release(run_t *run, uint32_t m)
{
    const xm_dependencies_t *d = run->dependencies;
    int rank = xm_worker_rank(run->worker);

    for (int64_t i = d->first[m]; i < d->first[m + 1]; ++i) {
        const xm_move_t *next = &run->program->moves[d->next[i] / 2];
        int end = (int)(d->next[i] % 2);

        if ((end == 0 ? next->from : next->to) == rank) {
            --run->waits[end][d->next[i] / 2];
        }
    }
}

static void end_move(slot_t *slot, xm_status_t status)
{
    run_t *run = slot->run;
    const xm_move_t *move = &run->program->moves[slot->move];
    bool receives = slot >= run->side[1].slots && slot < run->side[1].slots + WINDOW;
    side_t *side = &run->side[receives];
    int64_t count;
    uint8_t *place = bytes_of(run, move, &count);

    slot->busy = false;
    if (status < 0) {
        run->status = run->status == XM_OK ? status : run->status;
        return;
    }
    if (receives && move->reduce) {
        run->element->add(place, slot->staging, count);
    }
    for (size_t i = side->first; i < side->count; ++i) {
        if (side->moves[i] == slot->move) {
            side->ended[i] = true;
            break;
        }
    }
    while (side->first < side->count && side->ended[side->first]) {
        ++side->first;
    }
    release(run, slot->move);
}

static void on_done(xm_op_t *op, xm_status_t status)
{
    end_move(op->arg, status);
}

static xm_status_t stage(slot_t *slot, size_t bytes)
{
    return xm_array_reserve(&slot->staging, &slot->room, bytes, 1)
               ? XM_OK
               : XM_NO_MEMORY("%zu bytes to be added", bytes);
}

static xm_status_t post(run_t *run, slot_t *slot, uint32_t m, bool receives)
{
    const xm_move_t *move = &run->program->moves[m];
    int64_t count;
    uint8_t *place = bytes_of(run, move, &count);
    size_t bytes = (size_t)count * run->element->size;
    xm_status_t status = XM_OK;

    slot->op = (xm_op_t){.done = on_done, .arg = slot};
    slot->run = run;
    slot->move = m;
    slot->busy = true;
    if (receives && move->reduce) {
        status = stage(slot, bytes);
        place = slot->staging;
    }
    if (status == XM_OK && bytes > 0) { /* there may be more chunks than elements */
        status =
            receives
                ? xm_transport_receive(run->transport, move->from, m, place, bytes, NULL, &slot->op)
                : xm_transport_send(run->transport, move->to, m, place, bytes, NULL, &slot->op);
    }
    if (status != XM_IN_PROGRESS) {
        end_move(slot, status);
    }
    return run->status;
}

/* Posts what can be; true when something was. */
static bool advance(run_t *run, int receives)
{
    side_t *side = &run->side[receives];
    bool any = false;
    int slot = 0;

    for (size_t i = side->first;
         i < side->count && i < side->first + WINDOW && run->status == XM_OK; ++i) {
        if (side->posted[i] || run->waits[receives][side->moves[i]] > 0) {
            continue;
        }
        while (slot < WINDOW && side->slots[slot].busy) {
            ++slot;
        }
        if (slot == WINDOW) {
            break;
        }
        side->posted[i] = any = true;
        (void)post(run, &side->slots[slot], side->moves[i], receives != 0);
    }
    return any;
}

static xm_status_t prepare(run_t *run)
{
    const xm_program_t *p = run->program;
    int rank = xm_worker_rank(run->worker);

    for (int end = 0; end < 2; ++end) {
        const xm_dependencies_t *d = run->dependencies;
        side_t *side = &run->side[end];

        run->waits[end] = malloc((p->count + 1) * sizeof(int));
        side->moves = malloc((p->count + 1) * sizeof(*side->moves));
        side->posted = calloc(p->count + 1, sizeof(*side->posted));
        side->ended = calloc(p->count + 1, sizeof(*side->ended));
        if (run->waits[end] == NULL || side->moves == NULL || side->posted == NULL ||
            side->ended == NULL) {
            return XM_NO_MEMORY("running %zu moves", p->count);
        }
        memcpy(run->waits[end], end == 0 ? d->send_waits : d->receive_waits,
               p->count * sizeof(int));
        for (size_t m = 0; m < p->count; ++m) {
            if ((end == 0 ? p->moves[m].from : p->moves[m].to) == rank) {
                side->moves[side->count++] = (uint32_t)m;
            }
        }
    }
    return XM_OK;
}

static bool is_under_way(const run_t *run)
{
    for (int end = 0; end < 2; ++end) {
        for (int s = 0; s < WINDOW; ++s) {
            if (run->side[end].slots[s].busy) {
                return true;
            }
        }
    }
    return false;
}

/* Nothing may touch the caller's memory any more. */
static void cancel_all(run_t *run)
{
    for (int end = 0; end < 2; ++end) {
        for (int s = 0; s < WINDOW; ++s) {
            if (run->side[end].slots[s].busy) {
                xm_transport_cancel(run->transport, &run->side[end].slots[s].op);
            }
        }
    }
    if (is_under_way(run)) {
        xm_transport_fence(run->transport);
    }
}

static void go(run_t *run)
{
    int64_t deadline = xm_worker_deadline(run->worker);

    while (run->status == XM_OK &&
           (run->side[0].first < run->side[0].count || run->side[1].first < run->side[1].count)) {
        bool any = advance(run, 1);

        any = advance(run, 0) || any;
        if (!any && run->status == XM_OK) {
            xm_status_t status = xm_worker_wait(run->worker, deadline);

            run->status = run->status == XM_OK ? status : run->status;
        }
    }
    if (run->status < 0) {
        xm_error_t error;

        xm_error_save(&error, run->status);
        cancel_all(run);
        run->status = xm_error_restore(&error);
    }
}

xm_status_t xm_program_run(const xm_program_t *program, const xm_dependencies_t *dependencies,
                           xm_worker_t *worker, const xm_element_t *element, void *data,
                           int64_t elements)
{
    run_t *run;
    xm_status_t status;

    if (program->nodes != program->devices || program->devices != xm_worker_size(worker)) {
        return XM_INVALID("a program of %d nodes does not run on %d ranks", program->nodes,
                          xm_worker_size(worker));
    }
    run = calloc(1, sizeof(*run));
    if (run == NULL) {
        return XM_NO_MEMORY("running a program");
    }
    run->program = program;
    run->dependencies = dependencies;
    run->worker = worker;
    run->transport = xm_worker_transport(worker);
    run->element = element;
    run->data = data;
    run->elements = elements;
    run->status = prepare(run);
    if (run->status == XM_OK) {
        go(run);
    }
    for (int end = 0; end < 2; ++end) {
        for (int s = 0; s < WINDOW; ++s) {
            free(run->side[end].slots[s].staging);
        }
        free(run->waits[end]);
        free(run->side[end].moves);
        free(run->side[end].posted);
        free(run->side[end].ended);
    }
    status = run->status;
    free(run);
    return status;
}
