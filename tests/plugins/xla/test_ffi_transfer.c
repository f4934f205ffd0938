/* SPDX-License-Identifier: Apache-2.0 */
/* The custom call, by a runtime of our own in XLA's place: two processes with two transfers. What
 * XLA itself makes of it is for tests/plugins/python. */
#include "plugins/xla/ffi_transfer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "tests/comm/job/local_job.h"
#include "plugins/xla/ffi_abi.h"
#include "xm_test.h"

enum { DEADLINE_S = 60, WORDS = 3000, RUNS = 20, TRANSFERS = 2 };
enum { CREATE = 3, SET_AVAILABLE = 5, SET_ERROR = 4, FUNCTIONS = 6 };

/* ---- The runtime --------------------------------------------------------------------------- */

struct xla_error {
    int code;
    char message[512];
};

struct xla_future {
    bool done;
    xla_error_t *error;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

static xla_error_t *error_create(void *args)
{
    const xla_error_args_t *given = args;
    xla_error_t *error = calloc(1, sizeof(*error));

    local_expect(error != NULL && given->struct_size == sizeof(*given), "Error_Create");
    error->code = given->code;
    (void)snprintf(error->message, sizeof(error->message), "%s", given->message);
    return error;
}

static xla_error_t *future_create(void *args)
{
    xla_future_args_t *given = args;

    given->future = calloc(1, sizeof(xla_future_t));
    return NULL;
}

static void complete(xla_future_t *future, xla_error_t *error)
{
    (void)pthread_mutex_lock(&lock);
    local_expect(!future->done, "a future was completed twice");
    future->done = true;
    future->error = error;
    (void)pthread_cond_broadcast(&ended);
    (void)pthread_mutex_unlock(&lock);
}

static xla_error_t *set_available(void *args)
{
    complete(((xla_future_args_t *)args)->future, NULL);
    return NULL;
}

static xla_error_t *set_error(void *args)
{
    const xla_future_args_t *given = args;

    local_expect(given->struct_size == sizeof(*given) && given->error != NULL, "Future_SetError");
    complete(given->future, given->error);
    return NULL;
}

/* Lives as long as the process. */
static const xla_api_t *runtime(void)
{
    static xla_api_t *api;

    if (api == NULL) {
        api = calloc(1, sizeof(*api) + FUNCTIONS * sizeof(api->functions[0]));
        local_expect(api != NULL, "no memory");
        api->functions[0] = error_create;
        api->functions[CREATE] = future_create;
        api->functions[SET_AVAILABLE] = set_available;
        api->functions[SET_ERROR] = set_error;
    }
    return api;
}

/* A call with its operands and results, as the runtime keeps them until the future is completed. */
typedef struct call {
    xla_call_frame_t frame;
    xla_buffer_t in[2], out[2], *in_list[2], *out_list[2];
    xla_scalar_t scalar;
    xla_bytes_t name, *name_list[1];
    void *value_list[1];
    int kinds[1];
    int64_t id;
    int32_t position, number;
} call_t;

static void make_call(call_t *call, int64_t id, int32_t position, void *shard, bool sends)
{
    xla_buffer_t number = {.dtype = XLA_TYPE_S32, .data = &call->number};
    xla_buffer_t tile = {.dtype = XLA_TYPE_S32, .data = shard, .rank = 1};

    memset(call, 0, sizeof(*call));
    call->id = id;
    call->position = position;
    call->number = -1;
    call->in[0] = (xla_buffer_t){.dtype = XLA_TYPE_S32, .data = &call->position};
    call->in[1] = tile;
    call->out[0] = sends ? number : tile;
    call->out[1] = number;
    call->scalar = (xla_scalar_t){.dtype = XLA_TYPE_S64, .value = &call->id};
    call->name = (xla_bytes_t){.data = "id", .length = 2};
    for (int i = 0; i < 2; ++i) {
        call->in_list[i] = &call->in[i];
        call->out_list[i] = &call->out[i];
    }
    call->name_list[0] = &call->name;
    call->value_list[0] = &call->scalar;
    call->kinds[0] = XLA_ATTRIBUTE_SCALAR;
    call->frame.struct_size = sizeof(call->frame);
    call->frame.api = runtime();
    call->frame.stage = XLA_STAGE_EXECUTE;
    call->frame.arguments.size = sends ? 2 : 1;
    call->frame.arguments.items = call->in_list;
    call->frame.results.size = sends ? 1 : 2;
    call->frame.results.items = call->out_list;
    call->frame.attributes.size = 1;
    call->frame.attributes.types = call->kinds;
    call->frame.attributes.names = call->name_list;
    call->frame.attributes.values = call->value_list;
}

static void expect_refusal(call_t *call, const char *text)
{
    xla_error_t *error = xm_xla_transfer(&call->frame);

    local_expect(error != NULL && strstr(error->message, text) != NULL, "'%s' lacks '%s'",
                 error == NULL ? "no error" : error->message, text);
    free(error);
}

/* Waits for the call's end: its error, which the caller frees, or NULL. */
static xla_error_t *end_of(call_t *call)
{
    xla_future_t *future = call->frame.future;
    xla_error_t *error;

    local_expect(future != NULL, "no future");
    (void)pthread_mutex_lock(&lock);
    while (!future->done) {
        (void)pthread_cond_wait(&ended, &lock);
    }
    (void)pthread_mutex_unlock(&lock);
    error = future->error;
    free(future);
    return error;
}

/* ---- Two ranks ----------------------------------------------------------------------------- */

typedef struct side {
    xm_reshard_t *reshard;
    int32_t buffer[WORDS];
} side_t;

static xm_layout_t *on_rank(int rank)
{
    const int one = 1;
    const int64_t shape[1] = {WORDS};
    xm_layout_t *layout;
    xm_mesh_t *mesh;
    xm_spec_t spec;

    local_expect_ok(xm_spec_parse("R", &spec));
    local_expect_ok(xm_mesh_create(1, &one, &rank, &mesh));
    local_expect_ok(xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, shape, &layout));
    xm_mesh_destroy(mesh);
    return layout;
}

