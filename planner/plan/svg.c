/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A figure of a plan: hosts and devices from top to bottom, stages on their devices, reshardings
 * between them, the first micro-batches below. The timeline is the simulation of the plan's own
 * schedule on few micro-batches, not a drawing of what it should look like.
 *
 * Geometry is in integers where boxes must meet, and the drawing needs no library: SVG is text.
 */

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/plan/print.h"
#include "planner/plan/schedule.h"

/* Lengths in user units (pixels at 100 %). */
enum {
    MARGIN = 20,
    LABELS = 110, /* host and device names */
    BOX_WIDTH = 170,
    GAP = 180, /* between boxes, for the resharding */
    BOX_HEIGHT = 112,
    MIN_ROW = 24,
    TIMELINE_HEADER = 48,
    MIN_WIDTH = 760,
    MOST_SHOWN = 12, /* micro-batches in the timeline */
    AXIS = 60,
    COSTS_TEXT = 1024,
    TEXT = 32
};
#define LETTER 0.57 /* width of a letter of size 1 */

typedef struct figure {
    const ap_plan_t *plan;
    FILE *file;
    int row, top, devices, stages; /* row: height of a device */
    int timeline, width, height;
} figure_t;

/* Puts a text into as many lines as the figure's width needs, or with no file only counts them.
 * Returns where the next text begins. */
static int put_lines(const figure_t *figure, int y, int size, const char *text)
{
    size_t letters = (size_t)((figure->width - 2 * MARGIN) / (LETTER * size));

    while (*text != '\0') {
        size_t length = strlen(text), line = length;

        if (length > letters) {
            for (line = letters; line > 0 && text[line] != ' ';) {
                --line;
            }
            line = line > 0 ? line : letters;
        }
        y += size + 5;
        if (figure->file != NULL) {
            xm_svg_text(figure->file, MARGIN, y - 5, size, "start", "%.*s", (int)line, text);
        }
        text += line;
        text += strspn(text, " ");
    }
    return y;
}

static int put_header(const figure_t *figure)
{
    const ap_plan_info_t *info = ap_plan_info(figure->plan);
    char step[TEXT], bottleneck[TEXT], recompute[2 * TEXT], line[COSTS_TEXT];
    int y = MARGIN - 4;

    (void)snprintf(line, sizeof(line), "%s on %s: %d hosts x %d devices", info->model,
                   info->cluster, info->hosts, info->devices_per_host);
    y = put_lines(figure, y, 17, line);
    (void)snprintf(line, sizeof(line),
                   "batch %" PRId64 " in %" PRId64 " micro-batches of %" PRId64
                   ", %s, recomputation %s; predicted step %s, longest station %s",
                   info->global_batch, info->micro_batches,
                   info->global_batch / info->micro_batches, info->schedule,
                   ap_plan_recompute_text(figure->plan, recompute, sizeof(recompute)),
                   xm_text_format_seconds(info->step, step, sizeof(step)),
                   xm_text_format_seconds(info->bottleneck, bottleneck, sizeof(bottleneck)));
    y = put_lines(figure, y, 12, line);
    (void)snprintf(line, sizeof(line), "costs: ");
    (void)xm_text_copy(info->cluster_provenance, line + strlen(line), sizeof(line) - strlen(line));
    return put_lines(figure, y, 10, line);
}

