/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan.h
 * Parallel plan: which layers run where, how every tensor is sharded there, what passes between
 * the stages, and what all of it is predicted to cost.
 *
 * A plan is made by the planner (planner.h) or read from a file, checked once, and immutable from
 * then on. On disk it is a versioned JSON document (docs/plan.md); reading is strict: an unknown
 * key, a stage that leaves a gap, a spec that does not fit its mesh are errors that name the place.
 *
 * The digest covers the whole document but itself, so equal plans have equal digests on every
 * machine. A file whose digest does not match its contents is refused.
 *
 * Devices are numbered host-major over the cluster and are the ranks of the job. A mesh shape
 * [d0, d1] with devices [a, b, c, …] puts logical device (i, j) on the entry i * d1 + j.
 *
 * Units: seconds, bytes. Ownership: everything reached through a plan belongs to it. Threads:
 * immutable.
 *
 * @code
 *     xm_status_t print_stages(const char *path)
 *     {
 *         ap_plan_t *plan;
 *         xm_status_t status = ap_plan_load(path, &plan);
 *
 *         if (status != XM_OK) {
 *             return status;
 *         }
 *         for (int i = 0; i < ap_plan_stages(plan); i++) {
 *             const ap_plan_stage_t *stage = ap_plan_stage(plan, i);
 *
 *             printf("layers %d-%d on %d x %d\n", stage->first_layer, stage->last_layer,
 *                    stage->shape[0], stage->shape[1]);
 *         }
 *         ap_plan_destroy(plan);
 *         return XM_OK;
 *     }
 * @endcode
 */
#ifndef AUTOPAR_PLAN_H
#define AUTOPAR_PLAN_H

#include <autopar/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ap_plan ap_plan_t;

/** One operator of a stage: its factors and how its tensors are cut. */
typedef struct ap_plan_op {
    const char *name;     /**< in the first layer of the group, e.g. "qkv" */
    const char *rule;     /**< factors, e.g. "bsh,hf->bsf" */
    const char *operands; /**< specs, comma-separated, e.g. "S0RR,RS1" */
    const char *results;
    /** how what is partial over several axes is summed, by the rule's term, e.g.
     * "1: reduce-scatter 1, all-reduce 0, all-gather 1"; "" where one all-reduce does */
    const char *sums;
} ap_plan_op_t;

/** Consecutive layers of a stage whose operators are all sharded alike. */
typedef struct ap_plan_layers {
    int first_layer, last_layer;
    int op_count;
    const ap_plan_op_t *ops;
} ap_plan_layers_t;

/** One pipeline stage. */
typedef struct {
    int first_layer, last_layer;
    int hosts, devices_per_host; /**< submesh */
    int shape[2];                /**< logical mesh shape */
    const int *devices;          /**< hosts * devices_per_host ranks in mesh order */
    double forward;              /**< seconds of one micro-batch */
    double backward;             /**< seconds of one micro-batch */
    double sync;                 /**< gradient synchronisation, seconds per step */
    double update;               /**< parameter update, seconds per step */
    double state_bytes;          /**< parameters, gradients, optimizer state of one device */
    double activation_bytes;     /**< of one device and one micro-batch in flight */
    double work_bytes;           /**< temporaries of the largest layer */
    int in_flight;               /**< micro-batches whose activations live at once */
    double repeated[2]; /**< per mesh axis: share of the FLOPs that its devices all perform alike */
    bool recompute;     /**< layers keep their input only and run their forward pass again */
    int layer_count;    /**< groups in `layers` */
    const ap_plan_layers_t *layers;
} ap_plan_stage_t;

/** One side of a resharding, in the form that libcrossmesh takes. */
typedef struct ap_plan_side {
    int shape[2];     /**< mesh shape */
    int device_count; /**< shape[0] * shape[1] */
    const int *devices;
    const char *spec; /**< e.g. "S0RR" */
} ap_plan_side_t;

enum { AP_LINK_OUT, AP_LINK_IN, AP_LINK_DIRECTIONS };

/** What a resharding occupies of one host's NICs, or of one rack's uplink: for how long each
 * direction is busy, in seconds. */
typedef struct ap_link_load {
    bool rack;                           /**< the uplink of a rack; else the NICs of a host */
    int index;                           /**< of the host or rack */
    double forward[AP_LINK_DIRECTIONS];  /**< by the tensor, from a stage to the next */
    double backward[AP_LINK_DIRECTIONS]; /**< by its gradient, the way back */
} ap_link_load_t;

/** One more tensor of a boundary, whose meshes are the boundary's. */
typedef struct ap_plan_tensor {
    const char *tensor;
    int rank;
    int64_t shape[AP_MAX_RANK];
    const char *dtype;
    int64_t element_size;
    int64_t bytes;         /**< of the whole tensor */
    const char *src, *dst; /**< specs */
} ap_plan_tensor_t;

/**
 * What passes from one stage to a later one, for one micro-batch: a tensor, mostly, or several that
 * are resharded together. Gradients take the way back with source and destination exchanged.
 */
