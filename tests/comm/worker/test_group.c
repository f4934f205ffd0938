/* SPDX-License-Identifier: Apache-2.0 */
/* Abort and shrink with real processes; resharding among survivors is in tests/resharding. */
#include <crossmesh/group.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "comm/worker/worker.h"
#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum { DEADLINE_S = 60, RANKS = 6, BIG = 4 << 20 };

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

static xm_worker_t *join(const xm_job_env_t *env, int listen_fd, int per_host)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;
    char host[32];

    (void)snprintf(host, sizeof(host), "h%d", env->rank / per_host);
    params.listen_fd = listen_fd;
    params.host = host;
    params.timeout = DEADLINE_S;
    local_expect_ok(xm_worker_create(env, &params, &worker));
    return worker;
}

static void receive(xm_worker_t *worker, waiter_t *waiter, int peer, uint64_t tag, void *buffer,
                    size_t length)
{
    xm_status_t status;

    *waiter = (waiter_t){.op = {.done = on_done, .arg = waiter}};
    status = xm_transport_receive(xm_worker_transport(worker), peer, tag, buffer, length, NULL,
                                  &waiter->op);
    local_expect(status >= 0, "receive: %s", xm_last_error());
    waiter->ended = status == XM_OK;
}

static void post_send(xm_worker_t *worker, waiter_t *waiter, int peer, uint64_t tag,
                      const void *buffer, size_t length)
{
    xm_status_t status;

    *waiter = (waiter_t){.op = {.done = on_done, .arg = waiter}};
    status = xm_transport_send(xm_worker_transport(worker), peer, tag, buffer, length, NULL,
                               &waiter->op);
    local_expect(status >= 0, "send: %s", xm_last_error());
    waiter->ended = status == XM_OK;
}

/* Sends a number around the ring of the group. */
static void ring(xm_worker_t *worker, uint64_t tag)
{
    int rank = xm_worker_rank(worker), size = xm_worker_size(worker), value = -1;
    int previous = (rank + size - 1) % size;
    waiter_t out, in;

    if (size == 1) {
        return;
    }
    receive(worker, &in, previous, tag, &value, sizeof(value));
    post_send(worker, &out, (rank + 1) % size, tag, &rank, sizeof(rank));
    while (in.ended == 0 || out.ended == 0) {
        local_expect_ok(xm_worker_wait(worker, xm_worker_deadline(worker)));
    }
    local_expect(value == previous, "rank %d got %d", rank, value);
}

typedef struct {
    int per_host;
    double aborted_at;
} abort_t;

/* Rank 4 aborts while big messages of equal tags are under way between all; what was sent before
 * must not be found in what is received afterwards, nor anything else be written. */
