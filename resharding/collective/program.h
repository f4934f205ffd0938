/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file program.h
 * A collective as a list of moves of chunks between nodes.
 *
 * The list's order is its meaning: done one after the other, the moves compute the collective. What
 * may happen at once follows from it, as in a processor: a move waits for those before it that
 * write what it reads, and for those that read or write what it overwrites; additions into the same
 * chunk do not wait for each other. So no order of arrival can spoil a program that is right.
 *
 * Nodes behind the devices are switches, which begin without data, add and pass on.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "comm/base.h"
#include "comm/profile.h"

typedef struct xm_move {
    int chunk, count; /**< chunks that follow each other */
    int from, to;
    bool reduce; /**< added to what is there, else copied over it */
} xm_move_t;

typedef struct xm_program {
    xm_collective_t kind; /**< of all-to-all, chunk i · devices + j goes from device i to j */
    int devices, nodes, chunks;
    int64_t *share; /**< chunk c is [share[c], share[c + 1]) of share[chunks] parts */
    int *home;      /**< by chunk: who has it at first; −1: everybody contributes to it */
    int *goal;      /**< by chunk: who needs it in the end; −1: everybody */
    int *group;     /**< by device: contributions and results stay among devices of one number */
    bool ordered;   /**< additions into a chunk are made in the list's order, as what is added by
                       others than sums needs */
    xm_move_t *moves;
    size_t count, room;
} xm_program_t;

/** A program without moves over chunks of equal shares, all devices in one group; homes and goals
 * are −1 but for all-to-all, whose number of chunks is given by the devices. */
xm_status_t xm_program_create(xm_collective_t kind, int devices, int nodes, int chunks,
                              xm_program_t **program);
void xm_program_destroy(xm_program_t *program);

xm_status_t xm_program_add(xm_program_t *program, xm_move_t move);

/** First element of a chunk when so many elements are shared out. */
static inline int64_t xm_program_first(const xm_program_t *program, int chunk, int64_t elements)
{
    return (int64_t)((__int128)elements * program->share[chunk] / program->share[program->chunks]);
}

/** How many of so many elements, or bytes, a move carries. */
static inline int64_t xm_move_elements(const xm_program_t *program, const xm_move_t *move,
                                       int64_t elements)
{
    return xm_program_first(program, move->chunk + move->count, elements) -
           xm_program_first(program, move->chunk, elements);
}

/** That the program computes its collective: each contribution is in each result exactly once. The
 * sentence of a failure names the chunk and the device. */
xm_status_t xm_program_check(const xm_program_t *program);

/** Which moves wait for a move: entry e of next[first[m] … first[m + 1]) says that move e / 2 may
 * not begin before m has ended, where it is sent (e even) or where it is received (e odd). */
typedef struct xm_dependencies {
    int64_t *first;
    uint32_t *next;
    int *send_waits, *receive_waits; /**< by move: how many it waits for */
} xm_dependencies_t;

xm_status_t xm_dependencies_find(const xm_program_t *program, xm_dependencies_t *dependencies);
void xm_dependencies_clear(xm_dependencies_t *dependencies);
