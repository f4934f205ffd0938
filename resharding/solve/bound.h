/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bound.h
 * Lower bound of the time of any resharding, from what NICs, uplinks and devices must carry.
 *
 *  - receive: a host must receive every byte that one of its ranks needs and none of them holds,
 *    through its own ingress;
 *  - send: for every set S of hosts, the bytes held only inside S that some host without a copy
 *    needs must leave S at least once, through the egress of all of S together;
 *  - uplink, where racks have a limited one: a rack must receive every byte needed and not held in
 *    it (once, however many of its hosts need it), and for every set of racks, the bytes held only
 *    inside it that a rack without a copy needs must leave through its uplinks;
 *  - device: a device must receive what it needs and does not hold through its port and its rail's
 *    ingress together.
 *
 * The maximum over all sets is found exactly without enumerating them (cut_bound.h). Data moves in
 * whole bytes, times are whole ns: the bound is the smallest whole time that every one of these
 * conditions allows. Latency is not counted, so the bound is never too high.
 *
 * Source: docs/resharding.md, "Lower bound".
 */
#pragma once

#include "resharding/solve/problem.h"

/** Which condition decides; the first of equal ones. */
typedef enum xm_bound_limit {
    XM_BOUND_NOTHING = 0, /**< nothing must move */
    XM_BOUND_RECEIVE,
    XM_BOUND_SEND,
    XM_BOUND_UPLINK,
    XM_BOUND_DEVICE,
    XM_BOUND_RELAY,
} xm_bound_limit_t;

typedef struct xm_bound {
    int64_t ns;         /**< the bound: the largest of the five below */
    int64_t receive_ns; /**< of the host that needs longest to receive */
    int64_t send_ns;    /**< of the tightest set of sending hosts */
    int64_t uplink_ns;  /**< of the tightest rack or set of racks; 0 without limited uplinks */
    /**
     * Largest over sets of devices of one rail of the bytes they need and do not hold / (their
     * ports' rates + the rail's ingress rate). The hosts' view of a resharding does not know
     * devices: whoever computes this afterwards sets it with xm_bound_set_device(); until then it
     * is 0.
     */
    int64_t device_ns;
    /**
     * All copies together: every receiver's copy of a box must leave some host that holds or
     * receives the box, the first one a holder. Only larger than the others where NICs differ or
     * hosts both send and receive. Set with xm_bound_set_relay(); until then it is 0.
     */
    int64_t relay_ns;
    xm_bound_limit_t limit; /**< which of the five is `ns` */
} xm_bound_t;

/** Adds the devices' condition to a bound of the hosts. */
void xm_bound_set_device(xm_bound_t *bound, int64_t device_ns);
/** Makes the hosts' send and receive conditions those of sets of rails where these ask for more. */
void xm_bound_set_rails(xm_bound_t *bound, int64_t send_ns, int64_t receive_ns);
/** Adds the condition on all copies together. */
void xm_bound_set_relay(xm_bound_t *bound, int64_t relay_ns);

/** Computes the bound of any schedule of the problem, relays and parts included; device_ns and
 * relay_ns are left 0. */
xm_status_t xm_bound_compute_problem(const xm_problem_t *problem, xm_bound_t *bound);
