/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file place.h
 * The state of a place, shared by its connections (place.c) and its decisions (rounds.c). Internal.
 *
 * One thread has all of it. Members and worlds are added when they come; a member that goes leaves
 * its rank of the world free for whoever comes in its place.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include <crossmesh/meeting.h>

#include "comm/meeting/note.h"

enum { XM_PLACE_MEMBERS = 4096, XM_PLACE_WORLD_NAME = 128 };

typedef struct xm_round xm_round_t;
typedef struct xm_world xm_world_t;

/** Who has connected. */
typedef struct xm_member {
    xm_bootstrap_link_t link;
    int64_t since;
    uint8_t nonce[XM_JOB_NONCE_SIZE];
    bool proven;
    xm_bootstrap_identity_t identity;

    xm_world_t *world; /**< NULL: it has not joined yet */
    int rank;
    bool is_welcome, passes_on, ready;
    int64_t version; /**< what it has; a source that is ready: what it offers */
    int64_t ready_since;
    int64_t group;  /**< whose job it has */
    bool is_moving; /**< in a round of which it has not told the end */
} xm_member_t;

struct xm_world {
    xm_list_t in_place;
    char name[XM_PLACE_WORLD_NAME];
    xm_role_t role;
    int size, targets;
    int64_t timeout, skew; /**< ns */
    int64_t since;
    bool was_complete;
    bool has_moved; /**< a source: its first round is over */
    xm_round_t *round;
    xm_member_t **members; /**< by rank; NULL: missing */
};

struct xm_round {
    xm_list_t in_place;
    int64_t version, group;
    int size, senders;
    xm_member_t **members; /**< by rank of the job; NULL: gone */
    bool lost;             /**< one of them */
    int64_t failed_since;
    xm_error_t failure;
    uint8_t *blocks; /**< of the current allgather */
    bool *given;     /**< whose block is there */
    size_t length;
};

struct xm_place {
    pthread_t thread;
    atomic_bool closing;
    char address[sizeof(((xm_job_env_t *)0)->master_addr) + 16];
    xm_job_secret_t secret;
    int epoll, listener;
    xm_door_t door;
    xm_member_t *members; /**< ::XM_PLACE_MEMBERS; free ones have no connection */
    xm_list_t worlds, rounds;
    int64_t groups; /**< number of the last one */
};

/** All ranks are there. */
bool xm_world_is_complete(const xm_world_t *world);
/** "ranks 1, 3 of world 'trainer'": those that are missing, or, with @p idle, not ready. */
const char *xm_world_name_missing(const xm_world_t *world, bool idle, char *text, size_t size);

/** A member has joined its world; the world may be complete now. */
void xm_rounds_welcome(xm_place_t *place, xm_world_t *world);
/** What a member has said: ready, cancel, block, done. */
void xm_rounds_hear(xm_member_t *member, const xm_note_t *note);
/** A member of a world is gone. */
void xm_rounds_lose(xm_place_t *place, xm_member_t *member);
/** Calls the rounds that can be called and settles what has ended or lasted too long. */
void xm_rounds_decide(xm_place_t *place);
void xm_round_free(xm_round_t *round);
