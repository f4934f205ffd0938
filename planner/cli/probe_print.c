/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints a measured cluster profile as a table, as JSON, or as the differences between two
 * profiles. Each curve is shown by the numbers that a person compares, latency and bandwidth,
 * together with how far repeated measurements lay apart: a bandwidth without its spread does not
 * say whether the next probe will find the same.
 */

#include "planner/cli/probe_print.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/base.h"

enum { TEXT = 32 };

/* Points whose repeated measurements lay further apart than this, as a part of the value, are
 * counted in the table. */
static const double tight = 0.02;

/* Finds the widest spread of a curve, in per cent, and counts the points that are not tight. A
 * negative answer means that the profile has no spreads, as one that was written by hand. */
static double widest(const double *spread, size_t points, size_t *loose)
{
    double most = spread != NULL ? 0 : -1;

    *loose = 0;
    for (size_t i = 0; spread != NULL && i < points; ++i) {
        most = fmax(most, 100 * spread[i]);
        *loose += spread[i] > tight;
    }
    return most;
}

static void print_links(const xm_cluster_profile_t *profile)
{
    char text[TEXT];

    (void)printf("# %-14s %8s %12s %14s %8s %14s\n", "link class", "points", "latency",
                 "bandwidth GB/s", "+-%", "beyond +-2 %");
    for (int link = 0; link < XM_LINK_CURVES; ++link) {
        size_t points, loose;
        double most;

        (void)xm_cluster_profile_curve(profile, (xm_link_class_t)link, &points);
        if (points == 0) {
            continue;
        }
        most = widest(xm_cluster_profile_spread(profile, (xm_link_class_t)link), points, &loose);
        (void)printf(
            "  %-14s %8zu %12s %14.3f ", xm_link_class_name((xm_link_class_t)link), points,
            xm_text_format_seconds(xm_cluster_profile_latency(profile, (xm_link_class_t)link), text,
                                   sizeof(text)),
            1e-9 * xm_cluster_profile_bandwidth(profile, (xm_link_class_t)link));
        if (most < 0) {
            (void)printf("%8s %14s\n", "-", "-");
        } else {
            (void)printf("%8.1f %6zu of %4zu\n", most, loose, points);
        }
    }
}

/* Prints every rate with its spread, and names the hosts' own NICs only where they were found to
 * differ: a table of equal lines would hide the one that matters. */
static void print_rates(const xm_cluster_profile_t *profile)
{
    double cores, nic_cpu, host_cpu;
    xm_profile_figure_t figure;

    for (int i = 0; xm_cluster_profile_figure(profile, i, &figure); ++i) {
        if (figure.value > 0) {
            char spread[TEXT] = "";

            if (figure.spread > 0) {
                (void)snprintf(spread, sizeof(spread), " +-%.1f %%", 100 * figure.spread);
            }
            (void)printf("  %-26s %10.4g G%s\n", figure.name, 1e-9 * figure.value, spread);
        }
    }
    for (int h = 0;
         xm_cluster_profile_hosts_differ(profile) && h < xm_cluster_profile_hosts(profile); ++h) {
        (void)printf("  nic of host %d B/s %.4g G\n", h,
                     1e-9 * xm_cluster_profile_host_nic_bandwidth(profile, h));
    }
    xm_cluster_profile_processors(profile, &cores, &nic_cpu, &host_cpu);
    if (cores > 0) {
        (void)printf("  processors of a host %g; a GB costs each end %.3f s of one between hosts, "
                     "%.3f s inside a host\n",
                     cores, 1e9 * nic_cpu, 1e9 * host_cpu);
    }
}

/* A number of which little is known must not pass for one that is. */
static void print_loose(const xm_cluster_profile_t *profile)
{
    xm_profile_figure_t figure;
    char loose[1024] = "";

    for (int i = 0; xm_cluster_profile_figure(profile, i, &figure); ++i) {
        if (figure.value > 0 && figure.spread > XM_PROBE_LOOSE) {
            xm_text_list_add(loose, sizeof(loose), ", ", "%s (+-%.0f %%)", figure.name,
                             100 * figure.spread);
        }
    }
    if (loose[0] != '\0') {
        xm_text_print_wrapped(stdout, XM_TEXT_COLUMNS, "# not known to +-10 %: ", "#   ",
                              "%s; the machine was busy, or its rates change", loose);
    }
}

