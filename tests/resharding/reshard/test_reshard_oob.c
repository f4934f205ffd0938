/* SPDX-License-Identifier: Apache-2.0 */
/* A whole job over the caller's own allgather: worker, transport, reshard, every byte checked. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/comm/job/relay_table.h"
#include "tests/resharding/plan/random_case.h"
#include "resharding/execute/execute.h"
#include "xm_test.h"

enum { RANKS = 6, PER_HOST = 3, ELEMENT = 4, DEADLINE_S = 60 };

typedef struct {
    relay_t relay;
    bool only; /* no connections besides the transport's */
} job_t;

static const int hosts[RANKS] = {0, 0, 0, 1, 1, 1};

/* Rows on ranks 0 … 2 to columns on ranks 3 … 5. */
static xm_plan_t *make_plan(void)
{
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    int64_t shape[] = {99, 300};
    xm_mesh_t *src_mesh, *dst_mesh;
    xm_layout_t *src, *dst;
    xm_spec_t src_spec, dst_spec;
    xm_network_t *network;
    xm_plan_t *plan;

    network_params.ranks = RANKS;
    network_params.host_of_rank = hosts;
    network_params.nic_bandwidth = network_params.host_bandwidth = 1e9;
    local_expect_ok(xm_network_create(&network_params, &network));
    local_expect_ok(xm_mesh_parse("3", NULL, 0, &src_mesh));
    local_expect_ok(xm_mesh_parse("3", NULL, 3, &dst_mesh));
    local_expect_ok(xm_spec_parse("S0R", &src_spec));
    local_expect_ok(xm_spec_parse("RS0", &dst_spec));
    local_expect_ok(xm_layout_create(src_mesh, &src_spec, XM_PARTITION_EVEN, shape, &src));
    local_expect_ok(xm_layout_create(dst_mesh, &dst_spec, XM_PARTITION_EVEN, shape, &dst));
    params.src = src;
    params.dst = dst;
    params.element_size = ELEMENT;
    params.network = network;
    params.chunk_bytes = 4096;
    local_expect_ok(xm_plan_create(&params, &plan));
    xm_layout_destroy(src);
    xm_layout_destroy(dst);
    xm_mesh_destroy(src_mesh);
    xm_mesh_destroy(dst_mesh);
    xm_network_destroy(network);
    return plan;
}

static void reshard(xm_worker_t *worker, int rank)
{
    xm_executor_params_t params = {0};
    xm_plan_t *plan = make_plan();
    xm_executor_t *executor;

    params.plan = plan;
    params.transport = xm_worker_transport(worker);
    params.src_bytes = xm_layout_buffer_bytes(xm_plan_src(plan), rank, ELEMENT);
    params.dst_bytes = xm_layout_buffer_bytes(xm_plan_dst(plan), rank, ELEMENT);
    params.src = malloc(params.src_bytes + 1);
    params.dst = calloc(1, params.dst_bytes + 1);
    local_expect(params.src != NULL && params.dst != NULL, "memory");
    local_expect((params.src_bytes > 0) == (rank < 3) && (params.dst_bytes > 0) == (rank >= 3),
                 "rank %d holds the wrong thing", rank);
    pattern_fill(xm_plan_src(plan), rank, ELEMENT, 7, (void *)(uintptr_t)params.src);
    local_expect_ok(xm_reshard_agree(worker, plan, "int32"));
    local_expect_ok(xm_executor_create(&params, &executor));
    local_expect_ok(xm_executor_run(worker, executor, xm_worker_deadline(worker)));
    local_expect(pattern_wrong(xm_plan_dst(plan), rank, ELEMENT, 7, params.dst) == 0,
                 "rank %d has wrong bytes", rank);
    local_expect_ok(xm_worker_barrier(worker));
    xm_executor_destroy(executor);
    free((void *)(uintptr_t)params.src);
    free(params.dst);
    xm_plan_destroy(plan);
}

static int run(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const job_t *job = arg;
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    relay_slot_t slot;
    xm_oob_t oob = relay_table(&job->relay, env->rank, &slot);
    xm_worker_t *worker;
    char host[32];

    (void)close(listen_fd);
    (void)snprintf(host, sizeof(host), "host%d", env->rank / PER_HOST);
    params.host = host;
    params.timeout = DEADLINE_S;
    params.oob = &oob;
    params.oob_only = job->only;
    local_expect_ok(xm_worker_create(NULL, &params, &worker));
    local_expect((xm_bootstrap_fd(xm_worker_bootstrap(worker)) < 0) == job->only,
                 "the fault channel is not what was asked for");
    local_expect(xm_worker_rank(worker) == env->rank && xm_worker_size(worker) == RANKS &&
                     xm_worker_host_count(worker) == 2,
                 "rank %d of %d on %d hosts", xm_worker_rank(worker), xm_worker_size(worker),
                 xm_worker_host_count(worker));
    reshard(worker, env->rank);
    xm_worker_destroy(worker, NULL);
    local_expect(slot.posts == slot.frees, "%d allgathers, %d freed", slot.posts, slot.frees);
    return 0;
}

START_TEST(a_job_over_a_callers_table)
{
    job_t job = {.only = _i != 0};

    relay_start(&job.relay, RANKS);
    local_job_run(RANKS, DEADLINE_S, run, &job);
    relay_end(&job.relay);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reshard_oob");
    TCase *tcase = tcase_create("local");

    tcase_set_timeout(tcase, DEADLINE_S + 5);
    tcase_add_loop_test(tcase, a_job_over_a_callers_table, 0, 2);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
