/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file status.h
 * Status codes and the last failure's sentence (crossmesh/status.h), and how a detector sets it.
 *
 * Threads: the sentence is per thread.
 */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <crossmesh/status.h>

#include "comm/base/api.h"

/**
 * Sets this thread's sentence and returns @p status, so that a detector can write
 * `return xm_error_set(XM_ERR_PARSE, "…")`. What stands between single quotation marks is
 * somebody's input and is cut at 80 characters, the whole at 1023 bytes; "…" shows where.
 */
XM_API xm_status_t xm_error_set(xm_status_t status, const char *format, ...) XM_PRINTF(2, 3);

/** xm_error_set() of the failures that most code can find: what there was no memory for ("%d
 * ranks"), what somebody gave that cannot be, what cannot be read, and those called as the status.
 */
#define XM_NO_MEMORY(...)   xm_error_set(XM_ERR_NO_MEMORY, "no memory for " __VA_ARGS__)
#define XM_INVALID(...)     xm_error_set(XM_ERR_INVALID_ARGUMENT, __VA_ARGS__)
#define XM_MALFORMED(...)   xm_error_set(XM_ERR_PARSE, __VA_ARGS__)
#define XM_UNSUPPORTED(...) xm_error_set(XM_ERR_UNSUPPORTED, __VA_ARGS__)
#define XM_NO_SOLUTION(...) xm_error_set(XM_ERR_NO_SOLUTION, __VA_ARGS__)
#define XM_MISMATCH(...)    xm_error_set(XM_ERR_MISMATCH, __VA_ARGS__)
#define XM_NOT_FOUND(...)   xm_error_set(XM_ERR_NOT_FOUND, __VA_ARGS__)

/** Returns what @p call returns unless that is XM_OK: where nothing is to be undone on the way. */
#define XM_TRY(call)                                                                               \
    do {                                                                                           \
        xm_status_t xm_tried = (call);                                                             \
        if (xm_tried != XM_OK) {                                                                   \
            return xm_tried;                                                                       \
        }                                                                                          \
    } while (0)

/** Goes on with @p call while all is well: where something is to be undone at the end, which
 * XM_TRY() would skip, @p status becomes what it returns, and stays a failure that it is. */
#define XM_THEN(status, call) ((status) = (status) == XM_OK ? (call) : (status))

/** Returns XM_NO_MEMORY() of what is told unless @p made, a pointer or a truth value, is there. */
#define XM_NEED_MEMORY(made, ...)                                                                  \
    do {                                                                                           \
        if (!(made)) {                                                                             \
            return XM_NO_MEMORY(__VA_ARGS__);                                                      \
        }                                                                                          \
    } while (0)

/** xm_error_set() with its arguments in a list, for detectors that have a format of their own. */
xm_status_t xm_error_set_list(xm_status_t status, const char *format, va_list args) XM_PRINTF(2, 0);

/** Puts "format: " in front of the current sentence (to add context on the way up); returns @p
 * status. */
xm_status_t xm_error_prefix(xm_status_t status, const char *format, ...) XM_PRINTF(2, 3);

/** A status with its sentence, put aside while something else runs that may fail as well: cleaning
 * up, or asking whether a peer has died. Plain bytes, so that it may be kept, or sent to a process
 * of the same build. */
typedef struct xm_error {
    xm_status_t status;
    char sentence[1024];
} xm_error_t;

/** Keeps @p status and this thread's sentence. */
static inline void xm_error_save(xm_error_t *error, xm_status_t status)
{
    const char *sentence = xm_last_error();

    error->status = status;
    memcpy(error->sentence, sentence, strlen(sentence) + 1);
}

/** Makes what was kept this thread's sentence again, and returns its status. */
static inline xm_status_t xm_error_restore(const xm_error_t *error)
{
    return xm_error_set(error->status, "%s", error->sentence);
}
