#include "comm/fault/vigil.h"

#include <stdio.h>
#include <stdlib.h>

/* Of the tags that belong to the worker: a probe's question and its answer. */
#define TAG_QUESTION XM_TRANSPORT_TAG_OWN
#define TAG_ANSWER   (XM_TRANSPORT_TAG_OWN | UINT64_C(1) << 32)

/* A message of one byte. */
typedef struct {
    xm_op_t op;
    bool busy;
    xm_status_t status;
    char byte;
} byte_t;

typedef enum { CONTENT, ASKED, SENT } doubt_t;

typedef struct {
    /* As the one who doubts. */
    bool waits;
    uint64_t moved;
    int64_t since; /* nothing has moved */
    doubt_t doubt;
    uint32_t probe; /* number of the last */
    unsigned signs; /* of life that the heartbeat had counted when the probe was sent */
    byte_t question, answer;
    /* As the one who is doubted. */
    uint32_t wanted, ready;
    byte_t asked, answered;
} seat_t;

struct xm_vigil {
    xm_transport_t *transport;
    xm_heartbeat_t *heartbeat;
    const xm_contacts_t *contacts;
    const int *job_rank;
    int64_t patience; /* until a rank is doubted */
    int64_t next;
    seat_t *seats;
};

static void on_byte(xm_op_t *op, xm_status_t status)
{
    byte_t *byte = op->arg;

    byte->busy = false;
    byte->status = status;
}

static void post_byte(const xm_vigil_t *self, int rank, byte_t *byte, uint64_t tag, bool send)
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

xm_status_t xm_vigil_create(xm_transport_t *transport, xm_heartbeat_t *heartbeat,
                            const xm_contacts_t *contacts, const int *job_rank, double interval,
                            xm_vigil_t **vigil)
{
    xm_vigil_t *self = calloc(1, sizeof(*self));

    if (self != NULL) {
        self->seats = calloc((size_t)transport->size, sizeof(*self->seats));
    }
    if (self == NULL || self->seats == NULL) {
        free(self);
        return xm_error_set(XM_ERR_NO_MEMORY, "no memory to watch %d ranks", transport->size);
    }
    self->transport = transport;
    self->heartbeat = heartbeat;
    self->contacts = contacts;
    self->job_rank = job_rank;
    self->patience = (int64_t)(interval * 0.5e9);
    *vigil = self;
    return XM_OK;
}

void xm_vigil_destroy(xm_vigil_t *vigil)
{
    if (vigil != NULL) {
        free(vigil->seats);
        free(vigil);
    }
}

/* Nothing to doubt any more, or not yet again. A probe that is under way stays so. */
static void end_doubt(xm_vigil_t *self, int rank, int64_t now)
{
    seat_t *seat = &self->seats[rank];

    seat->since = now;
    seat->signs = xm_heartbeat_signs(self->heartbeat, self->job_rank[rank]);
    if (seat->doubt == ASKED || (seat->doubt == SENT && !seat->answer.busy)) {
        seat->doubt = CONTENT;
    }
    xm_heartbeat_watch(self->heartbeat, self->job_rank[rank], false);
}

static void begin_doubt(xm_vigil_t *self, int rank)
{
    seat_t *seat = &self->seats[rank];

    seat->doubt = ASKED;
    ++seat->probe;
    xm_heartbeat_want_probe(self->heartbeat, self->job_rank[rank], seat->probe);
}

static void send_probe(xm_vigil_t *self, int rank)
{
    seat_t *seat = &self->seats[rank];

    if (seat->question.busy) {
        return; /* the one before has not left yet */
    }
    seat->doubt = SENT;
    seat->signs = xm_heartbeat_signs(self->heartbeat, self->job_rank[rank]);
    post_byte(self, rank, &seat->answer, TAG_ANSWER | seat->probe, false);
    post_byte(self, rank, &seat->question, TAG_QUESTION | seat->probe, true);
}

