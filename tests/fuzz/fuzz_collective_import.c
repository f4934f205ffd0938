/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: the importer refuses them with a sentence, or makes curves that a profile may hold. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/profile/collective_import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_hint(const char *text, size_t size, const xm_collective_hint_t *hint)
{
    xm_collective_curve_t *curves = NULL;
    size_t count = 0;

    if (xm_collective_import(text, size, "fuzz", hint, &curves, &count) < 0) {
        if (curves != NULL || strncmp(xm_last_error(), "fuzz: ", strlen("fuzz: ")) != 0) {
            abort();
        }
        return;
    }
    for (size_t i = 0; i < count; ++i) {
        if (xm_collective_curve_check("curve", &curves[i]) < 0) {
            abort();
        }
    }
    xm_collective_curves_free(curves, count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const xm_collective_hint_t none = XM_COLLECTIVE_HINT_INIT;
    const xm_collective_hint_t all = {
        .kind = XM_ALL_TO_ALL, .hosts = 2, .devices_per_host = 4, .groups_per_host = 1};
    /* An allocation of exactly the length, so that reading past it is found. */
    char *exact = malloc(size > 0 ? size : 1);

    if (exact == NULL) {
        abort();
    }
    if (size > 0) {
        memcpy(exact, data, size);
    }
    try_hint(exact, size, &none);
    try_hint(exact, size, &all);
    free(exact);
    return 0;
}
