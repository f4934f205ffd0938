/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A memory curve as a value, which the command fills in from what planner/intra_op/network.c counts
 * for the solver, and as an SVG figure of stacked areas. A graph can have more operators than the
 * figure has pixels; each column then shows the operator with the most memory in it, because
 * averages would hide the peaks that the figure is for.
 */

#include "planner/intra_op/memory_curve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

double ap_memory_curve_sum(const ap_memory_curve_t *curve, int point, int parts)
{
    double sum = 0;

    for (int part = 0; part < parts; ++part) {
        sum += curve->bytes[part][point];
    }
    return sum;
}

/* The first one, if several points have the most. */
int ap_memory_curve_peak(const ap_memory_curve_t *curve)
{
    double most = -1;
    int peak = 0;

    for (int o = 0; o < curve->points; ++o) {
        double bytes = ap_memory_curve_sum(curve, o, curve->parts);

        if (bytes > most) {
            most = bytes;
            peak = o;
        }
    }
    return peak;
}

void ap_memory_curve_destroy(ap_memory_curve_t *curve)
{
    if (curve != NULL) {
        for (int part = 0; part < curve->parts; ++part) {
            free(curve->bytes[part]);
        }
        free(curve);
    }
}

/* Lengths in user units (pixels at 100 %). */
enum {
    WIDTH = 960,
    HEIGHT = 420,
    LEFT = 90,
    RIGHT = 20,
    TOP = 70,
    BOTTOM = 70,
    COLUMNS = WIDTH - LEFT - RIGHT, /* more points are drawn as the largest of each column */
    TICKS = 5,
    TEXT = 32
};

static const char *const fills[AP_MEMORY_PARTS] = {"#b9cfe4", "#7fb28a", "#e0a458",
                                                   "#cfcfcf", "#c9a0c8", "#d98880"};

typedef struct figure {
    const ap_memory_curve_t *curve;
    FILE *file;
    int peak;
    double most; /* bytes there */
} figure_t;

/* One column per point as long as there is a pixel for each. */
static int columns_of(const figure_t *figure)
{
    return figure->curve->points < COLUMNS ? figure->curve->points : COLUMNS;
}

/* The point of a column with the most bytes. */
static int fullest(const figure_t *figure, int column)
{
    const ap_memory_curve_t *curve = figure->curve;
    int columns = columns_of(figure);
    int first = (int)((int64_t)column * curve->points / columns);
    int end = (int)((int64_t)(column + 1) * curve->points / columns), best = first;

    for (int o = first + 1; o < end; ++o) {
        if (ap_memory_curve_sum(curve, o, curve->parts) >
            ap_memory_curve_sum(curve, best, curve->parts)) {
            best = o;
        }
    }
    return best;
}

/* The peak fills the height. */
static double height_of(const figure_t *figure, double bytes)
{
    return figure->most > 0 ? bytes / figure->most * (HEIGHT - TOP - BOTTOM) : 0;
}

static double x_of(const figure_t *figure, int column)
{
    return LEFT + (double)column * COLUMNS / columns_of(figure);
}

/* Draws one part on top of those before it, as steps from the base line. Later parts are drawn
 * first and earlier ones cover them, so each area needs one sum only. */
static void draw_part(const figure_t *figure, int part)
{
    (void)fprintf(figure->file, "<path fill=\"%s\" d=\"M%d,%d", fills[part], LEFT, HEIGHT - BOTTOM);
    for (int c = 0; c < columns_of(figure); ++c) {
        double bytes = ap_memory_curve_sum(figure->curve, fullest(figure, c), part + 1);
        double y = HEIGHT - BOTTOM - height_of(figure, bytes);

        (void)fprintf(figure->file, "L%.1f,%.1fL%.1f,%.1f", x_of(figure, c), y, x_of(figure, c + 1),
                      y);
    }
    (void)fprintf(figure->file, "L%d,%dZ\"/>\n", WIDTH - RIGHT, HEIGHT - BOTTOM);
}

/* The axes: bytes in five steps of the peak, and the numbers of the first and last operator. */
static void draw_axes(const figure_t *figure)
{
    char text[TEXT];

    for (int i = 0; i <= TICKS; ++i) {
        double y = HEIGHT - BOTTOM - (double)i / TICKS * (HEIGHT - TOP - BOTTOM);

        (void)fprintf(figure->file, "<path stroke=\"#ccc\" d=\"M%d,%.1fH%d\"/>\n", LEFT, y,
                      WIDTH - RIGHT);
        xm_svg_text(figure->file, LEFT - 6, y + 4, 12, "end", "%s",
                    xm_text_format_bytes((uint64_t)(figure->most * i / TICKS), text, sizeof(text)));
    }
    xm_svg_text(figure->file, LEFT, HEIGHT - BOTTOM + 18, 12, "start", "%s", "operator 0");
    (void)snprintf(text, sizeof(text), "%d", figure->curve->points - 1);
    xm_svg_text(figure->file, WIDTH - RIGHT, HEIGHT - BOTTOM + 18, 12, "end", "%s", text);
}

/* The width of a name is estimated, as SVG tells it only to the viewer. */
static void draw_legend(const figure_t *figure)
{
    double x = LEFT;

    for (int part = 0; part < figure->curve->parts; ++part) {
        (void)fprintf(figure->file,
                      "<rect x=\"%.1f\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x,
                      HEIGHT - 32, fills[part]);
        xm_svg_text(figure->file, x + 18, HEIGHT - 22, 12, "start", "%s",
                    figure->curve->name[part]);
        x += 40 + 7 * (double)strlen(figure->curve->name[part]);
    }
}

/* The text is on the side of the line where there is room. */
static void draw_peak(const figure_t *figure, const ap_graph_t *graph)
{
    double x = LEFT + (figure->peak + 0.5) * COLUMNS / figure->curve->points;
    char bytes[TEXT], text[256];

    (void)snprintf(text, sizeof(text), "peak %s at %s",
                   xm_text_format_bytes((uint64_t)figure->most, bytes, sizeof(bytes)),
                   ap_graph_op(graph, figure->peak)->name);
    (void)fprintf(figure->file,
                  "<path stroke=\"#a33\" stroke-dasharray=\"4 3\" d=\"M%.1f,%dV%d\"/>\n", x,
                  TOP - 6, HEIGHT - BOTTOM);
    xm_svg_text(figure->file, x, TOP - 12, 12, x < LEFT + COLUMNS / 3.0 ? "start" : "end", "%s",
                text);
}

xm_status_t ap_memory_curve_plot(const ap_memory_curve_t *curve, const ap_graph_t *graph,
                                 const char *title, const char *path)
{
    figure_t figure = {.curve = curve};

    XM_TRY(xm_file_create(path, &figure.file));
    figure.peak = ap_memory_curve_peak(curve);
    figure.most = ap_memory_curve_sum(curve, figure.peak, curve->parts);
    xm_svg_begin(figure.file, WIDTH, HEIGHT, "Memory of one device");
    xm_svg_text(figure.file, LEFT, 26, 12, "start",
                "%s: memory of one device while each operator runs", title);
    draw_axes(&figure);
    for (int part = curve->parts - 1; part >= 0; --part) {
        draw_part(&figure, part);
    }
    draw_peak(&figure, graph);
    draw_legend(&figure);
    (void)fputs("</svg>\n", figure.file);
    return xm_file_close(figure.file, path, XM_OK);
}