/* A device's row is high enough that the stage with the fewest devices has room for its text. */
static void measure(figure_t *figure)
{
    const ap_plan_info_t *info = ap_plan_info(figure->plan);
    int fewest = INT32_MAX;

    figure->devices = info->hosts * info->devices_per_host;
    figure->stages = ap_plan_stages(figure->plan);
    for (int i = 0; i < figure->stages; ++i) {
        const ap_plan_stage_t *stage = ap_plan_stage(figure->plan, i);
        int devices = stage->hosts * stage->devices_per_host;

        fewest = devices < fewest ? devices : fewest;
    }
    figure->row = (BOX_HEIGHT + fewest - 1) / fewest;
    figure->row = figure->row < MIN_ROW ? MIN_ROW : figure->row;
    figure->width = 2 * MARGIN + LABELS + figure->stages * BOX_WIDTH + (figure->stages - 1) * GAP;
    figure->width = figure->width < MIN_WIDTH ? MIN_WIDTH : figure->width;
    figure->top = put_header(figure) + MARGIN / 2;
    figure->timeline = figure->top + figure->devices * figure->row + MARGIN;
    figure->height = figure->timeline + TIMELINE_HEADER + figure->stages * AP_PIPELINE_LANE + AXIS;
}

static void draw_header(const figure_t *figure)
{
    xm_svg_begin(figure->file, figure->width, figure->height, "Parallel plan");
    (void)fputs("<desc>Costs: ", figure->file);
    xm_text_put_xml(figure->file, ap_plan_info(figure->plan)->cluster_provenance);
    (void)fputs("</desc>\n"
                "<defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" "
                "markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\">"
                "<path d=\"M0,0 L8,4 L0,8 z\" fill=\"#555\"/></marker></defs>\n",
                figure->file);
    (void)put_header(figure);
}

/* Rows are the devices in the order in which stages take them. */
static int device_of_row(const ap_plan_info_t *info, int row)
{
    int place = row / info->devices_per_host, within = row % info->devices_per_host;

    return info->host_order != NULL ? info->host_order[place] * info->devices_per_host + within
                                    : row;
}

static int row_of_device(const ap_plan_info_t *info, int device)
{
    int host = device / info->devices_per_host, place = host;

    for (int i = 0; info->host_order != NULL && i < info->hosts; ++i) {
        place = info->host_order[i] == host ? i : place;
    }
    return place * info->devices_per_host + device % info->devices_per_host;
}

static void draw_devices(const figure_t *figure)
{
    const ap_plan_info_t *info = ap_plan_info(figure->plan);

    for (int row = 0; row < figure->devices; ++row) {
        int device = device_of_row(info, row), host = device / info->devices_per_host;
        int y = figure->top + row * figure->row, place = row / info->devices_per_host;

        (void)fprintf(figure->file,
                      "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"/>\n", MARGIN,
                      y, figure->width - 2 * MARGIN, figure->row,
                      place % 2 == 0 ? "#f4f4f4" : "#eaeaea");
        xm_svg_text(figure->file, MARGIN + LABELS - 12, y + 0.5 * figure->row + 4, 11, "end",
                    "device %d", device);
        if (row % info->devices_per_host == 0) {
            (void)fprintf(figure->file,
                          "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"#999\"/>\n",
                          MARGIN, y, figure->width - MARGIN, y);
            xm_svg_text(figure->file, MARGIN + 6, y + 14, 12, "start", "host %d", host);
        }
    }
}

static int box_left(int stage)
{
    return MARGIN + LABELS + stage * (BOX_WIDTH + GAP);
}

/* The middle of a stage's box; boxes reach from its first device to its last. */
static double box_middle(const figure_t *figure, int index, int *top, int *height)
{
    const ap_plan_stage_t *stage = ap_plan_stage(figure->plan, index);
    int first = figure->devices, last = 0;

    for (int i = 0; i < stage->hosts * stage->devices_per_host; ++i) {
        int row = row_of_device(ap_plan_info(figure->plan), stage->devices[i]);

        first = row < first ? row : first;
        last = row > last ? row : last;
    }
    *top = figure->top + first * figure->row;
    *height = (last - first + 1) * figure->row;
    return *top + 0.5 * *height;
}

