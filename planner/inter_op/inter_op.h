/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file inter_op.h
 * Stage slicing: which consecutive layers form a pipeline stage, and on which part of the cluster
 * it runs (Alpa, OSDI'22, section 5).
 *
 * Given are K layers, a cluster of N hosts with M devices each, submesh shapes, and for every range
 * of layers on every submesh in every configuration (a logical mesh shape with its sharding) the
 * seconds one micro-batch takes there. With B micro-batches, synchronous 1F1B takes
 *
 *     T = sum t_i + sum b_i + (B - 1) * max(t_i, b_i)
 *
 * where t_i are the stages and b_i the transfers between consecutive stages: a transfer overlaps
 * with the computation of its neighbours, so it acts as one more station of the pipeline. Without a
 * boundary function all b_i are 0 and T is Alpa's objective. All N * M devices are used.
 *
 * The result is an optimum of T, not an approximation. Stages that no plan below a threshold can
 * have are left out, by bounds from a relaxed programme without boundaries; what remains is a small
 * graph, and if its best plan is below the threshold, it is the best of all (otherwise the
 * threshold rises). In the graph the solver walks the Pareto front of (sum, max): for a limit on
 * the largest station, a dynamic programme over (stages left, first layer, devices left, state of
 * the previous stage) finds the smallest sum. Every plan whose largest station is at least the one
 * found has no smaller sum, hence no smaller T; so the next limit is just below the station found,
 * or where the smallest sum together with the limit would beat the best T and the threshold, if
 * that is lower; the walk ends below the smallest possible largest station. Alpa tries the limits
 * in rising order and skips those within 1e-6 of each other.
 *
 * Memory: a stage that has s stages after it holds the activations of s + 1 micro-batches. The
 * table `max_successors` says how many stages may follow an entry; -1 means it fits nowhere.
 *
 * Threads: no shared state. Deterministic, unless `stop` ends it: ties are broken by the order of
 * the table.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

/** Shape of a part of the cluster: @p hosts × @p devices of each. hosts > 1 needs whole hosts. */
typedef struct ap_submesh {
    int hosts;
    int devices;
} ap_submesh_t;

/** How a schedule lets micro-batches overlap, as far as the objective sees it. */
typedef struct ap_inter_op_clock {
    /** So many micro-batches more than the stage after it a stage may have in flight: 1 under 1f1b,
     *  2 under eager-1f1b. 0: all of them. */
    int ahead;
    double delayed; /**< part of a stage's seconds that no other stage waits for */
    double station; /**< part of a boundary's seconds for which one channel is busy */
    double certain; /**< part of a boundary's seconds that counts in a window */
} ap_inter_op_clock_t;

/** Where two consecutive stages meet, as the boundary function sees it. */
typedef struct ap_inter_op_boundary {
    int layer;            /**< first layer of the later stage */
    int src_port;         /**< out_port of the earlier stage */
    int dst_port;         /**< in_port of the later stage */
    int dst_first_device; /**< first device of the later stage, -1 when placement is not `ordered`
                           */
} ap_inter_op_boundary_t;

/** Seconds for one micro-batch (both directions) across a boundary; INFINITY forbids it. */
typedef double (*ap_inter_op_boundary_fn)(void *arg, const ap_inter_op_boundary_t *boundary);

struct ap_inter_op_stage;

/** Seconds that a plan takes; INFINITY: it cannot be had. */
typedef double (*ap_inter_op_judge_fn)(void *arg, const struct ap_inter_op_stage *stages,
                                       int count);

/** Seconds that the judge never says less than, of plans that begin with these stages and go on
 * with some that take @p rest seconds or more in sum, with their boundaries; 0: these are all. */
typedef double (*ap_inter_op_floor_fn)(void *arg, const struct ap_inter_op_stage *stages, int count,
                                       double rest);

typedef struct ap_inter_op_problem {
    int layers;           /**< K */
    int hosts;            /**< N */
    int devices_per_host; /**< M */
    const ap_submesh_t *submeshes;
    int submesh_count;
    int config_count; /**< configurations per submesh; unused ones cost INFINITY */
    /** Seconds, [K][K][submesh][config], row-major: layers first … last (inclusive) on a submesh.
     *  INFINITY: impossible. Entries with last < first are not looked at. */
    const double *cost;
    /** Stages that may follow, same shape; NULL: any number. */
    const int32_t *max_successors;
    /** [K][K]: the row of each range in both tables, where ranges of equal layers share one; the
     *  first dimensions are then rows instead of [K][K]. NULL: first * K + last. */
    const int *range_row;
    int64_t micro_batches; /**< B, at least 1 */
    int min_stages;        /**< 0: no limit */
    int max_stages;        /**< 0: no limit */
    /** Stages occupy consecutive devices in order, no stage straddles a host that it does not fill.
     *  Off: only device counts matter, as in Alpa. */
    bool ordered;
    /** With `ordered`: hosts behind the last stage may be left out. */
    bool spare_hosts;
    ap_inter_op_clock_t clock;
    /** What a plan really takes: of those near the smallest T the fastest is chosen. NULL: T. */
    ap_inter_op_judge_fn judge;
    ap_inter_op_floor_fn floor;       /**< with a judge; NULL: T is all that is known */
    void *judge_arg;                  /**< of both */
    int evaluations;                  /**< that may be made besides those of the best plans by T */
    ap_inter_op_boundary_fn boundary; /**< NULL: transfers are free */
    /** Seconds that `boundary` is never below, quicker to have: `boundary` itself is then asked
     * only for what decides. NULL: for all that can matter. */
    ap_inter_op_boundary_fn boundary_lower_bound;
    void *boundary_arg; /**< of both */
    /** Per layer, a kind from 0 to layers - 1: boundaries before layers of one kind cost the same,
     *  and the function is asked only about the first layer of each. Models repeat one block, and
     *  the boundary table is what large clusters spend their memory and time on. NULL: every layer
     *  is of a kind of its own. Entry 0 is not looked at. */
    const int *boundary_kind;
    /** What the boundary function may see of a stage, by state = submesh * config_count + config:
     *  how it takes its input and how it leaves its output. States with one port must have one
     *  submesh. Small integers from 0; fewer ports make a faster search. NULL: the state. */
    const int *in_port;
    const int *out_port;
    /** With `ordered`, [submesh][host]: a stage on the submesh may begin on that host. Where hosts
     *  differ, a submesh stands for one shape on one kind of hosts. NULL: anywhere. */
    const bool *allowed;
    /** With `ordered`, per device, a number from 0: boundaries before stages that begin on devices
     *  of one number cost the same. NULL: every device has its own. */
    const int *boundary_place;
    /** Some plan is known to have a T of no more than this: the search begins there. 0: none is. */
    double known;
    /** Only plans with a T below this are looked for; XM_ERR_NO_SOLUTION where there is none. 0:
     * all are. */
    double worth;
    /** Asked now and then; true ends the search with the best plan so far. NULL: never. */
    bool (*stop)(void *arg);
    void *stop_arg;
} ap_inter_op_problem_t;

#define AP_INTER_OP_PROBLEM_INIT                                                                   \
    {                                                                                              \
        0                                                                                          \
    }

typedef struct ap_inter_op_stage {
    int first_layer;
    int last_layer;
    int submesh;
    int config;
    int first_device;        /**< host-major device index; -1 when placement is not `ordered` */
    double seconds;          /**< t_i */
    double boundary_seconds; /**< b_i, from the stage before; 0 for the first */
} ap_inter_op_stage_t;

typedef struct ap_inter_op_result {
    double objective; /**< T, seconds */
    double sum;       /**< sum of stages and boundaries */
    double period;    /**< seconds from one micro-batch to the next */
    double seconds;   /**< what the judge says; T without a judge */
    double bound;     /**< no plan has a smaller T; equals `objective` unless stopped, too large, or
                         judged */
    int stage_count;
    ap_inter_op_stage_t *stages; /**< in pipeline order; owned by the result */
    int64_t limits_tried;        /**< points of the Pareto front that were computed */
} ap_inter_op_result_t;

/**
 * Submesh shapes with which a cluster can be tiled: parts of a host (1, m) and whole hosts (n, M).
 * With @p all every m and n; otherwise those that are powers of two or divide M or N, which are
 * Alpa's for powers of two. Writes at most @p capacity of them and returns how many there are.
 */
int ap_inter_op_submeshes(int hosts, int devices_per_host, bool all, ap_submesh_t *shapes,
                          int capacity);

/**
 * Solves the problem. XM_ERR_NO_SOLUTION: the sentence says whether memory, the stage limits, or
 * the table itself leaves nothing. XM_ERR_TIMEOUT: `stop` ended it before there was a plan. The
 * result is released with ap_inter_op_result_clear().
 */
xm_status_t ap_inter_op_solve(const ap_inter_op_problem_t *problem, ap_inter_op_result_t *result);

/**
 * How long stages of a plan with T below @p threshold can take: longest[(first * layers + last) *
 * submesh_count + submesh], 0 where it has none, of a problem whose costs need be no more than
 * lower bounds. Stage limits, memory and boundaries are not looked at.
 */
xm_status_t ap_inter_op_useful(const ap_inter_op_problem_t *problem, double threshold,
                               double *longest);

/** Frees what the result owns. NULL and an all-zero result are accepted. */
void ap_inter_op_result_clear(ap_inter_op_result_t *result);
