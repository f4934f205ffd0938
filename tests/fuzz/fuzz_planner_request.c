/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a question to a planner: refused with a sentence, or a question that can be written.
 * What is written and can be read again says the same; the writer and the search refuse more than
 * the reader, counts of micro-batches that do not divide the batch above all. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "planner/plugin/request.h"
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
    ap_planner_request_t request = {0}, again = {0};
    char *text, *text_again;

    if (ap_planner_request_parse((const char *)data, size, &request) < 0) {
        expect(xm_last_error()[0] != '\0');
        ap_planner_request_clear(&request);
        return 0;
    }
    if (ap_planner_request_text(&request.params, &text) < 0) {
        expect(xm_last_error()[0] != '\0');
        ap_planner_request_clear(&request);
        return 0;
    }
    if (ap_planner_request_parse(text, strlen(text), &again) == XM_OK) {
        expect(ap_planner_request_text(&again.params, &text_again) == XM_OK);
        expect(strcmp(text, text_again) == 0);
        free(text_again);
    }
    free(text);
    ap_planner_request_clear(&again);
    ap_planner_request_clear(&request);
    return 0;
}
