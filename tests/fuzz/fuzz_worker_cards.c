/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a job tell each other before the first message: who sits where, the topology of
 * each host, the NICs to choose from, the rails, where the detectors listen. This rank is the last
 * one; all others answer with its own bytes, with its bytes changed here and there, or with any
 * bytes. Whatever they are, the rank goes on with a description that holds together, or says why
 * not. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/fault/endpoint.h"
#include "comm/job.h"
#include "comm/worker/nics.h"
#include "comm/worker/rails.h"
#include "comm/worker/slots.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

enum { RANKS = 3 };

typedef struct {
    const uint8_t *data;
    size_t left;
} input_t;

static uint8_t next(input_t *input)
{
    if (input->left == 0) {
        return 0;
    }
    --input->left;
    return *input->data++;
}

static xm_status_t gather(void *context, const void *send, void *receive, size_t length,
                          void **request)
{
    input_t *input = context;

    *request = input;
    for (int rank = 0; rank < RANKS; ++rank) {
        uint8_t *place = (uint8_t *)receive + (size_t)rank * length;
        uint8_t how = rank < RANKS - 1 ? next(input) : 0;

        memcpy(place, send, length);
        for (int i = 0; i < how % 8; ++i) { /* some bytes are other ones */
            size_t at = next(input) | (size_t)next(input) << 8;

            place[at % length] ^= next(input);
        }
        for (size_t i = 0; how >= 240 && i < length; ++i) {
            place[i] = next(input);
        }
    }
    return XM_OK;
}

static xm_status_t gathered(void *request)
{
    (void)request;
    return XM_OK;
}

static void released(void *request)
{
    (void)request;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    return setenv("XM_TOPOLOGY", FUZZ_TOPOLOGY, 1) | setenv("XM_HOST", "a", 1) |
           setenv("XM_LOG", "error", 1);
}

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void check_slots(const xm_worker_slots_t *slots)
{
    expect(slots->host_count >= 1 && slots->host_count <= RANKS);
    for (int rank = 0; rank < RANKS; ++rank) {
        expect(slots->host_of[rank] >= 0 && slots->host_of[rank] < slots->host_count);
        expect(slots->machine_of[rank] >= 0 && slots->machine_of[rank] <= rank);
        expect(strlen(slots->host_name[slots->host_of[rank]]) < 4096);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t input = {data, size};
    xm_oob_t oob = {.struct_size = sizeof(oob),
                    .rank = RANKS - 1,
                    .size = RANKS,
                    .context = &input,
                    .allgather_post = gather,
                    .allgather_test = gathered,
                    .allgather_free = released};
    xm_worker_slots_t slots = {0};
    xm_endpoint_t endpoint = {0};
    xm_bootstrap_t *bootstrap;
    char nics[XM_WORKER_NICS_SIZE] = "";

    expect(xm_bootstrap_create_oob(&oob, &bootstrap) == XM_OK);
    if (xm_worker_slots_exchange(&slots, bootstrap, NULL, 10.0) == XM_OK) {
        check_slots(&slots);
        if (xm_worker_nics_choose(&slots, bootstrap, 10.0, nics) == XM_OK) {
            expect(strnlen(nics, sizeof(nics)) < sizeof(nics));
        }
        if (xm_worker_rails_exchange(&slots.rails, bootstrap, slots.host_of, "lo=1000000000",
                                     10.0) == XM_OK) {
            expect(slots.rails.count >= 1 && slots.rails.count <= RANKS);
            for (int rank = 0; rank < RANKS; ++rank) {
                expect(slots.rails.of[rank] >= 0 && slots.rails.of[rank] < slots.rails.count);
            }
        }
    }
    if (xm_endpoint_read_card(data, size, 1, &endpoint) == XM_OK) {
        expect(endpoint.count >= 1 && endpoint.count <= XM_ENDPOINT_ADDRESSES);
        expect(strnlen(endpoint.host, sizeof(endpoint.host)) < sizeof(endpoint.host));
    }
    xm_worker_slots_free(&slots);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}
