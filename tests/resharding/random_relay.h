/**
 * @file random_relay.h
 * Plans with transfers that start from what other transfers brought, made from any plan.
 */
#ifndef XM_RANDOM_RELAY_H
#define XM_RANDOM_RELAY_H

#include "random_case.h"
#include "resharding/plan_private.h"

/*
 * Takes branches off the routes of a right plan and makes them transfers of their own, of the whole
 * range or in two parts, somewhere later in the plan: it stays right. Returns how many were taken.
 * The plan's digest and makespan stay those of the plan before.
 */
int random_relay(random_t *random, xm_plan_t *plan);

#endif
