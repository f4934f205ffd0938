/* SPDX-License-Identifier: Apache-2.0 */
/* Faults that no connection tells of: stopped ranks, busy ranks, slow ranks; with real processes.
 */
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/transport/ucx/ucx.h"
#include "comm/worker/worker.h"
#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum { DEADLINE_S = 60, RANKS = 4 };

/* What a fault may take until everybody knows, by default (docs/failures.md), on a machine that
 * does nothing else; and what is still no matter of the deadline. How long the one who found it has
 * heard nothing does not count the time that it was held up itself. */
static const double detection_s = 5.0, found_s = DEADLINE_S / 3.0, silence_s = 4.5;

typedef struct {
    int victim;
    bool computing; /* rank 0 does not look after the job for the first seconds */
    double happened_at;
    atomic_int done;
    double longest; /* until a rank knew */
} fault_t;

typedef struct {
    xm_op_t op;
    int ended;
    xm_status_t status;
    char byte;
} byte_t;

static void on_done(xm_op_t *op, xm_status_t status)
{
    byte_t *byte = op->arg;

    ++byte->ended;
    byte->status = status;
}

static xm_worker_t *join(const xm_job_env_t *env, int listen_fd, bool apart, double timeout)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;
    char host[32];

    (void)snprintf(host, sizeof(host), "h%d", env->rank);
    params.listen_fd = listen_fd;
    params.host = apart ? host : "one";
    params.timeout = timeout;
    local_expect_ok(xm_worker_create(env, &params, &worker));
    return worker;
}

static void post(xm_worker_t *worker, byte_t *byte, int peer, uint64_t tag, bool send)
{
    xm_transport_t *transport = xm_worker_transport(worker);
    xm_status_t status;

    *byte = (byte_t){.op = {.done = on_done, .arg = byte}};
    status = send ? xm_transport_send(transport, peer, tag, &byte->byte, 1, NULL, &byte->op)
                  : xm_transport_receive(transport, peer, tag, &byte->byte, 1, NULL, &byte->op);
    local_expect(status >= 0, "post: %s", xm_last_error());
    byte->ended = status == XM_OK;
}

/* Uses the processor without a call of the library. */
static void compute(double seconds)
{
    double end = local_now() + seconds;
    volatile double value = 1.0;

    while (local_now() < end) {
        for (int i = 0; i < 100000; ++i) {
            value = value * 1.0000001;
        }
    }
}

/* The seconds in "stopped answering rank 0 (host a) 3.5 s ago". */
static double silence(const char *sentence)
{
    const char *at = strstr(sentence, "stopped answering rank ");
    double seconds = -1.0;

    at = at != NULL ? strstr(at, ") ") : NULL;
    local_expect(at != NULL && sscanf(at, ") %lf s ago", &seconds) == 1, "'%s'", sentence);
    return seconds;
}

static xm_status_t wait_for(xm_worker_t *worker, const byte_t *byte)
{
    int64_t deadline = xm_worker_deadline(worker);
    xm_status_t status = XM_OK;

    while (status == XM_OK && byte->ended == 0) {
        status = xm_worker_wait(worker, deadline);
    }
    return status;
}

/* The victim stops itself; the others wait for something of it, or of somebody who does. */
static int outwait(const xm_job_env_t *env, int listen_fd, void *arg)
{
    fault_t *fault = arg;
    xm_worker_t *worker = join(env, listen_fd, false, DEADLINE_S);
    char name[64];
    double took;
    xm_status_t status;
    byte_t byte;

    (void)snprintf(name, sizeof(name), "rank %d (host ", fault->victim);
    local_expect_ok(xm_worker_barrier(worker));
    if (env->rank == fault->victim) {
        local_sleep(1.5);
        fault->happened_at = local_now();
        (void)raise(SIGSTOP);
        local_fail(__FILE__, __LINE__, "woken up");
    }
    post(worker, &byte, fault->victim, 5, false);
    if (fault->computing && env->rank == 0) {
        compute(1.5 + detection_s);
    }
    status = wait_for(worker, &byte);
    took = local_now() - fault->happened_at;
    local_expect(status == XM_ERR_PEER_DIED, "%s (%s)", xm_status_string(status), xm_last_error());
    local_expect(strstr(xm_last_error(), name) != NULL, "'%s'", xm_last_error());
    local_expect(silence(xm_last_error()) < silence_s, "'%s'", xm_last_error());
    local_expect(byte.ended == 1 && byte.status == XM_ERR_PEER_DIED, "ended %d times, %s",
                 byte.ended, xm_status_string(byte.status));
    if (!(fault->computing && env->rank == 0)) {
        local_expect(took < found_s, "noticed after %.1f s", took);
        fault->longest = took > fault->longest ? took : fault->longest;
    }
    /* Every wait of later ends so, too. */
    local_expect_fails(xm_worker_barrier(worker), XM_ERR_PEER_DIED, name);
    (void)atomic_fetch_add(&fault->done, 1);
    xm_worker_destroy(worker, xm_last_error());
    return 0;
}

