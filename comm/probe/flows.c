/* SPDX-License-Identifier: Apache-2.0 */
/* Concurrent streams, for the capacity of NICs and of a host's fabric. A rate is only right
 * while all streams run, so it is taken from windows of time between a settling phase and the
 * end of the first stream, by clocks that start at a barrier. The bytes of a message are spread
 * over the time since the one before, since windows are short and messages end in bursts.
 * Streams end by marked last messages, so that no receive is left over and nothing has to be
 * cancelled in the good case. */
#include "comm/probe/flows.h"

#include <stdlib.h>
#include <string.h>

#include "comm/probe/compute.h"
#include "comm/probe/link.h"

enum {
    SLOTS = 4,      /* messages in flight of a stream */
    POOL = 8 << 20, /* bytes of a stream's messages at least, which take turns */
    KIND_FLOW = 3,  /* see xm_probe_tag() */
    FLOW_SHIFT = 20 /* a tag's sequence is the stream above this, the message below */
};

typedef struct run run_t;

/* This rank's end of one stream. */
typedef struct {
    run_t *run;
    const xm_probe_flow_t *flow;
    int index, peer;
    bool sends;
    unsigned char *buffer;            /* pool of messages */
    xm_probe_transfer_t slots[SLOTS]; /* message m uses slot m % SLOTS */
    unsigned char *place[SLOTS];      /* of the message in each slot */
    uint64_t next;                    /* message to post */
    uint64_t last;                    /* sender: the messages from this one on end the stream */
    unsigned closed;                  /* receiver: set of slots that got one of them */
    int64_t previous;                 /* when the last message came */
    xm_status_t failed;
} end_t;

struct run {
    xm_worker_t *worker;
    const xm_probe_flows_t *params;
    int64_t start, settle, window; /* ns */
    int64_t cpu;                   /* processor time, ns: at the start, then since then */
    size_t pool;                   /* together with those of the other streams, in no cache */
    uint64_t received;             /* messages */
    end_t *ends;
    int count;
    double bytes[XM_PROBE_GROUPS][XM_PROBE_WINDOWS], messages[XM_PROBE_GROUPS][XM_PROBE_WINDOWS];
};

/* Counts a message, with its bytes spread evenly over the time since the last one. */
static void count_message(end_t *end, int64_t now)
{
    run_t *run = end->run;
    double span = (double)(now - end->previous);

    /* Bytes that come before this rank's clock has started are not counted. */
    for (int w = 0; run->start > 0 && span > 0 && w < XM_PROBE_WINDOWS; ++w) {
        int64_t from = run->start + run->settle + w * run->window, to = from + run->window;

        run->messages[end->flow->group][w] += now >= from && now < to;
        from = from > end->previous ? from : end->previous;
        to = to < now ? to : now;
        if (to > from) {
            run->bytes[end->flow->group][w] +=
                (double)run->params->bytes * (double)(to - from) / span;
        }
    }
    end->previous = now;
}

static unsigned char *message(const end_t *end, uint64_t number)
{
    return end->buffer + xm_probe_place(end->run->pool, end->run->params->bytes, number);
}

/* Called from the transport's progress; a failure is only noted here. */
static void ended(xm_probe_transfer_t *transfer)
{
    end_t *end = transfer->owner;

    if (transfer->status < 0) {
        end->failed = transfer->status;
    } else if (!end->sends) {
        size_t slot = (size_t)(transfer - end->slots);

        count_message(end, xm_worker_now(end->run->worker));
        ++end->run->received;
        end->closed |= (unsigned)(end->place[slot][0] != 0) << slot;
    }
}

/* Posts the next message of a stream. The first byte of a sent one tells the receiver whether
 * it belongs to the last ones. */
static xm_status_t post(end_t *end)
{
    run_t *run = end->run;
    xm_probe_transfer_t *slot = &end->slots[end->next % SLOTS];
    unsigned char *buffer = message(end, end->next);
    uint64_t tag = xm_probe_tag(KIND_FLOW, (uint64_t)end->index << FLOW_SHIFT |
                                               (end->next & ((1U << FLOW_SHIFT) - 1)));
    xm_transport_t *transport = xm_worker_transport(run->worker);
    xm_status_t status;

    end->place[end->next % SLOTS] = buffer;
    ++end->next;
    if (end->sends) {
        buffer[0] = end->next > end->last;
        status = xm_transport_send(transport, end->peer, tag, buffer, run->params->bytes, NULL,
                                   xm_probe_begin(slot));
    } else {
        status = xm_transport_receive(transport, end->peer, tag, buffer, run->params->bytes, NULL,
                                      xm_probe_begin(slot));
    }
    status = xm_probe_posted(slot, status);
    return status < 0 ? xm_probe_blame(run->worker, end->peer, status) : XM_OK;
}

