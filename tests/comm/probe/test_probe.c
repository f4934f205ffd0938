/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/probe/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum { RANKS = 4, DEADLINE_S = 60, TEXT_SIZE = 1 << 16, MAX_BYTES = 1 << 20, STEPS = 256 };

typedef struct {
    char text[RANKS][TEXT_SIZE]; /* the profile as each rank has it */
    double fractions[STEPS];
    int steps;
    int per_host;
} shared_t;

static xm_worker_t *join(const xm_job_env_t *env, int listen_fd, int per_host)
{
    char name[32];
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;

    (void)snprintf(name, sizeof(name), "emulated%d", env->rank / per_host);
    params.listen_fd = listen_fd;
    params.host = name;
    params.timeout = DEADLINE_S;
    local_expect_ok(xm_worker_create(env, &params, &worker));
    return worker;
}

static void note_step(void *arg, double fraction, const char *what)
{
    shared_t *shared = arg;

    local_expect(what != NULL && shared->steps < STEPS, "step %d", shared->steps);
    shared->fractions[shared->steps++] = fraction;
}

static int probe(const xm_job_env_t *env, int listen_fd, void *arg)
{
    shared_t *shared = arg;
    xm_worker_t *worker = join(env, listen_fd, shared->per_host);
    xm_probe_params_t params = XM_PROBE_PARAMS_INIT;
    xm_cluster_profile_t *profile = NULL;
    char *text = NULL;

    params.max_bytes = MAX_BYTES;
    params.repetitions = 3;
    params.budget = 4;
    params.progress = note_step;
    params.progress_arg = shared;
    local_expect_ok(xm_probe_run(worker, &params, &profile));
    local_expect_ok(xm_cluster_profile_to_text(profile, &text));
    local_expect(strlen(text) < TEXT_SIZE, "profile of %zu bytes", strlen(text));
    memcpy(shared->text[env->rank], text, strlen(text) + 1);
    free(text);
    xm_cluster_profile_destroy(profile);
    xm_worker_destroy(worker, NULL);
    return 0;
}

static shared_t *share(int per_host)
{
    shared_t *shared = local_shared(sizeof(*shared));

    shared->per_host = per_host;
    return shared;
}

static xm_cluster_profile_t *profile_of(const shared_t *shared, int ranks)
{
    xm_cluster_profile_t *profile = NULL;

    for (int rank = 1; rank < ranks; ++rank) {
        ck_assert_str_eq(shared->text[rank], shared->text[0]);
    }
    ck_assert_xm_ok(
        xm_cluster_profile_from_text(shared->text[0], strlen(shared->text[0]), "probe", &profile));
    return profile;
}

START_TEST(a_job_on_two_hosts_agrees_on_a_profile)
{
    shared_t *shared = share(2);
    xm_cluster_profile_t *profile;
    const xm_curve_point_t *curve;
    size_t points;

    local_job_run(RANKS, 2 * DEADLINE_S, probe, shared);
    profile = profile_of(shared, RANKS);
    ck_assert_int_eq(xm_cluster_profile_hosts(profile), 2);
    ck_assert_int_eq(xm_cluster_profile_devices_per_host(profile), 2);
    ck_assert_str_eq(xm_cluster_profile_name(profile), "emulated0 and 1 more");
    ck_assert_ptr_nonnull(strstr(xm_cluster_profile_provenance(profile), "measured 20"));
    ck_assert_ptr_nonnull(strstr(xm_cluster_profile_provenance(profile), "4 ranks on 2 hosts"));
    ck_assert_ptr_nonnull(
        strstr(xm_cluster_profile_provenance(profile), "emulated on one machine"));
    ck_assert_ptr_null(strstr(xm_cluster_profile_provenance(profile), "stands in"));
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        curve = xm_cluster_profile_curve(profile, (xm_link_class_t)link, &points);
        ck_assert_uint_ge(points, 2);
        ck_assert_uint_eq(curve[points - 1].bytes, MAX_BYTES);
        ck_assert_uint_eq(curve[0].bytes, 8);
        /* A mebibyte in less than a microsecond or more than some seconds is no measurement. */
        ck_assert_double_gt(curve[points - 1].seconds, 1e-6);
        ck_assert_double_lt(curve[points - 1].seconds, 8);
        ck_assert_double_lt(curve[0].seconds, 8);
    }
    /* A wake-up of another process cannot be cheaper than a copy of 8 bytes. */
    ck_assert_double_lt(xm_cluster_profile_latency(profile, XM_LINK_SELF),
                        xm_cluster_profile_latency(profile, XM_LINK_INTRA_HOST));
    ck_assert_double_lt(xm_cluster_profile_latency(profile, XM_LINK_SELF),
                        xm_cluster_profile_latency(profile, XM_LINK_INTER_HOST));
    ck_assert_double_gt(xm_cluster_profile_nic_bandwidth(profile), 1e6);
    /* A busy machine may have spent the time on what came before. */
    ck_assert(xm_cluster_profile_nic_both_ways(profile) > 1e6 ||
              strstr(xm_cluster_profile_provenance(profile), "no time was left") != NULL);
    ck_assert_double_gt(xm_cluster_profile_host_fabric(profile), 1e6);
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        ck_assert_ptr_nonnull(xm_cluster_profile_spread(profile, (xm_link_class_t)link));
    }
    ck_assert_double_gt(xm_cluster_profile_device_flops(profile), 1e7);
    ck_assert_double_lt(xm_cluster_profile_device_flops(profile), 1e13);
    ck_assert_double_gt(xm_cluster_profile_device_memory_bandwidth(profile), 1e7);
    ck_assert_double_eq_tol(xm_cluster_profile_device_memory_bytes(profile),
                            0.4 * (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE),
                            1e6);
    ck_assert_int_gt(shared->steps, 10);
    for (int i = 1; i < shared->steps; ++i) {
        ck_assert_double_ge(shared->fractions[i], shared->fractions[i - 1]);
    }
    ck_assert_double_eq(shared->fractions[0], 0);
    ck_assert_double_eq(shared->fractions[shared->steps - 1], 1);
    xm_cluster_profile_destroy(profile);
}
END_TEST

