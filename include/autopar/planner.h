/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner.h
 * From a model and a cluster profile to the parallel plan with the smallest predicted step time.
 *
 * For every number of micro-batches all stages are priced, with and without recomputation
 * (intra-operator plans on every submesh and logical shape), all boundaries between them, and stage
 * slicing finds the best pipeline under the memory limit. Stages occupy the devices in order, hosts
 * filled one after the other. Where hosts differ, in which order they stand is searched as well.
 *
 * Cases are taken up best first, and what cannot improve the step by a thousandth is left alone; so
 * the result is within 0.1 % of the best plan of the whole space. Two are solved at a time, on two
 * cores if there are.
 *
 * A *space* limits what may be planned. A mesh axis has a *role* in an operator, by the factor that
 * it cuts: `data` for the batch, `sequence` for what else the inputs extend over (tokens, pixels),
 * `tensor` for the rest (features, heads, experts). A space says which roles each axis may have.
 *
 * Units: seconds, bytes. Deterministic without a time limit. Ownership: what parameters point at is
 * borrowed for the call. Threads: no shared state.
 *
 * @code
 *     xm_status_t plan_model(const ap_profile_t *profile, const char *path)
 *     {
 *         ap_planner_params_t params = AP_PLANNER_PARAMS_INIT;
 *         ap_plan_t *plan;
 *         xm_status_t status;
 *
 *         params.model = "gpt-1.3b";
 *         params.profile = profile;
 *         status = ap_planner_plan(&params, &plan, NULL);
 *         if (status == XM_OK) {
 *             status = ap_plan_save(plan, path);
 *             ap_plan_destroy(plan);
 *         }
 *         return status;
 *     }
 * @endcode
 */
#ifndef AUTOPAR_PLANNER_H
#define AUTOPAR_PLANNER_H

#include <autopar/plan.h>
#include <autopar/profile.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Whether layers keep their activations or run their forward pass again. */
typedef enum ap_recompute {
    AP_RECOMPUTE_AUTO, /**< each stage as it makes the step shortest */
    AP_RECOMPUTE_OFF,
    AP_RECOMPUTE_ON,
    AP_RECOMPUTE_UNIFORM /**< all stages or none, whichever predicts the shorter step */
} ap_recompute_t;

enum {
    AP_ROLE_DATA = 1U << 0,
    AP_ROLE_SEQUENCE = 1U << 1,
    AP_ROLE_TENSOR = 1U << 2,
    AP_ROLES_ALL = AP_ROLE_DATA | AP_ROLE_SEQUENCE | AP_ROLE_TENSOR
};

/** How the state of a parameter lives on the axes that its spec leaves free. */
typedef enum ap_parameter_mode {
    AP_PARAMETER_REPLICATED,    /**< gradients all-reduced */
    AP_PARAMETER_STATE_SHARDED, /**< optimizer state sharded: reduce-scatter, then all-gather
                                   (ZeRO-1) */
    AP_PARAMETER_SHARDED,       /**< weight too, gathered in every pass (ZeRO-3) */
    AP_PARAMETER_MODES
} ap_parameter_mode_t;

/** A part of the space of plans. An operator that has a batch factor must cut it over an axis that
 * may have the role `data` only: data parallelism repeats no work. */
typedef struct ap_space {
    size_t struct_size;
    unsigned roles[AP_MAX_MESH_RANK]; /**< per mesh axis: a set of AP_ROLE_… */
    unsigned parameter_modes;         /**< set of 1 << ap_parameter_mode_t */
    bool scatter;                     /**< partial results may be reduce-scattered */
    bool one_axis;                    /**< logical meshes are 1 x n only */
    bool pipeline;                    /**< more than one stage */
    int stage_devices;                /**< most devices of one stage; 0: any number */
    bool recompute, keep;             /**< layers may run again, may keep their activations */
    bool mixed;                       /**< each stage as it likes; otherwise all alike */
    /** Products of matrices cut a factor over every axis, of a role that the axis has, where any
     * does: what asks for tensor parallelism shall get it, also where repeating is cheaper. */
    bool cut_products;
    int stage_shape[2]; /**< the logical mesh of every stage; 0 x 0: any */
} ap_space_t;

/** Everything that the planner knows. */
#define AP_SPACE_INIT                                                                              \
    {                                                                                              \
        sizeof(ap_space_t), {AP_ROLES_ALL, AP_ROLES_ALL, AP_ROLES_ALL, AP_ROLES_ALL},              \
            (1U << AP_PARAMETER_MODES) - 1U, true, false, true, 0, true, true, true, false,        \
        {                                                                                          \
            0, 0                                                                                   \
        }                                                                                          \
    }

