/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives of a probe: which library, which budget, and steps that can be resumed. They
 * get two fifths of the budget if a library works on all ranks. Each curve is one step, named
 * by library, kind and shape, so a probe that goes on repeats none of them, and one with
 * another library does not take them for its own. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/probe/collective_measure.h"
#include "comm/probe/probe_private.h"

enum { STEP = 128, POINT_NUMBERS = 3, MAX_CURVES = XM_COLLECTIVE_AXES * XM_COLLECTIVE_COUNT };

/* The part of the budget and of the progress. */
static const double collective_share = 0.4;

static xm_status_t gather(void *context, const void *send, void *receive, size_t length)
{
    const xm_probe_t *probe = context;

    return xm_worker_allgather(probe->worker, send, receive, length);
}

/* NCCL's waits call this now and then, so that a death is noticed in the middle of a
 * measurement. */
static xm_status_t look(void *context)
{
    const xm_probe_t *probe = context;

    return xm_worker_progress(probe->worker);
}

/* Opens the library. Axes that cannot be measured are an error only where collectives were
 * asked for by name. */
static xm_status_t open_library(xm_probe_t *probe, const char *choice)
{
    xm_collective_axis_t axes[XM_COLLECTIVE_AXES];
    int count;
    xm_status_t status = xm_collective_axes(&probe->job, axes, &count);

    if (status == XM_ERR_UNSUPPORTED && strcmp(choice, "auto") == 0) {
        (void)snprintf(probe->note, sizeof(probe->note), "collectives were not measured: %s",
                       xm_last_error());
        return XM_OK;
    }
    return status < 0 ? status
                      : xm_collective_open(choice, &probe->job, &probe->library, probe->note,
                                           sizeof(probe->note));
}

/* The links' part of the budget shrinks only if there is something to measure. */
xm_status_t xm_probe_open_collectives(xm_probe_t *probe)
{
    const char *choice = probe->params.collectives;
    xm_status_t status;

    probe->links_part = 1;
    if (choice == NULL || strcmp(choice, "none") == 0) {
        return XM_OK;
    }
    probe->job = (xm_collective_job_t){.rank = probe->rank,
                                       .ranks = probe->ranks,
                                       .host_of = probe->host_of,
                                       .timeout = xm_worker_timeout(probe->worker),
                                       .allgather = gather,
                                       .alive = look,
                                       .context = probe};
    status = open_library(probe, choice);
    if (status == XM_OK && probe->library != NULL) {
        probe->collective_budget = collective_share * probe->params.budget;
        probe->params.budget -= probe->collective_budget;
        probe->links_part = 1 - collective_share;
    }
    return status;
}

static const char *name_step(const xm_probe_t *probe, const xm_collective_axis_t *axis,
                             xm_collective_t kind, char step[STEP])
{
    (void)snprintf(step, STEP, "%s %s %dx%dx%d", probe->library->name, xm_collective_name(kind),
                   axis->hosts, axis->devices_per_host, axis->groups_per_host);
    return step;
}

typedef struct {
    xm_probe_t *probe;
    int done, curves; /* for the progress */
} visit_t;

/* Measures one curve, or finds it done. The time of a size is an equal share of the budget. */
static xm_status_t measure_one(void *arg, const xm_collective_axis_t *axis, xm_collective_t kind)
{
    visit_t *visit = arg;
    xm_probe_t *probe = visit->probe;
    int sizes = 1 + (int)(log((double)probe->params.max_bytes / XM_COLLECTIVE_MIN_BYTES) /
                          log(XM_COLLECTIVE_GROWTH));
    xm_collective_effort_t effort = {.max_bytes = probe->params.max_bytes,
                                     .repetitions = probe->params.repetitions,
                                     .seconds = probe->collective_budget / (visit->curves * sizes)};
    double span = (1 / probe->links_part - 1) / visit->curves; /* of the progress */
    double numbers[POINT_NUMBERS * XM_CURVE_MAX_POINTS];
    xm_collective_points_t measured;
    char step[STEP];

    if (xm_probe_is_done(probe, name_step(probe, axis, kind, step))) {
        ++visit->done;
        return XM_OK;
    }
    XM_TRY(xm_probe_enter(probe, xm_collective_name(kind), 1 + span * visit->done,
                          1 + span * (visit->done + 1)));
    XM_TRY(xm_collective_measure(&probe->job, probe->library, axis, kind, &effort, &measured));
    for (int i = 0; i < measured.count; ++i) {
        numbers[POINT_NUMBERS * i] = (double)measured.points[i].bytes;
        numbers[POINT_NUMBERS * i + 1] = measured.points[i].seconds;
        numbers[POINT_NUMBERS * i + 2] = measured.spread[i];
    }
    ++visit->done;
    return xm_probe_finish_step(probe, step, numbers,
                                probe->rank == 0 ? (size_t)(POINT_NUMBERS * measured.count) : 0);
}

