/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace for Perfetto and Chrome: a process for each rank, with rows for sends, receives
 * and copies, for what was planned of the first two, and for their chunks. Cases follow each other
 * on one time axis, since the format knows no separate runs.
 */
#include "bench/report/trace.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rb_trace {
    json_t *events;
    int named_ranks;  /* ranks below have their name in the trace */
    int64_t start_ns; /* where the next case starts on the time axis */
};

/* Rows of a rank. */
enum {
    ROW_SEND,
    ROW_RECEIVE,
    ROW_COPY,
    ROW_PLANNED_SEND,
    ROW_PLANNED_RECEIVE,
    ROW_SEND_CHUNK,
    ROW_RECEIVE_CHUNK,
    ROWS
};

/* Space between two cases on the time axis. */
static const int64_t gap_ns = 100000;

xm_status_t rb_trace_create(rb_trace_t **trace)
{
    rb_trace_t *created = calloc(1, sizeof(*created));

    if (created == NULL || (created->events = json_array()) == NULL) {
        free(created);
        return XM_NO_MEMORY("the trace");
    }
    *trace = created;
    return XM_OK;
}

/* Names are written once for each rank, also when later cases have more ranks. */
static void name_ranks(rb_trace_t *trace, const xm_network_t *network)
{
    static const char *const rows[] = {"send",           "receive",         "copy",
                                       "planned send",   "planned receive", "chunks sent",
                                       "chunks received"};

    for (int r = trace->named_ranks; r < xm_network_ranks(network); ++r) {
        char name[64];

        (void)snprintf(name, sizeof(name), "rank %d (host %d)", r, xm_network_host_of(network, r));
        (void)json_array_append_new(trace->events,
                                    json_pack("{s:s, s:s, s:i, s:{s:s}}", "name", "process_name",
                                              "ph", "M", "pid", r, "args", "name", name));
        for (int row = 0; row < ROWS; ++row) {
            (void)json_array_append_new(trace->events,
                                        json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name",
                                                  "thread_name", "ph", "M", "pid", r, "tid", row,
                                                  "args", "name", rows[row]));
        }
    }
    trace->named_ranks = xm_network_ranks(network);
}

/* An event of a hop, or of a chunk of it: measured at one end, or planned and then on a row of its
 * own. Times are microseconds in this format. */
static json_t *event(const rb_trace_t *trace, const rb_result_t *result, const rb_record_t *record,
                     bool planned)
{
    const xm_plan_t *plan = result->prepared->plan;
    const xm_transfer_t transfer = xm_plan_transfer(plan, record->transfer);
    const xm_route_t *route = xm_plan_route(plan, transfer.route);
    int sender = xm_hop_sender(&transfer, route, record->hop), receiver = route->ranks[record->hop];
    int row = record->rank == sender ? ROW_SEND : ROW_RECEIVE;
    uint64_t bytes = xm_plan_transfer_bytes(plan, record->transfer);
    int64_t elements = xm_plan_chunk_elements(plan, transfer.task);
    char name[64];

    if (sender == receiver) {
        row = ROW_COPY;
    } else if (planned) {
        row += ROW_PLANNED_SEND - ROW_SEND;
    } else if (record->chunk > 0) {
        row += ROW_SEND_CHUNK - ROW_SEND;
    }
    (void)snprintf(name, sizeof(name), "task %lld: %d to %d", (long long)transfer.task, sender,
                   receiver);
    if (record->chunk > 0) {
        int64_t all = transfer.end - transfer.first, left = all - elements * (record->chunk - 1);

        bytes = bytes / (uint64_t)all * (uint64_t)(left < elements ? left : elements);
        xm_text_list_add(name, sizeof(name), ", ", "chunk %lld", (long long)record->chunk);
    }
    return json_pack("{s:s, s:s, s:s, s:I, s:i, s:f, s:f, s:{s:I, s:i, s:I, s:I, s:I}}", "name",
                     name, "cat", result->prepared->one->name, "ph", "X", "pid",
                     (json_int_t)record->rank, "tid", row, "ts",
                     (double)(trace->start_ns + record->start_ns) * 1e-3, "dur",
                     (double)(record->end_ns - record->start_ns) * 1e-3, "args", "transfer",
                     (json_int_t)record->transfer, "hop", (int)record->hop, "parent",
                     (json_int_t)transfer.parent, "bytes", (json_int_t)bytes, "chunks",
                     (json_int_t)(record->chunk > 0 ? 1 : xm_plan_chunks(plan, record->transfer)));
}

