/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a pipe's handshake and headers. Handle, challenge and hello begin with a magic
 * number and a version, because they come from somebody unknown; message headers do not, for
 * they come over a transport whose ends have proved themselves. The proof of a hello covers all
 * of its bytes, so nothing in it can be changed on the way. */
#include "plugins/nccl/pipe/wire.h"

#include <netinet/in.h>
#include <string.h>

#include "comm/base.h"

/* Magic number and version begin what could be mistaken for something else. */
enum { MAGIC_SIZE = 4, VERSION_SIZE = 2, START_SIZE = 8 };
static const char handle_magic[MAGIC_SIZE + 1] = "XMPH", challenge_magic[MAGIC_SIZE + 1] = "XMPC",
                                            hello_magic[MAGIC_SIZE + 1] = "XMPI";

/* A handle: start (its last byte is the number of addresses), nonce, port of each address (u16),
 * and the addresses, each a byte for the family and 16 for the address. */
enum {
    COUNT_AT = START_SIZE - 1,
    NONCE_AT = START_SIZE,
    ADDRESSES_AT = NONCE_AT + XM_JOB_NONCE_SIZE,
    ADDRESS_SIZE = 2 + 1 + 16,
    FAMILY_IPV4 = 4,
    FAMILY_IPV6 = 6
};

_Static_assert((int)ADDRESSES_AT + (int)XM_PIPE_ADDRESSES_MAX * (int)ADDRESS_SIZE <=
                   (int)XM_PIPE_HANDLE_USED,
               "a handle holds that many addresses");

/* All three begin alike, so a wrong kind is recognised before anything else is read. */
static void start(uint8_t *bytes, const char *magic)
{
    memcpy(bytes, magic, MAGIC_SIZE);
    xm_put_le(bytes + MAGIC_SIZE, XM_PIPE_VERSION, VERSION_SIZE);
    bytes[MAGIC_SIZE + VERSION_SIZE] = bytes[COUNT_AT] = 0;
}

/* Another version is told apart from foreign bytes: it deserves another sentence. */
static xm_status_t check_start(const uint8_t *bytes, const char *magic, const char *what)
{
    if (memcmp(bytes, magic, MAGIC_SIZE) != 0) {
        return xm_error_set(XM_ERR_CORRUPT, "this is no %s of a crossmesh pipe", what);
    }
    if (xm_get_le(bytes + MAGIC_SIZE, VERSION_SIZE) != XM_PIPE_VERSION) {
        return XM_MISMATCH("the %s is of version %d of crossmesh's pipes, this is version %d", what,
                           (int)xm_get_le(bytes + MAGIC_SIZE, VERSION_SIZE), XM_PIPE_VERSION);
    }
    return XM_OK;
}

static void pack_address(const xm_address_t *address, uint8_t bytes[ADDRESS_SIZE])
{
    xm_put_le(bytes, (uint64_t)xm_address_port(address), 2);
    if (address->socket.ss_family == AF_INET6) {
        const struct sockaddr_in6 *ipv6 = (const struct sockaddr_in6 *)&address->socket;

        bytes[2] = FAMILY_IPV6;
        memcpy(bytes + 3, &ipv6->sin6_addr, sizeof(ipv6->sin6_addr));
    } else {
        const struct sockaddr_in *ipv4 = (const struct sockaddr_in *)&address->socket;

        bytes[2] = FAMILY_IPV4;
        memcpy(bytes + 3, &ipv4->sin_addr, sizeof(ipv4->sin_addr));
    }
}

/* Refuses unknown families and port 0, which cannot be connected to. */
static bool read_address(const uint8_t bytes[ADDRESS_SIZE], xm_address_t *address)
{
    *address = (xm_address_t){0};
    if (bytes[2] == FAMILY_IPV6) {
        struct sockaddr_in6 *ipv6 = (struct sockaddr_in6 *)&address->socket;

        ipv6->sin6_family = AF_INET6;
        memcpy(&ipv6->sin6_addr, bytes + 3, sizeof(ipv6->sin6_addr));
        address->length = sizeof(*ipv6);
    } else if (bytes[2] == FAMILY_IPV4) {
        struct sockaddr_in *ipv4 = (struct sockaddr_in *)&address->socket;

        ipv4->sin_family = AF_INET;
        memcpy(&ipv4->sin_addr, bytes + 3, sizeof(ipv4->sin_addr));
        address->length = sizeof(*ipv4);
    } else {
        return false;
    }
    xm_address_set_port(address, (int)xm_get_le(bytes, 2));
    return xm_address_port(address) != 0;
}

/* Unused bytes are zero, so equal handles are equal bytes. */
void xm_pipe_pack_handle(const xm_pipe_handle_t *handle, uint8_t bytes[XM_PIPE_HANDLE_SIZE])
{
    memset(bytes, 0, XM_PIPE_HANDLE_SIZE);
    start(bytes, handle_magic);
    bytes[COUNT_AT] = (uint8_t)handle->addresses.count;
    memcpy(bytes + NONCE_AT, handle->nonce, XM_JOB_NONCE_SIZE);
    for (int i = 0; i < handle->addresses.count; ++i) {
        pack_address(&handle->addresses.list[i], bytes + ADDRESSES_AT + i * ADDRESS_SIZE);
    }
}

