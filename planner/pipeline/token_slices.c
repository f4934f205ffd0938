/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices of a sequence: a dynamic programme over where slices end gives the least sum of slices
 * that are no longer than a limit; the limit goes down from none to the least that is possible,
 * each time to just below the longest slice found. What is skipped between two limits has the same
 * longest slice and no smaller sum, so the best of all is among what is seen.
 */
#include "planner/pipeline/token_slices.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS_MOST = 256, ROWS_MOST = 4096, TERMS = 3 };

typedef struct search {
    const double *time;
    int points, unit;
    double *sum; /* [point]: least so far */
    int *last;   /* [point]: where its last slice begins */
} search_t;

static double time_of(const double time[TERMS], double length, double context)
{
    return time[0] + length * (time[1] + time[2] * (context + 0.5 * length));
}

static double part_of(const search_t *search, int from, int to)
{
    return time_of(search->time, (double)(to - from) * search->unit, (double)from * search->unit);
}

/* The least sum of slices below the limit, infinite where there is none. */
static double least_sum(search_t *search, double limit)
{
    search->sum[0] = 0;
    for (int to = 1; to <= search->points; ++to) {
        search->sum[to] = INFINITY;
        for (int from = 0; from < to; ++from) {
            double time = part_of(search, from, to);

            if (time < limit && search->sum[from] + time < search->sum[to]) {
                search->sum[to] = search->sum[from] + time;
                search->last[to] = from;
            }
        }
    }
    return search->sum[search->points];
}

static double longest_of(const search_t *search)
{
    double longest = 0;

    for (int to = search->points; to > 0; to = search->last[to]) {
        longest = fmax(longest, part_of(search, search->last[to], to));
    }
    return longest;
}

/* Makes slices of lengths that end at these points. */
static xm_status_t make_slices(const double time[TERMS], const int *ends, int count, int unit,
                               ap_token_slices_t *slices)
{
    int tokens = ends[count - 1] * unit;
    ap_token_slices_t made = {.stages = slices->stages,
                              .micro_batches = slices->micro_batches,
                              .count = count,
                              .part = calloc((size_t)count, sizeof(double)),
                              .share = calloc((size_t)count, sizeof(double)),
                              .length = calloc((size_t)count, sizeof(int)),
                              .whole = time_of(time, tokens, 0)};

    if (made.part == NULL || made.share == NULL || made.length == NULL) {
        ap_token_slices_clear(&made);
        return XM_NO_MEMORY("%d slices", count);
    }
    for (int i = 0, from = 0; i < count; from = ends[i++]) {
        double seconds = time_of(time, (double)(ends[i] - from) * unit, (double)from * unit);

        made.length[i] = (ends[i] - from) * unit;
        made.part[i] = (double)made.length[i] / tokens;
        made.share[i] = seconds / made.whole;
        made.sum += seconds;
        made.longest = fmax(made.longest, seconds);
    }
    made.seconds = made.micro_batches * made.sum + (made.stages - 1) * made.longest;
    ap_token_slices_clear(slices);
    *slices = made;
    return XM_OK;
}

/* Turns the chain of last slices round. */
static xm_status_t keep(const search_t *search, int *ends, ap_token_slices_t *best)
{
    int count = 0, at = 0;

    for (int to = search->points; to > 0; to = search->last[to]) {
        ++count;
    }
    at = count;
    for (int to = search->points; to > 0; to = search->last[to]) {
        ends[--at] = to;
    }
    return make_slices(search->time, ends, count, search->unit, best);
}

/* The last tokens are in one of the slices, so no longest one is below what they take alone. */
xm_status_t ap_token_slices_find(const double time[TERMS], int tokens, int unit,
                                 ap_token_slices_t *slices)
{
    search_t search = {.time = time, .points = unit > 0 ? tokens / unit : 0, .unit = unit};
    size_t points = (size_t)search.points + 1;
    double limit = INFINITY, sum, best = INFINITY;
    const double behind = slices->stages - 1, rounds = slices->micro_batches;
    xm_status_t status = XM_OK;
    xm_arena_t arena = {0};
    int *ends;

    if (tokens < 1 || unit < 1 || tokens % unit != 0 || search.points > POINTS_MOST) {
        return XM_INVALID("%d tokens in slices of multiples of %d: multiples must divide, and "
                          "give at most %d",
                          tokens, unit, POINTS_MOST);
    }
    search.sum = xm_arena_take(&arena, points * sizeof(double));
    search.last = xm_arena_take(&arena, points * sizeof(int));
    ends = xm_arena_take(&arena, points * sizeof(int));
    if (arena.failed) {
        status = XM_NO_MEMORY("%d slices", search.points);
    }
    while (status == XM_OK) {
        sum = rounds * least_sum(&search, limit);
        if (!(sum + behind * part_of(&search, search.points - 1, search.points) < best)) {
            break;
        }
        limit = longest_of(&search);
        if (sum + behind * limit < best) {
            best = sum + behind * limit;
            status = keep(&search, ends, slices);
        }
    }
    xm_arena_clear(&arena);
    return status;
}

