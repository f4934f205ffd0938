/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that several operators read. Private.
 *
 * What is resharded for one reader serves the others: a copy of the tensor in another spec is made
 * once, and every reader takes from the tensor or from the copy whichever is cheaper. So k, v and q
 * share one gather of their input, and a gradient's two products share theirs. Where a
 * network has a memory limit each reader has a copy of its own there, since a copy that waits for a
 * later reader takes memory.
 */
#pragma once

#include "planner/intra_op/symmetric.h"

/* Tensors that are made and read by the same terms of the same classes. Specs are numbered. */
typedef struct ap_shard_shared {
    int count;   /* of such tensors */
    int readers; /* of each */
    int *wire;   /* per reader: the first tensor's */
    int specs;
    ap_spec_t *spec;
    double *cost; /* [from][to]: of resharding one tensor */
    int options;  /* a spec that the tensor is made in, and the copy's; equal: there is none */
    int *made, *copy;
} ap_shard_shared_t;

typedef struct ap_shard_sharing {
    int groups;
    ap_shard_shared_t *group;
    bool *covers;    /* per wire: a group has it */
    int *next;       /* per wire: the tensor's next one, or -1 */
    ap_spec_t *used; /* room for a spec per reader */
} ap_shard_sharing_t;

/* With `share` false there are no groups. */
xm_status_t ap_shard_sharing_create(const ap_shard_problem_t *problem,
                                    const ap_shard_symmetric_t *alike, bool share,
                                    ap_shard_sharing_t *sharing);
void ap_shard_sharing_release(ap_shard_sharing_t *sharing);

/* What the readers of one such tensor pay, which is made in a spec and read in one for each. */
double ap_shard_shared_cost(const ap_shard_shared_t *group, ap_spec_t made, const ap_spec_t *used);