/* The number of addresses is checked before they are read. */
xm_status_t xm_pipe_read_handle(const uint8_t bytes[XM_PIPE_HANDLE_SIZE], xm_pipe_handle_t *handle)
{
    XM_TRY(check_start(bytes, handle_magic, "handle"));
    *handle = (xm_pipe_handle_t){.addresses.count = bytes[COUNT_AT]};
    if (handle->addresses.count < 1 || handle->addresses.count > XM_PIPE_ADDRESSES_MAX) {
        return xm_error_set(XM_ERR_CORRUPT, "a pipe's handle with %d addresses",
                            handle->addresses.count);
    }
    memcpy(handle->nonce, bytes + NONCE_AT, XM_JOB_NONCE_SIZE);
    for (int i = 0; i < handle->addresses.count; ++i) {
        if (!read_address(bytes + ADDRESSES_AT + i * ADDRESS_SIZE, &handle->addresses.list[i])) {
            return xm_error_set(XM_ERR_CORRUPT, "address %d of a pipe's handle is none", i);
        }
    }
    return XM_OK;
}

/* The nonce is fresh for each pipe: a proof that was overheard is worth nothing later. */
void xm_pipe_pack_challenge(const uint8_t nonce[XM_JOB_NONCE_SIZE],
                            uint8_t bytes[XM_PIPE_CHALLENGE_SIZE])
{
    start(bytes, challenge_magic);
    memcpy(bytes + START_SIZE, nonce, XM_JOB_NONCE_SIZE);
}

xm_status_t xm_pipe_read_challenge(const uint8_t bytes[XM_PIPE_CHALLENGE_SIZE],
                                   uint8_t nonce[XM_JOB_NONCE_SIZE])
{
    memcpy(nonce, bytes + START_SIZE, XM_JOB_NONCE_SIZE);
    return check_start(bytes, challenge_magic, "challenge");
}

/* Everything of a hello is proved but the proof itself. */
enum { PROVED_SIZE = XM_PIPE_HELLO_SIZE - XM_JOB_PROOF_SIZE };

void xm_pipe_pack_hello(const xm_pipe_hello_t *hello, const xm_job_secret_t *secret,
                        const char *role, const uint8_t other[XM_JOB_NONCE_SIZE],
                        uint8_t bytes[XM_PIPE_HELLO_SIZE])
{
    uint8_t *at = bytes + START_SIZE;

    start(bytes, hello_magic);
    memcpy(at, hello->nonce, XM_JOB_NONCE_SIZE);
    at += XM_JOB_NONCE_SIZE;
    xm_put_le(at, hello->host, 8);
    xm_put_le(at + 8, hello->machine, 8);
    xm_put_le(at + 16, hello->pid, 4);
    memcpy(at + 20, hello->name, XM_PIPE_NAME_SIZE);
    xm_job_secret_prove(secret, role, hello->nonce, other, bytes, PROVED_SIZE, bytes + PROVED_SIZE);
}

/* Nothing of the hello may be believed before this has returned XM_OK. */
xm_status_t xm_pipe_read_hello(const uint8_t bytes[XM_PIPE_HELLO_SIZE],
                               const xm_job_secret_t *secret, const char *role,
                               const uint8_t own[XM_JOB_NONCE_SIZE], xm_pipe_hello_t *hello)
{
    const uint8_t *at = bytes + START_SIZE;
    uint8_t proof[XM_JOB_PROOF_SIZE];

    XM_TRY(check_start(bytes, hello_magic, "hello"));
    memcpy(hello->nonce, at, XM_JOB_NONCE_SIZE);
    at += XM_JOB_NONCE_SIZE;
    hello->host = xm_get_le(at, 8);
    hello->machine = xm_get_le(at + 8, 8);
    hello->pid = (uint32_t)xm_get_le(at + 16, 4);
    memcpy(hello->name, at + 20, XM_PIPE_NAME_SIZE);
    /* The other side may have left out the terminator. */
    hello->name[XM_PIPE_NAME_SIZE - 1] = '\0';
    xm_job_secret_prove(secret, role, hello->nonce, own, bytes, PROVED_SIZE, proof);
    if (!xm_job_secret_equal(proof, bytes + PROVED_SIZE)) {
        return XM_MISMATCH("a stranger: it does not have the pipe's handle");
    }
    return XM_OK;
}

/* Short messages travel inside their header, which saves a second message for them. */
void xm_pipe_pack_header(const xm_pipe_header_t *header, const void *data,
                         uint8_t bytes[XM_PIPE_HEADER_SIZE])
{
    xm_put_le(bytes, header->length, 8);
    xm_put_le(bytes + 8, (uint32_t)header->tag, 4);
    xm_put_le(bytes + 12, header->number, 4);
    if (header->length > 0 && header->length <= XM_PIPE_INLINE_MAX) {
        memcpy(bytes + 16, data, (size_t)header->length);
    }
}

/* The length decides where the data is: behind the header's fields, or in a message of its own. */
void xm_pipe_read_header(const uint8_t bytes[XM_PIPE_HEADER_SIZE], xm_pipe_header_t *header,
                         const uint8_t **data)
{
    header->length = xm_get_le(bytes, 8);
    header->tag = (int32_t)(uint32_t)xm_get_le(bytes + 8, 4);
    header->number = (uint32_t)xm_get_le(bytes + 12, 4);
    *data = header->length <= XM_PIPE_INLINE_MAX ? bytes + 16 : NULL;
}
