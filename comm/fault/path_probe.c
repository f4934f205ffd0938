/* SPDX-License-Identifier: Apache-2.0 */
/* The path probe: finds peers that live but whose messages do not get through. The heartbeat
 * may use other wires than the transport, so nothing but a message through the transport can
 * show that the path works. The hard part is not to blame a peer that merely computes, since
 * its thread would not receive the probe either: it counts only as much time as the peer's
 * heartbeats report activity of that very thread. Everything here runs from inside waits of the
 * application's thread, to which the transport belongs. */
#include "comm/fault/path_probe.h"

#include <stdio.h>
#include <stdlib.h>

/* Two of the tags that belong to the worker: a probe's question and its answer. */
#define TAG_QUESTION XM_TRANSPORT_TAG_OWN
#define TAG_ANSWER   (XM_TRANSPORT_TAG_OWN | UINT64_C(1) << 32)

/* A message of one byte. */
typedef struct {
    xm_op_t op;
    bool busy;
    xm_status_t status;
    char byte;
} byte_t;

/* The states of a doubt. CONTENT: nothing is wrong. ASKED: the peer was asked, by heartbeat, to
 * post the receive for the probe. SENT: it has, and the probe is on its way. */
typedef enum { CONTENT, ASKED, SENT } doubt_t;

typedef struct {
    /* As the rank that doubts. */
    bool waits;
    uint64_t moved;
    int64_t since; /* nothing has moved */
    doubt_t doubt;
    uint32_t probe;     /* number of the last */
    unsigned signs;     /* of life that the heartbeat has counted */
    int shown;          /* of these since the probe was sent, at most one an interval */
    int64_t next_sign;  /* when the next one counts */
    unsigned gaps;      /* silences that the heartbeat has counted */
    int64_t patient_to; /* nobody is blamed before */
    byte_t question, answer;
    /* As the rank that is doubted. */
    uint32_t wanted, ready;
    byte_t asked, answered;
} slot_t;

struct xm_path_probe {
    xm_transport_t *transport;
    xm_detector_t *detector;
    const xm_endpoints_t *endpoints;
    const int *job_rank;
    int64_t interval, doubtful; /* the latter: waiting for so long, a rank is doubted */
    int64_t next;
    slot_t *slots;
};

static void on_byte(xm_op_t *op, xm_status_t status)
{
    byte_t *byte = op->arg;

    byte->busy = false;
    byte->status = status;
}

/* Posts one byte. What the transport refuses ends like an operation that has failed. */
static void post_byte(const xm_path_probe_t *self, int rank, byte_t *byte, uint64_t tag, bool send)
{
    xm_status_t status;

    byte->op.done = on_byte;
    byte->op.arg = byte;
    byte->busy = true;
    status =
        send ? xm_transport_send(self->transport, rank, tag, &byte->byte, 1, NULL, &byte->op)
             : xm_transport_receive(self->transport, rank, tag, &byte->byte, 1, NULL, &byte->op);
    if (status != XM_IN_PROGRESS) {
        on_byte(&byte->op, status);
    }
}

xm_status_t xm_path_probe_create(xm_transport_t *transport, xm_detector_t *detector,
                                 const xm_endpoints_t *endpoints, const int *job_rank,
                                 double interval, xm_path_probe_t **path_probe)
{
    xm_path_probe_t *self = calloc(1, sizeof(*self));

    if (self != NULL) {
        self->slots = calloc((size_t)transport->size, sizeof(*self->slots));
    }
    if (self == NULL || self->slots == NULL) {
        free(self);
        return XM_NO_MEMORY("watching %d ranks", transport->size);
    }
    self->transport = transport;
    self->detector = detector;
    self->endpoints = endpoints;
    self->job_rank = job_rank;
    self->interval = (int64_t)(interval * 1e9);
    self->doubtful = self->interval / 2;
    *path_probe = self;
    return XM_OK;
}

void xm_path_probe_destroy(xm_path_probe_t *path_probe)
{
    if (path_probe != NULL) {
        free(path_probe->slots);
        free(path_probe);
    }
}