static void stop_one(int victim, bool computing)
{
    fault_t *fault = local_shared(sizeof(*fault));
    local_job_t job;
    double limit = local_now() + DEADLINE_S / 2.0;

    fault->victim = victim;
    fault->computing = computing;
    local_job_start(&job, RANKS, 0, DEADLINE_S, outwait, fault);
    while (atomic_load(&fault->done) < RANKS - 1 && local_now() < limit) {
        local_sleep(0.01);
    }
    (void)kill(job.pids[victim], SIGKILL);
    local_job_wait(&job, 1u << victim);
    (void)printf("rank %d stopped%s: all knew after %.1f s\n", victim,
                 computing ? " while rank 0 computes" : "", fault->longest);
}

START_TEST(a_stopped_rank_is_found)
{
    stop_one(2, false);
}
END_TEST

START_TEST(a_stopped_rank_0_is_found)
{
    stop_one(0, false);
}
END_TEST

START_TEST(a_computing_rank_0_holds_nothing_up)
{
    stop_one(2, true);
}
END_TEST

/* Rank 1 computes for longer than a dead rank would be silent, while all wait for it. */
static int be_patient(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd, *(bool *)arg, DEADLINE_S);
    byte_t bytes[RANKS];

    local_expect_ok(xm_worker_barrier(worker));
    if (env->rank == 1) {
        for (int peer = 0; peer < RANKS; ++peer) {
            if (peer != 1) {
                post(worker, &bytes[peer], peer, 5, false);
            }
        }
        compute(6.0);
        for (int peer = 0; peer < RANKS; ++peer) {
            if (peer != 1) {
                local_expect_ok(wait_for(worker, &bytes[peer]));
                post(worker, &bytes[peer], peer, 6, true);
            }
        }
    } else {
        post(worker, &bytes[0], 1, 5, true);
        post(worker, &bytes[1], 1, 6, false);
        local_expect_ok(wait_for(worker, &bytes[1]));
    }
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(a_busy_rank_is_alive)
{
    bool apart = _i != 0;

    local_job_run(RANKS, DEADLINE_S, be_patient, &apart);
}
END_TEST

/* A rank that lives and waits, but never sends what another one wants: that is a deadline's. */
static int be_slow(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd, *(bool *)arg, DEADLINE_S);
    byte_t byte;
    xm_status_t status = XM_OK;
    double started = local_now();
    int64_t deadline = xm_worker_now(worker) + INT64_C(6500000000);

    post(worker, &byte, 1 - env->rank, 5, false); /* each of the other */
    while (status == XM_OK) {
        status = xm_worker_wait(worker, deadline);
    }
    local_expect(status == XM_ERR_TIMEOUT, "%s (%s)", xm_status_string(status), xm_last_error());
    local_expect(strstr(xm_last_error(),
                        env->rank == 0 ? "with rank 1 (host " : "with rank 0 (host ") != NULL,
                 "'%s'", xm_last_error());
    local_expect(local_now() - started > 6.0, "after %.1f s", local_now() - started);
    xm_transport_cancel(xm_worker_transport(worker), &byte.op);
    local_expect_ok(wait_for(worker, &byte));
    local_expect(byte.status == XM_ERR_CANCELED, "%s", xm_status_string(byte.status));
    local_expect_ok(xm_worker_barrier(worker));
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(a_slow_rank_ends_in_the_deadline)
{
    bool apart = _i != 0;

    local_job_run(2, DEADLINE_S, be_slow, &apart);
}
END_TEST

