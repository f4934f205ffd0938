/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reshards inside compiled XLA programs. XLA calls the handler from its own threads,
 * which must not wait; so it queues the run, returns a future, and a thread for each
 * device carries the runs out and completes their futures. The worker is not thread-safe:
 * this thread owns it except while others hold the lock.
 */
#include "plugins/xla/ffi_transfer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include "plugins/xla/ffi_abi.h"

enum { SENTENCE = 512 };
static const int64_t longest_sleep_ns = 50 * 1000 * 1000;

/* A call on its way: XLA keeps its buffers until the future is completed. */
typedef struct run {
    struct run *next;
    const xla_api_t *api;
    xla_future_t *future;
    void *shard;
    int32_t *number; /* result: which run of its transfer this was */
    int64_t deadline;
} run_t;

/* A part with its runs; the first of them has been posted when `running`. */
typedef struct part {
    struct part *next;
    xm_xla_part_t is;
    run_t *first, **last;
    bool running;
    int32_t runs; /* that have ended */
} part_t;

struct xm_xla_slot {
    xm_xla_slot_t *next; /* in the registry */
    xm_worker_t *worker;
    pthread_t thread;
    pthread_mutex_t lock; /* who has it has the worker and what the parts say of it */
    pthread_mutex_t bell; /* of the next four */
    pthread_cond_t rings;
    unsigned signals; /* how often */
    int wanted;       /* threads that want the worker */
    bool closing;     /* the thread is to end */
    part_t *parts;    /* the list, and each part's runs, change under the registry's lock */
};

/* The parts of this process: the handler knows numbers only. Locks are taken in the
 * order: a slot's, the registry's, a bell. */
static struct {
    pthread_mutex_t lock;
    xm_xla_slot_t *slots;
    int create, set_available, set_error;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER, .create = -1};

void xm_xla_set_functions(int create, int set_available, int set_error)
{
    (void)pthread_mutex_lock(&registry.lock);
    registry.create = create;
    registry.set_available = set_available;
    registry.set_error = set_error;
    (void)pthread_mutex_unlock(&registry.lock);
}

/* ---- What XLA is told ---------------------------------------------------------------------- */

/* An error belongs to XLA once it is returned or set. */
static xla_error_t *make_error(const xla_api_t *api, int code, const char *sentence)
{
    xla_error_args_t args = {.struct_size = sizeof(args), .message = sentence, .code = code};

    return api->functions[0](&args);
}

/* Deadlines and lack of memory have codes of their own; anything else makes the transfer
 * unavailable. */
static int code_of(xm_status_t status)
{
    switch (status) {
    case XM_ERR_TIMEOUT:
        return XLA_CODE_DEADLINE_EXCEEDED;
    case XM_ERR_NO_MEMORY:
        return XLA_CODE_RESOURCE_EXHAUSTED;
    default:
        return XLA_CODE_UNAVAILABLE;
    }
}

/* Completes the call's future and forgets the call. XLA may free the buffers from here
 * on. */
static void end_run(run_t *run, xm_status_t status, const char *sentence)
{
    xla_future_args_t args = {.struct_size = offsetof(xla_future_args_t, error),
                              .future = run->future};

    if (status == XM_OK) {
        (void)run->api->functions[registry.set_available](&args);
    } else {
        args.struct_size = sizeof(args);
        args.error = make_error(run->api, code_of(status), sentence);
        (void)run->api->functions[registry.set_error](&args);
    }
    free(run);
}

/* ---- The thread of a slot ------------------------------------------------------------------ */

/* Takes the first run off its part. The handler may append at the same time, hence the
 * registry's lock. */
static run_t *pop(part_t *part)
{
    run_t *run;

    (void)pthread_mutex_lock(&registry.lock);
    run = part->first;
    part->first = run->next;
    if (part->first == NULL) {
        part->last = &part->first;
    }
    (void)pthread_mutex_unlock(&registry.lock);
    part->running = false;
    return run;
}

static run_t *first_of(part_t *part)
{
    run_t *run;

    (void)pthread_mutex_lock(&registry.lock);
    run = part->first;
    (void)pthread_mutex_unlock(&registry.lock);
    return run;
}

/* Ends the first run. A receiver's data go from the staging buffer into XLA's only when
 * all have come. */
