/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draws a result as SVG: a lane for each NIC direction of each host, planned above
 * measured, with the lower bound as a line. SVG is written by hand because it needs
 * nothing but text. Bars are merged before they are drawn, so the file stays small
 * whatever the number of hops.
 */
#include "bench/report/timeline.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/report/lanes.h"
#include "comm/base.h"
#include "resharding/plan.h"

typedef struct {
    const rb_result_t *result;
    const xm_network_t *network;
    const xm_plan_t *plan;
    bool local;   /* nothing crosses a NIC */
    bool by_rank; /* what a bar's colour tells, otherwise hosts */
    /* Lanes 2 h (out) and 2 h + 1 (in) of host h, or lane h when all is local. */
    rb_lanes_t planned, measured;
    int64_t end_ns;     /* of the time axis */
    int64_t latency_ns; /* of what the lanes show */
    const char *unit;
    double unit_ns;
    FILE *file;
} figure_t;

enum {
    WIDTH = 1120,
    LEFT = 120,
    RIGHT = 30,
    PLOT = WIDTH - LEFT - RIGHT,
    LANE = 20,
    LEAST_ROW = 3,
    GAP = 4,
    COLOURS = 8,
    KEY = 100,
    LETTER = 10,
    LEAST_LABEL = 44, /* width of a bar that has room for its ranks */
    MOST_BARS = 6000  /* each takes some 270 bytes of the file */
};

/* Colours that colour-blind eyes can tell apart (Okabe and Ito). */
static const char *const colours[COLOURS] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                             "#56b4e9", "#d55e00", "#f0e442", "#7f7f7f"};
static const char mixed[] = "#333333"; /* data of several */

/* Follows the parents to the rank or host that held the data at first: bars are coloured
 * by source, by ranks where one host has everything. */
static int source_of(const figure_t *figure, int64_t index)
{
    xm_transfer_t transfer = xm_plan_transfer(figure->plan, index);

    while (transfer.parent >= 0) {
        transfer = xm_plan_transfer(figure->plan, transfer.parent);
    }
    return figure->by_rank ? transfer.sender : xm_network_host_of(figure->network, transfer.sender);
}

/* Whether one host, or none but its own, is the source of all transfers. */
static bool has_one_source(const figure_t *figure)
{
    int64_t count = xm_plan_transfer_count(figure->plan);
    int first = count > 0 ? source_of(figure, 0) : 0;

    for (int64_t i = 1; i < count; ++i) {
        if (source_of(figure, i) != first) {
            return false;
        }
    }
    return true;
}

/* Puts a hop into its lane, as seen by its sender (`out`) or its receiver. Copies and,
 * unless all is local, hops inside hosts are not drawn. */
static xm_status_t add(figure_t *figure, rb_lanes_t *lanes, int64_t transfer, int hop, bool out,
                       xm_span_t span)
{
    const xm_transfer_t of = xm_plan_transfer(figure->plan, transfer);
    const xm_route_t *route = xm_plan_route(figure->plan, of.route);
    const rb_bar_t bar = {.start_ns = span.start_ns,
                          .end_ns = span.end_ns,
                          .task = of.task,
                          .source = source_of(figure, transfer),
                          .sender = xm_hop_sender(&of, route, hop),
                          .receiver = route->ranks[hop],
                          .hops = 1,
                          .bytes = xm_plan_transfer_bytes(figure->plan, transfer)};
    int from = xm_network_host_of(figure->network, bar.sender);
    int to = xm_network_host_of(figure->network, bar.receiver);

    if (bar.sender == bar.receiver || (figure->local ? out : from == to)) {
        return XM_OK;
    }
    if (figure->local) {
        return rb_lanes_add(lanes, to, &bar);
    }
    return rb_lanes_add(lanes, out ? 2 * from : 2 * to + 1, &bar);
}

static xm_status_t add_planned(figure_t *figure, const xm_span_t *spans)
{
    xm_status_t status = XM_OK;
    int64_t number = 0;

    for (int64_t t = 0; t < xm_plan_transfer_count(figure->plan); ++t) {
        int hops = xm_plan_route(figure->plan, xm_plan_transfer(figure->plan, t).route)->count;

        for (int i = 0; status == XM_OK && i < hops; ++i, ++number) {
            status = add(figure, &figure->planned, t, i, true, spans[number]);
            XM_THEN(status, add(figure, &figure->planned, t, i, false, spans[number]));
        }
    }
    return status;
}

