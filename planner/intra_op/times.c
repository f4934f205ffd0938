/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the times at which a memory limit can bind. A graph has a time per operator, but between
 * two ends of live ranges memory only grows, so one time per end is enough; and of symmetric
 * layers, a time at which another one has as much of every buffer cannot be the worst under any
 * choice. That comparison goes buffer by buffer, not by bytes, so it holds whatever is chosen.
 *
 * The result is a few times, over which each buffer is used in some stretches, several at once
 * where it stands for several layers.
 */

#include "planner/intra_op/times.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Cells of the table that compares times: 256 MiB at most. Beyond that times are not compared. */
static const size_t cells_max = (size_t)1 << 27;

/* The uses, the times kept so far, and the table of how often each buffer is used at each kept
 * time. */
typedef struct finder {
    const ap_shard_use_t *uses;
    int count, rows, times;
    xm_arena_t arena; /* the arrays below but the spans */
    int *place;       /* per time: kept times before it; times + 1 */
    int *time;        /* per kept time */
    int kept;
    uint16_t *table; /* [kept time][row]: uses */
    ap_shard_span_t *span;
    int spans;
    size_t capacity;
} finder_t;

/* Keeps the last time before something ends, if something began since the last one kept. At all
 * other times, what is live is part of what is live at a kept one. place[] leads from any time to
 * the first kept time that is not before it. */
static xm_status_t keep_last(finder_t *f)
{
    size_t times = (size_t)f->times + 2;
    bool *begins = xm_arena_get(&f->arena, times, sizeof(bool));
    bool *ends = xm_arena_get(&f->arena, times, sizeof(bool)), fresh = false;

    f->place = xm_arena_take(&f->arena, times * sizeof(int));
    f->time = xm_arena_take(&f->arena, times * sizeof(int));
    XM_NEED_MEMORY(!f->arena.failed, "the times of a graph");
    for (int u = 0; u < f->count; ++u) {
        begins[f->uses[u].first] = true;
        ends[f->uses[u].end] = true;
    }
    for (int t = 0; t < f->times; ++t) {
        f->place[t] = f->kept;
        fresh = fresh || begins[t];
        if (fresh && (ends[t + 1] || t + 1 == f->times)) {
            f->time[f->kept++] = t;
            fresh = false;
        }
    }
    f->place[f->times] = f->kept;
    return XM_OK;
}

/* Counts the uses of each buffer at each kept time. */
static xm_status_t fill_table(finder_t *f)
{
    size_t rows = (size_t)f->rows;

    f->table = xm_arena_get(&f->arena, (size_t)f->kept * rows, sizeof(*f->table));
    XM_NEED_MEMORY(f->table, "the times of a graph");
    for (int u = 0; u < f->count; ++u) {
        int end = f->place[f->uses[u].end];

        for (int k = f->place[f->uses[u].first]; k < end; ++k) {
            uint16_t *cell = &f->table[(size_t)k * rows + (size_t)f->uses[u].row];

            *cell = (uint16_t)(*cell + 1);
        }
    }
    return XM_OK;
}

/* Whether one time has at least as many uses of every buffer as another. */
static bool covers(const finder_t *f, int more, int less)
{
    const uint16_t *a = f->table + (size_t)more * (size_t)f->rows;
    const uint16_t *b = f->table + (size_t)less * (size_t)f->rows;

    for (int r = 0; r < f->rows; ++r) {
        if (a[r] < b[r]) {
            return false;
        }
    }
    return true;
}

/* Drops times that another one covers. Each time is compared with the two that `like` names only,
 * since comparing all pairs would take far longer than the solver. A dropped time drops no other,
 * so of two equal ones one stays. */
static xm_status_t drop_covered(finder_t *f, const int *like)
{
    bool *dropped = xm_arena_get(&f->arena, (size_t)f->kept, sizeof(bool));
    int kept = 0;

    XM_NEED_MEMORY(dropped, "the times of a graph");
    for (int k = 0; k < f->kept; ++k) {
        for (int i = 0; i < 2; ++i) {
            int other = f->place[like[2 * f->time[k] + i]];

            if (other != k && other < f->kept && !dropped[other] && covers(f, other, k)) {
                dropped[k] = true;
                break;
            }
        }
    }
    for (int k = 0; k < f->kept; ++k) {
        if (!dropped[k]) {
            memmove(f->table + (size_t)kept * (size_t)f->rows,
                    f->table + (size_t)k * (size_t)f->rows, (size_t)f->rows * sizeof(*f->table));
            ++kept;
        }
    }
    f->kept = kept;
    return XM_OK;
}

