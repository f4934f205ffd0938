/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file sim_job.h
 * Random batches, and jobs that run their plans in this process on a simulated fabric.
 */
#pragma once

#include "comm/memory/memory.h"
#include "comm/transport/sim.h"
#include "tests/resharding/plan/random_case.h"
#include "resharding/execute/execute.h"

enum { SIM_MAX_RANKS = 32, SIM_MAX_TENSORS = RANDOM_BATCH_TENSORS };

/* A random batch and its plan. */
typedef struct {
    random_batch_t random;
    xm_plan_t *plan;
    int forwards; /* entries of routes whose rank only passes on */
} batch_t;

/*
 * Any tensors, strategy and scheduler; small chunks; rails of equal or unequal rates, racks, and
 * latencies of a few chunks' time, so that windows can hide them.
 */
void batch_create(random_t *random, batch_t *batch);
void batch_destroy(batch_t *batch);

/* One matrix of 4-byte elements on hosts of four ranks each, and its plan in chunks of 256 bytes.
 */
typedef struct {
    xm_network_t *network;
    xm_plan_t *plan;
} fixed_t;

void fixed_create(fixed_t *fixed, const char *src_mesh, const char *src_spec, const char *dst_mesh,
                  int dst_first, const char *dst_spec, int ranks, int64_t rows, int64_t columns);
/* (2,4) → (2,4), R S0 → S0 R: every receiver needs strided boxes from both source hosts. */
void fixed_default(fixed_t *fixed);
void fixed_destroy(fixed_t *fixed);

typedef struct {
    int window;          /* 0: the default */
    bool turns;          /* the executors keep the plan's order on NICs … */
    uint64_t turn_ahead; /* … but for so many bytes */
    bool ordered;        /* the fabric serves the plan's order */
    bool tight_memory;   /* every rank gets the least pack buffers that will do, or a few more */
    bool no_copy;        /* fabric and executors leave the buffers alone */
    bool packed;         /* all buffers of a rank are parts of one allocation */
    xm_memory_space_t *space; /* of a device: the buffers are there; NULL: the host's */
    bool mixed;               /* … but for some of them */
    bool direct;              /* the transport takes device memory */
    bool device_peers;        /* ranks of a host copy out of each other's tiles */
} sim_options_t;

typedef struct {
    int ranks, tensors;
    const xm_plan_t *plan;
    xm_sim_fabric_t *fabric;
    xm_transport_t *transport[SIM_MAX_RANKS];
    xm_executor_t *executor[SIM_MAX_RANKS];
    xm_tensor_buffers_t buffers[SIM_MAX_RANKS][SIM_MAX_TENSORS];
    xm_memory_space_t *space;                          /* NULL: all buffers are the host's */
    bool on_device[SIM_MAX_RANKS][SIM_MAX_TENSORS][2]; /* source, destination */
    char *arena[SIM_MAX_RANKS];                        /* packed: holds them all */
    size_t arena_bytes[SIM_MAX_RANKS];
    uint64_t seed;                            /* of the pattern in the sources */
    int done[SIM_MAX_RANKS][SIM_MAX_TENSORS]; /* calls of tensor_done since the last fill */
    bool incomplete; /* tensor_done was called for a tensor that was not there */
    struct sim_call {
        void *job;
        int rank;
    } calls[SIM_MAX_RANKS];
} sim_job_t;

/* A job of the network's ranks for a plan. */
void sim_job_create(sim_job_t *job, const xm_plan_t *plan, const xm_network_t *network,
                    const sim_options_t *options, random_t *random);
void sim_job_destroy(sim_job_t *job);

/* Writes a pattern into all sources and rubbish everywhere else. */
void sim_job_fill(sim_job_t *job, uint64_t seed);
/* Fails the test unless every byte of every buffer is as the last fill and a run want it. */
void sim_job_check(const sim_job_t *job, const char *text);
/* Runs until every rank has ended; false when the fabric stands still before that. */
bool sim_job_run(sim_job_t *job, xm_status_t *results);