/* The planned times are simulated anew, since plans do not keep them. */
static xm_status_t collect_planned(figure_t *figure)
{
    xm_span_t *spans = malloc(((size_t)xm_plan_hops(figure->plan) + 1) * sizeof(*spans));
    int64_t makespan;
    xm_status_t status;

    XM_NEED_MEMORY(spans, "the figure");
    status = xm_simulate(figure->plan, figure->network, XM_SHARING_EXCLUSIVE, spans, &makespan);
    XM_THEN(status, add_planned(figure, spans));
    free(spans);
    return status;
}

/* A hop has two records, one from each end. */
static bool is_sender(const figure_t *figure, const rb_record_t *record)
{
    const xm_transfer_t transfer = xm_plan_transfer(figure->plan, record->transfer);
    const xm_route_t *route = xm_plan_route(figure->plan, transfer.route);

    return record->rank == xm_hop_sender(&transfer, route, record->hop);
}

/* Takes the measured hops from post to end, where those that are under way at once
 * overlap. */
static xm_status_t collect_overlapping(figure_t *figure)
{
    for (size_t i = 0; i < figure->result->record_count; ++i) {
        const rb_record_t *record = &figure->result->records[i];

        if (record->chunk > 0) {
            continue;
        }
        XM_TRY(add(figure, &figure->measured, record->transfer, record->hop,
                   is_sender(figure, record), (xm_span_t){record->start_ns, record->end_ns}));
    }
    return XM_OK;
}

/* A total order, so that equal runs give equal figures. */
static int compare_ends(const void *a, const void *b)
{
    const rb_record_t *left = *(const rb_record_t *const *)a;
    const rb_record_t *right = *(const rb_record_t *const *)b;

    XM_ORDER_BY(left->end_ns, right->end_ns);
    XM_ORDER_BY(left->transfer, right->transfer);
    return xm_order(left->hop, right->hop);
}

/* Puts a sender's record into both lanes. A hop that was posted early starts when those
 * before it on the same lanes have left, which is what the fabric did. */
static xm_status_t add_in_order(figure_t *figure, const rb_record_t *record, int64_t *free_at)
{
    const xm_transfer_t transfer = xm_plan_transfer(figure->plan, record->transfer);
    const xm_route_t *route = xm_plan_route(figure->plan, transfer.route);
    int64_t *out = &free_at[2 * record->rank], *in = &free_at[2 * route->ranks[record->hop] + 1];
    xm_span_t span = {record->start_ns, record->end_ns};

    if (!figure->local) {
        out = &free_at[2 * xm_network_host_of(figure->network, record->rank)];
        in = &free_at[2 * xm_network_host_of(figure->network, route->ranks[record->hop]) + 1];
        if (out + 1 == in) {
            return XM_OK; /* inside a host: not drawn, and on no NIC's lane */
        }
    }
    span.start_ns = *out > span.start_ns ? *out : span.start_ns;
    span.start_ns = *in > span.start_ns ? *in : span.start_ns;
    span.start_ns = span.start_ns < span.end_ns ? span.start_ns : span.end_ns;
    *out = span.end_ns - figure->latency_ns;
    *in = *out;
    XM_TRY(add(figure, &figure->measured, record->transfer, record->hop, true, span));
    return add(figure, &figure->measured, record->transfer, record->hop, false, span);
}

/* Only where the fabric served messages in order is it known who had a NIC when. */
static xm_status_t collect_in_order(figure_t *figure)
{
    const rb_result_t *result = figure->result;
    const rb_record_t **sent = malloc((result->record_count + 1) * sizeof(*sent));
    int64_t *free_at = calloc(2 * (size_t)xm_network_ranks(figure->network), sizeof(*free_at));
    size_t count = 0;
    xm_status_t status = XM_OK;

    if (sent == NULL || free_at == NULL) {
        status = XM_NO_MEMORY("the figure");
        goto free_arrays;
    }
    for (size_t i = 0; i < result->record_count; ++i) {
        if (result->records[i].chunk == 0 && is_sender(figure, &result->records[i])) {
            sent[count++] = &result->records[i];
        }
    }
    qsort(sent, count, sizeof(*sent), compare_ends);
    for (size_t i = 0; status == XM_OK && i < count; ++i) {
        status = add_in_order(figure, sent[i], free_at);
    }

free_arrays:
    free(free_at);
    free(sent);
    return status;
}