/** A stage that is given, not looked for. This structure never grows. */
typedef struct ap_planner_pin {
    int first_layer, last_layer;
    int hosts, devices; /**< submesh */
    int shape[2];       /**< its logical shape; n x 1 is 1 x n; 0 x 0 is any */
} ap_planner_pin_t;

typedef struct ap_planner_params {
    size_t struct_size;
    /** A built-in name or a file: HLO text, ONNX or a JSON graph (frontend.h). */
    const char *model;
    /** Instead of a file: its forward graph with layers (graph.h), of one micro-batch; `model` is
     * then just what plans call it. */
    const ap_graph_t *graph;
    ap_layering_t layering;  /**< how a file's operators become layers */
    const char *const *dims; /**< sizes of symbolic dimensions of an ONNX file: "batch=8" */
    size_t dim_count;
    const ap_profile_t *profile;
    int layers;           /**< built-in language models: blocks, 0 = the model's own */
    int64_t global_batch; /**< samples of one step; 0 means 1024, or near that for a file */
    /** Numbers of micro-batches to try, each a divisor of the batch; NULL means the powers of two
     *  from 1 to 1024 that divide it. A file of which the samples (the dimension that its inputs
     * start with) cannot be followed has one number, which the batch and this must agree on. */
    const int64_t *micro_batches;
    size_t micro_batch_count;
    int min_stages, max_stages; /**< 0: no limit */
    double memory_limit;        /**< bytes one device may use; 0 means the profile's */
    ap_recompute_t recompute;
    /** Pipeline schedule of the plan: NULL or "1f1b"; another name of docs/pipeline-schedules.md
     * that a plan can have; "auto": all synchronous ones are searched, and the plan is the one with
     * the shortest simulated step. Stages are sliced for the schedule's own memory and bubble. */
    const char *schedule;
    /** Every number of hosts and of devices of a host may be a stage's; otherwise the powers of two
     *  and those that divide the cluster's. */
    bool all_submeshes;
    /** Part of the space to plan in, NULL: all of it. Its limits on stages and recomputation are
     * not looked at: `max_stages` and `recompute` say those. */
    const ap_space_t *space;
    /** Stages take the hosts in the profile's order. Otherwise, where hosts differ, other orders
     * are tried as well; with `pins` they are not. */
    bool keep_host_order;
    /** Stages take all hosts. Otherwise hosts are left out where that is faster. */
    bool all_devices;
    /** Stages are chosen as if transfers between them took no time, as Alpa does; the plan's times
     *  contain them all the same. */
    bool free_boundaries;
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
    /** What plans leave free of a device's memory for its context, for communication and for
     * fragmentation: bytes, or below 1 a part. AP_MEMORY_RESERVE_DEFAULT: what runtimes need, of
     * the profile's memory; nothing of a `memory_limit`. */
    double memory_reserve;
    /** The parameters of so many layers, the first, are not trained: no backward pass, gradient or
     * optimizer state is for them. */
    int frozen;
} ap_planner_params_t;

#define AP_PLANNER_PARAMS_INIT                                                                     \
    {                                                                                              \
        sizeof(ap_planner_params_t), NULL, NULL, AP_LAYERING_INIT, NULL, 0, NULL, 0, 0, NULL, 0,   \
            0, 0, 0, AP_RECOMPUTE_AUTO, NULL, false, NULL, false, false, false, NULL, 0, 0, 0,     \
            NULL, NULL, AP_MEMORY_RESERVE_DEFAULT, 0                                               \
    }

/** How a search went. Filled in as far as the caller's `struct_size` reaches. */
typedef struct ap_planner_info {
    size_t struct_size;
    double objective; /**< step of the best plan */
    double bound;     /**< no plan of the space, in an order of hosts tried, has a step below */
    bool stopped;     /**< by the time limit */
    /** Orders of the hosts that differ, if the plan has the best of all of them; 1 where hosts are
     * alike or keep their order, 0: there are more, and the plan has the best of those tried. */
    int host_orders;
    int64_t stages_priced; /**< intra-operator questions that were answered */
    int64_t boundaries_simulated;
} ap_planner_info_t;

#define AP_PLANNER_INFO_INIT                                                                       \
    {                                                                                              \
        sizeof(ap_planner_info_t), 0, 0, false, 0, 0, 0                                            \
    }

/**
 * Plans. @p info may be NULL. XM_ERR_NO_SOLUTION says which constraint leaves nothing and the
 * smallest change that would help: how much memory a device would need, or the nearest possible
 * number of stages.
 */
XM_API xm_status_t ap_planner_plan(const ap_planner_params_t *params, ap_plan_t **plan,
                                   ap_planner_info_t *info);

#ifdef __cplusplus
}
#endif

#endif
