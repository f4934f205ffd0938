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
#include <string.h>

#include "comm/api.h"

typedef enum xm_status {
    XM_OK = 0,
    XM_IN_PROGRESS = 1,

    /* -1 … -19: the caller's input; nothing was changed. */
    XM_ERR_INVALID_ARGUMENT = -1, /**< a value outside what the function accepts */
    XM_ERR_PARSE = -2,            /**< text that does not follow its format */
    XM_ERR_NOT_FOUND = -3,        /**< a named thing does not exist */
    XM_ERR_UNSUPPORTED = -4,      /**< valid, but this build or transport cannot do it */
    XM_ERR_MISMATCH = -5,         /**< ranks passed different values where equal ones are needed */
    XM_ERR_BUFFER_TOO_SMALL = -6,
    XM_ERR_NO_SOLUTION = -7, /**< the constraints admit no answer; the sentence says which */

    /* -20 … -39: a resource of this machine. */
    XM_ERR_NO_MEMORY = -20,
    XM_ERR_IO = -21, /**< a file or socket operation failed */

    /* -40 … -59: the network. */
    XM_ERR_UNREACHABLE = -40, /**< no path to the peer */

    /* -60 … -79: another rank. */
    XM_ERR_PEER_DIED = -60,
    XM_ERR_TIMEOUT = -61, /**< a deadline passed */
    XM_ERR_CANCELED = -62,

    /* -80 … -99: this library. */
    XM_ERR_INTERNAL = -80,
    XM_ERR_CORRUPT = -81 /**< data failed a check */
} xm_status_t;

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

#endif
