/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan_private.h
 * The parts of a plan, for the files of this folder that build and check it. Not installed.
 */
#pragma once

#include "comm/base.h"
#include "resharding/solve.h"
#include "resharding/plan/plan.h"

enum { XM_DIGEST_TEXT = 33 };

typedef struct {
    char *name;
    xm_layout_t *src, *dst;   /* sub-byte elements: counted in bytes */
    int src_index, dst_index; /* the same number for the same layout */
    int64_t element_size;
} xm_planned_tensor_t;

/* What a scheduler decides: transfers, the routes they take, the chunks they move in. */
typedef struct {
    xm_transfer_t *transfers;
    int64_t transfer_count;
    xm_route_t *routes; /* ranks and parents of one in one allocation, at `ranks` */
    int route_count;
    size_t transfer_room, route_room;
    xm_index_t route_index;  /* by content */
    int64_t *chunk_elements; /* by task */
    int64_t *first_hop;      /* by transfer, and the number of hops behind the last */
} xm_builder_t;

/* Who has a task and who gets it: ranks in some order, somewhere else. */
typedef struct {
    const int *holders, *receivers;
    int holder_count, receiver_count;
} xm_sides_t;

struct xm_plan {
    xm_planned_tensor_t *tensors;
    int tensor_count;
    int layout_count; /* different ones, of both sides */
    xm_strategy_t strategy, chosen_strategy;
    xm_scheduler_t scheduler, chosen;
    uint64_t chunk_bytes, seed; /* as asked for */
    int64_t node_budget;
    xm_unit_task_t *tasks;
    int64_t task_count;
    const xm_sides_t *sides; /* by task, while pieces of tasks are planned (without.c); NULL: those
                                of the task's tiles */
    xm_builder_t builder;
    struct xm_regular
        *regular;    /* in place of lists of tasks, chunks, transfers and hops, or NULL */
    xm_kept_t *kept; /* NULL: nothing is */
    int64_t kept_count;
    int *host_of_rank;
    int ranks;
    int living;            /* ranks of the job that are left; 0: all are */
    xm_network_t *network; /* the schedule was made for */
    uint64_t net_bytes;
    int64_t bound_ns, makespan_ns;
    char digest[XM_DIGEST_TEXT];
};

/* ---- builders (builder.c)
 * --------------------------------------------------------------------------
 */

/* An empty builder for so many tasks; chunk sizes are the whole task. */
xm_status_t xm_builder_init(xm_builder_t *builder, const xm_plan_t *plan);
void xm_builder_clear(xm_builder_t *builder);

/* Index of the route with this content, which is copied when it is new. */
xm_status_t xm_builder_route(xm_builder_t *builder, int count, const int *ranks, const int *parents,
                             int *route);

/* Appends a transfer; *index (may be NULL) is its place. */
xm_status_t xm_builder_append(xm_builder_t *builder, const xm_transfer_t *transfer, int64_t *index);

/* Numbers the hops once all transfers are there. */
xm_status_t xm_builder_number_hops(xm_builder_t *builder);

static inline const xm_route_t *xm_builder_route_of(const xm_builder_t *builder,
                                                    const xm_transfer_t *transfer)
{
    return &builder->routes[transfer->route];
}

/* ---- the network's view (task_class.c) ---------------------------------------------------------
 */

/*
 * Tasks with the same holders and the same receivers. Ranks of a list that share a host stand
 * together, hosts ascending; within a host the order of the mesh stays.
 */
typedef struct {
    const int *holders; /* ranks, sorted by host */
    int holder_count;
    const int *holder_hosts; /* ascending, each once */
    int holder_host_count;
    const int *copies; /* ranks that hold and need it */
    int copy_count;
    const int *near_ranks; /* receivers that hold nothing, on hosts with a holder */
    int near_count;
    const int *remote; /* receivers on hosts without a holder */
    int remote_count;
    const int *remote_hosts; /* ascending, each once */
    const int *remote_first; /* where a host's ranks start in `remote`; one entry more than hosts */
    int remote_host_count;
    int widest;                     /* most receivers on one of these hosts, at least 1 */
    int64_t first_task, task_count; /* in xm_classes_t.tasks */
    int64_t bytes;
} xm_class_t;

