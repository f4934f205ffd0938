/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file collective.h
 * What the parts of collective-bench share. Not installed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "cli_support.h"
#include "comm/worker.h"
#include "resharding/collective.h"

enum { CB_SIZES_MOST = 16 };

/* Programs with a name; the last of them are for links, switches and several dimensions only. */
typedef enum {
    RING,
    HALVING_DOUBLING,
    DIRECT,
    HIERARCHICAL,
    TREE,
    DOUBLE_TREE,
    PAIRS,
    SERVER,
    THEMIS,
    SWITCH,
    TREES,
    PROGRAMS
} cb_name_t;

typedef struct {
    xm_cli_t *cli;
    const char *mesh, *rates, *latencies, *overheads, *ratios, *codings, *links, *prices;
    char *const *argv;
    const char *size_list;
    uint64_t sizes[CB_SIZES_MOST], size; /* size: the one that it is about */
    int size_count;
    int collective, name, pieces, type, servers, adasum;
    const char *result;
    double fallback;
    bool run, rails, csv;
    xm_interconnect_t net;
    xm_interconnect_t priced; /* the same with what was measured, for predictions */
    const char *axes;         /* sizes, in the mesh's spelling; NULL: all devices */
    int over;                 /* the axis to go along */
} cb_options_t;

typedef struct {
    cb_name_t name;
    int pieces;
    xm_program_t *program;
    double seconds, bound;
} cb_candidate_t;

/** Reads "1,2.5", one number for each dimension, the slowest dimension first as in the mesh; one
 * number alone is for all. @p wanted 0: any number of them. */
xm_status_t cb_read_list(const char *what, const char *text, char separator, double least,
                         int wanted, double *values, int *count);

/** Builds, checks and simulates a program with 1, 2, 4, … pieces, unless a number is given, until
 * more of them are no better. @p build says the program, NULL: the name. */
xm_status_t cb_make_candidate(const cb_options_t *options, cb_name_t name, const xm_build_t *build,
                              cb_candidate_t *best);

/** What a collective's buffer of the given size has for the whole program: of all-to-all, those of
 * all devices. */
int64_t cb_elements(const cb_options_t *options);

/** Collective: measures what moves cost on the job's ranks: rates, latencies and processor time of
 * bytes by the probe, that of messages by small programs; @p speaks prints it. */
xm_status_t cb_price(cb_options_t *options, xm_worker_t *worker, bool speaks);

/** Runs a program 5 times (3 times if a run takes more than a second) after a warm-up; the bytes of
 * the warm-up and of the last run are checked. A run takes as long as its slowest rank. */
xm_status_t cb_measure(const cb_options_t *options, xm_worker_t *worker,
                       const xm_program_t *program, double *median, uint64_t *wrong);

/** Lists all mappings of --axes on the mesh, and all programs of each, the best prediction first;
 * with a worker each is run. */
xm_status_t cb_list_mappings(const cb_options_t *options, xm_worker_t *worker, uint64_t *wrong);
