/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file runtime.h
 * What a runtime adds to the prices of operators, links and tensors: the same on every row of a
 * model, whatever the plan, and found by fitting it to real steps (planner/judge.h).
 *
 * Threads: values, no shared state.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "comm/base.h"

/** All zero: nothing is known, and prices count as they are. */
typedef struct xm_runtime {
    double pass;       /**< seconds of a forward or a backward pass beside its operators */
    double collective; /**< collectives of gradients take so many times their price; 0: 1 */
    double spread;     /**< of steps, as a part: two of three lie so near the prediction */
    double context;    /**< bytes of a device that are taken before any tensor */
    double bucket; /**< gradients' all-reduces of fewer bytes run joined, so many at a time; 0: each
                      alone */
    double working;       /**< temporaries take so many times their price; 0: 1 */
    double memory_spread; /**< of memory, as `spread` */
    double slowdown;      /**< passes take so much of their time more while their device sends or
                             receives */
    double host_link;     /**< bytes/s between a device and its host's memory, each way */
    double send;          /**< seconds that a message keeps its sender busy, beside the time that it
                             is on the way */
    double split;         /**< a backward pass in halves takes so many times as long as a whole one;
                             below 1: 1 */
    double weight;        /**< the weight half's part of both, below 1; 0: a half */
    double jitter;        /**< passes take up to this share more or less than their time */
    double servers;       /**< parameter servers, one NIC each, that sum up gradients; 0: none */
    bool blocking;        /**< transfers keep devices busy (planner/pipeline/simulate.h) */
} xm_runtime_t;

/** Reads "runtime" of a document, which may be missing. Numbers below 0 are refused. */
xm_status_t xm_runtime_from_json(const json_t *root, xm_runtime_t *runtime);

/** The object; what is 0 is left out. */
json_t *xm_runtime_to_json(const xm_runtime_t *runtime);

/** The numbers as a file holds them. */
xm_runtime_t xm_runtime_rounded(const xm_runtime_t *runtime);
