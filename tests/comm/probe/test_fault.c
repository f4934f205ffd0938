/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that die while a probe runs. ctest silences UCX here: it reports every broken connection.
 */
#include "comm/probe/probe.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum { RANKS = 4, RANKS_PER_HOST = 2, DEADLINE_S = 60, MAX_BYTES = 4 << 20 };

typedef struct {
    atomic_int joined;      /* ranks that have a worker */
    const char *die_during; /* phase in which rank 0 kills itself, or NULL */
    double died_at;         /* of local_now() */
    int ended_with[RANKS];  /* status of xm_probe_run() */
    char sentence[RANKS][1024];
} shared_t;

static xm_worker_t *join(const xm_job_env_t *env, int listen_fd)
{
    char name[32];
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;

    (void)snprintf(name, sizeof(name), "emulated%d", env->rank / RANKS_PER_HOST);
    params.listen_fd = listen_fd;
    params.host = name;
    params.timeout = DEADLINE_S;
    local_expect_ok(xm_worker_create(env, &params, &worker));
    return worker;
}

static void die_in_phase(void *arg, double fraction, const char *what)
{
    shared_t *shared = arg;

    (void)fraction;
    if (shared->die_during != NULL && strcmp(what, shared->die_during) == 0) {
        shared->died_at = local_now();
        (void)raise(SIGKILL);
    }
}

/* Probes until one rank dies; the others must say so and end long before the deadline. That time
 * counts from the death: how long the probe took until then is the machine's own affair. */
static int probe_until_killed(const xm_job_env_t *env, int listen_fd, void *arg)
{
    shared_t *shared = arg;
    xm_worker_t *worker = join(env, listen_fd);
    xm_probe_params_t params = XM_PROBE_PARAMS_INIT;
    xm_cluster_profile_t *profile = NULL;

    (void)atomic_fetch_add(&shared->joined, 1);
    /* Rank 0 dies early enough, or streams are under way when another is killed. */
    params.budget = shared->die_during != NULL ? 1 : 4;
    params.max_bytes = MAX_BYTES;
    params.progress = die_in_phase;
    params.progress_arg = shared;
    while ((shared->ended_with[env->rank] = xm_probe_run(worker, &params, &profile)) == XM_OK) {
        xm_cluster_profile_destroy(profile);
        profile = NULL;
    }
    (void)snprintf(shared->sentence[env->rank], sizeof(shared->sentence[0]), "%s", xm_last_error());
    local_expect(profile == NULL, "a failed probe gives no profile");
    xm_worker_destroy(worker, "the probe failed");
    return 0;
}

static void assert_survivors_know(const shared_t *shared, int dead)
{
    char name[16];

    (void)snprintf(name, sizeof(name), "rank %d", dead);
    for (int rank = 0; rank < RANKS; ++rank) {
        if (rank != dead) {
            ck_assert_msg(shared->ended_with[rank] == XM_ERR_PEER_DIED, "rank %d: %d (%s)", rank,
                          shared->ended_with[rank], shared->sentence[rank]);
            ck_assert_msg(strstr(shared->sentence[rank], name) != NULL, "rank %d: '%s'", rank,
                          shared->sentence[rank]);
        }
    }
}

START_TEST(a_killed_initiator_ends_the_probe)
{
    static const char *const phases[] = {"FLOP/s",
                                         "messages inside a host",
                                         "messages between hosts",
                                         "all messages inside a host",
                                         "NIC capacity",
                                         "NIC capacity, both directions"};
    shared_t *shared = local_shared(sizeof(*shared));
    local_job_t job;

    shared->die_during = phases[_i];
    local_job_start(&job, RANKS, 0, DEADLINE_S, probe_until_killed, shared);
    local_job_wait(&job, 1U << 0);
    ck_assert_int_eq(job.results[0], LOCAL_JOB_KILLED);
    ck_assert_double_lt(local_now() - shared->died_at, DEADLINE_S / 2.0);
    assert_survivors_know(shared, 0);
}
END_TEST

START_TEST(a_rank_killed_at_any_time_ends_the_probe)
{
    /* Rank 2 answers the pings of rank 0; rank 3 is idle most of the time. */
    static const struct {
        int rank;
        double after;
    } deaths[] = {{2, 0.1}, {3, 0.7}, {1, 1.0}, {2, 1.6}, {2, 1.9}, {3, 2.2}};
    shared_t *shared = local_shared(sizeof(*shared));
    double start = local_now();
    int dead = deaths[_i].rank;
    local_job_t job;

    local_job_start(&job, RANKS, 0, 2 * DEADLINE_S, probe_until_killed, shared);
    while (atomic_load(&shared->joined) < RANKS && local_now() - start < DEADLINE_S) {
        local_sleep(0.01);
    }
    local_sleep(deaths[_i].after);
    shared->died_at = local_now();
    (void)kill(job.pids[dead], SIGKILL);
    local_job_wait(&job, 1U << dead);
    ck_assert_double_lt(local_now() - shared->died_at, DEADLINE_S / 2.0);
    ck_assert_int_eq(job.results[dead], LOCAL_JOB_KILLED);
    assert_survivors_know(shared, dead);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("probe_fault");
    TCase *tcase = tcase_create("jobs");

    tcase_set_timeout(tcase, 3 * DEADLINE_S);
    tcase_add_loop_test(tcase, a_killed_initiator_ends_the_probe, 0, 6);
    tcase_add_loop_test(tcase, a_rank_killed_at_any_time_ends_the_probe, 0, 6);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
