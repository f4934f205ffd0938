/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan.h
 * Reshard plan: which bytes go from where to where, in which order, to turn source layouts into
 * destination layouts.
 *
 * A plan is for a batch: one or many tensors, each with the layout in which it lies now and the one
 * in which it is wanted (layout.h), scheduled together on a network (network.h). It consists of
 * *transfers*, in the order of the schedule: a range of a tensor goes from a sender along a tree of
 * ranks to every rank of the tree. Every edge of a tree is a *hop*. Data moves in chunks, and a
 * rank passes a chunk on as soon as it has arrived.
 *
 * Two choices make a plan. The *strategy* says how one slice of a tensor reaches its receivers, the
 * *scheduler* who sends it and when; `auto` takes the best by the model. Every plan knows the lower
 * bound of the time that any plan needs on its network, and its own simulated time.
 *
 * Plans are deterministic: equal parameters give equal plans on every machine; the digest covers
 * everything that decides which bytes move where. Every created plan has passed xm_plan_verify().
 *
 * @code
 *     // A plan for one float tensor, the best that the model finds, and how good it is.
 *     double plan_one(const xm_layout_t *src, const xm_layout_t *dst,
 *                     const xm_network_t *network, xm_plan_t **plan)
 *     {
 *         xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
 *         xm_plan_info_t info = XM_PLAN_INFO_INIT;
 *
 *         params.src = src;
 *         params.dst = dst;
 *         params.element_size = 4;
 *         params.strategy = XM_STRATEGY_AUTO;
 *         params.scheduler = XM_SCHEDULER_AUTO;
 *         params.network = network;
 *         if (xm_plan_create(&params, plan) < 0 || xm_plan_get_info(*plan, &info) < 0) {
 *             return 0.0;
 *         }
 *         return (double)info.bound_ns / (double)info.makespan_ns; // 1 is optimal
 *     }
 * @endcode
 *
 * A rank that dies in the middle of a run leaves destinations that are filled in part.
 * xm_plan_without() makes the plan of what is still missing, from the records of what each rank has
 * received; xm_reshard_continue() (reshard.h) does all of it for a job.
 *
 * @code
 *     // The plan for the ranks that are left when a host's ranks 8 … 15 are gone.
 *     xm_status_t plan_rest(const xm_plan_t *plan, const xm_delivered_t *records, int count,
 *                           xm_plan_t **rest)
 *     {
 *         static const int lost[] = {8, 9, 10, 11, 12, 13, 14, 15};
 *         xm_plan_without_params_t params = XM_PLAN_WITHOUT_PARAMS_INIT;
 *
 *         params.lost = lost;
 *         params.lost_count = 8;
 *         params.delivered = records; // of the survivors, in any order
 *         params.delivered_count = count;
 *         return xm_plan_without(plan, &params, rest);
 *     }
 * @endcode
 *
 * Running a plan: reshard.h. Units: bytes, elements, ranks, ns. Ownership: a plan is freed by
 * xm_plan_destroy(); layouts and network may be freed before it. Threads: immutable after creation,
 * so shared freely. Errors: status.h; the sentence names tensor, dimension and numbers. Source:
 * MLSys'23, sections 3 (unit tasks, strategies, schedulers) and 4 (evaluation); docs/resharding.md
 * and docs/openshop.md for what goes beyond it.
 */
#ifndef CROSSMESH_PLAN_H
#define CROSSMESH_PLAN_H

#include <crossmesh/layout.h>
#include <crossmesh/network.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How one slice of a tensor reaches its receivers. */
typedef enum xm_strategy {
    XM_STRATEGY_SEND_RECV, /**< one message from a holder to every receiver */
    XM_STRATEGY_ALLGATHER, /**< a shard to each device of a receiving host (on from host to host),
                                gathered inside the host: each host's NIC carries the slice once,
                                each device's port little */
    XM_STRATEGY_BROADCAST, /**< a pipelined chain over the receiving hosts, then inside each host */
    XM_STRATEGY_AUTO,      /**< the plan with the smallest makespan, of each of the above for all
                                slices and of the one for each that is predicted the fastest */
    XM_STRATEGY_LOCAL_ALLGATHER,  /**< as MLSys'23 has it: each receiving host is sent the slice in
                                       equal parts, one to a device, then its devices all-gather */
    XM_STRATEGY_GLOBAL_ALLGATHER, /**< likewise: the slice in equal parts, one to each
                                       receiver, then all receivers all-gather, across hosts */
    XM_STRATEGY_ALPA, /**< as Alpa has it: local_allgather where a slice has its receivers on one
                           host, else send_recv */
    XM_STRATEGY_COUNT
} xm_strategy_t;

/** Who sends, and in which order. */
typedef enum xm_scheduler {
    XM_SCHEDULER_NAIVE,   /**< the first holder, slices in the given order */
    XM_SCHEDULER_BALANCE, /**< the holding host with the least to send so far, slices in the given
                               order */
    XM_SCHEDULER_DFS,     /**< branch and bound over order and senders, within a node budget */
    XM_SCHEDULER_GREEDY,  /**< randomised: sets of slices that share no host, one after the other */
    XM_SCHEDULER_OPENSHOP, /**< slices in parts: replicated data split between holders, receivers
                                relay parts */
    XM_SCHEDULER_AUTO,     /**< the one of the above with the smallest makespan, stopping at the
                                bound */
    XM_SCHEDULER_COUNT
} xm_scheduler_t;

