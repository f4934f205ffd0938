/* SPDX-License-Identifier: Apache-2.0 */
/* A process's membership: one connection to the place. One thread reads it (events, and the
 * allgathers of a round's job), any may write to it, so a lock guards it; who waits for something
 * to read does so outside. */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <crossmesh/meeting.h>
#include <crossmesh/version.h>

#include "comm/meeting/note.h"

enum { JOIN_SIZE = 256 };
/* Sets of kinds: what a caller hears of, and what those hear who make a round's job. */
enum {
    EVENTS = 1 << XM_NOTE_ROUND | 1 << XM_NOTE_SETTLED,
    GATHERING = 1 << XM_NOTE_BLOCK | 1 << XM_NOTE_BROKEN
};
static const double GRACE_S = 1.0;

/* A note that was read before anybody asked for it. */
typedef struct {
    xm_list_t in_meeting;
    xm_note_t note;
    uint8_t bytes[];
} kept_t;

struct xm_meeting {
    pthread_mutex_t lock;
    xm_bootstrap_tcp_t *wire; /* its link to "rank 0" is that to the place */
    char address[sizeof(((xm_job_env_t *)0)->master_addr) + 16];
    xm_list_t kept;
    int rank;
    xm_error_t ended;
    xm_oob_t table;
    void *gathering; /* where the posted allgather goes */
    size_t gathered; /* bytes of it */
};

static xm_bootstrap_link_t *link_of(xm_meeting_t *self)
{
    return &self->wire->peers[0].link;
}

static void send_note(xm_meeting_t *self, const xm_note_t *note)
{
    (void)pthread_mutex_lock(&self->lock);
    xm_note_send(link_of(self), note);
    (void)pthread_mutex_unlock(&self->lock);
}

/* Keeps the note that the link has received. */
static xm_status_t keep(xm_meeting_t *self)
{
    xm_note_t note;
    kept_t *kept;

    XM_TRY(xm_note_read(link_of(self), &note));
    kept = malloc(sizeof(*kept) + note.length);
    XM_NEED_MEMORY(kept, "a note of %zu bytes", note.length);
    memset(&kept->in_meeting, 0, sizeof(kept->in_meeting));
    memcpy(kept->bytes, note.bytes, note.length);
    kept->note = note;
    kept->note.bytes = kept->bytes;
    xm_list_append(&self->kept, &kept->in_meeting);
    return XM_OK;
}

/* Reads what has come. What ends the membership is kept, and told from then on. */
static xm_status_t read_notes(xm_meeting_t *self)
{
    xm_status_t status = self->ended.status;

    if (status < 0) {
        return xm_error_restore(&self->ended);
    }
    (void)pthread_mutex_lock(&self->lock);
    xm_bootstrap_link_flush(link_of(self));
    while ((status = xm_bootstrap_link_receive(link_of(self))) == XM_OK) {
        status = keep(self);
        if (status < 0) {
            break;
        }
    }
    (void)pthread_mutex_unlock(&self->lock);
    if (status == XM_ERR_IO) {
        status =
            xm_error_set(XM_ERR_PEER_DIED, "the place of the meeting at %s is gone", self->address);
    }
    if (status < 0) {
        xm_error_save(&self->ended, status);
    }
    return XM_OK; /* what came before is heard first */
}

static xm_status_t sentence_of(const xm_note_t *note, int index)
{
    xm_status_t status = xm_note_status(note, index);

    return status < 0 ? xm_error_set(status, "%.*s", (int)note->length, (const char *)note->bytes)
                      : status;
}

/* Takes the first kept note whose kind is in the set; NULL: there is none. The caller frees it.
 * What stands before an event belongs to a round that has ended, and to nobody any more. */
static kept_t *take(xm_meeting_t *self, uint32_t kinds)
{
    for (xm_list_t *at = xm_list_first(&self->kept), *next; at != NULL; at = next) {
        kept_t *kept = xm_list_entry(at, kept_t, in_meeting);

        next = xm_list_next(&self->kept, at);
        if ((kinds >> kept->note.kind & 1) != 0) {
            xm_list_remove(at);
            return kept;
        }
        if ((kinds & EVENTS) != 0 && (GATHERING >> kept->note.kind & 1) != 0) {
            xm_list_remove(at);
            free(kept);
        }
    }
    return NULL;
}