static void draw_stage(const figure_t *figure, int index)
{
    const ap_plan_stage_t *stage = ap_plan_stage(figure->plan, index);
    int left = box_left(index), top, height;
    double middle = box_middle(figure, index, &top, &height), x = left + 0.5 * BOX_WIDTH;
    char forward[TEXT], backward[TEXT], sync[TEXT], memory[TEXT];

    (void)fprintf(figure->file,
                  "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\" fill=\"%s\" "
                  "stroke=\"%s\" stroke-width=\"1.5\"/>\n",
                  left, top + 2, BOX_WIDTH, height - 4, ap_pipeline_fill(index),
                  ap_pipeline_edge(index));
    xm_svg_text(figure->file, x, middle - 36, 13, "middle", "stage %d: layers %d-%d", index,
                stage->first_layer, stage->last_layer);
    xm_svg_text(figure->file, x, middle - 18, 11, "middle", "submesh %dx%d as mesh %dx%d",
                stage->hosts, stage->devices_per_host, stage->shape[0], stage->shape[1]);
    xm_svg_text(figure->file, x, middle - 2, 11, "middle", "forward %s",
                xm_text_format_seconds(stage->forward, forward, sizeof(forward)));
    xm_svg_text(figure->file, x, middle + 13, 11, "middle", "backward %s",
                xm_text_format_seconds(stage->backward, backward, sizeof(backward)));
    xm_svg_text(figure->file, x, middle + 28, 11, "middle", "gradient sync %s",
                xm_text_format_seconds(stage->sync, sync, sizeof(sync)));
    xm_svg_text(
        figure->file, x, middle + 43, 11, "middle", "memory %s",
        xm_text_format_bytes((uint64_t)ap_plan_stage_memory(stage), memory, sizeof(memory)));
}

/* What passes over stages is an arc below their boxes. */
static void draw_skip(const figure_t *figure, const ap_plan_boundary_t *boundary)
{
    double left = box_left(boundary->from) + 0.5 * BOX_WIDTH;
    double right = box_left(boundary->to) + 0.5 * BOX_WIDTH;
    int top, height, last_top, last_height;
    char bytes[TEXT];

    (void)box_middle(figure, boundary->from, &top, &height);
    (void)box_middle(figure, boundary->to, &last_top, &last_height);
    (void)fprintf(
        figure->file,
        "<path d=\"M%.1f,%d C%.1f,%d %.1f,%d %.1f,%d\" fill=\"none\" stroke=\"#999\" "
        "stroke-dasharray=\"4 3\" marker-end=\"url(#head)\"><title>stage %d to %d, "
        "%d tensors, %s</title></path>\n",
        left, top + height, left, top + height + GAP, right, last_top + last_height + GAP, right,
        last_top + last_height, boundary->from, boundary->to, boundary->more_count + 1,
        xm_text_format_bytes((uint64_t)ap_plan_boundary_bytes(boundary), bytes, sizeof(bytes)));
}

static void draw_boundary(const figure_t *figure, int index)
{
    const ap_plan_boundary_t *boundary = ap_plan_boundary(figure->plan, index);
    int left = box_left(index) + BOX_WIDTH, top, height;
    double from = box_middle(figure, index, &top, &height);
    double to = box_middle(figure, index + 1, &top, &height);
    double x = left + 0.5 * GAP, y = 0.5 * (from + to);
    char bytes[TEXT], forward[TEXT], backward[TEXT];

    (void)fprintf(figure->file,
                  "<path d=\"M%d,%.1f C%.1f,%.1f %.1f,%.1f %d,%.1f\" fill=\"none\" "
                  "stroke=\"#555\" stroke-width=\"1.5\" marker-end=\"url(#head)\"/>\n"
                  "<rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"66\" rx=\"4\" fill=\"#fff\" "
                  "stroke=\"#bbb\"/>\n",
                  left, from, x, from, x, to, left + GAP, to, x - 0.5 * (GAP - 22), y - 33,
                  GAP - 22);
    xm_svg_text(figure->file, x, y - 18, 11, "middle", "%s", boundary->dtype);
    xm_svg_text(figure->file, x, y - 4, 11, "middle", "%s to %s%s", boundary->src.spec,
                boundary->dst.spec, boundary->more_count > 0 ? ", …" : "");
    xm_svg_text(
        figure->file, x, y + 10, 11, "middle", "%s",
        xm_text_format_bytes((uint64_t)ap_plan_boundary_bytes(boundary), bytes, sizeof(bytes)));
    xm_svg_text(figure->file, x, y + 24, 10, "middle", "%s, back %s",
                xm_text_format_seconds(boundary->forward, forward, sizeof(forward)),
                xm_text_format_seconds(boundary->backward, backward, sizeof(backward)));
}