static void blame(const xm_vigil_t *self, int rank, int64_t now, xm_bootstrap_fault_t *fault)
{
    const xm_contact_t *there = &self->contacts->of[self->job_rank[rank]];
    char path[128];

    xm_transport_path(self->transport, rank, path, sizeof(path));
    fault->rank = rank;
    fault->status = XM_ERR_PEER_DIED;
    (void)snprintf(fault->sentence, sizeof(fault->sentence),
                   "rank %d (host %s, pid %d) lives, but no message has passed between it and rank "
                   "%d (host %s) for %.1f s%s%s: the link is down or the connection was lost",
                   rank, there->host, there->pid, self->transport->rank,
                   self->contacts->of[self->contacts->rank].host,
                   (double)(now - self->seats[rank].since) * 1e-9, path[0] != '\0' ? " over " : "",
                   path);
}

/* One whom this rank may wait for. */
static void look_at(xm_vigil_t *self, int rank, int64_t now, xm_bootstrap_fault_t *fault)
{
    seat_t *seat = &self->seats[rank];
    uint64_t moved;
    bool waits = xm_transport_waits(self->transport, rank, &moved);

    if (seat->doubt == SENT && !seat->answer.busy) {
        end_doubt(self, rank, now); /* answered, or ended with the peer */
    }
    if (!waits || !seat->waits || moved != seat->moved) {
        if (seat->waits || seat->doubt != CONTENT) {
            end_doubt(self, rank, now);
        }
        seat->since = now;
        seat->waits = waits;
        seat->moved = moved;
        return;
    }
    if (now - seat->since >= self->patience) {
        xm_heartbeat_watch(self->heartbeat, self->job_rank[rank], true);
        if (seat->doubt == CONTENT) {
            begin_doubt(self, rank);
        }
    }
    if (seat->doubt == ASKED &&
        xm_heartbeat_is_ready(self->heartbeat, self->job_rank[rank], seat->probe)) {
        send_probe(self, rank);
    }
    /* Two who doubt each other should not blame each other: the lower rank speaks first. */
    if (seat->doubt == SENT && seat->answer.busy &&
        xm_heartbeat_signs(self->heartbeat, self->job_rank[rank]) - seat->signs >=
            XM_VIGIL_SIGNS + (rank < self->transport->rank)) {
        blame(self, rank, now, fault);
    }
}

/* The part of one who is doubted: gets ready, and answers. */
static void serve(xm_vigil_t *self, int rank)
{
    seat_t *seat = &self->seats[rank];

    if (seat->wanted != seat->ready && seat->asked.busy) {
        xm_transport_cancel(self->transport, &seat->asked.op); /* of a doubt that has passed */
    } else if (seat->wanted != seat->ready) {
        seat->ready = seat->wanted;
        post_byte(self, rank, &seat->asked, TAG_QUESTION | seat->ready, false);
        xm_heartbeat_set_ready(self->heartbeat, self->job_rank[rank], seat->ready);
        seat->answered.status = XM_IN_PROGRESS; /* due */
    }
    if (seat->ready != 0 && !seat->asked.busy && !seat->answered.busy &&
        seat->asked.status == XM_OK && seat->answered.status == XM_IN_PROGRESS) {
        post_byte(self, rank, &seat->answered, TAG_ANSWER | seat->ready, true);
    }
}

void xm_vigil_on_news(xm_vigil_t *vigil)
{
    int job_rank;
    uint32_t probe;

    while (xm_heartbeat_wanted(vigil->heartbeat, &job_rank, &probe)) {
        for (int rank = 0; rank < vigil->transport->size; ++rank) {
            if (vigil->job_rank[rank] == job_rank && rank != vigil->transport->rank) {
                vigil->seats[rank].wanted = probe;
            }
        }
    }
    vigil->next = 0;
}

int64_t xm_vigil_look(xm_vigil_t *vigil, int64_t now, xm_bootstrap_fault_t *fault)
{
    fault->status = XM_OK;
    xm_heartbeat_active(vigil->heartbeat);
    for (int rank = 0; rank < vigil->transport->size; ++rank) {
        if (rank != vigil->transport->rank &&
            (vigil->seats[rank].ready != 0 || vigil->seats[rank].wanted != 0)) {
            serve(vigil, rank);
        }
    }
    if (now < vigil->next) {
        return vigil->next;
    }
    vigil->next = now + vigil->patience / 2;
    for (int rank = 0; rank < vigil->transport->size && fault->status == XM_OK; ++rank) {
        if (rank != vigil->transport->rank) {
            look_at(vigil, rank, now, fault);
        }
    }
    return vigil->next;
}
