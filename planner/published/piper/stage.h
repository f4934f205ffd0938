/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/published/piper/stage.h
 * What a stage takes on t * d devices, for every number of micro-batches in flight. Not installed.
 *
 * Layers that are alike in all that counts form a kind: models repeat one block, so a stage has
 * many layers and few kinds, and how many layers of each kind run the slower way is all that a
 * knapsack has to choose.
 */
#pragma once

#include "planner/published/piper/piper.h"

/* The stage takes `seconds` as long as no more than `in_flight` micro-batches are in flight. */
typedef struct ap_piper_step {
    double seconds;
    int32_t in_flight;
} ap_piper_step_t;

/* Layers of one kind on t devices. */
typedef struct ap_piper_kind {
    int count, variants;
    double time[AP_PIPER_VARIANTS], parameters[AP_PIPER_VARIANTS];
    double border[AP_PIPER_VARIANTS]; /* bytes that pass the stage's border there, each sample */
    double each[AP_PIPER_VARIANTS], fixed[AP_PIPER_VARIANTS];
    double seconds[AP_PIPER_VARIANTS]; /* with d */
    int fast;                          /* the variant that takes less time */
    int switched;                      /* layers that run the other way, in the last answer */
    double cost, saving;               /* of one that does */
} ap_piper_kind_t;

/* Kinds whose layers save the same. */
typedef struct ap_piper_chain {
    int first, end; /* of the pricing's order */
    int count;      /* layers */
    double saving;  /* of each */
    double cost;    /* of the cheapest */
} ap_piper_chain_t;

typedef struct ap_piper_pricing {
    const ap_piper_problem_t *problem;
    bool *inside; /* [node] of the stage */
    int *nodes;   /* of the stage */
    int node_count;
    int *kind_of; /* for each of `nodes` */
    ap_piper_kind_t *kinds;
    int kind_count;
    int *order; /* kinds that can save memory */
    ap_piper_chain_t *chains;
    int *trial, *best; /* [chain]: layers that run the other way */
    bool exact;        /* every answer so far was proved best */
    xm_arena_t arena;
} ap_piper_pricing_t;

xm_status_t ap_piper_pricing_create(const ap_piper_problem_t *problem, ap_piper_pricing_t *pricing);
void ap_piper_pricing_clear(ap_piper_pricing_t *pricing);

/* Sorts the stage's layers into kinds for degree t; false when a layer cannot run on t devices. */
bool ap_piper_pricing_set_tensor(ap_piper_pricing_t *pricing, int tensor);
/* Then sets degree d. */
void ap_piper_pricing_set_data(ap_piper_pricing_t *pricing, int data);

/*
 * The least seconds with @p in_flight micro-batches in flight, INFINITY when they do not fit; @p
 * up_to is the largest number, at most @p most, for which the same answer holds.
 */
double ap_piper_pricing_best(ap_piper_pricing_t *pricing, int in_flight, int most, int *up_to);

/* Memory of the last answer. */
double ap_piper_pricing_memory(const ap_piper_pricing_t *pricing, int in_flight);
/* Writes the variant of every layer in the last answer, in the order of `nodes`. */
void ap_piper_pricing_variants(const ap_piper_pricing_t *pricing, int *variants);
