/* SPDX-License-Identifier: Apache-2.0 */
/* What strangers may write to a pipe's listener or to who connects to it, and what the other end
 * may announce: refused, or a value that reads the same when it is written again. The first byte
 * says what the rest is. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/nccl/pipe/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t own[XM_JOB_NONCE_SIZE] = "the own nonce";

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

static bool same_address(const xm_address_t *a, const xm_address_t *b)
{
    return a->length == b->length && memcmp(&a->socket, &b->socket, sizeof(a->socket)) == 0;
}

static void try_handle(const uint8_t *bytes)
{
    xm_pipe_handle_t handle, again;
    uint8_t packed[XM_PIPE_HANDLE_SIZE];

    if (xm_pipe_read_handle(bytes, &handle) != XM_OK) {
        return;
    }
    expect(handle.addresses.count >= 1 && handle.addresses.count <= XM_PIPE_ADDRESSES_MAX);
    xm_pipe_pack_handle(&handle, packed);
    expect(xm_pipe_read_handle(packed, &again) == XM_OK);
    expect(memcmp(again.nonce, handle.nonce, sizeof(again.nonce)) == 0 &&
           again.addresses.count == handle.addresses.count);
    for (int i = 0; i < handle.addresses.count; ++i) {
        expect(xm_address_port(&handle.addresses.list[i]) != 0);
        expect(same_address(&again.addresses.list[i], &handle.addresses.list[i]));
    }
}

static void try_challenge(const uint8_t *bytes)
{
    uint8_t nonce[XM_JOB_NONCE_SIZE], packed[XM_PIPE_CHALLENGE_SIZE];

    if (xm_pipe_read_challenge(bytes, nonce) == XM_OK) {
        uint8_t again[XM_JOB_NONCE_SIZE];

        xm_pipe_pack_challenge(nonce, packed);
        expect(xm_pipe_read_challenge(packed, again) == XM_OK);
        expect(memcmp(again, nonce, sizeof(nonce)) == 0);
    }
}

/* As it came it is a stranger's: nobody guesses 32 bytes of proof. With its proof made good it is
 * what somebody may say who has the handle; then the role and the nonce of this end still count. */
static void try_hello(uint8_t *bytes)
{
    enum { PROVED = XM_PIPE_HELLO_SIZE - XM_JOB_PROOF_SIZE, NONCE_AT = 8 };
    uint8_t packed[XM_PIPE_HELLO_SIZE], other[XM_JOB_NONCE_SIZE] = {0};
    xm_pipe_hello_t hello, again;
    xm_job_secret_t secret;

    xm_job_secret_set(&secret, "known to nobody", 15);
    expect(xm_pipe_read_hello(bytes, &secret, "sender", own, &hello) != XM_OK);
    xm_job_secret_prove(&secret, "sender", bytes + NONCE_AT, own, bytes, PROVED, bytes + PROVED);
    expect(xm_pipe_read_hello(bytes, &secret, "receiver", own, &hello) != XM_OK);
    expect(xm_pipe_read_hello(bytes, &secret, "sender", other, &hello) != XM_OK);
    if (xm_pipe_read_hello(bytes, &secret, "sender", own, &hello) != XM_OK) {
        return;
    }
    expect(memchr(hello.name, '\0', sizeof(hello.name)) != NULL);
    xm_pipe_pack_hello(&hello, &secret, "sender", own, packed);
    expect(xm_pipe_read_hello(packed, &secret, "sender", own, &again) == XM_OK);
    expect(memcmp(again.nonce, hello.nonce, sizeof(again.nonce)) == 0 && again.host == hello.host &&
           again.machine == hello.machine && again.pid == hello.pid &&
           strcmp(again.name, hello.name) == 0);
}

/* Whatever is announced, the data of a short message lie within its header. */
static void try_header(const uint8_t *bytes)
{
    uint8_t packed[XM_PIPE_HEADER_SIZE] = {0};
    xm_pipe_header_t header, again;
    const uint8_t *data, *data_again;

    xm_pipe_read_header(bytes, &header, &data);
    expect((data != NULL) == (header.length <= XM_PIPE_INLINE_MAX));
    if (data != NULL) {
        expect(data >= bytes && data + header.length <= bytes + XM_PIPE_HEADER_SIZE);
    }
    xm_pipe_pack_header(&header, data, packed);
    xm_pipe_read_header(packed, &again, &data_again);
    expect(again.length == header.length && again.tag == header.tag &&
           again.number == header.number);
    expect(data == NULL || memcmp(data_again, data, (size_t)header.length) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t lengths[] = {XM_PIPE_HANDLE_SIZE, XM_PIPE_CHALLENGE_SIZE,
                                     XM_PIPE_HELLO_SIZE, XM_PIPE_HEADER_SIZE};
    unsigned kind = size > 0 ? data[0] % 4U : 0;
    /* Exactly as long as the reader may look; what the input lacks is zero. */
    uint8_t *bytes = calloc(1, lengths[kind]);

    expect(bytes != NULL);
    if (size > 1) {
        memcpy(bytes, data + 1, size - 1 < lengths[kind] ? size - 1 : lengths[kind]);
    }
    switch (kind) {
    case 0:
        try_handle(bytes);
        break;
    case 1:
        try_challenge(bytes);
        break;
    case 2:
        try_hello(bytes);
        break;
    default:
        try_header(bytes);
    }
    free(bytes);
    return 0;
}