/* Waits for a note of one of the kinds until a deadline; XM_IN_PROGRESS: none has come. */
static xm_status_t await(xm_meeting_t *self, uint32_t kinds, double deadline, kept_t **kept)
{
    while (true) {
        double left = deadline - xm_clock_seconds();
        struct pollfd entry = {.fd = self->wire->epoll, .events = POLLIN};
        kept_t *ended;
        xm_status_t status = read_notes(self);

        *kept = take(self, kinds);
        if (*kept != NULL) {
            return XM_OK;
        }
        ended = take(self, 1u << XM_NOTE_ENDED);
        if (ended != NULL) {
            xm_error_save(&self->ended, sentence_of(&ended->note, 0));
            free(ended);
            return xm_error_restore(&self->ended);
        }
        if (status < 0 || self->ended.status < 0) {
            return xm_error_restore(&self->ended);
        }
        if (left <= 0.0) {
            return XM_IN_PROGRESS;
        }
        (void)poll(&entry, 1, (int)(left > 1.0 ? 1000 : left * 1e3 + 1));
    }
}

/* The table of a round's job --------------------------------------------------------------------
 */

static xm_status_t post_block(void *context, const void *send, void *receive, size_t length,
                              void **request)
{
    xm_meeting_t *self = context;

    self->gathering = receive;
    self->gathered = length * (size_t)self->table.size;
    send_note(self, &(xm_note_t){.kind = XM_NOTE_BLOCK, .bytes = send, .length = length});
    *request = self;
    return XM_OK;
}

static xm_status_t test_block(void *request)
{
    xm_meeting_t *self = request;
    kept_t *kept;
    xm_status_t status = XM_OK;

    XM_TRY(await(self, GATHERING, 0.0, &kept));
    if (kept->note.kind == XM_NOTE_BROKEN) {
        status = sentence_of(&kept->note, 0);
    } else if (kept->note.length != self->gathered) {
        status = xm_error_set(XM_ERR_CORRUPT, "the place has gathered %zu bytes instead of %zu",
                              kept->note.length, self->gathered);
    } else {
        memcpy(self->gathering, kept->bytes, self->gathered);
    }
    free(kept);
    return status;
}

static void free_block(void *request)
{
    (void)request;
}

/* Joining ----------------------------------------------------------------------------------------
 */

static xm_status_t connect_to(xm_meeting_t *self, const xm_meeting_params_t *params, double timeout)
{
    double deadline = xm_clock_seconds() + timeout;
    xm_addresses_t addresses;
    xm_job_secret_t secret;
    xm_job_env_t env;
    xm_status_t status = xm_note_address(params->address, &env);

    XM_THEN(status,
            xm_resolve("the meeting", env.master_addr, env.master_port, deadline, &addresses));
    XM_THEN(status, xm_note_secret(params->secret, &secret));
    if (status == XM_OK) {
        int rank = params->rank < 0 ? 0 : params->rank;

        (void)snprintf(self->address, sizeof(self->address), "%s:%d", env.master_addr,
                       env.master_port);
        status = xm_bootstrap_tcp_create(rank, params->size, &secret, &self->wire);
        explicit_bzero(&secret, sizeof(secret));
    }
    XM_THEN(status, xm_bootstrap_rendezvous_connect(self->wire, &addresses, self->address, deadline,
                                                    timeout));
    return status < 0 ? xm_error_prefix(status, "world '%s' at the meeting", params->world)
                      : status;
}

static xm_status_t join(xm_meeting_t *self, const xm_meeting_params_t *params, double timeout)
{
    double deadline;
    char text[JOIN_SIZE];
    int length = snprintf(text, sizeof(text), "%s%c%s", XM_VERSION_STRING, 0, params->world);
    kept_t *welcome;
    xm_status_t status;

    XM_TRY(connect_to(self, params, timeout));
    link_of(self)->expected = 1u << XM_BOOTSTRAP_NOTE;
    send_note(self,
              &(xm_note_t){.kind = XM_NOTE_JOIN,
                           .number = {params->role, params->rank, params->version,
                                      params->passes_on, params->targets, (int64_t)(timeout * 1e3),
                                      (int64_t)(params->skew * 1e3)},
                           .bytes = text,
                           .length = (size_t)length});
    /* The place knows best who is missing, so it may say so first. */
    deadline = xm_clock_seconds() + timeout + GRACE_S;
    status = await(self, 1u << XM_NOTE_WELCOME, deadline, &welcome);
    if (status == XM_IN_PROGRESS) {
        return xm_error_set(XM_ERR_TIMEOUT,
                            "world '%s' was not complete at the meeting at %s within %g s",
                            params->world, self->address, timeout);
    }
    if (status == XM_OK) {
        self->rank = (int)welcome->note.number[0];
        free(welcome);
    }
    return status;
}

