/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/comm/job/local_job.h"
#include "tests/resharding/plan/random_relay.h"
#include "resharding/execute/checksum.h"
#include "xm_test.h"

enum { RANKS = 8, PER_HOST = 4, CASES = 1000, DEADLINE_S = 60 };

static xm_worker_t *join(const xm_job_env_t *env, int listen_fd, double timeout)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;
    char host[32];

    (void)snprintf(host, sizeof(host), "host%d", env->rank / PER_HOST);
    params.listen_fd = listen_fd;
    params.host = host;
    params.timeout = timeout;
    local_expect_ok(xm_worker_create(env, &params, &worker));
    return worker;
}

typedef struct {
    random_batch_t batch;
    xm_plan_t *plan;
    xm_executor_t *executor;
    xm_tensor_buffers_t buffers[RANDOM_BATCH_TENSORS];
    char *arena; /* all buffers */
    int done[RANDOM_BATCH_TENSORS];
} rank_t;

static void count_done(void *arg, int tensor)
{
    ++((rank_t *)arg)->done[tensor];
}

/* One allocation for all tensors, as a framework's caching allocator gives them out. */
static void allocate(const xm_plan_t *plan, int rank, rank_t *r)
{
    size_t bytes = 0;

    for (int pass = 0; pass < 2; ++pass) {
        char *next = r->arena;

        for (int t = 0; t < xm_plan_tensors(plan); ++t) {
            xm_tensor_buffers_t *b = &r->buffers[t];
            int64_t size = xm_plan_tensor_element_size(plan, t);

            b->src_bytes = xm_layout_buffer_bytes(xm_plan_tensor_src(plan, t), rank, size);
            b->dst_bytes = xm_layout_buffer_bytes(xm_plan_tensor_dst(plan, t), rank, size);
            if (pass == 0) {
                bytes += b->src_bytes + b->dst_bytes;
            } else {
                b->src = next;
                b->dst = next + b->src_bytes;
                next += b->src_bytes + b->dst_bytes;
            }
        }
        if (pass == 0) {
            r->arena = malloc(bytes + 1);
        }
    }
}

/* The batch of a seed, on the job's ranks. */
static void make_batch(uint64_t seed, random_batch_t *batch)
{
    do {
        random_t random = {seed};

        random_batch_create(&random, batch);
        seed += UINT64_C(1) << 32;
        if (batch->ranks <= RANKS) {
            return;
        }
        random_batch_destroy(batch);
    } while (true);
}

static void prepare(xm_worker_t *worker, uint64_t seed, rank_t *r)
{
    xm_executor_params_t params = {0};

    memset(r, 0, sizeof(*r));
    make_batch(seed, &r->batch);
    r->batch.params.chunk_bytes = 64;
    local_expect_ok(xm_plan_create(&r->batch.params, &r->plan));
    if (seed % 5 == 0) {
        random_t random = {seed};

        (void)random_forwards(&random, r->plan);
    }
    allocate(r->plan, xm_worker_rank(worker), r);
    params.plan = r->plan;
    params.transport = xm_worker_transport(worker);
    params.buffers = r->buffers;
    params.memory_limit = seed % 3 == 0 ? 256 : 0;
    params.turns = seed % 2 == 0;
    params.turn_ahead = 1 + seed % 1000;
    params.tensor_done = count_done;
    params.arg = r;
    local_expect_ok(xm_executor_create(&params, &r->executor));
}

static void release(rank_t *r)
{
    xm_executor_destroy(r->executor);
    free(r->arena);
    xm_plan_destroy(r->plan);
    random_batch_destroy(&r->batch);
}

static void fill(rank_t *r, int rank, uint64_t seed)
{
    for (int t = 0; t < r->batch.count; ++t) {
        pattern_fill(xm_plan_tensor_src(r->plan, t), rank, xm_plan_tensor_element_size(r->plan, t),
                     seed * RANDOM_BATCH_TENSORS + (uint64_t)t,
                     (void *)(uintptr_t)r->buffers[t].src);
        memset(r->buffers[t].dst, 0x5a, r->buffers[t].dst_bytes);
        r->done[t] = 0;
    }
}