/* Ends a doubt, or puts off the next one. A probe that is under way stays so, because its
 * operations cannot be taken back. */
static void end_doubt(xm_path_probe_t *self, int rank, int64_t now)
{
    slot_t *slot = &self->slots[rank];

    slot->since = slot->patient_to = now;
    slot->shown = 0;
    slot->signs = xm_detector_signs(self->detector, self->job_rank[rank]);
    if (slot->doubt == ASKED || (slot->doubt == SENT && !slot->answer.busy)) {
        slot->doubt = CONTENT;
    }
    xm_detector_watch(self->detector, self->job_rank[rank], false);
}

/* Each doubt has a new probe number, so an answer to an earlier one cannot be mistaken for this
 * one's. */
static void begin_doubt(xm_path_probe_t *self, int rank)
{
    slot_t *slot = &self->slots[rank];

    slot->doubt = ASKED;
    ++slot->probe;
    xm_detector_want_probe(self->detector, self->job_rank[rank], slot->probe);
}

/* The answer's receive is posted before the question is sent, so it cannot come too early. */
static void send_probe(xm_path_probe_t *self, int rank, int64_t now)
{
    slot_t *slot = &self->slots[rank];

    if (slot->question.busy) {
        return; /* the one before has not left yet */
    }
    slot->doubt = SENT;
    slot->shown = 0;
    slot->signs = xm_detector_signs(self->detector, self->job_rank[rank]);
    slot->gaps = xm_detector_heed(self->detector, self->job_rank[rank]);
    slot->next_sign = slot->patient_to = now;
    post_byte(self, rank, &slot->answer, TAG_ANSWER | slot->probe, false);
    post_byte(self, rank, &slot->question, TAG_QUESTION | slot->probe, true);
}

/* The sentence says that the peer lives and how its messages were to go, because that is what
 * tells a lost link from a death. */
static void blame(const xm_path_probe_t *self, int rank, int64_t now, xm_bootstrap_fault_t *fault)
{
    const xm_endpoint_t *there = &self->endpoints->of[self->job_rank[rank]];
    char path[128];

    xm_transport_path(self->transport, rank, path, sizeof(path));
    fault->rank = rank;
    fault->status = XM_ERR_PEER_DIED;
    (void)snprintf(fault->sentence, sizeof(fault->sentence),
                   "rank %d (host %s, pid %d) lives, but no message has passed between it and rank "
                   "%d (host %s) for %.1f s%s%s: the link is down or the connection was lost",
                   rank, there->host, there->pid, self->transport->rank,
                   self->endpoints->of[self->endpoints->rank].host,
                   (double)(now - self->slots[rank].since) * 1e-9, path[0] != '\0' ? " over " : "",
                   path);
}

/*
 * Whether the probe should have come through by now. TCP waits about as long for each further
 * attempt as it has tried in all, and is not told that a link is up again: after a gap that the
 * heartbeat has met, two more attempts have their time, since it may miss a short one. The lower
 * one of two ranks that doubt each other speaks first, so that all hear one story.
 */
static bool has_had_time(const xm_path_probe_t *self, int rank, int64_t now)
{
    slot_t *slot = &self->slots[rank];
    unsigned signs = xm_detector_signs(self->detector, self->job_rank[rank]);
    unsigned gaps = xm_detector_heed(self->detector, self->job_rank[rank]);

    if (gaps != slot->gaps) {
        int64_t long_enough = 4 * (now - slot->since) + self->interval;
        int64_t most = self->interval * XM_PATH_PROBE_MOST;

        slot->gaps = gaps;
        slot->patient_to = slot->since + (long_enough < most ? long_enough : most);
    }
    if (signs != slot->signs && now >= slot->next_sign) {
        slot->signs = signs;
        slot->next_sign = now + self->interval;
        ++slot->shown;
    }
    return slot->shown >= XM_PATH_PROBE_SIGNS + (rank < self->transport->rank) &&
           now >= slot->patient_to;
}