/* A transfer from one rank to the other, with this rank's part in its slot. */
static void prepare(xm_worker_t *worker, xm_xla_slot_t *slot, int64_t id, int from, double timeout,
                    side_t *side)
{
    xm_reshard_params_t params = XM_RESHARD_PARAMS_INIT;
    xm_layout_t *src = on_rank(from), *dst = on_rank(1 - from);
    bool sends = xm_worker_rank(worker) == from;
    xm_tensor_t tensor = {.src = src, .dst = dst, .element_bits = 32};
    xm_tensor_buffers_t buffers = {.src = sends ? side->buffer : NULL,
                                   .src_bytes = sizeof(side->buffer),
                                   .dst = sends ? NULL : side->buffer,
                                   .dst_bytes = sizeof(side->buffer)};
    xm_xla_part_t part = {.struct_size = sizeof(part),
                          .id = id,
                          .position = 7,
                          .sends = sends,
                          .buffer = side->buffer,
                          .bytes = sizeof(side->buffer),
                          .timeout = timeout};

    params.tensors = &tensor;
    params.buffers = &buffers;
    xm_xla_lock(slot);
    local_expect_ok(xm_reshard_create(worker, &params, &side->reshard));
    part.reshard = side->reshard;
    local_expect_ok(xm_xla_add(slot, &part));
    local_expect_fails(xm_xla_add(slot, &part), XM_ERR_INVALID_ARGUMENT, "position 7 already");
    xm_xla_unlock(slot);
    xm_layout_destroy(src);
    xm_layout_destroy(dst);
}

static void release(xm_xla_slot_t *slot, int64_t id, side_t *side)
{
    xm_xla_lock(slot);
    xm_xla_remove(slot, id, "it was closed");
    xm_reshard_destroy(side->reshard);
    xm_xla_unlock(slot);
}

static int32_t word(int transfer, int run, int i)
{
    return (transfer << 28) + run * WORDS + i;
}

/* All calls of all runs at once; the two ranks make those of the two transfers in different orders.
 */
static void many_runs(int rank)
{
    static int32_t shards[TRANSFERS][RUNS][WORDS];
    static call_t calls[TRANSFERS][RUNS];

    for (int t = 0; t < TRANSFERS; ++t) {
        int id = rank == 0 ? t : TRANSFERS - 1 - t;

        for (int run = 0; run < RUNS; ++run) {
            for (int i = 0; i < WORDS; ++i) {
                shards[id][run][i] = id == rank ? word(id, run, i) : -1;
            }
            make_call(&calls[id][run], id, 7, shards[id][run], id == rank);
            local_expect(xm_xla_transfer(&calls[id][run].frame) == NULL, "refused");
        }
    }
    for (int id = 0; id < TRANSFERS; ++id) {
        for (int run = 0; run < RUNS; ++run) {
            xla_error_t *error = end_of(&calls[id][run]);

            local_expect(error == NULL, "run %d: %s", run, error == NULL ? "" : error->message);
            local_expect(calls[id][run].number == run, "run %d has number %d", run,
                         calls[id][run].number);
            for (int i = 0; i < WORDS; ++i) {
                local_expect(shards[id][run][i] == word(id, run, i), "run %d, word %d is %d", run,
                             i, shards[id][run][i]);
            }
        }
    }
}