/** How the simulated network shares a NIC between messages that are ready. */
typedef enum xm_sharing {
    XM_SHARING_EXCLUSIVE, /**< one at a time, strictly in the order of the plan: the model of
                               MLSys'23, section 3.2, by the chunk */
    XM_SHARING_FAIR       /**< max-min fairly, as flows with congestion control do */
} xm_sharing_t;

/** One tensor of a batch. */
typedef struct xm_tensor {
    const char *name;       /**< for sentences and documents; NULL: its index */
    const xm_layout_t *src; /**< where it lies */
    const xm_layout_t *dst; /**< where it is wanted */
    int element_bits;       /**< 1, 2, 4 (packed along the innermost dimension), or 8 to 128 in
                                 whole bytes */
} xm_tensor_t;

/** A plan. */
typedef struct xm_plan xm_plan_t;

/** What to plan. Start from ::XM_PLAN_PARAMS_INIT. */
typedef struct xm_plan_params {
    size_t struct_size;         /**< sizeof(xm_plan_params_t) */
    const xm_tensor_t *tensors; /**< the batch, or NULL for one tensor given by src, dst and
                                     element_size */
    int tensor_count;           /**< of `tensors` */
    const xm_layout_t *src;     /**< without `tensors`: where the tensor lies */
    const xm_layout_t *dst;     /**< without `tensors`: where it is wanted */
    int64_t element_size;       /**< without `tensors`: bytes, 1 to 16 */
    xm_strategy_t strategy;     /**< auto, unless set otherwise */
    xm_scheduler_t scheduler;   /**< auto, unless set otherwise */
    uint64_t chunk_bytes;       /**< largest chunk, at most 8 MiB; 0: XM_CHUNK_SIZE, and eight times
                                     that inside a host where nothing is packed */
    uint64_t seed;              /**< of the randomised schedulers */
    int64_t node_budget;        /**< of dfs; 0: 200,000 */
    const xm_network_t *network; /**< hosts and rates; covers every rank of all meshes */
} xm_plan_params_t;

/** Initialiser of an ::xm_plan_params_t. */
#define XM_PLAN_PARAMS_INIT                                                                        \
    {                                                                                              \
        sizeof(xm_plan_params_t), NULL, 0, NULL, NULL, 0, XM_STRATEGY_AUTO, XM_SCHEDULER_AUTO, 0,  \
            0, 0, NULL                                                                             \
    }

/** Room for a digest, with the terminator. */
enum { XM_PLAN_DIGEST_SIZE = 33 };

/** What a plan is, in numbers. Start from ::XM_PLAN_INFO_INIT. */
typedef struct xm_plan_info {
    size_t struct_size;         /**< sizeof(xm_plan_info_t); what fits is filled in */
    int ranks;                  /**< largest rank of all meshes, plus one */
    xm_strategy_t strategy;     /**< the one whose plan this is; `auto`: every slice has its
                                     own */
    xm_scheduler_t scheduler;   /**< the one whose schedule this is: not `auto`, and another
                                     than asked for where that falls back */
    const char *strategy_name;  /**< as xm_strategy_parse() knows it; lives for ever */
    const char *scheduler_name; /**< as xm_scheduler_parse() knows it; lives for ever */
    uint64_t bytes;             /**< of all tensors */
    uint64_t net_bytes;         /**< that cross from one host to another */
    int64_t bound_ns;           /**< lower bound of any plan's time on the network, among the ranks
                                     that take part: others could relay, but never do */
    int64_t makespan_ns;        /**< simulated time of this plan, exclusive sharing */
    int64_t hops;               /**< of all transfers, copies inside a rank included */
    char digest[XM_PLAN_DIGEST_SIZE]; /**< of everything that decides which bytes move where: 32
                                           hexadecimal digits, equal on all ranks */
    uint64_t kept_bytes; /**< of xm_plan_without(): of all receivers, delivered before */
    uint64_t gone_bytes; /**< of xm_plan_without(): of all receivers, held by no living rank */
} xm_plan_info_t;

/** Initialiser of an ::xm_plan_info_t. */
#define XM_PLAN_INFO_INIT                                                                          \
    {                                                                                              \
        sizeof(xm_plan_info_t), 0, XM_STRATEGY_SEND_RECV, XM_SCHEDULER_NAIVE, NULL, NULL, 0, 0, 0, \
            0, 0, "", 0, 0                                                                         \
    }

/** One hop of a plan, and when it runs. */
typedef struct xm_plan_hop {
    int64_t transfer; /**< which transfer it belongs to, in the order of the schedule */
    int sender;       /**< rank */
    int receiver;   /**< rank; equal to the sender for a copy inside a rank, which takes no time */
    uint64_t bytes; /**< that it carries, in all its chunks */
    int64_t start_ns; /**< simulated: the first chunk starts; 0 is the start of the reshard */
    int64_t end_ns;   /**< simulated: the last chunk has arrived */
} xm_plan_hop_t;

