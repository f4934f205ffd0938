/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/job/bootstrap.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum { JOB_LIMIT_S = 90 };
static const double limit_s = 40.0;

static xm_bootstrap_t *join(const xm_job_env_t *env, int listen_fd)
{
    xm_bootstrap_t *bootstrap;

    local_expect_ok(xm_bootstrap_create_tcp(env, listen_fd, limit_s, &bootstrap));
    local_expect(xm_bootstrap_rank(bootstrap) == env->rank, "rank");
    local_expect(xm_bootstrap_size(bootstrap) == env->size, "size");
    return bootstrap;
}

/* Collectives */

static uint8_t block_byte(int rank, size_t i, int round)
{
    return (uint8_t)(31 * rank + 7 * round + (int)(i % 251));
}

static int gather(const xm_job_env_t *env, int listen_fd, void *arg)
{
    static const size_t lengths[] = {1, 8, 1000, 300000, 0, 17};
    xm_bootstrap_t *bootstrap = join(env, listen_fd);

    (void)arg;
    for (int round = 0; round < 12; ++round) {
        size_t length = lengths[round % 6];
        uint8_t *own = malloc(length + 1), *all = calloc(1, length * (size_t)env->size + 1);

        local_expect(own != NULL && all != NULL, "memory");
        for (size_t i = 0; i < length; ++i) {
            own[i] = block_byte(env->rank, i, round);
        }
        /* Uneven arrival: some are a round ahead of rank 0. */
        local_sleep(0.002 * ((env->rank + round) % 3));
        local_expect_ok(xm_bootstrap_allgather(bootstrap, own, all, length, limit_s));
        for (size_t i = 0; i < length * (size_t)env->size; ++i) {
            local_expect(all[i] == block_byte((int)(i / length), i % length, round), "byte %zu", i);
        }
        free(own);
        free(all);
    }
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(allgather_by_rank)
{
    static const int sizes[] = {1, 2, 3, 8};

    local_job_run(sizes[_i], JOB_LIMIT_S, gather, NULL);
}
END_TEST

static int gather_blobs(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap = join(env, listen_fd);
    size_t length = env->rank == 2 ? 0 : (size_t)(env->rank + 1) * 5000, *offsets;
    uint8_t *own = malloc(length + 1);
    void *all;

    (void)arg;
    for (size_t i = 0; i < length; ++i) {
        own[i] = block_byte(env->rank, i, 0);
    }
    local_expect_ok(xm_bootstrap_allgatherv(bootstrap, own, length, &all, &offsets, limit_s));
    local_expect(offsets[0] == 0, "first offset");
    for (int rank = 0; rank < env->size; ++rank) {
        size_t expected = rank == 2 ? 0 : (size_t)(rank + 1) * 5000;

        local_expect(offsets[rank + 1] - offsets[rank] == expected, "length of rank %d", rank);
        for (size_t i = 0; i < expected; ++i) {
            local_expect(((uint8_t *)all)[offsets[rank] + i] == block_byte(rank, i, 0),
                         "byte %zu of rank %d", i, rank);
        }
    }
    free(all);
    free(offsets);
    free(own);
    local_expect_ok(xm_bootstrap_allgatherv(bootstrap, NULL, 0, &all, &offsets, limit_s));
    local_expect(offsets[env->size] == 0, "nothing from nobody");
    free(all);
    free(offsets);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(allgatherv_of_uneven_blobs)
{
    local_job_run(5, JOB_LIMIT_S, gather_blobs, NULL);
}
END_TEST

static int gather_differently(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap = join(env, listen_fd);
    char own[4] = {0}, bytes[16];
    size_t *offsets;
    void *all;

    (void)arg;
    if (env->rank == 2) {
        local_expect_fails(
            xm_bootstrap_allgatherv(bootstrap, own, sizeof(own), &all, &offsets, limit_s),
            XM_ERR_MISMATCH, "called allgatherv as number 1 where rank 0 called allgather");
    } else {
        local_expect_fails(xm_bootstrap_allgather(bootstrap, own, bytes, sizeof(own), limit_s),
                           XM_ERR_MISMATCH, "rank 2 (host ");
    }
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(allgatherv_does_not_mix_with_allgather)
{
    local_job_run(3, JOB_LIMIT_S, gather_differently, NULL);
}
END_TEST

static int meet_late(const xm_job_env_t *env, int listen_fd, void *arg)
{
    double *arrived = arg;
    xm_bootstrap_t *bootstrap = join(env, listen_fd);

    local_sleep(0.05 * env->rank);
    arrived[env->rank] = local_now();
    local_expect_ok(xm_bootstrap_barrier(bootstrap, limit_s));
    local_expect(arrived[env->size - 1] > 0.0, "left before the last one came");
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(barrier_waits_for_the_last)
{
    local_job_run(4, JOB_LIMIT_S, meet_late, local_shared(4 * sizeof(double)));
}
END_TEST

static int misuse(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap = join(env, listen_fd);
    char byte = 0, bytes[2];

    (void)arg;
    local_expect_fails(xm_bootstrap_allgather_test(bootstrap), XM_ERR_INVALID_ARGUMENT,
                       "none was posted");
    local_expect_fails(xm_bootstrap_allgather(bootstrap, NULL, NULL, 4, limit_s),
                       XM_ERR_INVALID_ARGUMENT, "NULL buffer for 4 bytes");
    local_expect_fails(xm_bootstrap_allgather(bootstrap, &byte, bytes, (size_t)1 << 40, limit_s),
                       XM_ERR_INVALID_ARGUMENT, "exceed");
    local_expect_ok(xm_bootstrap_barrier(bootstrap, limit_s));
    if (env->rank == 0) {
        local_expect_ok(xm_bootstrap_allgather_post(bootstrap, &byte, bytes, 1));
        local_expect_fails(xm_bootstrap_allgather_post(bootstrap, &byte, bytes, 1),
                           XM_ERR_INVALID_ARGUMENT, "another one is in flight");
        while (xm_bootstrap_allgather_test(bootstrap) == XM_IN_PROGRESS) {
            local_sleep(0.001);
        }
    } else {
        local_expect_ok(xm_bootstrap_allgather(bootstrap, &byte, bytes, 1, limit_s));
    }
    xm_bootstrap_destroy(bootstrap);
    xm_bootstrap_destroy(NULL);
    return 0;
}

START_TEST(misuse_is_refused)
{
    local_job_run(2, JOB_LIMIT_S, misuse, NULL);
}
END_TEST

/* Faults */

typedef struct {
    int victim;
    int state;         /* 0: others poll, 1: in an allgather, 2: asleep on the descriptor */
    atomic_int looked; /* ranks that have seen all alive */
    double died_at;
} death_t;

static int outlive(const xm_job_env_t *env, int listen_fd, void *arg)
{
    death_t *death = arg;
    xm_bootstrap_t *bootstrap = join(env, listen_fd);
    double deadline = local_now() + limit_s, noticed;
    char name[64], bytes[16];
    int failed_rank = -1;
    xm_status_t status = XM_OK;

    (void)snprintf(name, sizeof(name), "rank %d (host ", death->victim);
    local_expect_ok(xm_bootstrap_barrier(bootstrap, limit_s));
    local_expect_ok(xm_bootstrap_poll(bootstrap, &failed_rank));
    (void)atomic_fetch_add(&death->looked, 1);
    if (env->rank == death->victim) {
        local_await(&death->looked, env->size);
        local_sleep(0.05);
        death->died_at = local_now();
        (void)raise(SIGKILL);
    }
    if (death->state == 1) {
        status = xm_bootstrap_allgather(bootstrap, name, bytes, 1, limit_s);
    }
    while (status == XM_OK && local_now() < deadline) {
        struct pollfd entry = {.fd = xm_bootstrap_fd(bootstrap), .events = POLLIN};

        if (death->state == 2) {
            local_expect(poll(&entry, 1, (int)(1e3 * limit_s)) == 1,
                         "the descriptor stayed silent");
        }
        status = xm_bootstrap_poll(bootstrap, &failed_rank);
    }
    noticed = local_now() - death->died_at;
    local_expect(status == XM_ERR_PEER_DIED, "%s", xm_status_string(status));
    local_expect(strstr(xm_last_error(), name) != NULL && strstr(xm_last_error(), ") died") != NULL,
                 "'%s' lacks '%s'", xm_last_error(), name);
    /* By itself, not by the end of a wait; how soon that is, a busy machine decides. */
    local_expect(noticed < limit_s / 2.0, "noticed after %g s", noticed);
    /* The fault status is sticky, whatever is called. */
    failed_rank = -1;
    local_expect_fails(xm_bootstrap_poll(bootstrap, &failed_rank), XM_ERR_PEER_DIED, name);
    local_expect(failed_rank == death->victim, "rank %d is blamed", failed_rank);
    local_expect_fails(xm_bootstrap_barrier(bootstrap, limit_s), XM_ERR_PEER_DIED, name);
    local_sleep(0.05 * env->rank);
    local_expect_fails(xm_bootstrap_poll(bootstrap, NULL), XM_ERR_PEER_DIED, name);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(a_death_is_named)
{
    death_t *death = local_shared(sizeof(*death));
    local_job_t job;

    death->victim = _i % 4;
    death->state = _i / 4;
    local_job_start(&job, 4, 0, JOB_LIMIT_S, outlive, death);
    local_job_wait(&job, 1u << death->victim);
}
END_TEST

static int abort_one(const xm_job_env_t *env, int listen_fd, void *arg)
{
    int quitter = *(int *)arg, failed_rank = -1;
    double deadline = local_now() + limit_s;
    xm_bootstrap_t *bootstrap = join(env, listen_fd);
    char name[64];
    xm_status_t status;

    (void)snprintf(name, sizeof(name), "rank %d (host ", quitter);
    local_expect_ok(xm_bootstrap_barrier(bootstrap, limit_s));
    if (env->rank == quitter) {
        xm_bootstrap_abort(bootstrap, "tensor 3 has no shape");
        xm_bootstrap_abort(bootstrap, "a later thought");
        local_expect_fails(xm_bootstrap_barrier(bootstrap, limit_s), XM_ERR_CANCELED,
                           "tensor 3 has no shape");
        xm_bootstrap_destroy(bootstrap);
        return 0;
    }
    do {
        status = xm_bootstrap_poll(bootstrap, &failed_rank);
    } while (status == XM_OK && local_now() < deadline);
    local_expect(status == XM_ERR_CANCELED && failed_rank == quitter, "%s of rank %d",
                 xm_status_string(status), failed_rank);
    local_expect(strstr(xm_last_error(), name) != NULL &&
                     strstr(xm_last_error(), "gave up: tensor 3 has no shape") != NULL,
                 "'%s'", xm_last_error());
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(an_abort_is_quoted)
{
    int quitter = _i;

    local_job_run(4, JOB_LIMIT_S, abort_one, &quitter);
}
END_TEST

typedef struct {
    int leaver;
    int looked; /* ranks that saw no fault */
} leave_t;

/* One rank leaves in order; nobody minds until he is needed. */
static int leave(const xm_job_env_t *env, int listen_fd, void *arg)
{
    leave_t *shared = arg;
    int leaver = shared->leaver;
    xm_bootstrap_t *bootstrap = join(env, listen_fd);
    char name[64];

    (void)snprintf(name, sizeof(name), "rank %d (host ", leaver);
    local_expect_ok(xm_bootstrap_barrier(bootstrap, limit_s));
    if (env->rank == leaver) {
        xm_bootstrap_destroy(bootstrap);
        return 0;
    }
    for (int i = 0; i < 50; ++i) {
        local_expect_ok(xm_bootstrap_poll(bootstrap, NULL));
        local_sleep(0.002);
    }
    (void)__atomic_add_fetch(&shared->looked, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&shared->looked, __ATOMIC_SEQ_CST) < env->size - 1) {
        local_sleep(0.001);
    }
    local_expect_fails(xm_bootstrap_barrier(bootstrap, limit_s), XM_ERR_PEER_DIED, name);
    local_expect(strstr(xm_last_error(), "left the job before allgather 2") != NULL, "'%s'",
                 xm_last_error());
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(leaving_in_order_is_no_fault)
{
    leave_t *shared = local_shared(sizeof(*shared));

    shared->leaver = _i;
    local_job_run(3, JOB_LIMIT_S, leave, shared);
}
END_TEST

/* Ranks that call, and that have had their answer. */
typedef struct {
    atomic_int calling, answered;
} late_t;

static int gather_late(const xm_job_env_t *env, int listen_fd, void *arg)
{
    late_t *late = arg;
    xm_bootstrap_t *bootstrap = join(env, listen_fd);
    double deadline = local_now() + limit_s;
    char byte = 0, bytes[4];

    if (env->rank == 2) {
        while (xm_bootstrap_poll(bootstrap, NULL) == XM_OK && local_now() < deadline) {
            local_sleep(0.001);
        }
        local_expect(xm_bootstrap_poll(bootstrap, NULL) < 0, "rank 2 was not told");
    } else if (env->rank == 0) {
        local_await(&late->calling, 2);
        local_expect_fails(xm_bootstrap_allgather(bootstrap, &byte, bytes, 1, 4.0), XM_ERR_TIMEOUT,
                           "allgather 1 timed out after 4 s: 1 of 4 ranks did not call it: 2");
        local_expect_fails(xm_bootstrap_barrier(bootstrap, 0.3), XM_ERR_TIMEOUT, "allgather 1");
    } else {
        (void)atomic_fetch_add(&late->calling, 1);
        local_expect_fails(xm_bootstrap_allgather(bootstrap, &byte, bytes, 1, limit_s),
                           XM_ERR_TIMEOUT, "1 of 4 ranks did not call it: 2");
    }
    (void)atomic_fetch_add(&late->answered, 1);
    local_await(&late->answered, env->size);
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(allgather_times_out_with_names)
{
    local_job_run(4, JOB_LIMIT_S, gather_late, local_shared(sizeof(late_t)));
}
END_TEST

static int gather_unequal(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_bootstrap_t *bootstrap = join(env, listen_fd);
    char own[8] = {0}, bytes[64];

    (void)arg;
    local_expect_fails(
        xm_bootstrap_allgather(bootstrap, own, bytes, env->rank == 2 ? 8 : 4, limit_s),
        XM_ERR_MISMATCH, "offered 8 bytes in allgather 1 where rank 0 offered 4");
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(unequal_lengths_are_named)
{
    local_job_run(3, JOB_LIMIT_S, gather_unequal, NULL);
}
END_TEST

/* A rank whose connection turns to garbage after the rendezvous is a fault, not a hang. */
static int corrupt(const xm_job_env_t *env, int listen_fd, void *arg)
{
    static const char noise[] = "garbage garbage garbage garbage";
    xm_bootstrap_t *bootstrap = join(env, listen_fd);

    (void)arg;
    local_expect_ok(xm_bootstrap_barrier(bootstrap, limit_s));
    if (env->rank == 1) {
        /* Whatever sockets this process has: the only one is the bootstrap's. */
        for (int fd = 3; fd < 64; ++fd) {
            (void)send(fd, noise, sizeof(noise), MSG_NOSIGNAL);
        }
    }
    local_expect_fails(xm_bootstrap_barrier(bootstrap, limit_s), XM_ERR_CORRUPT,
                       "sent bytes that are no bootstrap frame");
    local_expect(strstr(xm_last_error(), "rank 1 (host ") != NULL, "'%s'", xm_last_error());
    xm_bootstrap_destroy(bootstrap);
    return 0;
}

START_TEST(a_corrupt_connection_is_a_fault)
{
    local_job_run(3, JOB_LIMIT_S, corrupt, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bootstrap");
    TCase *tcase = tcase_create("jobs");

    tcase_set_timeout(tcase, JOB_LIMIT_S + 5);
    tcase_add_loop_test(tcase, allgather_by_rank, 0, 4);
    tcase_add_test(tcase, allgatherv_of_uneven_blobs);
    tcase_add_test(tcase, allgatherv_does_not_mix_with_allgather);
    tcase_add_test(tcase, barrier_waits_for_the_last);
    tcase_add_test(tcase, misuse_is_refused);
    tcase_add_loop_test(tcase, a_death_is_named, 0, 12);
    tcase_add_loop_test(tcase, an_abort_is_quoted, 0, 4);
    tcase_add_loop_test(tcase, leaving_in_order_is_no_fault, 0, 3);
    tcase_add_test(tcase, allgather_times_out_with_names);
    tcase_add_test(tcase, unequal_lengths_are_named);
    tcase_add_test(tcase, a_corrupt_connection_is_a_fault);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
