/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates: a reshard whose runs bring encodings of what has changed, and a shadow of each source
 * tile to find that with.
 *
 * A commit has two phases, as any that ends everywhere or nowhere: every rank receives all that is
 * for it, all ranks tell each other how that went, and only then each writes its journal. Bits of
 * changed elements are cleared by a commit that went well, so after one that did not they are still
 * set, and the next commit finds what both would have brought.
 */
#include <crossmesh/update.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "comm/worker.h"
#include "resharding/delta.h"
#include "resharding/execute.h"
#include "resharding/reshard/object.h"

/* One tensor of the batch on this rank. */
typedef struct {
    const void *src;
    int64_t elements, element_size; /* of the source tile */
    void *shadow;                   /* NULL: this rank has no part of the source */
    uint64_t *bits;
} source_t;

struct xm_update {
    xm_worker_t *worker;
    xm_reshard_t *reshard;
    xm_executor_changes_t changes;
    int tensors;
    source_t *source;
    const uint64_t **bits;  /* by tensor; NULL entries are tensors that this rank does not hold */
    bool everything;        /* this commit writes what arrives at once */
    bool proves;            /* commits end with xm_reshard_verify() */
    uint64_t version, next; /* complete here, 0: none; and of the commit under way */
    uint64_t last;          /* that this rank has ever had */
    atomic_uint_fast64_t readable; /* the version that readers see; 0: none */
};

/* What ranks tell each other before and after a commit's run. */
typedef struct {
    uint64_t version, last;
    int64_t status;
} word_t;

static xm_status_t no_memory(size_t bytes)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "no memory for %zu bytes of an update", bytes);
}

/* ---- Making --------------------------------------------------------------------------------- */

/* A shadow for each source tile of this rank; it is filled by the first commit. */
static xm_status_t open_sources(xm_update_t *self, const xm_reshard_params_t *params)
{
    const xm_plan_t *plan = xm_reshard_plan(self->reshard);
    int rank = xm_worker_rank(self->worker);

    for (int t = 0; t < self->tensors; ++t) {
        source_t *source = &self->source[t];
        int64_t size = xm_plan_tensor_element_size(plan, t);
        size_t bytes = xm_layout_buffer_bytes(xm_plan_tensor_src(plan, t), rank, size);

        source->src = params->buffers != NULL ? params->buffers[t].src : NULL;
        source->element_size = size;
        source->elements = (int64_t)bytes / size;
        if (bytes == 0) {
            continue;
        }
        source->shadow = malloc(bytes);
        source->bits = calloc(xm_changes_words(source->elements), sizeof(uint64_t));
        if (source->shadow == NULL || source->bits == NULL) {
            return no_memory(bytes);
        }
    }
    return XM_OK;
}

/* How this rank's last step went, told to all; their words in the order of ranks. */
static xm_status_t exchange(xm_update_t *self, xm_status_t status, word_t **words)
{
    const word_t own = {self->version, self->last, status};
    xm_status_t result;

    *words = calloc((size_t)xm_worker_size(self->worker), sizeof(**words));
    if (*words == NULL) {
        return no_memory(sizeof(own) * (size_t)xm_worker_size(self->worker));
    }
    result = xm_worker_allgather(self->worker, &own, *words, sizeof(own));
    if (result < 0) {
        free(*words);
        *words = NULL;
    }
    return result;
}

/* The same where all have to be well; the first that is not is named where all others were. */
static xm_status_t agree(xm_update_t *self, xm_status_t status)
{
    xm_error_t error;
    word_t *words;
    xm_status_t result;
    int failed = 0;

    xm_error_save(&error, status);
    result = exchange(self, status, &words);
    if (status < 0 || result < 0) {
        if (status == XM_OK) {
            return result;
        }
        free(words);
        return xm_error_restore(&error);
    }
    while (failed < xm_worker_size(self->worker) && words[failed].status == XM_OK) {
        ++failed;
    }
    status = failed == xm_worker_size(self->worker)
                 ? XM_OK
                 : xm_error_set((xm_status_t)words[failed].status,
                                "the commit failed on rank %d, so no rank has its version", failed);
    free(words);
    return status;
}

xm_status_t xm_update_create(xm_worker_t *worker, const xm_reshard_params_t *params,
                             xm_update_t **update)
{
    xm_reshard_params_t own = XM_RESHARD_PARAMS_INIT;
    xm_update_t *self;
    xm_status_t status;

    if (XM_IS_NULL(worker) || XM_IS_NULL(update)) {
        return XM_ERR_INVALID_ARGUMENT;
    }
    status = XM_PARAMS_COPY(xm_reshard_params_t, &own, params);
    self = status == XM_OK ? calloc(1, sizeof(*self)) : NULL;
    if (self == NULL) {
        return status < 0 ? status : no_memory(sizeof(*self));
    }
    own.tensor_done = NULL;
    own.device_peers = false;
    self->worker = worker;
    self->proves = xm_executor_proof(own.verify) == XM_VERIFY_RUN;
    status = xm_reshard_create_changes(worker, &own, &self->changes, &self->reshard);
    if (status < 0) {
        free(self);
        return status;
    }
    self->tensors = xm_plan_tensors(xm_reshard_plan(self->reshard));
    self->source = calloc((size_t)self->tensors, sizeof(*self->source));
    self->bits = calloc((size_t)self->tensors, sizeof(*self->bits));
    status = self->source != NULL && self->bits != NULL ? open_sources(self, &own)
                                                        : no_memory(sizeof(*self->source));
    for (int t = 0; status == XM_OK && t < self->tensors; ++t) {
        self->bits[t] = self->source[t].bits;
    }
    status = agree(self, status);
    if (status < 0) {
        xm_error_t error;

        xm_error_save(&error, status);
        xm_update_destroy(self);
        return xm_error_restore(&error);
    }
    *update = self;
    return XM_OK;
}