typedef struct xm_classes {
    xm_class_t *classes;
    int64_t count;
    int64_t *tasks;    /* task numbers by class, ascending within one */
    int64_t *class_of; /* by task */
    xm_arena_t arena;  /* owns the lists */
} xm_classes_t;

xm_status_t xm_classes_create(const xm_plan_t *plan, const xm_network_t *network,
                              xm_classes_t *classes);
void xm_classes_clear(xm_classes_t *classes);

/* Ints that live as long as the arena, not zeroed; NULL when there is no memory. */
static inline int *xm_ints_take(xm_arena_t *arena, size_t count)
{
    return xm_arena_take(arena, (count > 0 ? count : 1) * sizeof(int));
}

static inline int64_t xm_task_element_size(const xm_plan_t *plan, int64_t task)
{
    return plan->tensors[plan->regular != NULL ? 0 : plan->tasks[task].tensor].element_size;
}

static inline int64_t xm_task_bytes(const xm_plan_t *plan, int64_t task)
{
    const xm_unit_task_t one = xm_plan_task(plan, task);

    return one.elements * plan->tensors[one.tensor].element_size;
}

/* ---- making transfers (emit.c, strategy_*.c) ---------------------------------------------------
 */

/* A route over receivers that are alone on their hosts (strategy_chain.c). */
typedef struct {
    const xm_class_t *class; /* NULL: none is known */
    const int *rails;
    int start, route;
} xm_known_chain_t;

enum { XM_KNOWN_CHAINS = 1024 /* as 10 bits number them */ };

/* State of one builder in the making. */
typedef struct {
    const xm_plan_t *plan;
    const xm_network_t *network, *rails; /* with rails as hosts */
    const xm_classes_t *classes;
    xm_builder_t *builder;
    int64_t *sent;  /* bytes every rank sends so far: spreads work over the devices of a host */
    int64_t *taken; /* bytes every rank takes in from ranks beside it so far */
    int *ranks, *parents;    /* room for one route */
    int64_t *order;          /* room for one list of rails */
    xm_known_chain_t *known; /* the latest by hash */
} xm_transfer_emitter_t;

xm_status_t xm_transfer_emitter_init(xm_transfer_emitter_t *emitter, const xm_plan_t *plan,
                                     const xm_network_t *network, const xm_network_t *rails,
                                     const xm_classes_t *classes, xm_builder_t *builder);
void xm_transfer_emitter_clear(xm_transfer_emitter_t *emitter);

/* The least loaded rank of a host among ranks that are sorted by host; ties go to the first. */
int xm_transfer_emitter_pick(const xm_transfer_emitter_t *emitter, const int *ranks, int count,
                             int host);

/* The same among the holders of a class on a rail. */
int xm_transfer_emitter_pick_rail(const xm_transfer_emitter_t *emitter, const xm_class_t *class,
                                  int rail);

/* The same among its receivers beside a holder. */
int xm_transfer_emitter_pick_near(const xm_transfer_emitter_t *emitter, const xm_class_t *class,
                                  int rail);

/* All of a task from one rank to one other, or a copy inside one. */
xm_status_t xm_emit_single(xm_transfer_emitter_t *emitter, int64_t task, int sender, int receiver);

/* What costs no NIC, for all tasks: copies inside a rank, and receivers beside a holder. */
xm_status_t xm_emit_local(xm_transfer_emitter_t *emitter, xm_strategy_t strategy);

/* Elements of a task that go from a rail to one rail of each remote host, ascending. */
typedef struct {
    int64_t task, first, end;
    int sender_rail;
    const int *rails;
    int count;
} xm_chain_t;

/* A lane from a holding rail to all remote receivers, in shards. */
xm_status_t xm_strategy_allgather_emit(xm_transfer_emitter_t *emitter, const xm_chain_t *lane);
/* All of a task from a holding rail to one remote receiver. */
xm_status_t xm_strategy_send_recv_emit(xm_transfer_emitter_t *emitter, int64_t task,
                                       int sender_rail, int receiver);

