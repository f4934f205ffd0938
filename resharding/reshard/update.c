/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates: a reshard whose runs bring encodings of what has changed, and a shadow of each source
 * tile to find that with.
 *
 * A commit has two phases, as any that ends everywhere or nowhere: every rank receives all that is
 * for it, all ranks tell each other how that went, and only then each writes its journal. Bits of
 * changed elements are cleared by a commit that went well, so after one that did not they are still
 * set, and the next commit finds what both would have brought.
 *
 * Ranks may have different versions: one that has come late has none, one that was away has an old
 * one. What a task's receivers are sent is what has changed since the oldest version among them, as
 * far as the sender remembers that: it has two sets of bits beside the current one, each of all
 * that changed since it was begun, which take turns. More than what a receiver lacks does no harm,
 * as values are always the current ones.
 */
#include <crossmesh/update.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "comm/base.h"
#include "comm/worker.h"
#include "resharding/delta.h"
#include "resharding/execute.h"
#include "resharding/layout.h"
#include "resharding/plan.h"
#include "resharding/reshard/object.h"
#include "resharding/reshard/update_source.h"

enum {
    SETS = XM_SOURCE_SETS,
    LASTS = 8,      /* versions that an older set is added to */
    TURNS_PART = 6, /* ranks keep turns where more than this part of everything was sent last */
};

/* What ranks tell each other before and after a commit's run. */
typedef struct {
    uint64_t lineage, version, last;
    uint64_t sent, covered; /* in the last run */
    bool receives;          /* it has a destination tile */
    int64_t status;
} word_t;

struct xm_update {
    xm_worker_t *worker;
    xm_reshard_t *reshard;
    xm_executor_changes_t changes;
    int rank, tensors;
    xm_source_t *source;           /* by tensor */
    void **target;                 /* where destinations are, by tensor */
    xm_mirrors_t *mirrors;         /* of sources and destinations in turn */
    bool proves;                   /* commits end with xm_reshard_verify() */
    bool compares;                 /* shadows have what the sources were */
    bool receives;                 /* this rank has a destination tile */
    bool took, spent;              /* shadows of a previous update; they are another's now */
    uint64_t lineage;              /* whose versions these are */
    uint64_t version, next;        /* complete here, 0: none; and of the commit under way */
    uint64_t last;                 /* that this rank has ever had */
    uint64_t since[SETS];          /* versions after which bits were set */
    uint64_t changed;              /* elements, in this commit */
    bool wrote, wrote_all;         /* what the last commit did to destinations */
    xm_executor_moved_t moved;     /* in the last run */
    word_t *words;                 /* of all ranks, before this commit */
    bool mixed;                    /* some rank has another version than this one */
    atomic_uint_fast64_t readable; /* the version that readers see; 0: none */
};

static xm_status_t no_memory(size_t bytes)
{
    return XM_NO_MEMORY("%zu bytes of an update", bytes);
}

/* ---- Making --------------------------------------------------------------------------------- */

/* A shadow for each source tile of this rank; it is filled by the first commit. */
static xm_status_t open_sources(xm_update_t *self)
{
    const xm_plan_t *plan = xm_reshard_plan(self->reshard);

    for (int t = 0; t < self->tensors; ++t) {
        int64_t size = xm_plan_tensor_element_size(plan, t);
        size_t bytes = xm_layout_buffer_bytes(xm_plan_tensor_src(plan, t), self->rank, size);

        XM_TRY(xm_source_open(&self->source[t], xm_mirrors_of(self->mirrors, 2 * t), bytes, size,
                              xm_mirrors_has(self->mirrors, 2 * t)));
    }
    return XM_OK;
}

static void free_sources(xm_update_t *self)
{
    for (int t = 0; self->source != NULL && t < self->tensors; ++t) {
        xm_source_close(&self->source[t]);
    }
    free(self->source);
    self->source = NULL;
}