/* Solves the normal equations by elimination; a term that the rest explains becomes 0. */
static void solve(double matrix[TERMS][TERMS + 1], double *solution)
{
    for (int c = 0; c < TERMS; ++c) {
        for (int r = 0; r < TERMS; ++r) {
            double factor =
                r == c || !(fabs(matrix[c][c]) > 1e-12) ? 0 : matrix[r][c] / matrix[c][c];

            for (int k = c; k <= TERMS; ++k) {
                matrix[r][k] -= factor * matrix[c][k];
            }
        }
    }
    for (int c = 0; c < TERMS; ++c) {
        solution[c] = fabs(matrix[c][c]) > 1e-12 ? matrix[c][TERMS] / matrix[c][c] : 0;
    }
}

/* Terms are scaled to the longest sequence, so that all are near 1. */
static void fit(double (*rows)[TERMS], int count, int tokens, double time[TERMS])
{
    double matrix[TERMS][TERMS + 1] = {{0}};

    for (int i = 0; i < count; ++i) {
        double length = rows[i][0] / tokens, context = rows[i][1] / tokens;
        const double term[] = {1, length, length * (context + 0.5 * length)};

        for (int r = 0; r < TERMS; ++r) {
            for (int c = 0; c < TERMS; ++c) {
                matrix[r][c] += term[r] * term[c] / rows[i][2] / rows[i][2];
            }
            matrix[r][TERMS] += term[r] / rows[i][2];
        }
    }
    for (int r = 0; r < TERMS; ++r) { /* pivots are compared with 1 */
        double scale = matrix[r][r];

        for (int c = 0; c <= TERMS; ++c) {
            matrix[r][c] /= scale;
        }
    }
    solve(matrix, time);
    time[1] /= tokens;
    time[2] /= (double)tokens * tokens;
}

static bool read_row(const char *line, double row[TERMS])
{
    for (int i = 0; i < TERMS; ++i) {
        char *end;

        row[i] = strtod(line, &end);
        if (end == line) {
            return false;
        }
        line = end;
    }
    return line[strspn(line, " \t\r\n")] == '\0';
}

static xm_status_t read_rows(const char *path, double (*rows)[TERMS], int *count)
{
    FILE *file = fopen(path, "r");
    char line[256];
    xm_status_t status = XM_OK;

    *count = 0;
    if (file == NULL) {
        return XM_NOT_FOUND("cannot read the times of slices '%s'", path);
    }
    for (int at = 1; status == XM_OK && fgets(line, sizeof(line), file) != NULL; ++at) {
        double *row = rows[*count < ROWS_MOST ? *count : 0];

        if (line[strspn(line, " \t\r\n")] == '\0' || line[0] == '#') {
            continue;
        }
        if (*count == ROWS_MOST || !read_row(line, row) ||
            !(row[0] >= 1 && row[0] <= 1e9 && row[1] >= 0 && row[1] <= 1e9 && row[2] > 0 &&
              row[2] < 1e9)) {
            status = XM_MALFORMED("%s:%d: a line is 'length context seconds', and there are at "
                                  "most %d",
                                  path, at, ROWS_MOST);
        }
        ++*count;
    }
    (void)fclose(file);
    return status == XM_OK && *count < TERMS
               ? XM_INVALID("%s: at least %d slices have to be measured", path, TERMS)
               : status;
}

static xm_status_t cut_evenly(const double time[TERMS], int tokens, int count,
                              ap_token_slices_t *slices)
{
    int *ends = malloc((size_t)count * sizeof(*ends));
    xm_status_t status = ends == NULL ? XM_NO_MEMORY("%d slices", count) : XM_OK;

    if (tokens % count != 0) {
        status = XM_INVALID("%d tokens are not %d equal slices", tokens, count);
    }
    for (int i = 0; i < count && status == XM_OK; ++i) {
        ends[i] = i + 1;
    }
    XM_THEN(status, make_slices(time, ends, count, tokens / count, slices));
    free(ends);
    return status;
}

xm_status_t ap_token_slices_load(const char *path, int stages, int micro_batches, int count,
                                 ap_token_slices_t *slices)
{
    double(*rows)[TERMS] = calloc(ROWS_MOST, sizeof(*rows)), time[TERMS];
    int read = 0, tokens = 0, unit = INT32_MAX;
    xm_status_t status =
        rows == NULL ? XM_NO_MEMORY("times of slices") : read_rows(path, rows, &read);

    for (int i = 0; i < read && status == XM_OK; ++i) {
        int end = (int)(rows[i][0] + rows[i][1]);

        tokens = end > tokens ? end : tokens;
        unit = (int)rows[i][0] < unit ? (int)rows[i][0] : unit;
    }
    if (status == XM_OK) {
        fit(rows, read, tokens, time);
        if (!(time_of(time, unit, 0) > 0 && time_of(time, unit, tokens - unit) > 0)) {
            status =
                XM_INVALID("%s: no slice takes less than no time, but these times say so", path);
        }
    }
    *slices = (ap_token_slices_t){.stages = stages, .micro_batches = micro_batches};
    XM_THEN(status, count > 0 ? cut_evenly(time, tokens, count, slices)
                              : ap_token_slices_find(time, tokens, unit, slices));
    free(rows);
    return status;
}

void ap_token_slices_clear(ap_token_slices_t *slices)
{
    if (slices != NULL) {
        free(slices->part);
        free(slices->share);
        free(slices->length);
        *slices = (ap_token_slices_t){0};
    }
}
