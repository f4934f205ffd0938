/* SPDX-License-Identifier: Apache-2.0 */
/* The frames of the TCP bootstrap as bytes. Anybody can connect to an open port, so decoding
 * treats every byte as hostile: magic, version, type, the length that each type allows, numbers
 * in their range, and text without control characters, which would otherwise reach a terminal.
 * Encoders write what decoders accept, and a fuzz target feeds the decoders. */
#include "comm/job/bootstrap_wire.h"

#include <string.h>

static const uint32_t magic = 0x31424d58; /* "XMB1" */
enum { LOWEST_STATUS = -99 };
/* The smallest encodings: an identity without a host name, and what contains one. */
enum {
    SMALLEST_IDENTITY = 14,
    HELLO_IDENTITY = XM_JOB_NONCE_SIZE + XM_JOB_PROOF_SIZE,
    SMALLEST_HELLO = HELLO_IDENTITY + SMALLEST_IDENTITY,
    SMALLEST_WELCOME = XM_JOB_PROOF_SIZE + SMALLEST_IDENTITY,
    FLAG_SECRET = 1
};

/* Negative numbers occur: fault statuses, and rank -1 for a fault that is nobody's. */
static int get_i32(const uint8_t *bytes)
{
    return (int)(int32_t)xm_get_le(bytes, 4);
}

static bool is_control(uint8_t byte)
{
    return byte < 0x20 || byte == 0x7f;
}

/* A text is a u16 length and its bytes; it must fit a buffer of `size` with its terminator.
 * Control characters are replaced by the sender and refused by the receiver. */
static size_t put_text(uint8_t *bytes, const char *text, size_t size)
{
    size_t length = strnlen(text, size - 1);

    xm_put_le(bytes, (uint32_t)length, 2);
    for (size_t i = 0; i < length; ++i) {
        uint8_t byte = (uint8_t)text[i];

        bytes[2 + i] = is_control(byte) ? (uint8_t)'?' : byte;
    }
    return 2 + length;
}

static xm_status_t get_text(const uint8_t *bytes, size_t length, char *text, size_t size)
{
    size_t text_length = (size_t)xm_get_le(bytes, 2);

    /* The text must fill the rest of the frame, so a frame has no bytes that nobody checks. */
    if (text_length + 2 != length || text_length >= size) {
        return xm_error_set(XM_ERR_CORRUPT, "bootstrap frame: a text of %zu bytes in %zu",
                            text_length, length);
    }
    for (size_t i = 0; i < text_length; ++i) {
        if (is_control(bytes[2 + i])) {
            return xm_error_set(XM_ERR_CORRUPT, "bootstrap frame: control character %u in a text",
                                bytes[2 + i]);
        }
    }
    memcpy(text, bytes + 2, text_length);
    text[text_length] = '\0';
    return XM_OK;
}

void xm_bootstrap_header_encode(const xm_bootstrap_header_t *header,
                                uint8_t bytes[XM_BOOTSTRAP_HEADER_SIZE])
{
    xm_put_le(bytes, magic, 4);
    xm_put_le(bytes + 4, XM_WIRE_VERSION, 2);
    xm_put_le(bytes + 6, (uint32_t)header->type, 2);
    xm_put_le(bytes + 8, header->sequence, 4);
    xm_put_le(bytes + 12, header->length, 4);
}

/* Checks a length against its type, and thereby that the type exists. Memory for the payload is
 * taken only after that. */
