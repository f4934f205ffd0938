/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One allgather of what each rank has received, or of why it cannot take part. The records name
 * the ranks that they are of, so who is missing among them is lost; survivors keep their order.
 */
#include "resharding/reshard/continue.h"

#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/job.h"

enum { STATUS_SIZE = 4 /* in front of the record or the sentence */ };

typedef struct {
    xm_worker_t *worker;
    const xm_plan_t *plan;
    int size;
    uint8_t *gathered;
    size_t *offsets;
    xm_delivered_t *records; /* of ranks that the plan knows */
    int *lost;
    int record_count, lost_count;
} rest_t;

/* Sends this rank's part; an empty record comes from a rank without one. */
static xm_status_t gather(rest_t *self, xm_status_t status, const xm_delivered_t *record)
{
    const char *sentence = xm_last_error();
    const void *bytes = status < 0 ? sentence : record->bytes;
    size_t length = status < 0 ? strlen(sentence) : record->length;
    uint8_t *blob = malloc(STATUS_SIZE + length);
    xm_status_t sent;

    XM_NEED_MEMORY(blob, "continuing a reshard");
    xm_put_le(blob, (uint32_t)status, STATUS_SIZE);
    if (length > 0) {
        memcpy(blob + STATUS_SIZE, bytes, length);
    }
    sent = xm_bootstrap_allgatherv(xm_worker_bootstrap(self->worker), blob, STATUS_SIZE + length,
                                   (void **)&self->gathered, &self->offsets,
                                   xm_worker_timeout(self->worker));
    free(blob);
    return sent;
}

/* The first rank that could not take part; the others quote it. */
static xm_status_t check_parts(const rest_t *self)
{
    for (int r = 0; r < xm_worker_size(self->worker); ++r) {
        const uint8_t *part = self->gathered + self->offsets[r];
        size_t length = self->offsets[r + 1] - self->offsets[r];
        xm_status_t status = length < STATUS_SIZE
                                 ? XM_ERR_MISMATCH
                                 : (xm_status_t)(int32_t)xm_get_le(part, STATUS_SIZE);

        if (status < 0) {
            return xm_error_set(status, "rank %d cannot continue the reshard: %.*s", r,
                                length > STATUS_SIZE ? (int)(length - STATUS_SIZE) : 0,
                                (const char *)part + STATUS_SIZE);
        }
    }
    return XM_OK;
}

/* Sorts out the records, and which ranks none of them is of. */
static xm_status_t list_ranks(rest_t *self)
{
    int size = xm_worker_size(self->worker), known = xm_plan_living(self->plan), next = 0;

    known = known < self->size ? known : self->size;
    self->records = malloc((size_t)size * sizeof(*self->records));
    self->lost = malloc((size_t)self->size * sizeof(*self->lost));
    XM_NEED_MEMORY(self->records != NULL && self->lost != NULL, "continuing a reshard");
    for (int r = 0; r < size; ++r) {
        xm_delivered_t record = {self->gathered + self->offsets[r] + STATUS_SIZE,
                                 self->offsets[r + 1] - self->offsets[r] - STATUS_SIZE};
        int rank = xm_delivered_rank(&record);

        if (rank < next || rank >= self->size) {
            return XM_MISMATCH("rank %d was rank %d as the reshard was made, which is not how the "
                               "ranks of this group follow each other",
                               r, rank);
        }
        for (; next < rank && next < known; ++next) {
            self->lost[self->lost_count++] = next;
        }
        next = rank + 1;
        if (rank < known) {
            self->records[self->record_count++] = record;
        }
    }
    for (; next < known; ++next) {
        self->lost[self->lost_count++] = next;
    }
    return XM_OK;
}

xm_status_t xm_continue_plan(xm_worker_t *worker, const xm_plan_t *plan, int size,
                             const xm_reshard_continue_params_t *params, xm_status_t status,
                             const xm_delivered_t *record, xm_plan_t **rest)
{
    rest_t self = {.worker = worker, .plan = plan, .size = size};
    xm_plan_without_params_t without = XM_PLAN_WITHOUT_PARAMS_INIT;
    xm_error_t own;

    xm_error_save(&own, status);
    status = gather(&self, status, record);
    XM_THEN(status, own.status < 0 ? xm_error_restore(&own) : check_parts(&self));
    XM_THEN(status, list_ranks(&self));
    if (status == XM_OK) {
        without.lost = self.lost;
        without.lost_count = self.lost_count;
        without.delivered = self.records;
        without.delivered_count = self.record_count;
        without.network = params->network;
        without.gap = params->gap;
        without.arg = params->arg;
        status = xm_plan_without(plan, &without, rest);
    }
    free(self.lost);
    free(self.records);
    free(self.offsets);
    free(self.gathered);
    return status;
}
