/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file meeting.h
 * Where worlds meet: processes of separate launches, some of which have data that others want again
 * and again, each time in a newer version.
 *
 * A *world* is one launch: ranks 0 … size − 1 with a name. Worlds of role ::XM_ROLE_SOURCE
 * (trainers) offer versions, those of role ::XM_ROLE_TARGET (servers) take them. They know an
 * address only, at which one process has opened a *place*; nobody knows how many others there are.
 *
 * When all ranks of a source have offered a version (::XM_MEETING_READY) and all ranks of every
 * target that is complete are ready for one, the place calls a *round*: it tells each of them its
 * rank in a job of all, the source's ranks first. They make that job (the event has its
 * table), or use again that of the last round with the same group number, move the data, and say
 * how it ended (::XM_MEETING_DONE). Then the place settles it: ::XM_MEETING_SETTLED comes to all.
 *
 * Members come and go between rounds and in them. A target that misses a rank is left out until it
 * is complete again, so nobody waits for the dead. A round in which a rank died is called anew
 * without its world. A target that comes late gets the newest version from another target that has
 * it, in a round without the source, or else takes part in the next. Worlds of role ::XM_ROLE_PEER
 * are a round by themselves as soon as they are ready: so ranks meet that only want a job.
 *
 * @code
 *     // Waits for one round and makes its job; the caller moves data in it, then says
 *     // XM_MEETING_DONE and asks for events until the round is settled.
 *     xm_status_t next_job(xm_meeting_t *meeting, int64_t version, xm_worker_t **worker)
 *     {
 *         xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
 *         xm_meeting_event_t event = XM_MEETING_EVENT_INIT;
 *         xm_status_t status = xm_meeting_say(meeting, XM_MEETING_READY, version, NULL);
 *
 *         if (status == XM_OK) {
 *             status = xm_meeting_next(meeting, 60.0, &event);
 *         }
 *         if (status == XM_OK && event.kind == XM_MEETING_ROUND) {
 *             params.oob = event.oob;
 *             status = xm_worker_create(NULL, &params, worker);
 *         }
 *         return status;
 *     }
 * @endcode
 *
 * Who may join: whoever proves to know the secret (docs/launching.md), and has the same version of
 * crossmesh. Every refusal is one sentence, on all ranks of the world.
 *
 * Threads: xm_meeting_say() may be called while another thread is in any other function of the same
 * meeting; the others by one thread at a time.
 */
#ifndef CROSSMESH_MEETING_H
#define CROSSMESH_MEETING_H

#include <stdint.h>

#include <crossmesh/worker.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What a world does at a meeting. */
typedef enum xm_role { XM_ROLE_SOURCE, XM_ROLE_TARGET, XM_ROLE_PEER } xm_role_t;

/** Where members meet; a thread of the process that has opened it. */
typedef struct xm_place xm_place_t;

/** One process's membership. */
typedef struct xm_meeting xm_meeting_t;

/**
 * Opens a place at @p address, "tcp://host:port"; port 0 is a free one, and @p port (may be NULL)
 * gets its number. @p secret, of 16 to 1024 characters, is what members have to know; NULL:
 * XM_JOB_SECRET or XM_JOB_SECRET_FILE.
 */
XM_API xm_status_t xm_place_open(const char *address, const char *secret, xm_place_t **place,
                                 int *port);

/** Ends the meeting for all who are still there. NULL is accepted. */
XM_API void xm_place_close(xm_place_t *place);

/** Who joins. Start from ::XM_MEETING_PARAMS_INIT. */
typedef struct xm_meeting_params {
    size_t struct_size;
    const char *address; /**< of the place, "tcp://host:port" */
    const char *world;   /**< the launch's name, equal on its ranks and no other's */
    xm_role_t role;
    int rank; /**< in the world; −1: the last that is free */
    int size; /**< of the world */
    const char *secret;
    int64_t version; /**< target: what it has, −1: nothing yet */
    bool passes_on;  /**< target: its data may be read for others while it is not ready */
    int targets;     /**< source: complete targets that its first round waits for */
    double timeout;  /**< seconds for the world to come together, and that a source waits for
                          targets that are there; 0: XM_TIMEOUT */
    double skew;     /**< seconds in which all ranks of a world say that they are ready */
} xm_meeting_params_t;

/** Initialiser of an ::xm_meeting_params_t. */
#define XM_MEETING_PARAMS_INIT                                                                     \
    {                                                                                              \
        sizeof(xm_meeting_params_t), NULL, NULL, XM_ROLE_PEER, 0, 1, NULL, -1, false, 1, 0.0, 4.0  \
    }

/**
 * Joins the meeting; returns when the world is complete, with this process's @p rank in it (may be
 * NULL). XM_ERR_TIMEOUT names the ranks that have not come, XM_ERR_MISMATCH what differs: secret,
 * version of crossmesh, size, a rank that is taken.
 */
XM_API xm_status_t xm_meeting_join(const xm_meeting_params_t *params, xm_meeting_t **meeting,
                                   int *rank);

/** What members say. */
typedef enum xm_meeting_word {
    /** A source offers version @p number, which is larger than the last, and leaves its data alone
     * until that is settled; a target (the number does not count) lets its data be overwritten
     * until then. All ranks of the world say it. */
    XM_MEETING_READY,
    /** Takes that back, for the whole world. In a round the caller ends the job as well (group.h);
     * targets then wait for a version that is whole. */
    XM_MEETING_CANCEL,
    /** This rank's part of the round has ended, with status @p number and, where that is a failure,
     * @p sentence. */
    XM_MEETING_DONE
} xm_meeting_word_t;

/** Says that to the place; does not wait. @p sentence may be NULL. */
XM_API xm_status_t xm_meeting_say(xm_meeting_t *meeting, xm_meeting_word_t word, int64_t number,
                                  const char *sentence);

/** What the place has to say. */
typedef enum xm_meeting_kind { XM_MEETING_ROUND, XM_MEETING_SETTLED } xm_meeting_kind_t;

typedef struct xm_meeting_event {
    size_t struct_size;
    xm_meeting_kind_t kind;
    int64_t version;
    int64_t group;       /**< round: equal when the job of the last round with it serves again */
    int rank, size;      /**< round: in the job */
    int senders;         /**< round: ranks 0 … senders − 1 have the data */
    const xm_oob_t *oob; /**< round: the table through which its ranks meet (xm_worker_params_t),
                              for one job; valid as long as the meeting */
    int targets;         /**< settled, of a source: complete targets that have the version now */
    xm_status_t status;  /**< settled: XM_OK, or why not; then the sentence is xm_last_error() */
} xm_meeting_event_t;

#define XM_MEETING_EVENT_INIT                                                                      \
    {                                                                                              \
        sizeof(xm_meeting_event_t), XM_MEETING_ROUND, 0, 0, 0, 0, 0, NULL, 0, XM_OK                \
    }

/** Waits for @p timeout seconds; XM_IN_PROGRESS when nothing has come. A failure ends the meeting
 * for this process: XM_ERR_CANCELED when the place has been closed, XM_ERR_PEER_DIED when it is
 * gone. */
XM_API xm_status_t xm_meeting_next(xm_meeting_t *meeting, double timeout,
                                   xm_meeting_event_t *event);

/** Leaves. NULL is accepted. */
XM_API void xm_meeting_leave(xm_meeting_t *meeting);

#ifdef __cplusplus
}
#endif

#endif
