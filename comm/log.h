/**
 * @file log.h
 * Levelled log to standard error, or to the file that XM_LOG_FILE names.
 *
 * One line per call: `[seconds.micro] host:pid LEVEL file:line sentence`. The level comes from
 * XM_LOG_LEVEL (error, warn, info, debug; default warn) and is read once, at the first call. Tests
 * treat an unexpected WARN or ERROR line as a failure, so a condition that the caller learns from
 * the returned status is not logged as well. Never called on the hot path.
 *
 * Threads: callable from any thread; a line is written with one write.
 */
#ifndef XM_COMM_LOG_H
#define XM_COMM_LOG_H

#include <stdbool.h>

#include "comm/api.h"

typedef enum xm_log_level { XM_LOG_ERROR, XM_LOG_WARN, XM_LOG_INFO, XM_LOG_DEBUG } xm_log_level_t;

/** Writes one line when @p level is enabled. Use the macros below, which fill in file and line. */
XM_API void xm_log_write(xm_log_level_t level, const char *file, int line, const char *format, ...)
    XM_PRINTF(4, 5);

/** Whether lines of a level are written; for what is costly to put together. */
XM_API bool xm_log_enabled(xm_log_level_t level);

#define xm_log_error(...) xm_log_write(XM_LOG_ERROR, __FILE__, __LINE__, __VA_ARGS__)
#define xm_log_warn(...)  xm_log_write(XM_LOG_WARN, __FILE__, __LINE__, __VA_ARGS__)
#define xm_log_info(...)  xm_log_write(XM_LOG_INFO, __FILE__, __LINE__, __VA_ARGS__)
#define xm_log_debug(...) xm_log_write(XM_LOG_DEBUG, __FILE__, __LINE__, __VA_ARGS__)

#endif