static xm_status_t collect_measured(figure_t *figure)
{
    return figure->result->in_order ? collect_in_order(figure) : collect_overlapping(figure);
}

/*
 * Merges bars, so that thousands of hops become bars that can be told apart and a file
 * that can be opened. The gap doubles until the bars are few enough, so the loop ends
 * quickly.
 */
static void merge(figure_t *figure, rb_lanes_t *lanes)
{
    int64_t gap = figure->end_ns / PLOT / 2;

    rb_lanes_merge_tasks(lanes, gap);
    while (rb_lanes_bars(lanes) > MOST_BARS && gap < figure->end_ns) {
        gap = 2 * gap + 1;
        rb_lanes_merge_short(lanes, gap);
    }
}

/* A lane grows when overlapping bars need more rows than fit into its height. */
static double row_height(const rb_lane_t *lane)
{
    return fmax(LEAST_ROW, (double)LANE / (lane->rows > 0 ? lane->rows : 1));
}

static double lane_height(const rb_lane_t *lane)
{
    return row_height(lane) * (lane->rows > 0 ? lane->rows : 1);
}

/* A lane is drawn in both sections when something moves in it in either, so that they can
 * be compared. */
static bool is_drawn(const figure_t *figure, int lane)
{
    return figure->planned.lanes[lane].count > 0 || figure->measured.lanes[lane].count > 0;
}

static double section_height(const figure_t *figure, const rb_lanes_t *section)
{
    double height = 24;

    for (int l = 0; l < section->count; ++l) {
        height += is_drawn(figure, l) ? lane_height(&section->lanes[l]) + GAP : 0;
    }
    return height;
}

static double x_of(const figure_t *figure, int64_t ns)
{
    return LEFT + (double)PLOT * (double)ns / (double)figure->end_ns;
}

/* Writes what hovering over a bar shows. */
static void describe_bar(const figure_t *figure, const rb_bar_t *bar)
{
    char bytes[32];

    if (bar->task >= 0) {
        (void)fprintf(figure->file, "unit task %" PRId64 ": ", bar->task);
    } else {
        (void)fprintf(figure->file, "several unit tasks: ");
    }
    if (bar->hops > 1) {
        (void)fprintf(figure->file, "%" PRId64 " hops, the first from ", bar->hops);
    }
    (void)fprintf(figure->file, "rank %d to rank %d, %s, %.3f to %.3f %s", bar->sender,
                  bar->receiver, xm_text_format_bytes(bar->bytes, bytes, sizeof(bytes)),
                  (double)bar->start_ns / figure->unit_ns, (double)bar->end_ns / figure->unit_ns,
                  figure->unit);
}

/* A bar is at least half a pixel wide, or short hops would vanish. */
static void draw_bar(const figure_t *figure, const rb_bar_t *bar, double y, double height)
{
    double x = x_of(figure, bar->start_ns), width = x_of(figure, bar->end_ns) - x;

    (void)fprintf(figure->file,
                  "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\" "
                  "stroke=\"#ffffff\" stroke-width=\"%g\"><title>",
                  x, y, fmax(width, 0.5), height,
                  bar->source < 0 ? mixed : colours[bar->source % COLOURS],
                  height > 6 && width > 3 ? 0.8 : 0.1);
    describe_bar(figure, bar);
    (void)fputs("</title></rect>\n", figure->file);
    if (bar->hops == 1 && width >= LEAST_LABEL && height > LETTER + 1) {
        (void)fprintf(figure->file,
                      "<text x=\"%.2f\" y=\"%.2f\" font-size=\"%d\" text-anchor=\"middle\" "
                      "fill=\"#ffffff\">%d → %d</text>\n",
                      x + width / 2, y + height / 2 + 0.5 * LETTER - 1, LETTER, bar->sender,
                      bar->receiver);
    }
}

