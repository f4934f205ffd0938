/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bound_relay.h
 * Lower bound of the makespan of a problem whose demands may be cut and relayed. Not installed.
 *
 * The bound is the least integer T (ns) such that
 *  (1) every host's ingress takes no longer than T for all bytes the host needs, and
 *  (2) there are x[d][h] >= 0 for holders and receivers h of each demand d (b_d bytes, n_d
 *      receivers) with
 *        sum over h of x[d][h] = n_d b_d,
 *        sum over holders h of x[d][h] >= b_d,
 *        sum over d of x[d][h] <= floor(egress rate of h * T).
 *
 * Proof that no schedule is shorter. Take any valid schedule of makespan T and let x[d][h] be the
 * bytes of d that leave host h's NIC and that a receiver did not have before. Every byte of d
 * enters each of its n_d receivers for a first time, so these add up to n_d b_d, and only hosts
 * that hold or receive d have any of it to send. Of every byte of d some receiver is the first of
 * all receivers to get it; no receiver can have sent it, so a holder did: holders send at least
 * b_d. (A receiver r cannot send itself what it needs, so x[d][r] <= (n_d - 1) b_d; this follows
 * from the first two.) A host's egress carries one hop at a time for at least bytes / rate each,
 * and the bytes are integers, which gives the third line; (1) is the same for ingress. So T
 * satisfies (1) and (2); since both are monotone in T, the least such T is no greater.
 *
 * Whether T satisfies (2) is a maximum flow: b_d from a node that reaches the holders only, (n_d -
 * 1) b_d from one that reaches holders and receivers. When the flow falls short, the minimum cut
 * names demands and hosts whose egress is too small for them; the time in which it suffices is the
 * next T to try (Newton's method on a cut, exact after finitely many).
 *
 * The bound is tight in the limit of small pieces when all NICs have one rate (docs/openshop.md).
 * Uplinks and latency are not counted.
 */
#pragma once

#include "resharding/solve/problem.h"

xm_status_t xm_bound_relay(const xm_problem_t *problem, int64_t *ns);