START_TEST(classes_without_a_pair_are_named)
{
    static const struct {
        int ranks, per_host;
        const char *said;
    } jobs[] = {{2, 2, "inter_host is not in this job, the curve of intra_host stands in"},
                {2, 1, "intra_host is not in this job, the curve of inter_host stands in"},
                {1, 1, "inter_host is not in this job, the curve of self stands in"}};
    shared_t *shared = share(jobs[_i].per_host);
    xm_cluster_profile_t *profile;

    local_job_run(jobs[_i].ranks, 2 * DEADLINE_S, probe, shared);
    profile = profile_of(shared, jobs[_i].ranks);
    ck_assert_ptr_nonnull(strstr(xm_cluster_profile_provenance(profile), jobs[_i].said));
    xm_cluster_profile_destroy(profile);
}
END_TEST

/* What each rank saw of a probe that starts from the results of another. */
static int probe_twice(const xm_job_env_t *env, int listen_fd, void *arg)
{
    shared_t *shared = arg;
    xm_worker_t *worker = join(env, listen_fd, shared->per_host);
    xm_probe_params_t params = XM_PROBE_PARAMS_INIT;
    xm_cluster_profile_t *profiles[2] = {NULL, NULL};
    char path[64], *text[2];
    size_t points;

    (void)snprintf(path, sizeof(path), "/tmp/xm-probe-%d.partial", (int)getppid());
    params.max_bytes = MAX_BYTES;
    params.budget = 4;
    params.resume = true;
    params.partial = env->rank == 0 ? path : NULL;
    (void)unlink(path);
    local_expect_ok(xm_worker_barrier(worker));
    local_expect_ok(xm_probe_run(worker, &params, &profiles[0]));
    local_expect_ok(xm_probe_run(worker, &params, &profiles[1]));
    for (int i = 0; i < 2; ++i) {
        local_expect_ok(xm_cluster_profile_to_text(profiles[i], &text[i]));
        /* What NICs cost is new where the first probe had no time left for them. */
        *strstr(text[i], "\"cores\"") = '\0';
    }
    /* No two measurements agree in all digits: the second probe made none of these. */
    local_expect(strcmp(strstr(text[0], "\"curves\""), strstr(text[1], "\"curves\"")) == 0,
                 "'%s' and '%s'", text[0], text[1]);
    /* Another job does not take them. */
    params.max_bytes = MAX_BYTES / 4;
    local_expect_fails(xm_probe_run(worker, &params, &profiles[1]), XM_ERR_MISMATCH,
                       "of another job");
    (void)xm_cluster_profile_curve(profiles[1], XM_LINK_SELF, &points);
    local_expect(points > 2, "the profile of before is untouched");
    local_expect_ok(xm_worker_barrier(worker));
    (void)unlink(path);
    for (int i = 0; i < 2; ++i) {
        free(text[i]);
        xm_cluster_profile_destroy(profiles[i]);
    }
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(a_probe_goes_on_from_what_is_left)
{
    local_job_run(RANKS, 2 * DEADLINE_S, probe_twice, share(2));
}
END_TEST

static int refuse(const xm_job_env_t *env, int listen_fd, void *arg)
{
    xm_worker_t *worker = join(env, listen_fd, *(int *)arg);
    xm_probe_params_t params = XM_PROBE_PARAMS_INIT;
    xm_cluster_profile_t *profile = NULL;

    params.max_bytes = 1000;
    local_expect_fails(xm_probe_run(worker, &params, &profile), XM_ERR_INVALID_ARGUMENT,
                       "the largest message is 1000 bytes; it must be 64 KiB to 1 TiB");
    params.max_bytes = 0;
    params.repetitions = -1;
    local_expect_fails(xm_probe_run(worker, &params, &profile), XM_ERR_INVALID_ARGUMENT,
                       "-1 repetitions");
    params.repetitions = 0;
    params.budget = -1;
    local_expect_fails(xm_probe_run(worker, &params, &profile), XM_ERR_INVALID_ARGUMENT,
                       "a budget of -1 seconds");
    local_expect(profile == NULL, "nothing was made");
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(bad_parameters_are_refused)
{
    int per_host = 1;

    local_job_run(1, DEADLINE_S, refuse, &per_host);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("probe");
    TCase *tcase = tcase_create("jobs");

    tcase_set_timeout(tcase, 3 * DEADLINE_S);
    tcase_add_test(tcase, a_job_on_two_hosts_agrees_on_a_profile);
    tcase_add_loop_test(tcase, classes_without_a_pair_are_named, 0, 3);
    tcase_add_test(tcase, a_probe_goes_on_from_what_is_left);
    tcase_add_test(tcase, bad_parameters_are_refused);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
