/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plugin_log.h
 * Lines in NCCL's log (NCCL_DEBUG), and failures in its terms. Internal to the plugin.
 */
#pragma once

#include "comm/base.h"
#include "plugins/nccl/nccl_abi.h"

/** Where lines go from now on; NULL: nowhere. */
void plugin_log_set(nccl_log_t log);

void plugin_log_write(int level, unsigned long subjects, const char *file, int line,
                      const char *format, ...) __attribute__((format(printf, 5, 6)));

#define plugin_warn(subject, ...)                                                                  \
    plugin_log_write(NCCL_LOG_WARN, (subject), __FILE__, __LINE__, __VA_ARGS__)
#define plugin_info(subject, ...)                                                                  \
    plugin_log_write(NCCL_LOG_INFO, (subject), __FILE__, __LINE__, __VA_ARGS__)

/** Writes the sentence of a failure behind @p what and returns its result. */
nccl_result_t plugin_fail(xm_status_t status, const char *what);
