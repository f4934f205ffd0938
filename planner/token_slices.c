#include "planner/token_slices.h"

#include <stdlib.h>

enum { MOST_POINTS = 4096 };

static const int64_t NEVER = INT64_MAX / 4;

typedef struct search {
    int points, stages;
    int64_t *times; /* [from][to]: nanoseconds of the slice between two points */
    int64_t *sums;  /* [point]: smallest sum up to it */
    int *last;      /* [point]: where its last slice begins */
} search_t;

static int64_t *time_of(const search_t *search, int from, int to)
{
    return &search->times[from * (search->points + 1) + to];
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static xm_status_t fill_times(const search_t *search, int granularity, ap_slice_time_fn time,
                              void *arg)
{
    for (int from = 0; from < search->points; ++from) {
        for (int to = from + 1; to <= search->points; ++to) {
            int length = (to - from) * granularity, context = from * granularity;
            int64_t value = time(arg, length, context);

            if (value < 0 || value > NEVER / (search->points + search->stages)) {
                return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                                    "a slice of %d tokens after %d takes %lld ns", length, context,
                                    (long long)value);
            }
            *time_of(search, from, to) = value;
        }
    }
    return XM_OK;
}

/* The smallest sum with no slice longer than @p limit, NEVER if there is none; fills sums and last.
 */
static int64_t smallest_sum(search_t *search, int64_t limit)
{
    search->sums[0] = 0;
    for (int to = 1; to <= search->points; ++to) {
        search->sums[to] = NEVER;
        for (int from = 0; from < to; ++from) {
            int64_t time = *time_of(search, from, to), sum = search->sums[from] + time;

            if (time <= limit && sum < search->sums[to]) {
                search->sums[to] = sum;
                search->last[to] = from;
            }
        }
    }
    return search->sums[search->points];
}

/* The smallest possible longest slice. */
static int64_t smallest_longest(search_t *search)
{
    search->sums[0] = 0;
    for (int to = 1; to <= search->points; ++to) {
        search->sums[to] = NEVER;
        for (int from = 0; from < to; ++from) {
            int64_t longest = larger(search->sums[from], *time_of(search, from, to));

            search->sums[to] = longest < search->sums[to] ? longest : search->sums[to];
        }
    }
    return search->sums[search->points];
}

static int64_t longest_found(const search_t *search)
{
    int64_t longest = 0;

    for (int to = search->points; to > 0; to = search->last[to]) {
        longest = larger(longest, *time_of(search, search->last[to], to));
    }
    return longest;
}

static void keep(const search_t *search, int granularity, int64_t sum, int64_t longest,
                 ap_token_slices_t *best)
{
    int at;

    best->latency_ns = sum + (search->stages - 1) * longest;
    best->longest_ns = longest;
    best->count = 0;
    for (int to = search->points; to > 0; to = search->last[to]) {
        ++best->count;
    }
    at = best->count;
    for (int to = search->points; to > 0; to = search->last[to]) {
        best->lengths[--at] = (to - search->last[to]) * granularity;
    }
}

static void walk(search_t *search, int granularity, ap_token_slices_t *best)
{
    int64_t shortest = smallest_longest(search), limit = NEVER;

    best->latency_ns = NEVER;
    while (limit >= shortest) {
        int64_t sum = smallest_sum(search, limit), longest = longest_found(search);

        if (sum + (search->stages - 1) * longest < best->latency_ns) {
            keep(search, granularity, sum, longest, best);
        }
        if (sum + (search->stages - 1) * shortest >= best->latency_ns) {
            break;
        }
        limit = longest - 1;
    }
}

xm_status_t ap_token_slices_find(int tokens, int granularity, int stages, ap_slice_time_fn time,
                                 void *arg, ap_token_slices_t *slices)
{
    search_t search = {.stages = stages};
    ap_token_slices_t best = {0};
    xm_status_t status;
    size_t points;

    if (tokens < 1 || granularity < 1 || tokens % granularity != 0 || stages < 1 ||
        stages > 1 << 20 || tokens / granularity > MOST_POINTS) {
        return xm_error_set(XM_ERR_INVALID_ARGUMENT,
                            "%d tokens in slices of multiples of %d on %d stages: multiples must "
                            "divide, and give at most %d",
                            tokens, granularity, stages, MOST_POINTS);
    }
    search.points = tokens / granularity;
    points = (size_t)search.points + 1;
    search.times = malloc(points * points * sizeof(int64_t));
    search.sums = malloc(points * sizeof(int64_t));
    search.last = calloc(points, sizeof(int));
    best.lengths = calloc(points, sizeof(int));
    if (search.times == NULL || search.sums == NULL || search.last == NULL ||
        best.lengths == NULL) {
        status = xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d slices", search.points);
    } else {
        status = fill_times(&search, granularity, time, arg);
    }
    if (status == XM_OK) {
        walk(&search, granularity, &best);
        *slices = best;
    } else {
        free(best.lengths);
    }
    free(search.last);
    free(search.sums);
    free(search.times);
    return status;
}

void ap_token_slices_clear(ap_token_slices_t *slices)
{
    if (slices != NULL) {
        free(slices->lengths);
        *slices = (ap_token_slices_t){0};
    }
}
