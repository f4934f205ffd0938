/**
 * @file piper_stage.h
 * What a stage takes on t * d devices, for every number of micro-batches in flight. Not installed.
 */
#ifndef AP_PLANNER_PIPER_STAGE_H
#define AP_PLANNER_PIPER_STAGE_H

#include "planner/piper.h"

/* The stage takes `seconds` as long as no more than `in_flight` micro-batches are in flight. */
typedef struct ap_piper_step {
    double seconds;
    int32_t in_flight;
} ap_piper_step_t;

/* A layer's variants on given degrees. */
typedef struct ap_piper_item {
    double seconds[AP_PIPER_VARIANTS], each[AP_PIPER_VARIANTS], fixed[AP_PIPER_VARIANTS];
    int count;  /* of variants */
    int chosen; /* by the last answer */
} ap_piper_item_t;

/* Room for a stage; items in the order of the nodes. */
typedef struct ap_piper_pricing {
    const ap_piper_problem_t *problem;
    bool *inside; /* [node] of the stage */
    int *nodes;   /* of the stage */
    int node_count;
    ap_piper_item_t *items;
    int *order;   /* of the items that can save memory */
    double *saving, *cost;
    bool *best, *trial;
    bool exact; /* every answer so far was proved best */
} ap_piper_pricing_t;

xm_status_t ap_piper_pricing_create(const ap_piper_problem_t *problem, ap_piper_pricing_t *pricing);
void ap_piper_pricing_clear(ap_piper_pricing_t *pricing);

/* Sets the items for degrees t and d; false when a layer cannot run on t devices. */
bool ap_piper_pricing_set(ap_piper_pricing_t *pricing, int tensor, int data);

/*
 * The least seconds with @p in_flight micro-batches in flight, INFINITY when they do not fit; @p up_to
 * is the largest number for which the same answer holds.
 */
double ap_piper_pricing_best(ap_piper_pricing_t *pricing, int in_flight, int most, int *up_to);

#endif