static int all_stop(const xm_job_env_t *env, int listen_fd, void *arg)
{
    abort_t *shared = arg;
    xm_worker_t *worker = join(env, listen_fd, shared->per_host);
    static waiter_t in[RANKS], out[RANKS];
    char *sent = malloc(BIG), *got[RANKS] = {NULL}, *seen = malloc(BIG);
    xm_status_t status = XM_OK;

    local_expect_ok(xm_worker_barrier(worker));
    memset(sent, 'a', BIG);
    for (int peer = 0; peer < env->size; ++peer) {
        if (peer != env->rank) {
            got[peer] = calloc(1, BIG);
            receive(worker, &in[peer], peer, 9, got[peer], BIG);
            if (env->rank != 4) { /* so that nobody can be done */
                post_send(worker, &out[peer], peer, 9, sent, BIG);
            }
        }
    }
    if (env->rank == 4) {
        local_sleep(0.05);
        shared->aborted_at = local_now();
        local_expect_ok(xm_group_abort(worker, "the optimizer diverged"));
        status = xm_worker_wait(worker, xm_worker_deadline(worker));
    }
    while (status == XM_OK) {
        status = xm_worker_wait(worker, xm_worker_deadline(worker));
    }
    local_expect(status == XM_ERR_CANCELED, "%s (%s)", xm_status_string(status), xm_last_error());
    local_expect(strstr(xm_last_error(), "rank 4 (host ") != NULL &&
                     strstr(xm_last_error(), "gave up: the optimizer diverged") != NULL,
                 "'%s'", xm_last_error());
    local_expect(local_now() - shared->aborted_at < DEADLINE_S / 3.0, "after %.1f s",
                 local_now() - shared->aborted_at);
    for (int peer = 0; peer < env->size; ++peer) {
        local_expect(peer == env->rank || in[peer].ended == 1, "receive from %d ended %d times",
                     peer, in[peer].ended);
        local_expect(peer == env->rank || env->rank == 4 || out[peer].ended == 1,
                     "send to %d ended %d times", peer, out[peer].ended);
    }
    /* Nothing is written any more, whatever the others still do. */
    for (int peer = 0; peer < env->size; ++peer) {
        if (peer != env->rank) {
            memcpy(seen, got[peer], BIG);
            local_sleep(0.02);
            (void)xm_worker_progress(worker);
            local_expect(memcmp(seen, got[peer], BIG) == 0, "written after the abort");
        }
    }
    local_expect_ok(xm_group_shrink(worker, 0));
    local_expect(xm_group_generation(worker) == 1 && xm_worker_size(worker) == env->size,
                 "generation %d, %d ranks", xm_group_generation(worker), xm_worker_size(worker));
    local_expect(xm_worker_rank(worker) == env->rank, "rank %d", xm_worker_rank(worker));
    /* The same tags, other contents. */
    memset(sent, 'b', BIG);
    for (int peer = 0; peer < env->size; ++peer) {
        if (peer != env->rank) {
            receive(worker, &in[peer], peer, 9, got[peer], BIG);
            post_send(worker, &out[peer], peer, 9, sent, BIG);
        }
    }
    for (int peer = 0; peer < env->size; ++peer) {
        while (peer != env->rank && (in[peer].ended == 0 || out[peer].ended == 0)) {
            local_expect_ok(xm_worker_wait(worker, xm_worker_deadline(worker)));
        }
        for (size_t i = 0; peer != env->rank && i < BIG; ++i) {
            local_expect(got[peer][i] == 'b', "byte %zu from rank %d is %d", i, peer, got[peer][i]);
        }
        free(got[peer]);
    }
    free(seen);
    free(sent);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(an_abort_ends_everything_everywhere)
{
    abort_t *shared = local_shared(sizeof(*shared));

    shared->per_host = _i == 0 ? RANKS : 2;
    local_job_run(RANKS, DEADLINE_S, all_stop, shared);
}
END_TEST

/* Rank 4 gives up because the transport has lost rank 5, before it has heard that this one is dead:
 * that is the reason, and not its giving up. */
static int give_up_early(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd, 1);
    xm_transport_t *transport = xm_worker_transport(worker);
    xm_status_t status = XM_OK;
    char byte;
    waiter_t in;

    (void)arg;
    ring(worker, 1);
    local_expect_ok(xm_worker_barrier(worker));
    if (env->rank == 5) {
        (void)raise(SIGKILL);
    }
    if (env->rank == 4) {
        receive(worker, &in, 5, 2, &byte, 1);
        while (transport->failed_peer < 0) {
            (void)xm_transport_progress(transport);
        }
        local_expect_ok(xm_group_abort(worker, "a message was not passed"));
    }
    while (status == XM_OK) {
        status = xm_worker_wait(worker, xm_worker_deadline(worker));
    }
    local_expect(status == XM_ERR_PEER_DIED && strstr(xm_last_error(), "rank 5 (host ") != NULL,
                 "%s (%s)", xm_status_string(status), xm_last_error());
    xm_worker_destroy(worker, "over");
    return 0;
}

START_TEST(a_death_is_a_better_reason_than_an_abort)
{
    local_job_t job;

    local_job_start(&job, RANKS, 0, DEADLINE_S, give_up_early, NULL);
    local_job_wait(&job, 1u << 5);
}
END_TEST

/* Who dies, and when. */
typedef struct {
    unsigned first;  /* bits of ranks that die while all wait */
    unsigned second; /* that die when they enter the shrink */
    unsigned third;  /* that die after the shrink */
    bool no_heartbeat;
    bool in_between; /* the second ones die in the middle of it, some time after they entered */
} deaths_t;

static int count_bits(unsigned bits)
{
    int count = 0;

    for (; bits != 0; bits &= bits - 1) {
        ++count;
    }
    return count;
}

static void die_later(double seconds)
{
    /* A timer of the process: it strikes wherever the process then is. */
    struct itimerspec at = {.it_value = {.tv_nsec = (long)(seconds * 1e9)}};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    timer_t timer;

    local_expect(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 &&
                     timer_settime(timer, 0, &at, NULL) == 0,
                 "timer");
}

/* Waits until somebody's death ends the wait. */
static void wait_for_death(xm_worker_t *worker)
{
    xm_status_t status = XM_OK;

    while (status == XM_OK) {
        status = xm_worker_wait(worker, xm_worker_deadline(worker));
    }
    local_expect(status == XM_ERR_PEER_DIED, "%s (%s)", xm_status_string(status), xm_last_error());
}

