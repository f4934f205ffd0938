/* SPDX-License-Identifier: Apache-2.0 */
/* How the survivors of a group find each other again. Everybody acts on the same rule, that the
 * lowest rank not known to be gone is where to meet, so a rank that knows less than others still
 * ends up at the right place. Frames may get lost, so nothing is said once: a member repeats its
 * hello until it is answered, with what it has found out since; the centre counts only hellos that
 * are fresh, for a rank may have given up meanwhile. All loops are bounded by the deadline. */
#include "comm/fault/regroup.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/fault/quorum.h"

/* LOOK_MS: the longest sleep between two looks. GRACE_S: a member waits this much longer than its
 * deadline, because the centre is about to say who is missing. REPEATS: how often a centre says
 * that it gives up. */
enum { LOOK_MS = 50, REPEATS = 3 };
static const double GRACE_S = 1.0;

typedef struct {
    const xm_regroup_params_t *params;
    int size, rank;
    bool *out;
    uint32_t generation;
    uint8_t *table;       /* of the frame in hand */
    uint8_t *rows;        /* what every rank says of every rank; … */
    const uint8_t **said; /* … by rank, NULL: nothing */
    bool *refused;        /* centres that have resigned */
    bool *chosen;
    int *host;
    double deadline;
    bool joined; /* the welcome has come, or was given */
    xm_arena_t arena;
} meeting_t;

static uint8_t *row_of(const meeting_t *meeting, int rank)
{
    return meeting->rows + (size_t)rank * (size_t)meeting->size;
}

static int host_of(const meeting_t *meeting, int rank)
{
    return meeting->params->endpoints->of[rank].host_number;
}

/* Writes the own row. */
static void look_around(meeting_t *meeting)
{
    const xm_regroup_params_t *params = meeting->params;
    uint8_t *own = row_of(meeting, meeting->rank);

    for (int rank = 0; rank < meeting->size; ++rank) {
        own[rank] = (uint8_t)xm_detector_standing(params->detector, rank);
        if (rank == meeting->rank) {
            continue;
        }
        if (params->cut[rank] && own[rank] != XM_STANDING_CLOSED) {
            own[rank] = XM_STANDING_CUT;
        }
        if (meeting->out[rank] || params->excluded[rank]) {
            own[rank] = XM_STANDING_OUT;
        }
    }
    meeting->said[meeting->rank] = own;
}

/* The lowest rank that lives, as far as this one knows, and has not refused. */
static int centre_of(const meeting_t *meeting)
{
    const uint8_t *own = meeting->said[meeting->rank];

    for (int rank = 0; rank < meeting->rank; ++rank) {
        if (own[rank] <= XM_STANDING_UNKNOWN && !meeting->refused[rank]) {
            return rank;
        }
    }
    return meeting->rank;
}

static void say(meeting_t *meeting, int rank, xm_frame_type_t type)
{
    xm_frame_t frame = {
        .type = type, .generation = meeting->generation, .standing = meeting->table};

    xm_detector_say(meeting->params->detector, rank, &frame);
}

/* @p about: the rank that stays out: the one that is told, or this one. */
static void refuse(const meeting_t *meeting, int rank, int about, xm_status_t status,
                   const char *sentence)
{
    xm_frame_t frame = {.type = XM_FRAME_REFUSAL, .fault = {.rank = about, .status = status}};

    (void)snprintf(frame.fault.sentence, sizeof(frame.fault.sentence), "%s", sentence);
    xm_detector_say(meeting->params->detector, rank, &frame);
}

/* Lists the ranks for which `which` is true. */
static int list_ranks(const meeting_t *meeting, bool (*which)(const meeting_t *, int), char *text,
                      size_t size)
{
    int count = 0;

    text[0] = '\0';
    for (int rank = 0; rank < meeting->size; ++rank) {
        if (which(meeting, rank)) {
            xm_bootstrap_list_rank(text, size, rank, &count);
        }
    }
    return count;
}

