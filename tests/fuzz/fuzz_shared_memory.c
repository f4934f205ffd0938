/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a key, and any change of a right one: what is mapped is as long as it says. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/memory/shared_memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LENGTH = 10000 };

static void try_key(const unsigned char *key)
{
    xm_shared_view_t view;

    if (xm_shared_memory_attach(key, &view) == XM_OK) {
        /* Only the low bits of the length can differ from the owner's. */
        if (((const char *)view.address)[view.length - 1] != 7 && view.length == LENGTH) {
            abort();
        }
        xm_shared_memory_detach(&view);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static xm_shared_memory_t *memory;
    unsigned char key[XM_SHARED_MEMORY_KEY_SIZE];

    if (memory == NULL) {
        if (xm_shared_memory_create(LENGTH, &memory) < 0) {
            abort();
        }
        memset(xm_shared_memory_address(memory), 7, LENGTH);
    }
    if (size < sizeof(key)) {
        return 0;
    }
    try_key(data);
    xm_shared_memory_key(memory, key);
    for (size_t i = 0; i < sizeof(key); ++i) {
        key[i] ^= data[i];
    }
    try_key(key);
    return 0;
}
