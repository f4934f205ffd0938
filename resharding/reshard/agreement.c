/* SPDX-License-Identifier: Apache-2.0 */
/* One allgather of heads: version, status, free channels, hash of what is intended. */
#include "resharding/reshard/agreement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/job.h"
#include "comm/base.h"
#include "comm/worker.h"
#include "resharding/reshard/agree.h"

enum {
    VERSION = 1,
    WORDS = 4, /* of 64 channels */
    AT_STATUS = 1,
    AT_CHANNELS = AT_STATUS + 4,
    AT_HASH = AT_CHANNELS + WORDS * 8,
    HEAD_SIZE = AT_HASH + XM_AGREE_HASH_SIZE
};

struct xm_agreement {
    xm_worker_t *worker;
    int64_t start_ns;
    bool posted;
    char *strings; /* what this rank intends, or why it cannot; NULL: nothing is left to say */
    size_t length;
    unsigned char head[HEAD_SIZE];
    unsigned char *heads; /* by rank */
};

/* Channel 0 is for messages of the caller's own, 255 the worker's. */
static void list_free(const xm_transport_t *transport, uint64_t channels[WORDS])
{
    for (int i = 0; i < WORDS; ++i) {
        channels[i] = ~(transport->spent_channels[i] | transport->taken_channels[i]);
    }
    channels[0] &= ~UINT64_C(1);
    channels[WORDS - 1] &= ~(UINT64_C(1) << 63);
    if (xm_message_proves()) {
        channels[WORDS - 1] &= ~(UINT64_C(1) << (XM_MESSAGE_HASH_CHANNEL % 64) |
                                 UINT64_C(1) << (XM_MESSAGE_ANSWER_CHANNEL % 64));
    }
}

static xm_status_t lowest(const uint64_t channels[WORDS], int *channel)
{
    for (int i = 0; i < WORDS; ++i) {
        if (channels[i] != 0) {
            *channel = 64 * i + __builtin_ctzll(channels[i]);
            return XM_OK;
        }
    }
    return XM_UNSUPPORTED("none of the 254 channels for reshards is free on all ranks: destroy "
                          "reshards, or shrink the group after failures");
}

xm_status_t xm_agreement_free_channel(const xm_transport_t *transport, int *channel)
{
    uint64_t channels[WORDS];

    list_free(transport, channels);
    return lowest(channels, channel);
}

static void fill_head(xm_agreement_t *self, xm_status_t status)
{
    uint64_t channels[WORDS];

    list_free(xm_worker_transport(self->worker), channels);
    self->head[0] = VERSION;
    xm_put_le(self->head + AT_STATUS, (uint32_t)status, 4);
    for (int i = 0; i < WORDS; ++i) {
        xm_put_le(self->head + AT_CHANNELS + 8 * i, channels[i], 8);
    }
    xm_agree_hash(self->strings, self->length, self->head + AT_HASH);
}

xm_status_t xm_agreement_post(xm_worker_t *worker, xm_status_t status, const xm_plan_t *plan,
                              const char *dtype, xm_agreement_t **agreement)
{
    xm_agreement_t *self = calloc(1, sizeof(*self));
    xm_status_t posted = XM_ERR_NO_MEMORY;

    if (self != NULL) {
        self->worker = worker;
        self->start_ns = xm_worker_now(worker);
        self->heads = malloc((size_t)xm_worker_size(worker) * HEAD_SIZE);
        XM_THEN(status, xm_agree_describe(plan, dtype, &self->strings, &self->length));
        if (status < 0) {
            self->strings = strdup(xm_last_error());
            self->length = self->strings != NULL ? strlen(self->strings) + 1 : 0;
        }
    }
    if (self == NULL || self->heads == NULL || self->strings == NULL) {
        xm_agreement_destroy(self);
        return XM_NO_MEMORY("comparing reshards");
    }
    fill_head(self, status);
    posted = xm_worker_allgather_post(worker, self->head, self->heads, HEAD_SIZE);
    if (posted < 0) {
        xm_agreement_destroy(self);
        return posted;
    }
    self->posted = true;
    *agreement = self;
    return XM_OK;
}

static const unsigned char *head_of(const xm_agreement_t *self, int rank)
{
    return self->heads + (size_t)rank * HEAD_SIZE;
}

static xm_status_t status_of(const xm_agreement_t *self, int rank)
{
    return (xm_status_t)(int32_t)xm_get_le(head_of(self, rank) + AT_STATUS, 4);
}

/* Collective: rank `odd` tells everybody why it cannot take part. */
static xm_status_t learn(const xm_agreement_t *self, int odd)
{
    int rank = xm_worker_rank(self->worker);
    xm_status_t own = status_of(self, rank), theirs = status_of(self, odd), status;
    char *gathered = NULL;
    size_t *offsets = NULL, length;

    status = xm_bootstrap_allgatherv(xm_worker_bootstrap(self->worker), self->strings,
                                     rank == odd ? self->length : 0, (void **)&gathered, &offsets,
                                     xm_worker_timeout(self->worker));
    if (status < 0) {
        return status;
    }
    length = offsets[odd + 1] - offsets[odd];
    if (own < 0) {
        status = xm_error_set(own, "%s", self->strings);
    } else {
        status = xm_error_set(theirs, "rank %d cannot take part in the reshard: %.*s", odd,
                              length > 0 ? (int)length - 1 : 0, gathered + offsets[odd]);
    }
    free(offsets);
    free(gathered);
    return status;
}

/* All ranks have all heads, so all come to the same result. */
static xm_status_t evaluate(const xm_agreement_t *self, int *channel)
{
    int size = xm_worker_size(self->worker);
    uint64_t channels[WORDS] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};

    for (int r = 0; r < size; ++r) {
        if (head_of(self, r)[0] != VERSION) {
            return XM_MISMATCH("rank %d runs another version of crossmesh", r);
        }
    }
    for (int r = 0; r < size; ++r) {
        if (status_of(self, r) < 0) {
            return learn(self, r);
        }
        for (int i = 0; i < WORDS; ++i) {
            channels[i] &= xm_get_le(head_of(self, r) + AT_CHANNELS + 8 * i, 8);
        }
    }
    for (int r = 1; r < size; ++r) {
        if (memcmp(head_of(self, r) + AT_HASH, self->heads + AT_HASH, XM_AGREE_HASH_SIZE) != 0) {
            return xm_agree_explain(self->worker, r, self->strings, self->length);
        }
    }
    return lowest(channels, channel);
}

xm_status_t xm_agreement_wait(xm_agreement_t *agreement, int64_t until, int *channel)
{
    xm_status_t status = xm_worker_allgather_wait(agreement->worker, agreement->start_ns, until);

    if (status == XM_IN_PROGRESS) {
        return status;
    }
    agreement->posted = false;
    return status < 0 ? status : evaluate(agreement, channel);
}

void xm_agreement_destroy(xm_agreement_t *agreement)
{
    if (agreement == NULL) {
        return;
    }
    if (agreement->posted) {
        double waited = (double)(xm_worker_now(agreement->worker) - agreement->start_ns) * 1e-9;

        (void)xm_bootstrap_allgather_abandon(xm_worker_bootstrap(agreement->worker), waited);
    }
    free(agreement->heads);
    free(agreement->strings);
    free(agreement);
}
