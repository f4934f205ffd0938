/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file job_secret.h
 * The secret that the ranks of a job share, and the proofs of knowing it. Internal.
 *
 * It comes from XM_JOB_SECRET or from the file XM_JOB_SECRET_FILE, or is made by whoever starts the
 * job. It never goes over the wire: each side picks a random number (a nonce), and proves with
 * HMAC-SHA256 (RFC 2104, by Nettle) over both numbers and what it says that it knows the secret.
 * A job without one makes the same proofs with an empty key; they show only that nothing was
 * garbled.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

enum {
    XM_JOB_SECRET_SHORTEST = 16, /**< characters: a shorter one could be guessed */
    XM_JOB_SECRET_LONGEST = 1024,
    XM_JOB_SECRET_TEXT_SIZE = 33, /**< of a random one, with the terminator */
    XM_JOB_NONCE_SIZE = 16,
    XM_JOB_PROOF_SIZE = 32
};

typedef struct xm_job_secret {
    size_t length; /**< 0: the job has none */
    uint8_t bytes[XM_JOB_SECRET_LONGEST];
} xm_job_secret_t;

/** Reads the settings. A file must belong to this user or root and be closed to everybody else; a
 * line feed at its end does not count. */
xm_status_t xm_job_secret_read(xm_job_secret_t *secret);

/** Uses @p length bytes (at most ::XM_JOB_SECRET_LONGEST). */
void xm_job_secret_set(xm_job_secret_t *secret, const void *bytes, size_t length);

/** Makes a random one of 128 bits, as text that fits an environment variable. */
xm_status_t xm_job_secret_make(char text[XM_JOB_SECRET_TEXT_SIZE]);

/** Fills @p bytes (at most 256) with random ones. */
xm_status_t xm_job_secret_random(void *bytes, size_t length);

/**
 * The proof that whoever says @p message in @p role knows the secret. @p own is its own nonce,
 * @p other the one of the other side; the role keeps a proof from being sent back as an answer.
 */
void xm_job_secret_prove(const xm_job_secret_t *secret, const char *role,
                         const uint8_t own[XM_JOB_NONCE_SIZE],
                         const uint8_t other[XM_JOB_NONCE_SIZE], const void *message, size_t length,
                         uint8_t proof[XM_JOB_PROOF_SIZE]);

/** Compares in a time that does not depend on where they differ. */
bool xm_job_secret_equal(const uint8_t a[XM_JOB_PROOF_SIZE], const uint8_t b[XM_JOB_PROOF_SIZE]);