/**
 * What one rank has received in a run that was not finished: bytes that a reshard has written and
 * that may be sent as they are. They say which rank and which plan they are of.
 * xm_reshard_continue() exchanges them.
 */
typedef struct xm_delivered {
    const void *bytes;
    size_t length;
} xm_delivered_t;

/** A range of a tensor that no living rank holds and that some living rank wants. */
typedef struct xm_plan_gap {
    int tensor;    /**< index in the batch */
    xm_box_t box;  /**< a slice of the tensor; sub-byte elements are counted in bytes */
    int64_t first; /**< of the slice's elements, row-major, [first, end) are gone */
    int64_t end;
} xm_plan_gap_t;

/** Who is gone, and what has arrived. Start from ::XM_PLAN_WITHOUT_PARAMS_INIT. */
typedef struct xm_plan_without_params {
    size_t struct_size;              /**< sizeof(xm_plan_without_params_t) */
    const int *lost;                 /**< ranks that are gone, in any order; may be NULL for none */
    int lost_count;                  /**< of `lost` */
    const xm_delivered_t *delivered; /**< records of living ranks, one of each at most; a rank
                                          without one has received nothing */
    int delivered_count;             /**< of `delivered` */
    const xm_network_t *network;     /**< of the ranks that are left, with their new numbers; NULL:
                                          the plan's own without the lost ranks */
    /** Called for each range that no living rank holds, in order, once the rest has been planned
     * without them. NULL: such a range is a failure. */
    void (*gap)(void *arg, const xm_plan_gap_t *gap);
    void *arg; /**< of gap */
} xm_plan_without_params_t;

/** Initialiser of an ::xm_plan_without_params_t: nobody is lost, nothing has arrived. */
#define XM_PLAN_WITHOUT_PARAMS_INIT                                                                \
    {                                                                                              \
        sizeof(xm_plan_without_params_t), NULL, 0, NULL, 0, NULL, NULL, NULL                       \
    }

/** The strategy named "send_recv", "allgather", "broadcast", "auto", "local_allgather",
 * "global_allgather" or "alpa"; unknown names fail with the nearest match. */
XM_API xm_status_t xm_strategy_parse(const char *name, xm_strategy_t *strategy);
/** The scheduler named "naive", "balance", "dfs", "greedy", "openshop" or "auto"; likewise. */
XM_API xm_status_t xm_scheduler_parse(const char *name, xm_scheduler_t *scheduler);

/** Plans, simulates, bounds and verifies one batch. */
XM_API xm_status_t xm_plan_create(const xm_plan_params_t *params, xm_plan_t **plan);

/**
 * Plans what is missing after a run of @p plan that some ranks did not live to see the end of. The
 * ranks that are left keep their order and are numbered 0, 1, 2, … as xm_group_shrink() numbers
 * them; the meshes keep their shapes, with the lost ranks numbered behind all others. Nothing is
 * moved that the records say has arrived; what is missing comes from living holders of the source
 * and from ranks that have received it. Strategy and scheduler are those of @p plan, which may
 * itself be one of this function. All ranks that give the same parameters get the same plan.
 *
 * XM_ERR_NO_SOLUTION names the first tensor and box that no living rank holds, unless params.gap
 * is there to hear of them. XM_ERR_MISMATCH: a
 * record of another plan, or of another run than the others. XM_ERR_CORRUPT: bytes that are none.
 */
XM_API xm_status_t xm_plan_without(const xm_plan_t *plan, const xm_plan_without_params_t *params,
                                   xm_plan_t **rest);

/** Frees the plan. No reshard may use it any more. NULL is accepted. */
XM_API void xm_plan_destroy(xm_plan_t *plan);

/** Fills in @p info, as far as its struct_size says that there is room. */
XM_API xm_status_t xm_plan_get_info(const xm_plan_t *plan, xm_plan_info_t *info);

/**
 * Simulates @p plan on @p network, which may be another than it was made for, and lists its hops in
 * the order of the plan. @p hops has room for info.hops entries, or is NULL. @p makespan_ns is when
 * the last chunk has arrived.
 */
XM_API xm_status_t xm_plan_simulate(const xm_plan_t *plan, const xm_network_t *network,
                                    xm_sharing_t sharing, xm_plan_hop_t *hops,
                                    int64_t *makespan_ns);

/**
 * Proves that the plan is right: every destination tile of every tensor is covered, every receiver
 * gets every element exactly once, and each from a rank that has it by then. The sentence names the
 * first violation. Independent of the code that makes plans.
 */
XM_API xm_status_t xm_plan_verify(const xm_plan_t *plan);

/** Writes the plan as JSON (docs/reshard-plan.md) into a text that the caller frees with free(). */
XM_API xm_status_t xm_plan_to_json(const xm_plan_t *plan, char **text);

#ifdef __cplusplus
}
#endif

#endif
