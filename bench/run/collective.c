/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the outcome of a step common to all ranks. Without this a rank that fails alone
 * would leave the others in their next collective call until the timeout.
 */
#include "bench/run/collective.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SENTENCE = 1020 };

typedef struct {
    int32_t status;
    char sentence[SENTENCE];
} outcome_t;

/* Returns the first failing rank's status, with its sentence, on all ranks; the rank is
 * named where not all ranks failed alike. */
xm_status_t rb_share_status(xm_worker_t *worker, xm_status_t mine)
{
    int size = xm_worker_size(worker), first = 0;
    bool alike = true;
    outcome_t own = {.status = mine};
    outcome_t *all = malloc((size_t)size * sizeof(*all));
    xm_status_t status;

    XM_NEED_MEMORY(all, "the outcomes of %d ranks", size);
    if (mine < 0) {
        (void)snprintf(own.sentence, sizeof(own.sentence), "%s", xm_last_error());
    }
    status = xm_worker_allgather(worker, &own, all, sizeof(own));
    if (status < 0) {
        goto free_all;
    }
    while (first < size && all[first].status == XM_OK) {
        ++first;
    }
    if (first == size) {
        goto free_all;
    }
    for (int r = 0; r < size; ++r) {
        alike = alike && all[r].status == all[first].status &&
                strncmp(all[r].sentence, all[first].sentence, SENTENCE) == 0;
    }
    status = (xm_status_t)all[first].status;
    (void)xm_error_set(status, "%.*s", SENTENCE, all[first].sentence);
    if (!alike && first > 0) {
        (void)xm_error_prefix(status, "rank %d", first);
    }
    (void)xm_worker_fail_together(worker, status);

free_all:
    free(all);
    return status;
}