/*
 * The published all-gathers (strategy_published.c): all of a task from a holding rail to the remote
 * receivers of one host, given by its place in the class, or (−1) to all remote ones.
 */
xm_status_t xm_strategy_published_emit(xm_transfer_emitter_t *emitter, int64_t task,
                                       int sender_rail, int host);
/* For so many bytes it has the NICs of its hosts, one after the other. */
int64_t xm_published_bytes(const xm_plan_t *plan, const xm_class_t *class, int64_t task, int host);

/* The strategy of the least predicted cost for a task of that many bytes, one of so many
 * (strategy.c). */
xm_strategy_t xm_strategy_predict(const xm_network_t *network, const xm_class_t *class,
                                  int64_t bytes, int64_t tasks);

/* Chunks below this size cost more in handshakes than they gain in overlap: only a limit of the
 * caller's makes them smaller. */
enum { XM_SMALLEST_CHUNK = 64 * 1024 };

/* Chunks that suit a chain of so many hops over so many bytes (strategy.c). */
int64_t xm_chunk_bytes(const xm_network_t *network, int64_t bytes, int hops, uint64_t limit);

/* ---- what is missing of a plan (pieces.c) -------------------------------------------------------
 */

/* A range of a task that stays where it is, and its ranks in the common list; a gap has none. */
typedef struct {
    xm_kept_t kept;
    int64_t ranks;
    int count;
} xm_stay_t;

/* Elements [first, end) of a task, and where its ranks begin in the common list: the holders, and
 * behind them the receivers. */
typedef struct {
    int64_t task, first, end;
    int64_t holders, receivers;
    int receiver_count;
} xm_piece_t;

/* Ranges of tasks that some rank still needs. In the order of tasks, then of elements. */
typedef struct {
    xm_piece_t *pieces;
    xm_unit_task_t *tasks; /* by piece: the task, with the piece's elements */
    xm_sides_t *sides;     /* by piece */
    int64_t count;
    xm_stay_t *stays;
    int64_t stay_count;
    int64_t gap_count; /* of the stays */
    int *ranks;        /* the lists of ranks, one behind the other */
    int64_t rank_count;
    size_t room, stay_room, rank_room; /* of pieces, stays and ranks */
} xm_pieces_t;

/*
 * Cuts the tasks of `rest` by what has arrived of `plan`. Ranks have new numbers, which are below
 * `living` where they are left; `deliveries` are by the old ones. Frees nothing of what it is given
 * when it fails.
 */
xm_status_t xm_pieces_cut(xm_pieces_t *pieces, const xm_plan_t *plan, const xm_plan_t *rest,
                          const int *number, int numbers, int living,
                          const xm_delivery_t *deliveries);
void xm_pieces_clear(xm_pieces_t *pieces);

/* ---- scheduling (schedule.c) -------------------------------------------------------------------
 */

/* Lower bound of any plan over these classes, ns. */
xm_status_t xm_classes_bound(const xm_classes_t *classes, const xm_network_t *network,
                             xm_bound_t *bound);

/* The most bytes of a chunk: the caller's limit, or the configuration's. */
uint64_t xm_schedule_chunk_limit(const xm_plan_params_t *params);

/* Fills plan->builder, what was chosen and plan->makespan_ns with what params ask for. */
xm_status_t xm_schedule(xm_plan_t *plan, const xm_plan_params_t *params,
                        const xm_classes_t *classes);

/* Copies the hosts of the plan's ranks and the network. */
xm_status_t xm_plan_take_network(xm_plan_t *plan, const xm_network_t *network);

/* Fails when so many bytes take longer than times can count. */
xm_status_t xm_plan_check_time(const xm_network_t *network, int64_t bytes);

/* Counts what crosses between hosts, computes the digest and has the new plan verified. */
xm_status_t xm_plan_finish(xm_plan_t *plan);

/* Numbers the layouts of the tensors, which are all there. */
xm_status_t xm_plan_number_layouts(xm_plan_t *plan);

/* Computes the digest of a finished plan. */
xm_status_t xm_plan_hash(xm_plan_t *plan);
