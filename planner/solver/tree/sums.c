/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lowers capacities to sums that can really occur. This is a subset-sum problem with a choice per
 * variable, for each priced time; it is solved over ranges of sums instead of single sums. Ranges
 * that lie nearer than 1/4096 of the capacity are joined, so there are at most some thousands of
 * them, and joining only adds sums that do not exist: the result can be too large, never too small,
 * so no assignment is lost.
 */

#include "planner/solver/tree/sums.h"

#include <stdlib.h>
#include <string.h>

/* Sums nearer to each other than this part of the capacity count as one range. */
static const double resolution = 1.0 / 4096;
enum { RANGES = 8192 };

typedef struct range {
    double low, high;
} range_t;

/* Sorted ranges that hold all sums of some variables, none of them beginning above the capacity.
 * There are three lists of ranges since a merge reads two and writes the third. */
typedef struct sums {
    range_t *range, *other, *moved;
    int count;
    double capacity, gap;
    size_t work; /* that is left */
} sums_t;

/* The usages of one variable at a time, with its kept values; `most` orders the items. */
typedef struct item {
    double most;
    const double *usage;
    const bool *keep;
    int size;
} item_t;

/* Appends a range, joined to the last one when that is near. Ranges come in ascending order of
 * their lower ends. */
static void append(const sums_t *sums, range_t *list, int *count, range_t range)
{
    if (*count > 0 && range.low - list[*count - 1].high <= sums->gap) {
        list[*count - 1].high =
            range.high > list[*count - 1].high ? range.high : list[*count - 1].high;
    } else {
        list[(*count)++] = range;
    }
}

/* Merges the ranges, moved up by `usage`, into `from`; the result is in `into`. Both lists ascend,
 * so one pass is enough. What begins above the capacity is left out, since all that could be added
 * to it is not negative. */
static int merge(const sums_t *sums, const range_t *from, int count, double usage, range_t *into)
{
    int made = 0, k = 0;

    for (int j = 0; j < sums->count; ++j) {
        range_t range = {sums->range[j].low + usage, sums->range[j].high + usage};

        if (range.low > sums->capacity) {
            break;
        }
        for (; k < count && from[k].low <= range.low; ++k) {
            append(sums, into, &made, from[k]);
        }
        append(sums, into, &made, range);
    }
    for (; k < count; ++k) {
        append(sums, into, &made, from[k]);
    }
    return made;
}

/* Adds one of a variable's usages to every sum: the union of the ranges moved up by each different
 * usage of its kept values. `usages` has room for them. */
static void add_item(sums_t *sums, const item_t *item, double *usages)
{
    range_t *made = sums->other, *spare = sums->moved;
    int count = 0, different = 0;

    for (int x = 0; x < item->size; ++x) {
        if (item->keep[x]) {
            usages[different++] = item->usage[x];
        }
    }
    qsort(usages, (size_t)different, sizeof(*usages), xm_order_doubles);
    for (int k = 0; k < different; ++k) {
        /* Usages that are equal make the same sums. */
        if (k == 0 || usages[k] > usages[k - 1]) {
            range_t *from = made;

            count = merge(sums, from, count, usages[k], spare);
            made = spare;
            spare = from;
            sums->work -= (size_t)count < sums->work ? (size_t)count + 1 : sums->work;
        }
    }
    sums->other = sums->range;
    sums->range = made;
    sums->moved = spare;
    sums->count = count;
}

/* Lists the items that are live at a time, small ones first: their sums lie close and stay few
 * ranges, so most of the work is saved for the large ones at the end. */
static int list_items(const ap_cfn_core_t *core, const size_t *at, const bool *keep, int time,
                      item_t *items)
{
    int count = 0;

    for (int v = 0; v < core->variables; ++v) {
        const ap_cfn_variable_t *variable = &core->variable[v];

        for (int k = 0; k < variable->segments; ++k) {
            const ap_cfn_segment_t *segment = &variable->segment[k];

            if (segment->from <= time && time < segment->to) {
                item_t *item = &items[count++];

                *item = (item_t){0.0, segment->usage, keep + at[v], variable->size};
                for (int x = 0; x < variable->size; ++x) {
                    item->most =
                        item->keep[x] && item->usage[x] > item->most ? item->usage[x] : item->most;
                }
            }
        }
    }
    qsort(items, (size_t)count, sizeof(*items), xm_order_doubles);
    return count;
}

/* The largest sum that is not above the capacity; below 0 when there is none, and the capacity
 * itself when the work ran out before it was known. */
static double largest_sum(sums_t *sums, const item_t *items, int count, double *usages)
{
    double last;

    sums->gap = resolution * sums->capacity;
    /* Without any variable the only sum is 0. */
    sums->range[0] = (range_t){0.0, 0.0};
    sums->count = 1;
    for (int k = 0; k < count && sums->count > 0; ++k) {
        if (sums->work == 0) {
            return sums->capacity; /* not known */
        }
        add_item(sums, &items[k], usages);
    }
    if (sums->count == 0) {
        return -1.0;
    }
    last = sums->range[sums->count - 1].high;
    return last < sums->capacity ? last : sums->capacity;
}

/* Lowers the capacities of times that have a price. Ranges lie more than the gap apart and begin
 * below the capacity, so there are at most 4,097 of them, and the arrays cannot overflow. */
xm_status_t ap_cfn_lower_capacities(const ap_cfn_core_t *core, const size_t *at, const bool *keep,
                                    const double *price, size_t work, double *capacity)
{
    size_t largest = 1;
    sums_t sums = {.work = work};
    xm_arena_t pool = {0};
    item_t *items = xm_arena_take(&pool, (size_t)core->variables * sizeof(*items));
    double *usages;

    for (int v = 0; v < core->variables; ++v) {
        size_t size = (size_t)core->variable[v].size;

        largest = size > largest ? size : largest;
    }
    usages = xm_arena_take(&pool, largest * sizeof(*usages));
    sums.range = xm_arena_take(&pool, RANGES * sizeof(range_t));
    sums.other = xm_arena_take(&pool, RANGES * sizeof(range_t));
    sums.moved = xm_arena_take(&pool, RANGES * sizeof(range_t));
    if (pool.failed) {
        xm_arena_clear(&pool);
        return XM_NO_MEMORY("sums of %d usages", core->variables);
    }
    /* The work left over after a time is that of the next. Times without a price are skipped, as a
     * lower capacity would not change the bound there. */
    for (int t = 0; t < core->times && sums.work > 0; ++t) {
        if (price[t] > 0.0 && capacity[t] > 0.0) {
            size_t listing = (size_t)core->variables;
            int count = list_items(core, at, keep, t, items);

            sums.work -= listing < sums.work ? listing : sums.work;
            sums.capacity = capacity[t];
            capacity[t] = largest_sum(&sums, items, count, usages);
        }
    }
    xm_arena_clear(&pool);
    return XM_OK;
}
