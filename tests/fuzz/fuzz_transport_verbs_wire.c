/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes a peer may send: each decoder refuses them, or makes a value that encodes to the same
 * bytes again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/transport/rails/frame.h"
#include "comm/transport/verbs/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

/* The decoders see an allocation of exactly the length, so that reading past it is found. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size > 0 ? size : 1), again[XM_VERBS_OFFER_SIZE];
    xm_rails_frame_t frame;
    xm_verbs_offer_t offer;

    expect(exact != NULL);
    if (size > 0) {
        memcpy(exact, data, size);
    }
    if (xm_rails_frame_decode(exact, size, &frame) == XM_OK) {
        xm_rails_frame_encode(&frame, again);
        expect(size == XM_RAILS_FRAME_SIZE && memcmp(again, exact, size) == 0);
    }
    if (xm_verbs_offer_decode(exact, size, &offer)) {
        expect(xm_verbs_offer_encode(&offer, again) == size);
        expect(memcmp(again, exact, size) == 0);
        for (int i = 0; i < offer.ports; ++i) {
            expect(strnlen(offer.port[i].name, XM_NICS_NAME_SIZE) < XM_NICS_NAME_SIZE);
        }
    }
    free(exact);
    return 0;
}
