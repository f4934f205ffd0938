/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file host_order.h
 * Orders in which the hosts of a cluster can stand, as far as they differ: hosts with the same
 * devices and the same NICs are of one kind, and only which kind stands where matters.
 *
 * Racks are runs of hosts by number, so whole racks change places, and hosts inside a rack; without
 * racks the cluster is one. An order is an array of the profile's hosts, one for each place. Of all
 * orders with the same kinds in the same places only one is looked at: hosts of a kind in a rack
 * keep the profile's order.
 *
 * Threads: immutable after creation. Not installed.
 */
#pragma once

#include "comm/profile.h"

typedef struct ap_host_orders ap_host_orders_t;

/** @p memory_limit: what each device may use whatever it has, 0: what it has. */
xm_status_t ap_host_orders_create(const xm_cluster_profile_t *profile, double memory_limit,
                                  ap_host_orders_t **orders);

/** Number of kinds; 1: there is nothing to choose. */
int ap_host_orders_kinds(const ap_host_orders_t *orders);

/**
 * Lists the orders that differ into @p list, up to @p capacity of [hosts] each, the profile's
 * first, and returns how many there are, or capacity + 1 where there are more.
 */
int ap_host_orders_list(const ap_host_orders_t *orders, int capacity, int *list);

/**
 * Where there are too many: the profile's order, then each order of the kinds with all hosts of a
 * kind together, as far as racks allow; of more than four kinds only that of the profile and its
 * reverse. Returns how many were written, at most @p capacity.
 */
int ap_host_orders_grouped(const ap_host_orders_t *orders, int capacity, int *list);

/**
 * Orders that are a step away from @p order: two runs of like hosts exchanged, a host or a run
 * moved to another place between runs, inside a rack; or two racks exchanged. No order twice, nor
 * @p order itself. Returns how many were written, at most @p capacity.
 */
int ap_host_orders_near(const ap_host_orders_t *orders, const int *order, int capacity, int *list);

/** Whether two orders have the same kinds in the same places. */
bool ap_host_orders_same(const ap_host_orders_t *orders, const int *a, const int *b);

/** NULL is accepted. */
void ap_host_orders_destroy(ap_host_orders_t *orders);
