/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file order.h
 * The messages of a plan in the order in which the network is to serve them, and a simulated fabric
 * of that network.
 *
 * Messages are numbered from 1 in plan order: transfer by transfer, chunk by chunk, hop by hop
 * (plan.h); copies inside a rank are none. The number of a message is
 *
 *     1 + messages of earlier transfers + chunk × ranks of the route + place in the route
 *
 * An executor with `ordered` set puts it into `order` of every send (transport.h). A simulated
 * fabric that is given the list serves every NIC direction and device port in it, and then takes
 * the time that xm_simulate() says for XM_SHARING_EXCLUSIVE.
 */
#pragma once

#include "comm/transport/sim.h"
#include "resharding/network.h"
#include "resharding/plan.h"

/** Lists all messages in plan order, for xm_sim_fabric_set_order(), into a malloc'ed array the
 * caller frees. */
xm_status_t xm_plan_messages(const xm_plan_t *plan, xm_sim_slot_t **messages, int64_t *count);

/** A fabric with the ranks, rails, racks and rates of @p network; @p no_copy as in its params. */
xm_status_t xm_network_fabric(const xm_network_t *network, bool no_copy, xm_sim_fabric_t **fabric);
