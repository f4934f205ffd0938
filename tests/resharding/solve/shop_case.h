/* SPDX-License-Identifier: Apache-2.0 */
/* Random problems for the tests of schedulers that work on hosts, and a check of what they return.
 */
#pragma once

#include "resharding/solve/problem.h"

#include "tests/resharding/plan/random_case.h"

typedef struct {
    xm_problem_t problem;
    xm_network_t *network;
    xm_demand_t *demands;
    int *hosts; /* of all demands */
} shop_case_t;

typedef enum {
    SHOP_RANDOM,  /* any holders and receivers */
    SHOP_LAYOUT,  /* shards replicated over groups of hosts, on both sides */
    SHOP_UNICAST, /* one holder and one receiver each */
} shop_kind_t;

/* At most `hosts` hosts; all of one rate, or each direction of its own. */
void shop_case_create(random_t *random, shop_kind_t kind, int hosts, bool equal, shop_case_t *c);
void shop_case_destroy(shop_case_t *c);

/* Fails the test unless the hops are a valid schedule of the problem that ends at the makespan. */
void shop_check(const xm_problem_t *problem, const xm_hop_t *hops, int64_t count,
                int64_t makespan_ns);