/* Shrinks; again when the group was dead before it lived. */
static void shrink_to(xm_worker_t *worker, unsigned alive, int job_rank)
{
    int rank = 0;

    for (int tries = 0;; ++tries) {
        local_expect(tries < 5, "still %d ranks", xm_worker_size(worker));
        local_expect_ok(xm_group_shrink(worker, 0));
        if (xm_worker_size(worker) == count_bits(alive)) {
            break;
        }
        wait_for_death(worker);
    }
    for (int other = 0; other < RANKS; ++other) {
        if ((alive >> other & 1) != 0) {
            local_expect(xm_group_job_rank(worker, rank) == other, "rank %d was %d", rank,
                         xm_group_job_rank(worker, rank));
            local_expect(other != job_rank || xm_worker_rank(worker) == rank, "I am rank %d",
                         xm_worker_rank(worker));
            ++rank;
        }
    }
}

static int survive(const xm_job_env_t *env, int listen_fd, void *arg)
{
    const deaths_t *deaths = arg;
    unsigned all = (1u << RANKS) - 1, me = 1u << env->rank;
    xm_worker_t *worker;
    int generation;

    if (deaths->no_heartbeat) {
        local_expect(setenv("XM_HEARTBEAT", "0", 1) == 0, "setenv");
    }
    worker = join(env, listen_fd, 3);
    ring(worker, 1);
    local_expect_ok(xm_worker_barrier(worker));
    if ((deaths->first & me) != 0) {
        (void)raise(SIGKILL);
    }
    if (deaths->first != 0) {
        wait_for_death(worker);
    } else {
        local_expect_ok(xm_worker_barrier(worker));
    }
    if ((deaths->second & me) != 0) {
        if (!deaths->in_between) {
            (void)raise(SIGKILL);
        }
        die_later(0.02 * (env->rank + 1));
        (void)xm_group_shrink(worker, 0);
        for (;;) {
            local_sleep(1);
        }
    }
    shrink_to(worker, all & ~deaths->first & ~deaths->second, env->rank);
    generation = xm_group_generation(worker);
    local_expect(generation >= 1, "generation %d", generation);
    ring(worker, 1);
    local_expect_ok(xm_worker_barrier(worker));
    if (deaths->third != 0) {
        if ((deaths->third & me) != 0) {
            (void)raise(SIGKILL);
        }
        wait_for_death(worker);
        shrink_to(worker, all & ~deaths->first & ~deaths->second & ~deaths->third, env->rank);
        local_expect(xm_group_generation(worker) > generation, "generation %d after %d",
                     xm_group_generation(worker), generation);
        ring(worker, 1);
    }
    xm_worker_destroy(worker, NULL);
    return 0;
}

static const deaths_t scenarios[] = {
    {.first = 1u << 3},
    {.first = 1u << 0},
    {.first = 1u << 1 | 1u << 4},
    {.first = 1u << 0 | 1u << 1},
    {.first = 1u << 5, .second = 1u << 2},
    {.first = 1u << 2, .second = 1u << 0},
    {.first = 1u << 0, .second = 1u << 1 | 1u << 2},
    {.first = 1u << 4, .second = 1u << 0 | 1u << 1, .in_between = true},
    {.first = 1u << 5, .third = 1u << 0},
    {.first = 1u << 0, .second = 1u << 1, .third = 1u << 2 | 1u << 3},
    {.first = 1u << 0 | 1u << 3, .no_heartbeat = true},
    {.first = 0x1f},
    {.first = 0},
};

START_TEST(survivors_go_on)
{
    const deaths_t *deaths = &scenarios[_i];
    local_job_t job;

    local_job_start(&job, RANKS, 0, DEADLINE_S, survive, (void *)(uintptr_t)deaths);
    local_job_wait(&job, deaths->first | deaths->second | deaths->third);
    (void)printf("dead 0x%x, 0x%x, 0x%x: all over after %.1f s\n", deaths->first, deaths->second,
                 deaths->third, local_now() - job.started);
}
END_TEST