/* How many micro-batches to show; a schedule without flush needs as many as stages. */
static int shown_batches(const figure_t *figure, ap_schedule_kind_t kind)
{
    const ap_plan_info_t *info = ap_plan_info(figure->plan);
    int most = 2 * figure->stages + 2 < MOST_SHOWN ? 2 * figure->stages + 2 : MOST_SHOWN;

    if (!ap_schedule_is_synchronous(kind) && most < figure->stages) {
        most = figure->stages;
    }
    return info->micro_batches < most ? (int)info->micro_batches : most;
}

static xm_status_t draw_timeline(const figure_t *figure)
{
    const ap_plan_info_t *info = ap_plan_info(figure->plan);
    ap_plan_simulation_t simulation = AP_PLAN_SIMULATION_INIT;
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;
    xm_status_t status = ap_schedule_find(info->schedule, &simulation.kind);
    char text[TEXT];

    XM_TRY(status);
    simulation.micro_batches = shown_batches(figure, simulation.kind);
    simulation.batches = 1;
    XM_TRY(ap_plan_simulate(figure->plan, &simulation, &schedule, &run));
    xm_svg_text(figure->file, MARGIN, figure->timeline + 18, 12, "start",
                "the first %d of %" PRId64
                " micro-batches: light forward, dark backward%s; %s in all",
                schedule->micro_batches, info->micro_batches,
                schedule->split ? ", white gradients of the parameters" : "",
                xm_text_format_seconds(1e-9 * (double)run->makespan_ns, text, sizeof(text)));
    xm_svg_time_axis(figure->file, MARGIN + LABELS, figure->width - 2 * MARGIN - LABELS,
                     figure->timeline + TIMELINE_HEADER - 4,
                     figure->timeline + TIMELINE_HEADER + figure->stages * AP_PIPELINE_LANE,
                     run->makespan_ns > 0 ? run->makespan_ns : 1, "time");
    ap_pipeline_draw_lanes(
        &(ap_pipeline_lanes_t){.file = figure->file,
                               .what = "stage",
                               .schedule = schedule,
                               .run = run,
                               .left = MARGIN + LABELS,
                               .width = figure->width - 2 * MARGIN - LABELS,
                               .top = figure->timeline + TIMELINE_HEADER,
                               .end_ns = run->makespan_ns > 0 ? run->makespan_ns : 1});
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
    return XM_OK;
}

xm_status_t ap_plan_plot(const ap_plan_t *plan, const char *path)
{
    XM_NEED_ARGUMENTS(plan, path);
    figure_t figure = {.plan = plan};
    xm_status_t status;

    measure(&figure);
    XM_TRY(xm_file_create(path, &figure.file));
    draw_header(&figure);
    draw_devices(&figure);
    for (int i = 0; i < figure.stages; ++i) {
        draw_stage(&figure, i);
    }
    for (int i = 0; i < ap_plan_boundaries(plan); ++i) {
        if (i >= ap_plan_stages(plan) - 1) {
            draw_skip(&figure, ap_plan_boundary(plan, i));
            continue;
        }
        draw_boundary(&figure, i);
    }
    status = draw_timeline(&figure);
    (void)fputs("</svg>\n", figure.file);
    return xm_file_close(figure.file, path, status);
}
