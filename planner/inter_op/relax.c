/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The relaxed programme that bounds everything: a stage costs its cheapest configuration, whatever
 * its neighbours, and boundaries are free. What is left is a shortest path over places (devices
 * left, layers done), in O(layers² x devices x submeshes) with vector instructions. Every real plan
 * is a path of it and costs no less, so its values are lower bounds.
 *
 * It is run forwards (costs before a place) and backwards (costs after it); their sum bounds all
 * plans through the place.
 */

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "planner/inter_op/inter_op_private.h"

/* One build runs everywhere, but uses wide vectors where it finds them. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

/* to[i] = the minimum of to[i] and base + cost[i]. Stages are taken by their first layer, so that
 * all last layers are one vector. */
WIDE static void spread_sum(double base, const double *cost, int count, double *to)
{
#pragma omp simd
    for (int i = 0; i < count; ++i) {
        double whole = base + cost[i];

        to[i] = whole < to[i] ? whole : to[i];
    }
}

/* to[i] = the minimum of to[i] and the larger of base and cost[i] */
WIDE static void spread_max(double base, const double *cost, int count, double *to)
{
#pragma omp simd
    for (int i = 0; i < count; ++i) {
        double whole = base > cost[i] ? base : cost[i];

        to[i] = whole < to[i] ? whole : to[i];
    }
}

/* The minimum of cost[i] + from[i]. */
WIDE static double least_sum(const double *cost, const double *from, int count)
{
    double least = HUGE_VAL;

#pragma omp simd reduction(min : least)
    for (int i = 0; i < count; ++i) {
        double whole = cost[i] + from[i];

        least = whole < least ? whole : least;
    }
    return least < DBL_MAX ? least : HUGE_VAL; /* a minimum may begin at the largest number */
}

/* For a number of devices left, the first and the last layer at which a table has a finite value.
 * Loops over layers shrink to this window. */
static void find_window(const ap_inter_op_space_t *space, const ap_inter_op_band_t *band,
                        const double *values, int devices, int *low, int *high)
{
    low[devices] = space->layers + 1;
    high[devices] = -1;
    for (int layer = band->low[devices]; layer <= band->high[devices]; ++layer) {
        if (values[ap_inter_op_band_at(band, devices, layer)] < INFINITY) {
            low[devices] = layer < low[devices] ? layer : low[devices];
            high[devices] = layer;
        }
    }
}

/* Lays out a band: one stretch of layers per number of devices, one after the other. `start` is
 * where layer 0 would be, so that a place is found by an addition; it may lie before the array. */
xm_status_t ap_inter_op_band_open(const ap_inter_op_space_t *space, xm_arena_t *arena,
                                  const double *values, ap_inter_op_band_t *band)
{
    size_t rows = (size_t)space->total + 1;

    *band = (ap_inter_op_band_t){.low = xm_arena_take(arena, rows * sizeof(int)),
                                 .high = xm_arena_take(arena, rows * sizeof(int)),
                                 .start = xm_arena_take(arena, rows * sizeof(ptrdiff_t))};
    XM_NEED_MEMORY(!arena->failed, "%d devices", space->total);
    for (int devices = 0; devices <= space->total; ++devices) {
        band->low[devices] = 0;
        band->high[devices] = space->layers;
        if (values != NULL) {
            find_window(space, &space->everywhere, values, devices, band->low, band->high);
        }
        band->start[devices] = (ptrdiff_t)band->size - band->low[devices];
        if (band->high[devices] >= band->low[devices]) {
            band->size += (size_t)(band->high[devices] - band->low[devices]) + 1;
        }
    }
    return XM_OK;
}

/* The last layers that a stage can have so that neither layers are left without devices nor devices
 * without layers: with no device left it must end the model, otherwise it must not, unless the rest
 * may be left out. */
static void last_layers(const ap_inter_op_space_t *space, int submesh, int layer, int left,
                        int *begin, int *end)
{
    int reach = space->reach[submesh * space->layers + layer];

    *begin = left == 0 ? space->layers - 1 : layer;
    *end = ap_inter_op_may_end(space, left) ? space->layers : space->layers - 1;
    *end = reach < *end ? reach : *end;
}

static bool fits(const ap_inter_op_space_t *space, int submesh, int devices)
{
    return space->fits[(size_t)submesh * ((size_t)space->total + 1) + (size_t)devices];
}

/* Goes along all stages on a submesh that begin with so many devices left. Places from which the
 * devices do not suffice for the remaining layers are skipped, as no plan comes by them. */
static void spread(const ap_inter_op_space_t *space, int submesh, int devices, bool use_max,
                   double *before)
{
    const ap_inter_op_band_t *all = &space->everywhere;
    int left = devices - space->size[submesh];
    double *to = &before[ap_inter_op_band_at(all, left, 1)];

    for (int layer = 0; layer < space->layers; ++layer) {
        double base = before[ap_inter_op_band_at(all, devices, layer)];
        const double *cost = ap_inter_op_stages(space, submesh, layer);
        int begin, end;

        if (!(base < INFINITY) || devices < space->need[layer]) {
            continue;
        }
        last_layers(space, submesh, layer, left, &begin, &end);
        if (use_max) {
            spread_max(base, cost + begin, end - begin, to + begin);
        } else {
            spread_sum(base, cost + begin, end - begin, to + begin);
        }
    }
}

