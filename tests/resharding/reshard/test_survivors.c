/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks die in the middle of reshards; the others shrink the group and reshard among themselves. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include <crossmesh/group.h>
#include "tests/comm/job/local_job.h"
#include "resharding/execute/execute.h"
#include "xm_test.h"

/* 840 and 420 have all of 1 … 7 as divisors. */
enum { DEADLINE_S = 60, RANKS = 6, ROWS = 840, COLUMNS = 420, DESCRIPTORS = 256, LOOKS = 50 };

typedef struct {
    unsigned doomed; /* bits of ranks that die during the first reshards */
    int per_host;
    bool stop; /* they are stopped instead, and killed by the test */
} disaster_t;

typedef struct {
    xm_plan_t *plan;
    xm_executor_t *executor;
    int32_t *src, *dst;
    int64_t rows, columns; /* of this rank's tiles */
} reshard_t;

static xm_layout_t *layout(const xm_mesh_t *mesh, const char *text)
{
    const int64_t shape[2] = {ROWS, COLUMNS};
    xm_layout_t *made;
    xm_spec_t spec;

    local_expect_ok(xm_spec_parse(text, &spec));
    local_expect_ok(xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, shape, &made));
    return made;
}

/* From rows to columns over all ranks of the group: everybody has something for everybody. */
static void prepare(xm_worker_t *worker, int32_t seed, reshard_t *reshard)
{
    int size = xm_worker_size(worker), rank = xm_worker_rank(worker), hosts[RANKS];
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_executor_params_t params = {0};
    xm_plan_params_t plan_params = XM_PLAN_PARAMS_INIT;
    xm_tensor_t tensor = {.element_bits = 32};
    xm_network_t *network;
    xm_layout_t *src, *dst;
    xm_mesh_t *mesh;

    for (int r = 0; r < size; ++r) {
        hosts[r] = xm_worker_host_of(worker, r);
    }
    network_params.ranks = size;
    network_params.host_of_rank = hosts;
    network_params.nic_bandwidth = network_params.host_bandwidth = 1e9;
    local_expect_ok(xm_network_create(&network_params, &network));
    local_expect_ok(xm_mesh_create(1, &size, NULL, &mesh));
    src = layout(mesh, "S0R");
    dst = layout(mesh, "RS0");
    tensor.src = src;
    tensor.dst = dst;
    plan_params.tensors = &tensor;
    plan_params.tensor_count = 1;
    plan_params.network = network;
    plan_params.chunk_bytes = 4096;
    local_expect_ok(xm_plan_create(&plan_params, &reshard->plan));
    local_expect_ok(xm_reshard_agree(worker, reshard->plan, "int32"));
    reshard->rows = ROWS / size;
    reshard->columns = COLUMNS / size;
    params.plan = reshard->plan;
    params.transport = xm_worker_transport(worker);
    params.src_bytes = (uint64_t)(reshard->rows * COLUMNS) * sizeof(int32_t);
    params.dst_bytes = (uint64_t)(reshard->columns * ROWS) * sizeof(int32_t);
    reshard->src = malloc(params.src_bytes);
    reshard->dst = malloc(params.dst_bytes);
    params.src = reshard->src;
    params.dst = reshard->dst;
    for (int64_t i = 0; i < reshard->rows * COLUMNS; ++i) {
        reshard->src[i] = seed + (int32_t)(rank * reshard->rows * COLUMNS + i);
    }
    memset(reshard->dst, 0xff, params.dst_bytes);
    local_expect_ok(xm_executor_create(&params, &reshard->executor));
    xm_layout_destroy(src);
    xm_layout_destroy(dst);
    xm_mesh_destroy(mesh);
    xm_network_destroy(network);
}

/* Every element has the number of its place in the whole. */
static void check(const xm_worker_t *worker, int32_t seed, const reshard_t *reshard)
{
    int64_t first = xm_worker_rank(worker) * reshard->columns;

    for (int64_t i = 0; i < ROWS * reshard->columns; ++i) {
        int64_t row = i / reshard->columns, column = first + i % reshard->columns;

        local_expect(reshard->dst[i] == seed + (int32_t)(row * COLUMNS + column),
                     "rank %d: element %d, %d is %d", xm_worker_rank(worker), (int)row, (int)column,
                     reshard->dst[i]);
    }
}

