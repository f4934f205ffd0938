/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A progress line on standard error, drawn only on a terminal and only when the work
 * takes longer than a second, so that scripts and short runs never see it.
 */
#include "cli_support/progress.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/base.h"

enum { BAR_WIDTH = 24 };

struct xm_cli_progress {
    const char *program;
    double start;
    double last;
    bool terminal;
    bool drawn;
};

xm_cli_progress_t *xm_cli_progress_create(const char *program)
{
    xm_cli_progress_t *progress = calloc(1, sizeof(*progress));

    if (progress != NULL) {
        progress->program = program;
        progress->start = xm_clock_seconds();
        progress->terminal = isatty(STDERR_FILENO) == 1;
    }
    return progress;
}

void xm_cli_progress_update(void *arg, double fraction, const char *what)
{
    xm_cli_progress_t *progress = arg;
    char bar[BAR_WIDTH + 1];
    double time;

    if (progress == NULL || !progress->terminal) {
        return;
    }
    time = xm_clock_seconds();
    /* At most ten lines a second. */
    if (time - progress->start < 1.0 || time - progress->last < 0.1) {
        return;
    }
    progress->last = time;
    progress->drawn = true;
    for (int i = 0; i < BAR_WIDTH; ++i) {
        bar[i] = (double)i < fraction * BAR_WIDTH ? '#' : '.';
    }
    bar[BAR_WIDTH] = '\0';
    (void)fprintf(stderr, "\r\033[K%s [%s] %3.0f %% %s", progress->program, bar, fraction * 100.0,
                  what);
    (void)fflush(stderr);
}

/* The line is wiped, so the output that follows starts clean. */
void xm_cli_progress_destroy(xm_cli_progress_t *progress)
{
    if (progress != NULL && progress->drawn) {
        (void)fputs("\r\033[K", stderr);
        (void)fflush(stderr);
    }
    free(progress);
}