static int port_of(const struct sockaddr_storage *address)
{
    return ntohs(((const struct sockaddr_in *)address)->sin_port);
}

/* Shuts the TCP connections of this process down, except the bootstrap's: those of UCX are left. */
static int reset_connections(int master_port)
{
    int count = 0;

    for (int fd = 3; fd < 1024; ++fd) {
        struct sockaddr_storage peer;
        socklen_t length = sizeof(peer), type_length = sizeof(int);
        int type = 0;

        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_length) == 0 && type == SOCK_STREAM &&
            getpeername(fd, (struct sockaddr *)&peer, &length) == 0 && peer.ss_family == AF_INET &&
            port_of(&peer) != master_port) {
            count += shutdown(fd, SHUT_RDWR) == 0;
        }
    }
    return count;
}

/* The connection of ranks 1 and 2 is lost, while both live. */
static int lose_connection(const xm_job_env_t *env, int listen_fd, void *arg)
{
    fault_t *fault = arg;
    xm_worker_t *worker = join(env, listen_fd, true, DEADLINE_S);
    byte_t byte;
    double took;
    xm_status_t status;

    /* Connects ranks 1 and 2, none of which is the bootstrap's centre. */
    if (env->rank > 0) {
        post(worker, &byte, 3 - env->rank, 4, env->rank == 1);
        local_expect_ok(wait_for(worker, &byte));
        post(worker, &byte, 3 - env->rank, 3, env->rank == 2);
        local_expect_ok(wait_for(worker, &byte));
    }
    local_expect_ok(xm_worker_barrier(worker));
    if (env->rank > 0) {
        post(worker, &byte, 3 - env->rank, 5, false);
    } else {
        post(worker, &byte, 1, 5, false);
    }
    (void)atomic_fetch_add(&fault->done, 1);
    if (env->rank == 1) {
        double limit = local_now() + DEADLINE_S / 2.0;

        while (atomic_load(&fault->done) < 3 && local_now() < limit) {
            local_sleep(0.001); /* a post after the reset would be refused */
        }
        fault->happened_at = local_now();
        local_expect(reset_connections(env->master_port) > 0, "no connections");
    }
    status = wait_for(worker, &byte);
    took = local_now() - fault->happened_at;
    local_expect(status == XM_ERR_PEER_DIED || status == XM_ERR_CANCELED, "%s (%s)",
                 xm_status_string(status), xm_last_error());
    local_expect(strstr(xm_last_error(), "rank ") != NULL, "'%s'", xm_last_error());
    local_expect(took < found_s, "noticed after %.1f s", took);
    fault->longest = took > fault->longest ? took : fault->longest;
    xm_worker_destroy(worker, xm_last_error());
    return 0;
}

START_TEST(reset_connections_are_found)
{
    fault_t *fault = local_shared(sizeof(*fault));

    local_job_run(3, DEADLINE_S, lose_connection, fault);
    (void)printf("connections of rank 1 reset: all knew after %.1f s\n", fault->longest);
}
END_TEST

/* Off: a stopped rank is nobody's fault before the deadline. */
static int no_heartbeat(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker;
    byte_t byte;

    (void)arg;
    local_expect(setenv("XM_HEARTBEAT", "0", 1) == 0, "setenv");
    worker = join(env, listen_fd, false, DEADLINE_S);
    post(worker, &byte, 1 - env->rank, 5, env->rank == 0);
    local_expect_ok(wait_for(worker, &byte));
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(it_can_be_off)
{
    local_job_run(2, DEADLINE_S, no_heartbeat, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("heartbeat");
    TCase *tcase = tcase_create("faults");

    tcase_set_timeout(tcase, 2 * DEADLINE_S);
    tcase_add_test(tcase, a_stopped_rank_is_found);
    tcase_add_test(tcase, a_stopped_rank_0_is_found);
    tcase_add_test(tcase, a_computing_rank_0_holds_nothing_up);
    tcase_add_loop_test(tcase, a_busy_rank_is_alive, 0, 2);
    tcase_add_loop_test(tcase, a_slow_rank_ends_in_the_deadline, 0, 2);
    tcase_add_test(tcase, reset_connections_are_found);
    tcase_add_test(tcase, it_can_be_off);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
