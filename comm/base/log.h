/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file log.h
 * Levelled log to standard error, or to the file that XM_LOG_FILE names.
 *
 * One line per call: `[seconds.micro] host:pid rank 3 LEVEL file:line sentence`; the rank is left
 * out where there is none. What is written is for XM_LOG to say: a level (error, warn, info, debug,
 * trace; default warn), and levels of single subjects (log_filter.h), as in `info,verbs=trace`. It
 * is read once, at the first call. Tests treat an unexpected WARN or ERROR line as a failure, so a
 * condition that the caller learns from the returned status is not logged as well. Never called on
 * the hot path, unless a user asked for the trace of operations.
 *
 * Threads: callable from any thread; a line is written with one write.
 */
#pragma once

#include <stdbool.h>

#include "comm/base/api.h"
#include "comm/base/log_level.h"

/** Writes one line when @p level is enabled for the subject of @p file. Use the macros below, which
 * fill in file and line. */
void xm_log_write(xm_log_level_t level, const char *file, int line, const char *format, ...)
    XM_PRINTF(4, 5);

/** Whether lines of a level are written in this source file; for what is costly to put together. */
#define xm_log_enabled(level) xm_log_writes((level), __FILE__)
bool xm_log_writes(xm_log_level_t level, const char *file);

/**
 * Tells the rank that lines of this process name, and that %r in XM_LOG_FILE stands for; until then
 * it is what the launcher's environment says. A worker does. Where several ranks live in one
 * process the last one tells.
 */
void xm_log_set_rank(int rank);

#define xm_log_warn(...)  xm_log_write(XM_LOG_WARN, __FILE__, __LINE__, __VA_ARGS__)
#define xm_log_info(...)  xm_log_write(XM_LOG_INFO, __FILE__, __LINE__, __VA_ARGS__)
#define xm_log_debug(...) xm_log_write(XM_LOG_DEBUG, __FILE__, __LINE__, __VA_ARGS__)
#define xm_log_trace(...) xm_log_write(XM_LOG_TRACE, __FILE__, __LINE__, __VA_ARGS__)
