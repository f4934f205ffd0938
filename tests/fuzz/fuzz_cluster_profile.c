/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: the parser refuses them with a sentence, or makes a profile that survives writing and
 * reading. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/profile/cluster_profile.h"
#include "tests/fuzz/json_mutator.h"

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    return json_mutate(data, size, max_size, seed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    xm_cluster_profile_t *profile = NULL, *again = NULL;
    char *text = NULL, *text_again = NULL;

    if (xm_cluster_profile_from_text((const char *)data, size, "fuzz", &profile) < 0) {
        if (profile != NULL || strncmp(xm_last_error(), "fuzz: ", strlen("fuzz: ")) != 0) {
            abort();
        }
        return 0;
    }
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        double small = xm_cluster_profile_seconds(profile, (xm_link_class_t)link, 1);
        double large = xm_cluster_profile_seconds(profile, (xm_link_class_t)link, 1e12);

        if (!(small > 0) || !(large >= small)) {
            abort();
        }
    }
    if (xm_cluster_profile_to_text(profile, &text) < 0 ||
        xm_cluster_profile_from_text(text, strlen(text), "again", &again) < 0 ||
        xm_cluster_profile_to_text(again, &text_again) < 0 || strcmp(text, text_again) != 0) {
        abort();
    }
    free(text_again);
    free(text);
    xm_cluster_profile_destroy(again);
    xm_cluster_profile_destroy(profile);
    return 0;
}
