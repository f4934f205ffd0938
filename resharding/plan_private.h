/**
 * @file plan_private.h
 * The parts of a plan, for the files of this folder that build and check it. Not installed.
 */
#ifndef XM_RESHARDING_PLAN_PRIVATE_H
#define XM_RESHARDING_PLAN_PRIVATE_H

#include "resharding/plan.h"

enum { XM_DIGEST_TEXT = 33 };

struct xm_plan {
    xm_layout_t *src, *dst;
    int64_t element_size;
    xm_strategy_t strategy;
    xm_scheduler_t scheduler;
    xm_unit_task_t *tasks;
    int64_t task_count;
    int64_t *chunk_elements; /* by task */
    xm_transfer_t *transfers;
    int64_t transfer_count, transfer_capacity;
    uint64_t net_bytes;
    int64_t bound_ns, makespan_ns;
    char digest[XM_DIGEST_TEXT];
};

/* One piece of work for a scheduler: a unit task's box must reach these receivers over the network.
 */
typedef struct {
    int64_t task;
    int64_t bytes;
    const int *receivers; /* ranks on hosts that hold no copy */
    int receiver_count;
    int sender_host; /* the scheduler's choice: a host that holds a copy */
} xm_work_t;

/* Schedulers choose work[i].sender_host and put the work into its order. */
xm_status_t xm_schedule_naive(const xm_plan_t *plan, const xm_network_t *network, xm_work_t *work,
                              int64_t count);
xm_status_t xm_schedule_balance(const xm_plan_t *plan, const xm_network_t *network, xm_work_t *work,
                                int64_t count);

/* Appends a transfer of all of a task's chunks; gives its index. */
xm_status_t xm_plan_append(xm_plan_t *plan, int64_t task, int sender, int receiver, int64_t parent,
                           int64_t *index);

/*
 * Bytes every rank sends so far, for spreading work over the devices of a host. The strategies pick
 * the least loaded rank of a host among candidates; ties go to the first.
 */
typedef struct {
    const xm_network_t *network;
    int64_t *sent; /* by rank */
} xm_device_load_t;

/* The least loaded of the candidates that are on `host`, or −1 when none is. */
int xm_device_load_pick(const xm_device_load_t *load, const int *ranks, int count, int host);

/*
 * Emit the transfers of one piece of work. `receivers` is a copy of its list that may be reordered;
 * behind it is room for as many more.
 */
xm_status_t xm_strategy_send_recv_emit(xm_plan_t *plan, xm_device_load_t *load,
                                       const xm_work_t *work, int *receivers);
xm_status_t xm_strategy_broadcast_emit(xm_plan_t *plan, xm_device_load_t *load,
                                       const xm_work_t *work, int *receivers);

/* Computes the digest of a finished plan. */
xm_status_t xm_plan_hash(xm_plan_t *plan);

#endif
