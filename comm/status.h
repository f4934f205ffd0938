/**
 * @file status.h
 * Status codes, and the sentence that goes with the last failure.
 *
 * Every function that can fail returns an ::xm_status_t. Zero is success, one means "started, not
 * finished", negative values are failures grouped by whose move it is. Besides the code, the
 * function that detects a failure leaves one precise sentence (which rank, which dimension, which
 * number) in a thread-local buffer; callers pass the code up and leave the sentence alone.
 *
 * @code
 *     xm_status_t status = xm_layout_create(&params, &layout);
 *     if (status < 0) {
 *         fprintf(stderr, "reshard-bench: %s\n", xm_last_error());
 *         return xm_status_is_caller(status) ? 2 : 1;
 *     }
 * @endcode
 *
 * Threads: the sentence is per thread. Ownership: the string belongs to the library and is valid
 * until the next failure on the same thread.
 */
#ifndef XM_COMM_STATUS_H
#define XM_COMM_STATUS_H

#include <stdbool.h>

#include <crossmesh/status.h>

#include "comm/api.h"

/** Short name of @p status for tables and logs, e.g. "peer died". Never NULL. */
XM_API const char *xm_status_string(xm_status_t status);

/** True for failures that the caller's input caused (command-line tools exit with 2 on these). */
XM_API bool xm_status_is_caller(xm_status_t status);

/** The sentence of the last failure on this thread; "" when there was none. No trailing newline. */
XM_API const char *xm_last_error(void);

/**
 * Sets this thread's sentence and returns @p status, so that a detector can write
 * `return xm_error_set(XM_ERR_PARSE, "…")`. The text is cut at 1023 bytes.
 */
XM_API xm_status_t xm_error_set(xm_status_t status, const char *format, ...) XM_PRINTF(2, 3);

/** Puts "format: " in front of the current sentence (to add context on the way up); returns @p
 * status. */
XM_API xm_status_t xm_error_prefix(xm_status_t status, const char *format, ...) XM_PRINTF(2, 3);

#endif
