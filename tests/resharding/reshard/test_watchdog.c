/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog's lines: who waits for whom, once per stall. */
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include <crossmesh/group.h>
#include "tests/comm/job/local_job.h"
#include "resharding/execute/execute.h"
#include "xm_test.h"

enum { DEADLINE_S = 60, RANKS = 3, COLUMNS = 300000 };

/* XM_WATCHDOG: what a busy machine may hold a rank up for without a line about it. */
static const double watchdog_s = 1.0;

/* One row of COLUMNS numbers, all on rank 0, then all on rank 1 and 2: rank 1 passes it on. */
static xm_plan_t *make_plan(void)
{
    const int64_t shape[2] = {1, COLUMNS};
    const int hosts[RANKS] = {0, 1, 1};
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_tensor_t tensor = {.name = "wq", .element_bits = 32};
    xm_mesh_t *src_mesh, *dst_mesh;
    xm_network_t *network;
    xm_layout_t *src, *dst;
    xm_plan_t *plan;
    xm_spec_t spec;

    network_params.ranks = RANKS;
    network_params.host_of_rank = hosts;
    network_params.nic_bandwidth = network_params.host_bandwidth = 1e9;
    local_expect_ok(xm_network_create(&network_params, &network));
    local_expect_ok(xm_mesh_parse("1", NULL, 0, &src_mesh));
    local_expect_ok(xm_mesh_parse("2", NULL, 1, &dst_mesh));
    local_expect_ok(xm_spec_parse("RR", &spec));
    local_expect_ok(xm_layout_create(src_mesh, &spec, XM_PARTITION_EVEN, shape, &src));
    local_expect_ok(xm_layout_create(dst_mesh, &spec, XM_PARTITION_EVEN, shape, &dst));
    tensor.src = src;
    tensor.dst = dst;
    params.tensors = &tensor;
    params.tensor_count = 1;
    params.network = network;
    params.strategy = XM_STRATEGY_BROADCAST;
    params.scheduler = XM_SCHEDULER_BALANCE;
    params.chunk_bytes = 65536;
    local_expect_ok(xm_plan_create(&params, &plan));
    xm_layout_destroy(src);
    xm_layout_destroy(dst);
    xm_mesh_destroy(src_mesh);
    xm_mesh_destroy(dst_mesh);
    xm_network_destroy(network);
    return plan;
}

static int count(const char *text, const char *part)
{
    int found = 0;

    for (const char *at = text; (at = strstr(at, part)) != NULL; ++at) {
        ++found;
    }
    return found;
}

/* How often a part stands in the log. */
static int count_in(const char *path, const char *part)
{
    static char text[65536];
    FILE *file = fopen(path, "r");
    size_t length;

    local_expect(file != NULL, "no log");
    length = fread(text, 1, sizeof(text) - 1, file);
    text[length] = '\0';
    (void)fclose(file);
    return count(text, part);
}

/* How often each rank has described a stall so far. */
static void count_stalls(const char *log, int stalls[RANKS])
{
    char line[64];

    for (int rank = 0; rank < RANKS; ++rank) {
        (void)snprintf(line, sizeof(line), "watchdog: rank %d: nothing of a reshard has moved for ",
                       rank);
        stalls[rank] = count_in(log, line);
    }
}

/* While rank 0 does not begin, both others describe that stall, and in a time that would be enough
 * for another line they do so once. What stalls otherwise on a busy machine was `before`. */
static void let_them_wait(const char *log, const int before[RANKS])
{
    double limit = local_now() + DEADLINE_S / 4.0;
    int stalls[RANKS];

    do {
        local_sleep(0.01);
        count_stalls(log, stalls);
    } while ((stalls[1] == before[1] || stalls[2] == before[2]) && local_now() < limit);
    local_sleep(1.5 * watchdog_s);
    count_stalls(log, stalls);
    for (int rank = 0; rank < RANKS; ++rank) {
        local_expect(stalls[rank] == before[rank] + (rank != 0), "rank %d: %d stalls after %d",
                     rank, stalls[rank], before[rank]);
    }
}

/* Rank 0, which has everything, begins late. */
static int run_late(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_params_t worker_params = XM_WORKER_PARAMS_INIT;
    xm_executor_params_t params = {0};
    xm_executor_t *executor;
    xm_worker_t *worker;
    int32_t *src = calloc(COLUMNS, sizeof(*src)), *dst = calloc(COLUMNS, sizeof(*dst));
    xm_plan_t *plan;
    char limit[16];
    int before[RANKS];

    (void)snprintf(limit, sizeof(limit), "%g", watchdog_s);
    local_expect(setenv("XM_WATCHDOG", limit, 1) == 0 && setenv("XM_LOG_FILE", arg, 1) == 0,
                 "setenv");
    worker_params.listen_fd = listen_fd;
    worker_params.host = env->rank == 0 ? "a" : "b";
    worker_params.timeout = DEADLINE_S;
    local_expect_ok(xm_worker_create(env, &worker_params, &worker));
    plan = make_plan();
    params.plan = plan;
    params.transport = xm_worker_transport(worker);
    params.src = src;
    params.dst = dst;
    params.src_bytes = params.dst_bytes = COLUMNS * sizeof(*src);
    for (int32_t i = 0; i < COLUMNS; ++i) {
        src[i] = 3 * i + 1;
    }
    local_expect_ok(xm_executor_create(&params, &executor));
    for (int round = 0; round < 2; ++round) {
        memset(dst, 0xff, COLUMNS * sizeof(*dst));
        local_expect_ok(xm_worker_barrier(worker));
        if (env->rank == 0) {
            count_stalls(arg, before);
        }
        local_expect_ok(xm_worker_barrier(worker));
        if (env->rank == 0) {
            let_them_wait(arg, before);
        }
        local_expect_ok(xm_executor_run(worker, executor, xm_worker_deadline(worker)));
        for (int32_t i = 0; i < COLUMNS && env->rank != 0; ++i) {
            local_expect(dst[i] == 3 * i + 1, "element %d is %d", i, dst[i]);
        }
    }
    xm_executor_destroy(executor);
    xm_plan_destroy(plan);
    local_expect_ok(xm_worker_barrier(worker));
    xm_worker_destroy(worker, NULL);
    free(src);
    free(dst);
    return 0;
}

