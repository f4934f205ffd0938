/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads out of an executor when the hops of one rank ran, for traces and figures. Times
 * are relative to the start of the run, so those of ranks with different clocks can be
 * shown together.
 */
#include "bench/run/records.h"

#include <stdlib.h>

/* Calls of rb_records_take() for one rank: counts, then lists. */
typedef struct {
    const xm_executor_t *executor;
    int rank;
    int64_t start_ns;
    rb_record_t *records; /* NULL: count only */
    size_t count;
} taker_t;

void rb_chunk_times_note(void *arg, int64_t transfer, int hop, int64_t chunk, xm_span_t span)
{
    rb_chunk_times_t *times = arg;

    if (!XM_ARRAY_ROOM(times->records, times->room, times->count)) {
        return;
    }
    times->records[times->count++] = (rb_record_t){.transfer = transfer,
                                                   .hop = hop,
                                                   .chunk = chunk + 1,
                                                   .start_ns = span.start_ns,
                                                   .end_ns = span.end_ns};
}

static void take_chunks(taker_t *taker, const rb_chunk_times_t *times)
{
    for (size_t i = 0; i < times->count; ++i) {
        rb_record_t *record = &taker->records[taker->count++];

        *record = times->records[i];
        record->rank = taker->rank;
        record->start_ns -= taker->start_ns;
        record->end_ns -= taker->start_ns;
    }
}

static void take_hop(taker_t *taker, int64_t transfer, int hop, int64_t number)
{
    xm_span_t span;

    if (taker->records != NULL) {
        xm_executor_span(taker->executor, number, &span);
        taker->records[taker->count] = (rb_record_t){.transfer = transfer,
                                                     .hop = hop,
                                                     .rank = taker->rank,
                                                     .start_ns = span.start_ns - taker->start_ns,
                                                     .end_ns = span.end_ns - taker->start_ns};
    }
    ++taker->count;
}

/* Goes through the plan's hops in the order of their numbers; a rank has those that it
 * sends or receives. */
static void take_hops(taker_t *taker, const xm_plan_t *plan)
{
    int64_t number = 0;

    taker->count = 0;
    for (int64_t t = 0; t < xm_plan_transfer_count(plan); ++t) {
        const xm_transfer_t transfer = xm_plan_transfer(plan, t);
        const xm_route_t *route = xm_plan_route(plan, transfer.route);

        for (int i = 0; i < route->count; ++i, ++number) {
            if (route->ranks[i] == taker->rank ||
                xm_hop_sender(&transfer, route, i) == taker->rank) {
                take_hop(taker, t, i, number);
            }
        }
    }
}

xm_status_t rb_records_take(const xm_plan_t *plan, const xm_executor_t *executor, int rank,
                            int64_t start_ns, const rb_chunk_times_t *times, rb_record_t **records,
                            size_t *count)
{
    taker_t taker = {.executor = executor, .rank = rank, .start_ns = start_ns};

    take_hops(&taker, plan);
    taker.records = malloc((taker.count + times->count + 1) * sizeof(*taker.records));
    XM_NEED_MEMORY(taker.records, "%zu records", taker.count);
    take_hops(&taker, plan);
    take_chunks(&taker, times);
    *records = taker.records;
    *count = taker.count;
    return XM_OK;
}