/* Forwards, from all devices and no layer done. Each stage leaves fewer devices, so by falling
 * number of devices every place is final before it is used. */
double ap_inter_op_relax_before(const ap_inter_op_space_t *space, bool use_max, double *before)
{
    const ap_inter_op_band_t *all = &space->everywhere;
    double least = INFINITY;

    for (size_t i = 0; i < all->size; ++i) {
        before[i] = INFINITY;
    }
    /* Nothing is done yet, and all devices are there. */
    before[ap_inter_op_band_at(all, space->total, 0)] = 0.0;
    for (int devices = space->total; devices > 0; --devices) {
        for (int s = 0; s < space->submeshes; ++s) {
            if (fits(space, s, devices)) {
                spread(space, s, devices, use_max, before);
            }
        }
    }
    for (int left = 0; left < space->total; ++left) {
        if (ap_inter_op_may_end(space, left)) {
            least = fmin(least, before[ap_inter_op_band_at(all, left, space->layers)]);
        }
    }
    return least;
}

/* Nothing is left to pay where a plan may end, whichever devices it leaves. */
void ap_inter_op_relax_end(const ap_inter_op_space_t *space, const ap_inter_op_band_t *band,
                           double *values)
{
    for (int left = 0; left < space->total; ++left) {
        if (ap_inter_op_may_end(space, left) && band->low[left] <= space->layers &&
            band->high[left] == space->layers) {
            values[ap_inter_op_band_at(band, left, space->layers)] = 0.0;
        }
    }
}

/* The minimum cost from one place on, over all submeshes and last layers. The window of finite
 * values keeps the vectors short. */
static double relax_place(const ap_inter_op_space_t *space, const ap_inter_op_band_t *band,
                          const double *after, int layer, int devices)
{
    double best = INFINITY;

    for (int s = 0; s < space->submeshes; ++s) {
        int left = devices - space->size[s], begin, end;

        if (!fits(space, s, devices)) {
            continue;
        }
        last_layers(space, s, layer, left, &begin, &end);
        /* Ends outside of the window lead to places of infinite cost. */
        begin = space->low[left] - 1 > begin ? space->low[left] - 1 : begin;
        end = space->high[left] < end ? space->high[left] : end;
        if (begin < end) {
            best = fmin(best,
                        least_sum(ap_inter_op_stages(space, s, layer) + begin,
                                  after + ap_inter_op_band_at(band, left, begin + 1), end - begin));
        }
    }
    return best;
}

/* Backwards, from no device left. With @p after == @p values stages may follow without number, and
 * rows of fewer devices are final first; otherwise the stages after this one come from the table of
 * the level below, which is not changed. */
void ap_inter_op_relax_after(const ap_inter_op_space_t *space, const ap_inter_op_band_t *band,
                             const double *after, const double *hopeful, double *values)
{
    bool in_place = after == values;

    for (size_t i = 0; i < band->size; ++i) {
        values[i] = INFINITY;
    }
    if (in_place) {
        ap_inter_op_relax_end(space, band, values);
    }
    find_window(space, band, after, 0, space->low, space->high);
    for (int devices = 1; devices <= space->total; ++devices) {
        /* With all devices left, only the first layer is a place; with fewer, at least one layer is
         * done. */
        int first = devices < space->total && band->low[devices] < 1 ? 1 : band->low[devices];

        for (int layer = first; layer <= band->high[devices] && layer < space->layers; ++layer) {
            size_t place = ap_inter_op_band_at(band, devices, layer);

            if (hopeful[place] < INFINITY) {
                values[place] = relax_place(space, band, after, layer, devices);
            }
        }
        find_window(space, band, after, devices, space->low, space->high);
    }
}

/* A plan with T below the threshold has a longest stage below (threshold - sum) / (B - 1). Without
 * the stages that are longer, the smallest sum may rise, which lowers the limit again; a few rounds
 * get most of it. The factor covers rounding, so no stage is lost. */
double ap_inter_op_relax_limit(ap_inter_op_space_t *space, double threshold, double *before)
{
    enum { ROUNDS = 3 };
    double rounds = (double)(space->problem->micro_batches - 1), limit = INFINITY;

    for (int i = 0;; ++i) {
        double sum, longest;

        ap_inter_op_space_cheapest(space, 0, limit);
        sum = ap_inter_op_relax_before(space, false, before);
        /* With one micro-batch this is infinite or NaN, and there is no limit. */
        longest = (threshold - sum) / rounds * (1.0 + 1e-12);
        if (!(rounds > 0.0) || !(longest < limit) || i == ROUNDS) {
            return limit;
        }
        limit = longest;
    }
}
