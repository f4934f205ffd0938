/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the tensors of a graph are in memory: operators run in the order of the graph, operator o at
 * time o. Private.
 *
 * What an operator makes live ranges from then to its last use; inputs and parameters all the time,
 * but what a loop starts from without data only while the loop runs;
 * gradients of parameters all the time when several micro-batches are summed into them. What has no
 * buffer (planner/intra_op/fusion.h) lives never.
 *
 * The forward part is cut into *segments* where little passes on: layers, if there are any. What
 * an operator of a segment makes and the rest of the graph needs can be given up at `pause`, its
 * last use in the forward part, and *computed again* at `resume`, just before the segment's
 * backward part. Its operands must be there then: computed again with the same segment, or kept.
 */
#pragma once

#include "planner/intra_op/symmetric.h"

typedef struct ap_shard_live_range {
    int begin, end;    /* [begin, end) */
    int pause, resume; /* [pause, resume) can be left out; empty where nothing can */
    bool needed;       /* after that, and not only to compute others again */
} ap_shard_live_range_t;

typedef struct ap_shard_live_ranges {
    int turn; /* the first operator of the backward pass; all of them when there is none */
    ap_shard_live_range_t *of; /* per tensor */
    bool *again;               /* per operator: what it makes may be computed again */
    bool *spare;               /* per operator: only others that are would need what it makes */
    int *segment;              /* per operator of the forward part */
} ap_shard_live_ranges_t;

/*
 * Tensors of less than `least_bytes`, all of a class together, are not worth recomputing; HUGE_VAL:
 * none is. Either all of a class may be recomputed or none.
 */
xm_status_t ap_shard_live_ranges_create(const ap_shard_problem_t *problem,
                                        const ap_shard_symmetric_t *alike, double least_bytes,
                                        xm_arena_t *arena, ap_shard_live_ranges_t *live_ranges);
