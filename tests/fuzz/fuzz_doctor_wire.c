/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes that a rank may send when a job is examined: refused, or a record that encodes to the
 * same bytes again. The first byte says which record. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/doctor/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

/* The record is as long as its kind; what the input lacks is zero. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bool is_card = size > 0 && data[0] % 2 == 0;
    size_t length = is_card ? XM_CARD_SIZE : XM_FINDING_SIZE;
    uint8_t *bytes = calloc(1, length), *again = malloc(length);
    xm_card_t card;
    xm_finding_t finding;

    expect(bytes != NULL && again != NULL);
    if (size > 1) {
        memcpy(bytes, data + 1, size - 1 < length ? size - 1 : length);
    }
    if (is_card && xm_card_decode(bytes, length, &card)) {
        xm_card_encode(&card, again);
        expect(memcmp(bytes, again, length) == 0);
    } else if (!is_card && xm_finding_decode(bytes, length, &finding)) {
        xm_finding_encode(&finding, again);
        expect(memcmp(bytes, again, length) == 0);
    }
    free(again);
    free(bytes);
    return 0;
}
