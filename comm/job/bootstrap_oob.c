/* SPDX-License-Identifier: Apache-2.0 */
/* A bootstrap over the caller's own allgather (UCC's out-of-band contract). It has no connections
 * of its own, so it can neither tell others of a fault nor hear of one: poll() only repeats what an
 * allgather has shown, and a death is found by the transport or a deadline. It is also the table
 * through which ranks exchange rank 0's card before they build their relay. */
#include <stdio.h>
#include <stdlib.h>

#include "comm/job/bootstrap_private.h"
#include "comm/base.h"

typedef struct {
    xm_bootstrap_t base;
    xm_oob_t oob;
    void *request;
    char *token; /* what a barrier gathers: tables need not support zero bytes */
} oob_bootstrap_t;

/* A barrier gathers one byte from each rank, since a table need not support zero bytes. */
static xm_status_t oob_post(xm_bootstrap_t *bootstrap, const void *send, void *receive,
                            size_t length)
{
    oob_bootstrap_t *self = (oob_bootstrap_t *)bootstrap;

    if (length == 0) {
        return self->oob.allgather_post(self->oob.context, self->token, self->token + 1, 1,
                                        &self->request);
    }
    return self->oob.allgather_post(self->oob.context, send, receive, length, &self->request);
}

/* The contract says that each request is freed exactly once, whatever became of it. */
static void release(oob_bootstrap_t *self)
{
    self->oob.allgather_free(self->request);
    self->request = NULL;
}

/* A failure of the caller's table is a fault of the bootstrap, named as such: the reason is the
 * caller's to find. */
static xm_status_t oob_test(xm_bootstrap_t *bootstrap)
{
    oob_bootstrap_t *self = (oob_bootstrap_t *)bootstrap;
    xm_status_t status = self->oob.allgather_test(self->request);

    if (status == XM_IN_PROGRESS) {
        return status;
    }
    release(self);
    if (status < 0) {
        bootstrap->fault.status = status;
        bootstrap->fault.rank = -1;
        (void)snprintf(bootstrap->fault.sentence, sizeof(bootstrap->fault.sentence),
                       "the out-of-band allgather failed on rank %d: %s", bootstrap->rank,
                       xm_status_string(status));
    }
    return xm_bootstrap_fault_status(bootstrap);
}

/* The request is freed while it may still run; what that means is the table's business. */
static xm_status_t oob_abandon(xm_bootstrap_t *bootstrap, double waited)
{
    oob_bootstrap_t *self = (oob_bootstrap_t *)bootstrap;

    release(self);
    bootstrap->fault.status = XM_ERR_TIMEOUT;
    bootstrap->fault.rank = -1;
    (void)snprintf(bootstrap->fault.sentence, sizeof(bootstrap->fault.sentence),
                   "rank %d: the out-of-band allgather did not end within %g s", bootstrap->rank,
                   waited);
    return xm_bootstrap_fault_status(bootstrap);
}

static xm_status_t oob_poll(xm_bootstrap_t *bootstrap)
{
    return xm_bootstrap_fault_status(bootstrap);
}

static int oob_fd(const xm_bootstrap_t *bootstrap)
{
    (void)bootstrap;
    return -1;
}

static void oob_abort(xm_bootstrap_t *bootstrap, const char *sentence)
{
    /* The table has no way to tell the others, but here it is over. */
    if (bootstrap->fault.status == XM_OK) {
        bootstrap->fault.status = XM_ERR_CANCELED;
        bootstrap->fault.rank = bootstrap->rank;
        (void)snprintf(bootstrap->fault.sentence, sizeof(bootstrap->fault.sentence),
                       "rank %d gave up: %s", bootstrap->rank, sentence);
    }
}

static void oob_mark_failed(xm_bootstrap_t *bootstrap, const xm_bootstrap_fault_t *fault)
{
    if (bootstrap->fault.status == XM_OK) {
        bootstrap->fault = *fault;
    }
}

static void oob_destroy(xm_bootstrap_t *bootstrap)
{
    oob_bootstrap_t *self = (oob_bootstrap_t *)bootstrap;

    if (bootstrap->posted) {
        release(self);
    }
    free(self->token);
    free(self);
}

static const xm_bootstrap_ops_t oob_ops = {.post = oob_post,
                                           .test = oob_test,
                                           .abandon = oob_abandon,
                                           .poll = oob_poll,
                                           .fd = oob_fd,
                                           .abort = oob_abort,
                                           .mark_failed = oob_mark_failed,
                                           .destroy = oob_destroy};

/* Makes the bootstrap. The table is copied, its functions are checked here and not at each call. */
xm_status_t xm_bootstrap_create_oob(const xm_oob_t *given, xm_bootstrap_t **bootstrap)
{
    xm_oob_t own = {0}, *oob = &own;
    oob_bootstrap_t *self;

    XM_TRY(XM_PARAMS_COPY(xm_oob_t, &own, given));
    if (oob->allgather_post == NULL || oob->allgather_test == NULL || oob->allgather_free == NULL) {
        return XM_INVALID("xm_oob_t: its three functions are needed");
    }
    if (oob->size < 1 || oob->size > XM_BOOTSTRAP_MAX_RANKS || oob->rank < 0 ||
        oob->rank >= oob->size) {
        return XM_INVALID("xm_oob_t: rank %d of %d", oob->rank, oob->size);
    }
    self = calloc(1, sizeof(*self));
    XM_NEED_MEMORY(self, "a bootstrap");
    self->token = calloc(1, (size_t)oob->size + 1);
    if (self->token == NULL) {
        free(self);
        return XM_NO_MEMORY("a bootstrap of %d ranks", oob->size);
    }
    self->base.ops = &oob_ops;
    self->base.rank = oob->rank;
    self->base.size = oob->size;
    self->oob = own;
    *bootstrap = &self->base;
    return XM_OK;
}