/* Appends one event and moves the end of the case. */
static xm_status_t append(rb_trace_t *trace, const rb_result_t *result, const rb_record_t *record,
                          bool planned, int64_t *end)
{
    *end = record->end_ns > *end ? record->end_ns : *end;
    return json_array_append_new(trace->events, event(trace, result, record, planned)) == 0
               ? XM_OK
               : XM_NO_MEMORY("the trace");
}

/* The planned hops, each at both of its ends, beside those that were measured. */
static xm_status_t append_planned(rb_trace_t *trace, const rb_result_t *result,
                                  const xm_span_t *spans, int64_t *end)
{
    const xm_plan_t *plan = result->prepared->plan;

    for (int64_t t = 0; t < xm_plan_transfer_count(plan); ++t) {
        const xm_transfer_t transfer = xm_plan_transfer(plan, t);
        const xm_route_t *route = xm_plan_route(plan, transfer.route);

        for (int hop = 0; hop < route->count; ++hop, ++spans) {
            int ranks[] = {xm_hop_sender(&transfer, route, hop), route->ranks[hop]};

            for (int i = 0; ranks[0] != ranks[1] && i < 2; ++i) {
                XM_TRY(append(trace, result,
                              &(rb_record_t){.transfer = t,
                                             .hop = hop,
                                             .rank = ranks[i],
                                             .start_ns = spans->start_ns,
                                             .end_ns = spans->end_ns},
                              true, end));
            }
        }
    }
    return XM_OK;
}

/* The planned times are simulated anew, since plans do not keep them. */
static xm_status_t add_planned(rb_trace_t *trace, const rb_result_t *result, int64_t *end)
{
    const rb_prepared_t *prepared = result->prepared;
    xm_span_t *spans = malloc(((size_t)xm_plan_hops(prepared->plan) + 1) * sizeof(*spans));
    int64_t makespan;
    xm_status_t status = spans == NULL ? XM_NO_MEMORY("the trace")
                                       : xm_simulate(prepared->plan, prepared->network,
                                                     XM_SHARING_EXCLUSIVE, spans, &makespan);

    XM_THEN(status, append_planned(trace, result, spans, end));
    free(spans);
    return status;
}

/* The end of the longest rank decides where the next case starts. */
xm_status_t rb_trace_add(rb_trace_t *trace, const rb_result_t *result)
{
    int64_t end = 0;
    xm_status_t status = XM_OK;

    name_ranks(trace, result->prepared->network);
    for (size_t i = 0; status == XM_OK && i < result->record_count; ++i) {
        status = append(trace, result, &result->records[i], false, &end);
    }
    XM_THEN(status, add_planned(trace, result, &end));
    trace->start_ns += end + gap_ns;
    return status;
}

xm_status_t rb_trace_write(const rb_trace_t *trace, const char *path)
{
    json_t *root = json_pack("{s:O, s:s}", "traceEvents", trace->events, "displayTimeUnit", "ms");
    int failed = root == NULL ? -1 : json_dump_file(root, path, JSON_REAL_PRECISION(12));

    json_decref(root);
    return failed == 0 ? XM_OK
                       : xm_error_set(XM_ERR_IO, "cannot write %s: %s", path, strerror(errno));
}

void rb_trace_destroy(rb_trace_t *trace)
{
    if (trace != NULL) {
        json_decref(trace->events);
        free(trace);
    }
}
