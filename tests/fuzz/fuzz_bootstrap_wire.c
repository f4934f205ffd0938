/* Any bytes a stranger may send: each decoder refuses them, or makes a value that encodes to the
 * same bytes again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/bootstrap_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(bool condition)
{
    if (!condition) {
        abort();
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
