/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file timeline.h
 * A figure of one case: when each host's NIC is busy in either direction, as planned and as
 * measured, on one time axis, with the lower bound.
 */
#pragma once

#include "bench/run.h"

/**
 * Writes an SVG file. Hops of a task that follow each other on a lane are one bar, and when there
 * are thousands so are neighbours narrower than a few pixels. Without measured records only the
 * plan is drawn. A job on a single host has no NIC traffic; then its transfers inside the host are
 * drawn.
 */
xm_status_t rb_timeline_write(const char *path, const rb_result_t *result);