static void finish(part_t *part, xm_status_t status)
{
    run_t *run = pop(part);

    if (status == XM_OK) {
        *run->number = part->runs++;
        if (!part->is.sends) {
            memcpy(run->shard, part->is.buffer, part->is.bytes);
        }
    }
    end_run(run, status, xm_last_error());
}

/*
 * Posts a part's first run; false when that failed and the run has ended. The deadline
 * begins here and not when the call was made, because runs of one transfer wait for each
 * other.
 */
static bool start(xm_xla_slot_t *slot, part_t *part, run_t *run)
{
    xm_status_t status;
    double seconds = part->is.timeout;

    if (part->is.sends) {
        memcpy(part->is.buffer, run->shard, part->is.bytes);
    }
    run->deadline = seconds > 0 ? xm_worker_now(slot->worker) + (int64_t)(seconds * 1e9)
                                : xm_worker_deadline(slot->worker);
    status = xm_reshard_post(part->is.reshard, run->deadline);
    if (status < 0) {
        finish(part, status);
        return false;
    }
    part->running = true;
    return true;
}

/* Makes one step of a part. It returns whether there may be more to do at once; *waiting
 * says that a run goes on. */
static bool step(xm_xla_slot_t *slot, part_t *part, bool *waiting, int64_t *deadline)
{
    run_t *run = first_of(part);
    xm_status_t status;

    if (run == NULL) {
        return false;
    }
    if (!part->running && !start(slot, part, run)) {
        return true;
    }
    /* After a wait that failed: ends every run that it concerns, each with its reason. */
    status = xm_reshard_test(part->is.reshard);
    if (status != XM_IN_PROGRESS) {
        finish(part, status);
        return true;
    }
    *waiting = true;
    *deadline = run->deadline < *deadline ? run->deadline : *deadline;
    return false;
}

/* With the lock: does everything that can be done, and sleeps once. False when there is
 * nothing to do. The sleep is limited, so that others get the lock. */
static bool go_on(xm_xla_slot_t *slot)
{
    int64_t until = xm_worker_now(slot->worker) + longest_sleep_ns;
    bool busy = false, waiting = false;

    for (part_t *part = slot->parts; part != NULL; part = part->next) {
        busy = step(slot, part, &waiting, &until) || busy;
    }
    if (waiting && !busy) {
        (void)xm_worker_wait(slot->worker, until); /* what fails there, the next steps find */
    }
    return waiting || busy;
}

/* Bells are counted, so one that rings before the thread listens is not lost. */
static void ring(xm_xla_slot_t *slot, int wanted, bool closing)
{
    (void)pthread_mutex_lock(&slot->bell);
    slot->signals++;
    slot->wanted += wanted;
    slot->closing = slot->closing || closing;
    (void)pthread_cond_signal(&slot->rings);
    (void)pthread_mutex_unlock(&slot->bell);
}

/* Waits until nobody else wants the worker, and until something is new when there was
 * nothing to do. */
static bool may_go_on(xm_xla_slot_t *slot, bool idle, unsigned *seen)
{
    bool closing;

    (void)pthread_mutex_lock(&slot->bell);
    while (!slot->closing && (slot->wanted > 0 || (idle && *seen == slot->signals))) {
        (void)pthread_cond_wait(&slot->rings, &slot->bell);
    }
    *seen = slot->signals;
    closing = slot->closing;
    (void)pthread_mutex_unlock(&slot->bell);
    return !closing;
}

static void *serve(void *arg)
{
    xm_xla_slot_t *slot = arg;
    unsigned seen = 0;
    bool idle = true;

    while (may_go_on(slot, idle, &seen)) {
        (void)pthread_mutex_lock(&slot->lock);
        idle = !go_on(slot);
        (void)pthread_mutex_unlock(&slot->lock);
    }
    return NULL;
}

/* ---- Slots and parts ----------------------------------------------------------------------- */