void xm_update_destroy(xm_update_t *update)
{
    if (update == NULL) {
        return;
    }
    xm_reshard_destroy(update->reshard);
    for (int t = 0; update->source != NULL && t < update->tensors; ++t) {
        free(update->source[t].shadow);
        free(update->source[t].bits);
    }
    free(update->bits);
    free(update->source);
    free(update);
}

/* ---- Committing ----------------------------------------------------------------------------- */

/* Finds what has changed since the last version, or fills the shadows where nothing is compared. */
static uint64_t find_changes(xm_update_t *self)
{
    uint64_t changed = 0;

    for (int t = 0; t < self->tensors; ++t) {
        source_t *source = &self->source[t];

        if (source->shadow == NULL) {
            continue;
        }
        if (self->everything) {
            memcpy(source->shadow, source->src, (size_t)(source->elements * source->element_size));
            changed += (uint64_t)source->elements;
        } else {
            changed += (uint64_t)xm_changes_find(source->src, source->shadow, source->elements,
                                                 source->element_size, source->bits);
        }
    }
    return changed;
}

/* Whether all ranks have the same version, and one at all. */
static xm_status_t compare_versions(xm_update_t *self)
{
    word_t *words;
    xm_status_t status = exchange(self, XM_OK, &words);

    self->everything = self->version == 0;
    self->next = self->last + 1;
    for (int r = 0; status == XM_OK && r < xm_worker_size(self->worker); ++r) {
        self->everything = self->everything || words[r].version != self->version;
        self->next = words[r].last >= self->next ? words[r].last + 1 : self->next;
    }
    free(words);
    return status;
}

/* Everything is here, on all ranks: the journal is written, and is the next version. */
static xm_status_t write_journal(xm_update_t *self)
{
    xm_executor_t *executor = xm_reshard_executor(self->reshard);

    if (executor == NULL) {
        return xm_error_set(XM_ERR_CANCELED, "the group of an update is no more");
    }
    atomic_store_explicit(&self->readable, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    return xm_executor_write_changes(executor);
}

static void describe_moved(const xm_update_t *self, xm_update_info_t *info)
{
    const xm_executor_t *executor = xm_reshard_executor(self->reshard);
    xm_executor_moved_t moved = {0, 0, 0};

    if (executor != NULL) {
        xm_executor_changes_moved(executor, &moved);
    }
    info->sent_bytes = moved.sent;
    info->dense_bytes = moved.covered;
    info->held_bytes = moved.held;
}

/* After this the version is this rank's; what was found for it is done with. */
static void settle(xm_update_t *self)
{
    self->version = self->last = self->next;
    for (int t = 0; t < self->tensors; ++t) {
        if (self->source[t].bits != NULL) {
            memset(self->source[t].bits, 0,
                   xm_changes_words(self->source[t].elements) * sizeof(uint64_t));
        }
    }
    atomic_store_explicit(&self->readable, self->version, memory_order_release);
}

/* A commit that writes at once has no version to read until it ends, and none to go back to. */
static xm_status_t begin(xm_update_t *self, xm_update_info_t *info)
{
    xm_status_t status = compare_versions(self);

    if (status < 0) {
        return status;
    }
    self->changes.changed = self->everything ? NULL : self->bits;
    if (self->everything) {
        self->version = 0;
        atomic_store_explicit(&self->readable, 0, memory_order_relaxed);
        atomic_thread_fence(memory_order_release);
    }
    info->everything = self->everything;
    info->changed = find_changes(self);
    return XM_OK;
}

xm_status_t xm_update_commit(xm_update_t *update, int64_t deadline, xm_update_info_t *info)
{
    xm_update_info_t own = XM_UPDATE_INFO_INIT;
    xm_status_t status = XM_IS_NULL(update) ? XM_ERR_INVALID_ARGUMENT : begin(update, &own);

    if (status < 0) {
        return status;
    }
    status = agree(update, xm_reshard_run(update->reshard, deadline));
    if (status == XM_OK) {
        status = write_journal(update);
    }
    if (status == XM_OK && update->proves) {
        status = agree(update, xm_reshard_verify(update->reshard, deadline));
    }
    if (status == XM_OK) {
        settle(update);
    } else if (atomic_load(&update->readable) == 0) {
        update->version = 0; /* what has been written is no version */
    }
    own.version = update->version;
    describe_moved(update, &own);
    if (info != NULL) {
        xm_error_t error;

        xm_error_save(&error, status);
        status = xm_info_copy(__func__, "xm_update_info_t", info, &own, sizeof(own));
        return status < 0 ? status : xm_error_restore(&error);
    }
    return status;
}

uint64_t xm_update_read_begin(const xm_update_t *update)
{
    return XM_IS_NULL(update) ? 0 : atomic_load_explicit(&update->readable, memory_order_acquire);
}

bool xm_update_read_end(const xm_update_t *update, uint64_t version)
{
    atomic_thread_fence(memory_order_acquire);
    return !XM_IS_NULL(update) &&
           atomic_load_explicit(&update->readable, memory_order_relaxed) == version;
}

const xm_plan_t *xm_update_plan(const xm_update_t *update)
{
    return XM_IS_NULL(update) ? NULL : xm_reshard_plan(update->reshard);
}