/* Appends a stretch of use. */
static xm_status_t add_span(finder_t *f, int row, int weight, int first, int end)
{
    XM_NEED_MEMORY(XM_ARRAY_ROOM(f->span, f->capacity, f->spans), "the times of a graph");
    f->span[f->spans++] =
        (ap_shard_span_t){.row = row, .weight = weight, .first = first, .end = end};
    return XM_OK;
}

/* Takes a buffer's number of uses over time apart into stretches of constant weight, as nested
 * levels: a rise opens one, a fall closes the latest ones. Nesting gives the longest stretches, and
 * so the fewest nodes in the network. */
static xm_status_t stack_row(finder_t *f, int row, ap_shard_span_t *open)
{
    int depth = 0, level = 0;
    xm_status_t status = XM_OK;

    for (int k = 0; k <= f->kept && status == XM_OK; ++k) {
        int now = k < f->kept ? f->table[(size_t)k * (size_t)f->rows + (size_t)row] : 0;

        if (now > level) {
            open[depth++] = (ap_shard_span_t){.weight = now - level, .first = k};
            level = now;
        }
        while (level > now && status == XM_OK) {
            ap_shard_span_t *top = &open[depth - 1];
            int less = top->weight < level - now ? top->weight : level - now;

            status = add_span(f, row, less, top->first, k);
            top->weight -= less;
            level -= less;
            depth -= top->weight == 0;
        }
    }
    return status;
}

/* The weight times the length of a stretch. */
static int64_t extent(const ap_shard_span_t *span)
{
    return (int64_t)span->weight * (span->end - span->first);
}

/* By buffer, and the largest stretch first: it will be on the variable's own node. */
static int compare_spans(const void *left, const void *right)
{
    const ap_shard_span_t *a = left, *b = right;

    return a->row != b->row         ? xm_order(a->row, b->row)
           : extent(a) != extent(b) ? xm_order(extent(b), extent(a))
                                    : xm_order(a->first, b->first);
}

/* Without a table every use is a stretch of its own. */
static xm_status_t copy_uses(finder_t *f)
{
    xm_status_t status = XM_OK;

    for (int u = 0; u < f->count && status == XM_OK; ++u) {
        const ap_shard_use_t *use = &f->uses[u];

        status = add_span(f, use->row, 1, f->place[use->first], f->place[use->end]);
    }
    return status;
}

/* Compares times only where some may be symmetric and the table is small enough. */
xm_status_t ap_shard_spans_find(const ap_shard_use_t *uses, int count, int rows, int times,
                                const int *like, ap_shard_span_t **spans, int *span_count)
{
    finder_t f = {.uses = uses, .count = count, .rows = rows, .times = times};
    ap_shard_span_t *open;
    xm_status_t status = keep_last(&f);

    if (status != XM_OK || like == NULL || (size_t)f.kept * (size_t)rows > cells_max ||
        count > UINT16_MAX * 4) {
        XM_THEN(status, copy_uses(&f));
        goto release;
    }
    open = xm_arena_take(&f.arena, (size_t)f.kept * sizeof(*open));
    status = open == NULL ? XM_NO_MEMORY("the times of a graph") : fill_table(&f);
    XM_THEN(status, drop_covered(&f, like));
    for (int r = 0; r < rows && status == XM_OK; ++r) {
        status = stack_row(&f, r, open);
    }

release:
    xm_arena_clear(&f.arena);
    if (status != XM_OK) {
        free(f.span);
        return status;
    }
    if (f.spans > 0) {
        qsort(f.span, (size_t)f.spans, sizeof(*f.span), compare_spans);
    }
    *spans = f.span;
    *span_count = f.spans;
    return XM_OK;
}
