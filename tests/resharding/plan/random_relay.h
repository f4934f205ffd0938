/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file random_relay.h
 * Right plans of any form, made from any plan: transfers that start from what other transfers
 * brought, routes that are any tree and pass through ranks that only pass on, chunks of any size.
 */
#pragma once

#include "tests/resharding/plan/random_case.h"
#include "resharding/plan/plan_private.h"

/*
 * Takes branches off the routes of a right plan and makes them transfers of their own, of the whole
 * range or in two parts, somewhere later in the plan: it stays right. Returns how many were taken.
 * The plan's digest and makespan stay those of the plan before.
 */
int random_relay(random_t *random, xm_plan_t *plan);

/* Puts the ranks of every route into random order and feeds each from a random earlier one. */
void random_trees(random_t *random, xm_plan_t *plan);

/*
 * Puts ranks that neither need a task nor send it into its routes: they pass it on. Last of all
 * changes, as no other transfer may start from what such a rank has. Returns how many there are.
 */
int random_forwards(random_t *random, xm_plan_t *plan);

/* Cuts every task into up to `most` chunks. */
void random_chunks(random_t *random, xm_plan_t *plan, int most);