START_TEST(a_stall_is_described_once)
{
    static char text[65536];
    char path[] = "/tmp/test_watchdog_XXXXXX";
    int fd = mkstemp(path);
    ssize_t length;

    ck_assert_int_ge(fd, 0);
    local_job_run(RANKS, DEADLINE_S, run_late, path);
    length = read(fd, text, sizeof(text) - 1);
    (void)close(fd);
    (void)unlink(path);
    ck_assert_int_gt((int)length, 0);
    ck_assert_msg(strstr(text, "watchdog: rank 1 waits for rank 0 (host a): tensor wq, transfer 0, "
                               "hop 0, chunk 1 of ") != NULL,
                  "%s", text);
    ck_assert_msg(strstr(text, " from it, posted ") != NULL, "%s", text);
    ck_assert_msg(strstr(text, "0 of 1200000 bytes moved, over tcp/lo") != NULL, "%s", text);
    ck_assert_msg(strstr(text, "watchdog: rank 1 has not begun chunk 1 of ") != NULL, "%s", text);
    ck_assert_msg(strstr(text,
                         "to rank 2 (host b): tensor wq, transfer 0, hop 1; it waits for what "
                         "it passes on to arrive here") != NULL,
                  "%s", text);
}
END_TEST

/* On a channel that a run has failed on nothing new is made before the group is shrunk. */
static int fail_and_retry(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_params_t worker_params = XM_WORKER_PARAMS_INIT;
    xm_executor_params_t params = {0};
    int32_t *src = calloc(COLUMNS, sizeof(*src)), *dst = calloc(COLUMNS, sizeof(*dst));
    xm_executor_t *executor;
    atomic_int *running = arg;
    xm_worker_t *worker;
    xm_plan_t *plan;

    worker_params.listen_fd = listen_fd;
    worker_params.timeout = DEADLINE_S;
    local_expect_ok(xm_worker_create(env, &worker_params, &worker));
    plan = make_plan();
    params.plan = plan;
    params.src = src;
    params.dst = dst;
    params.src_bytes = params.dst_bytes = COLUMNS * sizeof(*src);
    for (int round = 0; round < 2; ++round) {
        params.transport = xm_worker_transport(worker);
        local_expect_ok(xm_executor_create(&params, &executor));
        if (env->rank == 0) {
            local_await(running, (RANKS - 1) * (round + 1));
            local_sleep(0.3);
            local_expect_ok(xm_group_abort(worker, "no reason"));
        } else {
            (void)atomic_fetch_add(running, 1);
            local_expect_fails(xm_executor_run(worker, executor, xm_worker_deadline(worker)),
                               XM_ERR_CANCELED, "gave up: no reason");
        }
        xm_executor_destroy(executor);
        if (env->rank != 0) {
            local_expect_fails(xm_executor_create(&params, &executor), XM_ERR_INVALID_ARGUMENT,
                               "a run failed on channel 0");
        }
        local_expect_ok(xm_group_shrink(worker, 0));
    }
    params.transport = xm_worker_transport(worker);
    for (int32_t i = 0; i < COLUMNS; ++i) {
        src[i] = 3 * i + 1;
    }
    local_expect_ok(xm_executor_create(&params, &executor));
    local_expect_ok(xm_executor_run(worker, executor, xm_worker_deadline(worker)));
    for (int32_t i = 0; i < COLUMNS && env->rank != 0; ++i) {
        local_expect(dst[i] == 3 * i + 1, "element %d is %d", i, dst[i]);
    }
    xm_executor_destroy(executor);
    xm_plan_destroy(plan);
    xm_worker_destroy(worker, NULL);
    free(src);
    free(dst);
    return 0;
}

START_TEST(a_failed_run_spends_its_channel)
{
    local_job_run(RANKS, DEADLINE_S, fail_and_retry, local_shared(sizeof(atomic_int)));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("watchdog");
    TCase *tcase = tcase_create("stalls");

    tcase_set_timeout(tcase, 2 * DEADLINE_S);
    tcase_add_test(tcase, a_stall_is_described_once);
    tcase_add_test(tcase, a_failed_run_spends_its_channel);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