/* A member is there when it has come, and has found all others and been found by them. */
static bool is_missing(const meeting_t *meeting, int rank)
{
    bool missing = meeting->said[rank] == NULL;

    for (int other = 0; other < meeting->size && !missing; ++other) {
        missing = meeting->chosen[other] && other != rank && meeting->said[other] != NULL &&
                  (meeting->said[rank][other] != XM_STANDING_WELL ||
                   meeting->said[other][rank] != XM_STANDING_WELL);
    }
    return meeting->chosen[rank] && missing;
}

static bool is_chosen(const meeting_t *meeting, int rank)
{
    return meeting->chosen[rank];
}

static bool is_apart(const meeting_t *meeting, int rank)
{
    const uint8_t *own = meeting->said[meeting->rank];

    return !meeting->chosen[rank] && own[rank] != XM_STANDING_CLOSED &&
           own[rank] != XM_STANDING_OUT;
}

/* The centre takes the fresh hellos into its table. */
static void hear_hellos(meeting_t *meeting)
{
    int64_t age = xm_detector_interval(meeting->params->detector);
    xm_frame_t frame;

    for (int rank = 0; rank < meeting->size; ++rank) {
        if (rank == meeting->rank || meeting->out[rank]) {
            continue;
        }
        meeting->said[rank] = NULL;
        if (!xm_detector_heard(meeting->params->detector, rank, age, &frame,
                               row_of(meeting, rank)) ||
            frame.type != XM_FRAME_HELLO) {
            continue;
        }
        meeting->said[rank] = row_of(meeting, rank);
        if (frame.generation > meeting->generation) {
            meeting->generation = frame.generation;
        }
    }
}

/* True when nobody who has come is still undecided about a rank that others are cut off from: who
 * is to go depends on whether all are cut off from it or some. */
static bool is_settled(const meeting_t *meeting)
{
    for (int rank = 0; rank < meeting->size; ++rank) {
        bool cut = false, unknown = false;

        for (int other = 0; other < meeting->size; ++other) {
            if (meeting->said[other] != NULL && other != rank) {
                cut = cut || meeting->said[other][rank] == XM_STANDING_CUT;
                unknown = unknown || meeting->said[other][rank] == XM_STANDING_UNKNOWN;
            }
        }
        if (cut && unknown) {
            return false;
        }
    }
    return true;
}

/* Tells everybody who has come that there is no group here, and returns the failure. A centre that
 * resigns leaves the others to the next one. */
static xm_status_t dissolve(const meeting_t *meeting, xm_status_t status, bool resigns)
{
    xm_error_t error;

    xm_error_save(&error, status);
    for (int i = 0; i < REPEATS; ++i) {
        for (int rank = 0; rank < meeting->size; ++rank) {
            if (rank != meeting->rank && meeting->said[rank] != NULL) {
                refuse(meeting, rank, resigns ? meeting->rank : rank, status, error.sentence);
            }
        }
    }
    return xm_error_restore(&error);
}

/* Welcomes the members, and refuses the others. */
static void welcome(meeting_t *meeting)
{
    ++meeting->generation;
    for (int rank = 0; rank < meeting->size; ++rank) {
        meeting->table[rank] = meeting->chosen[rank] ? XM_STANDING_WELL : XM_STANDING_OUT;
    }
    for (int rank = 0; rank < meeting->size; ++rank) {
        if (rank == meeting->rank || meeting->said[rank] == NULL) {
            continue;
        }
        if (meeting->chosen[rank]) {
            say(meeting, rank, XM_FRAME_WELCOME);
        } else {
            refuse(meeting, rank, rank, XM_ERR_PEER_DIED,
                   "the others go on without this rank, which not all of them can reach");
        }
    }
    meeting->joined = true;
}

