/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bars of a figure, sorted into lanes: merges those that nobody could tell apart and
 * arranges what overlaps in rows. A plan can have millions of hops, and a figure must
 * stay small enough to be opened.
 */
#include "bench/report/lanes.h"

#include <stdlib.h>

xm_status_t rb_lanes_create(int count, rb_lanes_t *lanes)
{
    *lanes = (rb_lanes_t){.lanes = calloc((size_t)count, sizeof(rb_lane_t)), .count = count};
    if (lanes->lanes == NULL) {
        lanes->count = 0;
        return XM_NO_MEMORY("the %d lanes of a figure", count);
    }
    return XM_OK;
}

/* Lanes grow by doubling; nobody knows beforehand how many bars there will be. */
xm_status_t rb_lanes_add(rb_lanes_t *lanes, int lane, const rb_bar_t *bar)
{
    rb_lane_t *grows = &lanes->lanes[lane];

    XM_NEED_MEMORY(XM_ARRAY_ROOM(grows->bars, grows->capacity, grows->count), "the figure");
    grows->bars[grows->count++] = *bar;
    return XM_OK;
}

/* A total order, so that equal plans give equal figures. */
static int compare_starts(const void *a, const void *b)
{
    const rb_bar_t *left = a, *right = b;

    XM_ORDER_BY(left->start_ns, right->start_ns);
    XM_ORDER_BY(left->task, right->task);
    XM_ORDER_BY(left->sender, right->sender);
    return xm_order(left->receiver, right->receiver);
}

/* By source and task, then by start: bars that may merge stand next to each other. */
static int compare_tasks(const void *a, const void *b)
{
    const rb_bar_t *left = a, *right = b;

    XM_ORDER_BY(left->source, right->source);
    XM_ORDER_BY(left->task, right->task);
    return compare_starts(a, b);
}

/* A bar of several tasks or sources says so by −1. */
static void absorb(rb_bar_t *bar, const rb_bar_t *next)
{
    bar->end_ns = next->end_ns > bar->end_ns ? next->end_ns : bar->end_ns;
    bar->task = next->task == bar->task ? bar->task : -1;
    bar->source = next->source == bar->source ? bar->source : -1;
    bar->hops += next->hops;
    bar->bytes += next->bytes;
}

/* Merges neighbours along a sorted list when the gap between them is small; with
 * `any_task` whatever is short, otherwise what has the same task and source. */
static void merge(rb_lane_t *lane, int64_t gap_ns, bool any_task)
{
    size_t kept = 0;

    if (lane->count == 0) {
        return;
    }
    qsort(lane->bars, lane->count, sizeof(*lane->bars), any_task ? compare_starts : compare_tasks);
    for (size_t i = 1; i < lane->count; ++i) {
        rb_bar_t *last = &lane->bars[kept];
        const rb_bar_t *next = &lane->bars[i];
        bool alike = any_task ? last->end_ns - last->start_ns < gap_ns &&
                                    next->end_ns - next->start_ns < gap_ns
                              : next->task == last->task && next->source == last->source;

        if (alike && next->start_ns - last->end_ns <= gap_ns) {
            absorb(last, next);
        } else {
            lane->bars[++kept] = *next;
        }
    }
    lane->count = kept + 1;
}

void rb_lanes_merge_tasks(rb_lanes_t *lanes, int64_t gap_ns)
{
    for (int l = 0; l < lanes->count; ++l) {
        merge(&lanes->lanes[l], gap_ns, false);
    }
}

void rb_lanes_merge_short(rb_lanes_t *lanes, int64_t gap_ns)
{
    for (int l = 0; l < lanes->count; ++l) {
        merge(&lanes->lanes[l], gap_ns, true);
    }
}

/* Puts each bar into the first row that is free by its start, which uses as few rows as
 * there are bars at one moment. */
static xm_status_t arrange(rb_lane_t *lane, int64_t slack_ns)
{
    int64_t *busy_until = malloc((lane->count + 1) * sizeof(*busy_until));

    XM_NEED_MEMORY(busy_until, "the figure");
    if (lane->count > 0) {
        qsort(lane->bars, lane->count, sizeof(*lane->bars), compare_starts);
    }
    lane->rows = 0;
    for (size_t i = 0; i < lane->count; ++i) {
        rb_bar_t *bar = &lane->bars[i];

        bar->row = 0;
        while (bar->row < lane->rows && busy_until[bar->row] > bar->start_ns + slack_ns) {
            ++bar->row;
        }
        lane->rows = bar->row >= lane->rows ? bar->row + 1 : lane->rows;
        busy_until[bar->row] = bar->end_ns;
    }
    free(busy_until);
    return XM_OK;
}

/* Each lane is arranged by itself. */
xm_status_t rb_lanes_arrange(rb_lanes_t *lanes, int64_t slack_ns)
{
    for (int l = 0; l < lanes->count; ++l) {
        XM_TRY(arrange(&lanes->lanes[l], slack_ns));
    }
    return XM_OK;
}

size_t rb_lanes_bars(const rb_lanes_t *lanes)
{
    size_t bars = 0;

    for (int l = 0; l < lanes->count; ++l) {
        bars += lanes->lanes[l].count;
    }
    return bars;
}

/* The end of the last bar, which is where the time axis ends. */
int64_t rb_lanes_end(const rb_lanes_t *lanes)
{
    int64_t end = 0;

    for (int l = 0; l < lanes->count; ++l) {
        for (size_t i = 0; i < lanes->lanes[l].count; ++i) {
            end = lanes->lanes[l].bars[i].end_ns > end ? lanes->lanes[l].bars[i].end_ns : end;
        }
    }
    return end;
}

void rb_lanes_clear(rb_lanes_t *lanes)
{
    for (int l = 0; l < lanes->count; ++l) {
        free(lanes->lanes[l].bars);
    }
    free(lanes->lanes);
    *lanes = (rb_lanes_t){0};
}
