/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan as aligned text for people. Every column is a number that the plan holds; nothing is
 * computed here but sums that the plan defines, so the table cannot disagree with the file. Lines
 * that are not stages or edges begin with '#', and scripts can take the rest apart by columns.
 */

#include "planner/plan/print.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "planner/cost.h"

enum { TEXT = 32, RANKS_TEXT = 64, SHAPE_TEXT = 96 };

/* A run of consecutive ranks is written as its ends; other lists in full, as far as the text has
 * room. */
static const char *ranks_text(const int *ranks, int count, char *text, size_t size)
{
    bool run = true;

    for (int i = 1; i < count; ++i) {
        run = run && ranks[i] == ranks[0] + i;
    }
    if (run && count > 1) {
        (void)snprintf(text, size, "%d-%d", ranks[0], ranks[count - 1]);
        return text;
    }
    text[0] = '\0';
    for (int i = 0; i < count; ++i) {
        size_t length = strlen(text);

        (void)snprintf(text + length, size - length, "%s%d", i > 0 ? "," : "", ranks[i]);
    }
    return text;
}

static const char *seconds_text(double seconds, char *text)
{
    return xm_text_format_seconds(seconds, text, TEXT);
}

static const char *bytes_text(double bytes, char *text)
{
    return xm_text_format_bytes((uint64_t)bytes, text, TEXT);
}

static void print_stages(const ap_plan_t *plan, FILE *stream)
{
    (void)fprintf(stream, "# %5s %9s %8s %6s %8s %12s %12s %12s %12s %12s\n", "stage", "layers",
                  "submesh", "mesh", "ranks", "forward", "backward", "sync/step", "update/step",
                  "memory");
    for (int i = 0; i < ap_plan_stages(plan); ++i) {
        const ap_plan_stage_t *stage = ap_plan_stage(plan, i);
        char layers[TEXT], submesh[TEXT], mesh[TEXT], ranks[RANKS_TEXT];
        char forward[TEXT], backward[TEXT], sync[TEXT], update[TEXT], memory[TEXT];

        (void)snprintf(layers, sizeof(layers), "%d-%d", stage->first_layer, stage->last_layer);
        (void)snprintf(submesh, sizeof(submesh), "%dx%d", stage->hosts, stage->devices_per_host);
        (void)snprintf(mesh, sizeof(mesh), "%dx%d", stage->shape[0], stage->shape[1]);
        (void)fprintf(
            stream, "  %5d %9s %8s %6s %8s %12s %12s %12s %12s %12s\n", i, layers, submesh, mesh,
            ranks_text(stage->devices, stage->hosts * stage->devices_per_host, ranks,
                       sizeof(ranks)),
            seconds_text(stage->forward, forward), seconds_text(stage->backward, backward),
            seconds_text(stage->sync, sync), seconds_text(stage->update, update),
            bytes_text(ap_plan_stage_memory(stage), memory));
    }
}

/* One tensor of a boundary; only with the first stand the times, which are those of all. */
static void print_tensor(const ap_plan_boundary_t *boundary, int index, FILE *stream)
{
    const ap_plan_tensor_t tensor = ap_plan_boundary_tensor(boundary, index);
    char edge[TEXT], shape[SHAPE_TEXT] = "", specs[SHAPE_TEXT];
    char bytes[TEXT], forward[TEXT], backward[TEXT];

    for (int d = 0; d < tensor.rank; ++d) {
        size_t length = strlen(shape);

        (void)snprintf(shape + length, sizeof(shape) - length, "%s%" PRId64, d > 0 ? "x" : "",
                       tensor.shape[d]);
    }
    (void)snprintf(edge, sizeof(edge), "%d-%d", boundary->from, boundary->to);
    (void)snprintf(specs, sizeof(specs), "%s(%dx%d)>%s(%dx%d)", tensor.src, boundary->src.shape[0],
                   boundary->src.shape[1], tensor.dst, boundary->dst.shape[0],
                   boundary->dst.shape[1]);
    (void)fprintf(stream, "  %5s %20s %16s %9s %22s %12s %12s %12s\n", edge, tensor.tensor, shape,
                  tensor.dtype, specs, bytes_text((double)tensor.bytes, bytes),
                  index > 0 ? "with it" : seconds_text(boundary->forward, forward),
                  index > 0 ? "with it" : seconds_text(boundary->backward, backward));
}

/* Work that the devices of an axis all do alike is work that more devices do not make faster; less
 * than this share is left unsaid. */
static const double repeated_share = 0.005;

static void print_repeated(const ap_plan_t *plan, FILE *stream)
{
    for (int i = 0; i < ap_plan_stages(plan); ++i) {
        const ap_plan_stage_t *stage = ap_plan_stage(plan, i);

        for (int a = 0; a < 2; ++a) {
            if (stage->repeated[a] >= repeated_share) {
                (void)fprintf(stream,
                              "# stage %d: the %d devices of axis %d all perform %.3g %% of their "
                              "FLOPs alike\n",
                              i, stage->shape[a], a, 100 * stage->repeated[a]);
            }
        }
    }
}

