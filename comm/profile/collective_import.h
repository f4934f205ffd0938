/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file collective_import.h
 * Collectives that other programs have measured: nccl-tests (text and JSON), the OSU collectives
 * (text), and our own documents {"version": 2, "collectives": […]} (autopar-probe-mpi).
 *
 * nccl-tests tells which collective it was, and by its list of ranks how the groups lie on the
 * hosts. OSU tells the collective only. What a file does not tell comes from the hint, and the hint
 * wins where both tell. Sizes are turned into those of collective_curve.h; rows of size 0, which
 * nccl-tests prints where a size does not divide, are left out; times that fall are smoothed as
 * the probe does.
 *
 * Strict: before the table's head any line may stand (launchers are talkative), behind it nothing
 * but rows. Sentences name file, line and what was expected. Threads: no shared state.
 */
#pragma once

#include "comm/profile/collective_curve.h"

typedef struct xm_collective_hint {
    int kind;                                     /**< an xm_collective_t; -1: the file tells */
    int hosts, devices_per_host, groups_per_host; /**< 0: the file tells */
} xm_collective_hint_t;

#define XM_COLLECTIVE_HINT_INIT                                                                    \
    {                                                                                              \
        .kind = -1                                                                                 \
    }

/** Reads @p text; @p source names it. What is in *curves is freed with
 * xm_collective_curves_free(). */
xm_status_t xm_collective_import(const char *text, size_t length, const char *source,
                                 const xm_collective_hint_t *hint, xm_collective_curve_t **curves,
                                 size_t *count);

/** Writes our own document. */
xm_status_t xm_collective_export(const xm_collective_curve_t *curves, size_t count,
                                 const char *path);

/** The same as xm_collective_import() from a file. */
xm_status_t xm_collective_import_file(const char *path, const xm_collective_hint_t *hint,
                                      xm_collective_curve_t **curves, size_t *count);
