/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file log_level.h
 * The levels of the log (log.h), for those who read them without writing any line.
 */
#pragma once

typedef enum xm_log_level {
    XM_LOG_ERROR,
    XM_LOG_WARN,
    XM_LOG_INFO,
    XM_LOG_DEBUG,
    XM_LOG_TRACE,
    XM_LOG_LEVEL_COUNT
} xm_log_level_t;