typedef struct {
    int from, to; /**< stages */
    const char *tensor;
    int rank;
    int64_t shape[AP_MAX_RANK];
    const char *dtype; /**< "float16", "float32", … */
    int64_t element_size;
    ap_plan_side_t src, dst;
    int64_t bytes;                /**< of the whole tensor */
    const ap_plan_tensor_t *more; /**< that pass with it */
    int more_count;
    int64_t net_bytes;     /**< that cross from host to host, forward */
    double forward;        /**< predicted seconds */
    double backward;       /**< predicted seconds of the gradient */
    double bound;          /**< lower bound of `forward` */
    const char *strategy;  /**< that the prediction is for, e.g. "broadcast" */
    const char *scheduler; /**< e.g. "balance" */
    /** Seconds that hosts' NICs and racks' uplinks are busy with it; none: not known, and taken to
     * share nothing. */
    const ap_link_load_t *links;
    int link_count;
} ap_plan_boundary_t;

/** How a model file became layers, as far as the planner was told: whoever reads the file again has
 * the same layers. All zero where it was not told anything. */
typedef struct ap_plan_reading {
    int layers;          /**< as in ap_layering_t */
    const char *pattern; /**< NULL: none */
    const char *const *marks;
    size_t mark_count;
    const char *const *dims; /**< sizes of symbolic dimensions: "batch=8" */
    size_t dim_count;
} ap_plan_reading_t;

/** What concerns the whole plan. */
typedef struct {
    const char *model;
    ap_plan_reading_t reading;
    int layers;
    double parameters; /**< trained elements of the model */
    int64_t global_batch;
    int64_t micro_batches;
    const char *schedule; /**< "1f1b", "zb-h1", …: a name of docs/pipeline-schedules.md */
    bool rematerialize;   /**< every stage recomputes; not looked at when a plan is created */
    const char *cluster;  /**< name of the cluster profile */
    const char *cluster_provenance;
    int hosts, devices_per_host;
    /** Where stages do not take the cluster's hosts in their order: the host that comes first, the
     * one that comes next, …, each once; NULL: in their order. Ranks everywhere are those of the
     * cluster all the same. */
    const int *host_order;
    double memory_limit;   /**< bytes one device may use */
    double step;           /**< predicted seconds of one training step: the schedule simulated */
    double bound;          /**< no plan that was looked for has a step below; 0: not known */
    double sum;            /**< stages and boundaries once through */
    double bottleneck;     /**< largest stage or boundary */
    const char *optimiser; /**< how the plan was found, one line */
    double memory_reserve; /**< bytes of a device that are left free for its runtime */
    int frozen;            /**< layers, the first, whose parameters are not trained */
    double send;   /**< seconds that a message between stages keeps its sender busy, beside its own
                      time; part of `step` */
    double split;  /**< a backward pass in halves, where the schedule has such, takes so many times
                      as long as a whole one; part of `step`; below 1: 1 */
    double weight; /**< the part of both halves that the gradients of parameters are, below 1; part
                      of `step`; 0: a half */
} ap_plan_info_t;

/** Reads a file. Errors name the file, and the line and column or the place in the document. */
XM_API xm_status_t ap_plan_load(const char *path, ap_plan_t **plan);

/** The same from text in memory; @p name stands for the file in sentences. */
XM_API xm_status_t ap_plan_parse(const char *name, const char *text, size_t length,
                                 ap_plan_t **plan);

/** Writes the JSON document (to a temporary name in the same folder, then renamed). */
XM_API xm_status_t ap_plan_save(const ap_plan_t *plan, const char *path);

/** The JSON document, which ap_free() ends. NULL when memory is short. */
XM_API char *ap_plan_text(const ap_plan_t *plan);

/** The plan as an aligned table for people, which ap_free() ends: settings, one line per stage, one
 * per resharding, the totals. */
XM_API xm_status_t ap_plan_table(const ap_plan_t *plan, char **text);

/** Writes a figure as SVG: hosts and devices, the stages on them, the reshardings between, and the
 * first micro-batches along the time axis. */
XM_API xm_status_t ap_plan_plot(const ap_plan_t *plan, const char *path);

XM_API const ap_plan_info_t *ap_plan_info(const ap_plan_t *plan);
XM_API int ap_plan_stages(const ap_plan_t *plan);
XM_API const ap_plan_stage_t *ap_plan_stage(const ap_plan_t *plan, int index);
/** Number of stages minus one, and one for each two stages between which tensors pass over
 * others. */
XM_API int ap_plan_boundaries(const ap_plan_t *plan);
/** Boundary @p index lies between stages index and index + 1; those over stages follow, ordered by
 * `from`, then `to`. */
XM_API const ap_plan_boundary_t *ap_plan_boundary(const ap_plan_t *plan, int index);

/** Bytes a stage needs on each of its devices. */
XM_API double ap_plan_stage_memory(const ap_plan_stage_t *stage);

/** 32 hexadecimal digits. */
XM_API const char *ap_plan_digest(const ap_plan_t *plan);

/** NULL is accepted. */
XM_API void ap_plan_destroy(ap_plan_t *plan);

#ifdef __cplusplus
}
#endif

#endif
