/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file operator_clustering.h
 * Cuts a sequence of operators into layers: consecutive ones, with as few bytes as possible between
 * them and about as many FLOPs each.
 *
 * Layer i … k receives C(i, k) bytes: every tensor that was made before i and is used in it, once.
 * Among all ways to make `layers` layers of at most (1 + delta)·FLOPs/layers each,
 * ap_operator_clustering_solve() finds the one whose largest C is smallest; of these the one with
 * the smallest sum of C; of these the one with the smallest sum of squares of FLOPs. Exact, by
 *
 *     G(k, r) = min over i of max(G(i - 1, r - 1), C(i, k))
 *
 * and a second pass of the same form under the bottleneck that the first one found. O(K²·L) time
 * and O(K·L) memory for K places to cut. Source: Alpa (OSDI'22), section 5.2, equation 5.
 *
 * What the sequence is made of is the caller's business: see layering.h for operator graphs.
 * Deterministic. Threads: no shared state.
 *
 * @code
 *     ap_operator_clustering_t problem = AP_OPERATOR_CLUSTERING_INIT;
 *     problem.ops = 4; problem.flops = flops;            // of each operator
 *     problem.tensors = 3; problem.bytes = bytes; problem.maker = maker;
 *     problem.use_begin = begin; problem.use_tensor = used; // of op o: begin[o] … begin[o + 1] - 1
 *     problem.layers = 2;
 *     status = ap_operator_clustering_solve(&problem, &result);
 * @endcode
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "comm/base.h"

/** Everything is borrowed. */
typedef struct ap_operator_clustering {
    int ops;
    const double *flops;   /**< per operator, not negative */
    const bool *heavy;     /**< per operator: counts for min_heavy; NULL: none does */
    const bool *may_begin; /**< per operator: a layer may begin with it; NULL: with any */
    int tensors;
    const double *bytes;  /**< per tensor */
    const int *maker;     /**< per tensor: the operator that makes it */
    const int *use_begin; /**< ops + 1 places in use_tensor */
    const int
        *use_tensor; /**< tensors that operators use, all of earlier makers; repeats count once */
    int layers;      /**< wanted */
    double delta;    /**< how far a layer's FLOPs may exceed the mean: 0.5 means half of it */
    int min_heavy;   /**< heavy operators that every layer but the first and last must have */
} ap_operator_clustering_t;

#define AP_OPERATOR_CLUSTERING_INIT                                                                \
    {                                                                                              \
        .delta = 0.5                                                                               \
    }

typedef struct ap_operator_clusters {
    int layers;
    int *first;           /**< per layer: its first operator */
    double largest_bytes; /**< the largest that a layer receives */
    double sum_bytes;
    double largest_flops;
} ap_operator_clusters_t;

/**
 * Clusters. XM_ERR_NO_SOLUTION when no such layers exist: more layers than places, or a part that
 * cannot be cut exceeds its share; the sentence has the numbers.
 */
xm_status_t ap_operator_clustering_solve(const ap_operator_clustering_t *problem,
                                         ap_operator_clusters_t *result);

/** NULL and an all-zero result are accepted. */
void ap_operator_clusters_clear(ap_operator_clusters_t *result);