/* Visits every kind on every axis. */
xm_status_t xm_probe_measure_collectives(xm_probe_t *probe)
{
    visit_t visit = {.probe = probe};
    xm_collective_axis_t axes[XM_COLLECTIVE_AXES];
    xm_status_t status;

    if (probe->library == NULL) {
        return XM_OK;
    }
    status = xm_collective_axes(&probe->job, axes, &visit.curves);
    visit.curves *= XM_COLLECTIVE_COUNT;
    return status < 0 ? status
                      : xm_collective_visit(&probe->job, probe->library, measure_one, &visit);
}

/* Makes the curve of a step, with arrays of its own. The numbers may come from a file, so sizes
 * are checked before they become integers. */
static xm_status_t take_curve(const xm_probe_t *probe, const xm_collective_axis_t *axis,
                              xm_collective_t kind, xm_collective_curve_t *curve)
{
    xm_collective_points_t taken;
    xm_collective_curve_t made = {.kind = kind,
                                  .hosts = axis->hosts,
                                  .devices_per_host = axis->devices_per_host,
                                  .groups_per_host = axis->groups_per_host,
                                  .library = probe->library->name,
                                  .points = taken.points,
                                  .spread = taken.spread};
    char step[STEP];
    size_t count = 0;
    const double *numbers =
        xm_probe_state_find(probe->state, name_step(probe, axis, kind, step), &count);

    if (numbers == NULL || count % POINT_NUMBERS != 0 ||
        count > sizeof(taken.points) / sizeof(taken.points[0]) * POINT_NUMBERS) {
        return XM_MALFORMED("probe: the step '%s' has a wrong number of values", step);
    }
    made.count = count / POINT_NUMBERS;
    for (size_t i = 0; i < made.count; ++i) {
        double bytes = numbers[POINT_NUMBERS * i];

        if (!(bytes >= 1 && bytes < 0x1p53)) {
            return XM_MALFORMED("probe: the step '%s' has a tensor of %g bytes", step, bytes);
        }
        taken.points[i] = (xm_curve_point_t){(uint64_t)bytes, numbers[POINT_NUMBERS * i + 1]};
        taken.spread[i] = numbers[POINT_NUMBERS * i + 2];
    }
    return xm_collective_curve_copy(&made, curve);
}

/* Extends the profile, or leaves it and frees the curves; the old profile is destroyed only
 * when there is a new one. */
xm_status_t xm_probe_add_collectives(xm_probe_t *probe, xm_cluster_profile_t **profile)
{
    xm_collective_axis_t axes[XM_COLLECTIVE_AXES];
    xm_collective_curve_t *curves = calloc(MAX_CURVES, sizeof(*curves));
    xm_cluster_profile_t *extended = NULL;
    size_t count = 0;
    int axis_count = 0;
    xm_status_t status = curves != NULL ? XM_OK : xm_error_set(XM_ERR_NO_MEMORY, "out of memory");

    if (status == XM_OK && probe->library != NULL) {
        (void)snprintf(probe->note, sizeof(probe->note), "collectives of %s", probe->library->name);
        status = xm_collective_axes(&probe->job, axes, &axis_count);
    }
    for (int a = 0; a < axis_count; ++a) {
        for (int kind = 0; status == XM_OK && kind < XM_COLLECTIVE_COUNT; ++kind) {
            status = take_curve(probe, &axes[a], (xm_collective_t)kind, &curves[count]);
            count += status == XM_OK;
        }
    }
    if (status == XM_OK && probe->note[0] != '\0') {
        status =
            xm_cluster_profile_add_collectives(*profile, curves, count, probe->note, &extended);
    }
    xm_collective_curves_free(curves, count);
    if (extended != NULL) {
        xm_cluster_profile_destroy(*profile);
        *profile = extended;
    }
    return status;
}
