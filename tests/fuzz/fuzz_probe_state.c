/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes in the file of an interrupted probe: refused with a sentence, or numbers that are the
 * same when they are written and read again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/probe/state.h"
#include "tests/fuzz/json_mutator.h"

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    return json_mutate(data, size, max_size, seed);
}

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    xm_probe_state_t *state = NULL, *again = NULL;
    char *text, *text_again;
    size_t count;

    if (xm_probe_state_from_text((const char *)data, size, "fuzz", "2 ranks", &state) < 0) {
        expect(state == NULL && strstr(xm_last_error(), "fuzz") != NULL);
        return 0;
    }
    expect(xm_probe_state_find(state, "no such step", &count) == NULL);
    expect(xm_probe_state_to_text(state, &text) == XM_OK);
    expect(xm_probe_state_from_text(text, strlen(text), "again", "2 ranks", &again) == XM_OK);
    expect(xm_probe_state_to_text(again, &text_again) == XM_OK && strcmp(text, text_again) == 0);
    free(text_again);
    free(text);
    xm_probe_state_destroy(again);
    xm_probe_state_destroy(state);
    return 0;
}