static bool length_allowed(uint32_t type, uint32_t length)
{
    switch (type) {
    case XM_BOOTSTRAP_CHALLENGE:
        return length == XM_BOOTSTRAP_CHALLENGE_SIZE;
    case XM_BOOTSTRAP_HELLO:
        return length >= SMALLEST_HELLO && length <= XM_BOOTSTRAP_HELLO_SIZE;
    case XM_BOOTSTRAP_WELCOME:
        return length >= SMALLEST_WELCOME && length <= XM_BOOTSTRAP_WELCOME_SIZE;
    /* A fault status without a sentence has 10 bytes: rank, status, and the length of no text. */
    case XM_BOOTSTRAP_REFUSAL:
    case XM_BOOTSTRAP_ABORT:
    case XM_BOOTSTRAP_FAULT:
        return length >= 10 && length <= XM_BOOTSTRAP_FAULT_SIZE;
    /* Blocks have any content; only their size is limited here. */
    case XM_BOOTSTRAP_GATHER:
    case XM_BOOTSTRAP_GATHERED:
    case XM_BOOTSTRAP_GATHERV:
    case XM_BOOTSTRAP_GATHEREDV:
    case XM_BOOTSTRAP_NOTE:
        return length <= XM_BOOTSTRAP_MAX_GATHER;
    case XM_BOOTSTRAP_GOODBYE:
    case XM_BOOTSTRAP_ALIVE:
        return length == 0;
    default:
        return false;
    }
}

/* Reads a header. Another version is told apart from foreign bytes, because it deserves another
 * sentence. */
xm_status_t xm_bootstrap_header_decode(const uint8_t bytes[XM_BOOTSTRAP_HEADER_SIZE],
                                       xm_bootstrap_header_t *header)
{
    uint32_t version = (uint32_t)xm_get_le(bytes + 4, 2), type = (uint32_t)xm_get_le(bytes + 6, 2),
             length = (uint32_t)xm_get_le(bytes + 12, 4);

    if (xm_get_le(bytes, 4) != magic) {
        return xm_error_set(XM_ERR_CORRUPT, "bootstrap frame: not one of crossmesh's");
    }
    if (version != XM_WIRE_VERSION) {
        return XM_UNSUPPORTED("bootstrap frame: version %u, this build speaks %d", version,
                              XM_WIRE_VERSION);
    }
    if (!length_allowed(type, length)) {
        return xm_error_set(XM_ERR_CORRUPT, "bootstrap frame: type %u with %u bytes", type, length);
    }
    *header = (xm_bootstrap_header_t){.type = (xm_bootstrap_type_t)type,
                                      .sequence = (uint32_t)xm_get_le(bytes + 8, 4),
                                      .length = length};
    return XM_OK;
}

size_t xm_bootstrap_identity_encode(const xm_bootstrap_identity_t *identity,
                                    uint8_t bytes[XM_BOOTSTRAP_IDENTITY_SIZE])
{
    xm_put_le(bytes, (uint32_t)identity->rank, 4);
    xm_put_le(bytes + 4, (uint32_t)identity->size, 4);
    xm_put_le(bytes + 8, (uint32_t)identity->pid, 4);
    return 12 + put_text(bytes + 12, identity->host, sizeof(identity->host));
}

/* Reads an identity; the result is written only when all of it is valid. */
xm_status_t xm_bootstrap_identity_decode(const uint8_t *bytes, size_t length,
                                         xm_bootstrap_identity_t *identity)
{
    xm_bootstrap_identity_t decoded;

    if (length < SMALLEST_IDENTITY) {
        return xm_error_set(XM_ERR_CORRUPT, "bootstrap frame: an identity of %zu bytes", length);
    }
    decoded.rank = get_i32(bytes);
    decoded.size = get_i32(bytes + 4);
    decoded.pid = get_i32(bytes + 8);
    XM_TRY(get_text(bytes + 12, length - 12, decoded.host, sizeof(decoded.host)));
    /* A stranger's numbers index tables later, so impossible ones end here. */
    if (decoded.size < 1 || decoded.size > XM_BOOTSTRAP_MAX_RANKS || decoded.rank < 0 ||
        decoded.rank >= decoded.size || decoded.pid < 0) {
        return xm_error_set(XM_ERR_CORRUPT, "bootstrap frame: rank %d of %d, pid %d", decoded.rank,
                            decoded.size, decoded.pid);
    }
    *identity = decoded;
    return XM_OK;
}

