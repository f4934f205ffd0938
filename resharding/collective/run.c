/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank receives whatever it may: what is added comes into memory of its own, so only the adding
 * waits. It sends one move at a time, and goes round the ranks with it,
 * beginning behind itself: a burst of all sends at once would lose packets where many meet, and all
 * would begin with the same receiver. When nothing has ended for a while, the first move of its
 * list that has not is sent besides. So the first of all ranks' moves is under way then, and a
 * program cannot get stuck.
 */
#include "resharding/collective/run.h"

#include <stdlib.h>
#include <string.h>

typedef struct run run_t;

static const int64_t stall_timeout_ns = 1000000000;

/* A move with an end at this rank. */
typedef struct {
    xm_op_t op;
    run_t *run;
    uint8_t *staging; /* of receives: what is added comes here */
    uint32_t move;
    int waits;                   /* for so many moves */
    bool posted, arrived, ended; /* arrived: not added yet */
} slot_t;

struct run {
    const xm_program_t *program;
    const xm_dependencies_t *dependencies;
    xm_worker_t *worker;
    xm_transport_t *transport;
    const xm_element_t *element;
    uint8_t *data;
    int64_t elements;
    slot_t *slots; /* in the order of the list */
    size_t count, ended, first_send;
    uint32_t *place; /* of a move among the slots */
    uint32_t *ready; /* slots that wait for nothing and are not posted */
    size_t readies;
    int sends, last; /* sends under way; how far the last one's receiver is behind this rank */
    int64_t since;   /* when the last move ended */
    xm_status_t status;
};

static uint8_t *bytes_of(const run_t *run, const xm_move_t *move, int64_t *count)
{
    int64_t first = xm_program_first(run->program, move->chunk, run->elements);

    *count = xm_move_elements(run->program, move, run->elements);
    return run->data + (size_t)first * run->element->size;
}

static bool sends(const slot_t *slot)
{
    return slot->run->program->moves[slot->move].from == xm_worker_rank(slot->run->worker);
}

static bool adds(const slot_t *slot)
{
    return !sends(slot) && slot->run->program->moves[slot->move].reduce;
}

static void end_move(slot_t *slot, xm_status_t status);

/* A move waits for nothing any more. */
static void let_go(slot_t *slot)
{
    run_t *run = slot->run;

    if (slot->arrived) {
        end_move(slot, XM_OK);
    } else if (!adds(slot)) {
        run->ready[run->readies++] = (uint32_t)(slot - run->slots);
    }
}

/* What waits for this move at this rank waits for one less. */
static void release(run_t *run, uint32_t m)
{
    const xm_dependencies_t *d = run->dependencies;
    int rank = xm_worker_rank(run->worker);

    for (int64_t i = d->first[m]; i < d->first[m + 1]; ++i) {
        const xm_move_t *next = &run->program->moves[d->next[i] / 2];

        if ((d->next[i] % 2 == 0 ? next->from : next->to) == rank) {
            slot_t *slot = &run->slots[run->place[d->next[i] / 2]];

            if (--slot->waits == 0) {
                let_go(slot);
            }
        }
    }
}

static void end_move(slot_t *slot, xm_status_t status)
{
    run_t *run = slot->run;
    const xm_move_t *move = &run->program->moves[slot->move];
    int64_t count;
    uint8_t *place = bytes_of(run, move, &count);

    slot->ended = true;
    run->since = xm_worker_now(run->worker);
    run->sends -= sends(slot);
    if (status < 0) {
        XM_THEN(run->status, status);
        return;
    }
    if (slot->staging != NULL) {
        run->element->add(place, slot->staging, count);
        free(slot->staging);
        slot->staging = NULL;
    }
    ++run->ended;
    while (run->first_send < run->count &&
           (run->slots[run->first_send].ended || !sends(&run->slots[run->first_send]))) {
        ++run->first_send;
    }
    release(run, slot->move);
}

static void on_done(xm_op_t *op, xm_status_t status)
{
    slot_t *slot = op->arg;

    slot->posted = false;
    slot->arrived = status == XM_OK && slot->waits > 0;
    if (!slot->arrived) {
        end_move(slot, status);
    }
}

static void post(run_t *run, slot_t *slot)
{
    const xm_move_t *move = &run->program->moves[slot->move];
    bool is_send = sends(slot);
    int64_t count;
    uint8_t *place = bytes_of(run, move, &count);
    size_t bytes = (size_t)count * run->element->size;
    xm_status_t status = XM_OK;

    slot->op = (xm_op_t){.done = on_done, .arg = slot};
    slot->posted = true;
    run->sends += is_send;
    if (adds(slot) && bytes > 0) {
        place = slot->staging = malloc(bytes);
        status = place != NULL ? XM_OK : XM_NO_MEMORY("%zu bytes to be added", bytes);
    }
    if (status == XM_OK && bytes > 0) { /* there may be more chunks than elements */
        status = is_send ? xm_transport_send(run->transport, move->to, slot->move, place, bytes,
                                             NULL, &slot->op)
                         : xm_transport_receive(run->transport, move->from, slot->move, place,
                                                bytes, NULL, &slot->op);
    }
    if (status != XM_IN_PROGRESS) {
        on_done(&slot->op, status);
    }
}

