/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of what a rank has received of a plan. Transfers reach a rank about in plan order, so a
 * record lists stretches of them and not each one: that keeps it at some hundred bytes, and the
 * ranks of a job send them to each other. Records come from other processes or from files, so the
 * reader believes nothing.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "resharding/plan/plan_private.h"

/* Little-endian: version, rank, run, the plan's digest as text, number of arrivals, arrivals. */
enum {
    VERSION = 1,
    AT_RANK = 1,
    AT_RUN = AT_RANK + 4,
    AT_DIGEST = AT_RUN + 8,
    DIGEST_SIZE = XM_DIGEST_TEXT - 1,
    AT_COUNT = AT_DIGEST + DIGEST_SIZE,
    AT_ARRIVALS = AT_COUNT + 8,
    ARRIVAL_SIZE = 3 * 8
};

static xm_status_t append(xm_delivery_t *delivery, const xm_arrival_t *arrival)
{
    if (delivery->count == delivery->capacity) {
        int64_t grown = delivery->capacity > 0 ? delivery->capacity * 2 : 16;
        xm_arrival_t *arrivals = realloc(delivery->arrivals, (size_t)grown * sizeof(*arrivals));

        XM_NEED_MEMORY(arrivals, "recording what has arrived");
        delivery->arrivals = arrivals;
        delivery->capacity = grown;
    }
    delivery->arrivals[delivery->count++] = *arrival;
    return XM_OK;
}

/* A stretch is open as long as nothing of its end has been missing: its `part` is −1 until then.
 * What lies between two transfers that come to the rank is none of its business, so it counts as
 * arrived. */
xm_status_t xm_delivery_add(xm_delivery_t *delivery, int64_t transfer, int64_t elements,
                            int64_t length)
{
    xm_arrival_t *last = delivery->count > 0 ? &delivery->arrivals[delivery->count - 1] : NULL;
    bool open = last != NULL && last->part < 0;
    xm_arrival_t added = {transfer, transfer, elements};

    if (elements == length) {
        added.end = transfer + 1;
        added.part = -1;
    }
    if (!open) {
        return elements > 0 ? append(delivery, &added) : XM_OK;
    }
    last->end = added.end;
    last->part = added.part;
    return XM_OK;
}

xm_status_t xm_delivery_write(const xm_delivery_t *delivery, const xm_plan_t *plan, void **bytes,
                              size_t *length)
{
    uint8_t *written;

    *length = AT_ARRIVALS + (size_t)delivery->count * ARRIVAL_SIZE;
    written = malloc(*length);
    XM_NEED_MEMORY(written, "recording what has arrived");
    written[0] = VERSION;
    xm_put_le(written + AT_RANK, (uint32_t)delivery->rank, 4);
    xm_put_le(written + AT_RUN, delivery->run, 8);
    memcpy(written + AT_DIGEST, plan->digest, DIGEST_SIZE);
    xm_put_le(written + AT_COUNT, (uint64_t)delivery->count, 8);
    for (int64_t i = 0; i < delivery->count; ++i) {
        const xm_arrival_t *arrival = &delivery->arrivals[i];
        uint8_t *at = written + AT_ARRIVALS + i * ARRIVAL_SIZE;

        xm_put_le(at, (uint64_t)arrival->first, 8);
        xm_put_le(at + 8, (uint64_t)arrival->end, 8);
        xm_put_le(at + 16, arrival->part > 0 ? (uint64_t)arrival->part : 0, 8);
    }
    *bytes = written;
    return XM_OK;
}

/* Stretches rise, do not touch, and name transfers that there are. */
static bool fits(const xm_plan_t *plan, const xm_arrival_t *arrival, int64_t after)
{
    int64_t count = plan->builder.transfer_count;

    if (arrival->first < after || arrival->end < arrival->first || arrival->end > count) {
        return false;
    }
    if (arrival->part > 0 && arrival->end < count) {
        const xm_transfer_t transfer = xm_plan_transfer(plan, arrival->end);

        return arrival->part < transfer.end - transfer.first;
    }
    return arrival->part == 0;
}

static xm_status_t read_arrivals(xm_delivery_t *delivery, const xm_plan_t *plan,
                                 const uint8_t *bytes, int64_t count)
{
    int64_t after = 0;

    for (int64_t i = 0; i < count; ++i) {
        const uint8_t *at = bytes + i * ARRIVAL_SIZE;
        const xm_arrival_t arrival = {(int64_t)xm_get_le(at, 8), (int64_t)xm_get_le(at + 8, 8),
                                      (int64_t)xm_get_le(at + 16, 8)};

        if (!fits(plan, &arrival, after)) {
            return xm_error_set(XM_ERR_CORRUPT,
                                "the record of what rank %d has received is damaged: its stretch "
                                "%" PRId64 " is none of the plan's",
                                delivery->rank, i);
        }
        after = arrival.end + 1;
        XM_TRY(append(delivery, &arrival));
    }
    return XM_OK;
}

xm_status_t xm_delivery_read(xm_delivery_t *delivery, const xm_plan_t *plan,
                             const xm_delivered_t *record)
{
    const uint8_t *bytes = record->bytes;
    uint64_t count;

    if (bytes == NULL || record->length < AT_ARRIVALS || bytes[0] != VERSION) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "%zu bytes are no record of what a rank has received, or one of "
                            "another version",
                            record->length);
    }
    delivery->rank = (int)(uint32_t)xm_get_le(bytes + AT_RANK, 4);
    delivery->run = xm_get_le(bytes + AT_RUN, 8);
    count = xm_get_le(bytes + AT_COUNT, 8);
    if (delivery->rank < 0 || count != (record->length - AT_ARRIVALS) / ARRIVAL_SIZE ||
        (record->length - AT_ARRIVALS) % ARRIVAL_SIZE != 0) {
        return xm_error_set(XM_ERR_CORRUPT,
                            "the record of what rank %d has received is damaged: it has %zu bytes "
                            "for %" PRIu64 " stretches",
                            delivery->rank, record->length, count);
    }
    if (memcmp(bytes + AT_DIGEST, plan->digest, DIGEST_SIZE) != 0) {
        return XM_MISMATCH("the record of what rank %d has received is of plan %.*s, not of %s",
                           delivery->rank, (int)DIGEST_SIZE, (const char *)bytes + AT_DIGEST,
                           plan->digest);
    }
    return read_arrivals(delivery, plan, bytes + AT_ARRIVALS, (int64_t)count);
}

int xm_delivered_rank(const xm_delivered_t *record)
{
    return record->length < AT_ARRIVALS
               ? -1
               : (int)(uint32_t)xm_get_le((const uint8_t *)record->bytes + AT_RANK, 4);
}

void xm_delivery_clear(xm_delivery_t *delivery)
{
    free(delivery->arrivals);
    memset(delivery, 0, sizeof(*delivery));
}
