/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file build.h
 * Builders of programs.
 *
 * Most programs are one shape: devices as a mesh of *factors*; along each in turn the devices of a
 * line reduce and scatter what they have, and on the way back they gather. A ring is one factor of
 * all devices; halving-doubling has factors of 2; a hierarchy has one for each dimension; Themis
 * gives every piece of the data the order in which the dimensions have least to do so far. The last
 * factor may be summed over in another way: trees, servers, a switch.
 */
#pragma once

#include "resharding/collective/interconnect.h"
#include "resharding/collective/program.h"

enum { XM_FACTORS_MOST = 16 };

/** How the last factor of an all-reduce is summed over. */
typedef enum xm_last {
    XM_LAST_SCATTER, /**< like the others */
    XM_LAST_TREE,
    XM_LAST_DOUBLE_TREE, /**< two trees, inner nodes of one are leaves of the other */
    XM_LAST_PAIRS,       /**< neighbours first, then pairs of pairs, …, in this order */
    XM_LAST_SERVER,      /**< parameter servers: the first `servers` devices of a line in turn */
    XM_LAST_SWITCH,      /**< a switch adds; a part of the pieces falls back to servers */
} xm_last_t;

typedef struct xm_factor {
    int stride, extent; /**< device d is (d / stride) % extent in it */
    bool direct;        /**< everybody to everybody, else round a ring */
} xm_factor_t;

typedef struct xm_build {
    xm_collective_t kind; /**< any but all-to-all */
    int devices, pieces, factors;
    xm_factor_t factor[XM_FACTORS_MOST];
    const xm_interconnect_t *balance; /**< Themis: factors are its dimensions, ordered by load */
    xm_last_t last;
    int servers;     /**< at least 1 where there are any */
    double fallback; /**< share of the pieces that a switch leaves to servers (ATP) */
} xm_build_t;

xm_status_t xm_build_factored(const xm_build_t *build, xm_program_t **program);

/** Every block from its device straight to where it is needed; round r is from d to d + r. */
xm_status_t xm_build_all_to_all(int devices, xm_program_t **program);

/**
 * Spanning trees packed into links (Blink): each sums its share up to device 0 and brings it back
 * down, in so many pieces of the largest share. @p rate is what no packing can exceed: what the
 * lengths of the links that the search ends with prove (linear programming duality), bytes/s. Links
 * are equal in both directions.
 */
xm_status_t xm_build_packed_trees(const xm_interconnect_t *interconnect, int pieces, double *rate,
                                  xm_program_t **program);