static double draw_section(const figure_t *figure, const rb_lanes_t *section, const char *heading,
                           double y)
{
    (void)fprintf(figure->file, "<text x=\"%d\" y=\"%.2f\" font-weight=\"bold\">%s</text>\n", 10,
                  y + 14, heading);
    y += 24;
    for (int l = 0; l < section->count; ++l) {
        const rb_lane_t *lane = &section->lanes[l];
        double height = lane_height(lane);
        char label[64];

        if (!is_drawn(figure, l)) {
            continue;
        }
        if (figure->local) {
            (void)snprintf(label, sizeof(label), "inside host %d", l);
        } else {
            (void)snprintf(label, sizeof(label), "host %d %s", l / 2,
                           l % 2 == 0 ? "sends" : "receives");
        }
        (void)fprintf(figure->file,
                      "<rect x=\"%d\" y=\"%.2f\" width=\"%d\" height=\"%.2f\" fill=\"#808080\" "
                      "fill-opacity=\"0.1\"/>\n"
                      "<text x=\"%d\" y=\"%.2f\" text-anchor=\"end\">%s</text>\n",
                      LEFT, y, PLOT, height, LEFT - 8, y + height / 2 + 4, label);
        for (size_t i = 0; i < lane->count; ++i) {
            draw_bar(figure, &lane->bars[i], y + lane->bars[i].row * row_height(lane),
                     row_height(lane));
        }
        y += height + GAP;
    }
    return y;
}

/* The bound is a line across both sections. */
static void draw_bound(const figure_t *figure, double top, double y)
{
    int64_t bound = xm_plan_bound_ns(figure->result->prepared->plan);
    double x = x_of(figure, bound);

    if (bound > 0) {
        (void)fprintf(figure->file,
                      "<line x1=\"%.2f\" y1=\"%.2f\" x2=\"%.2f\" y2=\"%.2f\" stroke=\"#000000\" "
                      "stroke-width=\"1.2\" stroke-dasharray=\"5 3\"/>\n",
                      x, top, x, y);
    }
}

static void draw_key(const figure_t *figure, int x, double y, const char *colour, const char *text)
{
    (void)fprintf(figure->file,
                  "<rect x=\"%d\" y=\"%.2f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n"
                  "<text x=\"%d\" y=\"%.2f\">%s</text>\n",
                  x, y, colour, x + 17, y + 10, text);
}

static bool has_mixed_bars(const rb_lanes_t *lanes)
{
    for (int l = 0; l < lanes->count; ++l) {
        for (size_t i = 0; i < lanes->lanes[l].count; ++i) {
            if (lanes->lanes[l].bars[i].source < 0) {
                return true;
            }
        }
    }
    return false;
}

/* Several sources share a colour when there are more than colours; the legend says so by
 * dots. */
static void draw_legend(const figure_t *figure, double y)
{
    int64_t bound = xm_plan_bound_ns(figure->plan);
    int colours_used[COLOURS] = {0}; /* number of the sources that share each, at most 2 */
    int x = LEFT;
    char text[48];

    for (int64_t i = 0; i < xm_plan_transfer_count(figure->plan); ++i) {
        int source = source_of(figure, i), colour = source % COLOURS;

        colours_used[colour] = source >= COLOURS || colours_used[colour] == 2 ? 2 : 1;
    }
    (void)fprintf(figure->file, "<text x=\"10\" y=\"%.2f\">whose data</text>\n", y + 10);
    for (int c = 0; c < COLOURS; ++c) {
        if (colours_used[c] > 0) {
            (void)snprintf(text, sizeof(text), "%s %d%s", figure->by_rank ? "rank" : "host", c,
                           colours_used[c] > 1 ? ", …" : "");
            draw_key(figure, x, y, colours[c], text);
            x += KEY;
        }
    }
    if (has_mixed_bars(&figure->planned) || has_mixed_bars(&figure->measured)) {
        draw_key(figure, x, y, mixed, "several");
    }
    if (bound > 0) {
        (void)fprintf(figure->file,
                      "<line x1=\"%d\" y1=\"%.2f\" x2=\"%d\" y2=\"%.2f\" stroke=\"#000000\" "
                      "stroke-width=\"1.2\" stroke-dasharray=\"5 3\"/>\n"
                      "<text x=\"%d\" y=\"%.2f\">lower bound, %.3f %s</text>\n",
                      LEFT, y + 26, LEFT + 24, y + 26, LEFT + 30, y + 30,
                      (double)bound / figure->unit_ns, figure->unit);
    }
}

