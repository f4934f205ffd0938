/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan.h
 * What a plan (crossmesh/plan.h) consists of, for those who check, simulate, and run it.
 *
 * A plan is for a batch: one or many tensors, each with the layout in which it lies now and the one
 * in which it is wanted, scheduled together. It has one form for every strategy and scheduler:
 *
 *  - *unit tasks* (unit_task.h): the slices of all tensors, each with holders and receivers;
 *  - *routes*: trees over ranks, shared by all transfers that use them;
 *  - *transfers*, in the order of the schedule: "elements [first, end) of this task's box go from
 * this rank along this route to every rank of it". So a chain over a thousand ranks is one
 * transfer, whatever the number of chunks.
 *
 * Every edge of a route is a *hop*. Hop i of a transfer goes to route rank i, from the transfer's
 * sender when `parents[i]` is −1, else from route rank `parents[i]`. The sender reads from its
 * source tile when the transfer has no parent, else from its destination tile what the transfer
 * `parent` (earlier in the list, of the same task, with a range that contains this one) brings
 * there; every other rank of the route passes on from its destination tile, or, where it has none
 * for the task, what it has just received. A transfer whose only
 * route rank is its sender is a copy inside that rank, from the source to the destination tile, and
 * nobody's parent.
 *
 * A plan for the rest of another one (xm_plan_without()) has *kept* ranges besides: "these ranks
 * have elements [first, end) of this task in their destination tiles already". No transfer brings
 * them; a sender may pass them on, then its transfer's parent is XM_PARENT_KEPT. Ranks of the
 * meshes from xm_plan_ranks() on are lost and occur nowhere else.
 *
 * Chunks: the range of a transfer, row-major in the box, moves in pieces of the task's
 * `chunk_elements` (the last may be shorter). A rank passes a chunk on as soon as it has arrived.
 *
 * Order: hops are ordered by transfer, then by chunk, then by their place in the route; this is the
 * order in which every NIC direction and every device port serves them (simulate.h, and a fabric of
 * comm/transport/sim.h that is given the order). A rank posts its hops with each peer in this
 * order and prefers earlier ones among peers.
 *
 * Source: MLSys'23 sections 3 and 4; docs/resharding.md.
 */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include <crossmesh/plan.h>

#include "resharding/network.h"
#include "resharding/layout.h"

const char *xm_strategy_name(xm_strategy_t strategy);
const char *xm_scheduler_name(xm_scheduler_t scheduler);

typedef struct xm_route {
    int count;
    const int *ranks;
    const int *parents; /**< by rank of the route: index of the rank it is fed by, smaller than its
                           own; −1: by the transfer's sender */
} xm_route_t;

typedef struct xm_transfer {
    int64_t task;             /**< index of the unit task */
    int64_t parent;           /**< transfer that brings the range to the sender, or one of these: */
#define XM_PARENT_SOURCE (-1) /**< the sender's source tile has it */
#define XM_PARENT_KEPT   (-2) /**< its destination tile has had it before the run */
    int64_t first;            /**< elements [first, end) of the task's box, row-major */
    int64_t end;
    int sender;
    int route; /**< index of the route */
} xm_transfer_t;

/** What need not be moved, or cannot be. In the order of tasks, then of elements. */
typedef struct xm_kept {
    int64_t task;
    int64_t first, end; /**< elements of the task's box, row-major */
    int route;          /**< whose ranks have it; −1: no living rank has it, a gap */
} xm_kept_t;

/** Tensors of the batch. */
int xm_plan_tensors(const xm_plan_t *plan);
const char *xm_plan_tensor_name(const xm_plan_t *plan, int tensor);
/**
 * Layouts of a tensor. Elements of fewer than 8 bits are counted by the byte here and everywhere in
 * the plan: the innermost dimension is that much shorter and an element has one byte.
 */
const xm_layout_t *xm_plan_tensor_src(const xm_plan_t *plan, int tensor);
const xm_layout_t *xm_plan_tensor_dst(const xm_plan_t *plan, int tensor);
/** Bytes of an element of a tensor. */
int64_t xm_plan_tensor_element_size(const xm_plan_t *plan, int tensor);
/** The same of tensor 0. */
const xm_layout_t *xm_plan_src(const xm_plan_t *plan);
const xm_layout_t *xm_plan_dst(const xm_plan_t *plan);

/** The strategy and scheduler asked for, and those whose plan this is (they differ under `auto`,
 * and where a scheduler falls back). A chosen strategy `auto` means that each task has its own. */
xm_strategy_t xm_plan_strategy(const xm_plan_t *plan);
xm_strategy_t xm_plan_chosen_strategy(const xm_plan_t *plan);
xm_scheduler_t xm_plan_scheduler(const xm_plan_t *plan);
xm_scheduler_t xm_plan_chosen_scheduler(const xm_plan_t *plan);

