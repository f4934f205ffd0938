/* SPDX-License-Identifier: Apache-2.0 */
/* Notes as bytes, and the two settings that a place and its members read in the same way. A note
 * comes from who has proved to know the secret, but is checked all the same: members may be of
 * another build. */
#include "comm/meeting/note.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD = 8 * XM_NOTE_NUMBERS, LOWEST_STATUS = -99, LAST_PORT = 65535 };

void xm_note_send(xm_bootstrap_link_t *link, const xm_note_t *note)
{
    uint8_t *payload = malloc(HEAD + note->length);

    if (payload == NULL) {
        xm_log_warn("no memory for a note of %zu bytes", note->length);
        return; /* the other side's deadline ends its wait */
    }
    for (int i = 0; i < XM_NOTE_NUMBERS; ++i) {
        xm_put_le(payload + 8 * i, (uint64_t)note->number[i], 8);
    }
    if (note->length > 0) {
        memcpy(payload + HEAD, note->bytes, note->length);
    }
    xm_bootstrap_link_send(link, XM_BOOTSTRAP_NOTE, (uint32_t)note->kind, payload,
                           HEAD + note->length);
    free(payload);
}

void xm_note_send_status(xm_bootstrap_link_t *link, xm_note_kind_t kind, xm_status_t status,
                         const char *sentence)
{
    xm_note_send(
        link, &(xm_note_t){
                  .kind = kind, .number = {status}, .bytes = sentence, .length = strlen(sentence)});
}

xm_status_t xm_note_read(const xm_bootstrap_link_t *link, xm_note_t *note)
{
    if (link->frame.type != XM_BOOTSTRAP_NOTE || link->frame.length < HEAD ||
        link->frame.sequence >= XM_NOTE_KINDS) {
        return xm_error_set(XM_ERR_CORRUPT, "frame of type %d with %u bytes where a note belongs",
                            (int)link->frame.type, link->frame.length);
    }
    note->kind = (xm_note_kind_t)link->frame.sequence;
    note->bytes = link->payload + HEAD;
    note->length = link->frame.length - HEAD;
    for (int i = 0; i < XM_NOTE_NUMBERS; ++i) {
        note->number[i] = (int64_t)xm_get_le(link->payload + 8 * i, 8);
    }
    return XM_OK;
}

xm_status_t xm_note_status(const xm_note_t *note, int index)
{
    int64_t number = note->number[index];

    return number > XM_OK || number < LOWEST_STATUS ? XM_ERR_CORRUPT : (xm_status_t)number;
}

xm_status_t xm_note_address(const char *address, xm_job_env_t *env)
{
    static const char scheme[] = "tcp://";
    const char *host = address, *colon = strrchr(address, ':');
    char *end = NULL;
    long port = -1;
    size_t length;

    if (strncmp(address, scheme, sizeof(scheme) - 1) == 0) {
        host += sizeof(scheme) - 1;
    }
    length = colon != NULL && colon > host ? (size_t)(colon - host) : 0;
    if (length > 0) {
        port = strtol(colon + 1, &end, 10);
    }
    /* Brackets keep the colons of an IPv6 address from being taken for the port's. */
    if (length > 2 && host[0] == '[' && host[length - 1] == ']') {
        ++host;
        length -= 2;
    }
    if (end == NULL || length >= sizeof(env->master_addr) || end == colon + 1 || *end != '\0' ||
        port < 0 || port > LAST_PORT) {
        return XM_MALFORMED("'%s' is no address of a meeting: tcp://host:port", address);
    }
    *env = (xm_job_env_t){.rank = 0, .size = 1, .master_port = (int)port};
    memcpy(env->master_addr, host, length);
    return XM_OK;
}

xm_status_t xm_note_secret(const char *given, xm_job_secret_t *secret)
{
    size_t length = given == NULL ? 0 : strlen(given);

    if (given == NULL) {
        return xm_job_secret_read(secret);
    }
    if (length < XM_JOB_SECRET_SHORTEST || length > XM_JOB_SECRET_LONGEST) {
        return XM_INVALID("the meeting's secret has %zu characters; it must have %d to %d", length,
                          XM_JOB_SECRET_SHORTEST, XM_JOB_SECRET_LONGEST);
    }
    xm_job_secret_set(secret, given, length);
    return XM_OK;
}