/* A sender is over when it has sent all last messages, a receiver's slot when it has got one. */
static bool is_over(const end_t *end)
{
    return end->sends ? end->last != UINT64_MAX && end->next >= end->last + SLOTS
                      : (end->closed >> end->next % SLOTS & 1U) != 0;
}

/* Posts what can be posted. *open: the stream goes on; *ready: more can be posted at once. The
 * last SLOTS messages of a stream say so in their first byte; the receiver posts no more into a
 * slot that got one, so they fill exactly what is posted. */
static xm_status_t advance(end_t *end, int64_t now, bool *open, bool *ready)
{
    const run_t *run = end->run;
    xm_status_t status = XM_OK;

    if (end->failed < 0) {
        (void)xm_error_set(end->failed, "a message with rank %d ended with '%s'", end->peer,
                           xm_status_string(end->failed));
        return xm_probe_blame(run->worker, end->peer, end->failed);
    }
    if (end->sends && end->last == UINT64_MAX &&
        now >= run->start + run->settle + XM_PROBE_WINDOWS * run->window) {
        end->last = end->next;
    }
    for (int i = 0; status == XM_OK && i < SLOTS; ++i) {
        if (is_over(end) || end->slots[end->next % SLOTS].in_flight) {
            break;
        }
        status = post(end);
    }
    *ready = *ready || (!is_over(end) && !end->slots[end->next % SLOTS].in_flight);
    *open = *open || (end->sends ? !is_over(end) : end->closed + 1 < 1U << SLOTS);
    for (int i = 0; i < SLOTS; ++i) {
        *open = *open || end->slots[i].in_flight;
    }
    return status;
}

/* Runs all streams of this rank until they are over. The deadline is that of any wait, counted
 * from the planned end. */
static xm_status_t stream(run_t *run)
{
    int64_t deadline = run->start + run->settle + XM_PROBE_WINDOWS * run->window +
                       (int64_t)(1e9 * xm_worker_timeout(run->worker));
    xm_status_t status = XM_OK;

    for (;;) {
        int64_t now = xm_worker_now(run->worker);
        bool open = false, ready = false;

        for (int i = 0; status == XM_OK && i < run->count; ++i) {
            status = advance(&run->ends[i], now, &open, &ready);
        }
        if (status < 0 || !open) {
            return status;
        }
        /* Sends that end at once leave nothing to wait for, so progress is made instead of
         * sleeping. */
        status = ready ? xm_worker_progress(run->worker) : xm_worker_wait(run->worker, deadline);
        if (status < 0) {
            return xm_error_prefix(status, "probe, %d streams", run->params->count);
        }
    }
}

/* The last messages are still in the slots, so they are what is compared: every slot has one. */
static xm_status_t check_data(const run_t *run)
{
    unsigned char *expected = malloc(run->pool);
    xm_status_t status = XM_OK;

    if (expected == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "probe: no memory for %zu bytes", run->pool);
    }
    for (int i = 0; status == XM_OK && i < run->count; ++i) {
        if (!run->ends[i].sends) {
            xm_probe_fill(expected, run->pool, (uint64_t)run->ends[i].peer);
            for (int slot = 0; status == XM_OK && slot < SLOTS; ++slot) {
                const unsigned char *place = run->ends[i].place[slot];
                unsigned char *sent = expected + (place - run->ends[i].buffer);

                sent[0] = 1;
                status = xm_probe_compare(run->ends[i].peer, place, sent, run->params->bytes);
            }
        }
    }
    free(expected);
    return status;
}

/* Makes this rank's ends; on failure those made so far are counted and freed by the caller. */
static xm_status_t make_ends(run_t *run)
{
    const xm_probe_flows_t *params = run->params;
    int rank = xm_worker_rank(run->worker);

    run->ends = calloc((size_t)params->count + 1, sizeof(*run->ends));
    if (run->ends == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "probe: out of memory");
    }
    for (int f = 0; f < params->count; ++f) {
        const xm_probe_flow_t *flow = &params->flows[f];
        end_t *end = &run->ends[run->count];

        if (flow->sender != rank && flow->receiver != rank) {
            continue;
        }
        *end = (end_t){.run = run,
                       .flow = flow,
                       .index = f,
                       .sends = flow->sender == rank,
                       .peer = flow->sender == rank ? flow->receiver : flow->sender,
                       .last = UINT64_MAX,
                       .buffer = malloc(run->pool)};
        ++run->count;
        if (end->buffer == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "probe: no memory for messages of %zu bytes",
                                params->bytes);
        }
        xm_probe_fill(end->buffer, run->pool, (uint64_t)rank);
        for (int i = 0; i < SLOTS; ++i) {
            end->slots[i].ended = ended;
            end->slots[i].owner = end;
        }
    }
    return XM_OK;
}