static void check(const rank_t *r, int rank, uint64_t seed)
{
    for (int t = 0; t < r->batch.count; ++t) {
        int64_t wrong = pattern_wrong(xm_plan_tensor_dst(r->plan, t), rank,
                                      xm_plan_tensor_element_size(r->plan, t),
                                      seed * RANDOM_BATCH_TENSORS + (uint64_t)t, r->buffers[t].dst);

        local_expect(wrong == 0 && r->done[t] == 1,
                     "rank %d, tensor %d: %d wrong bytes, called done %d times: %s", rank, t,
                     (int)wrong, r->done[t], random_batch_text(&r->batch));
    }
}

/* One bit of what some rank received is flipped: only that rank finds it. */
static void spoil(xm_worker_t *worker, rank_t *r, uint64_t seed)
{
    int rank = xm_worker_rank(worker), victim = (int)(seed % RANKS);
    bool spoilt = rank == victim && r->buffers[0].dst_bytes > 0;
    int64_t deadline = xm_worker_deadline(worker);

    if (spoilt) {
        ((char *)r->buffers[0].dst)[seed % r->buffers[0].dst_bytes] ^= 4;
        local_expect_fails(xm_executor_verify(worker, r->executor, deadline), XM_ERR_CORRUPT,
                           "tensor 0, box [");
    } else {
        local_expect_ok(xm_executor_verify(worker, r->executor, deadline));
    }
}

static int run_cases(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd, DEADLINE_S);

    (void)arg;
    for (uint64_t seed = 1; seed <= (uint64_t)xm_test_rounds(CASES); ++seed) {
        rank_t r;

        prepare(worker, seed, &r);
        local_expect_ok(xm_reshard_agree(worker, r.plan, "test"));
        for (uint64_t round = 0; round < 2; ++round) {
            fill(&r, env->rank, seed * 2 + round);
            local_expect_ok(xm_executor_run(worker, r.executor, xm_worker_deadline(worker)));
            check(&r, env->rank, seed * 2 + round);
        }
        if (seed % 4 == 0) {
            local_expect_ok(xm_executor_verify(worker, r.executor, xm_worker_deadline(worker)));
            spoil(worker, &r, seed);
        }
        /* A fast rank may be a case ahead; its channel is the same, so all wait for the slowest. */
        local_expect_ok(xm_worker_barrier(worker));
        release(&r);
    }
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(random_plans_on_real_processes)
{
    local_job_run(RANKS, DEADLINE_S, run_cases, NULL);
}
END_TEST

/* One matrix: what matrix_plan() varies. */
typedef struct {
    const char *name;
    int64_t columns;
    const char *dst_spec;
    int bits;
} matrix_t;

static void matrix_layouts(const matrix_t *matrix, xm_tensor_t *tensor)
{
    int64_t shape[] = {8, matrix->columns};
    xm_mesh_t *src_mesh, *dst_mesh;
    xm_spec_t src_spec, dst_spec;
    xm_layout_t *src, *dst;

    local_expect_ok(xm_mesh_parse("4", NULL, 0, &src_mesh));
    local_expect_ok(xm_mesh_parse("2x2", NULL, 4, &dst_mesh));
    local_expect_ok(xm_spec_parse("S0R", &src_spec));
    local_expect_ok(xm_spec_parse(matrix->dst_spec, &dst_spec));
    local_expect_ok(xm_layout_create(src_mesh, &src_spec, XM_PARTITION_EVEN, shape, &src));
    local_expect_ok(xm_layout_create(dst_mesh, &dst_spec, XM_PARTITION_EVEN, shape, &dst));
    *tensor = (xm_tensor_t){matrix->name, src, dst, matrix->bits};
    xm_mesh_destroy(src_mesh);
    xm_mesh_destroy(dst_mesh);
}

/* Matrices from ranks 0 … 3 to ranks 4 … 7. */
static xm_plan_t *batch_plan(const matrix_t *matrices, int count, uint64_t chunk_bytes)
{
    static const int hosts[RANKS] = {0, 0, 0, 0, 1, 1, 1, 1};
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_tensor_t tensors[2];
    xm_network_t *network;
    xm_plan_t *plan;

    network_params.ranks = RANKS;
    network_params.host_of_rank = hosts;
    network_params.nic_bandwidth = network_params.host_bandwidth = 1e9;
    local_expect_ok(xm_network_create(&network_params, &network));
    for (int t = 0; t < count; ++t) {
        matrix_layouts(&matrices[t], &tensors[t]);
    }
    params.tensors = tensors;
    params.tensor_count = count;
    params.network = network;
    params.chunk_bytes = chunk_bytes;
    local_expect_ok(xm_plan_create(&params, &plan));
    for (int t = 0; t < count; ++t) {
        xm_layout_destroy((xm_layout_t *)(uintptr_t)tensors[t].src);
        xm_layout_destroy((xm_layout_t *)(uintptr_t)tensors[t].dst);
    }
    xm_network_destroy(network);
    return plan;
}

