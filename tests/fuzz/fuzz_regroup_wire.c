/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes that a stranger may send to the gathering socket, and any that a member with the key
 * may: refused, waited for, or a value that encodes to the same bytes again. The first byte is the
 * number of ranks. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/fault/regroup_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t key[XM_SIPHASH_KEY_SIZE] = "crossmesh fuzzer";

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void try_bytes(const uint8_t *data, size_t size, int ranks, bool sealed)
{
    size_t length = sealed ? size + XM_REGROUP_CODE_SIZE : size, used = 0;
    uint8_t *exact = malloc(length > 0 ? length : 1), *again = malloc(xm_regroup_max_size(ranks));
    bool *set = calloc((size_t)ranks, sizeof(*set));
    xm_regroup_frame_t frame = {.set = set};

    expect(exact != NULL && again != NULL && set != NULL);
    if (size > 0) {
        memcpy(exact, data, size);
    }
    if (sealed) {
        uint64_t code = xm_siphash(key, exact, size);

        for (int i = 0; i < XM_REGROUP_CODE_SIZE; ++i) {
            exact[size + (size_t)i] = (uint8_t)(code >> (8 * i));
        }
    }
    if (xm_regroup_decode(exact, length, ranks, key, &frame, &used) == XM_OK) {
        expect(used <= length && frame.sender >= 0 && frame.sender < ranks);
        expect(xm_regroup_encode(&frame, ranks, key, again) == used);
        expect(memcmp(again, exact, used) == 0);
    }
    free(set);
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