/* How this rank's last step went, told to all; their words in the order of ranks. */
static xm_status_t exchange(xm_update_t *self, xm_status_t status)
{
    const word_t own = {self->lineage,       self->version,  self->last, self->moved.sent,
                        self->moved.covered, self->receives, status};

    return xm_worker_allgather(self->worker, &own, self->words, sizeof(own));
}

/* The same where all have to be well; the first that is not is named where all others were. */
static xm_status_t agree(xm_update_t *self, xm_status_t status)
{
    xm_error_t error;
    xm_status_t result;
    int failed = 0;

    xm_error_save(&error, status);
    result = exchange(self, status);
    if (status < 0) {
        return xm_error_restore(&error);
    }
    if (result < 0) {
        return result;
    }
    while (failed < xm_worker_size(self->worker) && self->words[failed].status == XM_OK) {
        ++failed;
    }
    return failed == xm_worker_size(self->worker)
               ? XM_OK
               : xm_error_set((xm_status_t)self->words[failed].status,
                              "the commit failed on rank %d, so no rank has its version", failed);
}

/* Whether two ranks have the same tile of two layouts: the same box of the same shape, or none. */
static bool is_same_tile(const xm_layout_t *one, int rank, const xm_layout_t *other, int other_rank)
{
    int tile = xm_layout_tile_of_rank(one, rank);
    int other_tile = xm_layout_tile_of_rank(other, other_rank);
    bool same = (tile < 0) == (other_tile < 0);
    xm_box_t box, other_box;

    if (tile < 0 || other_tile < 0) {
        return same;
    }
    xm_layout_tile_box(one, tile, &box);
    xm_layout_tile_box(other, other_tile, &other_box);
    same = box.dims == other_box.dims;
    for (int d = 0; same && d < box.dims; ++d) {
        same = box.lo[d] == other_box.lo[d] && box.hi[d] == other_box.hi[d] &&
               xm_layout_shape(one)[d] == xm_layout_shape(other)[d];
    }
    return same;
}

static void swap_sources(xm_update_t *self, xm_update_t *previous)
{
    xm_source_t *own = self->source;

    self->source = previous->source;
    previous->source = own;
    for (int t = 0; t < self->tensors; ++t) {
        xm_mirrors_take(self->mirrors, 2 * t, previous->mirrors);
    }
}

/* Goes on from what this rank had in another group: with its versions if the destinations are those
 * of before, and with its shadows if the sources are. */
static void take_previous(xm_update_t *self, const xm_reshard_params_t *params,
                          xm_update_t *previous)
{
    const xm_plan_t *plan = xm_reshard_plan(self->reshard);
    const xm_plan_t *other = xm_reshard_plan(previous->reshard);
    bool sources = self->tensors == previous->tensors, targets = sources;

    for (int t = 0; t < self->tensors && (sources || targets); ++t) {
        bool same = xm_plan_tensor_element_size(plan, t) == xm_plan_tensor_element_size(other, t);

        sources = sources && same &&
                  is_same_tile(xm_plan_tensor_src(plan, t), self->rank,
                               xm_plan_tensor_src(other, t), previous->rank) &&
                  xm_mirrors_has(self->mirrors, 2 * t) == xm_mirrors_has(previous->mirrors, 2 * t);
        targets = targets && same &&
                  is_same_tile(xm_plan_tensor_dst(plan, t), self->rank,
                               xm_plan_tensor_dst(other, t), previous->rank) &&
                  (params->buffers == NULL || params->buffers[t].dst == previous->target[t]);
    }
    self->lineage = previous->lineage;
    self->last = previous->last;
    self->version = targets ? previous->version : 0;
    self->compares = sources && previous->compares;
    memcpy(self->since, previous->since, sizeof(self->since));
    self->took = sources;
    if (sources) {
        swap_sources(self, previous);
    }
    atomic_store_explicit(&self->readable, self->version, memory_order_release);
}

