/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file api.h
 * What all of libautopar has in common: marks, failures, texts that callers free.
 *
 * Functions that can fail return an ::xm_status_t (crossmesh/status.h): XM_OK is zero, failures are
 * negative. The one that fails leaves a sentence that names what was wrong: ap_last_error(). The
 * sentence is libautopar's own; libcrossmesh's xm_last_error() knows nothing of it.
 *
 * Structures that callers fill in begin with `struct_size`: start from their `AP_…_INIT`. A
 * structure of an older header has its later members at their defaults; one of a newer header is
 * accepted while what this library does not know of it is zero. Structures that the library hands
 * out by pointer may grow at their end.
 *
 * Pointers must not be NULL unless their description says so; a NULL that must not be is
 * XM_ERR_INVALID_ARGUMENT. Destroying NULL does nothing.
 *
 * Threads: no function shares state with another, but through the objects that both are given. An
 * object that is said to be immutable may be used by any number of threads at once, others by one.
 *
 * @code
 *     int read_model(const char *model, ap_graph_t **graph)
 *     {
 *         xm_status_t status = ap_frontend_load(model, NULL, graph, NULL);
 *
 *         if (status != XM_OK) {
 *             fprintf(stderr, "%s: %s\n", ap_status_string(status), ap_last_error());
 *             return 1;
 *         }
 *         return 0;
 *     }
 * @endcode
 */
#ifndef AUTOPAR_API_H
#define AUTOPAR_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <crossmesh/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Planners leave free of a device's memory what its runtime needs (docs/planner.md). */
enum { AP_MEMORY_RESERVE_DEFAULT = -1 };

/** The sentence of the last failure of this library on this thread; "" when there was none. It is
 * valid until the next failure on the thread. */
XM_API const char *ap_last_error(void);

/** A status in a few words, e.g. "no solution". Never NULL. */
XM_API const char *ap_status_string(xm_status_t status);

/** The library's version, "0.2.0". */
XM_API const char *ap_version(void);

/** Frees a text that this library has made; anything else of it has its own destroy function. NULL
 * is accepted. */
XM_API void ap_free(void *text);

#ifdef __cplusplus
}
#endif

#endif