/** Unit tasks and transfers by number: values, as a regular plan has no list of them (regular/).
 */
int64_t xm_plan_task_count(const xm_plan_t *plan);
xm_unit_task_t xm_plan_task(const xm_plan_t *plan, int64_t task);
int64_t xm_plan_transfer_count(const xm_plan_t *plan);
xm_transfer_t xm_plan_transfer(const xm_plan_t *plan, int64_t transfer);
/**
 * The first transfer from @p transfer on that ranks of @p rank's host may have a part in, or the
 * number of all when there is none: with it a rank goes through its own part of a plan.
 */
int64_t xm_plan_next_transfer(const xm_plan_t *plan, int rank, int64_t transfer);
/** What is kept, and routes; owned by the plan. */
const xm_kept_t *xm_plan_kept(const xm_plan_t *plan, int64_t *count);
int xm_plan_routes(const xm_plan_t *plan);
const xm_route_t *xm_plan_route(const xm_plan_t *plan, int route);
/** Box of a task, global indices. */
void xm_plan_task_box(const xm_plan_t *plan, int64_t task, xm_box_t *box);
/** Elements per chunk of a task's transfers. */
int64_t xm_plan_chunk_elements(const xm_plan_t *plan, int64_t task);
/** Chunks of a transfer. */
int64_t xm_plan_chunks(const xm_plan_t *plan, int64_t transfer);
/** Bytes of the range of a transfer: what each of its hops carries. */
uint64_t xm_plan_transfer_bytes(const xm_plan_t *plan, int64_t transfer);
/** The network that the schedule was made for. */
const xm_network_t *xm_plan_network(const xm_plan_t *plan);
/** Host of a rank, as planned. */
int xm_plan_host_of(const xm_plan_t *plan, int rank);
/** Largest living rank of all meshes, plus one: those from there on are lost. */
int xm_plan_ranks(const xm_plan_t *plan);
/** Ranks that the plan can be without: those of its network that have not been lost before. */
int xm_plan_living(const xm_plan_t *plan);

/** Rank that feeds hop @p i of a transfer with route @p route. */
static inline int xm_hop_sender(const xm_transfer_t *transfer, const xm_route_t *route, int i)
{
    return route->parents[i] < 0 ? transfer->sender : route->ranks[route->parents[i]];
}

/** True for a copy inside one rank. */
static inline bool xm_transfer_is_copy(const xm_transfer_t *transfer, const xm_route_t *route)
{
    return route->count == 1 && route->ranks[0] == transfer->sender;
}

/** Bytes of all tensors. */
uint64_t xm_plan_bytes(const xm_plan_t *plan);
/** Bytes that cross from one host to another. */
uint64_t xm_plan_net_bytes(const xm_plan_t *plan);
/** Lower bound of any plan's time on the network, ns (bound.h). */
int64_t xm_plan_bound_ns(const xm_plan_t *plan);
/** Simulated makespan of this plan on the network, ns (simulate.h). */
int64_t xm_plan_makespan_ns(const xm_plan_t *plan);
/** Hash of everything that decides which bytes move where: 32 hexadecimal digits. Owned by the
 * plan. */
const char *xm_plan_digest(const xm_plan_t *plan);

/** Writes the plan as JSON (docs/reshard-plan.md). */
xm_status_t xm_plan_write_json(const xm_plan_t *plan, FILE *file);

/* ---- records of what a rank has received (delivered.c) ------------------------------------------
 */

/** Transfers [first, end) that have arrived whole, as far as they come to the rank, and the first
 * `part` elements of the one behind them. */
typedef struct xm_arrival {
    int64_t first, end;
    int64_t part;
} xm_arrival_t;

/** A record, spread out. Zeroed at first; freed by xm_delivery_clear(). */
typedef struct xm_delivery {
    int rank;
    uint64_t run; /**< how many runs have been posted; 0: none, so nothing is here */
    xm_arrival_t *arrivals;
    int64_t count, capacity;
} xm_delivery_t;

/** Says of the next transfer that comes to the rank how many of its @p length elements are here. */
xm_status_t xm_delivery_add(xm_delivery_t *delivery, int64_t transfer, int64_t elements,
                            int64_t length);
/** Writes the record into malloc'ed bytes. */
xm_status_t xm_delivery_write(const xm_delivery_t *delivery, const xm_plan_t *plan, void **bytes,
                              size_t *length);
/** Reads a record, which may come from anywhere, of a run of @p plan. */
xm_status_t xm_delivery_read(xm_delivery_t *delivery, const xm_plan_t *plan,
                             const xm_delivered_t *record);
/** The rank that a record is of; −1 for too few bytes. */
int xm_delivered_rank(const xm_delivered_t *record);
void xm_delivery_clear(xm_delivery_t *delivery);

/** A layout as plans have it in JSON (docs/reshard-plan.md); NULL without memory. */
json_t *xm_layout_to_json(const xm_layout_t *layout);