static bool receives(const xm_update_t *self)
{
    bool any = false;

    for (int t = 0; t < self->tensors; ++t) {
        any = any || xm_layout_tile_of_rank(xm_plan_tensor_dst(xm_reshard_plan(self->reshard), t),
                                            self->rank) >= 0;
    }
    return any;
}

static const uint64_t *changed_of_task(void *arg, int64_t task, int tensor, int64_t end);

/* What this rank needs beside the reshard. */
static xm_status_t fill(xm_update_t *self, const xm_reshard_params_t *params, xm_update_t *previous)
{
    self->tensors = xm_plan_tensors(xm_reshard_plan(self->reshard));
    self->source = calloc((size_t)self->tensors, sizeof(*self->source));
    self->target = calloc((size_t)self->tensors, sizeof(*self->target));
    if (self->source == NULL || self->target == NULL) {
        return no_memory((size_t)self->tensors * sizeof(*self->source));
    }
    if (getrandom(&self->lineage, sizeof(self->lineage), 0) != (ssize_t)sizeof(self->lineage)) {
        return xm_error_set(XM_ERR_INTERNAL, "no random number for an update");
    }
    if (previous != NULL) {
        take_previous(self, params, previous);
    }
    for (int t = 0; t < self->tensors; ++t) {
        self->target[t] = params->buffers != NULL ? params->buffers[t].dst : NULL;
    }
    self->receives = receives(self);
    for (int t = 0; t < self->tensors && self->version > 0; ++t) {
        XM_TRY(xm_mirrors_read(self->mirrors, 2 * t + 1));
    }
    return open_sources(self);
}

xm_status_t xm_update_continue(xm_worker_t *worker, const xm_reshard_params_t *params,
                               xm_update_t *previous, xm_update_t **update)
{
    xm_reshard_params_t own = XM_RESHARD_PARAMS_INIT, mirrored;
    xm_tensor_buffers_t *buffers = NULL;
    xm_update_t *self;
    word_t *words;
    xm_status_t status;

    XM_NEED_ARGUMENTS(worker, update);
    XM_TRY(XM_PARAMS_COPY(xm_reshard_params_t, &own, params));
    if (previous != NULL && previous->spent) {
        return XM_INVALID("the update has been continued already");
    }
    self = calloc(1, sizeof(*self));
    words = calloc((size_t)xm_worker_size(worker), sizeof(*words));
    if (self == NULL || words == NULL) {
        free(words);
        free(self);
        return no_memory(sizeof(*self));
    }
    own.tensor_done = NULL;
    own.device_peers = false;
    self->worker = worker;
    self->words = words;
    self->rank = xm_worker_rank(worker);
    self->changes = (xm_executor_changes_t){.changed = changed_of_task, .arg = self};
    self->proves = xm_executor_proof(own.verify) == XM_VERIFY_RUN;
    mirrored = own;
    self->changes.made = xm_update_mirror(&own, self->rank, &self->mirrors, &buffers);
    mirrored.buffers = buffers;
    status = xm_reshard_create_changes(worker, &mirrored, &self->changes, &self->reshard);
    free(buffers);
    if (status < 0) {
        xm_mirrors_destroy(self->mirrors);
        free(words);
        free(self);
        return status;
    }
    status = agree(self, fill(self, &own, previous));
    if (status < 0) {
        xm_error_t error;

        xm_error_save(&error, status);
        if (self->took) {
            swap_sources(self, previous);
        }
        xm_update_destroy(self);
        return xm_error_restore(&error);
    }
    if (previous != NULL) {
        atomic_store_explicit(&previous->readable, 0, memory_order_release);
        previous->spent = true;
    }
    *update = self;
    return XM_OK;
}

xm_status_t xm_update_create(xm_worker_t *worker, const xm_reshard_params_t *params,
                             xm_update_t **update)
{
    return xm_update_continue(worker, params, NULL, update);
}

void xm_update_destroy(xm_update_t *update)
{
    if (update == NULL) {
        return;
    }
    xm_reshard_destroy(update->reshard);
    free_sources(update);
    xm_mirrors_destroy(update->mirrors);
    free(update->target);
    free(update->words);
    free(update);
}