static bool is_stuck(const run_t *run)
{
    return xm_worker_now(run->worker) - run->since >= stall_timeout_ns;
}

/* The next that is ready to be posted: a receive, the first of the list when that alone may help,
 * or the send whose receiver comes soonest behind the last one's; `readies` when there is none. */
static size_t choose(const run_t *run)
{
    int ranks = run->program->devices, least = INT32_MAX;
    bool stuck = is_stuck(run);
    size_t best = run->readies;

    for (size_t i = 0; i < run->readies; ++i) {
        const slot_t *slot = &run->slots[run->ready[i]];
        int to = run->program->moves[slot->move].to - xm_worker_rank(run->worker) + ranks;
        int after = (to - run->last - 1 + ranks) % ranks;

        if (!sends(slot) || (stuck && run->ready[i] == run->first_send)) {
            return i;
        }
        if (run->sends == 0 &&
            (after < least || (after == least && run->ready[i] < run->ready[best]))) {
            best = i;
            least = after;
        }
    }
    return best;
}

/* Posts what can be; true when something was. */
static bool advance(run_t *run)
{
    bool any = false;
    size_t next;

    while (run->status == XM_OK && (next = choose(run)) < run->readies) {
        slot_t *slot = &run->slots[run->ready[next]];

        if (sends(slot)) {
            run->last = (run->program->moves[slot->move].to - xm_worker_rank(run->worker) +
                         run->program->devices) %
                        run->program->devices;
        }
        run->ready[next] = run->ready[--run->readies];
        post(run, slot);
        any = true;
    }
    return any;
}

static xm_status_t prepare(run_t *run)
{
    const xm_program_t *p = run->program;
    const xm_dependencies_t *d = run->dependencies;
    int rank = xm_worker_rank(run->worker);

    run->place = malloc((p->count + 1) * sizeof(*run->place));
    for (size_t m = 0; m < p->count && run->place != NULL; ++m) {
        run->place[m] = (uint32_t)run->count;
        run->count += p->moves[m].from == rank || p->moves[m].to == rank;
    }
    run->slots = calloc(run->count + 1, sizeof(*run->slots));
    run->ready = malloc((run->count + 1) * sizeof(*run->ready));
    if (run->place == NULL || run->slots == NULL || run->ready == NULL) {
        return XM_NO_MEMORY("running %zu moves", p->count);
    }
    for (size_t m = 0; m < p->count; ++m) {
        bool is_send = p->moves[m].from == rank;

        if (is_send || p->moves[m].to == rank) {
            run->slots[run->place[m]] =
                (slot_t){.run = run,
                         .move = (uint32_t)m,
                         .waits = (is_send ? d->send_waits : d->receive_waits)[m]};
        }
    }
    for (size_t i = 0; i < run->count; ++i) {
        if (run->slots[i].waits == 0 || adds(&run->slots[i])) {
            run->ready[run->readies++] = (uint32_t)i;
        }
    }
    while (run->first_send < run->count && !sends(&run->slots[run->first_send])) {
        ++run->first_send;
    }
    return XM_OK;
}

/* Nothing may touch the caller's memory any more. */
static void cancel_all(run_t *run)
{
    bool under_way = false;

    for (int pass = 0; pass < 2; ++pass) {
        under_way = false;
        for (size_t s = 0; s < run->count; ++s) {
            if (run->slots[s].posted) {
                under_way = true;
                if (pass == 0) {
                    xm_transport_cancel(run->transport, &run->slots[s].op);
                }
            }
        }
    }
    if (under_way) {
        xm_transport_fence(run->transport);
    }
}

static void go(run_t *run)
{
    int64_t deadline = xm_worker_deadline(run->worker);

    while (run->status == XM_OK && run->ended < run->count) {
        if (!advance(run) && run->status == XM_OK) {
            int64_t until = is_stuck(run) ? deadline : run->since + stall_timeout_ns;
            xm_status_t status = xm_worker_wait(run->worker, until < deadline ? until : deadline);
            bool again = status == XM_ERR_TIMEOUT && until < deadline;

            run->status = run->status == XM_OK && !again ? status : run->status;
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
    XM_NEED_MEMORY(run, "running a program");
    run->program = program;
    run->dependencies = dependencies;
    run->worker = worker;
    run->transport = xm_worker_transport(worker);
    run->element = element;
    run->data = data;
    run->elements = elements;
    run->since = xm_worker_now(worker);
    run->status = prepare(run);
    if (run->status == XM_OK) {
        go(run);
    }
    for (size_t i = 0; run->slots != NULL && i < run->count; ++i) {
        free(run->slots[i].staging);
    }
    free(run->ready);
    free(run->slots);
    free(run->place);
    status = run->status;
    free(run);
    return status;
}
