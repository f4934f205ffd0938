/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes a stranger may send: each decoder refuses them, or makes a value that encodes to the
 * same bytes again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/job/bootstrap_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void try_greetings(const uint8_t *exact, size_t size)
{
    uint8_t again[XM_BOOTSTRAP_HELLO_SIZE];
    xm_bootstrap_challenge_t challenge;
    xm_bootstrap_hello_t hello;
    xm_bootstrap_welcome_t welcome;

    if (xm_bootstrap_challenge_decode(exact, size, &challenge) == XM_OK) {
        expect(size == XM_BOOTSTRAP_CHALLENGE_SIZE);
        xm_bootstrap_challenge_encode(&challenge, again);
        expect(memcmp(again, exact, size) == 0);
    }
    if (xm_bootstrap_hello_decode(exact, size, &hello) == XM_OK) {
        expect(hello.identity.rank < hello.identity.size);
        expect(xm_bootstrap_hello_encode(&hello, again) == size);
        expect(memcmp(again, exact, size) == 0);
    }
    if (xm_bootstrap_welcome_decode(exact, size, &welcome) == XM_OK) {
        expect(xm_bootstrap_welcome_encode(&welcome, again) == size);
        expect(memcmp(again, exact, size) == 0);
    }
}

static void try_card(const uint8_t *exact, size_t size)
{
    uint8_t again[XM_BOOTSTRAP_CARD_SIZE];
    xm_bootstrap_card_t card;

    if (size == XM_BOOTSTRAP_CARD_SIZE && xm_bootstrap_card_decode(exact, &card) == XM_OK) {
        expect(card.count <= XM_BOOTSTRAP_CARD_ADDRESSES && card.port < 1 << 16);
        xm_bootstrap_card_encode(&card, again);
        expect(memcmp(again, exact, size) == 0);
    }
}

/* The blocks of a job whose size the first byte says. */
static void try_lengths(const uint8_t *exact, size_t size)
{
    size_t offsets[257];
    int ranks = size > 0 ? exact[0] : 1;

    if (ranks > 0 && xm_bootstrap_lengths_decode(exact, size, ranks, offsets) == XM_OK) {
        expect(offsets[0] == 0 && offsets[ranks] == size - 4 * (size_t)ranks);
        for (int rank = 0; rank < ranks; ++rank) {
            expect(offsets[rank] <= offsets[rank + 1]);
        }
    }
}

/* The decoders see an allocation of exactly the length, so that reading past it is found. */
static void try_payloads(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size > 0 ? size : 1);
    uint8_t again[XM_BOOTSTRAP_FAULT_SIZE + XM_BOOTSTRAP_IDENTITY_SIZE];
    xm_bootstrap_identity_t identity;
    xm_bootstrap_fault_t fault;

    expect(exact != NULL);
    if (size > 0) {
        memcpy(exact, data, size);
    }
    if (xm_bootstrap_identity_decode(exact, size, &identity) == XM_OK) {
        expect(strnlen(identity.host, sizeof(identity.host)) < sizeof(identity.host));
        expect(identity.rank < identity.size);
        expect(xm_bootstrap_identity_encode(&identity, again) == size);
        expect(memcmp(again, exact, size) == 0);
    }
    if (xm_bootstrap_fault_decode(exact, size, &fault) == XM_OK) {
        expect(strnlen(fault.sentence, sizeof(fault.sentence)) < sizeof(fault.sentence));
        expect(fault.status < 0);
        expect(xm_bootstrap_fault_encode(&fault, again) == size);
        expect(memcmp(again, exact, size) == 0);
    }
    try_greetings(exact, size);
    try_card(exact, size);
    try_lengths(exact, size);
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    xm_bootstrap_header_t header;
    uint8_t again[XM_BOOTSTRAP_HEADER_SIZE];

    try_payloads(data, size);
    if (size < XM_BOOTSTRAP_HEADER_SIZE || xm_bootstrap_header_decode(data, &header) < 0) {
        return 0;
    }
    expect(header.length <= XM_BOOTSTRAP_MAX_GATHER);
    xm_bootstrap_header_encode(&header, again);
    expect(memcmp(again, data, sizeof(again)) == 0);
    try_payloads(data + XM_BOOTSTRAP_HEADER_SIZE, size - XM_BOOTSTRAP_HEADER_SIZE);
    return 0;
}