/* The thread starts at once and waits for its first bell. */
xm_status_t xm_xla_slot_open(xm_worker_t *worker, xm_xla_slot_t **slot)
{
    xm_xla_slot_t *made = calloc(1, sizeof(*made));
    int error;

    XM_NEED_MEMORY(made, "a slot in XLA's programs");
    made->worker = worker;
    (void)pthread_mutex_init(&made->lock, NULL);
    (void)pthread_mutex_init(&made->bell, NULL);
    (void)pthread_cond_init(&made->rings, NULL);
    error = pthread_create(&made->thread, NULL, serve, made);
    if (error != 0) {
        free(made);
        return xm_error_set(XM_ERR_NO_MEMORY, "no thread for transfers in XLA's programs: %s",
                            strerror(error));
    }
    (void)pthread_mutex_lock(&registry.lock);
    made->next = registry.slots;
    registry.slots = made;
    (void)pthread_mutex_unlock(&registry.lock);
    *slot = made;
    return XM_OK;
}

/* Announces itself first and wakes the worker, so the thread leaves its sleep and lets
 * the lock go. */
void xm_xla_lock(xm_xla_slot_t *slot)
{
    ring(slot, 1, false);
    xm_worker_wake(slot->worker);
    (void)pthread_mutex_lock(&slot->lock);
}

void xm_xla_unlock(xm_xla_slot_t *slot)
{
    (void)pthread_mutex_unlock(&slot->lock);
    ring(slot, -1, false);
}

/* Finds a part by transfer, device and direction; with the registry's lock. */
static part_t *find(int64_t id, int32_t position, bool sends, xm_xla_slot_t **slot)
{
    for (*slot = registry.slots; *slot != NULL; *slot = (*slot)->next) {
        for (part_t *part = (*slot)->parts; part != NULL; part = part->next) {
            if (part->is.id == id && part->is.position == position && part->is.sends == sends) {
                return part;
            }
        }
    }
    return NULL;
}

/* A device has one part for each transfer and direction, or calls could not be told
 * apart. */
xm_status_t xm_xla_add(xm_xla_slot_t *slot, const xm_xla_part_t *part)
{
    xm_xla_slot_t *other;
    part_t *made = calloc(1, sizeof(*made));
    bool taken;

    XM_NEED_MEMORY(made, "a transfer in XLA's programs");
    made->is = *part;
    made->last = &made->first;
    (void)pthread_mutex_lock(&registry.lock);
    taken = find(part->id, part->position, part->sends, &other) != NULL;
    if (!taken) {
        made->next = slot->parts;
        slot->parts = made;
    }
    (void)pthread_mutex_unlock(&registry.lock);
    if (taken) {
        free(made);
        return XM_INVALID("transfer %lld has a device that %s at position %d already",
                          (long long)part->id, part->sends ? "sends" : "receives", part->position);
    }
    return XM_OK;
}

/* Runs that have not ended are cancelled with the reason; their futures must be completed
 * in any case. */
void xm_xla_remove(xm_xla_slot_t *slot, int64_t id, const char *reason)
{
    part_t **link = &slot->parts, *part;
    run_t *runs = NULL;

    (void)pthread_mutex_lock(&registry.lock);
    while (*link != NULL && (*link)->is.id != id) {
        link = &(*link)->next;
    }
    part = *link;
    if (part != NULL) {
        *link = part->next;
        runs = part->first;
    }
    (void)pthread_mutex_unlock(&registry.lock);
    while (runs != NULL) {
        run_t *next = runs->next;

        end_run(runs, XM_ERR_CANCELED, reason);
        runs = next;
    }
    free(part);
}

/* The thread has ended before the slot leaves the registry, so nobody uses what is freed. */
void xm_xla_slot_close(xm_xla_slot_t *slot)
{
    xm_xla_slot_t **link = &registry.slots;

    if (slot == NULL) {
        return;
    }
    ring(slot, 0, true);
    xm_worker_wake(slot->worker);
    (void)pthread_join(slot->thread, NULL);
    (void)pthread_mutex_lock(&registry.lock);
    while (*link != slot) {
        link = &(*link)->next;
    }
    *link = slot->next;
    (void)pthread_mutex_unlock(&registry.lock);
    while (slot->parts != NULL) {
        xm_xla_remove(slot, slot->parts->is.id, "the job was left while the transfer ran");
    }
    (void)pthread_cond_destroy(&slot->rings);
    (void)pthread_mutex_destroy(&slot->bell);
    (void)pthread_mutex_destroy(&slot->lock);
    free(slot);
}