/* Fails when the group that was chosen is too small. */
static xm_status_t check_size(const meeting_t *meeting)
{
    const xm_regroup_params_t *params = meeting->params;
    char members[96], apart[96];
    int count = list_ranks(meeting, is_chosen, members, sizeof(members));
    int others = xm_quorum_others(meeting->size, meeting->said[meeting->rank], meeting->host,
                                  meeting->chosen);

    if (params->least > 0 ? count >= params->least : count > others) {
        return XM_OK;
    }
    (void)list_ranks(meeting, is_apart, apart, sizeof(apart));
    if (params->least > 0) {
        return xm_error_set(XM_ERR_UNREACHABLE,
                            "only %d ranks of the job are left (%s), and %d are wanted; cut off or "
                            "hanging: %s",
                            count, members, params->least, apart[0] != '\0' ? apart : "none");
    }
    return xm_error_set(XM_ERR_UNREACHABLE,
                        "the network has split: ranks %s of the job (host %s) cannot reach ranks "
                        "%s, and are not more than half",
                        members, params->endpoints->of[meeting->rank].host, apart);
}

/* The centre's part. */
static xm_status_t preside(meeting_t *meeting)
{
    char text[96];
    xm_status_t status;

    hear_hellos(meeting);
    status = xm_quorum_choose(meeting->size, meeting->rank, meeting->said, meeting->chosen);
    if (status < 0 || !is_settled(meeting)) {
        return status;
    }
    if (!meeting->chosen[meeting->rank]) {
        return dissolve(
            meeting,
            xm_error_set(XM_ERR_PEER_DIED, "the others go on without rank %d of the job (host %s)",
                         meeting->rank, meeting->params->endpoints->of[meeting->rank].host),
            true);
    }
    if (list_ranks(meeting, is_missing, text, sizeof(text)) > 0) {
        return XM_OK;
    }
    status = check_size(meeting);
    if (status < 0) {
        return dissolve(meeting, status, false);
    }
    welcome(meeting);
    return XM_OK;
}

/* A member's part: says hello, and hears what the centre says. A refusal that names this rank is
 * meant for it; another one says that the centre itself is out of it. */
static xm_status_t attend(meeting_t *meeting, int centre)
{
    int64_t age = xm_detector_interval(meeting->params->detector);
    xm_frame_t frame;

    memcpy(meeting->table, meeting->said[meeting->rank], (size_t)meeting->size);
    say(meeting, centre, XM_FRAME_HELLO);
    for (int rank = 0; rank < meeting->size; ++rank) {
        if (rank == meeting->rank || meeting->out[rank] ||
            !xm_detector_heard(meeting->params->detector, rank, age, &frame, meeting->table)) {
            continue;
        }
        if (frame.type == XM_FRAME_REFUSAL && frame.fault.rank == meeting->rank) {
            return xm_error_set(frame.fault.status, "%s", frame.fault.sentence);
        }
        meeting->refused[rank] = meeting->refused[rank] || frame.type == XM_FRAME_REFUSAL;
        if (frame.type == XM_FRAME_WELCOME && frame.generation > meeting->generation &&
            meeting->table[meeting->rank] == XM_STANDING_WELL) {
            for (int other = 0; other < meeting->size; ++other) {
                meeting->chosen[other] = meeting->table[other] == XM_STANDING_WELL;
            }
            meeting->generation = frame.generation;
            meeting->joined = true;
            return XM_OK;
        }
    }
    return XM_OK;
}

/* Gives up at the deadline, naming the ranks that live but did not come. The centre tells those
 * that did come, so that all fail with one sentence. */
static xm_status_t give_up(meeting_t *meeting, int centre)
{
    char list[128];
    int missing;

    if (centre != meeting->rank) {
        return xm_error_set(XM_ERR_TIMEOUT,
                            "shrink timed out after %g s: rank %d of the job (host %s), where the "
                            "others meet, has not answered rank %d",
                            meeting->params->timeout, centre,
                            meeting->params->endpoints->of[centre].host, meeting->rank);
    }
    missing = list_ranks(meeting, is_missing, list, sizeof(list));
    return dissolve(meeting,
                    xm_error_set(XM_ERR_TIMEOUT,
                                 "shrink timed out after %g s: %d ranks live but have not called "
                                 "it: %s",
                                 meeting->params->timeout, missing, list),
                    false);
}

/* The loop. What is known is determined anew in each round, and with it the meeting place may
 * change. */
