/*
 * What a run is doing, for people: the watchdog's lines (execute.h), and the one thing that a rank
 * waits for, for the sentence of a passed deadline. It reads what the executor has anyway; nothing
 * is written down for it during a run but the time at which a chunk was posted.
 */
#include <inttypes.h>
#include <stdio.h>

#include "resharding/execute/carrier.h"
#include "resharding/execute/turns.h"

enum { MOST_LINES = 24 };

typedef struct {
    const xm_executor_t *executor;
    const xm_worker_t *worker;
    void (*line)(void *arg, const char *text);
    void *arg;
    int lines, left_out;
} report_t;

static void write_line(report_t *report, const char *text)
{
    if (report->lines < MOST_LINES) {
        ++report->lines;
        report->line(report->arg, text);
    } else {
        ++report->left_out;
    }
}

/* "rank 3 (host b)" */
static char *name_peer(const report_t *report, int peer, char *buffer, size_t size)
{
    if (report->worker == NULL) {
        (void)snprintf(buffer, size, "rank %d", peer);
    } else {
        (void)snprintf(
            buffer, size, "rank %d (host %.64s)", peer,
            xm_worker_host_name(report->worker, xm_worker_host_of(report->worker, peer)));
    }
    return buffer;
}

/* "tensor W, transfer 17, hop 42" */
static char *name_hop(const xm_executor_t *executor, const hop_t *hop, char *buffer, size_t size)
{
    (void)snprintf(buffer, size, "tensor %.100s, transfer %" PRId64 ", hop %" PRId64,
                   xm_plan_tensor_name(executor->plan, hop->tensor), hop->transfer, hop->number);
    return buffer;
}

/* The chunks of a lane that are under way; the oldest one's hop and age are given. */
static void describe_flight(report_t *report, const lane_t *lane)
{
    const xm_executor_t *executor = report->executor;
    const slot_t *slot = &lane->slots[lane->oldest];
    const hop_t *hop = slot->hop;
    int64_t element = executor->tensors[hop->tensor].element_size;
    int64_t bytes = (hop->end - hop->first) * element;
    int64_t moved = min_of(slot->chunk * hop->chunk * element, bytes);
    double age = (double)(xm_transport_now(executor->transport) - slot->posted_ns) * 1e-9;
    char peer[128], name[256], path[128], text[1024];

    xm_transport_path(executor->transport, lane->peer, path, sizeof(path));
    (void)snprintf(text, sizeof(text),
                   "waits for %s: %s, chunk %" PRId64 " of %" PRId64
                   " %s it, posted %.1f s ago, %d in flight, %" PRId64 " of %" PRId64
                   " bytes moved%s%s",
                   name_peer(report, lane->peer, peer, sizeof(peer)),
                   name_hop(executor, hop, name, sizeof(name)), slot->chunk + 1, hop->chunks,
                   lane_sends(lane) ? "to" : "from", age, lane->in_flight, moved, bytes,
                   path[0] != '\0' ? ", over " : "", path);
    write_line(report, text);
}

/* A lane that has nothing under way although it is not at its end. */
static void describe_halt(report_t *report, const lane_t *lane)
{
    const xm_executor_t *executor = report->executor;
    const hop_t *hop = &executor->hops[lane->items[lane->next_item]];
    char peer[128], name[256], text[1024];
    const char *reason = "a free pack buffer, or others that leave the host";

    if (executor->turns != NULL && xm_turns_waits(executor->turns, hop)) {
        reason = "its turn on the NIC";
    } else if (hop->feed >= 0 &&
               executor->hops[hop->feed].arrived < hop->first + lane->next_chunk * hop->chunk + 1) {
        reason = "what it passes on to arrive here";
    }
    (void)snprintf(text, sizeof(text),
                   "has not begun chunk %" PRId64 " of %" PRId64 " %s %s: %s; it waits for %s",
                   lane->next_chunk + 1, hop->chunks, lane_sends(lane) ? "to" : "from",
                   name_peer(report, lane->peer, peer, sizeof(peer)),
                   name_hop(executor, hop, name, sizeof(name)), reason);
    write_line(report, text);
}

