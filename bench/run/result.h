/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file result.h
 * What came out of one case.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/cases.h"
#include "bench/run/processors.h"
#include "bench/run/update_model.h"

enum { RB_OBSTACLE_TEXT = 160 };

/** One rank's part in a hop of the last run, ns from the start of the run. */
typedef struct rb_record {
    int64_t transfer;
    int32_t hop;  /**< place in the transfer's route */
    int32_t rank; /**< sender or receiver */
    int64_t start_ns, end_ns;
    int64_t chunk; /**< of the hop, from 1; 0: all of the hop */
} rb_record_t;

typedef struct rb_result {
    const rb_prepared_t *prepared;
    int runs;        /**< timed runs; 0 after a dry run */
    double *seconds; /**< of each run, the slowest rank's */
    double setup_s;  /**< of the slowest rank, once: staging buffers and registered memory; 0: no
                        ranks but simulated ones */
    double cpu_s;    /**< user and system time of all ranks in a timed run, on average; 0: not
                        measured */
    rb_processors_t processors; /**< zeros: no ranks but simulated ones */
    double waited_s; /**< for which ranks were ready in a timed run, and had no processor, on
                        average: all together where they share processors, else the longest of a
                        rank; negative: not known */
    double
        *everything; /**< with --density: of each run, the same with everything moved; else NULL */
    rb_update_model_t update; /**< with --density: what was predicted */
    double sent_share; /**< with --density: bytes that were sent, of those of everything; 0: none
                          was asked for */
    bool validated, verified;
    bool in_order;    /**< NICs and ports served one message at a time, in plan order */
    uint64_t resends; /**< chunks that came wrong and were sent again, all ranks and runs */
    uint64_t wrong;   /**< bytes that differ from what they should be, all ranks and runs */
    rb_record_t *records;
    size_t record_count;
} rb_result_t;

/** Times of the runs. The variance is that of exactly these runs: it divides by their number. */
typedef struct rb_times {
    double min, median, max, mean, variance;
} rb_times_t;

/** Needs at least one run. */
rb_times_t rb_result_times(const rb_result_t *result);

/** With --density: median time of the runs in which everything moves. */
double rb_result_everything(const rb_result_t *result);

/** Makespan of the plan over its bound, minus 1; NaN without a bound. */
double rb_result_gap(const rb_result_t *result);

/** Median time, or the plan's makespan after a dry run. */
double rb_result_time(const rb_result_t *result);

/** Lower bound over rb_result_time(); NaN without a bound. */
double rb_result_bound_fraction(const rb_result_t *result);

/**
 * Bytes per second of the busiest NIC in a schedule without gaps, or of the busiest device port
 * where nothing leaves a host: as busbw of nccl-tests, to be compared with the hardware's rate.
 * NaN without a bound, and where hosts or uplinks differ.
 */
double rb_result_busbw(const rb_result_t *result);

/**
 * Why the measured times cannot be compared with a prediction, written to @p buffer of
 * RB_OBSTACLE_TEXT bytes, which is returned; NULL: they can. Ranks that wait for processors longer
 * than the model may be wrong measure the machine's scheduler.
 */
char *rb_result_obstacle(const rb_result_t *result, char *buffer);

/** Makespan of the plan over the median time, minus 1: how wrong the simulation is. NaN when
 * nothing was measured, or nothing that can be compared. */
double rb_result_sim_error(const rb_result_t *result);

/** Frees the arrays. */
void rb_result_clear(rb_result_t *result);
