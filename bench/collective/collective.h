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
    uint64_t size;
    int collective, name, pieces, type, servers, adasum;
    const char *result;
    double fallback;
    bool run, rails, csv;
    xm_interconnect_t net;
    const char *axes; /* sizes, in the mesh's spelling; NULL: all devices */
    int over;         /* the axis to go along */
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

/** Runs a program some times; the first warms up, and its bytes are checked as the last one's are.
 */
xm_status_t cb_measure(const cb_options_t *options, xm_worker_t *worker,
                       const xm_program_t *program, double *median, uint64_t *wrong);

/** Lists all mappings of --axes on the mesh, and all programs of each, the best prediction first;
 * with a worker each is run. */
xm_status_t cb_list_mappings(const cb_options_t *options, xm_worker_t *worker, uint64_t *wrong);
