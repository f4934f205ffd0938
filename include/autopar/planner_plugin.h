/**
 * @file autopar/planner_plugin.h
 * Planners as plug-ins: the table that a shared library exports to be loaded by
 * `autopar plan --planner LIBRARY`, and that libautopar.so exports to be called by others.
 *
 * The library exports one constant table under the name `autopar_planner_v1`. The name is the
 * version: whatever changes in the table or in what its functions are given gets a new name, and a
 * library may export several for several hosts. This header needs nothing but the C library; a
 * plug-in need not link libautopar.
 *
 * Both ways JSON passes, UTF-8 without a byte order mark, in format version 1;
 * docs/planner-plugin.md has it key by key:
 *
 *   - request: the model as an operator graph (docs/graph.md), the measured cluster profile
 *     (docs/cluster-profile.md), and what is asked: batch, micro-batches, limits, schedule;
 *   - reply: a parallel plan (docs/plan.md), whose `digest` may be left out.
 *
 * The host parses every plan and verifies it against the request before anyone sees it: see
 * verify.h. A plan that is not one, does not fit or claims to be faster than its shardings
 * allow is refused in a sentence.
 *
 * Order of calls: init once, then any number of plan with a free for each reply, finalize once, in
 * this order, from one thread at a time. The library stays loaded until finalize has returned.
 *
 * @code
 *     int init(void **context, const autopar_planner_host_v1_t *host)
 *     {
 *         *context = NULL;
 *         return host != NULL && host->log == NULL; // this one wants to say something
 *     }
 *
 *     int plan(void *context, const char *request, size_t length, char **reply)
 *     {
 *         (void)context;
 *         *reply = (char *)malloc(length + 1); // a planner would put its plan there
 *         if (*reply != NULL) {
 *             memcpy(*reply, request, length + 1);
 *         }
 *         return *reply != NULL ? 0 : 1;
 *     }
 *
 *     void release(void *context, char *reply)
 *     {
 *         (void)context;
 *         free(reply);
 *     }
 *
 *     void finalize(void *context)
 *     {
 *         (void)context;
 *     }
 *
 *     const autopar_planner_v1_t autopar_planner_v1 = {"mine", init, plan, release, finalize};
 * @endcode
 */
#ifndef AUTOPAR_PLANNER_PLUGIN_H
#define AUTOPAR_PLANNER_PLUGIN_H

#include <stddef.h>

/* As in the other headers. */
#define XM_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/** What the host does for a planner. Both functions may be NULL, and end with finalize. */
typedef struct autopar_planner_host_v1 {
    void *arg; /**< passed on */
    /** How far the search is: a fraction from 0 to 1, and what it looks at now. */
    void (*progress)(void *arg, double fraction, const char *what);
    /** One sentence for the user, without a line break. */
    void (*log)(void *arg, const char *sentence);
} autopar_planner_host_v1_t;

/** A planner. No member may be NULL. */
typedef struct autopar_planner_v1 {
    /** One word, for messages. */
    const char *name;
    /** Makes what the other functions get as @p context, which may be NULL. 0: success; any other
     *  value ends the use of this planner, without finalize. @p host lives until finalize. */
    int (*init)(void **context, const autopar_planner_host_v1_t *host);
    /**
     * Answers a request of @p length bytes, which a zero byte follows. 0: @p reply is a plan, as a
     * string; any other value: it is the reason, one sentence, or NULL. What is not NULL goes back
     * to free. 2 says that the request has no answer (nothing fits, nothing divides), every other
     * value that the planner failed.
     */
    int (*plan)(void *context, const char *request, size_t length, char **reply);
    /** Takes a reply back. */
    void (*free)(void *context, char *reply);
    /** Ends the use of the planner. */
    void (*finalize)(void *context);
} autopar_planner_v1_t;

/** Returned by plan: what is asked cannot be had. */
enum { AUTOPAR_PLANNER_NO_SOLUTION = 2 };

/** What a library exports; libautopar.so does. */
XM_API extern const autopar_planner_v1_t autopar_planner_v1;

#ifdef __cplusplus
}
#endif

#endif
