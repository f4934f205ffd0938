/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file campaign_play.h
 * A reshard of six simulated ranks with a fault at one of its steps, on a virtual clock that also
 * drives their heartbeats.
 */
#pragma once

#include "comm/fault/liveness.h"
#include "tests/resharding/execute/sim_job.h"

/* 60 and 30 can be cut into 2, 3, 5 and 6. */
enum { RANKS = 6, ROWS = 60, COLUMNS = 30, RUBBISH = 0xa5, GAP = 0xee };

/* The victim of CUT, DEAF (it hears no other host), MUTE (no other host hears it) and FLAP (both,
 * for a while) is a host. LOSS is of one datagram in five. Of those from SLOW on nobody may hear.
 */
enum { KILL, STOP, CUT, DEAF, MUTE, ABORT, CANCEL, SLOW, FLAP, LOSS, KINDS, NOTHING = KINDS };

/* A reshard, and those that go on without one of its ranks. */
typedef struct {
    int per_host;
    const char *src_spec, *dst_spec;
    xm_strategy_t strategy;
    bool turns;
    xm_network_t *network;
    xm_plan_t *plan, *without[RANKS];
} scene_t;

typedef struct {
    struct play *play;
    int rank;
    bool dead, stopped, running;
    bool fenced;
    xm_status_t result;
    char sentence[512];
    int64_t ended_at;
    xm_liveness_t *liveness;
    int64_t next_tick, told_at;
    xm_status_t told;
    char told_text[512];
    int blamed, by; /* what the sentence says; `by` -1: it says that `blamed` is alone */
    int told_blamed, told_by;
    unsigned char *frozen; /* the destination as it was when the transport was fenced */
} slot_t;

typedef struct play {
    const scene_t *scene;
    sim_job_t job;
    random_t random;
    int kind, victim, other; /* cut: hosts */
    int64_t at, steps;
    int64_t idle_ns; /* time that has passed while nothing was under way on the fabric */
    int64_t injected_at, resume_at;
    int64_t beat_at; /* of the heartbeat that is under way */
    bool injected, restored;
    slot_t slots[RANKS];
    char text[160];
} play_t;

void scene_create(scene_t *scene);
void scene_destroy(scene_t *scene);

int play_host_of(const play_t *play, int rank);
/* Posts the run; every rank has heard of the others for some time. */
void play_begin(play_t *play);
/* The links are up again. */
void play_restore(play_t *play);
/* Until every living rank has ended, the fault and what follows from it included. */
void play_run(play_t *play);