/* Buffers that the transport still has are leaked rather than freed under it. */
static void free_ends(run_t *run)
{
    bool all = true;

    for (int i = 0; i < run->count; ++i) {
        end_t *end = &run->ends[i];

        if (xm_probe_cancel(xm_worker_transport(run->worker), end->slots, SLOTS)) {
            free(end->buffer);
        } else {
            all = false; /* the transport still owns operations and buffers */
        }
    }
    if (all) {
        free(run->ends);
    }
}

/* Starts all: receivers post before the senders start, and all clocks start at the same barrier. */
static xm_status_t start(run_t *run)
{
    xm_status_t status = XM_OK;

    for (int i = 0; status == XM_OK && i < run->count; ++i) {
        for (int slot = 0; status == XM_OK && !run->ends[i].sends && slot < SLOTS; ++slot) {
            status = post(&run->ends[i]);
        }
    }
    XM_THEN(status, xm_worker_barrier(run->worker));
    run->start = xm_worker_now(run->worker);
    run->cpu = xm_clock_cpu_ns();
    for (int i = 0; i < run->count; ++i) {
        run->ends[i].previous = run->start;
    }
    return status;
}

/* Adds up what all ranks received, and their processor time with the bytes that it was for. Rank
 * 0's clock is the last word, for the budget; the loop over all words leaves it in no sum that is
 * used. */
static xm_status_t share(const run_t *run, xm_probe_windows_t *windows)
{
    enum { CELLS = XM_PROBE_GROUPS * XM_PROBE_WINDOWS, CPU = 2 * CELLS, BYTES, ELAPSED, WORDS };
    size_t ranks = (size_t)xm_worker_size(run->worker);
    uint64_t own[WORDS], *all = malloc(ranks * sizeof(own));
    double sums[WORDS] = {0};
    xm_status_t status;

    if (all == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "probe: out of memory");
    }
    for (int i = 0; i < CELLS; ++i) {
        own[i] = xm_probe_word(run->bytes[i / XM_PROBE_WINDOWS][i % XM_PROBE_WINDOWS]);
        own[CELLS + i] = xm_probe_word(run->messages[i / XM_PROBE_WINDOWS][i % XM_PROBE_WINDOWS]);
    }
    /* Ranks that only wait for the others have no part in what a byte costs. */
    own[CPU] = xm_probe_word(run->count > 0 ? 1e-9 * (double)run->cpu : 0);
    own[BYTES] = xm_probe_word((double)run->received * (double)run->params->bytes);
    own[ELAPSED] = xm_probe_word(*run->params->elapsed);
    status = xm_worker_allgather(run->worker, own, all, sizeof(own));
    for (size_t i = 0; status == XM_OK && i < ranks * WORDS; ++i) {
        sums[i % WORDS] += xm_probe_number(&all[i]);
    }
    if (status == XM_OK) {
        for (int i = 0; i < CELLS; ++i) {
            int group = i / XM_PROBE_WINDOWS, window = i % XM_PROBE_WINDOWS;

            windows->rate[group][window] = sums[i] / run->params->window;
            windows->messages[group][window] = sums[CELLS + i];
        }
        windows->cpu = sums[BYTES] > 0 ? sums[CPU] / sums[BYTES] : 0;
        *run->params->elapsed = xm_probe_number(&all[ELAPSED]);
    }
    free(all);
    return status;
}

/* Collective. A rank that fails does not take part in the sharing, so the others fail in it. */
xm_status_t xm_probe_flows_run(xm_worker_t *worker, const xm_probe_flows_t *params,
                               xm_probe_windows_t *windows)
{
    run_t run = {.worker = worker,
                 .params = params,
                 .settle = (int64_t)(1e9 * params->settle),
                 .window = (int64_t)(1e9 * params->window),
                 .pool = xm_probe_cold_bytes(2 * params->count, 2 * SLOTS * params->bytes > POOL
                                                                    ? 2 * SLOTS * params->bytes
                                                                    : POOL)};
    xm_status_t status = make_ends(&run);

    XM_THEN(status, start(&run));
    if (status == XM_OK) {
        status = stream(&run);
        run.cpu = xm_clock_cpu_ns() - run.cpu;
    }
    XM_THEN(status, check_data(&run));
    free_ends(&run);
    return status < 0 ? status : share(&run, windows);
}