/* Looks at one peer. Any operation that moves ends the doubt. Otherwise, after half an
 * interval, the peer is asked after directly and a probe is prepared; and it is blamed when its
 * own heartbeats have shown often enough that its thread looked after its transport while the
 * probe did not come through. */
static void look_at(xm_path_probe_t *self, int rank, int64_t now, xm_bootstrap_fault_t *fault)
{
    slot_t *slot = &self->slots[rank];
    uint64_t moved;
    bool waits = xm_transport_waits(self->transport, rank, &moved);

    if (slot->doubt == SENT && !slot->answer.busy) {
        end_doubt(self, rank, now); /* answered, or ended with the peer */
    }
    if (!waits || !slot->waits || moved != slot->moved) {
        if (slot->waits || slot->doubt != CONTENT) {
            end_doubt(self, rank, now);
        }
        slot->since = now;
        slot->waits = waits;
        slot->moved = moved;
        return;
    }
    if (now - slot->since >= self->doubtful) {
        xm_detector_watch(self->detector, self->job_rank[rank], true);
        if (slot->doubt == CONTENT) {
            begin_doubt(self, rank);
        }
    }
    if (slot->doubt == ASKED &&
        xm_detector_is_ready(self->detector, self->job_rank[rank], slot->probe)) {
        send_probe(self, rank, now);
    }
    if (slot->doubt == SENT && slot->answer.busy && has_had_time(self, rank, now)) {
        blame(self, rank, now, fault);
    }
}

/* The part of the rank that is doubted: it posts the receive, says that it is ready, and
 * answers when the probe has come. A new wish first cancels the receive of the old one. */
static void serve(xm_path_probe_t *self, int rank)
{
    slot_t *slot = &self->slots[rank];

    if (slot->wanted != slot->ready && slot->asked.busy) {
        xm_transport_cancel(self->transport, &slot->asked.op); /* of a doubt that has passed */
    } else if (slot->wanted != slot->ready) {
        slot->ready = slot->wanted;
        post_byte(self, rank, &slot->asked, TAG_QUESTION | slot->ready, false);
        xm_detector_set_ready(self->detector, self->job_rank[rank], slot->ready);
        slot->answered.status = XM_IN_PROGRESS; /* due */
    }
    if (slot->ready != 0 && !slot->asked.busy && !slot->answered.busy &&
        slot->asked.status == XM_OK && slot->answered.status == XM_IN_PROGRESS) {
        post_byte(self, rank, &slot->answered, TAG_ANSWER | slot->ready, true);
    }
}

/* The heartbeat names ranks of the job as it began; the transport has those of the group. */
void xm_path_probe_on_news(xm_path_probe_t *path_probe)
{
    int job_rank;
    uint32_t probe;

    while (xm_detector_wanted(path_probe->detector, &job_rank, &probe)) {
        for (int rank = 0; rank < path_probe->transport->size; ++rank) {
            if (path_probe->job_rank[rank] == job_rank && rank != path_probe->transport->rank) {
                path_probe->slots[rank].wanted = probe;
            }
        }
    }
    path_probe->next = 0;
}

/* Serves others in each call, since that is cheap and they are waiting; looks at its own peers
 * twice per timeout only, which involves a scan. */
int64_t xm_path_probe_look(xm_path_probe_t *path_probe, int64_t now, xm_bootstrap_fault_t *fault)
{
    fault->status = XM_OK;
    xm_detector_active(path_probe->detector);
    for (int rank = 0; rank < path_probe->transport->size; ++rank) {
        if (rank != path_probe->transport->rank &&
            (path_probe->slots[rank].ready != 0 || path_probe->slots[rank].wanted != 0)) {
            serve(path_probe, rank);
        }
    }
    if (now < path_probe->next) {
        return path_probe->next;
    }
    path_probe->next = now + path_probe->doubtful / 2;
    for (int rank = 0; rank < path_probe->transport->size && fault->status == XM_OK; ++rank) {
        if (rank != path_probe->transport->rank) {
            look_at(path_probe, rank, now, fault);
        }
    }
    return path_probe->next;
}
