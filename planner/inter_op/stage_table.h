/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stage_table.h
 * Every stage a pipeline of one model could have, with its cost: the table that stage slicing
 * (inter_op.h) searches, for one number of micro-batches.
 *
 * For each range of layers, submesh and logical shape the table asks stage.h for the best
 * intra-operator plan; then, for the few specs that such plans like for the passing tensors, for
 * the best plan that takes and leaves its tensors so. Each of these is a configuration, so the
 * search weighs what a stage pays for another spec against what the boundary saves by it. Where
 * memory limits how many stages may follow, plans that need less memory are configurations as well
 * (`lean_plans`), among them those that recompute, if stages may choose.
 *
 * Stages are chosen in two searches. The first proposes: with the objective of inter_op.h, in which
 * a stage's time contains its share of what happens once a step, and which for schedules that fill
 * the pipeline faster counts the share of the sum that ap_schedule_fill_share() says. The second
 * proves: its objective has only what every step contains for certain, so it is a bound. Both have
 * their plans simulated (planner/pipeline/step.h), and the fastest is taken.
 *
 * Ranges of equal layers (by ap_graph_layer_hash()) are asked for once, and only where a stage can
 * be part of a plan fast enough, by the bounds of inter_op.h. Threads: one at a time per object.
 * Not installed.
 */
#pragma once

#include "planner/boundary.h"
#include "planner/cost.h"
#include "planner/inter_op/inter_op.h"
#include "planner/pipeline.h"
#include "planner/stage.h"

typedef struct ap_stage_table ap_stage_table_t;

/** Steps are below the estimates of the search by a hundredth at most: forward passes of an early
 * stage may run while the first micro-batch is on its way. */
#define AP_STAGE_TABLE_ESTIMATED 0.99

/** What is borrowed must outlive the table. */
typedef struct ap_stage_table_params {
    const ap_graph_t *graph;            /**< forward graph of one micro-batch */
    const ap_device_classes_t *classes; /**< what devices there are */
    ap_cross_mesh_t *cross_mesh;
    int hosts, devices_per_host; /**< the cluster */
    int micro_batches;
    ap_recompute_t recompute; /**< all stages, none, or (auto) each as it is faster */
    /** Whose memory stages are given, and whose bubble the objective has. */
    ap_schedule_kind_t schedule;
    int stages; /**< memory as in a pipeline of so many, at least; 0: as few as there can be. It
                   matters to schedules whose memory depends on the stages before */
    double memory_limit;  /**< bytes one device may use; 0: what its class has */
    bool lean_plans;      /**< where memory binds, plan for less memory as well (dearer to make) */
    bool all_submeshes;   /**< every number of hosts and devices, see ap_inter_op_submeshes() */
    bool free_boundaries; /**< slice as if transfers between stages took no time */
    bool spare_hosts;     /**< hosts may be left out, the last in the order */
    const ap_space_t *space;      /**< part of the space to search, NULL: all */
    const ap_planner_pin_t *pins; /**< the only stages there are; NULL: all */
    int pin_count;
    bool (*stop)(void *arg); /**< as in ap_inter_op_problem_t */
    void *stop_arg;
} ap_stage_table_params_t;

/** Logical shape and specs of a configuration. */
typedef struct ap_stage_config {
    ap_submesh_t submesh;
    int shape[2];
    bool has_input, has_output; /**< false at the ends of the model */
    ap_spec_t input, output;
    bool recompute;
} ap_stage_config_t;

/** Whether a table has room for the shapes of submeshes on these classes of devices. */
bool ap_stage_table_has_room(const ap_device_classes_t *classes, int devices_per_host,
                             bool all_submeshes);

/** XM_ERR_TIMEOUT: `stop` ended it. */
xm_status_t ap_stage_table_create(const ap_stage_table_params_t *params, ap_stage_table_t **table);

/**
 * Puts the hosts into another order, that of @p classes (ap_device_classes_arrange() of the
 * table's) and of @p cross_mesh; both are borrowed. What is priced stays so: a stage costs the same
 * on hosts of one class wherever they stand.
 */
void ap_stage_table_arrange(ap_stage_table_t *table, const ap_device_classes_t *classes,
                            ap_cross_mesh_t *cross_mesh);

/** From now on only plans with a step below @p seconds are looked for: solving ends early, with
 * XM_ERR_NO_SOLUTION, where there is none. 0: all are. */
void ap_stage_table_beat(ap_stage_table_t *table, double seconds);

/**
 * Stage slicing over the table; stage limits as in ap_inter_op_problem_t. Prices the stages that
 * can matter as it goes. In the result `seconds` is the simulated step, and `bound` a step that no
 * plan of these stages is below. XM_ERR_NO_SOLUTION also when no plan is worth it; `bound` is set
 * then, too.
 */
xm_status_t ap_stage_table_solve(ap_stage_table_t *table, int min_stages, int max_stages,
                                 ap_inter_op_result_t *result);

/**
 * An estimate of the best step, cheap to have: the objective where boundaries take no time, a stage
 * is as fast as without a memory limit, and what it keeps is divided among its devices without
 * waste. XM_ERR_NO_SOLUTION: not even so is there a plan.
 */
xm_status_t ap_stage_table_estimate(ap_stage_table_t *table, int min_stages, int max_stages,
                                    double *seconds);

/** A bound, cheap to have: no step of this table is below, as far as the stages that are planned
 * freely do the least for each micro-batch. */
xm_status_t ap_stage_table_bound(ap_stage_table_t *table, int min_stages, int max_stages,
                                 double *seconds);

/** What a stage of the result is. */
void ap_stage_table_config(const ap_stage_table_t *table, const ap_inter_op_stage_t *stage,
                           ap_stage_config_t *config);

/** The question to stage.h that stands behind a stage of the result. */
void ap_stage_table_query(const ap_stage_table_t *table, const ap_inter_op_stage_t *stage,
                          ap_stage_query_t *query);

/** Where stages on so many hosts from a host on are priced; NULL: the table has no such stages. */
ap_stage_context_t *ap_stage_table_context(ap_stage_table_t *table, int first_host, int hosts,
                                           bool recompute);
const ap_stage_table_params_t *ap_stage_table_params(const ap_stage_table_t *table);

/** Questions asked of stage.h so far. */
int64_t ap_stage_table_evaluated(const ap_stage_table_t *table);

/** NULL is accepted. */
void ap_stage_table_destroy(ap_stage_table_t *table);
