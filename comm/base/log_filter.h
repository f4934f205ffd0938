/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file log_filter.h
 * Which lines of the log are written: XM_LOG. Internal.
 *
 * The text is `LEVEL{,SUBJECT=LEVEL}` in any order: `info`, `warn,verbs=debug`, `peers=trace`. The
 * level without a subject is that of all subjects that are not named (warn when there is none). A
 * line's subject follows from the source file that it is written in.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "comm/base/log_level.h"

/** Subjects, with the paths of their sources: a folder of the house with a slash, or the beginning
 * of a file in it. The first match counts; what matches nothing is ::XM_LOG_OTHER. */
/* clang-format off */
#define XM_LOG_SUBJECT_TABLE(ROW) \
    ROW(LAUNCHER, "launcher", "comm/job/launcher") \
    ROW(BOOTSTRAP, "bootstrap", "comm/job/ comm/fault/endpoint") \
    ROW(TOPOLOGY, "topology", "comm/topology/ comm/transport/stripe comm/worker/nics") \
    ROW(UCX, "ucx", "comm/transport/ucx/") \
    ROW(VERBS, "verbs", "comm/transport/verbs/") \
    ROW(CUDA, "cuda", "comm/memory/cuda resharding/execute/carrier/device resharding/execute/carrier/ipc") \
    ROW(PEERS, "peers", "comm/fault/ comm/worker/group") \
    ROW(MEMORY, "memory", "comm/memory/ resharding/execute/carrier/direct bench/run/tile_buffers") \
    ROW(OPERATIONS, "operations", "comm/transport/counters") \
    ROW(WORKER, "worker", "comm/worker/") \
    ROW(PROBE, "probe", "comm/probe/") \
    ROW(RESHARDING, "resharding", "resharding/") \
    ROW(PLANNER, "planner", "planner/") \
    ROW(OTHER, "other", "")
/* clang-format on */

typedef enum xm_log_subject {
#define XM_LOG_SUBJECT_ENUM(id, name, files) XM_LOG_##id,
    XM_LOG_SUBJECT_TABLE(XM_LOG_SUBJECT_ENUM)
#undef XM_LOG_SUBJECT_ENUM
        XM_LOG_SUBJECT_COUNT
} xm_log_subject_t;

typedef struct xm_log_filter {
    xm_log_level_t level[XM_LOG_SUBJECT_COUNT];
} xm_log_filter_t;

/** Name of a subject. */
const char *xm_log_subject_name(xm_log_subject_t subject);

/** The subject of a source file, given as __FILE__. */
xm_log_subject_t xm_log_subject_of(const char *file);

/**
 * Reads the text. On failure the filter is what the default says, and @p bad and @p length are the
 * part of the text that means nothing.
 */
bool xm_log_filter_parse(const char *text, xm_log_filter_t *filter, const char **bad, int *length);
