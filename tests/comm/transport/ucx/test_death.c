/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies after it has opened a connection and before it has heard the answer. The other one
 * turns to it afterwards, without having looked: UCX 1.13 would abort it over that, see the
 * settings in comm/transport/ucx/rail.c. */
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/transport/ucx/ucx.h"
#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum { JOB_LIMIT_S = 60 };
static const double wait_limit_s = 20.0;

/* Long enough for UCX to send and to read, and for its thread to accept; no test fails for want of
 * that time, it only tests less. */
static const double while_s = 0.1;

typedef struct {
    bool fault_channel; /* deaths are told by others, UCX does not look for them */
    atomic_int created, asked, answered, dead; /* what has happened */
} story_t;

typedef struct {
    xm_op_t op;
    bool busy;
    xm_status_t status;
    char bytes[64];
} request_t;

static void on_done(xm_op_t *op, xm_status_t status)
{
    request_t *request = op->arg;

    request->busy = false;
    request->status = status;
}

static void send_to(xm_transport_t *transport, int peer, request_t *request)
{
    xm_status_t status;

    request->op.done = on_done;
    request->op.arg = request;
    request->busy = true;
    status = xm_transport_send(transport, peer, 1, request->bytes, sizeof(request->bytes), NULL,
                               &request->op);
    if (status != XM_IN_PROGRESS) {
        on_done(&request->op, status);
    }
}

static void progress_for(xm_transport_t *transport, double seconds)
{
    double end = local_now() + seconds;

    while (local_now() < end) {
        (void)xm_transport_progress(transport);
        local_sleep(0.001);
    }
}

static xm_transport_t *open_transport(xm_bootstrap_t *bootstrap, bool fault_channel)
{
    static const int hosts[] = {0, 1}, machines[] = {0, 0};
    xm_transport_ucx_params_t params = XM_TRANSPORT_UCX_PARAMS_INIT;
    xm_transport_t *transport;

    local_expect(setenv("UCX_TLS", "tcp", 1) == 0, "setenv");
    params.host = hosts;
    params.machine = machines;
    params.timeout = wait_limit_s;
    params.fault_channel = fault_channel;
    local_expect_ok(xm_transport_ucx_create(bootstrap, &params, &transport));
    return transport;
}

/* Rank 0 has answered rank 1's connection and posts a message to it when it is dead. */
static void outlive(xm_transport_t *transport, story_t *story, request_t *request)
{
    double deadline = local_now() + local_timeout(wait_limit_s);

    local_await(&story->asked, 1);
    progress_for(transport, while_s);
    atomic_store(&story->answered, 1);
    local_await(&story->dead, 1);
    send_to(transport, 1, request);
    progress_for(transport, while_s);
    if (story->fault_channel) {
        xm_transport_peer_failed(transport, 1);
    }
    while (request->busy) {
        local_expect(local_now() < deadline, "the message to the dead does not end");
        (void)xm_transport_progress(transport);
        local_sleep(0.001);
    }
}

static int rank_main(const xm_job_env_t *env, int listen_fd, void *arg)
{
    story_t *story = arg;
    request_t request = {0};
    xm_bootstrap_t *bootstrap;
    xm_transport_t *transport;

    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, wait_limit_s, &bootstrap));
    transport = open_transport(bootstrap, story->fault_channel);
    (void)atomic_fetch_add(&story->created, 1);
    local_await(&story->created, env->size);
    if (env->rank == 1) {
        send_to(transport, 0, &request);
        progress_for(transport, while_s);
        atomic_store(&story->asked, 1);
        local_await(&story->answered, 1);
        (void)raise(SIGKILL);
    }
    outlive(transport, story, &request);
    xm_transport_destroy(transport);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

static void tell(bool fault_channel)
{
    story_t *story = local_shared(sizeof(*story));
    local_job_t job;
    siginfo_t info;

    story->fault_channel = fault_channel;
    local_job_start(&job, 2, 0, JOB_LIMIT_S, rank_main, story);
    /* Its connections are closed when it can be waited for. */
    (void)waitid(P_PID, (id_t)job.pids[1], &info, WEXITED | WNOWAIT);
    atomic_store(&story->dead, 1);
    local_job_wait(&job, 1u << 1);
}

START_TEST(a_connection_of_the_dead_is_answered)
{
    tell(false);
}
END_TEST

START_TEST(a_connection_of_the_dead_is_answered_with_a_fault_channel)
{
    tell(true);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport_ucx_death");
    TCase *tcase = tcase_create("jobs");

    tcase_set_timeout(tcase, JOB_LIMIT_S + 10);
    tcase_add_test(tcase, a_connection_of_the_dead_is_answered);
    tcase_add_test(tcase, a_connection_of_the_dead_is_answered_with_a_fault_channel);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
