/* SPDX-License-Identifier: Apache-2.0 */
/* Any frame that a stranger may send to a detector, and any that a member with the key may:
 * refused, or a value that encodes to the same bytes again. The first byte is the number of ranks.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/fault/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t key[XM_SIPHASH_KEY_SIZE] = "crossmesh fuzzer";

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

/* The decoder sees an allocation of exactly the length, so that reading past it is found. */
static void try_bytes(const uint8_t *data, size_t size, int ranks, bool sealed)
{
    size_t length = sealed ? size + XM_FRAME_CODE_SIZE : size;
    uint8_t *exact = malloc(length > 0 ? length : 1), *again = malloc(xm_frame_max_size(ranks));
    uint8_t *standing = malloc((size_t)ranks);
    xm_frame_t frame = {.standing = standing};

    expect(exact != NULL && again != NULL && standing != NULL);
    if (size > 0) {
        memcpy(exact, data, size);
    }
    if (sealed) {
        uint64_t code = xm_siphash(key, exact, size);

        for (int i = 0; i < XM_FRAME_CODE_SIZE; ++i) {
            exact[size + (size_t)i] = (uint8_t)(code >> (8 * i));
        }
    }
    if (xm_frame_decode(exact, length, ranks, key, &frame) == XM_OK) {
        expect(frame.sender >= 0 && frame.sender < ranks && frame.receiver >= 0);
        expect(frame.receiver < ranks && frame.about >= -1 && frame.about < ranks);
        expect(xm_frame_encode(&frame, ranks, key, again) == length);
        expect(memcmp(again, exact, length) == 0);
    }
    free(standing);
    free(again);
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0) {
        try_bytes(data + 1, size - 1, data[0] + 1, false);
        try_bytes(data + 1, size - 1, data[0] + 1, true);
    }
    return 0;
}
