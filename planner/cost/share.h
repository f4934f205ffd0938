/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor that several operators read. It may have one copy in another spec, made once, from which
 * every reader may take; so k, v and q share one gather of their input. The gradients that come
 * back may be added in the copy's spec while each is still a partial sum over some axes, and be
 * reduced once, as Megatron does. Searches take a *value* of the tensor for a variable, so that
 * every cost is one between two variables. Private to planners.
 */
#pragma once

#include "planner/cost/reshard_memo.h"

typedef struct ap_shared_value {
    ap_spec_t made, copy; /* equal: there is no copy */
    int sum; /* gradients are added in the copy's spec, partial over these axes; -1: each goes back
                to the maker's spec by itself */
} ap_shared_value_t;

/* What the maker and the readers can do. */
typedef struct ap_shared {
    ap_reshard_memo_t *memo;
    int tensor;                             /* in the memo */
    double runs;                            /* of a resharding in a micro-batch */
    double (*add)(const void *, ap_spec_t); /* of adding two gradients; NULL: none come back */
    const void *adder;
    int rank, specs;
    const ap_spec_t *spec;
    const bool *made;  /* per spec: the maker has it */
    const int *wanted; /* [spec][set of axes]: readers that take it there, and whose gradient is
                          partial over the axes */
} ap_shared_t;

/* Lists what may serve; NULL: only counts. A copy that costs nothing or that fewer than two readers
 * want is none, and only those are looked at that are one step away. */
int ap_shared_values(const ap_shared_t *shared, ap_shared_value_t *values);

/* What the copy costs, and bringing the tensor where the value has it from where it is made. */
double ap_shared_make(const ap_shared_t *shared, const ap_shared_value_t *value, ap_spec_t made);
double ap_shared_read(const ap_shared_t *shared, const ap_shared_value_t *value, ap_spec_t used);

/* The same for the gradients: the sum on its way to the maker, and a reader's part on its way to
 * the sum or to the maker. */
double ap_shared_return(const ap_shared_t *shared, const ap_shared_value_t *value, ap_spec_t made);
double ap_shared_give(const ap_shared_t *shared, const ap_shared_value_t *value, ap_spec_t used,
                      unsigned partial);