/* ---- Finding -------------------------------------------------------------------------------- */

static void find(xm_update_t *self, int tensor, int64_t end)
{
    self->changed += xm_source_find(&self->source[tensor], self->compares, end);
}

static void find_rest(xm_update_t *self)
{
    for (int t = 0; t < self->tensors; ++t) {
        find(self, t, self->source[t].elements);
    }
}

/* Tiles on a device are compared there, all of them before a commit moves anything. */
static xm_status_t find_there(xm_update_t *self)
{
    xm_status_t status = XM_OK;

    self->changed = 0;
    for (int t = 0; t < self->tensors && status == XM_OK; ++t) {
        xm_source_t *source = &self->source[t];
        int64_t found = 0;

        source->found = 0;
        if (source->bits[0] != NULL && xm_mirrors_has(self->mirrors, 2 * t)) {
            status = xm_mirrors_find(self->mirrors, 2 * t, self->compares, source->bits[0], &found);
            source->found = source->elements;
            self->changed += (uint64_t)found;
        }
    }
    return status;
}

/* The oldest version among the receivers of a task. */
static uint64_t oldest_version(const xm_update_t *self, int64_t task)
{
    const xm_plan_t *plan = xm_reshard_plan(self->reshard);
    const xm_unit_task_t one = xm_plan_task(plan, task);
    const xm_layout_t *dst = xm_plan_tensor_dst(plan, one.tensor);
    uint64_t oldest = UINT64_MAX;

    for (int r = 0; r < xm_worker_size(self->worker); ++r) {
        if (xm_layout_tile_of_rank(dst, r) == one.dst_tile && self->words[r].version < oldest) {
            oldest = self->words[r].version;
        }
    }
    return oldest;
}

static const uint64_t *changed_of_task(void *arg, int64_t task, int tensor, int64_t end)
{
    xm_update_t *self = arg;
    uint64_t oldest = self->mixed ? oldest_version(self, task) : self->since[0];

    find(self, tensor, end);
    for (int s = 0; s < SETS && self->compares && oldest > 0; ++s) {
        if (oldest >= self->since[s]) {
            return self->source[tensor].bits[s];
        }
    }
    return NULL;
}

/* ---- Committing ----------------------------------------------------------------------------- */

/* Whose versions go on: those of the rank that has the newest. What ranks have of others is no
 * version of these. */
static void choose_lineage(xm_update_t *self)
{
    int size = xm_worker_size(self->worker), leader = 0;

    self->next = 0;
    for (int r = 0; r < size; ++r) {
        leader = self->words[r].version > self->words[leader].version ? r : leader;
        self->next = self->words[r].last > self->next ? self->words[r].last : self->next;
    }
    ++self->next;
    for (int r = 0; r < size; ++r) {
        if (self->words[r].lineage != self->words[leader].lineage) {
            self->words[r].version = 0;
        }
    }
    if (self->lineage != self->words[leader].lineage) {
        self->lineage = self->words[leader].lineage;
        self->compares = false;
    }
    self->version = self->words[self->rank].version;
}

/* Learns what versions there are. A rank that has none writes at once what comes: it has nothing
 * to read until the commit has ended. */
