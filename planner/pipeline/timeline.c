/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated schedule as a figure, as a Chrome trace and as JSON. The figure draws everything to
 * scale and stops where passes could not be told apart, because a step of thousands of
 * micro-batches would give a file that no viewer opens; the trace and the JSON have all of it.
 */

#include "planner/pipeline/timeline.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/base.h"

/* Lengths in user units (pixels at 100 %). */
enum {
    WIDTH = 1120,
    LEFT = 90,
    RIGHT = 40,
    PLOT = WIDTH - LEFT - RIGHT,
    TOP = 66,
    LANE = 30, /* passes, and a strip for sends under them */
    SENDS = 8,
    BOTTOM = 66,
    MOST_BARS = 6000,
    LEAST_LABEL = 13, /* width of a pass that has room for its number */
    TEXT = 32
};

static const char *const fills[] = {"#cfe3f5", "#fde2c4", "#d5edd0", "#f6d0d0",
                                    "#e2d7f0", "#f5efc0", "#cdeceb", "#ecd8c6"};
static const char *const edges[] = {"#2f6ca8", "#b5651d", "#3f8a34", "#b03a3a",
                                    "#6f4aa8", "#9a8a14", "#1f8783", "#8a5a2c"};
enum { COLOURS = sizeof(fills) / sizeof(fills[0]) };

const char *ap_pipeline_fill(int stage)
{
    return fills[stage % COLOURS];
}

const char *ap_pipeline_edge(int stage)
{
    return edges[stage % COLOURS];
}

/* A lane is the submesh of a stage of the plan; some schedules give it several stages. */
const char *ap_pipeline_lane(const ap_schedule_t *schedule)
{
    return schedule->stages == schedule->devices && schedule->pipelines <= 1 ? "stage" : "mesh";
}

static bool is_send(ap_pass_t pass)
{
    return pass == AP_PASS_SEND_ACTIVATION || pass == AP_PASS_SEND_GRADIENT;
}

static bool is_receive(ap_pass_t pass)
{
    return pass == AP_PASS_RECEIVE_ACTIVATION || pass == AP_PASS_RECEIVE_GRADIENT;
}

/* Finds when to stop drawing: after as many passes as can be told apart. */
static xm_status_t find_end(ap_pipeline_lanes_t *figure)
{
    const ap_schedule_t *schedule = figure->schedule;
    size_t count = 0, used = 0;
    int64_t *ends;

    for (int device = 0; device < schedule->devices; ++device) {
        count += (size_t)schedule->op_count[device];
    }
    figure->end_ns = figure->run->makespan_ns > 0 ? figure->run->makespan_ns : 1;
    if (count <= MOST_BARS) {
        return XM_OK;
    }
    ends = malloc(count * sizeof(*ends));
    XM_NEED_MEMORY(ends, "a figure of %zu passes", count);
    for (int device = 0; device < schedule->devices; ++device) {
        for (int i = 0; i < schedule->op_count[device]; ++i) {
            ends[used++] = figure->run->spans[device][i].end_ns;
        }
    }
    qsort(ends, count, sizeof(*ends), xm_order_int64s);
    figure->end_ns = ends[MOST_BARS] > 0 ? ends[MOST_BARS] : 1;
    free(ends);
    return XM_OK;
}

static double x_of(const ap_pipeline_lanes_t *figure, int64_t ns)
{
    return figure->left + (double)figure->width * (double)ns / (double)figure->end_ns;
}

static int lane_top(const ap_pipeline_lanes_t *figure, int device)
{
    return figure->top + device * AP_PIPELINE_LANE;
}

static void draw_header(const ap_pipeline_lanes_t *figure, const char *title)
{
    const ap_pipeline_run_t *run = figure->run;
    int height = lane_top(figure, run->devices) + BOTTOM;
    char makespan[TEXT], shown[TEXT];

    xm_svg_begin(figure->file, WIDTH, height, "Pipeline schedule");
    xm_svg_text(figure->file, 10, 26, 17, "start", "%s", title);
    (void)fprintf(
        figure->file,
        "<text x=\"10\" y=\"46\" font-size=\"12\">%s: %d micro-batches through %d "
        "stages, %s in all, %.1f %% idle",
        ap_schedule_name(figure->schedule->kind), figure->schedule->micro_batches,
        figure->schedule->stages,
        xm_text_format_seconds(1e-9 * (double)run->makespan_ns, makespan, sizeof(makespan)),
        100.0 * run->bubble);
    if (figure->end_ns < run->makespan_ns) {
        (void)fprintf(figure->file, "; the first %s",
                      xm_text_format_seconds(1e-9 * (double)figure->end_ns, shown, sizeof(shown)));
    }
    (void)fputs("</text>\n", figure->file);
}

