/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: the reader of parallel plans refuses them with a sentence, or makes a plan that
 * survives writing and reading. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/json_mutator.h"
#include "planner/plan/plan.h"

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

static void look(const ap_plan_t *plan)
{
    int stages = ap_plan_stages(plan);

    expect(stages >= 1 && ap_plan_boundaries(plan) == stages - 1);
    for (int s = 0; s < stages; ++s) {
        const ap_plan_stage_t *stage = ap_plan_stage(plan, s);

        expect(stage->first_layer <= stage->last_layer);
        expect(stage->hosts >= 1 && stage->devices_per_host >= 1);
        expect(ap_plan_stage_memory(stage) >= 0 && ap_plan_stage_seconds(plan, s) >= 0);
    }
    expect(strlen(ap_plan_digest(plan)) == 32);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ap_plan_t *plan = NULL, *again = NULL;
    char *text, *text_again;

    if (ap_plan_parse("fuzz", (const char *)data, size, &plan) < 0) {
        expect(plan == NULL && strncmp(xm_last_error(), "fuzz: ", strlen("fuzz: ")) == 0);
        return 0;
    }
    look(plan);
    text = ap_plan_text(plan);
    expect(text != NULL && ap_plan_parse("again", text, strlen(text), &again) == XM_OK);
    text_again = ap_plan_text(again);
    expect(text_again != NULL && strcmp(text, text_again) == 0);
    expect(strcmp(ap_plan_digest(plan), ap_plan_digest(again)) == 0);
    free(text_again);
    free(text);
    ap_plan_destroy(again);
    ap_plan_destroy(plan);
    return 0;
}
