/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file lanes.h
 * Bars on lanes of a time axis: what a figure of transfers is made of.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

/** One hop, or several that are drawn as one. */
typedef struct rb_bar {
    int64_t start_ns, end_ns;
    int64_t task;         /**< unit task, or −1 for hops of several */
    int source;           /**< whose data it carries, or −1 for several: decides the colour */
    int sender, receiver; /**< of the first hop */
    int64_t hops;
    uint64_t bytes; /**< of all hops */
    int row;        /**< within the lane */
} rb_bar_t;

typedef struct rb_lane {
    rb_bar_t *bars;
    size_t count, capacity;
    int rows;
} rb_lane_t;

typedef struct rb_lanes {
    rb_lane_t *lanes;
    int count;
} rb_lanes_t;

xm_status_t rb_lanes_create(int count, rb_lanes_t *lanes);
xm_status_t rb_lanes_add(rb_lanes_t *lanes, int lane, const rb_bar_t *bar);

/** Makes one bar of those of one lane, task and source that overlap or are at most @p gap_ns apart.
 */
void rb_lanes_merge_tasks(rb_lanes_t *lanes, int64_t gap_ns);

/** The same for neighbours of any tasks and sources that are all shorter than @p gap_ns. */
void rb_lanes_merge_short(rb_lanes_t *lanes, int64_t gap_ns);

/** Sorts the bars by start and puts those that overlap by more than @p slack_ns into different
 * rows. */
xm_status_t rb_lanes_arrange(rb_lanes_t *lanes, int64_t slack_ns);

/** Number of bars, and the largest end. */
size_t rb_lanes_bars(const rb_lanes_t *lanes);
int64_t rb_lanes_end(const rb_lanes_t *lanes);

void rb_lanes_clear(rb_lanes_t *lanes);
