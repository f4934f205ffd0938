/**
 * @file plan.h
 * Reshard plan: the transfers that turn a source layout into a destination layout.
 *
 * One form for every strategy and scheduler: a list of unit tasks (unit_task.h), and a DAG of
 * transfers, each "chunks first … end of this task's box go from this rank to that rank". A
 * transfer is in one of three states of dependence:
 *  - `parent` −1, sender ≠ receiver: the sender is a holder and reads from its source tile;
 *  - `parent` ≥ 0: the sender is a relay and reads from its destination tile what transfer `parent`
 *    brings, chunk by chunk, as soon as each has arrived;
 *  - sender = receiver: a local copy from the source tile to the destination tile.
 * Parents stand before their children. The order of the list is the schedule: every rank serves its
 * transfers with one peer in this order, and prefers earlier ones among peers.
 *
 * Chunks: the elements of a task's box, row-major, are cut into pieces of `chunk_elements` (the
 * last may be shorter). The list is as long as there are receivers, not chunks.
 *
 * Plans are immutable and deterministic: equal parameters give equal plans on every machine; the
 * digest covers everything that decides which bytes move where. Every created plan has passed
 * xm_plan_verify(). Threads: shared freely. Source: MLSys'23 sections 3 and 4; DESIGN in
 * docs/design.md.
 */
#ifndef XM_RESHARDING_PLAN_H
#define XM_RESHARDING_PLAN_H

#include <stdio.h>

#include "resharding/network.h"
#include "resharding/unit_task.h"

/** How one unit task reaches its receivers. */
typedef enum xm_strategy {
    XM_STRATEGY_SEND_RECV, /**< one message from a holder to every receiver */
    XM_STRATEGY_BROADCAST, /**< a pipelined chain over the receiving hosts, then inside each host */
    XM_STRATEGY_COUNT
} xm_strategy_t;

/** Who sends, and in which order. */
typedef enum xm_scheduler {
    XM_SCHEDULER_NAIVE,   /**< the first holder, tasks in the given order */
    XM_SCHEDULER_BALANCE, /**< the holding host with the least bytes so far, tasks in the given
                             order */
    XM_SCHEDULER_COUNT
} xm_scheduler_t;

XM_API const char *xm_strategy_name(xm_strategy_t strategy);
XM_API xm_status_t xm_strategy_parse(const char *name, xm_strategy_t *strategy);
XM_API const char *xm_scheduler_name(xm_scheduler_t scheduler);
XM_API xm_status_t xm_scheduler_parse(const char *name, xm_scheduler_t *scheduler);

typedef struct xm_transfer {
    int64_t task;        /**< index of the unit task */
    int64_t parent;      /**< transfer that brings the data to the sender, or −1 */
    int64_t first_chunk; /**< chunks [first_chunk, end_chunk) of the task's box */
    int64_t end_chunk;
    int sender;
    int receiver;
    bool crosses; /**< sender and receiver are on different hosts */
} xm_transfer_t;

typedef struct xm_plan xm_plan_t;

typedef struct xm_plan_params {
    size_t struct_size;
    const xm_layout_t *src; /**< cloned */
    const xm_layout_t *dst; /**< cloned */
    int64_t element_size;   /**< bytes, 1 to 16 */
    xm_strategy_t strategy;
    xm_scheduler_t scheduler;
    uint64_t chunk_bytes;        /**< largest chunk; 0 means XM_CHUNK_SIZE */
    const xm_network_t *network; /**< hosts and rates; covers every rank of both meshes */
} xm_plan_params_t;

#define XM_PLAN_PARAMS_INIT                                                                        \
    {                                                                                              \
        .struct_size = sizeof(xm_plan_params_t), .strategy = XM_STRATEGY_BROADCAST,                \
        .scheduler = XM_SCHEDULER_BALANCE                                                          \
    }

/** Plans, simulates, bounds and verifies one resharding. */
XM_API xm_status_t xm_plan_create(const xm_plan_params_t *params, xm_plan_t **plan);
XM_API void xm_plan_destroy(xm_plan_t *plan);

XM_API const xm_layout_t *xm_plan_src(const xm_plan_t *plan);
XM_API const xm_layout_t *xm_plan_dst(const xm_plan_t *plan);
XM_API int64_t xm_plan_element_size(const xm_plan_t *plan);
XM_API xm_strategy_t xm_plan_strategy(const xm_plan_t *plan);
XM_API xm_scheduler_t xm_plan_scheduler(const xm_plan_t *plan);

/** Unit tasks and their number; transfers and theirs. Owned by the plan. */
XM_API const xm_unit_task_t *xm_plan_tasks(const xm_plan_t *plan, int64_t *count);
XM_API const xm_transfer_t *xm_plan_transfers(const xm_plan_t *plan, int64_t *count);
/** Elements per chunk of a task, and its number of chunks. */
XM_API int64_t xm_plan_chunk_elements(const xm_plan_t *plan, int64_t task);
XM_API int64_t xm_plan_chunks(const xm_plan_t *plan, int64_t task);
/** Payload bytes of a transfer. */
XM_API uint64_t xm_plan_transfer_bytes(const xm_plan_t *plan, int64_t transfer);

/** Bytes of the whole tensor. */
XM_API uint64_t xm_plan_bytes(const xm_plan_t *plan);
/** Bytes that cross from one host to another. */
XM_API uint64_t xm_plan_net_bytes(const xm_plan_t *plan);
/** Lower bound of any plan's time on the network, ns (bound.h). */
XM_API int64_t xm_plan_bound_ns(const xm_plan_t *plan);
/** Simulated makespan of this plan on the network, ns (simulate.h). */
XM_API int64_t xm_plan_makespan_ns(const xm_plan_t *plan);
/** Hash of everything that decides which bytes move where: 32 hexadecimal digits. Owned by the
 * plan. */
XM_API const char *xm_plan_digest(const xm_plan_t *plan);

/**
 * Proves that the plan is right: the tasks tile every destination tile, every receiver gets every
 * chunk of every task exactly once, and each from a rank that has it by then. The sentence names
 * the first violation. Independent of the code that makes plans.
 */
XM_API xm_status_t xm_plan_verify(const xm_plan_t *plan);

/** Writes the plan as JSON (docs/reshard-plan.md). */
XM_API xm_status_t xm_plan_write_json(const xm_plan_t *plan, FILE *file);

#endif