static xm_status_t meet(meeting_t *meeting)
{
    xm_detector_t *detector = meeting->params->detector;
    int pause = (int)(xm_detector_interval(detector) / (8 * 1000000));
    xm_status_t status = XM_OK;

    while (status == XM_OK && !meeting->joined) {
        struct pollfd entry = {.fd = xm_detector_fd(detector), .events = POLLIN};
        int centre;

        (void)xm_detector_take_news(detector);
        look_around(meeting);
        centre = centre_of(meeting);
        status = centre == meeting->rank ? preside(meeting) : attend(meeting, centre);
        if (status < 0 || meeting->joined) {
            break;
        }
        if (xm_clock_seconds() > meeting->deadline + (centre == meeting->rank ? 0.0 : GRACE_S)) {
            return give_up(meeting, centre);
        }
        (void)poll(&entry, 1, pause < LOOK_MS ? pause : LOOK_MS);
    }
    return status;
}

/* Begins the new group, numbered in the order of the old ranks, and makes its bootstrap, which
 * gets its connections from the detector. */
static xm_status_t found(meeting_t *meeting, xm_bootstrap_t **bootstrap)
{
    const xm_regroup_params_t *params = meeting->params;
    xm_bootstrap_slot_t *slots = calloc((size_t)meeting->size, sizeof(*slots));
    int *rank_of = calloc((size_t)meeting->size, sizeof(*rank_of)), count = 0;
    xm_status_t status = XM_OK;

    if (slots == NULL || rank_of == NULL) {
        status = XM_NO_MEMORY("a group of %d ranks", meeting->size);
    }
    for (int rank = 0; rank < meeting->size && status == XM_OK; ++rank) {
        const xm_endpoint_t *endpoint = &params->endpoints->of[rank];

        meeting->out[rank] = !meeting->chosen[rank];
        rank_of[rank] = meeting->chosen[rank] ? count : -1;
        if (meeting->chosen[rank]) {
            slots[count++] = (xm_bootstrap_slot_t){.pid = endpoint->pid, .host = endpoint->host};
        }
    }
    if (status == XM_OK) {
        xm_bootstrap_guard_t guard = xm_detector_guard(params->detector);

        xm_detector_begin(params->detector, meeting->generation, rank_of);
        status = xm_bootstrap_adopt(rank_of[meeting->rank], count, slots, &guard, bootstrap);
    }
    free(rank_of);
    free(slots);
    return status;
}

static xm_status_t prepare(meeting_t *meeting)
{
    size_t size = (size_t)meeting->size;

    meeting->table = xm_arena_get(&meeting->arena, size, 1);
    meeting->rows = xm_arena_get(&meeting->arena, size, size);
    meeting->said = xm_arena_get(&meeting->arena, size, sizeof(*meeting->said));
    meeting->refused = xm_arena_get(&meeting->arena, size, sizeof(*meeting->refused));
    meeting->chosen = xm_arena_get(&meeting->arena, size, sizeof(*meeting->chosen));
    meeting->host = xm_arena_get(&meeting->arena, size, sizeof(*meeting->host));
    XM_NEED_MEMORY(!meeting->arena.failed, "regrouping %d ranks", meeting->size);
    for (int rank = 0; rank < meeting->size; ++rank) {
        meeting->host[rank] = host_of(meeting, rank);
    }
    return XM_OK;
}

/* Regroups. All state is local to the call, so a failed attempt leaves nothing behind. */
xm_status_t xm_regroup(const xm_regroup_params_t *params, bool *out, xm_bootstrap_t **bootstrap,
                       uint32_t *generation)
{
    meeting_t meeting = {.params = params,
                         .size = params->endpoints->size,
                         .rank = params->endpoints->rank,
                         .out = out,
                         .generation = params->generation,
                         .deadline = xm_clock_seconds() + params->timeout};
    xm_status_t status = prepare(&meeting);

    if (status == XM_OK) {
        xm_detector_convene(params->detector, out);
        status = meet(&meeting);
    }
    XM_THEN(status, found(&meeting, bootstrap));
    if (status == XM_OK) {
        *generation = meeting.generation;
    }
    xm_arena_clear(&meeting.arena);
    return status;
}
