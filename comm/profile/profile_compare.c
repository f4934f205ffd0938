/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing two profiles of one cluster, to find what has become slower since. A row is a
 * number that both have: a rate, or the time of one size on one curve; what only one of them
 * measured cannot be compared and makes no row. A change counts as significant when it is
 * larger than what both measurements together leave open, so noise is not reported as a fault. */
#include "comm/profile/profile_compare.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/base.h"

struct xm_profile_compare {
    xm_profile_change_t *rows;
    size_t count, capacity;
    bool no_memory;
};

static const double unknown = -1;

static void add(xm_profile_compare_t *compare, bool is_time, double before, double after,
                double spread, const char *format, ...) XM_PRINTF(6, 7);

/* Adds a row, unless one of the two lacks the number (0). Want of memory is remembered and
 * reported once, at the end. */
static void add(xm_profile_compare_t *compare, bool is_time, double before, double after,
                double spread, const char *format, ...)
{
    xm_profile_change_t *row;
    va_list args;

    if (before <= 0 || after <= 0) {
        return;
    }
    if (!XM_ARRAY_ROOM(compare->rows, compare->capacity, compare->count)) {
        compare->no_memory = true;
        return;
    }
    row = &compare->rows[compare->count++];
    *row = (xm_profile_change_t){.is_time = is_time,
                                 .before = before,
                                 .after = after,
                                 .change = after / before - 1,
                                 .spread = spread};
    /* Without a known spread every change may mean something. */
    row->significant = spread < 0 || fabs(row->change) > spread;
    va_start(args, format);
    (void)vsnprintf(row->name, sizeof(row->name), format, args);
    va_end(args);
}

/* The spreads of both together; unknown if one of them is. */
static double both(double before, double after)
{
    return before < 0 || after < 0 ? unknown : before + after;
}

static double spread_at(const double *spread, size_t point)
{
    return spread != NULL ? spread[point] : unknown;
}

typedef struct {
    const xm_curve_point_t *points;
    const double *spread;
    size_t count;
} curve_t;

/* Compares the sizes that both curves have, by walking along both in order. */
static void add_curve(xm_profile_compare_t *compare, const char *name, const curve_t *before,
                      const curve_t *after)
{
    for (size_t i = 0, k = 0; i < before->count && k < after->count;) {
        uint64_t old = before->points[i].bytes, new = after->points[k].bytes;
        char bytes[32];

        if (old == new) {
            add(compare, true, before->points[i].seconds, after->points[k].seconds,
                both(spread_at(before->spread, i), spread_at(after->spread, k)), "%s %s", name,
                xm_text_format_bytes(old, bytes, sizeof(bytes)));
        }
        i += old <= new;
        k += new <= old;
    }
}

static curve_t link_curve(const xm_cluster_profile_t *profile, xm_link_class_t link)
{
    curve_t curve = {.spread = xm_cluster_profile_spread(profile, link)};

    curve.points = xm_cluster_profile_curve(profile, link, &curve.count);
    return curve;
}

/* A collective is compared with the one of the same kind and shape. */
static void add_collectives(xm_profile_compare_t *compare, const xm_cluster_profile_t *before,
                            const xm_cluster_profile_t *after)
{
    for (size_t i = 0; i < xm_cluster_profile_collectives(before); ++i) {
        const xm_collective_curve_t *old = xm_cluster_profile_collective(before, i);
        const xm_collective_curve_t *new = xm_cluster_profile_find_collective(
            after, old->kind, old->hosts, old->devices_per_host, old->groups_per_host);
        char name[64];

        if (new != NULL) {
            curve_t from = {old->points, old->spread, old->count};
            curve_t to = {new->points, new->spread, new->count};

            (void)snprintf(name, sizeof(name), "%s %dx%dx%d", xm_collective_name(old->kind),
                           old->hosts, old->devices_per_host, old->groups_per_host);
            add_curve(compare, name, &from, &to);
        }
    }
}

/* A spread of 0 in a profile is one that nobody measured. */
static double known(double spread)
{
    return spread > 0 ? spread : unknown;
}

/* Hosts are compared one by one only if either profile tells them apart. */
static void add_rates(xm_profile_compare_t *compare, const xm_cluster_profile_t *before,
                      const xm_cluster_profile_t *after)
{
    double nics = both(known(xm_cluster_profile_nic_spread(before)),
                       known(xm_cluster_profile_nic_spread(after)));
    xm_profile_figure_t old, new;

    for (int i = 0;
         xm_cluster_profile_figure(before, i, &old) && xm_cluster_profile_figure(after, i, &new);
         ++i) {
        add(compare, false, old.value, new.value, both(known(old.spread), known(new.spread)), "%s",
            old.name);
    }
    if (!xm_cluster_profile_hosts_differ(before) && !xm_cluster_profile_hosts_differ(after)) {
        return;
    }
    for (int h = 0; h < xm_cluster_profile_hosts(before); ++h) {
        add(compare, false, xm_cluster_profile_host_nic_bandwidth(before, h),
            xm_cluster_profile_host_nic_bandwidth(after, h), nics, "nic of host %d B/s", h);
    }
}

/* Profiles of clusters of different sizes describe different things. */
xm_status_t xm_profile_compare_create(const xm_cluster_profile_t *before,
                                      const xm_cluster_profile_t *after,
                                      xm_profile_compare_t **compare)
{
    xm_profile_compare_t *made;
    int hosts[2] = {xm_cluster_profile_hosts(before), xm_cluster_profile_hosts(after)};
    int devices[2] = {xm_cluster_profile_devices_per_host(before),
                      xm_cluster_profile_devices_per_host(after)};

    if (hosts[0] != hosts[1] || devices[0] != devices[1]) {
        return XM_MISMATCH("the profiles are of %d x %d and of %d x %d devices; only profiles of "
                           "clusters of one size can be compared",
                           hosts[0], devices[0], hosts[1], devices[1]);
    }
    made = calloc(1, sizeof(*made));
    XM_NEED_MEMORY(made, "comparing profiles");
    add_rates(made, before, after);
    for (int link = 0; link < XM_LINK_CURVES; ++link) {
        curve_t old = link_curve(before, (xm_link_class_t)link);
        curve_t new = link_curve(after, (xm_link_class_t)link);

        add_curve(made, xm_link_class_name((xm_link_class_t)link), &old, &new);
    }
    add_collectives(made, before, after);
    if (made->no_memory) {
        xm_profile_compare_destroy(made);
        return XM_NO_MEMORY("comparing profiles");
    }
    *compare = made;
    return XM_OK;
}

size_t xm_profile_compare_rows(const xm_profile_compare_t *compare)
{
    return compare->count;
}

const xm_profile_change_t *xm_profile_compare_row(const xm_profile_compare_t *compare, size_t row)
{
    return &compare->rows[row];
}

/* Counts what is both significant and larger than the caller cares about. */
size_t xm_profile_compare_beyond(const xm_profile_compare_t *compare, double threshold)
{
    size_t count = 0;

    for (size_t i = 0; i < compare->count; ++i) {
        const xm_profile_change_t *row = &compare->rows[i];

        count += row->significant && fabs(row->change) > threshold;
    }
    return count;
}

void xm_profile_compare_destroy(xm_profile_compare_t *compare)
{
    if (compare != NULL) {
        free(compare->rows);
        free(compare);
    }
}
