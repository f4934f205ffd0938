/* SPDX-License-Identifier: Apache-2.0 */
/* The secret of a job, and the proofs of knowing it. It is read from the environment or a file,
 * never from a command line, which every user of the machine can read. Copies on the stack are
 * wiped with explicit_bzero(), which no compiler removes. Proofs are HMAC-SHA256 (Nettle's)
 * over both nonces, so none can be replayed. */
#include "comm/job/job_secret.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nettle/base16.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>

#include "comm/base.h"

void xm_job_secret_set(xm_job_secret_t *secret, const void *bytes, size_t length)
{
    memset(secret, 0, sizeof(*secret));
    memcpy(secret->bytes, bytes, length);
    secret->length = length;
}

static xm_status_t check_length(const char *name, size_t length)
{
    if (length < XM_JOB_SECRET_SHORTEST || length > XM_JOB_SECRET_LONGEST) {
        return XM_INVALID("%s: a secret of %zu characters; it must have %d to %d", name, length,
                          XM_JOB_SECRET_SHORTEST, XM_JOB_SECRET_LONGEST);
    }
    return XM_OK;
}

/* Checks that only this user can read the file, as ssh demands of a private key. */
static xm_status_t check_privacy(const char *path, int fd)
{
    struct stat found;

    if (fstat(fd, &found) != 0) {
        return xm_error_set(XM_ERR_IO, "XM_JOB_SECRET_FILE: %s: %s", path, strerror(errno));
    }
    if ((found.st_uid != geteuid() && found.st_uid != 0) ||
        (found.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        return XM_INVALID(
            "XM_JOB_SECRET_FILE: %s (mode %04o, owner %u) is open to other users; chmod 600 it",
            path, (unsigned)found.st_mode & 07777u, (unsigned)found.st_uid);
    }
    return XM_OK;
}

/* Reads the file, which is checked through its descriptor, so that it cannot be exchanged in
 * between. One byte more than allowed is read, to notice a file that is too long. */
static xm_status_t read_file(const char *path, xm_job_secret_t *secret)
{
    uint8_t bytes[XM_JOB_SECRET_LONGEST + 2];
    size_t length = 0;
    ssize_t got = 1;
    int fd;
    xm_status_t status = xm_file_open(path, XM_TEXT_LARGEST, &fd, &length);

    if (status < 0) {
        return xm_error_prefix(status, "XM_JOB_SECRET_FILE");
    }
    length = 0;
    status = check_privacy(path, fd);
    while (status == XM_OK && got > 0 && length < sizeof(bytes)) {
        got = read(fd, bytes + length, sizeof(bytes) - length);
        length += got > 0 ? (size_t)got : 0;
    }
    if (got < 0) {
        status = xm_error_set(XM_ERR_IO, "XM_JOB_SECRET_FILE: cannot read %s: %s", path,
                              strerror(errno));
    }
    (void)close(fd);
    if (status == XM_OK) {
        /* A line feed at the end is an editor's. */
        length -= length > 0 && bytes[length - 1] == '\n' ? 1 : 0;
        status = check_length("XM_JOB_SECRET_FILE", length);
    }
    if (status == XM_OK) {
        xm_job_secret_set(secret, bytes, length);
    }
    explicit_bzero(bytes, sizeof(bytes));
    return status;
}

/* Reads the settings. A length of 0 means that the job has no secret. */
xm_status_t xm_job_secret_read(xm_job_secret_t *secret)
{
    const char *text = xm_config_string(XM_CONFIG_JOB_SECRET);
    const char *path = xm_config_string(XM_CONFIG_JOB_SECRET_FILE);
    xm_status_t status;

    if (text[0] != '\0' && path[0] != '\0') {
        return XM_INVALID("XM_JOB_SECRET and XM_JOB_SECRET_FILE are both set");
    }
    if (path[0] != '\0') {
        return read_file(path, secret);
    }
    if (text[0] == '\0') {
        xm_job_secret_set(secret, "", 0);
        return XM_OK;
    }
    status = check_length("XM_JOB_SECRET", strlen(text));
    if (status == XM_OK) {
        xm_job_secret_set(secret, text, strlen(text));
    }
    return status;
}

/* At most 256 bytes: up to that getrandom() is never interrupted. */
xm_status_t xm_job_secret_random(void *bytes, size_t length)
{
    if (getrandom(bytes, length, 0) != (ssize_t)length) {
        return xm_error_set(XM_ERR_IO, "no random numbers from the kernel: %s", strerror(errno));
    }
    return XM_OK;
}

xm_status_t xm_job_secret_make(char text[XM_JOB_SECRET_TEXT_SIZE])
{
    uint8_t bytes[(XM_JOB_SECRET_TEXT_SIZE - 1) / 2];
    xm_status_t status = xm_job_secret_random(bytes, sizeof(bytes));

    if (status == XM_OK) {
        base16_encode_update(text, sizeof(bytes), bytes);
        text[XM_JOB_SECRET_TEXT_SIZE - 1] = '\0';
    }
    explicit_bzero(bytes, sizeof(bytes));
    return status;
}

/* The role in the message keeps a proof of one side from being sent back as that of the other. */
void xm_job_secret_prove(const xm_job_secret_t *secret, const char *role,
                         const uint8_t own[XM_JOB_NONCE_SIZE],
                         const uint8_t other[XM_JOB_NONCE_SIZE], const void *message, size_t length,
                         uint8_t proof[XM_JOB_PROOF_SIZE])
{
    struct hmac_sha256_ctx context;

    hmac_sha256_set_key(&context, secret->length, secret->bytes);
    /* The terminator divides the role from what follows; the nonces have one length. */
    hmac_sha256_update(&context, strlen(role) + 1, (const uint8_t *)role);
    hmac_sha256_update(&context, XM_JOB_NONCE_SIZE, own);
    hmac_sha256_update(&context, XM_JOB_NONCE_SIZE, other);
    hmac_sha256_update(&context, length, message);
    hmac_sha256_digest(&context, XM_JOB_PROOF_SIZE, proof);
    explicit_bzero(&context, sizeof(context));
}

/* Compares in constant time: how long a comparison takes would tell how many bytes are right. */
bool xm_job_secret_equal(const uint8_t a[XM_JOB_PROOF_SIZE], const uint8_t b[XM_JOB_PROOF_SIZE])
{
    return memeql_sec(a, b, XM_JOB_PROOF_SIZE) != 0;
}