static void print_collectives(const xm_cluster_profile_t *profile)
{
    size_t count = xm_cluster_profile_collectives(profile);

    if (count > 0) {
        (void)printf("# %-14s %5s %8s %7s %8s %12s %14s  %s\n", "collective", "hosts", "devices",
                     "groups", "points", "smallest", "largest GB/s", "library");
    }
    for (size_t i = 0; i < count; ++i) {
        const xm_collective_curve_t *curve = xm_cluster_profile_collective(profile, i);
        const xm_curve_point_t *last = &curve->points[curve->count - 1];
        char text[TEXT];

        (void)printf("  %-14s %5d %8d %7d %8zu %12s %14.3f  %s\n", xm_collective_name(curve->kind),
                     curve->hosts, curve->devices_per_host, curve->groups_per_host, curve->count,
                     xm_text_format_seconds(curve->points[0].seconds, text, sizeof(text)),
                     1e-9 * (double)last->bytes / last->seconds, curve->library);
    }
}

static void print_table(const xm_cluster_profile_t *profile)
{
    char text[TEXT];

    (void)printf("# cluster %s: %d hosts x %d devices\n", xm_cluster_profile_name(profile),
                 xm_cluster_profile_hosts(profile), xm_cluster_profile_devices_per_host(profile));
    xm_text_print_wrapped(stdout, XM_TEXT_COLUMNS, "# ", "#   ", "%s",
                          xm_cluster_profile_provenance(profile));
    print_links(profile);
    print_rates(profile);
    (void)printf("  device memory %s\n",
                 xm_text_format_bytes((uint64_t)xm_cluster_profile_device_memory_bytes(profile),
                                      text, sizeof(text)));
    print_collectives(profile);
    print_loose(profile);
}

xm_status_t ap_probe_give_profile(const xm_cluster_profile_t *profile, const xm_cli_json_t *json)
{
    char *text = NULL;
    xm_status_t status = XM_OK;

    if (!json->print) {
        print_table(profile);
    }
    if (xm_cli_wants_json(json) && (status = xm_cluster_profile_to_text(profile, &text)) == XM_OK) {
        status = xm_cli_give_text(json, text, "the text of the profile");
    }
    return status == XM_OK ? xm_cli_flush() : status;
}

static char *format_value(const xm_profile_change_t *row, double value, char *buffer)
{
    if (row->is_time) {
        return xm_text_format_seconds(value, buffer, TEXT);
    }
    (void)snprintf(buffer, TEXT, "%.4g", value);
    return buffer;
}

/* Marks by a star what counts for the exit status: a change must be larger than the threshold and
 * larger than the spreads of both numbers explain. Where a profile tells no spread, the threshold
 * alone decides. */
void ap_probe_print_compare(const xm_profile_compare_t *compare, double threshold)
{
    (void)printf("# %-32s %12s %12s %9s %8s\n", "number", "before", "after", "change %", "+-%");
    for (size_t i = 0; i < xm_profile_compare_rows(compare); ++i) {
        const xm_profile_change_t *row = xm_profile_compare_row(compare, i);
        char before[TEXT], after[TEXT], spread[TEXT] = "-";

        if (row->spread >= 0) {
            (void)snprintf(spread, sizeof(spread), "%.1f", 100 * row->spread);
        }
        (void)printf("%c %-32s %12s %12s %+9.1f %8s\n",
                     row->significant && fabs(row->change) > threshold ? '*' : ' ', row->name,
                     format_value(row, row->before, before), format_value(row, row->after, after),
                     100 * row->change, spread);
    }
    (void)printf("# %zu of %zu numbers changed significantly by more than %g %%\n",
                 xm_profile_compare_beyond(compare, threshold), xm_profile_compare_rows(compare),
                 100 * threshold);
}