static void release(reshard_t *reshard)
{
    xm_executor_destroy(reshard->executor);
    xm_plan_destroy(reshard->plan);
    free(reshard->src);
    free(reshard->dst);
}

static int reshard_on(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const disaster_t *disaster = arg;
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;
    reshard_t reshard;
    xm_status_t status = XM_OK;
    char host[32];

    (void)snprintf(host, sizeof(host), "h%d", env->rank / disaster->per_host);
    params.listen_fd = listen_fd;
    params.host = host;
    params.timeout = DEADLINE_S;
    local_expect_ok(xm_worker_create(env, &params, &worker));
    prepare(worker, 7, &reshard);
    for (int round = 0; status == XM_OK; ++round) {
        if (round == 3 + env->rank && (disaster->doomed >> env->rank & 1) != 0) {
            local_expect_ok(xm_executor_post(reshard.executor));
            (void)xm_executor_advance(reshard.executor);
            (void)raise(disaster->stop ? SIGSTOP : SIGKILL);
        }
        status = xm_executor_run(worker, reshard.executor, xm_worker_deadline(worker));
        if (status == XM_OK) {
            check(worker, 7, &reshard);
            memset(reshard.dst, 0xff, (size_t)(reshard.columns * ROWS) * sizeof(int32_t));
        }
    }
    local_expect(status == XM_ERR_PEER_DIED, "%s (%s)", xm_status_string(status), xm_last_error());
    release(&reshard);
    if ((disaster->doomed >> env->rank & 1) != 0) {
        (void)raise(disaster->stop ? SIGSTOP : SIGKILL); /* another one was faster */
    }
    local_expect_ok(xm_group_shrink(worker, 0));
    local_expect(xm_worker_size(worker) == RANKS - __builtin_popcount(disaster->doomed), "%d ranks",
                 xm_worker_size(worker));
    prepare(worker, 1000000, &reshard);
    for (int round = 0; round < 10; ++round) {
        local_expect_ok(xm_executor_run(worker, reshard.executor, xm_worker_deadline(worker)));
        check(worker, 1000000, &reshard);
        memset(reshard.dst, 0xff, (size_t)(reshard.columns * ROWS) * sizeof(int32_t));
    }
    release(&reshard);
    local_expect_ok(xm_worker_barrier(worker));
    xm_worker_destroy(worker, NULL);
    return 0;
}

static const disaster_t disasters[] = {
    {.doomed = 1u << 2, .per_host = RANKS},
    {.doomed = 1u << 0, .per_host = 2},
    {.doomed = 1u << 1 | 1u << 5, .per_host = 2},
    {.doomed = 1u << 0 | 1u << 3, .per_host = RANKS},
    {.doomed = 1u << 4, .per_host = 3, .stop = true},
};

START_TEST(survivors_reshard)
{
    const disaster_t *disaster = &disasters[_i];
    local_job_t job;

    local_job_start(&job, RANKS, 0, DEADLINE_S, reshard_on, (void *)(uintptr_t)disaster);
    if (disaster->stop) {
        local_sleep(local_timeout(8.0));
        for (int rank = 0; rank < RANKS; ++rank) {
            if ((disaster->doomed >> rank & 1) != 0) {
                (void)kill(job.pids[rank], SIGKILL);
            }
        }
    }
    local_job_wait(&job, disaster->doomed);
}
END_TEST

/* Rank 1 gives up; who begins a run after that is told why, as one who is in the middle of it. */
static int run_too_late(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;
    reshard_t reshard;
    xm_status_t status = XM_OK;

    (void)arg;
    params.listen_fd = listen_fd;
    params.timeout = DEADLINE_S;
    local_expect_ok(xm_worker_create(env, &params, &worker));
    prepare(worker, 7, &reshard);
    /* Nobody is preparing any more when rank 1 leaves it; others may leave it because of the abort.
     */
    (void)xm_bootstrap_barrier(xm_worker_bootstrap(worker), DEADLINE_S);
    if (env->rank == 1) {
        local_expect_ok(xm_group_abort(worker, "the disk is full"));
    }
    while (status == XM_OK) {
        status = xm_worker_wait(worker, xm_worker_deadline(worker));
    }
    local_expect_fails(xm_executor_run(worker, reshard.executor, xm_worker_deadline(worker)),
                       XM_ERR_CANCELED, "gave up: the disk is full");
    release(&reshard);
    xm_worker_destroy(worker, xm_last_error());
    return 0;
}

