/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/worker/worker.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/transport/ucx/ucx.h"
#include "comm/worker/worker_private.h"
#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum { DEADLINE_S = 60 };

/* What takes less has not waited for a deadline; a busy machine may take some seconds for anything.
 */
static const double soon_s = DEADLINE_S / 3.0;

typedef struct {
    xm_op_t op;
    int ended;
    xm_status_t status;
} waiter_t;

static void on_done(xm_op_t *op, xm_status_t status)
{
    waiter_t *waiter = op->arg;

    ++waiter->ended;
    waiter->status = status;
}

static waiter_t *waiter_init(waiter_t *waiter)
{
    *waiter = (waiter_t){.op = {.done = on_done, .arg = waiter}};
    return waiter;
}

static xm_worker_t *join(const xm_job_env_t *env, int listen_fd, const char *host, double timeout)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;

    params.listen_fd = listen_fd;
    params.host = host;
    params.timeout = timeout;
    local_expect_ok(xm_worker_create(env, &params, &worker));
    return worker;
}

/* Sends a number around the ring and adds to it on the way. */
static int ring(const xm_job_env_t *env, int listen_fd, void *arg)
{
    char name[32];
    int per_host = *(int *)arg, value = -1, next = (env->rank + 1) % env->size,
        previous = (env->rank + env->size - 1) % env->size;
    xm_worker_t *worker;
    xm_transport_t *transport;
    waiter_t send, receive;
    xm_status_t status = XM_OK;

    (void)snprintf(name, sizeof(name), "emulated%d", per_host > 0 ? env->rank / per_host : 0);
    worker = join(env, listen_fd, per_host > 0 ? name : NULL, DEADLINE_S);
    transport = xm_worker_transport(worker);
    status = xm_transport_receive(transport, previous, 7, &value, sizeof(value), NULL,
                                  &waiter_init(&receive)->op);
    local_expect(status == XM_IN_PROGRESS || status == XM_OK, "%s", xm_last_error());
    receive.ended += status == XM_OK;
    status = xm_transport_send(transport, next, 7, &env->rank, sizeof(env->rank), NULL,
                               &waiter_init(&send)->op);
    local_expect(status == XM_IN_PROGRESS || status == XM_OK, "%s", xm_last_error());
    send.ended += status == XM_OK;
    while (receive.ended == 0 || send.ended == 0) {
        local_expect_ok(xm_worker_wait(worker, xm_worker_deadline(worker)));
    }
    local_expect(value == previous, "got %d from %d", value, previous);
    local_expect(xm_worker_host_count(worker) == (per_host > 0 ? env->size / per_host : 1),
                 "%d hosts", xm_worker_host_count(worker));
    for (int rank = 0; rank < env->size && per_host > 0; ++rank) {
        local_expect(xm_worker_host_of(worker, rank) == rank / per_host, "rank %d on host %d", rank,
                     xm_worker_host_of(worker, rank));
    }
    if (per_host > 0) {
        (void)snprintf(name, sizeof(name), "emulated%d", xm_worker_host_count(worker) - 1);
        local_expect(
            strcmp(xm_worker_host_name(worker, xm_worker_host_count(worker) - 1), name) == 0,
            "last host is %s", xm_worker_host_name(worker, xm_worker_host_count(worker) - 1));
    }
    local_expect_ok(xm_worker_barrier(worker));
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(messages_on_one_host)
{
    int per_host = 0;

    local_job_run(4, DEADLINE_S, ring, &per_host);
}
END_TEST

START_TEST(messages_between_emulated_hosts)
{
    int per_host = 2;

    local_job_run(4, DEADLINE_S, ring, &per_host);
}
END_TEST

/* Everybody streams to everybody until one rank is killed. */
enum { STREAM_BYTES = 4 << 20 };

typedef struct {
    int victim;
    int per_host;
    double died_at;
} death_t;

typedef struct {
    waiter_t waiter;
    int peer;
    bool send;
    char *buffer;
} stream_t;

static void stream_post(xm_worker_t *worker, stream_t *stream)
{
    xm_transport_t *transport = xm_worker_transport(worker);
    xm_status_t status = stream->send
                             ? xm_transport_send(transport, stream->peer, 3, stream->buffer,
                                                 STREAM_BYTES, NULL, &stream->waiter.op)
                             : xm_transport_receive(transport, stream->peer, 3, stream->buffer,
                                                    STREAM_BYTES, NULL, &stream->waiter.op);

    /* The transport may be the first to know, or find nobody to connect to. */
    local_expect(status >= 0 || status == XM_ERR_PEER_DIED || status == XM_ERR_UNREACHABLE,
                 "post: %s", xm_last_error());
    stream->waiter.ended = status != XM_IN_PROGRESS;
    stream->waiter.status = status < 0 ? status : XM_OK;
}

static xm_status_t stream_until_failure(xm_worker_t *worker, stream_t *streams, int count)
{
    xm_status_t status;

    do {
        status = xm_worker_wait(worker, xm_worker_deadline(worker));
        for (int i = 0; i < count && status == XM_OK; ++i) {
            if (streams[i].waiter.ended > 0 && streams[i].waiter.status == XM_OK) {
                stream_post(worker, &streams[i]);
            }
        }
    } while (status == XM_OK);
    return status;
}

static int outlive(const xm_job_env_t *env, int listen_fd, void *arg)
{
    death_t *death = arg;
    char host[32], name[64];
    stream_t streams[LOCAL_JOB_MAX] = {0};
    int count = 0;
    double noticed, leaving;
    xm_worker_t *worker;
    xm_status_t status;

    (void)snprintf(host, sizeof(host), "h%d", env->rank / death->per_host);
    (void)snprintf(name, sizeof(name), "rank %d (host ", death->victim);
    worker = join(env, listen_fd, host, DEADLINE_S);
    local_expect_ok(xm_worker_barrier(worker));
    for (int peer = 0; peer < env->size; ++peer) {
        for (int send = 0; send < 2 && peer != env->rank; ++send) {
            stream_t *stream = &streams[count++];

            stream->peer = peer;
            stream->send = send != 0;
            stream->buffer = calloc(1, STREAM_BYTES);
            (void)waiter_init(&stream->waiter);
            stream_post(worker, stream);
        }
    }
    if (env->rank == death->victim) {
        int64_t end = xm_worker_now(worker) + 100000000;

        while (xm_worker_now(worker) < end) {
            local_expect_ok(xm_worker_progress(worker));
        }
        death->died_at = local_now();
        (void)raise(SIGKILL);
    }
    status = stream_until_failure(worker, streams, count);
    noticed = local_now() - death->died_at;
    local_expect(status == XM_ERR_PEER_DIED, "%s (%s)", xm_status_string(status), xm_last_error());
    local_expect(strstr(xm_last_error(), name) != NULL, "'%s' lacks '%s'", xm_last_error(), name);
    local_expect(strstr(xm_last_error(), "stopped answering") == NULL,
                 "found by its silence only: '%s'", xm_last_error());
    local_expect(noticed < soon_s, "noticed after %g s", noticed);
    for (int i = 0; i < count; ++i) {
        local_expect(streams[i].peer != death->victim || streams[i].waiter.ended == 1,
                     "rank %d: operation %d with rank %d ended %d times", env->rank, i,
                     streams[i].peer, streams[i].waiter.ended);
    }
    local_expect_fails(xm_worker_wait(worker, xm_worker_deadline(worker)), XM_ERR_PEER_DIED, name);
    local_expect_fails(xm_worker_progress(worker), XM_ERR_PEER_DIED, name);
    local_expect_fails(xm_worker_barrier(worker), XM_ERR_PEER_DIED, name);
    leaving = local_now();
    xm_worker_destroy(worker, xm_last_error());
    local_expect(local_now() - leaving < soon_s, "leaving took %g s", local_now() - leaving);
    for (int i = 0; i < count; ++i) {
        local_expect(streams[i].waiter.ended == 1, "operation %d ended %d times", i,
                     streams[i].waiter.ended);
        free(streams[i].buffer);
    }
    return 0;
}

START_TEST(a_death_ends_every_wait)
{
    death_t *death = local_shared(sizeof(*death));
    local_job_t job;

    death->victim = _i % 4;
    death->per_host = _i / 4 == 0 ? 4 : 2;
    local_job_start(&job, 4, 0, DEADLINE_S, outlive, death);
    local_job_wait(&job, 1u << death->victim);
}
END_TEST

static int wait_in_vain(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd, NULL, DEADLINE_S);
    double started = local_now(), used = local_cpu(), waited;
    waiter_t receive;
    int value;
    xm_status_t status;

    (void)arg;
    status = xm_transport_receive(xm_worker_transport(worker), 1 - env->rank, 1, &value,
                                  sizeof(value), NULL, &waiter_init(&receive)->op);
    local_expect(status == XM_IN_PROGRESS, "%s", xm_last_error());
    do {
        status = xm_worker_wait(worker, xm_worker_now(worker) + 600000000 -
                                            (int64_t)((local_now() - started) * 1e9));
    } while (status == XM_OK);
    waited = local_now() - started;
    local_expect(status == XM_ERR_TIMEOUT, "%s", xm_status_string(status));
    local_expect(strstr(xm_last_error(), "the deadline passed") != NULL, "'%s'", xm_last_error());
    local_expect(waited > 0.55 && waited < 0.6 + soon_s, "waited %g s", waited);
    local_expect(local_cpu() - used < 0.1 * waited, "%g s of CPU", local_cpu() - used);
    local_expect(receive.ended == 0, "ended");
    xm_transport_cancel(xm_worker_transport(worker), &receive.op);
    while (receive.ended == 0) {
        local_expect_ok(xm_worker_wait(worker, xm_worker_deadline(worker)));
    }
    local_expect(receive.status == XM_ERR_CANCELED, "%s", xm_status_string(receive.status));
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(a_deadline_ends_a_wait_without_cpu)
{
    local_job_run(2, DEADLINE_S, wait_in_vain, NULL);
}
END_TEST

static void *wake_soon(void *worker)
{
    local_sleep(0.2);
    xm_worker_wake(worker);
    return NULL;
}

/* Nothing happens between the ranks, so only the other thread can end the wait. */
static int wait_for_a_thread(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd, NULL, DEADLINE_S);
    double started, waited;
    pthread_t thread;

    (void)arg;
    local_expect_ok(xm_worker_barrier(worker));
    while (xm_worker_wait(worker, xm_worker_now(worker)) == XM_OK) {
        continue; /* what is left of the barrier */
    }
    /* A wake-up without a wait is for the next one. */
    xm_worker_wake(worker);
    xm_worker_wake(worker);
    local_expect_ok(xm_worker_wait(worker, xm_worker_deadline(worker)));
    started = local_now();
    local_expect(pthread_create(&thread, NULL, wake_soon, worker) == 0, "no thread");
    do {
        /* A heartbeat may end a wait as well. */
        local_expect_ok(xm_worker_wait(worker, xm_worker_deadline(worker)));
        waited = local_now() - started;
    } while (waited < 0.2);
    (void)pthread_join(thread, NULL);
    local_expect(waited < 0.2 + soon_s, "waited %g s", waited);
    local_expect_ok(xm_worker_barrier(worker));
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(a_thread_ends_the_wait_of_another)
{
    local_job_run(2, DEADLINE_S, wait_for_a_thread, NULL);
}
END_TEST

/* A large send completes while its sender is in the barrier; and spinning works. */
static int progress_in_barrier(const xm_job_env_t *env, int listen_fd, void *arg)
{
    static char buffer[8 << 20];
    waiter_t waiter;
    xm_worker_t *worker;
    xm_status_t status;

    if (*(bool *)arg) {
        local_expect(setenv("XM_PROGRESS", "spin", 1) == 0, "setenv");
    }
    worker = join(env, listen_fd, NULL, DEADLINE_S);
    (void)waiter_init(&waiter);
    if (env->rank == 0) {
        memset(buffer, 'x', sizeof(buffer));
        status = xm_transport_send(xm_worker_transport(worker), 1, 1, buffer, sizeof(buffer), NULL,
                                   &waiter.op);
    } else {
        status = xm_transport_receive(xm_worker_transport(worker), 0, 1, buffer, sizeof(buffer),
                                      NULL, &waiter.op);
        while (status == XM_IN_PROGRESS && waiter.ended == 0) {
            local_expect_ok(xm_worker_wait(worker, xm_worker_deadline(worker)));
        }
        local_expect(buffer[sizeof(buffer) - 1] == 'x', "the message is wrong");
    }
    local_expect(status >= 0, "%s", xm_last_error());
    local_expect_ok(xm_worker_barrier(worker));
    /* The receiver has it all, so the send ends without the receiver doing anything more. */
    while (status == XM_IN_PROGRESS && waiter.ended == 0) {
        local_expect_ok(xm_worker_wait(worker, xm_worker_deadline(worker)));
    }
    if (*(bool *)arg) {
        local_expect(xm_transport_event_fd(xm_worker_transport(worker)) == -1, "a descriptor");
    }
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(barrier_makes_progress)
{
    bool spin = _i != 0;

    local_job_run(2, DEADLINE_S, progress_in_barrier, &spin);
}
END_TEST

/* Ranks that call the barrier, and that have had its end. */
typedef struct {
    atomic_int calling, ended;
} late_t;

static int late_for_barrier(const xm_job_env_t *env, int listen_fd, void *arg)
{
    late_t *late = arg;
    xm_worker_t *worker = join(env, listen_fd, NULL, DEADLINE_S);
    int own = env->rank, all[3];

    local_expect_ok(xm_worker_allgather(worker, &own, all, sizeof(own)));
    local_expect(all[2] == 2, "rank 2 is %d", all[2]);
    /* Rank 0 is the first whose time is up, when rank 1 has called and rank 2 has not. */
    if (env->rank == 0) {
        local_await(&late->calling, 1);
        worker->timeout = 4.0;
    } else if (env->rank == 1) {
        (void)atomic_fetch_add(&late->calling, 1);
    } else {
        local_await(&late->ended, 1);
    }
    local_expect_fails(xm_worker_barrier(worker), XM_ERR_TIMEOUT, "timed out after");
    if (env->rank == 0) {
        local_expect(strstr(xm_last_error(), "1 of 3 ranks did not call it: 2") != NULL, "'%s'",
                     xm_last_error());
    }
    (void)atomic_fetch_add(&late->ended, 1);
    local_await(&late->ended, 3);
    xm_worker_destroy(worker, "barrier");
    return 0;
}

START_TEST(a_barrier_times_out)
{
    local_job_run(3, DEADLINE_S, late_for_barrier, local_shared(sizeof(late_t)));
}
END_TEST

static int give_up(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd, NULL, DEADLINE_S);
    atomic_int *joined = arg;
    xm_status_t status;

    /* Who has not joined yet would be told there. */
    (void)atomic_fetch_add(joined, 1);
    local_await(joined, 3);
    if (env->rank == 1) {
        xm_worker_destroy(worker, "disk full");
        return 0;
    }
    do {
        status = xm_worker_wait(worker, xm_worker_deadline(worker));
    } while (status == XM_OK);
    local_expect(status == XM_ERR_CANCELED, "%s (%s)", xm_status_string(status), xm_last_error());
    local_expect(strstr(xm_last_error(), "rank 1 (host ") != NULL &&
                     strstr(xm_last_error(), "gave up: disk full") != NULL,
                 "'%s'", xm_last_error());
    xm_worker_destroy(worker, xm_last_error());
    return 0;
}

START_TEST(a_reason_is_quoted)
{
    local_job_run(3, DEADLINE_S, give_up, local_shared(sizeof(atomic_int)));
}
END_TEST

/* Small messages arrive although their sender leaves at once. */
static int send_and_leave(const xm_job_env_t *env, int listen_fd, void *arg)
{
    enum { COUNT = 200 };
    xm_worker_t *worker =
        join(env, listen_fd, *(bool *)arg && env->rank == 1 ? "far" : "near", DEADLINE_S);
    static char bytes[COUNT][2000];
    static waiter_t waiters[COUNT];

    for (int i = 0; i < COUNT; ++i) {
        xm_status_t status;

        (void)waiter_init(&waiters[i]);
        if (env->rank == 0) {
            memset(bytes[i], i % 100 + 1, sizeof(bytes[i]));
            status = xm_transport_send(xm_worker_transport(worker), 1, (uint64_t)i, bytes[i],
                                       sizeof(bytes[i]), NULL, &waiters[i].op);
        } else {
            local_sleep(0.001);
            status = xm_transport_receive(xm_worker_transport(worker), 0, (uint64_t)i, bytes[i],
                                          sizeof(bytes[i]), NULL, &waiters[i].op);
        }
        local_expect(status >= 0, "%s", xm_last_error());
        waiters[i].ended = status == XM_OK;
    }
    for (int i = 0; i < COUNT; ++i) {
        while (waiters[i].ended == 0) {
            local_expect_ok(xm_worker_wait(worker, xm_worker_deadline(worker)));
        }
        local_expect(bytes[i][1999] == i % 100 + 1, "message %d is wrong", i);
    }
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(leaving_loses_nothing)
{
    bool far = _i != 0;

    local_job_run(2, DEADLINE_S, send_and_leave, &far);
}
END_TEST

/* Settings */

typedef struct {
    const char *name, *value; /* set on rank 2 only */
    xm_status_t own, others;
    const char *own_text, *others_text;
} setting_t;

static const setting_t settings[] = {
    {"XM_WINDOW", "11", XM_ERR_MISMATCH, XM_ERR_MISMATCH,
     "XM_WINDOW must be equal on all ranks: rank 0 has 2, rank 2 has 11",
     "XM_WINDOW must be equal on all ranks: rank 0 has 2, rank 2 has 11"},
    {"XM_PROGRESS", "nap", XM_ERR_PARSE, XM_ERR_CANCELED, "XM_PROGRESS: 'nap' is not one of",
     "gave up: XM_PROGRESS: 'nap'"},
};

static int set_badly(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const setting_t *setting = arg;
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;

    if (env->rank == 2) {
        local_expect(setenv(setting->name, setting->value, 1) == 0, "setenv");
    }
    params.listen_fd = listen_fd;
    if (env->rank == 2) {
        local_expect_fails(xm_worker_create(env, &params, &worker), setting->own,
                           setting->own_text);
    } else {
        local_expect_fails(xm_worker_create(env, &params, &worker), setting->others,
                           setting->others_text);
    }
    return 0;
}

START_TEST(bad_settings_are_named_everywhere)
{
    local_job_run(4, DEADLINE_S, set_badly, (void *)(uintptr_t)&settings[_i]);
}
END_TEST

/* Equal on all ranks, but malformed: the sentence is about that, not about a difference. */
static int set_blanks(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;

    (void)arg;
    local_expect(setenv("XM_CHUNK_SIZE", "512 KiB", 1) == 0, "setenv");
    params.listen_fd = listen_fd;
    local_expect(xm_worker_create(env, &params, &worker) < 0, "a malformed setting was accepted");
    local_expect(strstr(xm_last_error(), "XM_CHUNK_SIZE: '512 KiB' is not a byte count") != NULL,
                 "%s", xm_last_error());
    return 0;
}

START_TEST(equal_settings_with_blanks_do_not_differ)
{
    local_job_run(2, DEADLINE_S, set_blanks, NULL);
}
END_TEST

static int set_unknown(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker;

    local_expect(setenv("XM_TIMEOTU", "5", 1) == 0 && setenv("XM_LOG_FILE", arg, 1) == 0, "setenv");
    worker = join(env, listen_fd, NULL, DEADLINE_S);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(unknown_settings_are_reported_once)
{
    char path[] = "/tmp/test_worker_log_XXXXXX", text[4096] = "";
    int fd = mkstemp(path), lines = 0;
    ssize_t length;

    ck_assert_int_ge(fd, 0);
    local_job_run(3, DEADLINE_S, set_unknown, path);
    length = read(fd, text, sizeof(text) - 1);
    (void)close(fd);
    (void)unlink(path);
    ck_assert_int_gt((int)length, 0);
    for (const char *at = text; (at = strstr(at, "unknown setting XM_TIMEOTU")) != NULL; ++at) {
        ++lines;
    }
    ck_assert_int_eq(lines, 1);
    ck_assert_ptr_nonnull(strstr(text, " WARN "));
    ck_assert_ptr_nonnull(strstr(text, "did you mean XM_TIMEOUT?"));
}
END_TEST

START_TEST(bad_parameters_are_refused)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_job_env_t env = {.rank = 0, .size = 1, .master_port = -1};
    xm_worker_t *worker = NULL;

    params.transport = "pigeon";
    params.listen_fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_ge(params.listen_fd, 0);
    ck_assert_xm_fails(xm_worker_create(&env, &params, &worker), XM_ERR_UNSUPPORTED,
                       "no transport 'pigeon'");
    ck_assert_int_eq(close(params.listen_fd), -1); /* it was taken over */
    params.transport = NULL;
    params.listen_fd = -1;
    ck_assert_xm_fails(xm_worker_create(NULL, &params, &worker), XM_ERR_INVALID_ARGUMENT,
                       "xm_worker_create: env is NULL");
    ck_assert_ptr_null(worker);
    xm_worker_destroy(NULL, NULL);
}
END_TEST

static int alone(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd, NULL, DEADLINE_S);
    int64_t deadline = xm_worker_now(worker) + 20000000;
    xm_status_t status;

    (void)arg;
    local_expect_ok(xm_worker_barrier(worker));
    local_expect(xm_worker_rank(worker) == 0 && xm_worker_size(worker) == 1, "slot");
    local_expect(xm_worker_timeout(worker) == DEADLINE_S, "timeout");
    local_expect(xm_bootstrap_size(xm_worker_bootstrap(worker)) == 1, "bootstrap");
    do {
        status = xm_worker_wait(worker, deadline);
    } while (status == XM_OK);
    local_expect(status == XM_ERR_TIMEOUT, "%s", xm_status_string(status));
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(one_rank_is_a_job)
{
    local_job_run(1, DEADLINE_S, alone, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("worker");
    TCase *tcase = tcase_create("jobs");

    tcase_set_timeout(tcase, 2 * DEADLINE_S);
    tcase_add_test(tcase, messages_on_one_host);
    tcase_add_test(tcase, messages_between_emulated_hosts);
    tcase_add_loop_test(tcase, a_death_ends_every_wait, 0, 8);
    tcase_add_test(tcase, a_deadline_ends_a_wait_without_cpu);
    tcase_add_test(tcase, a_thread_ends_the_wait_of_another);
    tcase_add_loop_test(tcase, barrier_makes_progress, 0, 2);
    tcase_add_test(tcase, a_barrier_times_out);
    tcase_add_test(tcase, a_reason_is_quoted);
    tcase_add_loop_test(tcase, leaving_loses_nothing, 0, 2);
    tcase_add_loop_test(tcase, bad_settings_are_named_everywhere, 0, 2);
    tcase_add_test(tcase, equal_settings_with_blanks_do_not_differ);
    tcase_add_test(tcase, unknown_settings_are_reported_once);
    tcase_add_test(tcase, bad_parameters_are_refused);
    tcase_add_test(tcase, one_rank_is_a_job);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
