/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a UCX transport with two rails: what was sent and what was answered gets out, and
 * nothing wakes anybody any more. */
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/base/random.h"
#include "comm/transport/ucx/ucx.h"
#include "tests/comm/transport/ucx/lane_strike.h"
#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum { JOB_LIMIT_S = 60, MESSAGES = 200, MOST = 1 << 17 };
static const double wait_limit_s = 20.0;

typedef struct {
    xm_op_t op;
    bool busy;
    xm_status_t status;
    uint8_t *bytes;
} request_t;

static void on_done(xm_op_t *op, xm_status_t status)
{
    request_t *request = op->arg;

    request->busy = false;
    request->status = status;
}

static uint8_t pattern(int message, size_t i)
{
    return (uint8_t)((xm_hash_spread(i + 1) + (uint64_t)message * 0xbf58476d) >> 56);
}

static void post(xm_transport_t *transport, int peer, int message, size_t length, bool send,
                 request_t *request)
{
    xm_status_t status;

    if (request->bytes == NULL) {
        request->bytes = malloc(MOST);
        local_expect(request->bytes != NULL, "no memory");
    }
    for (size_t i = 0; i < length; ++i) {
        request->bytes[i] = send ? pattern(message, i) : 0;
    }
    request->op.done = on_done;
    request->op.arg = request;
    request->busy = true;
    status = send ? xm_transport_send(transport, peer, (uint64_t)message, request->bytes, length,
                                      NULL, &request->op)
                  : xm_transport_receive(transport, peer, (uint64_t)message, request->bytes, length,
                                         NULL, &request->op);
    if (status != XM_IN_PROGRESS) {
        on_done(&request->op, status);
    }
}

static void finish(xm_transport_t *transport, request_t *requests, int count)
{
    double deadline = local_now() + local_timeout(wait_limit_s);

    for (int i = 0; i < count; ++i) {
        while (requests[i].busy) {
            local_expect(local_now() < deadline, "rank %d: message %d of %d does not end",
                         transport->rank, i, count);
            if (xm_transport_progress(transport) == 0) {
                local_sleep(0.0005);
            }
        }
        local_expect(requests[i].status == XM_OK, "rank %d: message %d: %s (%s)", transport->rank,
                     i, xm_status_string(requests[i].status), xm_last_error());
    }
}

static void check(request_t *requests, int count, size_t length)
{
    for (int i = 0; i < count; ++i) {
        for (size_t byte = 0; byte < length; ++byte) {
            local_expect(requests[i].bytes[byte] == pattern(i, byte),
                         "message %d: byte %zu of %zu is wrong", i, byte, length);
        }
    }
}

static void release(request_t *requests, int count)
{
    for (int i = 0; i < count; ++i) {
        free(requests[i].bytes);
    }
}

/* Ranks count as being on a machine each, with two NICs. Others say who died. */
static xm_transport_t *open_transport(const xm_job_env_t *env, int listen_fd,
                                      xm_bootstrap_t **bootstrap)
{
    static const int machine[] = {0, 1, 2};
    xm_transport_ucx_params_t params = XM_TRANSPORT_UCX_PARAMS_INIT;
    xm_transport_t *transport;

    local_expect(setenv("UCX_TLS", "tcp", 1) == 0, "setenv");
    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, wait_limit_s, bootstrap));
    params.host = params.machine = machine;
    params.timeout = wait_limit_s;
    params.nics = "lo,lo";
    params.fault_channel = true;
    lane_strike_begin();
    local_expect_ok(xm_transport_ucx_create(*bootstrap, &params, &transport));
    return transport;
}

static void barrier(xm_transport_t *transport, xm_bootstrap_t *bootstrap)
{
    double deadline = local_now() + local_timeout(wait_limit_s);
    xm_status_t status;

    local_expect_ok(xm_bootstrap_allgather_post(bootstrap, NULL, NULL, 0));
    while ((status = xm_bootstrap_allgather_test(bootstrap)) == XM_IN_PROGRESS) {
        local_expect(local_now() < deadline, "barrier did not end");
        (void)xm_transport_progress(transport);
        local_sleep(0.0005);
    }
    local_expect(status == XM_OK, "barrier: %s", xm_last_error());
}

