/**
 * @file status.h
 * Status codes and the last failure's sentence (crossmesh/status.h), and how a detector sets it.
 *
 * Threads: the sentence is per thread.
 */
#ifndef XM_COMM_STATUS_H
#define XM_COMM_STATUS_H

#include <crossmesh/status.h>

#include "comm/api.h"

/**
 * Sets this thread's sentence and returns @p status, so that a detector can write
 * `return xm_error_set(XM_ERR_PARSE, "…")`. The text is cut at 1023 bytes.
 */
XM_API xm_status_t xm_error_set(xm_status_t status, const char *format, ...) XM_PRINTF(2, 3);

/** Puts "format: " in front of the current sentence (to add context on the way up); returns @p
 * status. */
xm_status_t xm_error_prefix(xm_status_t status, const char *format, ...) XM_PRINTF(2, 3);

#endif
