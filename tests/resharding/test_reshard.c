#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "local_job.h"
#include "random_case.h"
#include "resharding/execute.h"
#include "xm_test.h"

enum { RANKS = 8, PER_HOST = 4, CASES = 120, DEADLINE_S = 60 };

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
    random_case_t c;
    xm_plan_t *plan;
    xm_executor_t *executor;
    char *src, *dst;
    uint64_t dst_bytes;
} rank_t;

static void prepare(xm_worker_t *worker, uint64_t seed, uint64_t chunk_bytes, rank_t *r)
{
    random_t random = {seed};
    xm_plan_params_t plan = XM_PLAN_PARAMS_INIT;
    xm_executor_params_t params = XM_EXECUTOR_PARAMS_INIT;
    int rank = xm_worker_rank(worker);

    random_case_create_for(&random, RANKS, PER_HOST, &r->c);
    plan.src = r->c.src;
    plan.dst = r->c.dst;
    plan.element_size = r->c.element_size;
    plan.network = r->c.network;
    plan.strategy = (xm_strategy_t)(seed % 2);
    plan.scheduler = (xm_scheduler_t)(seed / 2 % 2);
    plan.chunk_bytes = chunk_bytes;
    local_expect_ok(xm_plan_create(&plan, &r->plan));
    params.plan = r->plan;
    params.transport = xm_worker_transport(worker);
    params.src_bytes = xm_layout_buffer_bytes(r->c.src, rank, r->c.element_size);
    params.dst_bytes = r->dst_bytes = xm_layout_buffer_bytes(r->c.dst, rank, r->c.element_size);
    r->src = malloc(params.src_bytes + 1);
    r->dst = malloc(params.dst_bytes + 1);
    params.src = r->src;
    params.dst = r->dst;
    local_expect_ok(xm_executor_create(&params, &r->executor));
}

static void release(rank_t *r)
{
    xm_executor_destroy(r->executor);
    free(r->src);
    free(r->dst);
    xm_plan_destroy(r->plan);
    random_case_destroy(&r->c);
}

static int run_cases(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd, DEADLINE_S);

    (void)arg;
    for (uint64_t seed = 1; seed <= CASES; ++seed) {
        rank_t r;

        prepare(worker, seed, 64, &r);
        local_expect_ok(xm_reshard_agree(worker, r.plan, "test"));
        for (uint64_t round = 0; round < 2; ++round) {
            int64_t wrong;

            pattern_fill(r.c.src, env->rank, r.c.element_size, seed * 2 + round, r.src);
            memset(r.dst, 0x5a, r.dst_bytes);
            local_expect_ok(xm_reshard_run(worker, r.executor, xm_worker_deadline(worker)));
            wrong = pattern_wrong(r.c.dst, env->rank, r.c.element_size, seed * 2 + round, r.dst);
            local_expect(wrong == 0, "seed %d, rank %d: %d wrong bytes: %s", (int)seed, env->rank,
                         (int)wrong, random_case_text(&r.c));
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

static xm_plan_t *matrix_plan(int64_t columns, const char *dst_spec_text, uint64_t chunk_bytes)
{
    static const int hosts[RANKS] = {0, 0, 0, 0, 1, 1, 1, 1};
    xm_network_params_t network_params = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_mesh_t *src_mesh, *dst_mesh;
    xm_spec_t src_spec, dst_spec;
    xm_layout_t *src, *dst;
    xm_network_t *network;
    xm_plan_t *plan;
    int64_t shape[] = {8, columns};

    network_params.ranks = RANKS;
    network_params.host_of_rank = hosts;
    network_params.nic_bandwidth = network_params.host_bandwidth = 1e9;
    local_expect_ok(xm_network_create(&network_params, &network));
    local_expect_ok(xm_mesh_parse("4", NULL, 0, &src_mesh));
    local_expect_ok(xm_mesh_parse("2x2", NULL, 4, &dst_mesh));
    local_expect_ok(xm_spec_parse("S0R", &src_spec));
    local_expect_ok(xm_spec_parse(dst_spec_text, &dst_spec));
    local_expect_ok(xm_layout_create(src_mesh, &src_spec, XM_PARTITION_EVEN, shape, &src));
    local_expect_ok(xm_layout_create(dst_mesh, &dst_spec, XM_PARTITION_EVEN, shape, &dst));
    params.src = src;
    params.dst = dst;
    params.element_size = 4;
    params.network = network;
    params.chunk_bytes = chunk_bytes;
    local_expect_ok(xm_plan_create(&params, &plan));
    xm_layout_destroy(src);
    xm_layout_destroy(dst);
    xm_mesh_destroy(src_mesh);
    xm_mesh_destroy(dst_mesh);
    xm_network_destroy(network);
    return plan;
}

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
                       "rank 3 has dtype float32 (4 bytes) where rank 0 has int32");
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

/* Every receiver needs what rank 2 holds; rank 2 dies, or does nothing. */
static int absent_sender(const xm_job_env_t *env, int listen_fd, void *arg)
{
    bool kill_it = *(const bool *)arg;
    xm_worker_t *worker = join(env, listen_fd, DEADLINE_S);
    xm_plan_t *plan = matrix_plan(4096, "RR", 1024);
    xm_executor_params_t params = XM_EXECUTOR_PARAMS_INIT;
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
    deadline = xm_worker_now(worker) + (int64_t)(kill_it ? 20e9 : 1e9);
    if (env->rank == 2) { /* holds a quarter of the tensor, and does not send it */
        if (kill_it) {
            (void)kill(getpid(), SIGKILL);
        }
    } else {
        status = xm_reshard_run(worker, executor, deadline);
        if (env->rank >= 4 && kill_it) {
            local_expect(status == XM_ERR_PEER_DIED && strstr(xm_last_error(), "rank 2") != NULL,
                         "rank %d: %s (%s)", env->rank, xm_status_string(status), xm_last_error());
        } else if (env->rank >= 4) {
            local_expect(status == XM_ERR_TIMEOUT &&
                             strstr(xm_last_error(), "waits for chunk") != NULL,
                         "rank %d: %s (%s)", env->rank, xm_status_string(status), xm_last_error());
        }
        local_expect(local_now() - started < 6, "rank %d took %.1f s", env->rank,
                     local_now() - started);
    }
    while (local_now() - started < 4) { /* nobody leaves before everybody has had his verdict */
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
    bool kill_it = false;

    local_job_run(RANKS, DEADLINE_S, absent_sender, &kill_it);
}
END_TEST

START_TEST(a_killed_rank_ends_the_others_with_its_name)
{
    bool kill_it = true;
    local_job_t job;

    local_job_start(&job, RANKS, 0, DEADLINE_S, absent_sender, &kill_it);
    local_job_wait(&job, 1u << 2);
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
    suite_add_tcase(suite, local);
    tcase_set_timeout(fault, 90);
    tcase_add_test(fault, a_silent_rank_ends_in_a_timeout_that_says_who_waits);
    tcase_add_test(fault, a_killed_rank_ends_the_others_with_its_name);
    suite_add_tcase(suite, fault);
    return xm_test_run(suite);
}
