/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file metrics.h
 * A rank's counters as a text file for Prometheus, as its node exporter collects them (textfile
 * collector). docs/observability.md lists the metrics. Internal.
 *
 * The file is replaced as a whole. It names peers with which there was something to count, so a
 * rank of a large job does not list them all.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "comm/transport.h"

typedef struct xm_metrics xm_metrics_t;

typedef struct xm_metrics_params {
    const char *path; /**< with placeholders, path_pattern.h */
    double interval;  /**< seconds between two files */
    int rank;         /**< of the job as it began */
    const char *transport;
    const char *const *host;       /**< by rank of the job; copied */
    const xm_counters_t *counters; /**< outlives the object */
} xm_metrics_params_t;

xm_status_t xm_metrics_create(const xm_metrics_params_t *params, xm_metrics_t **metrics);

/** When the next file is due, on the clock of @p now; for waits that must not sleep for longer. */
int64_t xm_metrics_due(const xm_metrics_t *metrics);

/** Writes the file if it is due at @p now (nanoseconds). What cannot be written is said in the log,
 * once. */
void xm_metrics_tick(xm_metrics_t *metrics, int64_t now);

/** Writes the file now. */
void xm_metrics_write(xm_metrics_t *metrics);

/** The text of the file. */
void xm_metrics_print(const xm_metrics_t *metrics, FILE *file);

/** Writes no file. NULL is accepted. */
void xm_metrics_destroy(xm_metrics_t *metrics);