/* Writes what hovering over a bar shows. */
static void describe(const ap_pipeline_lanes_t *figure, const ap_schedule_op_t *op,
                     const ap_pipeline_span_t *span)
{
    char start[TEXT], end[TEXT], held[TEXT];

    (void)fprintf(figure->file, "<title>%s, stage %d, %s %d", ap_pass_name(op->pass), op->stage,
                  op->pass == AP_PASS_UPDATE ? "batch" : "micro-batch", op->micro_batch);
    if (figure->schedule->slices > 1) {
        (void)fprintf(figure->file, ", slice %d", op->slice);
    }
    (void)fprintf(figure->file, ": %s to %s, %s held</title>",
                  xm_text_format_seconds(1e-9 * (double)span->start_ns, start, sizeof(start)),
                  xm_text_format_seconds(1e-9 * (double)span->end_ns, end, sizeof(end)),
                  xm_text_format_bytes((uint64_t)op->held, held, sizeof(held)));
}

static void draw_bar(const ap_pipeline_lanes_t *figure, int device, const ap_schedule_op_t *op,
                     const ap_pipeline_span_t *span)
{
    double x = x_of(figure, span->start_ns), width = x_of(figure, span->end_ns) - x;
    int top = lane_top(figure, device), height = LANE, colour = op->stage % COLOURS;
    const char *fill = fills[colour];
    bool dark = op->pass == AP_PASS_BACKWARD;

    if (is_send(op->pass)) {
        top += LANE + 1;
        height = SENDS - 2;
    }
    if (dark || is_send(op->pass)) {
        fill = edges[colour];
    } else if (op->pass == AP_PASS_UPDATE) {
        fill = "#bbb";
    } else if (op->pass == AP_PASS_WEIGHT) {
        fill = "#fff";
    }
    (void)fprintf(figure->file,
                  "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
                  "stroke=\"%s\" stroke-width=\"0.7\"%s>",
                  x, top, width, height, fill, edges[colour],
                  op->pass == AP_PASS_WEIGHT ? " stroke-dasharray=\"3 2\"" : "");
    describe(figure, op, span);
    (void)fputs("</rect>\n", figure->file);
    if (!is_send(op->pass) && op->pass != AP_PASS_UPDATE && width > LEAST_LABEL) {
        (void)fprintf(figure->file,
                      "<text x=\"%.2f\" y=\"%d\" font-size=\"10\" text-anchor=\"middle\" "
                      "fill=\"%s\">%d</text>\n",
                      x + 0.5 * width, top + LANE / 2 + 4, dark ? "#fff" : "#222", op->micro_batch);
    }
}

static void draw_device(const ap_pipeline_lanes_t *figure, int device)
{
    const ap_schedule_t *schedule = figure->schedule;

    (void)fprintf(figure->file,
                  "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#f4f4f4\"/>\n"
                  "<text x=\"%d\" y=\"%d\" font-size=\"11\" text-anchor=\"end\">%s %d</text>\n",
                  figure->left, lane_top(figure, device), figure->width, LANE, figure->left - 8,
                  lane_top(figure, device) + LANE / 2 + 4, figure->what, device);
    for (int i = 0; i < schedule->op_count[device]; ++i) {
        const ap_schedule_op_t *op = &schedule->ops[device][i];
        const ap_pipeline_span_t *span = &figure->run->spans[device][i];

        /* Receives are waits, which show as gaps. A pass that ends beyond the axis is left out
         * rather than cut. */
        if (!is_receive(op->pass) && span->end_ns > span->start_ns &&
            span->end_ns <= figure->end_ns) {
            draw_bar(figure, device, op, span);
        }
    }
}

void ap_pipeline_draw_lanes(const ap_pipeline_lanes_t *lanes)
{
    for (int device = 0; device < lanes->run->devices; ++device) {
        draw_device(lanes, device);
    }
}

xm_status_t ap_pipeline_plot(const ap_schedule_t *schedule, const ap_pipeline_run_t *run,
                             const char *title, const char *path)
{
    ap_pipeline_lanes_t figure = {.what = ap_pipeline_lane(schedule),
                                  .schedule = schedule,
                                  .run = run,
                                  .left = LEFT,
                                  .width = PLOT,
                                  .top = TOP};

    XM_TRY(find_end(&figure));
    XM_TRY(xm_file_create(path, &figure.file));
    draw_header(&figure, title);
    xm_svg_time_axis(figure.file, LEFT, PLOT, TOP - 4, lane_top(&figure, run->devices),
                     figure.end_ns, "time");
    ap_pipeline_draw_lanes(&figure);
    xm_svg_text(
        figure.file, LEFT, lane_top(&figure, run->devices) + BOTTOM - 8, 10, "start",
        "light: forward, dark: backward, dashed: gradients of the parameters, grey: update; "
        "the strip below a lane: what it sends");
    (void)fputs("</svg>\n", figure.file);
    return xm_file_close(figure.file, path, XM_OK);
}

static void trace_name(FILE *file, int process, int thread, const char *kind, const char *format,
                       int number)
{
    (void)fprintf(file, "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"name\":\"",
                  process, thread, kind);
    (void)fprintf(file, "%s", format);
    if (number >= 0) {
        (void)fprintf(file, " %d", number);
    }
    (void)fputs("\"}},\n", file);
}

