/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file note.h
 * What members and place tell each other: a kind, some numbers, and bytes. Internal.
 *
 * A note is a frame NOTE of the bootstrap (bootstrap_wire.h), whose sequence is the kind; the
 * payload begins with the numbers, 8 bytes each, little-endian.
 */
#pragma once

#include "comm/base.h"
#include "comm/job.h"

enum { XM_NOTE_NUMBERS = 8 };

typedef enum xm_note_kind {
    XM_NOTE_JOIN,    /**< role, rank, version, passes_on, targets, timeout and skew in ms; the
                          bytes are the version of crossmesh, 0, and the world's name */
    XM_NOTE_WELCOME, /**< rank; the world is complete */
    XM_NOTE_READY,   /**< version */
    XM_NOTE_CANCEL,  /**< nothing */
    XM_NOTE_ROUND,   /**< version, group, rank, size, senders */
    XM_NOTE_BLOCK,   /**< a rank's block of an allgather, and to it all blocks */
    XM_NOTE_BROKEN,  /**< status; the bytes say why the round's job cannot be made */
    XM_NOTE_DONE,    /**< status; the bytes are a sentence */
    XM_NOTE_SETTLED, /**< version, status, targets; the bytes are a sentence */
    XM_NOTE_ENDED,   /**< status; the bytes say why this member has no place any more */
    XM_NOTE_KINDS
} xm_note_kind_t;

typedef struct xm_note {
    xm_note_kind_t kind;
    int64_t number[XM_NOTE_NUMBERS];
    const void *bytes;
    size_t length;
} xm_note_t;

void xm_note_send(xm_bootstrap_link_t *link, const xm_note_t *note);

/** One whose first number is a status, and whose bytes are its sentence. */
void xm_note_send_status(xm_bootstrap_link_t *link, xm_note_kind_t kind, xm_status_t status,
                         const char *sentence);

/** The frame that a link has received as a note; its bytes are the link's. */
xm_status_t xm_note_read(const xm_bootstrap_link_t *link, xm_note_t *note);

/** The status that number @p index of a note says, XM_ERR_CORRUPT where it is none. */
xm_status_t xm_note_status(const xm_note_t *note, int index);

/** Splits "tcp://host:port" into an environment's address and port. */
xm_status_t xm_note_address(const char *address, xm_job_env_t *env);

/** The secret that a caller gives, else that of the settings. */
xm_status_t xm_note_secret(const char *given, xm_job_secret_t *secret);
