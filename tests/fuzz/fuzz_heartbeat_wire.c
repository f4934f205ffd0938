/* SPDX-License-Identifier: Apache-2.0 */
/* Any datagram that a stranger may send, and any that a member with the key may: refused, or a
 * value that encodes to the same bytes again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/fault/heartbeat_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t key[XM_SIPHASH_KEY_SIZE] = "crossmesh fuzzer";

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

/* The decoder sees an allocation of exactly the length, so that reading past it is found. */
static void try_bytes(const uint8_t *data, size_t size, bool sealed)
{
    size_t length = sealed ? size + XM_HEARTBEAT_CODE_SIZE : size;
    uint8_t *exact = malloc(length > 0 ? length : 1), again[XM_HEARTBEAT_MAX_SIZE];
    xm_heartbeat_frame_t frame;

    expect(exact != NULL);
    if (size > 0) {
        memcpy(exact, data, size);
    }
    if (sealed) {
        uint64_t code = xm_siphash(key, exact, size);

        for (int i = 0; i < XM_HEARTBEAT_CODE_SIZE; ++i) {
            exact[size + (size_t)i] = (uint8_t)(code >> (8 * i));
        }
    }
    if (xm_heartbeat_decode(exact, length, key, &frame) == XM_OK) {
        expect(frame.sender >= 0 && frame.receiver >= 0);
        expect(xm_heartbeat_encode(&frame, key, again) == length);
        expect(memcmp(again, exact, length) == 0);
    }
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_bytes(data, size, false);
    try_bytes(data, size, true);
    return 0;
}