START_TEST(a_run_after_an_abort_names_it)
{
    local_job_run(RANKS, DEADLINE_S, run_too_late, NULL);
}
END_TEST

/* What a process holds: descriptors, and KiB of memory. */
static void measure(int *descriptors, long *memory)
{
    DIR *folder = opendir("/proc/self/fd");
    FILE *pages = fopen("/proc/self/statm", "r");

    *descriptors = 0;
    while (readdir(folder) != NULL) {
        ++*descriptors;
    }
    local_expect(fscanf(pages, "%*s %ld", memory) == 1, "no statm");
    *memory *= sysconf(_SC_PAGESIZE) / 1024;
    (void)fclose(pages);
    (void)closedir(folder);
}

static int recovery_cycles(void)
{
    const char *given = getenv("RECOVERY_CYCLES");

    return given != NULL ? atoi(given) : 30;
}

/*
 * Reshards, gives up and recovers again and again; what the first cycles take is all they take: the
 * descriptors are the same, and the memory within a MiB. Detectors that had to wait for an answer
 * may have a connection for a while.
 */
static int recover(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const disaster_t *disaster = arg;
    const struct rlimit few = {DESCRIPTORS, DESCRIPTORS};
    int cycles = recovery_cycles(), descriptors, descriptors_then = 0;
    long memory, memory_then = 0;
    bool strict;
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;
    char host[32];

    (void)snprintf(host, sizeof(host), "h%d", env->rank / disaster->per_host);
    params.listen_fd = listen_fd;
    params.host = host;
    params.timeout = DEADLINE_S;
    local_expect(setrlimit(RLIMIT_NOFILE, &few) == 0, "setrlimit");
    local_expect_ok(xm_worker_create(env, &params, &worker));
    for (int cycle = 0; cycle < cycles; ++cycle) {
        xm_status_t status = XM_OK;
        reshard_t reshard;

        prepare(worker, cycle, &reshard);
        local_expect_ok(xm_executor_run(worker, reshard.executor, xm_worker_deadline(worker)));
        check(worker, cycle, &reshard);
        release(&reshard);
        status = xm_worker_barrier(worker); /* which the abort may overtake */
        if (status == XM_OK && cycle % xm_worker_size(worker) == env->rank) {
            local_expect_ok(xm_group_abort(worker, "once more"));
        }
        while (status == XM_OK) {
            status = xm_worker_wait(worker, xm_worker_deadline(worker));
        }
        local_expect(status == XM_ERR_CANCELED, "%s", xm_last_error());
        local_expect_ok(xm_group_shrink(worker, 0));
        if (cycle == 9) {
            measure(&descriptors_then, &memory_then);
        }
    }
    measure(&descriptors, &memory);
    for (int looks = 0; descriptors > descriptors_then && looks < LOOKS; ++looks) {
        local_sleep(0.1);
        measure(&descriptors, &memory);
    }
    (void)printf("rank %d: %d cycles, %d descriptors then %d, %ld KiB then %ld\n", env->rank,
                 cycles, descriptors_then, descriptors, memory_then, memory);
    (void)fflush(stdout);
    strict = getenv("TEST_FEW") == NULL; /* checkers keep memory, and slow ranks down */
    local_expect(!strict || descriptors <= descriptors_then, "rank %d: %d descriptors became %d",
                 env->rank, descriptors_then, descriptors);
    local_expect(!strict || memory <= memory_then + 1024, "rank %d: %ld KiB became %ld", env->rank,
                 memory_then, memory);
    local_expect_ok(xm_worker_barrier(worker));
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(recoveries_leave_no_trace)
{
    const disaster_t hosts = {.per_host = _i == 0 ? RANKS : 2};

    local_job_run(RANKS, DEADLINE_S * 10.0 + recovery_cycles(), recover, (void *)(uintptr_t)&hosts);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("survivors");
    TCase *tcase = tcase_create("reshards");

    tcase_set_timeout(tcase, 2 * DEADLINE_S);
    tcase_add_loop_test(tcase, survivors_reshard, 0, (int)(sizeof(disasters) / sizeof(*disasters)));
    tcase_add_test(tcase, a_run_after_an_abort_names_it);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("recoveries");
    tcase_set_timeout(tcase, 20 * DEADLINE_S + recovery_cycles());
    tcase_add_loop_test(tcase, recoveries_leave_no_trace, 0, 2);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