/* The challenge tells whether rank 0 expects a proof, so that a rank without a secret learns why it
 * is refused. */
void xm_bootstrap_challenge_encode(const xm_bootstrap_challenge_t *challenge,
                                   uint8_t bytes[XM_BOOTSTRAP_CHALLENGE_SIZE])
{
    xm_put_le(bytes, challenge->secret ? FLAG_SECRET : 0, 4);
    memcpy(bytes + 4, challenge->nonce, XM_JOB_NONCE_SIZE);
}

xm_status_t xm_bootstrap_challenge_decode(const uint8_t *bytes, size_t length,
                                          xm_bootstrap_challenge_t *challenge)
{
    if (length != XM_BOOTSTRAP_CHALLENGE_SIZE || xm_get_le(bytes, 4) > FLAG_SECRET) {
        return xm_error_set(XM_ERR_CORRUPT, "bootstrap frame: a challenge of %zu bytes", length);
    }
    challenge->secret = xm_get_le(bytes, 4) == FLAG_SECRET;
    memcpy(challenge->nonce, bytes + 4, XM_JOB_NONCE_SIZE);
    return XM_OK;
}

/* Nonce and proof have fixed sizes and come first; the identity ends with a text and comes last. */
size_t xm_bootstrap_hello_encode(const xm_bootstrap_hello_t *hello,
                                 uint8_t bytes[XM_BOOTSTRAP_HELLO_SIZE])
{
    memcpy(bytes, hello->nonce, XM_JOB_NONCE_SIZE);
    memcpy(bytes + XM_JOB_NONCE_SIZE, hello->proof, XM_JOB_PROOF_SIZE);
    return HELLO_IDENTITY + xm_bootstrap_identity_encode(&hello->identity, bytes + HELLO_IDENTITY);
}

xm_status_t xm_bootstrap_hello_decode(const uint8_t *bytes, size_t length,
                                      xm_bootstrap_hello_t *hello)
{
    xm_status_t status;

    if (length < SMALLEST_HELLO) {
        return xm_error_set(XM_ERR_CORRUPT, "bootstrap frame: a hello of %zu bytes", length);
    }
    status = xm_bootstrap_identity_decode(bytes + HELLO_IDENTITY, length - HELLO_IDENTITY,
                                          &hello->identity);
    if (status == XM_OK) {
        memcpy(hello->nonce, bytes, XM_JOB_NONCE_SIZE);
        memcpy(hello->proof, bytes + XM_JOB_NONCE_SIZE, XM_JOB_PROOF_SIZE);
    }
    return status;
}

/* The welcome proves rank 0 to the other side, as the hello proved that side to rank 0. */
size_t xm_bootstrap_welcome_encode(const xm_bootstrap_welcome_t *welcome,
                                   uint8_t bytes[XM_BOOTSTRAP_WELCOME_SIZE])
{
    memcpy(bytes, welcome->proof, XM_JOB_PROOF_SIZE);
    return XM_JOB_PROOF_SIZE +
           xm_bootstrap_identity_encode(&welcome->identity, bytes + XM_JOB_PROOF_SIZE);
}

xm_status_t xm_bootstrap_welcome_decode(const uint8_t *bytes, size_t length,
                                        xm_bootstrap_welcome_t *welcome)
{
    xm_status_t status;

    if (length < SMALLEST_WELCOME) {
        return xm_error_set(XM_ERR_CORRUPT, "bootstrap frame: a welcome of %zu bytes", length);
    }
    status = xm_bootstrap_identity_decode(bytes + XM_JOB_PROOF_SIZE, length - XM_JOB_PROOF_SIZE,
                                          &welcome->identity);
    if (status == XM_OK) {
        memcpy(welcome->proof, bytes, XM_JOB_PROOF_SIZE);
    }
    return status;
}