xm_status_t xm_meeting_join(const xm_meeting_params_t *params, xm_meeting_t **meeting, int *rank)
{
    xm_meeting_params_t own = XM_MEETING_PARAMS_INIT;
    xm_meeting_t *self;
    xm_status_t status;

    XM_TRY(XM_PARAMS_COPY(xm_meeting_params_t, &own, params));
    XM_NEED_ARGUMENTS(meeting);
    if (own.address == NULL || own.world == NULL || own.size < 1 || own.rank >= own.size ||
        own.size > XM_BOOTSTRAP_MAX_RANKS || strlen(own.world) + 32 > JOIN_SIZE) {
        return XM_INVALID("xm_meeting_join: rank %d of %d without an address, or without a name of "
                          "its world, or one that is too long",
                          own.rank, own.size);
    }
    self = calloc(1, sizeof(*self));
    XM_NEED_MEMORY(self, "a meeting");
    (void)pthread_mutex_init(&self->lock, NULL);
    xm_list_init(&self->kept);
    self->table = (xm_oob_t){.struct_size = sizeof(self->table),
                             .context = self,
                             .allgather_post = post_block,
                             .allgather_test = test_block,
                             .allgather_free = free_block};
    status =
        join(self, &own, own.timeout > 0.0 ? own.timeout : xm_config_seconds(XM_CONFIG_TIMEOUT));
    if (status < 0) {
        xm_meeting_leave(self);
        return status;
    }
    *meeting = self;
    if (rank != NULL) {
        *rank = self->rank;
    }
    return XM_OK;
}

xm_status_t xm_meeting_say(xm_meeting_t *meeting, xm_meeting_word_t word, int64_t number,
                           const char *sentence)
{
    static const xm_note_kind_t kinds[] = {XM_NOTE_READY, XM_NOTE_CANCEL, XM_NOTE_DONE};

    XM_NEED_ARGUMENTS(meeting);
    if ((unsigned)word >= sizeof(kinds) / sizeof(kinds[0])) {
        return XM_INVALID("xm_meeting_say: word %d", (int)word);
    }
    send_note(meeting, &(xm_note_t){.kind = kinds[word],
                                    .number = {number},
                                    .bytes = sentence,
                                    .length = sentence == NULL ? 0 : strlen(sentence)});
    return XM_OK;
}

/* What a note means to the caller. */
static void read_event(xm_meeting_t *self, const xm_note_t *note, xm_meeting_event_t *event)
{
    event->version = note->number[0];
    if (note->kind == XM_NOTE_SETTLED) {
        event->kind = XM_MEETING_SETTLED;
        event->status = sentence_of(note, 1);
        event->targets = (int)note->number[2];
        return;
    }
    event->kind = XM_MEETING_ROUND;
    event->group = note->number[1];
    event->rank = self->table.rank = (int)note->number[2];
    event->size = self->table.size = (int)note->number[3];
    event->senders = (int)note->number[4];
    event->oob = &self->table;
}

xm_status_t xm_meeting_next(xm_meeting_t *meeting, double timeout, xm_meeting_event_t *event)
{
    xm_meeting_event_t own = XM_MEETING_EVENT_INIT;
    double deadline = xm_clock_seconds() + timeout;
    kept_t *kept;

    XM_NEED_ARGUMENTS(meeting, event);
    XM_TRY(await(meeting, EVENTS, deadline, &kept));
    read_event(meeting, &kept->note, &own);
    free(kept);
    return xm_info_copy(__func__, "xm_meeting_event_t", event, &own, sizeof(own));
}

void xm_meeting_leave(xm_meeting_t *meeting)
{
    xm_list_t *at;

    if (meeting == NULL) {
        return;
    }
    while ((at = xm_list_first(&meeting->kept)) != NULL) {
        xm_list_remove(at);
        free(xm_list_entry(at, kept_t, in_meeting));
    }
    if (meeting->wire != NULL) {
        xm_bootstrap_tcp_destroy(meeting->wire);
    }
    (void)pthread_mutex_destroy(&meeting->lock);
    free(meeting);
}
