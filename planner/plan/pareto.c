/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The curve of time against memory: its walk, and its figure. Each search is told to stay below the
 * memory of the plan before it; that its plan is no faster follows from the search before, up to
 * what a search leaves open, so plans that turn out to be beaten are dropped.
 */

#include "planner/plan/pareto.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Less memory by this part is less. */
static const double APART = 1e-3;

/* Takes a point with less memory than all others in; those that are no faster are beaten by it. */
static xm_status_t take_in(const ap_pareto_search_t *search, const ap_pareto_point_t *point,
                           ap_pareto_t *curve)
{
    ap_pareto_point_t *grown =
        realloc(curve->points, ((size_t)curve->count + 1) * sizeof(*curve->points));

    if (grown == NULL) {
        search->release(point->of);
        return xm_error_set(XM_ERR_NO_MEMORY, "out of memory for %d plans", curve->count + 1);
    }
    curve->points = grown;
    while (curve->count > 0 && curve->points[curve->count - 1].seconds >= point->seconds) {
        search->release(curve->points[--curve->count].of);
    }
    curve->points[curve->count++] = *point;
    return XM_OK;
}

/* Memory falls by a thousandth each time, so the walk ends; a search whose plan takes more than it
 * was told would make it endless. */
xm_status_t ap_pareto_walk(const ap_pareto_search_t *search, ap_pareto_t *curve)
{
    double cap = 0.0;
    xm_status_t status;

    *curve = (ap_pareto_t){0};
    for (;;) {
        ap_pareto_point_t point = {0};

        status = search->fastest(search->arg, cap, &point);
        if (status != XM_OK) {
            break;
        }
        if (cap > 0.0 && point.bytes > cap) {
            status =
                xm_error_set(XM_ERR_INTERNAL, "a plan of %.0f bytes within %.0f", point.bytes, cap);
            search->release(point.of);
            break;
        }
        status = take_in(search, &point, curve);
        if (status != XM_OK) {
            break;
        }
        cap = point.bytes * (1.0 - APART);
    }
    if (curve->count > 0 && (status == XM_ERR_NO_SOLUTION || status == XM_ERR_TIMEOUT)) {
        curve->stopped = status == XM_ERR_TIMEOUT;
        return XM_OK;
    }
    ap_pareto_clear(search, curve);
    return status;
}

void ap_pareto_clear(const ap_pareto_search_t *search, ap_pareto_t *curve)
{
    for (int i = 0; i < curve->count; ++i) {
        search->release(curve->points[i].of);
    }
    free(curve->points);
    *curve = (ap_pareto_t){0};
}

enum { WIDTH = 760, HEIGHT = 420, LEFT = 90, RIGHT = 30, TOP = 50, BOTTOM = 50, TICKS = 5 };

/* Both axes begin at 0, so that lengths may be compared. */
static double x_of(const ap_pareto_t *curve, double bytes)
{
    return LEFT + bytes / curve->points[0].bytes * (WIDTH - LEFT - RIGHT);
}

static double y_of(const ap_pareto_t *curve, double seconds)
{
    return HEIGHT - BOTTOM -
           seconds / curve->points[curve->count - 1].seconds * (HEIGHT - TOP - BOTTOM);
}

static void draw_axes(const ap_pareto_t *curve, FILE *file)
{
    for (int i = 0; i <= TICKS; ++i) {
        double bytes = curve->points[0].bytes * i / TICKS;
        double seconds = curve->points[curve->count - 1].seconds * i / TICKS;
        char text[32];

        (void)fprintf(file,
                      "<path stroke=\"#ccc\" d=\"M%d,%.1fH%d\"/>\n<text x=\"%d\" y=\"%.1f\" "
                      "text-anchor=\"end\">%.4g</text>\n<text x=\"%.1f\" y=\"%d\" "
                      "text-anchor=\"middle\">%s</text>\n",
                      LEFT, y_of(curve, seconds), WIDTH - RIGHT, LEFT - 6, y_of(curve, seconds) + 4,
                      seconds, x_of(curve, bytes), HEIGHT - BOTTOM + 18,
                      xm_text_format_bytes((uint64_t)bytes, text, sizeof(text)));
    }
}

/* Between two plans the slower one is the best there is, hence steps. Errors of writing show when
 * the file is closed, so only that is checked. */
xm_status_t ap_pareto_plot(const ap_pareto_t *curve, const char *title, const char *path)
{
    FILE *file = fopen(path, "wb");

    if (file == NULL) {
        return xm_error_set(XM_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    }
    (void)fprintf(file,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                  "height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"%d\" "
                  "height=\"%d\" fill=\"#fff\"/>\n<text x=\"%d\" y=\"26\">",
                  WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT);
    xm_text_put_xml(file, title);
    (void)fputs("</text>\n", file);
    draw_axes(curve, file);
    (void)fprintf(file, "<path fill=\"none\" stroke=\"#2f6ca8\" stroke-width=\"2\" d=\"M%d,%.1f",
                  WIDTH - RIGHT, y_of(curve, curve->points[0].seconds));
    for (int i = 0; i < curve->count; ++i) {
        (void)fprintf(file, "V%.1fH%.1f", y_of(curve, curve->points[i].seconds),
                      x_of(curve, curve->points[i].bytes));
    }
    (void)fputs("\"/>\n</svg>\n", file);
    if (fclose(file) != 0) {
        return xm_error_set(XM_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    }
    return XM_OK;
}
