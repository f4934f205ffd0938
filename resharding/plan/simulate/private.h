/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file private.h
 * What messages occupy, numbered: shared by the two disciplines of simulate.h. Not installed.
 */
#pragma once

#include "resharding/plan/simulate.h"

/* How long so many bytes take at a rate. */
typedef struct {
    double rate;
    uint64_t bytes;
    int64_t ns;
} xm_time_memo_t;

/* Every rail direction, uplink direction and device port has a number. */
typedef struct {
    const xm_network_t *network;
    int rails, racks, ranks;
    int count;
    int64_t nic_latency_ns, host_latency_ns;
    double *rate;           /* bytes/s */
    bool *moved;            /* scratch, all false */
    xm_time_memo_t memo[3]; /* of rails, uplinks and ports */
} xm_resources_t;

/* What one message occupies. */
typedef struct {
    int count;
    int resource[4];
    int64_t latency_ns;
} xm_use_t;

/* What the hops between two ranks of each route occupy; a hop from a transfer's sender, who is not
 * on the route, has an entry that is not used. */
typedef struct {
    xm_use_t *use;
    int64_t *first; /* by route */
} xm_hop_uses_t;

static inline const xm_use_t *xm_hop_use(const xm_hop_uses_t *uses, int route, int hop)
{
    return &uses->use[uses->first[route] + hop];
}

xm_status_t xm_resources_init(xm_resources_t *resources, const xm_network_t *network);
void xm_resources_clear(xm_resources_t *resources);
void xm_resources_use(const xm_resources_t *resources, int sender, int receiver, xm_use_t *use);

/* Time that so many bytes take, rounded up. */
int64_t xm_resource_ns(xm_resources_t *resources, int resource, uint64_t bytes);

/* ---- folded chains (fold.c) ----------------------------------------------------------
 */

enum { XM_FOLDED_LINES = 32 /* more than plans have different sizes of chunks, as a rule */ };

/* At hop h: start + slope · h. */
typedef struct {
    int64_t start, slope;
} xm_line_t;

/* A route whose later hops' times are not worked out. */
typedef struct {
    const xm_use_t *uses; /* by hop, but for the first */
    int hops;
    bool folded;
    int64_t busy;  /* of all messages since the times were known */
    int64_t slope; /* the largest of these messages' */
    int lines;
    xm_line_t line[XM_FOLDED_LINES]; /* slopes fall; what was added to `busy` before is taken off */
} xm_folded_t;

typedef struct {
    xm_resources_t *resources;
    const xm_hop_uses_t *uses;
    int64_t *free_at;    /* by resource: the simulation's */
    int *chain_of;       /* by route; 0: it cannot be folded */
    int *pending;        /* by resource: the folded chain that has its time, or 0 */
    xm_folded_t *chains; /* from 1 on */
    int count;
    int64_t makespan; /* of what has been unfolded */
} xm_fold_t;

/* Also after a failure it must be cleared. */
xm_status_t xm_fold_init(xm_fold_t *fold, const xm_plan_t *plan, xm_resources_t *resources,
                         const xm_hop_uses_t *uses, int64_t *free_at);
void xm_fold_clear(xm_fold_t *fold);

/* To be called before any message that is not folded uses these resources. */
void xm_fold_touch(xm_fold_t *fold, const xm_use_t *use);

/* True when a transfer that enters its route by such a first hop may be folded; then the caller
 * runs that hop and adds the messages, of at most two sizes. */
bool xm_fold_takes(xm_fold_t *fold, int route, const xm_use_t *first);

/* Adds so many equal messages, of which the first has started at hop 0 and each of the others
 * starts when the one before it leaves the hop. */
void xm_fold_add(xm_fold_t *fold, int route, int64_t start, int64_t busy, int64_t count);

/* Works out what is left. */
void xm_fold_end(xm_fold_t *fold);

/* Raises the makespan to what the processors of ranks and hosts need (processors.c), and all spans
 * in proportion; nothing where they are never the limit. */
xm_status_t xm_processors_slow(const xm_plan_t *plan, const xm_network_t *network, xm_span_t *spans,
                               int64_t *makespan_ns);

xm_status_t xm_simulate_fair(const xm_plan_t *plan, const xm_network_t *network, xm_span_t *spans,
                             int64_t *makespan_ns);