static xm_plan_t *matrix_plan(int64_t columns, const char *dst_spec, uint64_t chunk_bytes)
{
    const matrix_t matrix = {NULL, columns, dst_spec, 32};

    return batch_plan(&matrix, 1, chunk_bytes);
}

/* Rank 3 has another second matrix. */
static void disagree_about(xm_worker_t *worker, const matrix_t *other, int count,
                           const char *sentence)
{
    const matrix_t usual[2] = {{"wq", 16, "RS0", 32}, {"wk", 16, "RS0", 32}};
    const matrix_t odd[2] = {usual[0], *other};
    bool is_odd = xm_worker_rank(worker) == 3;
    xm_plan_t *plan = batch_plan(is_odd ? odd : usual, is_odd ? count : 2, 64);

    local_expect_fails(xm_reshard_agree(worker, plan, "int32"), XM_ERR_MISMATCH, sentence);
    xm_plan_destroy(plan);
}

static int disagree_in_batch(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd, DEADLINE_S);
    const matrix_t usual = {"wk", 16, "RS0", 32}, shape = {"wk", 32, "RS0", 32},
                   spec = {"wk", 16, "S1R", 32}, size = {"wk", 16, "RS0", 16},
                   name = {"wv", 16, "RS0", 32};

    (void)arg;
    disagree_about(worker, &usual, 1, "rank 3 has 1 tensors where rank 0 has 2");
    disagree_about(worker, &shape, 2,
                   "rank 3 has shape 8x32 of tensor wk where rank 0 has 8x16: dimension 1 has 32 "
                   "elements, not 16");
    disagree_about(worker, &spec, 2,
                   "rank 3 has destination spec S1R of tensor wk where rank 0 has RS0");
    disagree_about(worker, &size, 2,
                   "rank 3 has element size 2 bytes of tensor wk where rank 0 has 4 bytes");
    disagree_about(worker, &name, 2, "rank 3 calls tensor 1 wv where rank 0 calls it wk");
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(a_batch_that_differs_is_named_by_tensor)
{
    local_job_run(RANKS, DEADLINE_S, disagree_in_batch, NULL);
}
END_TEST

static int disagree(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd, DEADLINE_S);
    bool odd = env->rank == 3;
    xm_plan_t *common = matrix_plan(16, "RS0", 64);
    xm_plan_t *shape = matrix_plan(odd ? 32 : 16, "RS0", 64);
    xm_plan_t *spec = matrix_plan(16, odd ? "RS1" : "RS0", 64);
    xm_plan_t *chunks = matrix_plan(16, "RS0", odd ? 32 : 64);

    (void)arg;
    local_expect_ok(xm_reshard_agree(worker, common, "int32"));
    local_expect_fails(
        xm_reshard_agree(worker, shape, "int32"), XM_ERR_MISMATCH,
        "rank 3 has shape 8x32 where rank 0 has 8x16: dimension 1 has 32 elements, not 16");
    local_expect_fails(xm_reshard_agree(worker, spec, "int32"), XM_ERR_MISMATCH,
                       "rank 3 has destination spec RS1 where rank 0 has RS0");
    local_expect_fails(xm_reshard_agree(worker, common, odd ? "float32" : "int32"), XM_ERR_MISMATCH,
                       "rank 3 has dtype float32 where rank 0 has int32");
    local_expect_fails(xm_reshard_agree(worker, chunks, "int32"), XM_ERR_MISMATCH,
                       "rank 3 made plan");
    xm_plan_destroy(common);
    xm_plan_destroy(shape);
    xm_plan_destroy(spec);
    xm_plan_destroy(chunks);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(disagreement_is_named_before_anything_moves)
{
    local_job_run(RANKS, DEADLINE_S, disagree, NULL);
}
END_TEST

typedef struct {
    bool kill_it;
    atomic_int fault_statuses; /* ranks that know how their run ended */
} absence_t;

