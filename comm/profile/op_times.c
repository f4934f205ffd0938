/* SPDX-License-Identifier: Apache-2.0 */
/* Times of operators: a roofline (the larger of computing and memory time) corrected by
 * measurements. Between the nearest measured sizes of the same operator, by ideal time, the time is
 * interpolated in proportion, which is exact for what has a fixed part and a rate: a launch, and
 * work. Beyond the measured sizes the last ratio of measured to ideal time holds. Without
 * measurements the roofline itself is the answer, which is a lower bound. */
#include "comm/profile/op_times.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/profile/curve.h"

enum { NAME_LENGTH = 31 };

#define ALIKE 0.02 /* shares of what is not cut, as a scale or labels, are less */

/* Checks an entry; one without work could be compared with nothing. */
xm_status_t xm_op_time_check(const char *name, const xm_op_time_t *entry)
{
    const double numbers[] = {entry->flops, entry->bytes};
    static const char *const keys[] = {"flops", "bytes"};

    if (entry->op == NULL || entry->op[0] == '\0' || strlen(entry->op) > NAME_LENGTH) {
        return XM_INVALID("%s.op must name a kind of operator in 1 to %d letters", name,
                          NAME_LENGTH);
    }
    for (int i = 0; i < 2; ++i) {
        if (!isfinite(numbers[i]) || numbers[i] < 0) {
            return XM_INVALID("%s.%s is %g; it must not be negative", name, keys[i], numbers[i]);
        }
    }
    if (!(entry->flops + entry->bytes > 0)) {
        return XM_INVALID("%s has neither FLOPs nor bytes; nothing can be compared with it", name);
    }
    if (!isfinite(entry->seconds) || !(entry->seconds > 0)) {
        return XM_INVALID("%s.seconds is %g; it must be positive", name, entry->seconds);
    }
    return XM_OK;
}

static double roofline(const xm_cluster_device_t *device, const xm_op_time_t *entry)
{
    return xm_cluster_device_roofline(device, entry->number, entry->flops, entry->bytes);
}

/* By operator, type and ideal time. */
static int by_place(const void *left, const void *right, void *device)
{
    const xm_op_time_t *a = left, *b = right;
    double first = roofline(device, a), second = roofline(device, b);
    int names = strcmp(a->op, b->op);

    if (names != 0) {
        return names;
    }
    XM_ORDER_BY(a->number, b->number);
    XM_ORDER_BY(first, second);
    return (a->seconds > b->seconds) - (a->seconds < b->seconds);
}

/* Copies the entries in the order of operator, type and ideal time, which the look-up relies on.
 * Numbers are rounded as a file would, so a saved profile answers the same. */
xm_op_time_t *xm_op_times_copy(xm_arena_t *memory, const xm_op_time_t *entries, size_t count,
                               const xm_cluster_device_t *device)
{
    xm_op_time_t *made = xm_arena_get(memory, count, sizeof(*made));

    for (size_t i = 0; made != NULL && i < count; ++i) {
        made[i] = (xm_op_time_t){.op = xm_arena_text(memory, entries[i].op),
                                 .flops = xm_curve_rounded(entries[i].flops),
                                 .bytes = xm_curve_rounded(entries[i].bytes),
                                 .seconds = xm_curve_rounded(entries[i].seconds),
                                 .number = entries[i].number};
    }
    if (count > 0 && !memory->failed) {
        qsort_r(made, count, sizeof(*made), by_place, (void *)device);
    }
    return made;
}

/* The type of the entries that count for an operator on numbers of a type. */
static xm_number_t entries_for(const xm_op_time_t *entries, size_t count, const char *op,
                               xm_number_t number)
{
    for (size_t i = 0; i < count; ++i) {
        if (entries[i].number == number && strcmp(entries[i].op, op) == 0) {
            return number;
        }
    }
    return XM_NUMBER_ANY;
}

/* Entries of one place, which a device that only computes gives operators of different shapes: the
 * mean of their times counts. */
typedef struct {
    double at, seconds;
    int count;
} place_t;

static void add(place_t *place, double at, double seconds)
{
    if (at != place->at) {
        *place = (place_t){.at = at};
    }
    place->seconds += (seconds - place->seconds) / ++place->count;
}

/* The nearest below and above some size. */
typedef struct {
    place_t below, above;
} nearest_t;

static void look_at(nearest_t *nearest, double best, double at, double seconds)
{
    if (at <= best) {
        add(&nearest->below, at, seconds);
    } else if (nearest->above.count == 0 || at == nearest->above.at) {
        add(&nearest->above, at, seconds);
    }
}

/* Parts of one operator compute about as much on each byte, whatever it is cut into. */
static bool is_alike(const xm_op_time_t *entry, double flops, double bytes)
{
    double a = entry->flops * bytes, b = flops * entry->bytes;

    return fabs(a - b) <= ALIKE * fmax(a, b);
}

/* Looks for entries of this very size, and for the nearest below and above, in one pass over the
 * sorted list. A kind has operators of several speeds, as gradients are of anything: those that
 * are alike come before others where they are on both sides. */
double xm_op_times_seconds(const xm_op_time_t *entries, size_t count,
                           const xm_cluster_device_t *device, const char *op, xm_number_t number,
                           double flops, double bytes)
{
    const double best = xm_cluster_device_roofline(device, number, flops, bytes);
    const double written[] = {xm_curve_rounded(flops), xm_curve_rounded(bytes)};
    const xm_number_t counts = entries_for(entries, count, op, number);
    nearest_t any = {0}, alike = {0}, *nearest = &any;
    place_t same = {0};

    for (size_t i = 0; i < count && best > 0; ++i) {
        double at;

        if (entries[i].number != counts || strcmp(entries[i].op, op) != 0) {
            continue;
        }
        at = roofline(device, &entries[i]);
        if (same.count > 0 ? at > best : alike.above.count > 0 && at > alike.above.at) {
            break;
        }
        if (entries[i].flops == written[0] && entries[i].bytes == written[1]) {
            add(&same, at, entries[i].seconds);
        }
        look_at(&any, best, at, entries[i].seconds);
        if (is_alike(&entries[i], flops, bytes)) {
            look_at(&alike, best, at, entries[i].seconds);
        }
    }
    if (same.count > 0) {
        return same.seconds;
    }
    if (alike.below.count > 0 && alike.above.count > 0) {
        nearest = &alike;
    }
    if (nearest->below.count == 0 || nearest->above.count == 0) {
        const place_t *end = nearest->below.count > 0 ? &nearest->below : &nearest->above;

        return end->count > 0 ? best * end->seconds / end->at : best;
    }
    return nearest->below.seconds + (nearest->above.seconds - nearest->below.seconds) *
                                        (best - nearest->below.at) /
                                        (nearest->above.at - nearest->below.at);
}
