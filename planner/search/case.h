/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/search/case.h
 * A planning question taken apart, for all who answer or judge it (the search, explanations,
 * verification, other planners' searches, requests to plug-ins): the *setup*, which reads the model
 * and the cluster once, and the *case*, which is the model in one number of micro-batches with its
 * stage table. Plans are made of a case's stages by plan_build.h.
 *
 * Threads: a setup may be read by several once it is open; one at a time per case. Not installed.
 */
#pragma once

#include "planner/cost.h"
#include "planner/search/plan_build.h"
#include "planner/search/planner.h"

/* Where none are asked for, powers of two up to this are tried. */
enum { AP_PLANNER_MOST_MICRO_BATCHES = 1024 };

/* What all cases of a run share. Close it also after a failed open. */
typedef struct ap_planner_setup {
    const ap_planner_params_t *params;
    int64_t global_batch;
    ap_memory_budget_t budget;
    double memory_limit, memory_reserve; /* of the device with the most, and kept free of it */
    ap_device_classes_t *classes;
    ap_cross_mesh_t *cross_mesh;
    ap_planner_model_t read; /* of a file */
    const ap_graph_t *graph; /* of one micro-batch of `samples`; NULL: a built-in model */
    int64_t samples;
    int64_t micro_batches; /* that the graph is one of; 0: there are others, of other sizes */
} ap_planner_setup_t;

/* For plans that take at most @p cap bytes of a device; 0: as much as there is. */
xm_status_t ap_planner_setup_open(const ap_planner_params_t *params, double cap,
                                  ap_planner_setup_t *setup);
/* The numbers of micro-batches asked for must be the model's, or divide the batch. */
xm_status_t ap_planner_check_counts(const ap_planner_setup_t *setup);
void ap_planner_setup_close(ap_planner_setup_t *setup);

/* What plans of this run say of model, batch and cluster. */
ap_plan_info_t ap_planner_info(const ap_planner_setup_t *setup);

enum { AP_PLANNER_MICRO_BATCHES = 64 /* numbers of them that one run may try */ };

/* How stages recompute: as is asked for; where nothing is, as the model does it. */
ap_recompute_t ap_planner_recompute(const ap_planner_setup_t *setup);

/* The numbers of micro-batches to try: those asked for, or the usual powers of two. */
xm_status_t ap_planner_micro_batches(const ap_planner_setup_t *setup, int64_t *values, int *count);

/* The model in so many micro-batches. `made` is the same graph where it has to be destroyed, else
 * NULL. */
xm_status_t ap_planner_graph_open(const ap_planner_setup_t *setup, int64_t micro_batches,
                                  const ap_graph_t **graph, ap_graph_t **made);

/* One number of micro-batches: the model and its stage table. */
typedef struct ap_planner_case {
    const ap_graph_t *graph;
    ap_graph_t *made; /* the same, of a built-in model */
    ap_stage_table_t *table;
    double version_share; /* of a stage's state, for one more version of the parameters */
    int accumulated;      /* micro-batches to an update of the parameters */
} ap_planner_case_t;

typedef struct ap_planner_case_options {
    int64_t micro_batches;
    ap_recompute_t recompute;    /* not uniform */
    ap_schedule_kind_t schedule; /* see stage_table.h; these two as well */
    int stages;
    const ap_planner_pin_t *pins; /* stages to plan quickly; NULL: the setup's */
    int pin_count;
    double memory_limit;     /* 0: the setup's */
    bool (*stop)(void *arg); /* likewise */
    void *stop_arg;
} ap_planner_case_options_t;

xm_status_t ap_planner_case_open(const ap_planner_setup_t *setup,
                                 const ap_planner_case_options_t *options, ap_planner_case_t *one);
void ap_planner_case_close(ap_planner_case_t *one);
