/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file random_case.h
 * Seeded random resharding problems, the pattern that fills their tensors, and a naive reference
 * check.
 */
#pragma once

#include "comm/base/random.h"
#include "tests/resharding/plan/plan_lists.h"

typedef xm_random_t random_t;

/* Uniform in [low, high]. */
int random_int(random_t *random, int low, int high);

typedef struct {
    int ranks;
    int host_of_rank[32];
    xm_layout_t *src, *dst;
    int64_t element_size;
    xm_network_t *network;
} random_case_t;

/* Any meshes (disjoint or overlapping, any axes), specs, shapes and partitions (random cut points
 * of explicit ones, empty parts among them) on up to 24 ranks. */
void random_case_create(random_t *random, random_case_t *c);
/* The same on a given number of ranks, `per_host` of them on each host. */
void random_case_create_for(random_t *random, int ranks, int per_host, random_case_t *c);
void random_case_destroy(random_case_t *c);
/* Text for failure messages. Static buffer. */
const char *random_case_text(const random_case_t *c);

enum { RANDOM_BATCH_TENSORS = 4 };

/* A batch of tensors on one network, and parameters that plan it. */
typedef struct {
    int ranks, hosts;
    int host_of_rank[32];
    int count;
    xm_tensor_t tensors[RANDOM_BATCH_TENSORS];
    xm_network_t *network;
    xm_plan_params_t params; /* refers to the members above, so the batch must stay where it is */
} random_batch_t;

/* Layouts as above, up to 4 tensors; hosts with NICs of their own rates, racks with uplinks,
 * latencies; any strategy and scheduler, any chunk size, small node budgets. */
void random_batch_create(random_t *random, random_batch_t *batch);
void random_batch_destroy(random_batch_t *batch);
const char *random_batch_text(const random_batch_t *batch);

/* A layout from texts as on a command line, on ranks 0, 1, 2, … */
xm_layout_t *layout_from_text(const char *mesh, const char *spec, const char *shape,
                              xm_partition_t partition);

/* Byte b of the element at a global row-major index, different for every seed. */
unsigned char pattern_byte(uint64_t seed, int64_t index, int64_t b);
/* Fills the buffer of a rank's tile element by element from global coordinates. */
void pattern_fill(const xm_layout_t *layout, int rank, int64_t element_size, uint64_t seed,
                  void *buffer);
/* Number of bytes of a rank's tile that are not the pattern's. */
int64_t pattern_wrong(const xm_layout_t *layout, int rank, int64_t element_size, uint64_t seed,
                      const void *buffer);

/* Parts of a plan, one by one. */
static inline int64_t plan_transfer_count(const xm_plan_t *plan)
{
    return xm_plan_transfer_count(plan);
}

static inline const xm_transfer_t *plan_transfer_at(const xm_plan_t *plan, int64_t index)
{
    return &plan->builder.transfers[index];
}

static inline const xm_unit_task_t *plan_task_at(const xm_plan_t *plan, int64_t index)
{
    return &plan->tasks[index];
}