/* A rank that was stopped comes back when the others have gone on without it. */
static int left_behind(const xm_job_env_t *env, int listen_fd, void *arg)
{
    atomic_int *gone_on = arg;
    xm_worker_t *worker = join(env, listen_fd, 3);
    xm_status_t status = XM_OK;

    local_expect_ok(xm_worker_barrier(worker));
    if (env->rank == 2) {
        (void)raise(SIGSTOP);
        while (status == XM_OK) {
            status = xm_worker_wait(worker, xm_worker_deadline(worker));
        }
        local_expect_fails(xm_group_shrink(worker, 2.0), XM_ERR_PEER_DIED, "");
        xm_worker_destroy(worker, "left behind");
        return 0;
    }
    wait_for_death(worker);
    local_expect_ok(xm_group_shrink(worker, 0));
    local_expect(xm_worker_size(worker) == 2, "%d ranks", xm_worker_size(worker));
    ring(worker, 1);
    (void)atomic_fetch_add(gone_on, 1);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(who_was_left_behind_is_told)
{
    atomic_int *gone_on = local_shared(sizeof(*gone_on));
    double limit = local_now() + DEADLINE_S / 2.0;
    local_job_t job;

    local_job_start(&job, 3, 0, DEADLINE_S, left_behind, gone_on);
    while (atomic_load(gone_on) < 2 && local_now() < limit) {
        local_sleep(0.01);
    }
    (void)kill(job.pids[2], SIGCONT);
    local_job_wait(&job, 0);
}
END_TEST

/* Rank 3 dies, and rank 4 of the same host gets no processor for two and a half of the detector's
 * intervals, as on a machine with too much to do, just when all look for each other. */
static int held_up(const xm_job_env_t *env, int listen_fd, void *arg)
{
    atomic_int *stopped = arg;
    xm_worker_t *worker;

    local_expect(setenv("XM_HEARTBEAT", "2", 1) == 0, "setenv");
    worker = join(env, listen_fd, 3);
    local_expect_ok(xm_worker_barrier(worker));
    if (env->rank == 3) {
        (void)raise(SIGKILL);
    }
    wait_for_death(worker);
    if (env->rank == 4) {
        atomic_store(stopped, 1);
        (void)raise(SIGSTOP);
    }
    local_expect_ok(xm_group_shrink(worker, 0));
    local_expect(xm_worker_size(worker) == RANKS - 1, "%d ranks", xm_worker_size(worker));
    ring(worker, 1);
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(who_is_slow_is_not_left_out)
{
    atomic_int *stopped = local_shared(sizeof(*stopped));
    local_job_t job;

    local_job_start(&job, RANKS, 0, DEADLINE_S, held_up, stopped);
    local_await(stopped, 1);
    local_sleep(5.0);
    (void)kill(job.pids[4], SIGCONT);
    local_job_wait(&job, 1u << 3);
}
END_TEST

/* Rank 2 lives but does not come. */
static int stay_away(const xm_job_env_t *env, int listen_fd, void *arg)
{
    atomic_int *told = arg;
    xm_worker_t *worker = join(env, listen_fd, 3);

    local_expect_ok(xm_worker_barrier(worker));
    if (env->rank == 2) {
        local_await(told, 2);
    } else {
        /* Rank 0's time counts; it says who is missing. */
        local_expect_fails(xm_group_shrink(worker, env->rank == 0 ? 4.0 : DEADLINE_S),
                           XM_ERR_TIMEOUT, "have not called it: 2");
        (void)atomic_fetch_add(told, 1);
    }
    xm_worker_destroy(worker, "over");
    return 0;
}

START_TEST(who_does_not_come_is_named)
{
    local_job_run(3, DEADLINE_S, stay_away, local_shared(sizeof(atomic_int)));
}
END_TEST

static int alone(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd, 1);

    (void)arg;
    local_expect_ok(xm_group_abort(worker, "enough"));
    local_expect_fails(xm_worker_wait(worker, xm_worker_deadline(worker)), XM_ERR_CANCELED,
                       "enough");
    local_expect_ok(xm_group_shrink(worker, 0));
    local_expect_ok(xm_worker_barrier(worker));
    local_expect(xm_worker_size(worker) == 1 && xm_group_generation(worker) == 1, "alone");
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(one_rank_is_a_group)
{
    local_job_run(1, DEADLINE_S, alone, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group");
    TCase *tcase = tcase_create("groups");

    tcase_set_timeout(tcase, 2 * DEADLINE_S);
    tcase_add_loop_test(tcase, an_abort_ends_everything_everywhere, 0, 2);
    tcase_add_test(tcase, a_death_is_a_better_reason_than_an_abort);
    tcase_add_loop_test(tcase, survivors_go_on, 0, (int)(sizeof(scenarios) / sizeof(*scenarios)));
    tcase_add_test(tcase, who_was_left_behind_is_told);
    tcase_add_test(tcase, who_is_slow_is_not_left_out);
    tcase_add_test(tcase, who_does_not_come_is_named);
    tcase_add_test(tcase, one_rank_is_a_group);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
