/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/pipeline/order.h
 * The orders of passes that make the schedules, device by device. Sends, receives, updates and
 * memory are added by planner/pipeline/schedule.c. Not installed.
 */
#pragma once

#include "planner/pipeline/schedule.h"

/* Receives the passes of one device in order. */
typedef struct ap_order_sink {
    void (*put)(void *arg, ap_pass_t pass, int pipeline, int stage, int micro_batch, int slice);
    void *arg;
} ap_order_sink_t;

/* Forwards of all parts, then their backwards; slices of a micro-batch backwards in reverse. */
void ap_order_flush(const ap_schedule_t *schedule, int device, const ap_order_sink_t *sink);

/*
 * Some forwards ahead, then one backward and one forward in turn: 1f1b, its eager forms,
 * zero-bubble and pipedream-2bw differ in how many run ahead and how long weight halves wait.
 */
void ap_order_one_by_one(const ap_schedule_t *schedule, int device, const ap_order_sink_t *sink);

/* Virtual stages in turn, as many micro-batches at a time as there are devices. */
void ap_order_interleaved(const ap_schedule_t *schedule, int device, const ap_order_sink_t *sink);

/* Two pipelines in opposite directions. XM_ERR_NO_MEMORY is its only failure. */
xm_status_t ap_order_chimera(const ap_schedule_t *schedule, int device,
                             const ap_order_sink_t *sink);

/* Two stages to a device, down the devices and up again; a weight half follows its input half where
 * nothing waits for it, and fills the end. */
void ap_order_zb_v(const ap_schedule_t *schedule, int device, const ap_order_sink_t *sink);

/* The same stages; forward passes of one direction alternate with backward passes of the other. */
void ap_order_dualpipev(const ap_schedule_t *schedule, int device, const ap_order_sink_t *sink);