/* A message each way, over both lanes, and evenly: the next one is announced over lane 0. */
static void warm_up(xm_transport_t *transport, xm_bootstrap_t *bootstrap, int peer)
{
    request_t both[2] = {0};

    post(transport, peer, 0, 65536, false, &both[0]);
    post(transport, peer, 0, 65536, true, &both[1]);
    finish(transport, both, 2);
    check(both, 1, 65536);
    release(both, 2);
    barrier(transport, bootstrap);
}

/* Rank 0 no longer gets anything by lane 1. Rank 1 receives his messages, whose last fragments come
 * by that lane, answers by it, and leaves. */
static int answer_and_leave(const xm_job_env_t *env, int listen_fd, void *arg)
{
    enum { COUNT = 2, LENGTH = 65536 }; /* passes although nothing is acknowledged on lane 1 */
    request_t requests[COUNT] = {0};
    xm_bootstrap_t *bootstrap;
    xm_transport_t *transport = open_transport(env, listen_fd, &bootstrap);

    (void)arg;
    lane_strike_learn(bootstrap, wait_limit_s);
    warm_up(transport, bootstrap, 1 - env->rank);
    if (env->rank == 0) {
        local_expect(lane_strike(0, 1, lane_swallow) > 0, "no connection of lane 1");
    }
    for (int i = 0; i < COUNT && env->rank == 1; ++i) {
        post(transport, 0, i, LENGTH, false, &requests[i]);
    }
    barrier(transport, bootstrap);
    for (int i = 0; i < COUNT && env->rank == 0; ++i) {
        post(transport, 1, i, LENGTH, true, &requests[i]);
    }
    finish(transport, requests, COUNT);
    if (env->rank == 1) {
        check(requests, COUNT, LENGTH);
    } else {
        local_sleep(0.2); /* the other one is gone */
    }
    xm_transport_destroy(transport);
    release(requests, COUNT);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(the_last_answer_arrives)
{
    local_job_run(2, JOB_LIMIT_S, answer_and_leave, NULL);
}
END_TEST

/* Rank 1 no longer gets anything by lane 1. Rank 0's messages are short, so they end at once, and
 * it leaves. */
static int say_and_leave(const xm_job_env_t *env, int listen_fd, void *arg)
{
    enum { COUNT = 9, LENGTH = 5000 };
    request_t requests[COUNT] = {0};
    xm_bootstrap_t *bootstrap;
    xm_transport_t *transport = open_transport(env, listen_fd, &bootstrap);
    atomic_int *received = arg;
    double deadline = local_now() + local_timeout(wait_limit_s);

    lane_strike_learn(bootstrap, wait_limit_s);
    warm_up(transport, bootstrap, 1 - env->rank);
    if (env->rank == 1) {
        local_expect(lane_strike(1, 1, lane_swallow) > 0, "no connection of lane 1");
    }
    barrier(transport, bootstrap);
    for (int i = 0; i < COUNT; ++i) {
        post(transport, 1 - env->rank, i, LENGTH, env->rank == 0, &requests[i]);
    }
    if (env->rank == 1) {
        finish(transport, requests, COUNT);
        check(requests, COUNT, LENGTH);
        *received = 1;
    }
    xm_transport_destroy(transport);
    while (*received == 0) {
        local_expect(local_now() < deadline, "rank 1 does not get it all");
        local_sleep(0.01);
    }
    release(requests, COUNT);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(the_last_messages_arrive)
{
    atomic_int *received = local_shared(sizeof(*received));

    local_job_run(2, JOB_LIMIT_S, say_and_leave, received);
}
END_TEST

/* Rank 2 is dead. Rank 0 sends more than connections hold, which ends at once, and leaves. */
static int send_and_leave(const xm_job_env_t *env, int listen_fd, void *arg)
{
    enum { LENGTH = 16 * 1024 };
    request_t *requests = calloc(MESSAGES, sizeof(*requests));
    xm_bootstrap_t *bootstrap;
    xm_transport_t *transport = open_transport(env, listen_fd, &bootstrap);
    int peer = 1 - env->rank;
    atomic_int *received = arg;
    double deadline = local_now() + local_timeout(wait_limit_s);

    local_expect(requests != NULL, "no memory");
    for (int other = 0; other < env->size; ++other) {
        if (other != env->rank) {
            post(transport, other, 0, 100, true, &requests[2 * other]);
            post(transport, other, 0, 100, false, &requests[2 * other + 1]);
        }
    }
    finish(transport, requests, 2 * env->size);
    barrier(transport, bootstrap);
    if (env->rank == 2) {
        _exit(0);
    }
    xm_transport_peer_failed(transport, 2);
    for (int i = 0; i < MESSAGES; ++i) {
        post(transport, peer, i, LENGTH, env->rank == 0, &requests[i]);
    }
    if (env->rank == 1) {
        local_sleep(0.05); /* nothing is taken for a while; rank 0 waits a second */
        finish(transport, requests, MESSAGES);
        check(requests, MESSAGES, LENGTH);
        *received = 1;
    }
    xm_transport_destroy(transport);
    /* The kernel does not go on with connections whose process has ended, if answers wait there. */
    while (*received == 0) {
        local_expect(local_now() < deadline, "rank 1 does not get it all");
        local_sleep(0.01);
    }
    release(requests, MESSAGES);
    free(requests);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(what_was_sent_gets_out_though_a_third_rank_is_dead)
{
    atomic_int *received = local_shared(sizeof(*received));

    local_job_run(3, JOB_LIMIT_S, send_and_leave, received);
}
END_TEST

/* Rank 0's transport is fenced while there is much to come, and a clock is armed. */
static int fence_and_sleep(const xm_job_env_t *env, int listen_fd, void *arg)
{
    request_t requests[2] = {0};
    xm_bootstrap_t *bootstrap;
    xm_transport_t *transport = open_transport(env, listen_fd, &bootstrap);
    struct pollfd entry = {.fd = xm_transport_event_fd(transport), .events = POLLIN};

    (void)arg;
    warm_up(transport, bootstrap, 1 - env->rank);
    post(transport, 1 - env->rank, 1, MOST, true, &requests[0]); /* nobody receives it */
    if (env->rank == 0) {
        xm_transport_fence(transport);
        local_expect(!requests[0].busy && requests[0].status == XM_ERR_CANCELED, "%s",
                     xm_status_string(requests[0].status));
    } else {
        post(transport, 0, 2, 100, true, &requests[1]);
    }
    barrier(transport, bootstrap);
    for (int i = 0; i < 4 && env->rank == 0; ++i) {
        local_sleep(0.1);
        (void)xm_transport_progress(transport);
        local_expect(xm_transport_arm(transport) == XM_OK, "may not sleep");
        local_expect(poll(&entry, 1, 0) == 0, "the descriptor wakes a sleeper");
    }
    barrier(transport, bootstrap);
    xm_transport_destroy(transport);
    release(requests, 2);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(a_fenced_transport_lets_sleep)
{
    local_job_run(2, JOB_LIMIT_S, fence_and_sleep, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport_ucx_close");
    TCase *tcase = tcase_create("jobs");

    tcase_set_timeout(tcase, JOB_LIMIT_S + 10);
    tcase_add_test(tcase, the_last_answer_arrives);
    tcase_add_test(tcase, the_last_messages_arrive);
    tcase_add_test(tcase, what_was_sent_gets_out_though_a_third_rank_is_dead);
    tcase_add_test(tcase, a_fenced_transport_lets_sleep);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