void xm_bootstrap_card_encode(const xm_bootstrap_card_t *card,
                              uint8_t bytes[XM_BOOTSTRAP_CARD_SIZE])
{
    xm_put_le(bytes, (uint32_t)card->port, 2);
    xm_put_le(bytes + 2, (uint32_t)card->count, 2);
    memcpy(bytes + 4, card->secret, sizeof(card->secret));
    memcpy(bytes + 4 + sizeof(card->secret), card->addresses, sizeof(card->addresses));
}

/* The addresses are not checked: connecting to a wrong one fails, and rank 0 has to prove
 * itself anyway. */
xm_status_t xm_bootstrap_card_decode(const uint8_t bytes[XM_BOOTSTRAP_CARD_SIZE],
                                     xm_bootstrap_card_t *card)
{
    uint32_t count = (uint32_t)xm_get_le(bytes + 2, 2);

    /* The count is checked because it limits a loop over the addresses. */
    if (count > XM_BOOTSTRAP_CARD_ADDRESSES) {
        return xm_error_set(XM_ERR_CORRUPT, "bootstrap card: %u addresses", count);
    }
    card->port = (int)xm_get_le(bytes, 2);
    card->count = (int)count;
    memcpy(card->secret, bytes + 4, sizeof(card->secret));
    memcpy(card->addresses, bytes + 4 + sizeof(card->secret), sizeof(card->addresses));
    return XM_OK;
}

void xm_bootstrap_length_encode(uint32_t length, uint8_t bytes[4])
{
    xm_put_le(bytes, length, 4);
}

/* Turns the table of lengths into offsets. A sum that does not match the payload exactly is
 * refused, so no offset can point outside; lengths of 32 bits and at most 2^20 ranks cannot
 * overflow a size. */
xm_status_t xm_bootstrap_lengths_decode(const uint8_t *bytes, size_t length, int size,
                                        size_t *offsets)
{
    size_t table = 4 * (size_t)size;

    if (length < table) {
        return xm_error_set(XM_ERR_CORRUPT, "bootstrap frame: lengths of %d ranks in %zu bytes",
                            size, length);
    }
    offsets[0] = 0;
    for (int rank = 0; rank < size; ++rank) {
        offsets[rank + 1] = offsets[rank] + (uint32_t)xm_get_le(bytes + 4 * (size_t)rank, 4);
    }
    if (offsets[size] != length - table) {
        return xm_error_set(XM_ERR_CORRUPT, "bootstrap frame: blocks of %zu bytes in %zu",
                            offsets[size], length - table);
    }
    return XM_OK;
}

size_t xm_bootstrap_fault_encode(const xm_bootstrap_fault_t *fault,
                                 uint8_t bytes[XM_BOOTSTRAP_FAULT_SIZE])
{
    xm_put_le(bytes, (uint32_t)fault->rank, 4);
    xm_put_le(bytes + 4, (uint32_t)fault->status, 4);
    return 8 + put_text(bytes + 8, fault->sentence, sizeof(fault->sentence));
}

/* Reads a fault. The status must be one of this library's failures: a success in a fault would
 * be taken for none. */
xm_status_t xm_bootstrap_fault_decode(const uint8_t *bytes, size_t length,
                                      xm_bootstrap_fault_t *fault)
{
    xm_bootstrap_fault_t decoded;
    /* A plain number until it is known to be one of the enumeration's. */
    int code;

    if (length < 10) {
        return xm_error_set(XM_ERR_CORRUPT, "bootstrap frame: a fault of %zu bytes", length);
    }
    decoded.rank = get_i32(bytes);
    code = get_i32(bytes + 4);
    XM_TRY(get_text(bytes + 8, length - 8, decoded.sentence, sizeof(decoded.sentence)));
    if (decoded.rank < -1 || decoded.rank >= XM_BOOTSTRAP_MAX_RANKS || code >= 0 ||
        code < LOWEST_STATUS) {
        return xm_error_set(XM_ERR_CORRUPT, "bootstrap frame: status %d of rank %d", code,
                            decoded.rank);
    }
    decoded.status = (xm_status_t)code;
    *fault = decoded;
    return XM_OK;
}
