/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan_mutation.h
 * Every way to break one thing of a right plan.
 */
#pragma once

#include "tests/resharding/plan/random_case.h"
#include "resharding/plan/plan_private.h"

enum { PLAN_MUTATIONS = 35 };

/*
 * Breaks one thing, at transfer `at` or at a random task. Returns false where the place does not
 * offer it, or the plan would stay right. Changes transfers, tasks and chunks in place, lowers
 * their numbers or raises that of the transfers by one, and adds routes behind those there are.
 */
typedef struct {
    const char *name;
    bool (*apply)(random_t *random, xm_plan_t *plan, int64_t at);
} plan_mutation_t;

extern const plan_mutation_t plan_mutations[PLAN_MUTATIONS];

/* Whether a rank holds, or needs, a task's slice. */
bool plan_holds(const xm_plan_t *plan, int64_t task, int rank);
bool plan_needs(const xm_plan_t *plan, int64_t task, int rank);

const xm_route_t *plan_route_of(const xm_plan_t *plan, const xm_transfer_t *transfer);

/* Gives a transfer a route of its own, with room for one more entry: xm_builder_route() shares
 * them.
 */
xm_route_t *plan_own_route(xm_plan_t *plan, xm_transfer_t *transfer);
int *route_ranks(xm_route_t *route);
int *route_parents(xm_route_t *route);
