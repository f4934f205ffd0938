/* The memory curve of a sharding as a figure. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "comm/text.h"
#include "planner/shard_report.h"

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

enum { LAYERS = 3 };
static const char *const fills[LAYERS] = {"#b9cfe4", "#7fb28a", "#e0a458"};
static const char *const labels[LAYERS] = {"inputs and parameters", "results of operators",
                                           "resharded copies and partial sums"};

static void put_escaped(FILE *file, const char *text)
{
    for (const char *c = text; *c != '\0'; ++c) {
        if (*c == '<' || *c == '>' || *c == '&') {
            (void)fputs(*c == '<' ? "&lt;" : *c == '>' ? "&gt;" : "&amp;", file);
        } else if ((unsigned char)*c >= ' ') {
            (void)putc(*c, file);
        }
    }
}

static void put_text(FILE *file, double x, double y, const char *anchor, const char *text)
{
    (void)fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"12\" text-anchor=\"%s\">", x, y,
                  anchor);
    put_escaped(file, text);
    (void)fputs("</text>\n", file);
}

static int columns_of(const ap_shard_report_t *report)
{
    return report->points < COLUMNS ? report->points : COLUMNS;
}

/* The point of a column with the most bytes. */
static const ap_shard_memory_t *fullest(const ap_shard_report_t *report, int column)
{
    int columns = columns_of(report);
    int first = (int)((int64_t)column * report->points / columns);
    int end = (int)((int64_t)(column + 1) * report->points / columns), best = first;

    for (int o = first + 1; o < end; ++o) {
        if (ap_shard_memory_bytes(&report->memory[o]) >
            ap_shard_memory_bytes(&report->memory[best])) {
            best = o;
        }
    }
    return &report->memory[best];
}

/* Bytes up to the upper edge of a layer. */
static double stacked(const ap_shard_memory_t *memory, int layer)
{
    return memory->state + (layer > 0 ? memory->activations : 0) +
           (layer > 1 ? memory->temporaries : 0);
}

static double height_of(const ap_shard_report_t *report, double bytes)
{
    return report->peak > 0 ? bytes / report->peak * (HEIGHT - TOP - BOTTOM) : 0;
}

static double x_of(const ap_shard_report_t *report, int column)
{
    return LEFT + (double)column * COLUMNS / columns_of(report);
}

/* One layer as steps from the base line; later layers are drawn first, earlier ones cover them. */
static void draw_layer(FILE *file, const ap_shard_report_t *report, int layer)
{
    (void)fprintf(file, "<path fill=\"%s\" d=\"M%d,%d", fills[layer], LEFT, HEIGHT - BOTTOM);
    for (int c = 0; c < columns_of(report); ++c) {
        double y = HEIGHT - BOTTOM - height_of(report, stacked(fullest(report, c), layer));

        (void)fprintf(file, "L%.1f,%.1fL%.1f,%.1f", x_of(report, c), y, x_of(report, c + 1), y);
    }
    (void)fprintf(file, "L%d,%dZ\"/>\n", WIDTH - RIGHT, HEIGHT - BOTTOM);
}

static void draw_axes(FILE *file, const ap_shard_report_t *report)
{
    char text[TEXT];

    for (int i = 0; i <= TICKS; ++i) {
        double y = HEIGHT - BOTTOM - (double)i / TICKS * (HEIGHT - TOP - BOTTOM);

        (void)fprintf(file, "<path stroke=\"#ccc\" d=\"M%d,%.1fH%d\"/>\n", LEFT, y, WIDTH - RIGHT);
        put_text(file, LEFT - 6, y + 4, "end",
                 xm_text_format_bytes((uint64_t)(report->peak * i / TICKS), text, sizeof(text)));
    }
    put_text(file, LEFT, HEIGHT - BOTTOM + 18, "start", "operator 0");
    (void)snprintf(text, sizeof(text), "%d", report->points - 1);
    put_text(file, WIDTH - RIGHT, HEIGHT - BOTTOM + 18, "end", text);
}

static void draw_legend(FILE *file)
{
    double x = LEFT;

    for (int l = 0; l < LAYERS; ++l) {
        (void)fprintf(file, "<rect x=\"%.1f\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>\n",
                      x, HEIGHT - 32, fills[l]);
        put_text(file, x + 18, HEIGHT - 22, "start", labels[l]);
        x += 60 + 7 * (double)strlen(labels[l]);
    }
}

static void draw_peak(FILE *file, const ap_shard_report_t *report,
                      const ap_shard_solution_t *solution)
{
    double x = LEFT + (report->peak_op + 0.5) * COLUMNS / report->points;
    char bytes[TEXT], text[256];

    (void)snprintf(text, sizeof(text), "peak %s at %s",
                   xm_text_format_bytes((uint64_t)report->peak, bytes, sizeof(bytes)),
                   ap_graph_op(solution->graph, report->peak_op)->name);
    (void)fprintf(file, "<path stroke=\"#a33\" stroke-dasharray=\"4 3\" d=\"M%.1f,%dV%d\"/>\n", x,
                  TOP - 6, HEIGHT - BOTTOM);
    put_text(file, x, TOP - 12, x < LEFT + COLUMNS / 3.0 ? "start" : "end", text);
}

xm_status_t ap_shard_report_plot(const ap_shard_report_t *report,
                                 const ap_shard_solution_t *solution, const char *title,
                                 const char *path)
{
    FILE *file = fopen(path, "wb");
    char text[256];

    if (file == NULL) {
        return xm_error_set(XM_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    }
    (void)fprintf(file,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                  "height=\"%d\" font-family=\"sans-serif\">\n<rect width=\"%d\" height=\"%d\" "
                  "fill=\"#fff\"/>\n",
                  WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT);
    (void)snprintf(text, sizeof(text), "%s: memory of one device while each operator runs", title);
    put_text(file, LEFT, 26, "start", text);
    draw_axes(file, report);
    for (int l = LAYERS - 1; l >= 0; --l) {
        draw_layer(file, report, l);
    }
    draw_peak(file, report, solution);
    draw_legend(file);
    (void)fputs("</svg>\n", file);
    if (fclose(file) != 0) {
        return xm_error_set(XM_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    }
    return XM_OK;
}
