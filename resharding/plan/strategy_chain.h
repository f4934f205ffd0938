/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file strategy_chain.h
 * A pipelined chain over receiving hosts, with a chain inside each: what broadcast and allgather
 * are made of. Not installed.
 */
#pragma once

#include "resharding/plan/plan_private.h"

/*
 * Appends the transfer of elements [first, end) of a task from the least loaded holder of
 * `sender_host` to all remote receivers.
 */
xm_status_t xm_chain_emit(xm_transfer_emitter_t *emitter, int64_t task, int sender_host,
                          int64_t first, int64_t end);

/*
 * Writes the ranks of one host into the emitter's route at `at`: the head, fed by entry `parent`,
 * then the others as a chain that takes so many bytes in. The head, which the network serves, is
 * the rank that has taken in the most from its neighbours so far, so that no device's port has more
 * to do than another's. Returns the entry behind the last.
 */
int xm_chain_host(xm_transfer_emitter_t *emitter, const int *ranks, int count, int64_t bytes,
                  int at, int parent);