/* A transfer's two sides are shown as specs on their meshes, because neither says anything without
 * the other. */
static void print_boundaries(const ap_plan_t *plan, FILE *stream)
{
    if (ap_plan_boundaries(plan) == 0) {
        return;
    }
    (void)fprintf(stream, "# %5s %20s %16s %9s %22s %12s %12s %12s\n", "edge", "tensor", "shape",
                  "dtype", "spec (mesh)", "bytes", "forward", "backward");
    for (int i = 0; i < ap_plan_boundaries(plan); ++i) {
        const ap_plan_boundary_t *boundary = ap_plan_boundary(plan, i);

        for (int t = 0; t <= boundary->more_count; ++t) {
            print_tensor(boundary, t, stream);
        }
    }
}

/* Prints the order of hosts where it is not the profile's, runs shortened: "2-3,0-1". */
static void print_host_order(const ap_plan_info_t *info, FILE *stream)
{
    int last;

    if (info->host_order == NULL) {
        return;
    }
    (void)fprintf(stream, "# hosts in the order ");
    for (int i = 0; i < info->hosts; i = last + 1) {
        last = i;
        while (last + 1 < info->hosts && info->host_order[last + 1] == info->host_order[last] + 1) {
            ++last;
        }
        (void)fprintf(stream, "%s%d", i > 0 ? "," : "", info->host_order[i]);
        if (last > i) {
            (void)fprintf(stream, "-%d", info->host_order[last]);
        }
    }
    (void)fputc('\n', stream);
}

static bool is_used(const ap_plan_t *plan, int host)
{
    bool used = false;

    for (int i = 0; i < ap_plan_stages(plan); ++i) {
        const ap_plan_stage_t *stage = ap_plan_stage(plan, i);

        for (int d = 0; d < stage->hosts * stage->devices_per_host; ++d) {
            used = used || stage->devices[d] / ap_plan_info(plan)->devices_per_host == host;
        }
    }
    return used;
}

/* Says which hosts no stage stands on, so that nobody waits for them to work. */
static void print_left_out(const ap_plan_t *plan, FILE *stream)
{
    const ap_plan_info_t *info = ap_plan_info(plan);
    const char *between = ": host ";
    int left = 0;

    for (int host = 0; host < info->hosts; ++host) {
        left += !is_used(plan, host);
    }
    if (left == 0) {
        return;
    }
    (void)fprintf(stream, "# %d of %d hosts %s left out", left, info->hosts,
                  left == 1 ? "is" : "are");
    for (int host = 0; host < info->hosts; ++host) {
        if (!is_used(plan, host)) {
            (void)fprintf(stream, "%s%d", between, host);
            between = ", ";
        }
    }
    (void)fputs("; using more makes the step no shorter\n", stream);
}

void ap_plan_print(const ap_plan_t *plan, FILE *stream)
{
    const ap_plan_info_t *info = ap_plan_info(plan);
    char step[TEXT], sum[TEXT], bottleneck[TEXT], limit[TEXT], recompute[SHAPE_TEXT];
    char memory[AP_MEMORY_BUDGET_TEXT], above[64] = "";

    (void)fprintf(stream,
                  "# model %s (%d layers, %.3g parameters) on cluster %s: %d hosts x %d devices, "
                  "%s each\n",
                  info->model, info->layers, info->parameters, info->cluster, info->hosts,
                  info->devices_per_host,
                  bytes_text(info->memory_limit + info->memory_reserve, limit));
    xm_text_print_wrapped(stream, XM_TEXT_COLUMNS, "# costs: ", "#   ", "%s",
                          info->cluster_provenance);
    print_host_order(info, stream);
    xm_text_print_wrapped(
        stream, XM_TEXT_COLUMNS, "# memory: ", "#   ", "%s",
        ap_memory_budget_format(info->memory_limit, info->memory_reserve, memory, sizeof(memory)));
    print_left_out(plan, stream);
    if (info->frozen > 0) {
        (void)fprintf(stream,
                      "# layers 0-%d are frozen: no backward pass, gradients or optimizer "
                      "state\n",
                      info->frozen - 1);
    }
    (void)fprintf(stream,
                  "# batch %" PRId64 " in %" PRId64 " micro-batches of %" PRId64
                  ", schedule %s, recomputation %s\n",
                  info->global_batch, info->micro_batches, info->global_batch / info->micro_batches,
                  info->schedule, ap_plan_recompute_text(plan, recompute, sizeof(recompute)));
    print_stages(plan, stream);
    print_repeated(plan, stream);
    print_boundaries(plan, stream);
    if (info->bound > 0.0) {
        (void)snprintf(above, sizeof(above), ", at most %.1f %% above the best",
                       100.0 * fmax(0.0, info->step / info->bound - 1.0));
    }
    (void)fprintf(stream, "predicted step %s%s; once through %s, longest station %s\n# digest %s\n",
                  seconds_text(info->step, step), above, seconds_text(info->sum, sum),
                  seconds_text(info->bottleneck, bottleneck), ap_plan_digest(plan));
}