static int transfer_rank(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    static side_t sides[TRANSFERS];
    xm_worker_t *worker;
    xm_xla_slot_t *slot;

    (void)arg;
    params.listen_fd = listen_fd;
    local_expect_ok(xm_worker_create(env, &params, &worker));
    xm_xla_set_functions(CREATE, SET_AVAILABLE, SET_ERROR);
    local_expect_ok(xm_xla_slot_open(worker, &slot));
    for (int id = 0; id < TRANSFERS; ++id) {
        prepare(worker, slot, id, id, 0, &sides[id]); /* transfer i comes from rank i */
    }
    many_runs(env->rank);
    for (int id = 0; id < TRANSFERS; ++id) {
        release(slot, id, &sides[id]);
    }
    xm_xla_slot_close(slot);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(runs_of_two_transfers_end_in_any_order)
{
    local_job_run(2, DEADLINE_S, transfer_rank, NULL);
}
END_TEST

/* Rank 0 never sends: the receive ends at its deadline, and what is closed while it waits, at once.
 */
static int waiting_rank(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    atomic_bool *ended_there = arg;
    static int32_t shard[WORDS];
    static side_t sides[TRANSFERS];
    static call_t calls[3];
    xm_worker_t *worker;
    xm_xla_slot_t *slot;
    xla_error_t *error;

    params.listen_fd = listen_fd;
    local_expect_ok(xm_worker_create(env, &params, &worker));
    xm_xla_set_functions(CREATE, SET_AVAILABLE, SET_ERROR);
    local_expect_ok(xm_xla_slot_open(worker, &slot));
    prepare(worker, slot, 0, 0, 1.0, &sides[0]);
    prepare(worker, slot, 1, 0, 1e6, &sides[1]);
    if (env->rank == 1) {
        for (int i = 0; i < 3; ++i) {
            make_call(&calls[i], i == 0 ? 0 : 1, 7, shard, false);
            local_expect(xm_xla_transfer(&calls[i].frame) == NULL, "refused");
        }
        error = end_of(&calls[0]);
        local_expect(error != NULL && error->message[0] != '\0', "a receive without a send");
        free(error);
        release(slot, 1, &sides[1]);
        for (int i = 1; i < 3; ++i) {
            error = end_of(&calls[i]);
            local_expect(error != NULL, "a transfer that was closed has ended well");
            free(error);
        }
        make_call(&calls[0], 1, 7, shard, false);
        expect_refusal(&calls[0], "transfer 1, device 7: this device has no part");
        release(slot, 0, &sides[0]);
        atomic_store(ended_there, true);
    } else {
        while (!atomic_load(ended_there)) { /* its leaving would end what rank 1 waits for */
            local_sleep(0.01);
        }
        release(slot, 0, &sides[0]);
        release(slot, 1, &sides[1]);
    }
    xm_xla_slot_close(slot);
    xm_worker_destroy(worker, "done with waiting");
    return 0;
}

START_TEST(a_receive_without_a_send_ends)
{
    local_job_run(2, DEADLINE_S, waiting_rank, local_shared(sizeof(atomic_bool)));
}
END_TEST

START_TEST(bad_calls_are_refused)
{
    xla_metadata_t metadata = {.struct_size = sizeof(metadata), .api_version.major = -1};
    xla_metadata_extension_t extension = {.base.type = XLA_EXTENSION_METADATA,
                                          .metadata = &metadata};
    int32_t shard[4];
    call_t call;

    /* As at the registration: there is nothing but the extension. */
    make_call(&call, 0, 0, shard, true);
    call.frame.extensions = &extension.base;
    call.frame.stage = 0;
    ck_assert_ptr_null(xm_xla_transfer(&call.frame));
    ck_assert_int_eq(metadata.api_version.major, 0);
    ck_assert_int_ge(metadata.api_version.minor, 1);
    /* Other stages have nothing to do. */
    make_call(&call, 0, 0, shard, true);
    call.frame.stage = 1;
    ck_assert_ptr_null(xm_xla_transfer(&call.frame));
    make_call(&call, 12, 3, shard, true);
    expect_refusal(&call, "transfer 12, device 3: this device has no part");
    call.kinds[0] = 1;
    expect_refusal(&call, "attribute id");
    make_call(&call, 12, 3, shard, true);
    call.in[0].dtype = XLA_TYPE_S64;
    expect_refusal(&call, "position");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("xla_ffi_transfer");
    TCase *tcase = tcase_create("local");

    tcase_set_timeout(tcase, 2 * DEADLINE_S);
    tcase_add_test(tcase, bad_calls_are_refused);
    tcase_add_test(tcase, runs_of_two_transfers_end_in_any_order);
    tcase_add_test(tcase, a_receive_without_a_send_ends);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
