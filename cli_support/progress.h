/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file progress.h
 * A progress line on the terminal for commands that take longer than a second.
 *
 * Nothing is printed unless standard error is a terminal and more than a second has passed since
 * creation; the line is redrawn at most ten times a second and erased at the end. So output that is
 * piped or quick never sees it.
 */
#pragma once

typedef struct xm_cli_progress xm_cli_progress_t;

/** A line that starts with @p program. NULL when memory is short, which the functions below accept.
 */
xm_cli_progress_t *xm_cli_progress_create(const char *program);

/**
 * Reports @p fraction (0 to 1) done and what is being done. The first parameter is an
 * xm_cli_progress_t, so that the function can serve as a progress callback (probe.h).
 */
void xm_cli_progress_update(void *progress, double fraction, const char *what);

/** Erases the line and frees the object. NULL is accepted. */
void xm_cli_progress_destroy(xm_cli_progress_t *progress);
