/**
 * @file planner.h
 * From a model and a cluster profile to the parallel plan with the smallest predicted step time.
 *
 * For every number of micro-batches all stages are priced, with and without recomputation
 * (intra-operator plans on every submesh and logical shape, stage.h), all boundaries
 * (cross_mesh.h), and stage slicing (inter_op.h) finds the best pipeline under the memory limit.
 * Stages occupy the devices in order, hosts filled one after the other, so consecutive stages are
 * as near each other as they can be. Where hosts differ, in which order they stand is searched as
 * well (host_order.h).
 *
 * Cases are taken up best first: each gets a bound (boundaries for free, memory shared without
 * waste), the most promising are solved, and what cannot improve the step by a thousandth is left
 * alone; so the result is within 0.1 % of the best plan of the whole space. Two are solved at a
 * time, on two cores if there are.
 *
 * Deterministic without a time limit. Threads: no shared state.
 *
 * @code
 *     ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
 *     ap_planner_result_t result;
 *
 *     params.model = "gpt-1.3b";
 *     params.profile = profile;
 *     status = ap_planner_run(&params, &result);
 *     if (status == XM_OK) {
 *         status = ap_plan_save(result.plan, "plan.json");
 *         ap_planner_result_clear(&result);
 *     }
 * @endcode
 */
#ifndef AP_PLANNER_PLANNER_H
#define AP_PLANNER_PLANNER_H

#include "comm/cluster_profile.h"
#include "planner/layering.h"
#include "planner/plan.h"
#include "planner/planner_model.h"
#include "planner/stage.h"

typedef struct ap_planner_params {
    size_t struct_size;
    /** A built-in name (frontend_zoo.h) or a file (frontend.h): HLO text, ONNX or a JSON graph. */
    const char *model;
    /** Instead of a file: its forward graph with layers (layering.h), of one micro-batch. Borrowed;
     *  `model` is then just what plans call it. */
    const ap_graph_t *graph;
    ap_layering_t layering;  /**< how a file's operators become layers */
    const char *const *dims; /**< sizes of symbolic dimensions of an ONNX file: "batch=8" */
    size_t dim_count;
    const xm_cluster_profile_t *profile;
    int layers;           /**< built-in language models: blocks, 0 = the model's own */
    int64_t global_batch; /**< samples of one step; 0 means 1024, or near that for a file */
    /** Numbers of micro-batches to try, each a divisor of the batch; NULL means the powers of two
     *  from 1 to 1024 that divide it. A file holds one micro-batch of its own size (the dimension
     * its inputs start with), so there is one number, which the batch and this must agree on. */
    const int64_t *micro_batches;
    size_t micro_batch_count;
    int min_stages, max_stages; /**< 0: no limit */
    double memory_limit;        /**< bytes one device may use; 0 means the profile's */
    ap_recompute_t recompute;
    /** Pipeline schedule of the plan: NULL or "1f1b"; another name of pipeline_schedule.h that a
     * plan can have (plan_schedule.h); "auto": all synchronous ones are searched, and the plan is
     * the one with the shortest simulated step. Stages are sliced for the schedule's own memory and
     * bubble (stage_table.h). */
    const char *schedule;
    /** Every number of hosts and of devices of a host may be a stage's; otherwise the powers of two
     *  and those that divide the cluster's. */
    bool all_submeshes;
    /** Part of the space to plan in (space.h), NULL: all of it. Its limits on stages and
     * recomputation are not looked at: `max_stages` and `recompute` say those. */
    const ap_space_t *space;
    /** Stages take the hosts in the profile's order. Otherwise, where hosts differ, other orders
     * are tried as well; with `pins` they are not. */
    bool keep_host_order;
    /** Stages are chosen as if transfers between them took no time, as Alpa does; the plan's times
     *  contain them all the same. */
    bool free_boundaries;
    /** Look for the least bottleneck, as a pipeline that is never emptied would (PipeDream). */
    bool steady;
    /** The stages of the plan, in order, all of them: only shardings, micro-batches and
     * recomputation are left to find. NULL: none. */
    const ap_planner_pin_t *pins;
    int pin_count;
    /** Stop after about this many seconds with the best plan so far; 0: never. */
    double time_limit;
    /** Plan cases that are worse than the best by up to this share as well; 0: only better ones. */
    double margin;
    /** Progress report, may be NULL: fraction done in [0, 1] and what is planned now. */
    void (*progress)(void *arg, double fraction, const char *what);
    void *progress_arg;
} ap_planner_params_t;

#define AP_PLANNER_PARAMS_INIT                                                                     \
    {                                                                                              \
        .struct_size = sizeof(ap_planner_params_t), .layering = AP_LAYERING_INIT                   \
    }

/** What came of one number of micro-batches, under one schedule. */
typedef struct ap_planner_trial {
    int64_t micro_batches;
    ap_recompute_t recompute;    /**< never uniform: there is a trial of each then */
    ap_schedule_kind_t schedule; /**< that stages were sliced for */
    bool solved; /**< false: nothing fits, or another case was certain to be better */
    /** Predicted seconds of the best plan found; INFINITY when not solved. */
    double step;
    int stage_count; /**< of that plan; 0 when not solved */
    double bound;    /**< no plan of this case is faster; INFINITY: none divides */
    bool exact;      /**< `step` is the smallest of this case */
} ap_planner_trial_t;

typedef struct ap_planner_result {
    ap_plan_t *plan;
    ap_planner_trial_t *trials;
    int trial_count;
    double objective; /**< step of the best plan */
    double bound;     /**< no plan of the space, in an order of hosts tried, has a step below */
    bool stopped;     /**< by the time limit */
    /** Orders of the hosts that differ, if the plan has the best of all of them; 1 where hosts are
     * alike or keep their order, 0: there are more, and the plan has the best of those tried. */
    int host_orders;
    int64_t stages_priced; /**< intra-operator questions that were answered */
    int64_t boundaries_simulated;
    ap_planner_model_t read; /**< what a file was read as; without a graph for built-in models */
} ap_planner_result_t;

/**
 * Plans. XM_ERR_NO_SOLUTION says which constraint leaves nothing and the smallest change that would
 * help: how much memory a device would need, or the nearest possible number of stages.
 */
XM_API xm_status_t ap_planner_run(const ap_planner_params_t *params, ap_planner_result_t *result);

/** Frees what the result owns. NULL and an all-zero result are accepted. */
XM_API void ap_planner_result_clear(ap_planner_result_t *result);

#endif
