/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file strategy_chain.h
 * A pipelined chain over receiving hosts, with a chain inside each: what broadcast and allgather
 * are made of. Not installed.
 */
#pragma once

#include "resharding/plan/plan_private.h"

/*
 * Appends the transfer of the chain's elements from the least loaded holder of its sending rail
 * to all remote receivers. The broadcast strategy is one chain with everything: the sender feeds
 * one rank of the first host, that one feeds one of the second, and so on; each of these heads
 * also starts a chain inside its host. All hops are pipelined by chunk, so the whole takes little
 * longer than one hop (MLSys'23, section 3.1, "broadcast").
 */
xm_status_t xm_chain_emit(xm_transfer_emitter_t *emitter, const xm_chain_t *chain);

/* The receivers of a class on one host, which the network serves by one of its rails. */
typedef struct {
    const int *ranks;
    int count, rail;
} xm_inner_t;

/* The receivers on the host of a rail. */
xm_inner_t xm_chain_inner(const xm_transfer_emitter_t *emitter, const xm_class_t *class, int rail);

/*
 * Chooses the head of a host, by its place among the ranks: the one that the network serves and
 * the others take in from. It is the rank of the rail that has least `waiting` (by rank; may be
 * NULL), and of equals the one that has taken in the most from its neighbours so far, so that no
 * device's port has more to do than another's.
 */
int xm_chain_head(const xm_transfer_emitter_t *emitter, const xm_inner_t *inner,
                  const int64_t *waiting);

/* Counts what the others take in from the head. */
void xm_chain_take(xm_transfer_emitter_t *emitter, const xm_inner_t *inner, int head,
                   int64_t bytes);

/* The number of ranks that could be the head. */
int xm_chain_heads(const xm_transfer_emitter_t *emitter, const xm_inner_t *inner);