static void describe_turns(report_t *report)
{
    const xm_executor_t *executor = report->executor;
    int64_t next = 0;
    xm_turn_t turn;
    char peer[128], name[256], text[512];

    while (executor->turns != NULL && xm_turns_next(executor->turns, &next, &turn)) {
        if (turn.hop != NULL) {
            (void)snprintf(text, sizeof(text), "waits for %s to pass the turn for %s",
                           name_peer(report, turn.peer, peer, sizeof(peer)),
                           name_hop(executor, turn.hop, name, sizeof(name)));
            write_line(report, text);
        }
    }
}

static bool describe_carriers(const xm_executor_t *executor, char *buffer, size_t size)
{
    bool described = false;

    for (int c = 0; c < CARRIERS && !described; ++c) {
        described = executor->carriers[c]->describe != NULL &&
                    executor->carriers[c]->describe(executor, buffer, size);
    }
    return described;
}

void xm_executor_describe(const xm_executor_t *executor, const xm_worker_t *worker,
                          void (*line)(void *arg, const char *text), void *arg)
{
    report_t report = {.executor = executor, .worker = worker, .line = line, .arg = arg};
    char text[512];

    for (int sends = 0; sends < 2;
         ++sends) { /* missing arrivals say more than blocked departures */
        for (int l = 0; l < executor->lane_count; ++l) {
            const lane_t *lane = &executor->lanes[l];

            if (lane_sends(lane) != (sends != 0)) {
                continue;
            }
            if (lane->in_flight > 0) {
                describe_flight(&report, lane);
            } else if (lane->next_item < lane->item_count) {
                describe_halt(&report, lane);
            }
        }
    }
    describe_turns(&report);
    if (describe_carriers(executor, text, sizeof(text))) {
        write_line(&report, text);
    }
    if (report.left_out > 0) {
        (void)snprintf(text, sizeof(text), "and %d more", report.left_out);
        report.line(report.arg, text);
    }
}

static void describe_last_turn(const xm_executor_t *executor, char *buffer, size_t size)
{
    int64_t next = 0;
    xm_turn_t turn;

    while (executor->turns != NULL && xm_turns_next(executor->turns, &next, &turn)) {
        if (turn.hop != NULL) {
            (void)snprintf(buffer, size,
                           "waits for rank %d to pass the turn for transfer %" PRId64
                           " (tensor %.100s)",
                           turn.peer, turn.hop->transfer,
                           xm_plan_tensor_name(executor->plan, turn.hop->tensor));
        } else {
            (void)snprintf(buffer, size, "passes a turn to rank %d", turn.peer);
        }
    }
}

/* What says most comes last: it overwrites what has been written before. */
char *xm_executor_describe_wait(const xm_executor_t *executor, char *buffer, size_t size)
{
    if (!describe_carriers(executor, buffer, size)) {
        (void)snprintf(buffer, size, "has nothing in flight");
    }
    describe_last_turn(executor, buffer, size);
    for (int i = 0; i < executor->lane_count; ++i) {
        const lane_t *lane = &executor->lanes[i];
        const slot_t *slot = &lane->slots[lane->oldest];

        if (lane->in_flight > 0) {
            char path[128];

            xm_transport_path(executor->transport, lane->peer, path, sizeof(path));
            (void)snprintf(buffer, size,
                           "waits for chunk %" PRId64 " of %" PRId64 " of transfer %" PRId64
                           " (tensor %.100s) %s rank %d%s%s",
                           slot->chunk + 1, slot->hop->chunks, slot->hop->transfer,
                           xm_plan_tensor_name(executor->plan, slot->hop->tensor),
                           lane_sends(lane) ? "to" : "from", lane->peer,
                           path[0] != '\0' ? " over " : "", path);
            if (!lane_sends(lane)) {
                break; /* a missing arrival says more than a blocked departure */
            }
        }
    }
    return buffer;
}