static void trace_op(FILE *file, int device, const ap_schedule_op_t *op,
                     const ap_pipeline_span_t *span, bool first)
{
    /* Channels have a thread for each direction: a device sends both ways at once. */
    int process = is_send(op->pass) ? 1 : 0;
    int thread = process == 0 ? device : 2 * device + (op->pass == AP_PASS_SEND_GRADIENT);

    /* Chrome's times are microseconds; three decimals keep the nanoseconds. */
    (void)fprintf(file,
                  "%s{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s %d\",\"cat\":\"%s\","
                  "\"ts\":%" PRId64 ".%03d,\"dur\":%" PRId64
                  ".%03d,\"args\":{\"stage\":%d,\"micro_batch\":%d,\"slice\":%d,\"pipeline\":%d,"
                  "\"version\":%d,\"held_bytes\":%" PRId64 "}}",
                  first ? "" : ",\n", process, thread, ap_pass_name(op->pass), op->micro_batch,
                  ap_pass_name(op->pass), span->start_ns / 1000, (int)(span->start_ns % 1000),
                  (span->end_ns - span->start_ns) / 1000,
                  (int)((span->end_ns - span->start_ns) % 1000), op->stage, op->micro_batch,
                  op->slice, op->pipeline, op->version, op->held);
}

xm_status_t ap_pipeline_trace(const ap_schedule_t *schedule, const ap_pipeline_run_t *run,
                              const char *path)
{
    const char *what = ap_pipeline_lane(schedule);
    FILE *file;
    bool first = true;

    XM_TRY(xm_file_create(path, &file));
    (void)fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", file);
    trace_name(file, 0, 0, "process_name", "passes", -1);
    trace_name(file, 1, 0, "process_name", "channels", -1);
    for (int device = 0; device < run->devices; ++device) {
        char name[TEXT];

        (void)snprintf(name, sizeof(name), "%s", what);
        trace_name(file, 0, device, "thread_name", name, device);
        (void)snprintf(name, sizeof(name), "activations from %s", what);
        trace_name(file, 1, 2 * device, "thread_name", name, device);
        (void)snprintf(name, sizeof(name), "gradients from %s", what);
        trace_name(file, 1, 2 * device + 1, "thread_name", name, device);
    }
    for (int device = 0; device < run->devices; ++device) {
        for (int i = 0; i < schedule->op_count[device]; ++i) {
            const ap_schedule_op_t *op = &schedule->ops[device][i];

            if (!is_receive(op->pass)) {
                trace_op(file, device, op, &run->spans[device][i], first);
                first = false;
            }
        }
    }
    (void)fputs("\n]}\n", file);
    return xm_file_close(file, path, XM_OK);
}

static json_t *op_to_json(const ap_schedule_op_t *op, const ap_pipeline_span_t *span)
{
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:I}", "pass",
                     ap_pass_name(op->pass), "pipeline", op->pipeline, "stage", op->stage,
                     "micro_batch", op->micro_batch, "slice", op->slice, "version", op->version,
                     "held_bytes", (json_int_t)op->held, "start_ns", (json_int_t)span->start_ns,
                     "end_ns", (json_int_t)span->end_ns);
}

static json_t *device_to_json(const ap_schedule_t *schedule, const ap_pipeline_run_t *run,
                              int device)
{
    const ap_pipeline_device_t *of = &run->device[device];
    json_t *ops = json_array();

    for (int i = 0; ops != NULL && i < schedule->op_count[device]; ++i) {
        if (json_array_append_new(
                ops, op_to_json(&schedule->ops[device][i], &run->spans[device][i])) != 0) {
            json_decref(ops);
            return NULL;
        }
    }
    return json_pack("{s:i, s:I, s:I, s:I, s:i, s:I, s:o}", "device", device, "busy_ns",
                     (json_int_t)of->busy_ns, "transfer_ns", (json_int_t)of->transfer_ns, "last_ns",
                     (json_int_t)of->last_ns, "peak_in_flight", of->peak_in_flight, "peak_bytes",
                     (json_int_t)of->peak_bytes, "ops", ops);
}

char *ap_pipeline_text(const ap_schedule_t *schedule, const ap_pipeline_run_t *run)
{
    json_t *devices = json_array(), *document;
    char *text;

    for (int device = 0; devices != NULL && device < run->devices; ++device) {
        if (json_array_append_new(devices, device_to_json(schedule, run, device)) != 0) {
            json_decref(devices);
            return NULL;
        }
    }
    document = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:f, s:o}", "schedule",
                         ap_schedule_name(schedule->kind), "stages", schedule->stages, "pipelines",
                         schedule->pipelines, "micro_batches", schedule->micro_batches, "slices",
                         schedule->slices, "batches", schedule->batches, "versions",
                         schedule->versions, "makespan_ns", (json_int_t)run->makespan_ns, "step_ns",
                         (json_int_t)run->step_ns, "bubble", run->bubble, "devices", devices);
    text = document != NULL ? json_dumps(document, JSON_INDENT(1)) : NULL;
    json_decref(document);
    return text;
}