static xm_status_t begin(xm_update_t *self, xm_update_info_t *info)
{
    bool any = false, none = false, old = false;
    uint64_t sent = 0, covered = 0;

    XM_TRY(agree(self, find_there(self)));
    choose_lineage(self);
    self->wrote = self->mixed = false;
    for (int r = 0; r < xm_worker_size(self->worker); ++r) {
        const word_t *word = &self->words[r];

        sent += word->sent;
        covered += word->covered;
        any = any || (word->receives && word->version > 0);
        none = none || (word->receives && word->version == 0);
        old = old || (word->version > 0 && word->version < self->since[0]);
        self->mixed = self->mixed || word->version != self->since[0];
    }
    self->changes.keeps = self->version > 0;
    self->changes.in_turns = none || sent > covered / TURNS_PART;
    if (!self->changes.keeps) {
        atomic_store_explicit(&self->readable, 0, memory_order_relaxed);
        atomic_thread_fence(memory_order_release);
    }
    if (old && self->compares) {
        find_rest(self);
        for (int t = 0; t < self->tensors; ++t) {
            xm_source_gather(&self->source[t]);
        }
    }
    info->everything = !any;
    return XM_OK;
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
    self->wrote = true;
    self->wrote_all = !self->changes.keeps;
    XM_TRY(xm_executor_write_changes(executor));
    for (int t = 0; t < self->tensors; ++t) {
        if (xm_mirrors_has(self->mirrors, 2 * t + 1)) {
            XM_TRY(xm_update_changed(self, t, xm_mirrors_bits(self->mirrors, 2 * t + 1)));
            XM_TRY(xm_mirrors_write(self->mirrors, 2 * t + 1, self->wrote_all));
        }
    }
    return XM_OK;
}

xm_status_t xm_update_changed(const xm_update_t *update, int tensor, uint64_t *bits)
{
    const xm_plan_t *plan;
    size_t elements;

    XM_NEED_ARGUMENTS(update, bits);
    if (tensor < 0 || tensor >= update->tensors) {
        return XM_INVALID("the update has no tensor %d, it has %d", tensor, update->tensors);
    }
    plan = xm_reshard_plan(update->reshard);
    elements = xm_layout_buffer_bytes(xm_plan_tensor_dst(plan, tensor), update->rank, 8) / 8;
    memset(bits, 0, xm_changes_words((int64_t)elements) * sizeof(*bits));
    if (!update->wrote) {
        return XM_OK;
    }
    if (update->wrote_all) {
        for (size_t e = 0; e < elements; e += 64) {
            bits[e / 64] = elements - e < 64 ? (UINT64_C(1) << (elements - e)) - 1 : UINT64_MAX;
        }
        return XM_OK;
    }
    return xm_executor_changed(xm_reshard_executor(update->reshard), tensor, bits);
}

static void describe_moved(xm_update_t *self, xm_update_info_t *info)
{
    const xm_executor_t *executor = xm_reshard_executor(self->reshard);

    if (executor != NULL) {
        xm_executor_changes_moved(executor, &self->moved);
    }
    info->version = self->version;
    info->changed = self->changed;
    info->sent_bytes = self->moved.sent;
    info->dense_bytes = self->moved.covered;
    info->held_bytes = self->moved.held;
}

/* After this the version is this rank's; what was found for it is done with. */
static void settle(xm_update_t *self)
{
    bool turn = !self->compares || self->next - self->since[1] >= LASTS;

    for (int t = 0; t < self->tensors; ++t) {
        xm_source_settle(&self->source[t], self->compares, turn);
    }
    self->version = self->last = self->since[0] = self->next;
    if (turn) {
        self->since[2] = self->compares ? self->since[1] : self->next;
        self->since[1] = self->next;
    }
    self->compares = true;
    atomic_store_explicit(&self->readable, self->version, memory_order_release);
}

xm_status_t xm_update_commit(xm_update_t *update, int64_t deadline, xm_update_info_t *info)
{
    xm_update_info_t own = XM_UPDATE_INFO_INIT;
    xm_status_t status;

    XM_NEED_ARGUMENTS(update);
    if (update->spent) {
        return XM_INVALID("the update has been continued by another");
    }
    XM_TRY(begin(update, &own));
    status = xm_reshard_run(update->reshard, deadline);
    if (status == XM_OK) {
        find_rest(update);
    }
    status = agree(update, status);
    XM_THEN(status, write_journal(update));
    if (status == XM_OK && update->proves) {
        status = agree(update, xm_reshard_verify(update->reshard, deadline));
    }
    if (status == XM_OK) {
        settle(update);
    } else if (atomic_load(&update->readable) == 0) {
        update->version = 0; /* what has been written is no version */
    }
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
