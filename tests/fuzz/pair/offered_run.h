/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file offered_run.h
 * A reshard of two ranks on one host of which the first offers its tiles to the second, over a
 * transport that is tampered with. What is offered, and what a change of that may lead to, is the
 * target's.
 */
#pragma once

#include "resharding/execute/carrier.h"
#include "tests/fuzz/pair/tampered_pair.h"

/* What has been changed on its way: nothing, what names the memory, or more. */
typedef enum { UNTOUCHED, OFFERED, MORE } touched_t;

/* `look` may be NULL. */
typedef struct {
    xm_executor_t *(*create)(int rank);
    touched_t (*spoil)(tampered_pair_t *pair, input_t *input, unsigned choice);
    touched_t (*inject)(tampered_pair_t *pair, const xm_executor_t *executor, input_t *input);
    void (*begin)(void);                         /* a run */
    void (*look)(const xm_executor_t *executor); /* at the receiver, between steps */
    void (*check)(touched_t touched, const xm_status_t results[2]); /* after a run */
} offered_run_ops_t;

typedef struct {
    xm_plan_t *plan;
    tampered_pair_t pair;
    xm_executor_t *executors[2];
    const offered_run_ops_t *ops;
    touched_t touched;
} offered_run_t;

void expect(bool condition);

/* The plan: so many tensors of so many bytes, from rank 0 to rank 1. */
void offered_run_plan(offered_run_t *run, int tensors, int64_t bytes, uint64_t chunk_bytes);

/* Makes the transports; then plays some runs as the input says, and ends all. */
void offered_run_begin(offered_run_t *run, const offered_run_ops_t *ops, unsigned flags);
void offered_run_play(offered_run_t *run, input_t *input);
