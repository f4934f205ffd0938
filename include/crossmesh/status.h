/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file status.h
 * Status codes, and the sentence that goes with the last failure.
 *
 * Every function that can fail returns an ::xm_status_t. Zero is success, one means "started, not
 * finished", negative values are failures grouped by whose move it is. Besides the code, the
 * function that detects a failure leaves one precise sentence (which rank, which dimension, which
 * number) in a thread-local buffer; callers pass the code up and leave the sentence alone.
 *
 * A required pointer that is NULL is such a failure too, in every function of these headers: the
 * sentence names the function and the argument, as in "xm_plan_create: params.network is NULL".
 * Functions that return something else than a status then return NULL, 0, or −1 where 0 has a
 * meaning, and leave the sentence as well. Destroy functions accept NULL silently.
 *
 * @code
 *     // What a command-line tool may do with a failure: print the sentence, choose an exit status.
 *     int report(xm_status_t status)
 *     {
 *         if (status < 0) {
 *             fprintf(stderr, "%s: %s\n", xm_status_string(status), xm_last_error());
 *             return xm_status_is_caller(status) ? 2 : 1;
 *         }
 *         return 0;
 *     }
 * @endcode
 *
 * Threads: the sentence is per thread. Ownership: the strings belong to the library; a sentence is
 * valid until the next failure on the same thread.
 */
#ifndef CROSSMESH_STATUS_H
#define CROSSMESH_STATUS_H

#include <stdbool.h>

#include <crossmesh/api.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How a call ended. Numbers never change their meaning; new ones may be added to each group. */
typedef enum xm_status {
    XM_OK = 0,
    XM_IN_PROGRESS = 1, /**< started, not finished */

    /* -1 … -19: the caller's input; nothing was changed. */
    XM_ERR_INVALID_ARGUMENT = -1, /**< a value outside what the function accepts */
    XM_ERR_PARSE = -2,            /**< text that does not follow its format */
    XM_ERR_NOT_FOUND = -3,        /**< a named thing does not exist */
    XM_ERR_UNSUPPORTED = -4,      /**< valid, but this build or transport cannot do it */
    XM_ERR_MISMATCH = -5,         /**< ranks passed different values where equal ones are needed */
    XM_ERR_BUFFER_TOO_SMALL = -6, /**< the sentence has both sizes */
    XM_ERR_NO_SOLUTION = -7,      /**< the constraints admit no answer; the sentence says which */

    /* -20 … -39: a resource of this machine. */
    XM_ERR_NO_MEMORY = -20, /**< an allocation failed */
    XM_ERR_IO = -21,        /**< a file or socket operation failed */

    /* -40 … -59: the network. */
    XM_ERR_UNREACHABLE = -40, /**< no path to the peer */

    /* -60 … -79: another rank. */
    XM_ERR_PEER_DIED = -60, /**< a rank is gone; the sentence names it */
    XM_ERR_TIMEOUT = -61,   /**< a deadline passed */
    XM_ERR_CANCELED = -62,  /**< this rank or another one gave up */

    /* -80 … -99: this library. */
    XM_ERR_INTERNAL = -80, /**< please report it */
    XM_ERR_CORRUPT = -81   /**< data failed a check */
} xm_status_t;

/** Short name of @p status for tables and logs, e.g. "peer died". Never NULL. */
XM_API const char *xm_status_string(xm_status_t status);

/** True for failures that the caller's input caused (command-line tools exit with 2 on these). */
XM_API bool xm_status_is_caller(xm_status_t status);

/** The sentence of the last failure on this thread; "" when there was none. No trailing newline. */
XM_API const char *xm_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