/* The names come from files and are escaped; the numbers need not be. */
static void draw_title(const figure_t *figure)
{
    const rb_prepared_t *prepared = figure->result->prepared;
    const rb_case_t *one = prepared->one;
    char src[RB_SIDE_TEXT], dst[RB_SIDE_TEXT], shape[RB_SHAPE_TEXT], bytes[32];

    (void)fprintf(figure->file, "<text x=\"10\" y=\"22\" font-size=\"15\" font-weight=\"bold\">");
    xm_text_put_xml(figure->file, one->name);
    (void)fprintf(figure->file,
                  ": %s to %s</text>\n<text x=\"10\" y=\"42\">%s%s, %s, %s; strategy %s, "
                  "scheduler %s; NICs of %.3f GB/s</text>\n",
                  rb_side_format(&one->src, src, sizeof(src)),
                  rb_side_format(&one->dst, dst, sizeof(dst)), one->model == NULL ? "tensor " : "",
                  rb_case_format_shape(one, shape, sizeof(shape)), one->dtype,
                  xm_text_format_bytes(xm_plan_bytes(prepared->plan), bytes, sizeof(bytes)),
                  xm_strategy_name(xm_plan_chosen_strategy(prepared->plan)),
                  xm_scheduler_name(xm_plan_chosen_scheduler(prepared->plan)),
                  xm_network_nic_bandwidth(prepared->network) * 1e-9);
}

static void draw(const figure_t *figure)
{
    bool measured = figure->result->record_count > 0;
    const double top = 54;
    double bottom = top + section_height(figure, &figure->planned) +
                    (measured ? section_height(figure, &figure->measured) + 8 : 0);
    double y;

    xm_svg_begin(figure->file, WIDTH, (int)bottom + 94, "Transfers of a resharding");
    draw_title(figure);
    xm_svg_time_axis(figure->file, LEFT, PLOT, top + 20, bottom, figure->end_ns,
                     "time from the start of the resharding");
    y = draw_section(figure, &figure->planned, "planned", top);
    if (measured) {
        (void)draw_section(figure, &figure->measured, "measured, last run", y + 8);
    }
    draw_bound(figure, top + 20, bottom);
    draw_legend(figure, bottom + 52);
    (void)fprintf(figure->file, "</svg>\n");
}

/* The common end of both sections is known before bars are merged, as the gap depends on
 * it. */
static xm_status_t collect(figure_t *figure)
{
    int lanes = (figure->local ? 1 : 2) * xm_network_hosts(figure->network);
    double latency = figure->local ? xm_network_host_latency(figure->network)
                                   : xm_network_nic_latency(figure->network);
    int64_t slack, end;

    figure->latency_ns = (int64_t)(latency * 1e9);
    slack = figure->latency_ns + 1; /* the next message starts while the last is on its way */
    XM_TRY(rb_lanes_create(lanes, &figure->planned));
    XM_TRY(rb_lanes_create(lanes, &figure->measured));
    XM_TRY(collect_planned(figure));
    XM_TRY(collect_measured(figure));
    end = rb_lanes_end(&figure->planned);
    figure->end_ns = end > figure->end_ns ? end : figure->end_ns;
    end = rb_lanes_end(&figure->measured);
    figure->end_ns = end > figure->end_ns ? end : figure->end_ns;
    merge(figure, &figure->planned);
    merge(figure, &figure->measured);
    XM_TRY(rb_lanes_arrange(&figure->planned, slack));
    return rb_lanes_arrange(&figure->measured, slack);
}

/* An empty plan still has an axis. */
xm_status_t rb_timeline_write(const char *path, const rb_result_t *result)
{
    const xm_plan_t *plan = result->prepared->plan;
    figure_t figure = {.result = result, .network = result->prepared->network, .plan = plan};
    xm_status_t status;

    figure.local = xm_plan_net_bytes(plan) == 0;
    figure.by_rank = figure.local || has_one_source(&figure);
    figure.end_ns = xm_plan_bound_ns(plan) > 0 ? xm_plan_bound_ns(plan) : 1;
    status = collect(&figure);
    if (status < 0) {
        goto clear_lanes;
    }
    figure.unit = xm_svg_time_unit(figure.end_ns, &figure.unit_ns);
    status = xm_file_create(path, &figure.file);
    if (status != XM_OK) {
        goto clear_lanes;
    }
    draw(&figure);
    status = xm_file_close(figure.file, path, XM_OK);

clear_lanes:
    rb_lanes_clear(&figure.planned);
    rb_lanes_clear(&figure.measured);
    return status;
}
