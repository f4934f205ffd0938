/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers that follow from the measured times. With no run the planned makespan stands
 * for the time, so dry runs and measurements share their tables.
 */
#include "bench/run/result.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The part of a run that ranks may wait for processors: what the model is meant to be wrong by. */
static const double tolerated = 0.15;

/* Even counts have the mean of the two middle times as their median. Without memory the
 * first time stands for all. */
static rb_times_t times_of(const double *seconds, int runs)
{
    const double first = seconds[0];
    rb_times_t times = {first, first, first, first, 0};
    size_t count = (size_t)runs;
    double *sorted = malloc(count * sizeof(double)), sum = 0;

    if (sorted == NULL) {
        return times;
    }
    memcpy(sorted, seconds, count * sizeof(double));
    times.median = xm_array_median(sorted, runs);
    times.min = sorted[0];
    times.max = sorted[count - 1];
    for (size_t i = 0; i < count; ++i) {
        sum += sorted[i];
    }
    times.mean = sum / (double)count;
    for (size_t i = 0; i < count; ++i) {
        times.variance += (sorted[i] - times.mean) * (sorted[i] - times.mean) / (double)count;
    }
    free(sorted);
    return times;
}

rb_times_t rb_result_times(const rb_result_t *result)
{
    return times_of(result->seconds, result->runs);
}

double rb_result_everything(const rb_result_t *result)
{
    return times_of(result->everything, result->runs).median;
}

/* How far the plan is above its lower bound; NAN where nothing must move. */
double rb_result_gap(const rb_result_t *result)
{
    double bound = (double)xm_plan_bound_ns(result->prepared->plan);

    return bound > 0 ? (double)xm_plan_makespan_ns(result->prepared->plan) / bound - 1 : NAN;
}

double rb_result_time(const rb_result_t *result)
{
    return result->runs > 0 ? rb_result_times(result).median
                            : (double)xm_plan_makespan_ns(result->prepared->plan) * 1e-9;
}

double rb_result_bound_fraction(const rb_result_t *result)
{
    double bound = (double)xm_plan_bound_ns(result->prepared->plan) * 1e-9;
    double time = rb_result_time(result);

    /* An update moves less than what the bound is of. */
    return bound > 0 && time > 0 && result->sent_share <= 0 ? bound / time : NAN;
}

/* The bound is what the busiest NIC must carry at its rate. */
double rb_result_busbw(const rb_result_t *result)
{
    const xm_network_t *network = result->prepared->network;

    if (!xm_network_uniform(network) || xm_network_racks(network) > 1) {
        return NAN;
    }
    return rb_result_bound_fraction(result) * (xm_plan_net_bytes(result->prepared->plan) > 0
                                                   ? xm_network_nic_bandwidth(network)
                                                   : xm_network_host_bandwidth(network));
}

char *rb_result_obstacle(const rb_result_t *result, char *buffer)
{
    rb_processors_t own = result->processors;
    double waited = result->runs > 0 ? result->waited_s / rb_result_times(result).mean : 0;

    if (waited < 0 && own.ranks > own.cores) {
        (void)snprintf(buffer, RB_OBSTACLE_TEXT,
                       "%d ranks share %d processor%s, and the kernel does not tell how long they "
                       "waited",
                       own.ranks, own.cores, own.cores == 1 ? "" : "s");
    } else if (waited > tolerated && own.ranks > own.cores) {
        (void)snprintf(
            buffer, RB_OBSTACLE_TEXT,
            "%d ranks share %d processor%s, for which they waited %.0f %% of the time, added up",
            own.ranks, own.cores, own.cores == 1 ? "" : "s", 100 * waited);
    } else if (waited > tolerated) {
        (void)snprintf(buffer, RB_OBSTACLE_TEXT,
                       "a rank waited %.0f %% of the time for processors that other programs had",
                       100 * waited);
    } else {
        return NULL;
    }
    return buffer;
}

/* The sign says whether the prediction was too long (positive) or too short. */
double rb_result_sim_error(const rb_result_t *result)
{
    double time = rb_result_time(result);
    char obstacle[RB_OBSTACLE_TEXT];

    return result->runs > 0 && time > 0 && result->sent_share <= 0 &&
                   rb_result_obstacle(result, obstacle) == NULL
               ? (double)xm_plan_makespan_ns(result->prepared->plan) * 1e-9 / time - 1
               : NAN;
}

void rb_result_clear(rb_result_t *result)
{
    free(result->seconds);
    free(result->everything);
    free(result->records);
    *result = (rb_result_t){0};
}
