/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tuner_model.h
 * What a collective of NCCL costs by algorithm and protocol, from what was measured. Internal.
 *
 * Time = steps between hosts x their latency + steps inside hosts x theirs + bytes through the
 * narrowest part / its bandwidth, for n ranks on m hosts (S: bytes of the whole tensor):
 *
 *   ring  all-reduce              2(n-1) steps, 2(m-1) of them between hosts; 2(n-1)/n S
 *         all-gather, -scatter      n-1           m-1                           (n-1)/n S
 *         broadcast, reduce         n-1           m-1                                   S
 *   tree  all-reduce   2 ceil(log2 m) between hosts, 2(n/m - 1) inside; 2 S, at 92 %
 *
 * Latency and bandwidth come from the cluster profile: links of messages, and where NCCL itself was
 * measured on just this axis, its curve, which the cheapest combination is made to meet at both
 * ends. Protocols differ as they are built: LL sends a flag with every 4 bytes (half the
 * bandwidth), LL128 one with every 120 (15/16), Simple none; what their handshakes cost more than
 * LL's is what NCCL says of itself (its table of latencies).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "comm/profile.h"
#include "plugins/nccl/nccl_abi.h"

/** Algorithms that the model knows. */
enum { TUNER_ALGORITHMS = 2 };

typedef struct tuner_model {
    int ranks, hosts;
    double net_latency, local_latency;              /**< seconds */
    double bandwidth;                               /**< bytes/s through a host's NICs */
    double extra[TUNER_ALGORITHMS][NCCL_PROTOCOLS]; /**< seconds a step more than LL */
    double
        latency_scale[NCCL_COLLECTIVES]; /**< by which a measured curve corrects the latencies … */
    double volume_scale[NCCL_COLLECTIVES]; /**< … and the bytes; 1: there is none */
} tuner_model_t;

/** The model of a communicator of @p ranks on @p hosts hosts, at least 2. @p constants may be NULL:
 * then protocols differ in bandwidth only. */
void tuner_model_init(tuner_model_t *model, const xm_cluster_profile_t *profile, int ranks,
                      int hosts, const nccl_constants_v5_t *constants);

/** Seconds; negative when the algorithm does not have that collective. @p operations of a group pay
 * the latency one after the other. */
double tuner_model_seconds(const tuner_model_t *model, int collective, int algorithm, int protocol,
                           double bytes, int operations);