/* Every receiver needs what rank 2 holds; rank 2 dies, or does nothing. */
static int absent_sender(const xm_job_env_t *env, int listen_fd, void *arg)
{
    absence_t *absence = arg;
    bool kill_it = absence->kill_it;
    int fault_statuses = kill_it ? RANKS - 1 : RANKS;
    double limit = DEADLINE_S / 2.0;
    xm_worker_t *worker = join(env, listen_fd, DEADLINE_S);
    xm_plan_t *plan = matrix_plan(4096, "RR", 1024);
    xm_executor_params_t params = {0};
    xm_executor_t *executor;
    int64_t deadline;
    double started;
    xm_status_t status;

    params.plan = plan;
    params.transport = xm_worker_transport(worker);
    params.src_bytes = xm_layout_buffer_bytes(xm_plan_src(plan), env->rank, 4);
    params.dst_bytes = xm_layout_buffer_bytes(xm_plan_dst(plan), env->rank, 4);
    params.src = calloc(1, params.src_bytes + 1);
    params.dst = calloc(1, params.dst_bytes + 1);
    local_expect_ok(xm_executor_create(&params, &executor));
    local_expect_ok(xm_worker_barrier(worker));
    started = local_now();
    deadline = xm_worker_now(worker) + (int64_t)(kill_it ? 1e9 * DEADLINE_S : 1e9);
    if (env->rank == 2) { /* holds a quarter of the tensor, and does not send it */
        if (kill_it) {
            (void)kill(getpid(), SIGKILL);
        }
    } else {
        /* It does something else at first, which belongs to the time that the sentence says. */
        local_expect_ok(xm_executor_post(executor));
        local_sleep(kill_it ? 0 : 0.5);
        status = xm_executor_wait(worker, executor, INT64_MAX, deadline);
        if (env->rank >= 4 && kill_it) {
            local_expect(status == XM_ERR_PEER_DIED && strstr(xm_last_error(), "rank 2") != NULL,
                         "rank %d: %s (%s)", env->rank, xm_status_string(status), xm_last_error());
        } else if (env->rank >= 4) {
            local_expect(status == XM_ERR_TIMEOUT &&
                             strstr(xm_last_error(), "waits for chunk") != NULL,
                         "rank %d: %s (%s)", env->rank, xm_status_string(status), xm_last_error());
            local_expect(atof(strstr(xm_last_error(), " after ") + strlen(" after ")) >= 0.9,
                         "rank %d: %s", env->rank, xm_last_error());
        }
        local_expect(local_now() - started < limit, "rank %d took %.1f s", env->rank,
                     local_now() - started);
    }
    atomic_fetch_add(&absence->fault_statuses, 1);
    /* Nobody leaves before everybody has had his fault status. */
    while (atomic_load(&absence->fault_statuses) < fault_statuses &&
           local_now() - started < limit) {
        /* Waiting, so that rank 0 passes the news of a death on at once. */
        (void)xm_worker_wait(worker, xm_worker_now(worker) + 10000000);
        local_sleep(0.001);
    }
    xm_executor_destroy(executor);
    free((void *)(uintptr_t)params.src);
    free(params.dst);
    xm_plan_destroy(plan);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(a_silent_rank_ends_in_a_timeout_that_says_who_waits)
{
    absence_t *absence = local_shared(sizeof(*absence));

    local_job_run(RANKS, DEADLINE_S, absent_sender, absence);
    ck_assert_int_eq(atomic_load(&absence->fault_statuses), RANKS);
}
END_TEST

/* Rank 2 begins late. Those who wait for it come back to look after other things, and go on. */
static int wait_in_slices(const xm_job_env_t *env, int listen_fd, void *arg)
{
    atomic_int *back = arg; /* ranks that have come back often enough */
    xm_worker_t *worker = join(env, listen_fd, DEADLINE_S);
    xm_plan_t *plan = matrix_plan(4096, "RR", 1024);
    xm_executor_params_t params = {0};
    xm_executor_t *executor;
    xm_status_t status;
    int slices = 0;

    params.plan = plan;
    params.transport = xm_worker_transport(worker);
    params.src_bytes = xm_layout_buffer_bytes(xm_plan_src(plan), env->rank, 4);
    params.dst_bytes = xm_layout_buffer_bytes(xm_plan_dst(plan), env->rank, 4);
    params.src = malloc(params.src_bytes + 1);
    params.dst = malloc(params.dst_bytes + 1);
    pattern_fill(xm_plan_src(plan), env->rank, 4, 5, (void *)(uintptr_t)params.src);
    local_expect_ok(xm_executor_create(&params, &executor));
    local_expect_ok(xm_worker_barrier(worker));
    if (env->rank == 2) {
        local_await(back, RANKS - 4);
    }
    local_expect_ok(xm_executor_post(executor));
    do {
        int64_t now = xm_worker_now(worker);

        /* Every other time it only looks. */
        status = xm_executor_wait(worker, executor, now + slices % 2 * INT64_C(20000000),
                                  xm_worker_deadline(worker));
        if (++slices == 3 && env->rank >= 4) {
            (void)atomic_fetch_add(back, 1);
        }
    } while (status == XM_IN_PROGRESS);
    local_expect(status == XM_OK, "%s", xm_last_error());
    local_expect(env->rank < 4 || slices > 2, "%d slices", slices);
    local_expect(pattern_wrong(xm_plan_dst(plan), env->rank, 4, 5, params.dst) == 0, "wrong bytes");
    local_expect_ok(xm_worker_barrier(worker));
    xm_executor_destroy(executor);
    free((void *)(uintptr_t)params.src);
    free(params.dst);
    xm_plan_destroy(plan);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(a_run_can_be_waited_for_in_slices)
{
    local_job_run(RANKS, DEADLINE_S, wait_in_slices, local_shared(sizeof(atomic_int)));
}
END_TEST

/* Every receiver waits for the hashes of rank 2, which does not verify. */
static int absent_verifier(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd, DEADLINE_S);
    xm_plan_t *plan = matrix_plan(4096, "RR", 1024);
    xm_executor_params_t params = {0};
    xm_executor_t *executor;

    (void)arg;
    params.plan = plan;
    params.transport = xm_worker_transport(worker);
    params.src_bytes = xm_layout_buffer_bytes(xm_plan_src(plan), env->rank, 4);
    params.dst_bytes = xm_layout_buffer_bytes(xm_plan_dst(plan), env->rank, 4);
    params.src = calloc(1, params.src_bytes + 1);
    params.dst = calloc(1, params.dst_bytes + 1);
    local_expect_ok(xm_executor_create(&params, &executor));
    local_expect_ok(xm_executor_run(worker, executor, xm_worker_deadline(worker)));
    if (env->rank >= 4) {
        local_expect_fails(
            xm_executor_verify(worker, executor, xm_worker_now(worker) + INT64_C(3000000000)),
            XM_ERR_TIMEOUT, "waits for the hashes from rank 2");
    } else if (env->rank != 2) {
        local_expect_ok(xm_executor_verify(worker, executor, xm_worker_deadline(worker)));
    }
    local_expect_ok(xm_worker_barrier(worker));
    xm_executor_destroy(executor);
    free((void *)(uintptr_t)params.src);
    free(params.dst);
    xm_plan_destroy(plan);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(a_rank_that_does_not_verify_is_named)
{
    local_job_run(RANKS, DEADLINE_S, absent_verifier, NULL);
}
END_TEST

START_TEST(a_killed_rank_ends_the_others_with_its_name)
{
    absence_t *absence = local_shared(sizeof(*absence));
    local_job_t job;

    absence->kill_it = true;
    local_job_start(&job, RANKS, 0, DEADLINE_S, absent_sender, absence);
    local_job_wait(&job, 1u << 2);
    ck_assert_int_eq(atomic_load(&absence->fault_statuses), RANKS - 1);
}
END_TEST

/* Two cases, run as two tests: UCX logs the broken connections of the second. */
int main(void)
{
    Suite *suite = suite_create("reshard");
    TCase *local = tcase_create("local"), *fault = tcase_create("fault");

    tcase_set_timeout(local, 90);
    tcase_add_test(local, random_plans_on_real_processes);
    tcase_add_test(local, disagreement_is_named_before_anything_moves);
    tcase_add_test(local, a_batch_that_differs_is_named_by_tensor);
    tcase_add_test(local, a_run_can_be_waited_for_in_slices);
    suite_add_tcase(suite, local);
    tcase_set_timeout(fault, 90);
    tcase_add_test(fault, a_silent_rank_ends_in_a_timeout_that_says_who_waits);
    tcase_add_test(fault, a_rank_that_does_not_verify_is_named);
    tcase_add_test(fault, a_killed_rank_ends_the_others_with_its_name);
    suite_add_tcase(suite, fault);
    return xm_test_run(suite);
}
