/**
 * @file log_filter.h
 * Which lines of the log are written: XM_LOG. Internal.
 *
 * The text is `LEVEL{,SUBJECT=LEVEL}` in any order: `info`, `warn,verbs=debug`, `peers=trace`. The
 * level without a subject is that of all subjects that are not named (warn when there is none). A
 * line's subject follows from the source file that it is written in.
 */
#ifndef XM_COMM_BASE_LOG_FILTER_H
#define XM_COMM_BASE_LOG_FILTER_H

#include <stdbool.h>
#include <stddef.h>

#include "comm/base/log_level.h"

/** Subjects, with the beginnings of the names of their source files, and folders (with a slash).
 * The first match counts; what matches nothing is ::XM_LOG_OTHER. */
/* clang-format off */
#define XM_LOG_SUBJECT_TABLE(ROW) \
    ROW(BOOTSTRAP, "bootstrap", "bootstrap endpoint job_ resolve") \
    ROW(LAUNCHER, "launcher", "launcher") \
    ROW(TOPOLOGY, "topology", "topology nic_ nics stripe worker_nics") \
    ROW(UCX, "ucx", "transport_ucx") \
    ROW(VERBS, "verbs", "transport_verbs") \
    ROW(CUDA, "cuda", "memory_cuda execute_device execute_carrier_ipc") \
    ROW(PEERS, "peers", "heartbeat path probe liveness regroup group") \
    ROW(MEMORY, "memory", "memory shared_memory execute_direct execute_carrier_direct tile_buffers") \
    ROW(OPERATIONS, "operations", "counters") \
    ROW(WORKER, "worker", "worker metrics") \
    ROW(PROBE, "probe", "probe") \
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

/** Names of the levels "error" … "trace", and of the subjects. */
const char *xm_log_level_name(xm_log_level_t level);
const char *xm_log_subject_name(xm_log_subject_t subject);

/** The subject of a source file, given as __FILE__. */
xm_log_subject_t xm_log_subject_of(const char *file);

/**
 * Reads the text. On failure the filter is what the default says, and @p bad and @p length are the
 * part of the text that means nothing.
 */
bool xm_log_filter_parse(const char *text, xm_log_filter_t *filter, const char **bad, int *length);

#endif