/* ---- The handler --------------------------------------------------------------------------- */

/* XLA asks a handler at its registration for the version that it was written for. */
static bool answer_metadata(const xla_call_frame_t *frame)
{
    for (xla_extension_t *e = frame->extensions; e != NULL; e = e->next) {
        if (e->type == XLA_EXTENSION_METADATA) {
            xla_metadata_t *metadata = ((xla_metadata_extension_t *)(void *)e)->metadata;

            metadata->api_version.major = 0;
            metadata->api_version.minor = 1;
            metadata->traits = 0;
            return true;
        }
    }
    return false;
}

/* The attribute's name and type are compared in full: attributes come from a program. */
static bool read_id(const xla_attributes_t *attributes, int64_t *id)
{
    for (int64_t i = 0; i < attributes->size; ++i) {
        const xla_bytes_t *name = attributes->names[i];
        const xla_scalar_t *scalar = attributes->values[i];

        if (name->length == 2 && memcmp(name->data, "id", 2) == 0 &&
            attributes->types[i] == XLA_ATTRIBUTE_SCALAR && scalar->dtype == XLA_TYPE_S64) {
            memcpy(id, scalar->value, sizeof(*id));
            return true;
        }
    }
    return false;
}

static bool is_number(const xla_buffers_t *list, int64_t i)
{
    return i < list->size && list->items[i]->dtype == XLA_TYPE_S32 && list->items[i]->rank == 0;
}

/* Appends the run, or returns why it cannot. The registry's lock is held. */
static const char *append(int64_t id, int32_t position, const xla_call_frame_t *frame, run_t *run)
{
    const xla_buffers_t *in = &frame->arguments, *out = &frame->results;
    xla_future_args_t future = {.struct_size = offsetof(xla_future_args_t, error)};
    xm_xla_slot_t *slot;
    part_t *part = find(id, position, out->size == 1, &slot);

    if (part == NULL) {
        return "this device has no part in the transfer, or the transfer was closed";
    }
    if (part->is.sends ? in->size < 2 || !is_number(out, 0)
                       : out->size != 2 || !is_number(out, 1)) {
        return "operands and results are not those of this direction";
    }
    if (registry.create < 0) {
        return "the functions of this version of XLA are not known";
    }
    if (frame->api->functions[registry.create](&future) != NULL) {
        return "XLA gave no future";
    }
    run->api = frame->api;
    run->future = future.future;
    run->shard = part->is.sends ? in->items[in->size - 1]->data : out->items[0]->data;
    run->number = out->items[part->is.sends ? 0 : 1]->data;
    *part->last = run;
    part->last = &run->next;
    ring(slot, 0, false);
    xm_worker_wake(slot->worker);
    return NULL;
}

/* Called by XLA for every execution. The position is an operand because one program runs
 * on all devices. */
struct xla_error *xm_xla_transfer(struct xla_call_frame *frame)
{
    const char *refusal = NULL;
    char sentence[SENTENCE];
    int64_t id = 0;
    int32_t position;
    run_t *run;

    if (answer_metadata(frame)) {
        return NULL;
    }
    if (frame->stage != XLA_STAGE_EXECUTE) {
        return NULL;
    }
    if (!is_number(&frame->arguments, 0) || !read_id(&frame->attributes, &id)) {
        return make_error(frame->api, XLA_CODE_INVALID_ARGUMENT,
                          "crossmesh: a transfer needs the attribute id and the device's position");
    }
    memcpy(&position, frame->arguments.items[0]->data, sizeof(position));
    run = calloc(1, sizeof(*run));
    if (run == NULL) {
        return make_error(frame->api, XLA_CODE_RESOURCE_EXHAUSTED, "crossmesh: no memory");
    }
    (void)pthread_mutex_lock(&registry.lock);
    refusal = append(id, position, frame, run);
    if (refusal == NULL) {
        frame->future = run->future;
    }
    (void)pthread_mutex_unlock(&registry.lock);
    if (refusal != NULL) {
        free(run);
        (void)snprintf(sentence, sizeof(sentence), "crossmesh: transfer %lld, device %d: %s",
                       (long long)id, position, refusal);
        return make_error(frame->api, XLA_CODE_NOT_FOUND, sentence);
    }
    return NULL;
}
