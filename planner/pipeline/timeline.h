/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/pipeline/timeline.h
 * A simulated pipeline schedule for people and tools: as a figure, as a trace that Chrome and
 * Perfetto open, as JSON.
 *
 * Threads: no shared state.
 */
#pragma once

#include "planner/pipeline/simulate.h"

/** Lanes of devices in a figure, and where it has room for them: passes that end by @p end_ns, to
 * scale. */
typedef struct ap_pipeline_lanes {
    FILE *file;
    const char *what; /**< that a lane is, e.g. "device" */
    const ap_schedule_t *schedule;
    const ap_pipeline_run_t *run;
    int left, width, top;
    int64_t end_ns;
} ap_pipeline_lanes_t;

enum { AP_PIPELINE_LANE = 44 /**< height of a lane with what is around it */ };

void ap_pipeline_draw_lanes(const ap_pipeline_lanes_t *lanes);

/** What the lanes of a schedule are called: "stage" where each has one, else "mesh". */
const char *ap_pipeline_lane(const ap_schedule_t *schedule);

/** Colours of a stage in figures. */
const char *ap_pipeline_fill(int stage);
const char *ap_pipeline_edge(int stage);

/**
 * Writes a figure as SVG 1.1: a lane per stage, its passes coloured by stage (light forward, dark
 * backward, hatched outline weight half, grey update), under each lane what it sends. A run with
 * thousands of passes is drawn from its start for as long as they can be told apart. @p title
 * stands on top.
 */
xm_status_t ap_pipeline_plot(const ap_schedule_t *schedule, const ap_pipeline_run_t *run,
                             const char *title, const char *path);

/** Writes a Chrome trace: process 0 has the devices' passes, process 1 their channels. */
xm_status_t ap_pipeline_trace(const ap_schedule_t *schedule, const ap_pipeline_run_t *run,
                              const char *path);

/** The lists with their times as a JSON document that the caller frees with free(); NULL when
 * memory is short. Its keys are in docs/pipeline-schedules.md. */
char *ap_pipeline_text(const ap_schedule_t *schedule, const ap_pipeline_run_t *run);
